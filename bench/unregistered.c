// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * unregistered [guest] ROUNDS TRUE
 *
 * What a process that never heard of us pays: ordinary calls, run on the stock kernel and on the patched one, and once
 * more after another user has used every call. TRUE is a small static program. Cheap operations are timed in batches, so
 * that the clock's own cost disappears.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <perdure/rescue.h>
#include <perdure/tcp_replica.h>

#include "bench.h"
#include "tcp.h"

#ifndef __NR_restartctl
#define __NR_restartctl	506
#endif
#ifndef __NR_rescue
#define __NR_rescue	507
#endif

extern char **environ;

static int pipe_fds[2], tcp_fds[2], unix_fds[2], epoll_fd;
static struct pollfd idle[10];
static char *program, *pages;
#define PAGES	64

static void null_call(void)
{
	syscall(__NR_getppid);
}

static void pipe_byte(void)
{
	char c = 0;

	TRY(write(pipe_fds[1], &c, 1));
	TRY(read(pipe_fds[0], &c, 1));
}

static void unix_byte(void)
{
	char c = 0;

	TRY(write(unix_fds[1], &c, 1));
	TRY(read(unix_fds[0], &c, 1));
}

static void tcp_round_trip(void)
{
	char c = 0;

	TRY(write(tcp_fds[0], &c, 1));
	TRY(read(tcp_fds[1], &c, 1));
	TRY(write(tcp_fds[1], &c, 1));
	TRY(read(tcp_fds[0], &c, 1));
}

static void poll_idle(void)
{
	TRY(poll(idle, 10, 0));
}

static void epoll_idle(void)
{
	struct epoll_event ev[10];

	TRY(epoll_wait(epoll_fd, ev, 10, 0));
}

static void open_close(void)
{
	close(TRY(open("/dev/null", O_RDWR)));
}

static void socket_close(void)
{
	close(TRY(socket(AF_INET, SOCK_STREAM, 0)));
}

static void page_faults(void)
{
	for (int i = 0; i < PAGES; i++)
		((volatile char *)pages)[i * 4096] = 1;
	TRY(madvise(pages, PAGES * 4096, MADV_DONTNEED));
}

static void reap(pid_t pid, int want)
{
	int status;

	TRY(waitpid(pid, &status, 0));
	if (status != want) {
		fprintf(stderr, "bench: a child ended with %#x, not %#x\n", status, want);
		exit(1);
	}
}

static void fork_exit(void)
{
	pid_t pid = TRY(fork());

	if (!pid)
		_exit(0);
	reap(pid, 0);
}

static void fork_exec(void)
{
	char *const argv[] = { program, NULL };
	pid_t pid = TRY(fork());

	if (!pid) {
		execve(program, argv, environ);
		_exit(127);
	}
	reap(pid, 0);
}

static void fork_fault(void)
{
	pid_t pid = TRY(fork());

	if (!pid)
		*(volatile int *)NULL = 0;
	reap(pid, SIGSEGV);
}

static const struct {
	const char *name;
	void (*op)(void);
	int batch;
	int per;	/* operations in one call of op */
} cases[] = {
	{ "getppid", null_call, 64, 1 },
	{ "pipe write+read 1 B", pipe_byte, 32, 1 },
	{ "unix write+read 1 B", unix_byte, 32, 1 },
	{ "tcp round trip 1 B", tcp_round_trip, 8, 1 },
	{ "poll 10 idle fds", poll_idle, 32, 1 },
	{ "epoll_wait 10 idle fds", epoll_idle, 32, 1 },
	{ "open+close", open_close, 16, 1 },
	{ "tcp socket+close", socket_close, 8, 1 },
	{ "page fault", page_faults, 1, PAGES },
	{ "fork+exit+wait", fork_exit, 1, 1 },
	{ "fork+exec+wait", fork_exec, 1, 1 },
	{ "fork+fatal SIGSEGV+wait", fork_fault, 1, 1 },
};

static void open_all(void)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int listener = TRY(socket(AF_INET, SOCK_STREAM, 0)), on = 1;

	TRY(pipe(pipe_fds));
	TRY(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_fds));
	TRY(bind(listener, (struct sockaddr *)&addr, sizeof(addr)));
	TRY(listen(listener, 1));
	TRY(getsockname(listener, (struct sockaddr *)&addr, &len));
	tcp_fds[0] = TRY(socket(AF_INET, SOCK_STREAM, 0));
	TRY(connect(tcp_fds[0], (struct sockaddr *)&addr, sizeof(addr)));
	tcp_fds[1] = TRY(accept(listener, NULL, NULL));
	for (int i = 0; i < 2; i++)
		TRY(setsockopt(tcp_fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
	close(listener);

	/* Five idle TCP connections, five idle pipes. */
	epoll_fd = TRY(epoll_create1(0));
	for (int i = 0; i < 10; i++) {
		struct epoll_event ev = { .events = EPOLLIN };
		int fds[2];

		if (i % 2) {
			TRY(pipe(fds));
			idle[i].fd = fds[0];
		} else {
			idle[i].fd = TRY(dup(tcp_fds[0]));
		}
		idle[i].events = POLLIN;
		TRY(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, idle[i].fd, &ev));
	}
	pages = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		die("mmap");
	TRY(madvise(pages, PAGES * 4096, MADV_NOHUGEPAGE) < 0 && errno != EINVAL ? -1 : 0);
}

/* A scope whose output its peer would undo */
static void use_rescue(void)
{
	static volatile int written;
	int fds[2];
	char c = 0;

	if (syscall(__NR_rescue, RESCUE_SOCKETS, 1ul, 0ul, 0) < 0) {
		if (errno == ENOSYS)
			return;
		die("RESCUE_SOCKETS");
	}
	tcp_pair(fds, 65536);
	if (TRY(syscall(__NR_rescue, RESCUE_ENTER, (unsigned long)EIO, 0ul, RESCUE_CASCADE)) == 0) {
		written++;
		TRY(write(fds[0], &c, 1));
		TRY(syscall(__NR_rescue, RESCUE_LEAVE, 0ul, 0ul, 0));
	}
	TRY(read(fds[1], &c, 1));
}

/* A service, in a network of its own, that goes with it */
static void use_replica(void)
{
	struct tcp_replica service = { .op = TCP_REPLICA_SET, .role = TCP_REPLICA_PRIMARY, .key = "k", .family = AF_INET, .port = htons(80) };
	int fd;

	TRY(unshare(CLONE_NEWNET));
	fd = TRY(socket(AF_INET, SOCK_STREAM, 0));
	TRY(inet_pton(AF_INET, "127.0.0.1", service.address));
	TRY(inet_pton(AF_INET, "127.0.0.2", service.peer));
	if (setsockopt(fd, IPPROTO_TCP, TCP_REPLICA, &service, sizeof(service)) && errno != ENOPROTOOPT)
		die("TCP_REPLICA");
	_exit(0);
}

/*
 * Another user uses every call, leaves data unread at the end of one process and restarts another. On the stock kernel
 * all of it fails. What is switched on while it is in use has to be off again afterwards.
 */
static void use_every_call(void)
{
	pid_t pid = TRY(fork());
	int status;

	if (!pid) {
		char *const argv[] = { program, NULL };
		struct restart_policy policy = { 0 };
		struct reg_info info;
		struct io_log log;
		int p[2], file;
		char buf[64];

		if (!TRY(fork()))
			use_replica();
		TRY(wait(&status));
		if (status)
			_exit(1);
		TRY(setresuid(65534, 65534, 65534));
		use_rescue();
		TRY(pipe(p));
		TRY(write(p[1], "0123456789", 10));
		if (syscall(__NR_reregist, program, argv, environ, 0, 0) < 0)
			_exit(0);
		TRY(syscall(__NR_getreginfo, &info, sizeof(info), 0));
		TRY(syscall(__NR_restartctl, RESTARTCTL_GET_POLICY, &policy, sizeof(policy), 0));
		TRY(syscall(__NR_restartctl, RESTARTCTL_SET_POLICY, &policy, sizeof(policy), 0));
		syscall(__NR_restartctl, RESTARTCTL_HEARTBEAT, NULL, 0ul, 0);
		/* Refused, so that all ten bytes are unread. */
		if (syscall(__NR_hread, p[0], buf, 64ul, 60ul, 0) != -1 || errno != EINVAL)
			_exit(1);
		TRY(read(p[0], buf, 4));
		TRY(syscall(__NR_hread, p[0], buf, 4ul, 0ul, 0));
		TRY(syscall(__NR_lwrite, p[1], buf, 4ul, 0));
		file = TRY(open(program, O_RDONLY));
		TRY(syscall(__NR_lsendfile, p[1], file, NULL, 16ul, 0));
		TRY(syscall(__NR_getiolog, p[0], &log, sizeof(log), 0));
		*(volatile int *)NULL = 0;
	}
	TRY(waitpid(pid, &status, 0));
	if (status) {
		fprintf(stderr, "bench: the other user ended with %#x\n", status);
		exit(1);
	}
	sleep(3);
}

static void measure(const char *side, int rounds)
{
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		static struct samples s;

		s.n = 0;
		for (int i = -8; i < rounds; i++) {
			uint64_t t = now_ns();

			for (int k = 0; k < cases[c].batch; k++)
				cases[c].op();
			if (i >= 0)
				add_sample(&s, (now_ns() - t) / (double)(cases[c].batch * cases[c].per));
		}
		report(cases[c].name, side, &s);
	}
}

int main(int argc, char **argv)
{
	int arg = argc > 1 && !strcmp(argv[1], "guest") ? 2 : 1, rounds;

	if (argc - arg != 2) {
		fprintf(stderr, "usage: %s [guest] ROUNDS TRUE\n", argv[0]);
		return 2;
	}
	rounds = atoi(argv[arg]);
	program = argv[arg + 1];
	bench_setup(argc, argv);
	open_all();
	measure("this kernel", rounds);
	use_every_call();
	measure("after use", rounds);
	return 0;
}
