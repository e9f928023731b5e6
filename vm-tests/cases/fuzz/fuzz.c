// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Random system calls, ours above all, from several processes of several threads, which fault and come back meanwhile.
 *
 *	fuzz [-a] [-m MINUTES] [-s SEED] [-w SERVICES] [-x OP]
 *
 * Arguments are mostly sensible, now and then at a boundary, sometimes garbage. A service with a given number and
 * incarnation draws the same numbers for the same seed: its sequence of calls is the same, the interleaving is not.
 * The verdict: the machine lives (and its console is clean: the harness looks), no service stands still, and each
 * of our calls was reached, succeeded and failed often. -x leaves out what has OP in its name; -a has no allocation fail.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <perdure.h>
#include <perdure/lazy_loader.h>
#include <perdure/rescue.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LEN(a)		(sizeof(a) / sizeof((a)[0]))
#define PG		4096ul

/* What is counted; those up to LAST_OURS must be reached, succeed and fail. */
#define COUNTED(X) \
	X(reregist) X(getreginfo) X(restartctl) X(hread) X(lwrite) X(getiolog) X(lsendfile) \
	X(semop_recover) X(lazy_attach) X(lazy_load) X(lazy_stat) X(touched_open) X(touched_write) \
	X(compat) X(rescue) X(restart_log) \
	X(semop) X(semctl) X(semget) X(read) X(readv) X(recvmsg) X(splice) X(write) X(sendmsg) X(sendfile) \
	X(poll) X(epoll) X(open) X(close) X(dup) X(fcntl) X(shutdown) X(ioctl) X(sockopt) \
	X(mmap) X(madvise) X(mremap) X(uffd) X(fork) X(execve) X(kill) X(ptrace) X(prctl) X(unshare) X(proc)
enum count {
#define X(name) C_##name,
	COUNTED(X)
#undef X
	NR_COUNTS,
	LAST_OURS = C_restart_log,
};
static const char *const count_names[] = {
#define X(name) #name,
	COUNTED(X)
#undef X
};

enum { SERVICES_MAX = 16, THREADS = 3, ERRNOS = 134, FILES = 64, KEYS = 4, CHILDREN = 3 };

struct slot {
	_Atomic pid_t pid;		/* of the service */
	_Atomic uint32_t incarnation;	/* images so far */
	_Atomic int children;
	_Atomic uint64_t progress;
	_Atomic int last[THREADS + 1];	/* what each thread did last; the last one: children */
};

static struct shared {
	uint64_t seed;
	int services;
	bool no_failures;
	uint64_t left_out;		/* operations, a bit each */
	char dir[64];
	_Atomic uint64_t calls, restarts;
	_Atomic uint32_t ok[NR_COUNTS], err[NR_COUNTS][ERRNOS];
	struct slot slot[SERVICES_MAX];
} *shm;

static char shm_path[128], self_path[256];
static int me;			/* my slot */
static bool is_child;
static __thread uint64_t rng;
static __thread int my_thread;

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static uint64_t rnd(void)
{
	return mix(rng += 0x9e3779b97f4a7c15ull);
}

static unsigned int below(unsigned int n)
{
	return (rnd() >> 33) % n;
}

static bool one_in(unsigned int n)
{
	return !below(n);
}

/* One of its arguments; they get the type of the first. */
#define FIRST(a, ...)	(a)
#define PICK(...) ({ \
	__typeof__(1 ? FIRST(__VA_ARGS__, 0) : FIRST(__VA_ARGS__, 0)) _p[] = { __VA_ARGS__ }; \
	_p[below(LEN(_p))]; })

/* Counts before and after, so that one sees what it was that never returned. */
static long counted(enum count what, long ret)
{
	int err = errno;

	if (ret == -1)
		shm->err[what][err > 0 && err < ERRNOS ? err : 0]++;
	else
		shm->ok[what]++;
	shm->calls++;
	shm->slot[me].progress++;
	errno = err;
	return ret;
}

#define DO(what, call) ({ \
	shm->slot[me].last[is_child ? THREADS : my_thread] = C_##what; \
	errno = 0; \
	counted(C_##what, (long)(call)); })

/*
 * Arguments. The arena is ordinary memory in the low 4 GB, for compat calls, with nothing behind it. The playground is
 * mapped and unmapped all the time.
 */
#define ARENA		((char *)0x20000000ul)
#define ARENA_SIZE	(64 * PG)
#define PLAY		((char *)0x30000000ul)
#define PLAY_PAGES	64u

static void *pointer(void)
{
	switch (below(40)) {
	case 0: return NULL;
	case 1: return (void *)PICK(1ul, 0xffff888000000000ul, 0x8000000000000000ul, ~0ul, 0xfffful);
	case 2: return ARENA + ARENA_SIZE - below(64);
	case 3: case 4: return PLAY + below(PLAY_PAGES) * PG + below(PG);
	case 5: return (void *)(uintptr_t)mix; /* cannot be written */
	case 6: return ARENA + below(ARENA_SIZE);
	default: return ARENA + below(60) * PG + PICK(0, 0, 0, 1, 8);
	}
}

static size_t size(void)
{
	switch (below(16)) {
	case 0: return 0;
	case 1: return PICK(1ul, 7ul, 8ul, 23ul, 24ul, 39ul, 40ul, 87ul, 88ul, 89ul);
	case 2: return PICK(PG - 1, PG, PG + 1, 2 * PG, 16 * PG);
	case 3: return PICK(1ul << 20, 0x7ffffffful, 0x80000000ul, 0xfffffffful, ~0ul >> 1, ~0ul);
	default: return below(PICK(64u, 512u, 3000u, 20000u)) + 1;
	}
}

static unsigned int flags(unsigned int known)
{
	switch (below(12)) {
	case 0: return 1u << below(32);
	case 1: return rnd();
	case 2: case 3: return rnd() & known;
	default: return 0;
	}
}

/* Mostly one that is open; 0 to 2 are /dev/null. */
static int file(void)
{
	int fd = below(FILES);

	if (one_in(50))
		return PICK(-1, -100, FILES, 100000, 0x7fffffff, (int)0x80000000);
	for (int i = 0; i < 6 && (fd < 3 || fcntl(fd, F_GETFD) < 0); i++)
		fd = below(FILES);
	return fd;
}

static int service(void)
{
	return shm->slot[one_in(2) ? (unsigned int)me : below(shm->services)].pid;
}

static int word(void)
{
	return PICK(0, 1, -1, 2, 3, 0x7fffffff, (int)0x80000000, (int)rnd());
}

/* Files of every kind */

static char *path_in(char *buf, const char *name)
{
	snprintf(buf, 128, "%s/%d.%s", shm->dir, me, name);
	return buf;
}

static int tcp_listener(struct sockaddr_in *addr)
{
	socklen_t len = sizeof(*addr);
	int fd = socket(AF_INET, SOCK_STREAM | PICK(0, SOCK_NONBLOCK), 0);

	*addr = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (fd < 0 || bind(fd, (void *)addr, len) || listen(fd, 4) || getsockname(fd, (void *)addr, &len)) {
		close(fd);
		return -1;
	}
	return fd;
}

static int new_file(void)
{
	int nonblock = one_in(4) ? 0 : SOCK_NONBLOCK, p[2] = { -1, -1 }, ret;
	struct sockaddr_in a, b;
	char path[128];
	sigset_t set;

	switch (below(26)) {
	case 0: case 1: case 2:
		ret = tcp_listener(&a);
		p[0] = socket(AF_INET, SOCK_STREAM, 0);
		if (p[0] >= 0)
			connect(p[0], (void *)&a, sizeof(a));
		p[1] = accept4(ret, NULL, NULL, nonblock);
		if (p[0] >= 0 && nonblock)
			fcntl(p[0], F_SETFL, O_NONBLOCK);
		if (!one_in(4))
			close(ret);
		return p[1];
	case 3: case 4: return socketpair(AF_UNIX, SOCK_STREAM | nonblock, 0, p);
	case 5: return socketpair(AF_UNIX, SOCK_DGRAM | nonblock, 0, p);
	case 6: return socketpair(AF_UNIX, SOCK_SEQPACKET | nonblock, 0, p);
	case 7: case 8:
		for (int i = 0; i < 2; i++) {
			socklen_t len = sizeof(a);

			a = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
			p[i] = socket(AF_INET, SOCK_DGRAM | nonblock, 0);
			if (p[i] < 0 || bind(p[i], (void *)&a, len) || getsockname(p[i], (void *)&a, &len))
				return -1;
			if (!i)
				b = a;
		}
		connect(p[0], (void *)&a, sizeof(a));
		return connect(p[1], (void *)&b, sizeof(b));
	case 9: case 10: return pipe2(p, nonblock ? O_NONBLOCK : 0);
	case 11: return pipe2(p, O_DIRECT | (nonblock ? O_NONBLOCK : 0));
	case 12: return eventfd(below(3), EFD_NONBLOCK | PICK(0, EFD_SEMAPHORE));
	case 13: return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	case 14:
		sigemptyset(&set);
		sigaddset(&set, SIGUSR2);
		return signalfd(-1, &set, SFD_NONBLOCK);
	case 15: return epoll_create1(0);
	case 16: return inotify_init1(IN_NONBLOCK);
	case 17: return memfd_create("fuzz", 0);
	case 18: return open(path_in(path, "file"), O_RDWR | O_CREAT | PICK(0, O_APPEND, O_TRUNC), 0666);
	case 19:
		path_in(path, "fifo");
		mkfifo(path, 0666);
		return open(path, O_RDWR | O_NONBLOCK);
	case 20: return open(PICK("/dev/null", "/dev/zero", "/dev/urandom", "/"), O_RDONLY);
	case 21:
		/* Its vmalloc() complains when it fails. */
		if (me == shm->services - 1)
			return -1;
		ret = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK);
		if (ret >= 0 && !ioctl(ret, TIOCSPTLCK, &(int){ 0 }))
			ioctl(ret, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_NONBLOCK);
		return ret;
	case 22: return open(PICK("/proc/self/restart", "/proc/restart_log", "/proc/self/lazy_loader", "/proc/self/maps",
				  "/proc/sys/kernel/restart/enabled", "/proc/kmsg"), O_RDONLY | O_NONBLOCK);
	case 23: return syscall(SYS_userfaultfd, O_NONBLOCK | UFFD_USER_MODE_ONLY);
	case 24: return socket(AF_NETLINK, SOCK_RAW | nonblock, 0);
	default: return tcp_listener(&a);
	}
}

static void op_open(void)
{
	DO(open, new_file());
}

static void op_close(void)
{
	if (one_in(20))
		DO(close, syscall(SYS_close_range, below(FILES), below(FILES) + 3, 0));
	else
		DO(close, close(file()));
}

static void op_dup(void)
{
	int to = file();

	DO(dup, one_in(2) ? dup(file()) : syscall(SYS_dup3, file(), to, PICK(0, O_CLOEXEC)));
}

static void op_fcntl(void)
{
	int fd = file();

	switch (below(6)) {
	case 0: case 1: DO(fcntl, fcntl(fd, F_SETFL, PICK(0, O_NONBLOCK, O_NONBLOCK, O_DIRECT))); break;
	case 2: DO(fcntl, fcntl(fd, F_SETPIPE_SZ, size())); break;
	case 3: DO(fcntl, fcntl(fd, F_SETFD, below(2))); break;
	case 4: DO(fcntl, fcntl(fd, F_SETLK, &(struct flock){ .l_type = PICK(F_RDLCK, F_WRLCK, F_UNLCK), .l_len = below(9) }));
		break;
	default: DO(fcntl, syscall(SYS_fcntl, fd, below(16), word()));
	}
}

/* Our calls */

static void op_reregist(void)
{
	static char slot[8];
	char *argv[] = { self_path, "@", shm_path, slot, NULL };
	char *envp[] = { "A=1", NULL };
	char **bad[] = { NULL, (void *)pointer(), argv, envp };
	sigset_t set, old;

	snprintf(slot, sizeof(slot), "%d", me);
	switch (below(16)) {
	case 0:
		DO(reregist, syscall(500, PICK(NULL, "", "/", "/none", "/dev/null", (char *)pointer(), "/proc/self/exe"),
				     bad[below(4)], bad[below(4)], word(), flags(17)));
		return;
	case 1:
		DO(reregist, syscall(500, NULL, NULL, NULL, 0, REREGIST_CLEAR));
		return;
	case 2:
		DO(reregist, syscall(500, PICK(self_path, "/dev/null"), bad[below(4)], bad[below(4)], word(),
				     flags(17)));
		return;
	}
	/* A new generation is not to be killed by what interrupts this one. */
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, &old);
	DO(reregist, syscall(500, self_path, argv, PICK(envp, (char **)NULL), word(), one_in(8) ? REREGIST_EXEC : 0));
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void op_getreginfo(void)
{
	if (one_in(3))
		DO(getreginfo, syscall(501, pointer(), size(), flags(3)));
	else if (one_in(3))
		DO(getreginfo, syscall(501, pointer(), 512, GETREGINFO_PATH));
	else
		DO(getreginfo, syscall(501, pointer(), PICK(88, 88, 96, 4096), 0));
}

static void op_restartctl(void)
{
	struct restart_policy *p = (void *)(ARENA + 62 * PG + my_thread * 256);

	switch (below(6)) {
	case 0:
		DO(restartctl, syscall(506, below(6), pointer(), size(), flags(0)));
		break;
	case 1:
		DO(restartctl, syscall(506, RESTARTCTL_GET_POLICY, pointer(), PICK(24, 24, 100, 4096), 0));
		break;
	case 2:
		memset(p, 0, 256);
		p->flags = below(16);
		p->burst = p->flags & RESTART_LIMIT || one_in(9) ? PICK(1, 2, 30, 64, 65) : 0;
		p->interval_ms = p->flags & RESTART_LIMIT || one_in(9) ? PICK(0, 0, 1, 200, -1) : 0;
		p->heartbeat_ns = one_in(2) ? 0 : PICK(200000000ul, 200000000ul, 1000000000ul, 1000000000ul,
							      1000000ul, 86400000000000ul, ~0ul, 999999ul);
		DO(restartctl, syscall(506, RESTARTCTL_SET_POLICY, p, PICK(24, 24, 24, 64, 256, 16), 0));
		break;
	default:
		DO(restartctl, syscall(506, RESTARTCTL_HEARTBEAT, one_in(30) ? pointer() : NULL, 0, 0));
	}
}

static void op_hread(void)
{
	size_t len = size(), release = PICK(0ul, 0ul, 0ul, 0ul, 1ul, len, (size_t)below(100), size());

	DO(hread, syscall(502, file(), pointer(), len, release, one_in(20) ? flags(1) : HREAD_NOWAIT & (rnd() >> 40)));
}

static void op_lwrite(void)
{
	DO(lwrite, syscall(503, file(), pointer(), size(), one_in(30) ? flags(0) : 0));
}

/* Functions with points */
typedef long pointed(long (*body)(long arg), long arg);
#define POINTED(name) \
	pointed name; \
	extern char name##_return[]; \
	__asm__(".text\n.globl " #name ", " #name "_return\n.type " #name ", @function\n" #name ": push %rbx\nmov %rdi, %rbx\nmov %rsi, %rdi\n" \
		"call *%rbx\npop %rbx\n" #name "_return: ret\n.size " #name ", . - " #name "\n")
POINTED(gives_up);
POINTED(corks);
POINTED(cascades);
POINTED(hurries);
static const struct {
	const char *name;
	pointed *entry;
	const char *leave;
	uint32_t output, deadline_ms, inject;
} points[] = {
	{ "gives_up", gives_up, gives_up_return, RESCUE_GIVE_UP, 0, 7 },
	{ "corks", corks, corks_return, RESCUE_CORK, 0, 5 },
	{ "cascades", cascades, cascades_return, RESCUE_CASCADE, 0, 0 },
	{ "hurries", hurries, hurries_return, RESCUE_CORK, 15, 0 },
};
static __thread jmp_buf left;

/* Where in our file it is, and what that is added to */
static uint64_t text_offset(const void *address)
{
	extern const char __ehdr_start[];

	return (uintptr_t)address - (uintptr_t)__ehdr_start;
}

/* In a scope. What is counted is in memory that is shared, and would give it up. */
static long in_scope(long n)
{
	struct iovec parts[2] = { { ARENA, below(3000) }, { ARENA + PG, below(3000) } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	int fds[2], fd;
	char *p;

	while (n-- > 0) {
		switch (below(24)) {
		case 0: p = mmap(NULL, below(40) * PG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (p != MAP_FAILED && one_in(2))
				munmap(p, PG);
			break;
		case 1: syscall(SYS_brk, syscall(SYS_brk, 0) + below(8) * PG); break;
		case 2: fd = syscall(SYS_openat, AT_FDCWD, "/dev/zero", O_RDONLY);
			syscall(SYS_pread64, fd, pointer(), size() % 20000, 0);
			if (one_in(2))
				syscall(SYS_close, fd);
			break;
		case 3: syscall(SYS_pipe2, fds, 0); break;
		case 4: syscall(SYS_write, file(), pointer(), size() % 5000); break;
		case 5: syscall(SYS_read, file(), pointer(), size() % 5000); break;
		case 6: syscall(SYS_dup, file()); break;
		case 7: syscall(SYS_lseek, file(), below(3), below(3)); break;
		case 8: syscall(SYS_poll, NULL, 0, below(20)); break;
		case 9: syscall(SYS_ioctl, file(), PICK(0x5401ul, 0x5413ul, 0x541bul, rnd()), pointer()); break;
		case 10: syscall(SYS_mprotect, PLAY + below(PLAY_PAGES) * PG, PG, PICK(0, 1, 3)); break;
		case 11: syscall(SYS_futex, pointer(), PICK(1, 129, 128, 10), 1, 0, 0, 0); break;
		case 12: if (one_in(8))
				syscall(SYS_fork) ?: (long)syscall(SYS_exit_group, 0);
			break;
		case 13: syscall(507, below(2) ? RESCUE_ENTER : RESCUE_LEAVE, below(2) ? EIO : 0, 0, 0); break;
		case 14: syscall(SYS_sendmsg, file(), &message, PICK(0, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE)); break;
		case 15: syscall(SYS_writev, file(), parts, below(3)); break;
		case 16: syscall(SYS_sendfile, file(), file(), one_in(2) ? pointer() : NULL, size() % 5000); break;
		case 17: syscall(SYS_recvmsg, file(), &message, MSG_DONTWAIT); break;
		case 18: syscall(SYS_close, file()); break;
		case 19: points[below(LEN(points))].entry(in_scope, n); break;
		case 20: if (one_in(4))
				longjmp(left, 1);
			break;
		default: ARENA[below(ARENA_SIZE)]++;
		}
	}
	if (one_in(4))
		*(volatile int *)(uintptr_t)below(100) = 1;
	return 0;
}

static void add_points(void)
{
	for (size_t i = 0; i < LEN(points); i++) {
		uint64_t offset = text_offset(points[i].leave);
		struct rescue_point point = { .fd = open(self_path, O_RDONLY | O_CLOEXEC), .nr_returns = 1,
			.entry = text_offset((const void *)points[i].entry), .returns = (uintptr_t)&offset, .burst = RESCUE_BURST_MAX,
			.interval_ms = 1, .output = points[i].output, .deadline_ms = points[i].deadline_ms, .inject = points[i].inject };

		snprintf(point.name, sizeof(point.name), "%s", points[i].name);
		if (syscall(507, RESCUE_ADD, &point, sizeof(point), 0) < 0)
			perror("# no point");
		close(point.fd);
	}
}

/* Of the line of a point; 0 if it is not there */
static unsigned long number_of(const char *line, const char *key)
{
	const char *found = strstr(line, key);

	return found ? strtoul(found + strlen(key), NULL, 10) : 0;
}

/* Has each point been entered and left, and have they been of use? */
static bool points_used(void)
{
	FILE *f = fopen("/proc/rescue", "re");
	unsigned long rescued = 0, held = 0;
	unsigned int used = 0;
	char line[2048];

	while (f && fgets(line, sizeof(line), f)) {
		printf("# %s", line);
		if (!number_of(line, "id="))
			continue;
		used += number_of(line, " entered=") >= 5 && number_of(line, " left=");
		rescued += number_of(line, " rescued=");
		held += number_of(line, " held=");
	}
	if (f)
		fclose(f);
	return used == LEN(points) && rescued && held;
}

static void op_rescue(void)
{
	struct rescue_point *p = (void *)(ARENA + 60 * PG + my_thread * 1024);
	char text[512];
	int fd;

	switch (below(9)) {
	case 0:
		DO(rescue, syscall(507, below(9), pointer(), size(), flags(3)));
		break;
	case 1:
		/* None is added: who does so waits, with all that fork, for a fork whose userfaultfd nobody reads, as here it may be */
		memset(p, 0, 512);
		*p = (struct rescue_point){ .fd = file(), .nr_returns = PICK(1, 0, 2, 257), .entry = rnd(), .returns = (uintptr_t)pointer(),
			.value = rnd(), .burst = PICK(0, 1000001, -1), .interval_ms = PICK(1, 1000, 60000, 0), .output = below(4),
			.deadline_ms = PICK(0, 0, 1, 50), .inject = PICK(0, 0, 3, 1),
			.error = PICK(0, 5, 4095, 4096), .error_fd = PICK(0, file(), -1), .error_at = PICK(0ul, rnd()), .name = "fuzz" };
		p->name[below(128)] = rnd();
		DO(rescue, syscall(507, RESCUE_ADD, p, PICK(sizeof(*p), sizeof(*p), 512ul, 199ul, 5000ul), 0));
		break;
	case 2:
		DO(rescue, syscall(507, RESCUE_REMOVE, 1000 + below(400), 0, 0));
		break;
	case 3:
		DO(rescue, syscall(507, RESCUE_SOCKETS, below(3), 0, 0));
		DO(sockopt, setsockopt(file(), IPPROTO_TCP, TCP_CASCADE, pointer(), 4));
		break;
	case 4:
		fd = open("/proc/rescue", O_RDONLY | O_CLOEXEC);
		DO(proc, read(fd, text, sizeof(text)));
		close(fd);
		break;
	case 5: case 6:
		if (!setjmp(left))
			points[below(LEN(points))].entry(in_scope, below(6));
		break;
	default:
		if (setjmp(left))
			break;
		if (DO(rescue, syscall(507, RESCUE_ENTER, one_in(20) ? below(5000) : EIO, one_in(4) ? below(50) : 0, below(20) ? below(3) : 9)))
			break;
		in_scope(below(6));
		DO(rescue, syscall(507, RESCUE_LEAVE, 0, 0, 0));
	}
}

static void op_getiolog(void)
{
	DO(getiolog, syscall(504, file(), pointer(), PICK((size_t)40, (size_t)40, (size_t)100, size()), one_in(30) ? flags(0) : 0));
}

static void op_lsendfile(void)
{
	int64_t *off = one_in(20) ? pointer() : NULL;
	size_t len = size();
	bool ours = one_in(2);
	int in = file(), out = file();
	char path[128];

	/* Few files can be sent: see that there is one. */
	if (one_in(2))
		in = open(path_in(path, "file"), O_RDONLY | O_CLOEXEC);
	if (!off && one_in(2)) {
		off = (void *)(ARENA + 61 * PG + my_thread * 64);
		*off = PICK(0l, 0l, 10l, 5000l, -1l, INT64_MAX);
	}
	if (ours)
		DO(lsendfile, syscall(505, out, in, off, len, one_in(30) ? flags(0) : 0));
	else
		DO(sendfile, sendfile(out, in, off, len));
	if (in >= FILES - 8)
		close(in);
}

/* The entries for 32-bit programs; addresses above 4 GB are cut. */
static long int80(long nr, long a, long b, long c, long d, long e)
{
	long ret;

	__asm__ volatile("int $0x80" : "=a"(ret) : "a"(nr), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e)
		     : "memory", "r8", "r9", "r10", "r11");
	if ((int)ret < 0 && (int)ret > -ERRNOS) {
		errno = -(int)ret;
		return -1;
	}
	return (int)ret;
}

static void op_compat(void)
{
	uint32_t *list = (void *)(ARENA + 63 * PG + my_thread * 512);
	struct sembuf *sops = (void *)list;

	switch (below(6)) {
	case 0:
		snprintf((char *)list + 64, 256, "%s", self_path);
		snprintf((char *)list + 320, 128, "%s", shm_path);
		memcpy((char *)list + 448, "@", 2);
		snprintf((char *)list + 460, 16, "%d", me);
		list[0] = (uintptr_t)list + 64;
		list[1] = (uintptr_t)list + 448;
		list[2] = (uintptr_t)list + 320;
		list[3] = (uintptr_t)list + 460;
		list[4] = one_in(9) ? rnd() : 0;
		DO(compat, int80(500, (uintptr_t)list + 64, (long)(one_in(9) ? pointer() : list), 0, word(), 0));
		break;
	case 1: DO(compat, int80(501, (long)pointer(), PICK(88, 4096), flags(3), 0, 0)); break;
	case 2: DO(compat, int80(502, file(), (long)pointer(), size(), below(2000), HREAD_NOWAIT)); break;
	case 3: DO(compat, int80(503, file(), (long)pointer(), below(4000), 0, 0)); break;
	case 4: DO(compat, int80(504 + below(3), file(), (long)pointer(), size(), 0, 0)); break;
	case 5:
		/* semget is 393, semtimedop_time64 420 */
		sops[0] = (struct sembuf){ below(4), PICK(-1, 1, 0), IPC_NOWAIT | SEM_UNDO | PICK(0, SEM_RECOVER) };
		DO(compat, int80(420, int80(393, 0x465a0000 + below(KEYS), 4, IPC_CREAT | 0666, 0, 0), (long)sops, 1, 0, 0));
		break;
	}
}

static void op_sem(void)
{
	int set = semget(0x465a0000 + below(KEYS), 4, IPC_CREAT | 0666), nr = one_in(3) ? below(6) : 1;
	struct timespec t = { .tv_nsec = below(30000000) };
	struct sembuf sops[6];
	unsigned short all[4];
	bool recover = false;

	counted(C_semget, set);
	for (int i = 0; i < 4; i++)
		all[i] = below(4);
	switch (below(12)) {
	case 0: DO(semctl, semctl(set, below(4), SETVAL, PICK(0, 1, 3, 32767, -1))); return;
	case 1: DO(semctl, semctl(set, 0, PICK(SETALL, GETALL), all)); return;
	case 2: if (one_in(8))
			DO(semctl, semctl(set, 0, IPC_RMID));
		return;
	case 3: DO(semctl, semctl(set, below(4), PICK(GETVAL, GETPID, GETNCNT, GETZCNT))); return;
	}
	for (int i = 0; i < nr; i++) {
		sops[i] = (struct sembuf){ below(4), PICK(-1, -1, 1, 1, 0, -2, 5, (short)rnd()), 0 };
		sops[i].sem_flg = (one_in(4) ? 0 : SEM_UNDO) | (one_in(5) ? 0 : IPC_NOWAIT);
		if (sops[i].sem_op < 0 && one_in(2))
			sops[i].sem_flg |= SEM_RECOVER | (one_in(20) ? 0 : SEM_UNDO);
		if (one_in(40))
			sops[i].sem_flg = rnd();
		recover |= !!(sops[i].sem_flg & SEM_RECOVER);
	}
	if (recover)
		DO(semop_recover, one_in(2) ? semop(set, sops, nr) : semtimedop(set, sops, nr, &t));
	else
		DO(semop, one_in(2) ? semop(set, sops, nr) : semtimedop(set, sops, nr, &t));
}

/* The lazy loader: registered and attached in one go, then left to itself, to the other threads and to chance. */
static void op_lazy(void)
{
	unsigned int page = below(PLAY_PAGES), n = 1 + below(PLAY_PAGES - page);
	struct uffdio_api api = { .api = UFFD_API, .features = PICK(0ul, (uint64_t)UFFD_FEATURE_EVENT_FORK) };
	struct uffdio_lazy_extent ext[2] = { { (uintptr_t)PLAY + page * PG, n * PG, below(4) * PG } };
	struct uffdio_range range = { ext[0].addr, ext[0].len };
	struct uffdio_register reg = { .range = range, .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_lazy_attach a = { .size = sizeof(a), .event_fd = -1, .extents = (uintptr_t)ext, .nr_extents = 1 };
	struct uffdio_lazy_load load = { .size = sizeof(load), .ranges = (uintptr_t)&range, .nr_ranges = 1 };
	struct uffdio_lazy_stat *st = (void *)(ARENA + 60 * PG + my_thread * 256);
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	char path[128];

	snprintf(path, sizeof(path), "%s/image", shm->dir);
	a.image_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		goto out;
	mmap((void *)(uintptr_t)ext[0].addr, ext[0].len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
	     -1, 0);
	DO(uffd, ioctl(fd, UFFDIO_API, &api));
	if (!one_in(16))
		DO(uffd, ioctl(fd, UFFDIO_REGISTER, &reg));
	a.chunk_pages = PICK(0, 1, 1, 7, 512, 513);
	a.flags = PICK(0, 0, UFFD_LAZY_START);
	if (one_in(8)) {
		switch (below(7)) {
		case 0: a.size = word(); break;
		case 1: a.flags = rnd(); break;
		case 2: a.image_fd = file(); break;
		case 3: a.event_fd = file(); break;
		case 4: a.extents = (uintptr_t)pointer(); break;
		case 5: a.nr_extents = PICK(0ul, 2ul, 1048577ul, ~0ul); break;
		case 6: ext[0].offset = rnd() & (one_in(2) ? ~0ul : ~(PG - 1)); break;
		}
	}
	DO(lazy_attach, ioctl(fd, UFFDIO_LAZY_ATTACH, one_in(30) ? pointer() : &a));
	for (int i = below(8); i > 0; i--) {
		volatile char *p = PLAY + (page + below(n)) * PG;
		pid_t pid;

		switch (below(9)) {
		case 0: load.flags = UFFD_LAZY_START; /* fall through */
		case 1:
			range.start += below(n) * PG;
			load.nr_ranges = PICK(1, 1, 0);
			if (one_in(8))
				load.ranges = (uintptr_t)pointer();
			DO(lazy_load, ioctl(fd, UFFDIO_LAZY_LOAD, one_in(20) ? pointer() : &load));
			break;
		case 2: case 3:
			/* Not where it would wait for somebody who never comes: what is attached gets loaded. */
			st->size = sizeof(*st);
			if (!DO(lazy_stat, ioctl(fd, UFFDIO_LAZY_STAT, one_in(20) ? pointer() : (void *)st)) && st->missing)
				*p;
			break;
		case 4: DO(madvise, madvise((void *)p, below(8) * PG, PICK(MADV_DONTNEED, MADV_FREE, MADV_COLD, MADV_PAGEOUT)));
			break;
		case 5: DO(mremap, mremap((void *)p, PG * PICK(1, 3), PG * PICK(1, 3), MREMAP_MAYMOVE | MREMAP_FIXED,
					  PLAY + below(PLAY_PAGES - 3) * PG) == MAP_FAILED ? -1 : 0);
			break;
		case 6:
			if (!one_in(4))
				break;
			pid = fork();
			if (!pid) {
				*p;
				_exit(0);
			}
			if (pid > 0)
				waitpid(pid, NULL, 0);
			break;
		case 7: DO(uffd, ioctl(fd, PICK(UFFDIO_UNREGISTER, UFFDIO_WAKE), &reg.range)); break;
		case 8: DO(read, read(a.image_fd, (void *)p, PG)); break;
		}
	}
out:
	/* Sometimes left open, for the others */
	if (!one_in(6))
		close(fd);
	close(a.image_fd);
}

static void op_touched(void)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/touched_set", one_in(2) ? getpid() : service());
	fd = DO(touched_open, open(path, O_RDWR | O_CLOEXEC));
	for (int i = 0; i < 4 && fd >= 0; i++) {
		const char *words[] = { "start", i ? "stop" : "start", i ? "stop" : "start", "s", "stop\n", pointer() };
		const char *w = words[below(LEN(words))];

		DO(touched_write, write(fd, w, w >= ARENA && w < ARENA + ARENA_SIZE ? size() :
					(uintptr_t)w < PG || (intptr_t)w < 0 || (w >= PLAY && w < PLAY + PLAY_PAGES * PG) ?
					below(9) : strnlen(w, 8)));
		for (int k = below(30); k > 0; k--)
			((volatile char *)ARENA)[below(ARENA_SIZE)]++;
		if (one_in(2))
			DO(proc, pread(fd, pointer(), size(), 0));
	}
	if (fd >= 0 && !one_in(10))
		close(fd);
}

static void op_log(void)
{
	int fd = open("/proc/restart_log", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	lseek(fd, PICK(0, 0, 5, -1), PICK(SEEK_SET, SEEK_SET, SEEK_END, SEEK_CUR));
	for (int i = below(4); i > 0; i--)
		DO(restart_log, read(fd, pointer(), PICK((size_t)20000, (size_t)20000, size())));
	poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 0);
	close(fd);
}

/* Everything around them */

static void op_read(void)
{
	struct iovec iov[3] = { { pointer(), size() }, { pointer(), size() }, { pointer(), size() } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 1 + below(3), .msg_control = ARENA + 59 * PG,
			      .msg_controllen = PICK(0, 0, 64) };
	static _Atomic int sink = -1;
	int fd = file();

	switch (below(7)) {
	case 0: case 1: DO(read, read(fd, pointer(), size())); break;
	case 2: DO(readv, readv(fd, iov, below(4))); break;
	case 3: DO(recvmsg, recvmsg(fd, &msg, PICK(0, MSG_PEEK, MSG_DONTWAIT, MSG_TRUNC, MSG_WAITALL | MSG_DONTWAIT, MSG_OOB)));
		break;
	case 4: DO(recvmsg, recv(fd, pointer(), size(), PICK(MSG_DONTWAIT, MSG_PEEK | MSG_DONTWAIT, MSG_TRUNC | MSG_DONTWAIT)));
		break;
	case 5:
		if (sink < 0)
			sink = open("/dev/null", O_WRONLY);
		DO(splice, splice(fd, NULL, one_in(3) ? sink : file(), NULL, size(), PICK(0, SPLICE_F_NONBLOCK)));
		break;
	case 6: DO(splice, syscall(SYS_tee, fd, file(), size(), PICK(0, SPLICE_F_NONBLOCK))); break;
	}
}

static void op_write(void)
{
	char control[CMSG_SPACE(2 * sizeof(int))] = {};
	struct iovec iov = { ARENA, below(2000) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *c;

	if (!one_in(4)) {
		DO(write, write(file(), pointer(), size()));
		return;
	}
	if (one_in(2)) {
		msg.msg_control = control;
		msg.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(2 * sizeof(int));
		((int *)CMSG_DATA(c))[0] = file();
		((int *)CMSG_DATA(c))[1] = file();
	}
	DO(sendmsg, sendmsg(file(), &msg, MSG_NOSIGNAL | PICK(0, MSG_DONTWAIT, MSG_OOB)));
}

static void op_poll(void)
{
	struct epoll_event ev = { .events = EPOLLIN | PICK(0u, (unsigned int)EPOLLET, (unsigned int)EPOLLONESHOT) }, got[4];
	struct pollfd p[8];

	for (size_t i = 0; i < LEN(p); i++)
		p[i] = (struct pollfd){ .fd = file(), .events = rnd() };
	switch (below(4)) {
	case 0: DO(poll, poll(p, LEN(p), below(3))); break;
	case 1: case 2: DO(epoll, epoll_ctl(file(), PICK(EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL), file(), &ev));
		break;
	case 3: DO(epoll, epoll_wait(file(), got, 4, below(3))); break;
	}
}

static void op_socket(void)
{
	int fd = file();

	switch (below(7)) {
	case 0: DO(shutdown, shutdown(fd, below(3))); break;
	case 1: DO(ioctl, ioctl(fd, PICK(FIONREAD, TIOCOUTQ, FIOASYNC, FIOCLEX), pointer())); break;
	case 2: DO(ioctl, ioctl(fd, PICK(UFFDIO_LAZY_STAT, UFFDIO_LAZY_ATTACH, UFFDIO_LAZY_LOAD, UFFDIO_API), pointer())); break;
	case 3: DO(sockopt, setsockopt(fd, SOL_SOCKET, PICK(SO_RCVLOWAT, SO_RCVBUF, SO_SNDBUF, SO_PEEK_OFF, SO_LINGER),
				       &(int[]){ below(5000), 0 }, 8)); break;
	case 4: DO(sockopt, setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 0, below(9000) }, 16)); break;
	case 5: DO(sockopt, setsockopt(fd, IPPROTO_TCP, below(40), &(int[]){ word(), 0 }, 4)); break;
	case 6: /* a connection is reset */
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger));
		DO(close, close(fd));
		break;
	}
}

static void op_memory(void)
{
	unsigned int page = below(PLAY_PAGES), n = 1 + below(PLAY_PAGES - page);
	char *p = PLAY + page * PG;

	switch (below(6)) {
	case 0: DO(mmap, munmap(p, n * PG)); break;
	case 1: case 2: DO(mmap, mmap(p, n * PG, PICK(PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE),
				      PICK(MAP_PRIVATE, MAP_PRIVATE, MAP_SHARED) | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? -1 : 0);
		break;
	case 3: DO(madvise, madvise(p, n * PG, PICK(MADV_DONTNEED, MADV_FREE, MADV_COLD, MADV_PAGEOUT, MADV_HUGEPAGE,
						    MADV_POPULATE_WRITE, MADV_DONTFORK, MADV_DOFORK))); break;
	case 4: DO(mmap, mprotect(p, n * PG, PICK(PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE))); break;
	case 5: DO(mremap, mremap(p, n * PG, n * PG, MREMAP_MAYMOVE | MREMAP_FIXED | PICK(0, MREMAP_DONTUNMAP),
				  PLAY + below(PLAY_PAGES - n + 1) * PG) == MAP_FAILED ? -1 : 0); break;
	}
}

static void loop(unsigned int rounds);

static void op_fork(void)
{
	unsigned long fl = SIGCHLD | PICK(0, 0, 0, CLONE_FILES, CLONE_FS, CLONE_SYSVSEM, CLONE_NEWUSER, CLONE_NEWIPC);
	struct slot *slot = &shm->slot[me];
	pid_t pid;

	/* Its own children reap themselves. */
	if (is_child || slot->children >= CHILDREN)
		return;
	slot->children++;
	pid = DO(fork, syscall(SYS_clone, fl, NULL, NULL, NULL, NULL));
	if (pid) {
		if (pid < 0)
			slot->children--;
		return;
	}
	is_child = true;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(30);
	if (one_in(2))
		op_reregist();
	loop(50 + below(300));
	_exit(PICK(0, 0, 1));
}

static void reap(void)
{
	while (waitpid(-1, NULL, WNOHANG) > 0)
		if (shm->slot[me].children > 0)
			shm->slot[me].children--;
}

static void op_execve(void)
{
	char slot[8], *argv[] = { self_path, is_child ? "@child" : "@", shm_path, slot, NULL };

	snprintf(slot, sizeof(slot), "%d", me);
	if (one_in(3)) {
		DO(execve, execve(PICK("/", "/none", "/dev/null", (char *)pointer()), argv, NULL));
		return;
	}
	sigprocmask(SIG_BLOCK, &(sigset_t){ { 1ul << (SIGUSR1 - 1) } }, NULL);
	DO(execve, execve(self_path, argv, NULL));
}

static void op_fault(void)
{
	switch (below(10)) {
	case 0: *(volatile int *)(uintptr_t)below(100) = 1; break;
	case 1: DO(kill, raise(PICK(SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE, SIGSYS, SIGTRAP))); break;
	case 2: DO(kill, kill(service(), PICK(SIGSEGV, SIGABRT, SIGBUS, SIGUSR2))); break;
	case 3:
		if (one_in(2))
			syscall(506, RESTARTCTL_SET_POLICY, &(struct restart_policy){ .flags = RESTART_ON_EXIT }, 24, 0);
		syscall(SYS_exit_group, PICK(1, 1, 1, 0));
		break;
	case 4: if (one_in(8))
			DO(kill, kill(service(), PICK(SIGKILL, SIGTERM, SIGQUIT)));
		break;
	case 5: abort(); break;
	case 6: __asm__ volatile("ud2"); break;
	case 7: *(volatile char *)(PLAY + below(PLAY_PAGES) * PG) = 1; break;
	case 8: DO(kill, kill(getpid(), SIGSEGV)); break;
	case 9: DO(kill, kill(service(), PICK(SIGSTOP, SIGCONT, SIGTSTP))); break;
	}
}

/*
 * Who stops in its exit cannot be killed, on any kernel: it goes on when its tracer has gone. So services, which trace each
 * other, leave exits alone; their children do not, whom nobody traces.
 */
static void op_ptrace(void)
{
	pid_t pid = service();
	int status;

	if (pid == getpid() || pid <= 0)
		return;
	if (DO(ptrace, ptrace(PICK(PTRACE_SEIZE, PTRACE_SEIZE, PTRACE_ATTACH), pid, 0,
			      PICK(0, PTRACE_O_TRACEEXEC, PTRACE_O_TRACESYSGOOD | (is_child ? PTRACE_O_TRACEEXIT : 0)))))
		return;
	DO(ptrace, ptrace(PTRACE_INTERRUPT, pid, 0, 0));
	for (int i = below(6); i > 0; i--) {
		usleep(500);
		if (waitpid(pid, &status, WNOHANG | __WALL) > 0 && WIFSTOPPED(status))
			DO(ptrace, ptrace(PICK(PTRACE_CONT, PTRACE_CONT, PTRACE_SYSCALL, PTRACE_SINGLESTEP), pid, 0,
					  PICK(0, 0, WSTOPSIG(status), SIGSEGV)));
	}
	DO(ptrace, ptrace(PTRACE_DETACH, pid, 0, 0));
	/* Else, when it was not stopped, with this thread's end or the next restart */
}

static void op_rest(void)
{
	char path[64];
	int fd;

	switch (below(9)) {
	case 0: DO(prctl, prctl(PR_SET_DUMPABLE, below(2))); break;
	case 1: DO(prctl, prctl(PR_SET_NAME, PICK("fuzz", "a b\n\\c", ""))); break;
	case 2: DO(prctl, prctl(below(70), below(3), 0, 0, 0)); break;
	case 3: DO(unshare, unshare(PICK(CLONE_FILES, CLONE_SYSVSEM, CLONE_FS))); break;
	case 4: if (one_in(10))
			DO(unshare, unshare(PICK(CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWUSER, CLONE_NEWNS)));
		break;
	default:
		snprintf(path, sizeof(path), "/proc/%d/%s", service(), PICK("restart", "restart", "lazy_loader", "status", "smaps"));
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			break;
		DO(proc, read(fd, pointer(), 4096));
		close(fd);
	}
}

static const struct op {
	const char *name;
	void (*fn)(void);
	unsigned int weight;
} ops[] = {
	{ "reregist", op_reregist, 30 }, { "getreginfo", op_getreginfo, 30 }, { "restartctl", op_restartctl, 60 },
	{ "hread", op_hread, 200 }, { "lwrite", op_lwrite, 120 }, { "getiolog", op_getiolog, 40 },
	{ "lsendfile", op_lsendfile, 40 }, { "compat", op_compat, 30 }, { "rescue", op_rescue, 40 }, { "sem", op_sem, 80 }, { "lazy", op_lazy, 12 },
	{ "touched", op_touched, 10 }, { "log", op_log, 4 }, { "open", op_open, 50 }, { "close", op_close, 35 },
	{ "dup", op_dup, 15 }, { "fcntl", op_fcntl, 15 }, { "read", op_read, 60 }, { "write", op_write, 60 },
	{ "poll", op_poll, 40 }, { "socket", op_socket, 15 }, { "memory", op_memory, 30 }, { "fork", op_fork, 3 },
	{ "execve", op_execve, 1 }, { "fault", op_fault, 5 }, { "ptrace", op_ptrace, 3 }, { "rest", op_rest, 20 },
};

static void loop(unsigned int rounds)
{
	unsigned int all = 0, n;
	size_t i;

	for (i = 0; i < LEN(ops); i++)
		all += shm->left_out >> i & 1 ? 0 : ops[i].weight;
	while (!rounds || --rounds) {
		n = below(all);
		for (i = 0; shm->left_out >> i & 1 || n >= ops[i].weight; i++)
			n -= shm->left_out >> i & 1 ? 0 : ops[i].weight;
		ops[i].fn();
		if (!my_thread && one_in(8))
			reap();
	}
}

/* Interrupts what waits. */
static void nudge(int sig)
{
	(void)sig;
}

static void nudge_me(void)
{
	struct sigevent ev = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1 };
	struct itimerspec every = { { 0, 200000000 }, { 0, 200000000 } };
	timer_t t;

	ev._sigev_un._tid = syscall(SYS_gettid);
	if (!timer_create(CLOCK_MONOTONIC, &ev, &t))
		timer_settime(t, 0, &every, NULL);
}

static void *thread(void *arg)
{
	my_thread = (intptr_t)arg;
	rng = mix(shm->seed ^ mix((uint64_t)me << 40 | (uint64_t)my_thread << 32 | shm->slot[me].incarnation));
	nudge_me();
	loop(0);
	return NULL;
}

static void map_shared(const char *path)
{
	struct stat shared, st;
	int fd;

	/* A generation that ended between the open() and the close() below left it open: calls of chance would write to it. */
	if (stat(path, &shared))
		_exit(90);
	for (fd = 3; fd < FILES; fd++)
		if (!fstat(fd, &st) && st.st_dev == shared.st_dev && st.st_ino == shared.st_ino)
			close(fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	shm = mmap(NULL, sizeof(*shm), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd < 0 || shm == MAP_FAILED)
		_exit(90);
	close(fd);
	snprintf(shm_path, sizeof(shm_path), "%s", path);
}

/* An image of a service, or of a child of one: its first, that of a new generation, or one that execve() made. */
static int service_main(char **argv)
{
	struct sigaction sa = { .sa_handler = nudge };
	struct reg_info info = {};
	pthread_t t;

	map_shared(argv[2]);
	me = atoi(argv[3]);
	/* Other threads may have written over it while reregist() copied it. */
	if (me < 0 || me >= SERVICES_MAX)
		_exit(90);
	is_child = shm->slot[me].pid != getpid();
	sigaction(SIGUSR1, &sa, NULL);
	sigaction(SIGUSR2, &sa, NULL);
	sigaction(SIGPIPE, &sa, NULL);
	signal(SIGXFSZ, SIG_IGN);
	sigprocmask(SIG_SETMASK, &(sigset_t){}, NULL);
	shm->slot[me].incarnation++;
	if (syscall(501, &info, sizeof(info), 0) == 1 && info.is_restarted)
		shm->restarts++;
	if (mmap(ARENA, ARENA_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != ARENA ||
	    mmap(PLAY, PLAY_PAGES * PG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != PLAY)
		return 91;
	rng = mix(shm->seed ^ mix((uint64_t)me << 40 | shm->slot[me].incarnation));
	for (size_t i = 0; i < ARENA_SIZE; i += 8)
		*(uint64_t *)(ARENA + i) = rnd();
	op_reregist();
	for (int i = 0; i < 10; i++)
		op_open();
	if (is_child)
		alarm(30);
	else
		for (intptr_t i = 1; i < THREADS; i++)
			pthread_create(&t, NULL, thread, (void *)i);
	nudge_me();
	loop(is_child ? 50 + below(300) : 0);
	return 0;
}

/* The parent of all */

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		printf("# %s: %s\n", path, strerror(errno));
	close(fd);
}

static void put_number(const char *name, unsigned int n)
{
	char path[128], text[16];

	snprintf(path, sizeof(path), "/proc/sys/kernel/restart/%s", name);
	snprintf(text, sizeof(text), "%u", n);
	put(path, text);
}

static void start(int nr)
{
	char slot[8], dir[128], *argv[] = { self_path, "@", shm_path, slot, NULL };
	int null;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid) {
		if (pid < 0)
			printf("# fork: %s\n", strerror(errno));
		return;
	}
	/* Of a failed allocation: most services see none, the last one sees many */
	if (nr == shm->services - 1 && !shm->no_failures && !access("/proc/self/make-it-fail", W_OK))
		put("/proc/self/make-it-fail", "1");
	null = open("/dev/null", O_RDWR);
	for (int i = 0; i < 3; i++)
		dup2(null, i);
	syscall(SYS_close_range, 3, ~0u, 0);
	setsid();
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){ FILES, FILES });
	setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 256 << 10, 256 << 10 });
	setrlimit(RLIMIT_CORE, &(struct rlimit){ nr % 2 ? 256 << 10 : 0, 256 << 10 });
	setrlimit(RLIMIT_NPROC, &(struct rlimit){ 200, 200 });
	snprintf(dir, sizeof(dir), "%s/%d", shm->dir, nr);
	mkdir(dir, 0777);
	if (chown(dir, nr % 2 ? 65534 : 0, 0) || chdir(dir))
		_exit(92);
	/* Every second one has no privileges. */
	if (nr % 2 && (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)))
		_exit(93);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	shm->slot[nr].pid = getpid();
	shm->slot[nr].children = 0;
	snprintf(slot, sizeof(slot), "%d", nr);
	execve(self_path, argv, NULL);
	_exit(94);
}

/* What a process that does not move is at */
static pid_t tracer_of(pid_t pid)
{
	char path[64], line[128];
	pid_t tracer = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f) && sscanf(line, "TracerPid: %d", &tracer) != 1)
		;
	if (f)
		fclose(f);
	return tracer;
}

/* It, and who traces it */
static void explain(pid_t pid)
{
	static const char *const files[] = { "status", "wchan", "stack", "syscall" };
	char path[64], text[2048];
	ssize_t n;
	int fd;

	for (size_t i = 0; pid && i < 3 * LEN(files); i++) {
		snprintf(path, sizeof(path), "/proc/%d/%s", pid, files[i % LEN(files)]);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
		text[n > 0 ? n : 0] = 0;
		printf("# %s\n", path);
		for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
			printf("#   %s\n", line);
		close(fd);
		if (i % LEN(files) == LEN(files) - 1)
			pid = tracer_of(pid);
	}
}

/* What became of the faults, and why it was no restart, from the kernel's own log */
static struct tally {
	char what[64];
	unsigned int nr;
} tallies[32];
static unsigned int hangs, exits, cores, suspects;

static void tally(void)
{
	static char text[64 << 10];
	static int fd = -1;
	char *save, *line, outcome[32];
	int error;
	ssize_t n;
	size_t i;

	if (fd < 0)
		fd = open("/proc/restart_log", O_RDONLY | O_CLOEXEC);
	while ((n = read(fd, text, sizeof(text) - 1)) > 0) {
		text[n] = 0;
		for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
			char what[64], *at = strstr(line, " outcome=");

			if (!at || sscanf(at, " outcome=%31s error=%d", outcome, &error) != 2)
				continue;
			if (!strcmp(outcome, "restarted")) {
				hangs += !!strstr(line, " cause=hang ");
				exits += !!strstr(line, " cause=exit ");
				cores += !strstr(line, " core_pid=0 ");
				suspects += !strstr(line, " suspect_fd=-1 ");
			}
			snprintf(what, sizeof(what), "%s%s%.20s", outcome, error ? " " : "",
				 error >= 512 ? "killed" : error ? strerrorname_np(error) : "");
			for (i = 0; i < LEN(tallies) - 1 && tallies[i].nr && strcmp(tallies[i].what, what); i++)
				;
			if (!tallies[i].nr++) {
				snprintf(tallies[i].what, sizeof(what), "%s", what);
				printf("# the first of \"%s\": %s\n", what, line);
			}
		}
	}
}

/* Nobody has any business to kill us: says who did, or where it was */
static void killed(int sig, siginfo_t *info, void *context)
{
	char text[4096];
	ssize_t n;
	int fd;

	(void)context;
	n = snprintf(text, sizeof(text), "# SIG%s, code %d, from process %d or at %p\n", sigabbrev_np(sig), info->si_code,
		     info->si_code > 0 ? 0 : info->si_pid, info->si_addr);
	fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	do {
		if (write(STDOUT_FILENO, text, n) != n)
			break;
	} while ((n = read(fd, text, sizeof(text))) > 0);
	_exit(128 + sig);
}

static int nr_tests;

static bool verdict(bool ok, const char *what)
{
	printf("%sok %d %s\n", ok ? "" : "not ", ++nr_tests, what);
	return ok;
}

static bool report(void)
{
	bool good = true;

	printf("# %-16s %9s %9s  errors\n", "call", "ok", "failed");
	for (int c = 0; c < NR_COUNTS; c++) {
		uint32_t failed = 0;

		for (int e = 0; e < ERRNOS; e++)
			failed += shm->err[c][e];
		printf("# %-16s %9u %9u ", count_names[c], shm->ok[c], failed);
		for (int shown = 0; shown < 8; shown++) {
			uint32_t most = 0;
			int which = 0;

			for (int e = 0; e < ERRNOS; e++) {
				if (shm->err[c][e] > most) {
					most = shm->err[c][e];
					which = e;
				}
			}
			if (!most)
				break;
			printf(" %s %u", which ? strerrorname_np(which) : "?", most);
			shm->err[c][which] = 0;
		}
		printf("\n");
		/* Often, in the shortest of runs, too */
		if (c <= LAST_OURS && (shm->ok[c] < 20 || (shm->ok[c] + failed) / 20 > shm->ok[c] ||
				       (!failed && c != C_restart_log))) {
			printf("# %s: not reached often enough, or never failed\n", count_names[c]);
			good = false;
		}
	}
	return good;
}

/* The services, children that came to us when their parents died, and those that trace one of them */
static void kill_children(void)
{
	FILE *f = fopen("/proc/thread-self/children", "re");
	pid_t pid, tracer;

	while (f && fscanf(f, "%d", &pid) == 1) {
		tracer = tracer_of(pid);
		if (tracer)
			kill(tracer, SIGKILL);
		kill(pid, SIGKILL);
	}
	if (f)
		fclose(f);
}

/* Kills all that is left, and waits for it. */
static bool end_all(void)
{
	uint64_t end = now_ms() + 120000;
	pid_t pid;

	for (;;) {
		kill_children();
		while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
			;
		if (pid < 0)
			return true;
		if (now_ms() > end)
			break;
		usleep(50000);
	}
	FILE *f = fopen("/proc/thread-self/children", "re");

	while (f && fscanf(f, "%d", &pid) == 1)
		explain(pid);
	return false;
}

/* From memory: the file system of the host does not recover from allocations that fail, not for others either. */
static void move_to_memory(char **argv)
{
	char path[128];
	int fd, from;
	ssize_t n;

	snprintf(path, sizeof(path), "/tmp/fuzz.%d", getpid());
	if (mkdir(path, 0777) || chmod(path, 0777))
		exit(95);
	snprintf(path, sizeof(path), "/tmp/fuzz.%d/prog", getpid());
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	from = open(self_path, O_RDONLY | O_CLOEXEC);
	while ((n = sendfile(fd, from, NULL, 1 << 20)) > 0)
		;
	if (n || close(fd) || close(from))
		exit(95);
	execv(path, argv);
	exit(95);
}

static void prepare(void)
{
	char page[PG], path[192];
	int fd;

	snprintf(path, sizeof(path), "/tmp/fuzz.%d/shared", getpid());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0 || fchmod(fd, 0666) || ftruncate(fd, sizeof(*shm)))
		exit(95);
	close(fd);
	map_shared(path);
	snprintf(shm->dir, sizeof(shm->dir), "/tmp/fuzz.%d", getpid());
	snprintf(path, sizeof(path), "%s/image", shm->dir);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	for (unsigned int i = 0; i < PLAY_PAGES + 4; i++) {
		memset(page, i + 1, sizeof(page));
		if (write(fd, page, sizeof(page)) != sizeof(page))
			exit(95);
	}
	close(fd);
	/* A machine that is emulated beside others is not run at all for seconds. */
	put("/sys/module/rcupdate/parameters/rcu_cpu_stall_timeout", "120");
	put("/proc/sys/kernel/core_pattern", "core");
	put("/proc/sys/kernel/core_uses_pid", "0");
	put("/proc/sys/kernel/print-fatal-signals", "0");
	put("/proc/sys/debug/exception-trace", "0");
	put("/proc/sys/vm/unprivileged_userfaultfd", "1");
	if (!access("/sys/kernel/debug/failslab", F_OK)) {
		static const char *const kinds[] = { "failslab", "fail_page_alloc" };

		for (int i = 0; i < 2; i++) {
			const char *const settings[][2] = {
				{ "verbose", "0" }, { "task-filter", "Y" }, { "probability", "1" }, { "interval", "3" },
				{ "times", "-1" }, { "ignore-gfp-wait", "N" },
			};

			for (size_t k = 0; k < LEN(settings); k++) {
				snprintf(path, sizeof(path), "/sys/kernel/debug/%s/%s", kinds[i], settings[k][0]);
				put(path, settings[k][1]);
			}
		}
	}
}

int main(int argc, char **argv)
{
	uint64_t begin, end, shown, seen = 0, moved[SERVICES_MAX] = {}, at[SERVICES_MAX] = {};
	unsigned int deaths[65] = {}, unfit = 0;
	bool stuck = false;
	double minutes = 1;
	int opt;

	if (readlink("/proc/self/exe", self_path, sizeof(self_path) - 1) < 0)
		return 95;
	if (argc >= 4 && argv[1][0] == '@')
		return service_main(argv);
	/* A service that was registered with arguments of chance */
	if (!prctl(PR_GET_PDEATHSIG, &opt) && opt)
		return 1;
	if (strncmp(self_path, "/tmp/fuzz.", 10))
		move_to_memory(argv);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < 3; i++)
		sigaction((const int[]){ SIGBUS, SIGSEGV, SIGABRT }[i],
			  &(struct sigaction){ .sa_sigaction = killed, .sa_flags = SA_SIGINFO }, NULL);
	prepare();
	/* The libraries are on the host's file system, still */
	mlockall(MCL_CURRENT | MCL_FUTURE);
	shm->services = 6;
	shm->seed = time(NULL);
	while ((opt = getopt(argc, argv, "am:s:w:x:")) != -1) {
		switch (opt) {
		case 'a': shm->no_failures = true; break;
		case 'm': minutes = atof(optarg); break;
		case 's': shm->seed = strtoull(optarg, NULL, 0); break;
		case 'w': shm->services = atoi(optarg) < SERVICES_MAX ? atoi(optarg) : SERVICES_MAX; break;
		case 'x':
			for (size_t i = 0; i < LEN(ops); i++)
				if (strstr(ops[i].name, optarg))
					shm->left_out |= 1ull << i;
			break;
		default: return 2;
		}
	}
	printf("KTAP version 1\n1..5\n# seed %llu, %d services, %g minutes\n", (unsigned long long)shm->seed,
	       shm->services, minutes);
	rng = shm->seed;
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	put_number("enabled", 1);
	put_number("min_interval_ms", 0);
	add_points();

	begin = shown = now_ms();
	end = begin + minutes * 60000;
	for (uint64_t now, round = 0; (now = now_ms()) < end && !stuck; round++) {
		pid_t pid;
		int status;

		while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
			if (WIFEXITED(status) && WEXITSTATUS(status) >= 90 && unfit++ < 10)
				printf("# process %d did not get to its first call: status %d\n", pid, WEXITSTATUS(status));
			for (int i = 0; i < shm->services; i++) {
				if (shm->slot[i].pid != pid)
					continue;
				shm->slot[i].pid = 0;
				deaths[WIFSIGNALED(status) ? WTERMSIG(status) : 0]++;
			}
		}
		for (int i = 0; i < shm->services; i++) {
			struct slot *s = &shm->slot[i];

			if (!s->pid) {
				start(i);
				at[i] = now;
			} else if (s->progress != moved[i]) {
				moved[i] = s->progress;
				at[i] = now;
			} else if (now - at[i] > 90000) {
				printf("# service %d, process %d, stands still and cannot be killed; its threads were at", i, s->pid);
				for (int k = 0; k <= THREADS; k++)
					printf(" %s", count_names[s->last[k]]);
				printf("\n");
				explain(s->pid);
				stuck = true;
			} else if (now - at[i] > 15000) {
				/*
				 * What it waits for may be in the hands of another one, which is no fault of ours: a terminal's
				 * read() keeps the end of its other side waiting while its buffer's page is missing, and a
				 * zombie stays until the one that traces it has gone.
				 */
				if (now - at[i] > 45000)
					kill_children();
				kill(s->pid, SIGCONT);
				kill(s->pid, SIGKILL);
			} else if (now - at[i] > 1000) {
				kill(s->pid, SIGCONT);
			}
		}
		if (!(round % 20)) {
			put_number("min_interval_ms", PICK(0, 0, 0, 0, 1, 50, 60000));
			put_number("held_bytes_max", PICK(65536, 65536, 65536, 4096, 1048576));
			put_number("enabled", !one_in(15));
		}
		if (now - shown >= 5000) {
			uint64_t calls = shm->calls;

			printf("# %llu s: %llu calls, %llu/s, %llu restarts\n", (unsigned long long)(now - begin) / 1000,
			       (unsigned long long)calls, (unsigned long long)((calls - seen) * 1000 / (now - shown)),
			       (unsigned long long)shm->restarts);
			seen = calls;
			shown = now;
			tally();
		}
		usleep(150000);
	}
	put_number("enabled", 1);
	tally();
	printf("# %llu calls; %llu images came back; of the restarts %u hangs, %u exits, %u with a core dump, %u with a suspect\n",
	       (unsigned long long)shm->calls, (unsigned long long)shm->restarts, hangs, exits, cores, suspects);
	printf("# faults:");
	for (size_t i = 0; i < LEN(tallies) && tallies[i].nr; i++)
		printf("%s %u %s", i ? "," : "", tallies[i].nr, tallies[i].what);
	printf("\n# services ended: %u exited", deaths[0]);
	for (int i = 1; i < 65; i++)
		if (deaths[i])
			printf(", %u by SIG%s", deaths[i], sigabbrev_np(i) ?: "RT");
	printf("\n");
	verdict(!stuck, "no service stands still");
	verdict(end_all(), "all processes end");
	verdict(shm->restarts >= 10 && hangs && exits && cores && suspects,
		"restarts by faults, hangs and exits, with core dumps and suspects");
	verdict(points_used(), "rescue points are entered and left, undo faults and hold output");
	verdict(report(), "every call is reached, succeeds and fails");
	return 0;
}
