// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * hread [guest] ROUNDS
 *
 * hread() and lwrite() beside read() and write(), as raw system calls. Each side has its own connection, and they
 * alternate. hread() always holds what it returns until the next call releases it, as a streaming server does.
 *
 *	read, write	the call alone: data already queued and acknowledged, or room for all of it
 *	both		a request is read and answered
 *	transfer	there and back between two processes, which wait for each other: write + read in each
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "bench.h"
#include "tcp.h"

#define MAX_SIZE	65536
#define WARM_UP		8

enum { PLAIN, HELD, NR_SIDES };

static const char *const side_name[NR_SIDES] = { "stock call", "perdure" };
static const size_t sizes[] = { 1, 16, 256, 1024, 4096, 16384, 65536 };
static char buf[MAX_SIZE];

struct end {
	int in, out;
	size_t held;	/* returned by the last hread, to be released by the next */
};

struct link {
	struct end near, far;
};

static int zlr;
static uint64_t clock_ns;

static long get(struct end *e, int side, size_t len)
{
	long n = side == HELD ? syscall(__NR_hread, e->in, buf, len, e->held, 0) : syscall(__NR_read, e->in, buf, len);

	if (n <= 0)
		die("reading");
	e->held = n;
	return n;
}

static long put(struct end *e, int side, size_t len)
{
	long n = side == HELD ? syscall(__NR_lwrite, e->out, buf, len, 0) : syscall(__NR_write, e->out, buf, len);

	if (n <= 0)
		die("writing");
	return n;
}

static void get_all(struct end *e, int side, size_t len)
{
	while (len)
		len -= get(e, side, len);
}

static void put_all(struct end *e, int side, size_t len)
{
	while (len)
		len -= put(e, side, len);
}

static void open_link(const char *kind, struct link *l)
{
	int fds[2], there[2], back[2];

	if (!strcmp(kind, "pipe")) {
		TRY(pipe(there));
		TRY(pipe(back));
		TRY(fcntl(there[1], F_SETPIPE_SZ, 2 * MAX_SIZE));
		TRY(fcntl(back[1], F_SETPIPE_SZ, 2 * MAX_SIZE));
		l->near = (struct end){ .in = back[0], .out = there[1] };
		l->far = (struct end){ .in = there[0], .out = back[1] };
		return;
	}
	if (!strcmp(kind, "unix"))
		TRY(socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	else
		tcp_pair(fds, 4 * MAX_SIZE);
	l->near = (struct end){ .in = fds[0], .out = fds[0] };
	l->far = (struct end){ .in = fds[1], .out = fds[1] };
}

static void close_link(struct link *l)
{
	close(l->near.in);
	close(l->far.in);
	if (l->near.in != l->near.out) {
		close(l->near.out);
		close(l->far.out);
	}
}

/* Did it happen? The kernel's own count of what went through this end, and of what it still holds. */
static void check_counts(struct end *e, size_t read, size_t written)
{
	struct io_log in, out;

	TRY(syscall(__NR_getiolog, e->in, &in, sizeof(in), 0));
	TRY(syscall(__NR_getiolog, e->out, &out, sizeof(out), 0));
	if (in.read != read || in.held != e->held || out.written != written) {
		fprintf(stderr, "bench: %llu bytes were read, not %zu; %llu written, not %zu; %llu are held, not %zu\n",
			(unsigned long long)in.read, read, (unsigned long long)out.written, written,
			(unsigned long long)in.held, e->held);
		exit(1);
	}
}

static void wait_for(int fd, size_t bytes)
{
	int queued = 0;

	while ((size_t)queued < bytes)
		TRY(ioctl(fd, FIONREAD, &queued));
}

static void report_both(const char *kind, const char *what, size_t size, struct samples s[NR_SIDES])
{
	char name[64];

	if (size < 1024)
		snprintf(name, sizeof(name), "%s %s %zu B", kind, what, size);
	else
		snprintf(name, sizeof(name), "%s %s %zu KiB", kind, what, size / 1024);
	for (int side = 0; side <= zlr; side++)
		report(name, side_name[side], &s[side]);
}

/* The read side and the write side of one call, the other end's work outside the stopwatch. */
static void measure_calls(const char *kind, size_t size, int rounds)
{
	static struct samples reads[NR_SIDES], writes[NR_SIDES], both[NR_SIDES];
	struct link links[NR_SIDES];
	uint64_t t;

	memset(reads, 0, sizeof(reads));
	memset(writes, 0, sizeof(writes));
	memset(both, 0, sizeof(both));
	for (int side = 0; side < NR_SIDES; side++)
		open_link(kind, &links[side]);
	for (int i = -WARM_UP; i < rounds; i++)
		for (int k = 0; k <= zlr; k++) {
			int side = k ^ (zlr & i & 1);	/* neither side always goes first */
			struct link *l = &links[side];
			uint64_t reading, writing;

			put_all(&l->far, PLAIN, size);
			wait_for(l->near.in, size);
			/*
			 * On loopback a buffer is its sender's, too, until it is acknowledged, and who lets go last
			 * frees it. As on a network, that shall be the reader: a byte takes the acknowledgement back.
			 */
			put_all(&l->near, side, 1);
			get_all(&l->far, PLAIN, 1);
			t = now_ns();
			get_all(&l->near, side, size);
			reading = now_ns() - t - clock_ns;

			t = now_ns();
			put_all(&l->near, side, size);
			writing = now_ns() - t - clock_ns;
			get_all(&l->far, PLAIN, size);
			if (i >= 0) {
				add_sample(&reads[side], reading);
				add_sample(&writes[side], writing);
				add_sample(&both[side], reading + writing);
			}
		}
	if (zlr)
		check_counts(&links[HELD].near, size * (rounds + WARM_UP), (size + 1) * (rounds + WARM_UP));
	report_both(kind, "read", size, reads);
	report_both(kind, "write", size, writes);
	report_both(kind, "both", size, both);
	for (int side = 0; side < NR_SIDES; side++)
		close_link(&links[side]);
}

static void measure_transfer(const char *kind, size_t size, int rounds)
{
	static struct samples s[NR_SIDES];
	struct link links[NR_SIDES];
	pid_t pid[NR_SIDES];

	memset(s, 0, sizeof(s));
	for (int side = 0; side <= zlr; side++) {
		struct link *l = &links[side];

		open_link(kind, l);
		pid[side] = TRY(fork());
		if (!pid[side]) {
			for (int i = -WARM_UP; i < rounds; i++) {
				get_all(&l->far, side, size);
				put_all(&l->far, side, size);
			}
			_exit(0);
		}
	}
	for (int i = -WARM_UP; i < rounds; i++)
		for (int k = 0; k <= zlr; k++) {
			int side = k ^ (zlr & i & 1);
			struct link *l = &links[side];
			uint64_t t = now_ns();

			put_all(&l->near, side, size);
			get_all(&l->near, side, size);
			/* On one processor: the other end goes back to waiting, which belongs to this side. */
			sched_yield();
			if (i >= 0)
				add_sample(&s[side], now_ns() - t);
		}
	for (int side = 0; side <= zlr; side++) {
		int status;

		TRY(waitpid(pid[side], &status, 0));
		if (status)
			die("the other end failed");
		if (side == HELD)
			check_counts(&links[side].near, size * (rounds + WARM_UP), size * (rounds + WARM_UP));
		close_link(&links[side]);
	}
	report_both(kind, "transfer", size, s);
}

int main(int argc, char **argv)
{
	int arg = argc > 1 && !strcmp(argv[1], "guest") ? 2 : 1, rounds;

	if (arg >= argc) {
		fprintf(stderr, "usage: %s [guest] ROUNDS\n", argv[0]);
		return 2;
	}
	rounds = atoi(argv[arg]);
	bench_setup(argc, argv);
	zlr = have_zlr();
	clock_ns = clock_cost();
	memset(buf, 'p', sizeof(buf));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		measure_calls("tcp", sizes[i], rounds);
		measure_transfer("tcp", sizes[i], rounds);
	}
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		if (sizes[i] == 1 || sizes[i] == 1024 || sizes[i] == 65536) {
			measure_calls("unix", sizes[i], rounds);
			measure_calls("pipe", sizes[i], rounds);
		}
	return 0;
}
