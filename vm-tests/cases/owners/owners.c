// SPDX-License-Identifier: GPL-2.0-or-later
/* The table of perdure_restart(7): one test for each row, of the name that the row's comment has. */
#include "../restart/gen.h"
#include "../lib/cgroup.h"
#include "../lib/seccomp.h"

#include <linux/capability.h>
#include <linux/io_uring.h>
#include <linux/securebits.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/ptrace.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <termios.h>

/* What the two generations know each other by. */
enum { A = 20, B, C, D };

static void at(int want, int fd)
{
	T_OK(fd);
	T_ASSERT(dup3(fd, want, O_CLOEXEC) == want);
	close(fd);
}

/* The block is the old generation; its role is the new one. */
#define ROW(id) \
	static void old_##id(void); \
	static void new_##id(void); \
	ROLE(id) \
	{ \
		T_EQ(t_generation(), 2); \
		new_##id(); \
		return 0; \
	} \
	T(id) \
	{ \
		T_CHILD { \
			t_tmpdir(); \
			old_##id(); \
			t_register(#id, NULL); \
			t_crash(); \
		} \
	} \
	static void old_##id(void)
#define THEN(id)	static void new_##id(void)

static void path_in(char *buf, const char *name)
{
	t_path(buf, name);
}

static int file_at(int want, const char *name)
{
	char path[PATH_MAX];

	path_in(path, name);
	at(want, open(path, O_RDWR | O_CREAT, 0600));
	return want;
}

/* ---- sockets ---- */

static struct sockaddr_in loopback(int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = port,
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int port_of(int fd)
{
	struct sockaddr_in sin;

	T_OK(getsockname(fd, (void *)&sin, &(socklen_t){ sizeof(sin) }));
	return sin.sin_port;
}

static void listen_at(int fd, int backlog)
{
	struct sockaddr_in sin = loopback(0);

	at(fd, socket(AF_INET, SOCK_STREAM, 0));
	T_OK(bind(fd, (void *)&sin, sizeof(sin)));
	T_OK(listen(fd, backlog));
}

static int connect_to(int port, int flags)
{
	struct sockaddr_in sin = loopback(port);
	int fd = T_OK(socket(AF_INET, SOCK_STREAM | flags, 0));

	if (connect(fd, (void *)&sin, sizeof(sin)))
		T_EQ(errno, EINPROGRESS);
	return fd;
}

enum { CLIENTS = 4, CLIENT = 30 };

ROW(full_accept_queue)
{
	listen_at(A, 1);
	/* Two are queued; the others' handshakes wait for room. */
	for (int i = 0; i < CLIENTS; i++) {
		at(CLIENT + i, connect_to(port_of(A), SOCK_NONBLOCK));
		T_RANGE(write(CLIENT + i, &(char){ 'a' + i }, 1), -1, 1);
	}
}

THEN(full_accept_queue)
{
	int port, got = 0;
	char c;

	port = port_of(A);
	for (int i = 0; i < CLIENTS; i++) {
		int fd = T_OK(accept(A, NULL, NULL));

		if (i < 2) {
			T_EQ(read(fd, &c, 1), 1);
			got |= 1 << (c - 'a');
		}
		close(fd);
	}
	T_EQ(got, 3);
	/* And it is open for new ones. */
	connect_to(port, 0);
	T_OK(accept(A, NULL, NULL));
}

static void tcp_pair(void)
{
	listen_at(C, 1);
	at(B, connect_to(port_of(C), 0));
	at(A, accept(C, NULL, NULL));
}

ROW(half_closed_socket)
{
	tcp_pair();
	T_EQ(write(B, "last", 4), 4);
	T_OK(shutdown(B, SHUT_WR));
}

THEN(half_closed_socket)
{
	char buf[8];

	T_EQ(read(A, buf, 8), 4);
	T_EQ(read(A, buf, 8), 0);
	T_EQ(write(A, "reply", 5), 5);
	T_EQ(read(B, buf, 8), 5);
	signal(SIGPIPE, SIG_IGN);
	T_ERR(write(B, "x", 1), EPIPE);
}

ROW(failed_socket)
{
	tcp_pair();
	T_OK(setsockopt(B, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger)));
	close(B);
}

THEN(failed_socket)
{
	struct pollfd p = { .fd = A };
	int err = 0;

	T_EQ(poll(&p, 1, 1000), 1);
	T_EXPECT(p.revents & POLLERR);
	T_OK(getsockopt(A, SOL_SOCKET, SO_ERROR, &err, &(socklen_t){ sizeof(err) }));
	T_EQ(err, ECONNRESET);
	T_EQ(read(A, &err, 1), 0);
}

ROW(files_in_flight)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { "f", 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
			      .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	int sv[2], p[2];

	T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sv));
	at(A, sv[0]);
	at(B, sv[1]);
	T_OK(pipe(p));
	T_EQ(write(p[1], "in flight", 9), 9);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &p[0], sizeof(int));
	T_EQ(sendmsg(B, &msg, 0), 1);
	close(p[0]);
	close(p[1]);
}

THEN(files_in_flight)
{
	char control[CMSG_SPACE(sizeof(int))], buf[16];
	struct iovec iov = { buf, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
			      .msg_controllen = sizeof(control) };
	int fd;

	T_EQ(recvmsg(A, &msg, 0), 1);
	T_ASSERT(CMSG_FIRSTHDR(&msg));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(int));
	T_EQ(read(fd, buf, 16), 9);
	T_MEMEQ(buf, "in flight", 9);
	T_EQ(read(fd, buf, 16), 0);
}

ROW(signals_from_files)
{
	int sv[2];

	T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sv));
	at(A, sv[0]);
	at(B, sv[1]);
	T_OK(fcntl(A, F_SETOWN, getpid()));
	T_OK(fcntl(A, F_SETSIG, SIGURG));	/* whose default is to be ignored */
	T_OK(fcntl(A, F_SETFL, O_ASYNC));
}

THEN(signals_from_files)
{
	sigset_t set;

	T_EQ(fcntl(A, F_GETOWN), getpid());
	T_EQ(fcntl(A, F_GETSIG), SIGURG);
	T_EQ(fcntl(A, F_GETFL) & O_ASYNC, O_ASYNC);
	sigemptyset(&set);
	sigaddset(&set, SIGURG);
	sigprocmask(SIG_BLOCK, &set, NULL);
	T_EQ(write(B, "x", 1), 1);
	T_EQ(sigtimedwait(&set, NULL, &(struct timespec){ 5 }), SIGURG);
}

/* ---- what waits for events ---- */

ROW(epoll)
{
	struct epoll_event ev[] = { { EPOLLIN | EPOLLET, { .u32 = 1 } }, { EPOLLIN | EPOLLONESHOT, { .u32 = 2 } } };
	int p[2];

	at(A, epoll_create1(EPOLL_CLOEXEC));
	for (int i = 0; i < 2; i++) {
		T_OK(pipe(p));
		at(B + i, p[0]);
		at(CLIENT + i, p[1]);
		T_OK(epoll_ctl(A, EPOLL_CTL_ADD, B + i, &ev[i]));
		T_EQ(write(CLIENT + i, "x", 1), 1);
	}
	/* Both edges are told and used up. */
	T_EQ(epoll_wait(A, ev, 2, 0), 2);
}

THEN(epoll)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = 3 };

	T_EQ(epoll_wait(A, &ev, 1, 0), 0);
	T_EQ(write(CLIENT, "y", 1), 1);
	T_EQ(write(CLIENT + 1, "y", 1), 1);
	T_EQ(epoll_wait(A, &ev, 1, 0), 1);
	T_EQ(ev.data.u32, 1);
	ev.data.u32 = 3;
	ev.events = EPOLLIN;
	T_OK(epoll_ctl(A, EPOLL_CTL_MOD, C, &ev));
	T_EQ(epoll_wait(A, &ev, 1, 0), 1);
	T_EQ(ev.data.u32, 3);
}

ROW(eventfd)
{
	at(A, eventfd(0, EFD_SEMAPHORE));
	T_EQ(eventfd_write(A, 2), 0);
}

THEN(eventfd)
{
	eventfd_t v;

	for (int i = 0; i < 2; i++) {
		T_EQ(eventfd_read(A, &v), 0);
		T_EQ(v, 1);
	}
}

ROW(timerfd)
{
	at(A, timerfd_create(CLOCK_MONOTONIC, 0));
	T_OK(timerfd_settime(A, 0, &(struct itimerspec){ { 0, 20000000 }, { 0, 1000000 } }, NULL));
	t_sleep_ms(30);
}

THEN(timerfd)
{
	uint64_t n;

	T_EQ(read(A, &n, 8), 8);
	T_EXPECT(n >= 2);
	T_EQ(read(A, &n, 8), 8);
}

ROW(signalfd)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	at(A, signalfd(-1, &set, 0));
	/* The mask at the registration is the one that comes back. */
	sigprocmask(SIG_BLOCK, &set, NULL);
	raise(SIGUSR1);
}

THEN(signalfd)
{
	struct signalfd_siginfo si;

	T_EQ(read(A, &si, sizeof(si)), sizeof(si));
	T_EQ(si.ssi_signo, SIGUSR1);
	raise(SIGUSR2);
	T_EQ(read(A, &si, sizeof(si)), sizeof(si));
	T_EQ(si.ssi_signo, SIGUSR2);
}

ROW(inotify)
{
	char path[PATH_MAX];

	at(A, inotify_init());
	T_OK(inotify_add_watch(A, t_tmpdir(), IN_CREATE));
	path_in(path, "before");
	close(T_OK(creat(path, 0600)));
}

THEN(inotify)
{
	char path[PATH_MAX], buf[1024];
	struct inotify_event *ev = (void *)buf;

	path_in(path, "after");
	close(T_OK(creat(path, 0600)));
	T_EXPECT(read(A, buf, sizeof(buf)) >= 2 * (ssize_t)sizeof(*ev));
	T_STREQ(ev->name, "before");
	ev = (void *)(buf + sizeof(*ev) + ev->len);
	T_STREQ(ev->name, "after");
}

ROW(memfd)
{
	void *p;

	at(A, memfd_create("m", MFD_ALLOW_SEALING));
	T_OK(ftruncate(A, 4096));
	p = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, A, 0);
	T_ASSERT(p == (void *)0x10000000);
	strcpy(p, "written through the mapping");
	T_OK(fcntl(A, F_ADD_SEALS, F_SEAL_SHRINK));
}

THEN(memfd)
{
	char buf[64];

	T_EXPECT(pread(A, buf, 64, 0) == 64);
	T_STREQ(buf, "written through the mapping");
	T_EQ(fcntl(A, F_GET_SEALS), F_SEAL_SHRINK);
	/* The mapping has gone. */
	T_ERR(msync((void *)0x10000000, 4096, MS_ASYNC), ENOMEM);
}

/* ---- locks ---- */

static struct flock whole(int type)
{
	return (struct flock){ .l_type = type, .l_whence = SEEK_SET };
}

static void locked_for_others(int cmd)
{
	T_CHILD {
		struct flock l = whole(F_WRLCK);
		char path[PATH_MAX];
		int fd;

		path_in(path, "lock");
		fd = T_OK(open(path, O_RDWR));
		if (cmd)
			T_ERR(fcntl(fd, cmd, &l), EAGAIN);
		else
			T_ERR(flock(fd, LOCK_EX | LOCK_NB), EWOULDBLOCK);
	}
}

ROW(posix_lock)
{
	struct flock l = whole(F_WRLCK);

	T_OK(fcntl(file_at(A, "lock"), F_SETLK, &l));
}

THEN(posix_lock)
{
	struct flock l = whole(F_WRLCK);

	locked_for_others(F_SETLK);
	/* It is ours: no conflict, and closing any descriptor of the file releases it. */
	T_OK(fcntl(A, F_SETLK, &l));
}

ROW(ofd_lock)
{
	struct flock l = whole(F_WRLCK);

	T_OK(fcntl(file_at(A, "lock"), F_OFD_SETLK, &l));
}

THEN(ofd_lock)
{
	locked_for_others(F_OFD_SETLK);
}

ROW(flock_lock)
{
	T_OK(flock(file_at(A, "lock"), LOCK_EX));
}

THEN(flock_lock)
{
	locked_for_others(0);
	T_OK(flock(A, LOCK_UN));
}

ROW(lease)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (fcntl(file_at(A, "lock"), F_SETLEASE, F_WRLCK))
		t_skip("no leases on this file system");
}

THEN(lease)
{
	char path[PATH_MAX];
	sigset_t set;
	pid_t pid;

	T_EQ(fcntl(A, F_GETLEASE), F_WRLCK);
	path_in(path, "lock");
	pid = t_fork();
	if (!pid) {
		T_OK(open(path, O_RDONLY));	/* waits for the lease to be given back */
		_exit(0);
	}
	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	T_EQ(sigtimedwait(&set, NULL, &(struct timespec){ 5 }), SIGIO);
	T_OK(fcntl(A, F_SETLEASE, F_UNLCK));
	T_EXITED(t_wait(pid), 0);
}

/* ---- terminals ---- */

ROW(controlling_terminal)
{
	struct termios t;
	int m = T_OK(posix_openpt(O_RDWR | O_NOCTTY));

	T_OK(grantpt(m));
	T_OK(unlockpt(m));
	T_OK(setsid());
	at(B, open(ptsname(m), O_RDWR));
	at(A, m);
	T_OK(tcgetattr(B, &t));
	cfmakeraw(&t);
	T_OK(tcsetattr(B, TCSANOW, &t));
	T_EQ(write(A, "typed", 5), 5);
}

THEN(controlling_terminal)
{
	struct termios t;
	char buf[8];
	int tty = T_OK(open("/dev/tty", O_RDWR));

	T_EQ(tcgetsid(tty), getpid());
	T_EQ(tcgetpgrp(tty), getpid());
	T_OK(tcgetattr(B, &t));
	T_EQ(t.c_lflag & ICANON, 0);
	T_EQ(read(tty, buf, 8), 5);
	T_EQ(write(B, "shown", 5), 5);
	T_EQ(read(A, buf, 8), 5);
}

/* ---- System V IPC ---- */

ROW(sysv_ipc)
{
	char *p;

	t_word[0] = T_OK(semget(IPC_PRIVATE, 1, 0600));
	t_word[1] = T_OK(shmget(IPC_PRIVATE, 4096, 0600));
	t_word[2] = T_OK(msgget(IPC_PRIVATE, 0600));
	T_OK(semctl(t_word[0], 0, SETVAL, 1));
	T_OK(semop(t_word[0], &(struct sembuf){ 0, -1, SEM_UNDO }, 1));
	p = shmat(t_word[1], NULL, 0);
	T_ASSERT(p != (void *)-1);
	strcpy(p, "shared");
	T_OK(msgsnd(t_word[2], &(struct { long t; char c; }){ 1, 'm' }, 1, 0));
}

THEN(sysv_ipc)
{
	struct { long t; char c; } msg;
	struct shmid_ds ds;
	char *p;

	T_EQ(semctl(t_word[0], 0, GETVAL), 0);
	T_EQ(semop(t_word[0], &(struct sembuf){ 0, -1, SEM_UNDO | SEM_RECOVER | IPC_NOWAIT }, 1), 1);
	T_OK(shmctl(t_word[1], IPC_STAT, &ds));
	T_EQ(ds.shm_nattch, 0);
	p = shmat(t_word[1], NULL, 0);
	T_STREQ(p, "shared");
	T_EQ(msgrcv(t_word[2], &msg, 1, 0, IPC_NOWAIT), 1);
	T_OK(semctl(t_word[0], 0, IPC_RMID));
	T_OK(shmctl(t_word[1], IPC_RMID, NULL));
	T_OK(msgctl(t_word[2], IPC_RMID, NULL));
}

/* ---- timers ---- */

ROW(timers)
{
	timer_t t;

	T_OK(syscall(SYS_timer_create, CLOCK_MONOTONIC, NULL, &t));
	alarm(900);
}

THEN(timers)
{
	struct itimerspec its;

	T_RANGE(alarm(0), 800, 900);
	T_ERR(syscall(SYS_timer_gettime, 0, &its), EINVAL);
}

static const struct sigevent on_arrival = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };

ROW(message_queue)
{
	mqd_t q = T_OK(mq_open("/perdure-test", O_RDWR | O_CREAT, 0600, NULL));

	T_OK(mq_unlink("/perdure-test"));
	at(A, q);
	T_OK(mq_send(A, "kept", 4, 7));
	T_OK(mq_notify(A, &on_arrival));
}

THEN(message_queue)
{
	unsigned int priority;
	char buf[8192];
	sigset_t set;

	T_EQ(mq_receive(A, buf, sizeof(buf), &priority), 4);
	T_MEMEQ(buf, "kept", 4);
	T_EQ(priority, 7);
	T_ERR(mq_notify(A, &on_arrival), EBUSY);
	T_OK(mq_notify(A, NULL));
	T_OK(mq_notify(A, &on_arrival));
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	T_OK(sigprocmask(SIG_BLOCK, &set, NULL));
	T_OK(mq_send(A, "more", 4, 0));
	T_EQ(sigwaitinfo(&set, NULL), SIGUSR1);
}

/* ---- io_uring ---- */

/* A ring at A, and a request for the empty pipe from C to B, which waits. */
static void ring(unsigned int flags, struct io_uring_sqe sqe)
{
	struct io_uring_params p = { .flags = flags };
	struct io_uring_sqe *sqes;
	int fds[2], fd;
	char *sq;

	fd = syscall(SYS_io_uring_setup, 4, &p);
	if (fd < 0)
		t_skip("no io_uring");
	at(A, fd);
	T_OK(pipe(fds));
	at(B, fds[0]);
	at(C, fds[1]);
	sq = mmap(NULL, p.sq_off.array + 16, PROT_READ | PROT_WRITE, MAP_SHARED, A, IORING_OFF_SQ_RING);
	sqes = mmap(NULL, 4 * sizeof(*sqes), PROT_READ | PROT_WRITE, MAP_SHARED, A, IORING_OFF_SQES);
	T_ASSERT(sq != MAP_FAILED && sqes != MAP_FAILED);
	sqes[0] = sqe;
	*(unsigned int *)(sq + p.sq_off.array) = 0;
	__atomic_store_n((unsigned int *)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
	T_EQ(syscall(SYS_io_uring_enter, A, 1, 0, flags & IORING_SETUP_SQPOLL ? IORING_ENTER_SQ_WAKEUP : 0, NULL, 0), 1);
	while (!__atomic_load_n((unsigned int *)(sq + p.sq_off.head), __ATOMIC_ACQUIRE))
		t_sleep_ms(1);
	t_word[0] = p.cq_off.tail;
	t_word[1] = p.cq_off.cqes;
}

/* The request takes nothing away, and the ring, mapped again, says that it was cancelled. */
static void request_is_cancelled(void)
{
	char buf[8], *cq;

	T_EQ(write(C, "data", 4), 4);
	T_EQ(read(B, buf, 8), 4);
	cq = mmap(NULL, t_word[1] + 128, PROT_READ | PROT_WRITE, MAP_SHARED, A, IORING_OFF_CQ_RING);
	T_ASSERT(cq != MAP_FAILED);
	T_EQ(*(unsigned int *)(cq + t_word[0]), 1);
	T_RANGE(((struct io_uring_cqe *)(cq + t_word[1]))->res, -ECANCELED, -1);
}

ROW(io_uring)
{
	static char buf[64];

	ring(0, (struct io_uring_sqe){ .opcode = IORING_OP_READ, .fd = B, .off = -1, .addr = (uintptr_t)buf, .len = 64 });
}

THEN(io_uring)
{
	request_is_cancelled();
	T_EQ(syscall(SYS_io_uring_enter, A, 0, 0, 0, NULL, 0), 0);
}

ROW(io_uring_thread)
{
	ring(IORING_SETUP_SQPOLL, (struct io_uring_sqe){ .opcode = IORING_OP_POLL_ADD, .fd = B, .poll32_events = POLLIN,
							 .len = IORING_POLL_ADD_MULTI });
}

THEN(io_uring_thread)
{
	request_is_cancelled();
	T_ERR(syscall(SYS_io_uring_enter, A, 1, 0, IORING_ENTER_SQ_WAKEUP, NULL, 0), EOWNERDEAD);
}

/* ---- namespaces and containers ---- */

/* Faults of a container's first process, as they come: the processor, abort(), the outside. */
ROLE(pid_namespace_init)
{
	int gen = t_generation();
	pid_t child;

	T_EQ(getpid(), 1);
	t_word[0] = gen;
	child = t_word[1];
	/* The other processes of the container live on, and are still our children. */
	T_OK(kill(child, 0));
	T_EQ(waitpid(child, NULL, WNOHANG), 0);
	switch (gen) {
	case 2:
		abort();
	case 3:
		__builtin_trap();
	}
	/* Still not to be killed from inside. */
	T_OK(kill(1, SIGTERM));
	T_OK(kill(1, SIGABRT));
	T_EQ(t_generation(), 4);
	while (!t_word[2])
		t_sleep_ms(5);
	T_EQ(t_generation(), 4);
	return 7;
}

T(pid_namespace_init)
{
	T_CHILD {
		pid_t pid;

		T_OK(unshare(CLONE_NEWPID));
		pid = T_OK(fork());
		if (!pid) {
			pid = T_OK(fork());
			if (!pid) {
				for (;;)
					pause();
			}
			t_word[1] = pid;
			t_register("pid_namespace_init", NULL);
			t_crash();
		}
		for (int i = 0; i < 500 && t_word[0] != 4; i++)
			t_sleep_ms(10);
		T_EQ(t_word[0], 4);
		/* Signals that init does not handle are not for it, from outside as without us. */
		T_OK(kill(pid, SIGABRT));
		t_sleep_ms(50);
		t_word[2] = 1;
		T_EXITED(t_wait(pid), 7);
	}
}

static void in_user_ns(void)
{
	char map[32];

	if (unshare(CLONE_NEWUSER))
		t_skip("no user namespaces");
	snprintf(map, sizeof(map), "0 0 1\n");
	T_OK(t_put("/proc/self/uid_map", map));
	T_OK(t_put("/proc/self/setgroups", "deny"));
	T_OK(t_put("/proc/self/gid_map", map));
}

ROW(user_namespace)
{
	struct stat st;

	in_user_ns();
	T_OK(stat("/proc/self/ns/user", &st));
	t_word[0] = st.st_ino;
}

THEN(user_namespace)
{
	struct stat st;

	T_OK(stat("/proc/self/ns/user", &st));
	T_EQ(st.st_ino, t_word[0]);
	T_EQ(getuid(), 0);
	/* Root in there, as after any execve(2), and nowhere else. */
	T_OK(unshare(CLONE_NEWNS));
	T_ERR(mknod("/tmp/no-such-device", S_IFBLK, 0x0801), EPERM);
}

ROW(namespaces)
{
	static const char *const ns[] = { "ipc", "mnt", "net", "pid", "user", "cgroup", "time" };
	char path[64];
	struct stat st;

	T_OK(unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC));
	for (size_t i = 0; i < ARRAY_LEN(ns); i++) {
		snprintf(path, sizeof(path), "/proc/self/ns/%s", ns[i]);
		if (!stat(path, &st))
			t_word[i] = st.st_ino;
	}
}

THEN(namespaces)
{
	static const char *const ns[] = { "ipc", "mnt", "net", "pid", "user", "cgroup", "time" };
	char path[64];
	struct stat st;

	for (size_t i = 0; i < ARRAY_LEN(ns); i++) {
		snprintf(path, sizeof(path), "/proc/self/ns/%s", ns[i]);
		if (t_word[i]) {
			T_OK(stat(path, &st));
			T_EQ(st.st_ino, t_word[i]);
		}
	}
}

ROW(working_and_root_directory)
{
	char path[PATH_MAX];

	/* A root with nothing but the program in it, at the same path. */
	T_OK(unshare(CLONE_NEWNS));
	T_OK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	path_in(path, "root");
	T_OK(mkdir(path, 0755));
	T_OK(chdir(path));
	t_copy(t_self, "prog", 0755);
	T_OK(mkdir("sub", 0755));
	T_OK(chroot("."));
	T_OK(chdir("/sub"));
	strcpy(t_self, "/prog");
}

THEN(working_and_root_directory)
{
	char buf[PATH_MAX];

	T_STREQ(getcwd(buf, sizeof(buf)), "/sub");
	T_OK(access("/prog", X_OK));
	T_ERR(access("/proc/self", F_OK), ENOENT);
}

ROLE(never)
{
	t_check(false, __FILE__, __LINE__, "restarted");
	return 0;
}

ROLE(lives)
{
	t_word[0]++;
	return 0;
}

/* A root with the program in it, and another one below, with the same path. */
static void two_roots(void)
{
	char path[PATH_MAX];

	path_in(path, "root");
	T_OK(mkdir(path, 0755));
	T_OK(chdir(path));
	t_copy(t_self, "prog", 0755);
	T_OK(mkdir("sub", 0755));
	t_copy(t_self, "sub/prog", 0755);
	T_OK(chroot("."));
	strcpy(t_self, "/prog");
}

T(changed_root_directory)
{
	for (int again = 0; again < 2; again++) {
		pid_t pid = t_fork();

		t_context = again ? "registered again" : "registered before";
		if (!pid) {
			t_tmpdir();
			two_roots();
			t_register(again ? "lives" : "never", NULL);
			T_OK(chroot("/sub"));
			T_OK(chdir("/"));
			if (again)
				t_register("lives", NULL);
			t_crash();
		}
		if (again)
			T_EXITED(t_wait(pid), 0);
		else
			T_KILLED(t_wait(pid), SIGSEGV);
		T_EQ(t_word[0], again);
		T_EXPECT(!system("rm -rf /tmp/zlr-test-*/*"));
	}
}

T(changed_mount_namespace)
{
	for (int again = 0; again < 2; again++) {
		pid_t pid = t_fork();

		t_context = again ? "registered again" : "registered before";
		if (!pid) {
			t_register(again ? "lives" : "never", NULL);
			T_OK(unshare(CLONE_NEWNS));
			if (again)
				t_register("lives", NULL);
			t_crash();
		}
		if (again)
			T_EXITED(t_wait(pid), 0);
		else
			T_KILLED(t_wait(pid), SIGSEGV);
		T_EQ(t_word[0], again);
	}
}

/* ---- what a process may do ---- */

ROW(seccomp_filter)
{
	answer_call(NATIVE, SYS_getpriority, SECCOMP_RET_ERRNO | ENOTTY);
}

THEN(seccomp_filter)
{
	T_EQ(prctl(PR_GET_SECCOMP, 0, 0, 0, 0), SECCOMP_MODE_FILTER);
	T_ERR(syscall(SYS_getpriority, 0, 0), ENOTTY);
}

ROW(filtered_execve)
{
	/* Before: afterwards nothing else can be registered. */
	t_register("filtered_execve", NULL);
	answer_call(NATIVE, SYS_execve, SECCOMP_RET_ERRNO | ENOTTY);
}

THEN(filtered_execve)
{
	char *args[] = { t_self, "@filtered_execve", NULL }, *other[] = { t_self, "@never", NULL };

	T_ERR(execl(t_self, "prog", "@never", NULL), ENOTTY);
	T_ERR(reregist("/bin/sh", args, environ, 0), EPERM);
	T_ERR(reregist(t_self, other, environ, 0), EPERM);
	T_ERR(reregist(t_self, args + 1, environ, 0), EPERM);
	T_ERR(reregist(t_self, args, NULL, 0), EPERM);
	T_ERR(reregist(t_self, args, environ + 1, 0), EPERM);
	T_OK(reregist(t_self, args, environ, 7));
	/* The same path, but not the same program */
	T_OK(unshare(CLONE_NEWNS));
	T_ERR(reregist(t_self, args, environ, 7), EPERM);
}

T(seccomp_verdict)
{
	pid_t pid = t_fork();

	if (!pid) {
		t_register("never", NULL);
		answer_call(NATIVE, SYS_getpriority, SECCOMP_RET_KILL_PROCESS);
		syscall(SYS_getpriority, 0, 0);
		_exit(9);
	}
	T_KILLED(t_wait(pid), SIGSYS);
}

ROW(dumpable)
{
	T_OK(prctl(PR_SET_DUMPABLE, 0));
}

THEN(dumpable)
{
	T_EQ(prctl(PR_GET_DUMPABLE), 0);
}

ROW(no_new_privs)
{
	T_OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

THEN(no_new_privs)
{
	T_EQ(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
}

static uint64_t effective(void)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct d[2];

	T_OK(syscall(SYS_capget, &h, d));
	return d[0].effective | (uint64_t)d[1].effective << 32;
}

/* A user with these capabilities, as a container's manager leaves it. */
static void user_with(uint64_t caps)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct d[2] = { { caps, caps, caps }, { caps >> 32, caps >> 32, caps >> 32 } };

	T_OK(prctl(PR_SET_KEEPCAPS, 1));
	t_drop_root();
	T_OK(syscall(SYS_capset, &h, d));
	T_EQ(effective(), caps);
}

#define BIND	(1ull << CAP_NET_BIND_SERVICE)

ROW(ambient_capabilities)
{
	user_with(BIND);
	T_OK(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_BIND_SERVICE, 0, 0));
}

THEN(ambient_capabilities)
{
	T_EQ(getuid(), T_NOBODY);
	T_EQ(effective(), BIND);
}

ROW(other_capabilities)
{
	user_with(BIND);
}

THEN(other_capabilities)
{
	T_EQ(getuid(), T_NOBODY);
	T_EQ(effective(), 0);
}

ROLE(tells_ids)
{
	t_word[0] = (uint64_t)getuid() << 32 | geteuid();
	t_word[1] = effective();
	return 0;
}

static void by_user(const char *path, bool nnp)
{
	T_CHILD {
		t_drop_root();
		if (nnp)
			T_OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
		T_EQ(x_reregist(path, (char *[]){ "prog", "@tells_ids", NULL }, environ, 0), 0);
		t_crash();
	}
}

T(set_user_id_program)
{
	char path[PATH_MAX];

	T_OK(mount("none", t_tmpdir(), "tmpfs", 0, "mode=755"));
	t_copy_privileged(path, "suid", 06755);
	by_user(path, false);
	T_EQ(t_word[0], (uint64_t)T_NOBODY << 32 | T_OTHER);
	by_user(path, true);
	T_EQ(t_word[0], (uint64_t)T_NOBODY << 32 | T_NOBODY);
	T_OK(umount(t_tmpdir()));
}

T(program_with_file_capabilities)
{
	struct vfs_cap_data cap = { .magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE,
				    .data = { { BIND, 0 } } };
	char path[PATH_MAX];

	T_OK(mount("none", t_tmpdir(), "tmpfs", 0, "mode=755"));
	t_copy(t_self, t_path(path, "caps"), 0755);
	if (setxattr(path, "security.capability", &cap, XATTR_CAPS_SZ_2, 0)) {
		umount(t_tmpdir());
		t_skip("no file capabilities on tmpfs");
	}
	by_user(path, false);
	T_EQ(t_word[1], BIND);
	by_user(path, true);
	T_EQ(t_word[1], 0);
	T_OK(umount(t_tmpdir()));
}

ROW(securebits)
{
	T_OK(prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS));
}

THEN(securebits)
{
	T_EQ(prctl(PR_GET_SECUREBITS), SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED);
}

/* setuid(2) to a user who has too many processes succeeds; execve(2) tells it. */
T(process_limit)
{
	pid_t other = t_fork(), pid;
	int status;

	if (!other) {
		t_drop_root();
		T_OK(raise(SIGSTOP));
		_exit(1);
	}
	T_OK(waitpid(other, &status, WUNTRACED));
	for (int raised = 0; raised < 2; raised++) {
		pid = t_fork();
		if (!pid) {
			t_register("lives", NULL);
			T_OK(setrlimit(RLIMIT_NPROC, &(struct rlimit){ 0, 10 }));
			t_drop_root();
			if (raised)
				T_OK(setrlimit(RLIMIT_NPROC, &(struct rlimit){ 10, 10 }));
			t_crash();
		}
		status = t_wait(pid);
		if (raised)
			T_EXITED(status, 0);
		else
			T_KILLED(status, SIGSEGV);
		T_EQ(t_word[0], raised);
	}
	t_reap(other);
}

ROLE(tells_label)
{
	struct reg_info info;
	char label[64];

	t_word[0] = t_get("/proc/self/attr/smack/current", label, sizeof(label)) == 6 && !strcmp(label, "Server");
	t_word[1] = getauxval(AT_SECURE);
	t_word[2] = x_getreginfo(&info);
	return 0;
}

/* Smack, because its labels need no more than an attribute of the program. */
T(security_module)
{
	char path[PATH_MAX], label[64];
	pid_t pid;

	if (t_get("/proc/self/attr/smack/current", label, sizeof(label)) <= 0)
		t_skip("no Smack in this kernel");
	T_OK(mount("none", t_tmpdir(), "tmpfs", 0, "mode=755"));
	t_copy(t_self, t_path(path, "labelled"), 0755);
	T_OK(setxattr(path, "security.SMACK64EXEC", "Server", 6, 0));
	for (int nnp = 0; nnp < 2; nnp++) {
		memset(t_word, 0, 3 * sizeof(t_word[0]));
		pid = t_fork();
		if (!pid) {
			T_EQ(x_reregist(path, (char *[]){ "prog", "@tells_label", NULL }, environ, 0), 0);
			if (nnp)
				T_OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
			t_crash();
		}
		if (nnp)
			T_KILLED(t_wait(pid), SIGSEGV);
		else
			T_EXITED(t_wait(pid), 0);
		T_EQ(t_word[0], !nnp);
		T_EQ(t_word[1], !nnp);
		/* No registration any more */
		T_EQ(t_word[2], 0);
	}
	T_OK(umount(t_tmpdir()));
}

/* ---- who looks on ---- */

ROLE(traced)
{
	T_EQ(t_generation(), 2);
	return 0;
}

T(tracer)
{
	int status, signals = 0, execs = 0;
	pid_t pid = t_fork();

	if (!pid) {
		t_register("traced", NULL);
		raise(SIGSTOP);
		t_crash();
	}
	T_OK(waitpid(pid, &status, WUNTRACED));
	T_OK(ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_TRACEEXEC));
	T_OK(kill(pid, SIGCONT));
	for (;;) {
		int sig = 0;

		T_OK(waitpid(pid, &status, 0));
		if (!WIFSTOPPED(status))
			break;
		if (status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8))
			execs++;
		else if (WSTOPSIG(status) == SIGSEGV)
			signals++, sig = SIGSEGV;
		T_OK(ptrace(PTRACE_CONT, pid, NULL, sig));
	}
	T_EXITED(status, 0);
	T_EQ(signals, 1);
	T_EQ(execs, 1);
}

ROLE(thawed)
{
	char text[256];

	T_EQ(t_generation(), 2);
	T_OK(t_get("/proc/self/cgroup", text, sizeof(text)));
	T_EXPECT(strstr(text, "zlr-test"));
	t_word[0] = 1;
	while (!t_word[1])
		t_sleep_ms(5);
	return 0;
}

T(frozen_cgroup)
{
	char text[256];
	pid_t pid;

	cg_open("64M");
	pid = t_fork();
	if (!pid) {
		cg_enter();
		t_register("thawed", NULL);
		t_word[2] = 1;
		for (;;)
			pause();
	}
	while (!t_word[2])
		t_sleep_ms(5);
	if (t_put(cg_path("cgroup.freeze"), "1"))
		t_skip("no freezer");
	for (int i = 0; i < 500; i++) {
		T_OK(t_get(cg_path("cgroup.events"), text, sizeof(text)));
		if (strstr(text, "frozen 1"))
			break;
		t_sleep_ms(10);
	}
	T_EXPECT(strstr(text, "frozen 1"));
	/* The fault waits, too; the restart comes with the thaw. */
	T_OK(kill(pid, SIGABRT));
	t_sleep_ms(100);
	T_EQ(t_word[0], 0);
	T_OK(t_put(cg_path("cgroup.freeze"), "0"));
	for (int i = 0; i < 500 && !t_word[0]; i++)
		t_sleep_ms(10);
	T_EQ(t_word[0], 1);
	/* And the new generation can be frozen again. */
	T_OK(t_put(cg_path("cgroup.freeze"), "1"));
	t_sleep_ms(20);
	T_OK(t_put(cg_path("cgroup.freeze"), "0"));
	t_word[1] = 1;
	T_EXITED(t_wait(pid), 0);
	cg_close();
}

ROW(children)
{
	t_word[0] = t_fork();
	if (!t_word[0]) {
		while (!t_word[1])
			t_sleep_ms(5);
		_exit(5);
	}
}

THEN(children)
{
	t_word[1] = 1;
	T_EXITED(t_wait(t_word[0]), 5);
}
