// SPDX-License-Identifier: GPL-2.0-or-later
/* Who sleeps in a call that reads, when data becomes unread, wakes up and gets that data before anything newer. */
#include "chan.h"
#include "ring.h"
#include "stuck.h"

#include <linux/aio_abi.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

enum { N = 8, FIRST = 8, SECOND = 16 };	/* an eventfd reads 8 bytes, and these are not 0 */

static void open_eventfd(int fd[2])
{
	fd[0] = T_OK(eventfd(0, 0));
	fd[1] = T_OK(dup(fd[0]));
}

static const struct kind event_kind = { "eventfd", STREAM | TTY, open_eventfd };

static ssize_t by_read(int fd, void *buf)
{
	return read(fd, buf, N);
}

static ssize_t by_readv(int fd, void *buf)
{
	struct iovec iov[2] = { { buf, 5 }, { (char *)buf + 5, N - 5 } };

	return readv(fd, iov, 2);
}

static ssize_t by_hread(int fd, void *buf)
{
	return x_hread(fd, buf, N, N);
}

static ssize_t by_recv(int fd, void *buf)
{
	return recv(fd, buf, N, 0);
}

static void give_timeout(int fd, int seconds)
{
	struct timeval tv = { .tv_sec = seconds };

	T_OK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
}

/* A signal would end this one with EINTR, whatever its flags. */
static ssize_t by_recv_with_timeout(int fd, void *buf)
{
	give_timeout(fd, 100);
	return recv(fd, buf, N, 0);
}

/* recv() looks once more by itself, this one does not. */
static ssize_t by_read_with_timeout(int fd, void *buf)
{
	give_timeout(fd, 100);
	return read(fd, buf, N);
}

static ssize_t by_recvmsg(int fd, void *buf)
{
	struct iovec iov = { buf, N };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	return recvmsg(fd, &msg, 0);
}

static ssize_t by_recvmmsg(int fd, void *buf)
{
	struct iovec iov = { buf, N };
	struct mmsghdr msg = { .msg_hdr = { .msg_iov = &iov, .msg_iovlen = 1 } };

	return recvmmsg(fd, &msg, 1, 0, NULL) == 1 ? (ssize_t)msg.msg_len : -1;
}

static ssize_t by_splice(int fd, void *buf)
{
	ssize_t n;
	int p[2];

	T_OK(pipe(p));
	n = splice(fd, NULL, p[1], NULL, N, 0);
	if (n > 0)
		n = read(p[0], buf, n);
	close(p[0]);
	close(p[1]);
	return n;
}

static ssize_t by_ring(int fd, void *buf)
{
	struct ring r;

	ring_open(&r);
	return ring_do(&r, IORING_OP_READ, fd, buf, N);
}

/* io_submit() sleeps until there is something to read. */
static ssize_t by_aio(int fd, void *buf)
{
	struct iocb iocb = { .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = fd, .aio_buf = (uintptr_t)buf, .aio_nbytes = N };
	struct iocb *list = &iocb;
	struct io_event event;
	aio_context_t ctx = 0;

	T_OK(syscall(SYS_io_setup, 1, &ctx));
	T_EQ(syscall(SYS_io_submit, ctx, 1, &list), 1);
	T_EQ(syscall(SYS_io_getevents, ctx, 1, 1, &event, NULL), 1);
	return event.res;
}

static const struct way {
	const char *name;
	ssize_t (*get)(int fd, void *buf);
	long nr;	/* the call that sleeps */
	int flags;	/* of channels that it is for */
} ways[] = {
	{ "read", by_read, SYS_read, ~0 },
	{ "readv", by_readv, SYS_readv, ~0 },
	{ "hread", by_hread, NR_hread, ~0 },
	{ "recv", by_recv, SYS_recvfrom, SOCK },
	{ "recv with a timeout", by_recv_with_timeout, SYS_recvfrom, SOCK },
	{ "read with a timeout", by_read_with_timeout, SYS_read, SOCK },
	{ "recvmsg", by_recvmsg, SYS_recvmsg, SOCK },
	{ "recvmmsg", by_recvmmsg, SYS_recvmmsg, SOCK },
	{ "splice", by_splice, SYS_splice, TCP },
	{ "io_uring", by_ring, SYS_io_uring_enter, ~0 },
	{ "aio", by_aio, SYS_io_submit, ~0 },
};

/* Waits until the process sleeps in that call. */
static void sleeps_in(pid_t pid, long nr)
{
	char path[64], text[256];

	snprintf(path, sizeof(path), "/proc/%d/syscall", pid);
	for (;;) {
		T_ASSERT(t_get(path, text, sizeof(text)) >= 0);
		if (text[0] >= '0' && text[0] <= '9' && atol(text) == nr)
			return;
		t_sleep_ms(1);
	}
}

/* What each process says of itself, and what the test says to it */
enum { HELD, AGAIN, GOT };

ROLE(stays)
{
	t_word[AGAIN] = 1;
	t_sleep_ms(1000000);
	return 0;
}

/* A process that holds N bytes, or n times N, of each channel, and faults when it is told to. */
static pid_t holder(const struct kind *const *k, int nr, int n)
{
	pid_t pid;

	t_word[HELD] = t_word[AGAIN] = 0;
	pid = t_fork();
	if (!pid) {
		for (int i = 0; i < nr; i++) {
			t_context = k[i]->name;
			for (int j = 0; j < n; j++) {
				feed(WR + 2 * i, N, FIRST + j * N);
				READABLE(RD + 2 * i, 1);
				GET(RD + 2 * i, N, FIRST + j * N, 0);
			}
		}
		t_register("stays", NULL);
		t_word[HELD] = 1;
		while (t_word[HELD] < 2)
			t_sleep_ms(1);
		t_crash();
	}
	while (!t_word[HELD])
		t_sleep_ms(1);
	return pid;
}

static void asleep_in(const struct way *way)
{
	const struct kind *k[ARRAY_LEN(kinds) + 1];
	pid_t pid[ARRAY_LEN(k)], holds;
	int nr = 0;

	for_each_kind(one, way->flags)
		k[nr++] = one;
	if (way->flags == ~0)
		k[nr++] = &event_kind;
	for (int i = 0; i < nr; i++) {
		open_at(k[i], RD + 2 * i, WR + 2 * i);
		t_word[GOT + i] = 0;
	}
	holds = holder(k, nr, 1);
	for (int i = 0; i < nr; i++) {
		char buf[N];

		pid[i] = t_fork();
		if (!pid[i]) {
			char name[64];

			snprintf(name, sizeof(name), "%s of %s", way->name, k[i]->name);
			t_context = name;
			T_EQ(way->get(RD + 2 * i, buf), N);
			T_EQ(t_match(buf, N, FIRST), N);
			t_word[GOT + i] = 1;
			T_EQ(way->get(RD + 2 * i, buf), N);
			T_EQ(t_match(buf, N, SECOND), N);
			_exit(0);
		}
		t_context = k[i]->name;
		sleeps_in(pid[i], way->nr);
	}
	t_word[HELD] = 2;
	for (int i = 0; i < nr; i++) {
		uint64_t end = t_now_ns() + 5000000000ull * t_slow();

		while (!t_word[GOT + i] && t_now_ns() < end)
			t_sleep_ms(1);
		t_check(t_word[GOT + i], __FILE__, __LINE__, "%s of %s sleeps on", way->name, k[i]->name);
		feed(WR + 2 * i, N, SECOND);
		T_EXITED(t_wait(pid[i]), 0);
	}
	while (!t_word[AGAIN])
		t_sleep_ms(1);
	t_reap(holds);
}

T_LIMIT(asleep, 100)
{
	for (size_t w = 0; w < ARRAY_LEN(ways); w++)
		T_CHILD {
			t_context = ways[w].name;
			asleep_in(&ways[w]);
		}
}

/* As many sleepers as there are pieces: each gets one. */
T_LIMIT(each_sleeper_gets_one, 60)
{
	enum { NR = 3 };

	for_each_kind(k, DGRAM | TTY) {
		pid_t pid[NR], holds;

		open_at(k, RD, WR);
		holds = holder(&k, 1, NR);
		for (int i = 0; i < NR; i++) {
			pid[i] = t_fork();
			if (!pid[i]) {
				char buf[N];

				T_EQ(read(RD, buf, N), N);
				_exit(0);
			}
			sleeps_in(pid[i], SYS_read);
		}
		t_word[HELD] = 2;
		for (int i = 0; i < NR; i++)
			T_EXITED(t_wait(pid[i]), 0);
		T_IOLOG(RD, NR * N, NR * N, 0, 0);
		t_reap(holds);
	}
}

/* A thread that sleeps for more than there is, when another one's hread() is refused */
static void *reads_many(void *arg)
{
	char buf[64];

	t_word[1] = syscall(SYS_gettid);
	T_EQ(read(RD, buf, sizeof(buf)), 20);
	T_EQ(t_match(buf, 20, 0), 20);
	return arg;
}

T(asleep_in_a_thread)
{
	for_each_kind(k, SOCK) {
		pthread_t t;
		char buf[64];

		/* A Unix socket wakes its reader below the mark, and lets him take what is to be refused here. */
		if (!(k->flags & TCP))
			continue;
		open_at(k, RD, WR);
		T_OK(setsockopt(RD, SOL_SOCKET, SO_RCVLOWAT, &(int){ 30 }, sizeof(int)));
		t_word[1] = 0;
		T_ASSERT(!pthread_create(&t, NULL, reads_many, NULL));
		while (!t_word[1])
			t_sleep_ms(1);
		sleeps_in(t_word[1], SYS_read);
		feed(WR, 20, 0);
		T_ERR(x_hread_nowait(RD, buf, sizeof(buf), 60), EINVAL);
		T_ASSERT(!pthread_join(t, NULL));
		T_IOLOG(RD, 20, 20, 0, 0);
	}
}

/* Who sleeps in a call that writes to the same file is left alone: it would return early. */
T_LIMIT(writers_sleep_on, 60)
{
	enum { MANY = 16 << 20 };

	for_each_kind(k, STREAM) {
		static char buf[MANY];
		pid_t writes, reads, holds;

		if (!(k->flags & (SOCK | TTY)))
			continue;
		open_at(k, RD, WR);
		holds = holder(&k, 1, 1);
		writes = t_fork();
		if (!writes) {
			size_t n = k->flags & TTY ? 1 << 16 : MANY;

			T_EQ(write(RD, buf, n), n);
			_exit(0);
		}
		sleeps_in(writes, SYS_write);
		reads = t_fork();
		if (!reads) {
			T_EQ(read(RD, buf, N), N);
			T_EQ(t_match(buf, N, FIRST), N);
			_exit(0);
		}
		sleeps_in(reads, SYS_read);
		t_word[HELD] = 2;
		T_EXITED(t_wait(reads), 0);
		sleeps_in(writes, SYS_write);
		reads = t_fork();
		if (!reads) {
			while (read(WR, buf, MANY) > 0)
				;
			_exit(0);
		}
		T_EXITED(t_wait(writes), 0);
		t_reap(reads);
		t_reap(holds);
	}
}

/* Whose wait is interrupted by something else, with a timeout, learns of it as ever: not of unread data elsewhere. */
T(strangers_are_interrupted_as_ever)
{
	int pipe_fd[2], sock[2], fd[2];
	char buf[64];
	pid_t waits;

	T_OK(pipe(fd));
	feed(fd[1], N, FIRST);
	T_ERR(x_hread_nowait(fd[0], buf, sizeof(buf), 60), EINVAL);
	T_IOLOG(fd[0], N, 0, N, 0);
	T_OK(pipe(pipe_fd));
	T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sock));
	waits = t_fork();
	if (!waits) {
		struct ring ring;

		/* Its answer comes as a task work. */
		ring_open(&ring);
		ring_submit(&ring, IORING_OP_READ, pipe_fd[0], buf, N, 0);
		give_timeout(sock[0], 10);
		T_ERR(recv(sock[0], buf, N, 0), EINTR);
		_exit(0);
	}
	sleeps_in(waits, SYS_recvfrom);
	feed(pipe_fd[1], N, SECOND);
	T_EXITED(t_wait(waits), 0);
	T_EQ(read(fd[0], buf, N), N);
	T_EQ(t_match(buf, N, FIRST), N);
}

/* ---- readers that are not asleep yet ---- */

static struct stuck stuck;

static void *sends_what_is_missing(void *arg)
{
	T_EQ(send(RD, stuck.page, N, 0), N);
	return arg;
}

/*
 * A reader has seen nothing unread, and waits for the lock of the socket, whose owner sends from memory that is missing,
 * until long after the rewind. Only then does it go to sleep.
 */
T_LIMIT(reader_comes_late, 90)
{
	for_each_kind(k, TCP) {
		pid_t holds, reads;
		pthread_t thread;
		char buf[N];

		open_at(k, RD, WR);
		holds = holder(&k, 1, 1);
		stuck_open(&stuck);
		T_ASSERT(!pthread_create(&thread, NULL, sends_what_is_missing, NULL));
		stuck_wait(&stuck);
		reads = t_fork();
		if (!reads) {
			T_EQ(read(RD, buf, N), N);
			T_EQ(t_match(buf, N, FIRST), N);
			_exit(0);
		}
		waits_for_good(reads);
		t_word[HELD] = 2;
		while (!t_word[AGAIN])
			t_sleep_ms(1);
		/* After the looks that come soon */
		t_sleep_ms(1500);
		stuck_end(&stuck);
		T_ASSERT(!pthread_join(thread, NULL));
		/* The one that put it back need not be there any more. */
		t_reap(holds);
		T_EXITED(t_wait(reads), 0);
	}
}
