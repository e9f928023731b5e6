// SPDX-License-Identifier: GPL-2.0-or-later
/* What a restart keeps and what it resets, attribute by attribute, and beside an ordinary execve(2). */
#include "gen.h"

#include <netinet/in.h>
#include <grp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/personality.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <termios.h>

/* ---- attributes, as text ---- */

static void say(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(int fd, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vdprintf(fd, fmt, ap);
	va_end(ap);
}

static void say_link(int fd, const char *path)
{
	char buf[PATH_MAX];
	ssize_t n = readlink(path, buf, sizeof(buf) - 1);

	buf[n > 0 ? n : 0] = 0;
	say(fd, "%s %s\n", path, buf);
}

static void say_file(int fd, const char *path)
{
	char buf[4096];

	if (t_get(path, buf, sizeof(buf)) >= 0)
		say(fd, "%s %s\n", path, buf);
}

static void describe(int out)
{
	static const char *const status[] = { "Umask", "PPid", "Uid", "Gid", "Groups", "Threads",
		"SigIgn", "SigCgt", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
		"Cpus_allowed", "Mems_allowed", "Name", "CoreDumping", "THP_enabled", "VmLck" };
	static const char *const ns[] = { "cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "user",
		"uts" };
	char text[8192], path[64], *line, *save;
	struct itimerval timer;
	struct sched_param param;
	struct rlimit limit;
	stack_t ss;
	int n;

	T_OK(t_get("/proc/self/status", text, sizeof(text)));
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		for (size_t i = 0; i < ARRAY_LEN(status); i++) {
			size_t len = strlen(status[i]);

			if (!strncmp(line, status[i], len) && line[len] == ':')
				say(out, "%s\n", line);
		}
	}
	for (size_t i = 0; i < ARRAY_LEN(ns); i++) {
		snprintf(path, sizeof(path), "/proc/self/ns/%s", ns[i]);
		say_link(out, path);
	}
	say_link(out, "/proc/self/cwd");
	say_link(out, "/proc/self/root");
	say_link(out, "/proc/self/exe");
	say_file(out, "/proc/self/cgroup");
	say_file(out, "/proc/self/oom_score_adj");
	say_file(out, "/proc/self/timers");
	say_file(out, "/proc/self/coredump_filter");
	say_file(out, "/proc/self/timerslack_ns");
	say(out, "leader %d sid %d nice %d personality %x\n", getpgrp() == getpid(), getsid(0),
	    getpriority(PRIO_PROCESS, 0), personality(0xffffffff));
	sched_getparam(0, &param);
	say(out, "sched %d %d\n", sched_getscheduler(0), param.sched_priority);
	for (int i = 0; i < RLIM_NLIMITS; i++) {
		T_OK(getrlimit(i, &limit));
		say(out, "limit %d %lld %lld\n", i, (long long)limit.rlim_cur, (long long)limit.rlim_max);
	}
	for (int i = 0; i < 3; i++) {
		T_OK(getitimer(i, &timer));
		say(out, "timer %d %d\n", i, timer.it_value.tv_sec > 900);
	}
	T_OK(sigaltstack(NULL, &ss));
	say(out, "altstack %d\n", ss.ss_flags);
	T_OK(prctl(PR_GET_PDEATHSIG, &n));
	say(out, "pdeathsig %d\n", n);
	say(out, "keepcaps %d securebits %d slack %d thp %d iofl %d\n", prctl(PR_GET_KEEPCAPS),
	    prctl(PR_GET_SECUREBITS), prctl(PR_GET_TIMERSLACK), prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0),
	    prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0));
	T_OK(prctl(PR_GET_CHILD_SUBREAPER, &n));
	say(out, "subreaper %d\n", n);
	say(out, "main thread %d\n", syscall(SYS_gettid) == getpid());
}

/* What the test compares, in its directory. */
static int text_file(const char *name)
{
	char path[PATH_MAX];

	return T_OK(open(t_path(path, name), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
}

ROLE(describe)
{
	int fd = text_file(argv[0]);

	if (!strcmp(argv[0], "restart"))
		T_EQ(t_generation(), 2);
	describe(fd);
	return 0;
}

static void on_usr2(int sig)
{
	(void)sig;
}

static void unusual(bool user)
{
	struct itimerval timer = { .it_value.tv_sec = 1000 };
	stack_t ss = { .ss_sp = malloc(65536), .ss_size = 65536 };
	cpu_set_t cpus;
	timer_t posix;

	umask(027);
	T_OK(setpriority(PRIO_PROCESS, 0, 3));
	T_OK(chdir("/proc"));
	T_OK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 1100, 1200 }));
	T_OK(setrlimit(RLIMIT_MSGQUEUE, &(struct rlimit){ 5000, 6000 }));
	T_OK(setrlimit(RLIMIT_STACK, &(struct rlimit){ 3 << 20, 5 << 20 }));
	for (int i = 0; i < 3; i++)
		T_OK(setitimer(i, &timer, NULL));
	T_OK(setpgid(0, 0));
	signal(SIGUSR1, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	t_handle(SIGUSR2, on_usr2, SA_ONSTACK);
	T_OK(sigaltstack(&ss, NULL));
	T_OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
	T_OK(prctl(PR_SET_TIMERSLACK, 12345));
	T_OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
	T_OK(prctl(PR_SET_NAME, "unusual"));
	T_OK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	T_OK(personality(ADDR_NO_RANDOMIZE));
	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	T_OK(sched_setaffinity(0, sizeof(cpus), &cpus));
	T_OK(sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 }));
	T_OK(t_put("/proc/self/oom_score_adj", "100"));
	T_OK(t_put("/proc/self/coredump_filter", "0x11"));
	T_OK(timer_create(CLOCK_MONOTONIC, NULL, &posix));
	T_OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	T_OK(unshare(CLONE_NEWNET | CLONE_NEWNS));
	T_OK(prctl(PR_SET_KEEPCAPS, 1));
	if (user) {
		gid_t groups[] = { 5, 7, 11 };

		T_OK(setgroups(3, groups));
		T_OK(setresgid(1001, 1001, 1003));
		T_OK(setresuid(2001, 2002, 2003));
		T_OK(setresuid(2001, 2001, 2001));
	}
	prctl(PR_SET_DUMPABLE, 0);
}

/* A restart and an ordinary execve(2) of the same process leave the same, but for who may look into it: see private.c. */
static void compare(bool user)
{
	static char text[2][16384];
	static const char *const names[] = { "restart", "exec" };
	char path[PATH_MAX], *line[2], *save[2];
	pid_t pid;

	T_OK(chmod(t_tmpdir(), 0777));
	for (int i = 0; i < 2; i++) {
		pid = t_fork();
		if (!pid) {
			unusual(user);
			if (i)
				execl(t_self, "prog", "@describe", names[i], NULL);
			t_register("describe", names[i], NULL);
			t_crash();
		}
		T_EXITED(t_wait(pid), 0);
		T_EXPECT(t_get(t_path(path, names[i]), text[i], sizeof(text[i])) > 1000);
	}
	for (int i = 0; i < 2; i++)
		line[i] = strtok_r(text[i], "\n", &save[i]);
	while (line[0] && line[1]) {
		/* The new namespaces have numbers of their own. */
		if (!strstr(line[0], "/ns/"))
			T_STREQ(line[0], line[1]);
		for (int i = 0; i < 2; i++)
			line[i] = strtok_r(NULL, "\n", &save[i]);
	}
	T_EXPECT(!line[0] && !line[1]);
	unlink(t_path(path, "restart"));
	unlink(t_path(path, "exec"));
}

T(as_execve)
{
	t_context = "as root";
	compare(false);
	t_context = "as a user";
	compare(true);
}

/* What execve(2) keeps and we promise, against the state before. */
ROLE(kept)
{
	struct reg_info info;
	struct itimerval timer;
	char buf[PATH_MAX];
	struct rlimit limit;
	gid_t groups[8];
	stack_t ss;
	int n;

	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.generation, 2);
	T_EQ(getpid(), t_word[0]);
	T_EQ(getppid(), t_word[1]);
	T_EQ(getpgrp(), t_word[0]);
	T_EQ(getsid(0), t_word[2]);
	T_EQ(getuid(), 2001);
	T_EQ(getgid(), 1001);
	T_EQ(getegid(), 1001);
	T_EQ(getgroups(8, groups), 3);
	T_EQ(groups[2], 11);
	T_EQ(umask(0), 027);
	T_EQ(getpriority(PRIO_PROCESS, 0), 3);
	T_STREQ(getcwd(buf, sizeof(buf)), "/proc");
	T_OK(getrlimit(RLIMIT_NOFILE, &limit));
	T_EQ(limit.rlim_cur, 1100);
	T_EQ(limit.rlim_max, 1200);
	T_OK(getitimer(ITIMER_REAL, &timer));
	T_EXPECT(timer.it_value.tv_sec > 900);
	T_EQ(sched_getscheduler(0), SCHED_BATCH);
	T_EXPECT(signal(SIGUSR1, SIG_DFL) == SIG_IGN);
	T_EXPECT(signal(SIGUSR2, SIG_DFL) == SIG_DFL);
	T_OK(sigaltstack(NULL, &ss));
	T_EQ(ss.ss_flags, SS_DISABLE);
	T_OK(prctl(PR_GET_CHILD_SUBREAPER, &n));
	T_EQ(n, 1);
	T_EQ(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
	T_EQ(prctl(PR_GET_DUMPABLE), 0);
	return 0;
}

T(kept)
{
	T_CHILD {
		t_word[0] = getpid();
		t_word[1] = getppid();
		t_word[2] = getsid(0);
		unusual(true);
		t_register("kept", NULL);
		t_crash();
	}
}

/* ---- signals ---- */

ROLE(signals)
{
	sigset_t set;

	T_EQ(t_generation(), 2);
	sigpending(&set);
	for (int sig = 1; sig <= SIGRTMAX; sig++) {
		if (sig == SIGUSR1 || sig == SIGRTMIN)
			T_EXPECT(sigismember(&set, sig));
		else
			T_EXPECT(sigismember(&set, sig) != 1);
	}
	sigprocmask(SIG_BLOCK, NULL, &set);
	for (int sig = 1; sig <= SIGRTMAX; sig++) {
		if (sig == SIGUSR1 || sig == SIGRTMIN || sig == SIGWINCH)
			T_EQ(sigismember(&set, sig), 1);
		else
			T_EXPECT(sigismember(&set, sig) != 1);
	}
	/* Queued real-time signals keep their values and order. */
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	for (int i = 1; i <= 3; i++) {
		siginfo_t info;

		T_EQ(sigtimedwait(&set, &info, &(struct timespec){ 0 }), SIGRTMIN);
		T_EQ(info.si_value.sival_int, i);
	}
	T_ERR(sigtimedwait(&set, NULL, &(struct timespec){ 0 }), EAGAIN);
	return 0;
}

static void faults_in_handler(int sig)
{
	sigset_t set;

	(void)sig;
	sigfillset(&set);
	sigprocmask(SIG_BLOCK, &set, NULL);
	t_crash();
}

T(signals)
{
	for (int how = 0; how < 4; how++) {
		T_CHILD {
			struct sigaction sa = { .sa_handler = faults_in_handler };
			sigset_t set, other;

			sigemptyset(&set);
			sigaddset(&set, SIGUSR1);
			sigaddset(&set, SIGRTMIN);
			sigaddset(&set, SIGWINCH);
			sigprocmask(SIG_SETMASK, &set, NULL);
			t_register("signals", NULL);

			T_OK(kill(getpid(), SIGUSR1));
			for (int i = 1; i <= 3; i++)
				T_OK(sigqueue(getpid(), SIGRTMIN, (union sigval){ .sival_int = i }));
			sigfillset(&sa.sa_mask);
			T_OK(sigaction(SIGUSR2, &sa, NULL));
			switch (how) {
			case 0:
				t_crash();
			case 1:
				raise(SIGUSR2);
				break;
			case 2:
				/* In sigsuspend(): its mask is not the process's. */
				sigprocmask(SIG_BLOCK, NULL, &other);
				sigaddset(&other, SIGUSR2);
				sigaddset(&other, SIGTERM);
				sigdelset(&other, SIGABRT);
				if (!t_fork()) {
					t_sleep_ms(30);
					kill(getppid(), SIGABRT);
					_exit(0);
				}
				for (;;)
					sigsuspend(&other);
			case 3:
				sigfillset(&set);
				sigprocmask(SIG_SETMASK, &set, NULL);
				t_crash();
			}
			_exit(9);
		}
	}
}

/* ---- files ---- */

static void fd_path(char *buf, size_t size, const char *name)
{
	snprintf(buf, size, "%s/%s", t_tmpdir(), name);
}

enum { F_PIPE = 20, F_PIPE_W, F_FILE, F_APPEND, F_DIR, F_LISTEN, F_TCP, F_PEER, F_EVENT, F_TIMER, F_EPOLL, F_MEMFD,
       F_INOTIFY, F_SIGNAL, F_FLOCK, F_OFD, F_POSIX, F_PATH, F_KEEP, F_FAR = 900 };

static void put_at(int fd, int at, bool cloexec)
{
	T_OK(fd);
	T_ASSERT(dup3(fd, at, cloexec ? O_CLOEXEC : 0) == at);
	close(fd);
}

static void open_files(void)
{
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(sin);
	char path[PATH_MAX];
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = 0x123456789 };
	sigset_t usr1;
	int p[2];

	T_OK(pipe(p));
	put_at(p[0], F_PIPE, true);
	put_at(p[1], F_PIPE_W, true);
	T_ASSERT(write(F_PIPE_W, "unread", 6) == 6);
	fd_path(path, sizeof(path), "file");
	put_at(open(path, O_RDWR | O_CREAT, 0600), F_FILE, true);
	T_ASSERT(write(F_FILE, "0123456789", 10) == 10);
	T_OK(lseek(F_FILE, 7, SEEK_SET));
	put_at(open(path, O_WRONLY | O_APPEND | O_NONBLOCK), F_APPEND, true);
	put_at(open(path, O_PATH), F_PATH, true);
	put_at(open("/proc", O_RDONLY | O_DIRECTORY), F_DIR, true);
	put_at(open("/proc/self/status", O_RDONLY), F_KEEP, false);
	put_at(open("/dev/null", O_RDONLY), F_FAR, true);
	put_at(socket(AF_INET, SOCK_STREAM, 0), F_LISTEN, true);
	T_OK(bind(F_LISTEN, (void *)&sin, sizeof(sin)));
	T_OK(listen(F_LISTEN, 3));
	T_OK(getsockname(F_LISTEN, (void *)&sin, &len));
	put_at(socket(AF_INET, SOCK_STREAM, 0), F_PEER, true);
	T_OK(connect(F_PEER, (void *)&sin, sizeof(sin)));
	put_at(accept(F_LISTEN, NULL, NULL), F_TCP, true);
	T_ASSERT(write(F_PEER, "request", 7) == 7);
	/* One more connection, to be accepted by the new generation. */
	p[0] = T_OK(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
	T_OK(connect(p[0], (void *)&sin, sizeof(sin)));
	put_at(eventfd(5, 0), F_EVENT, true);
	put_at(timerfd_create(CLOCK_MONOTONIC, 0), F_TIMER, true);
	T_OK(timerfd_settime(F_TIMER, 0, &(struct itimerspec){ .it_value.tv_nsec = 1 }, NULL));
	put_at(memfd_create("state", MFD_ALLOW_SEALING), F_MEMFD, true);
	T_ASSERT(write(F_MEMFD, "state", 5) == 5);
	T_OK(fcntl(F_MEMFD, F_ADD_SEALS, F_SEAL_SHRINK));
	put_at(inotify_init(), F_INOTIFY, true);
	T_OK(inotify_add_watch(F_INOTIFY, t_tmpdir(), IN_CREATE));
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	put_at(signalfd(-1, &usr1, 0), F_SIGNAL, true);
	put_at(epoll_create1(0), F_EPOLL, true);
	T_OK(epoll_ctl(F_EPOLL, EPOLL_CTL_ADD, F_TCP, &ev));

	fd_path(path, sizeof(path), "flock");
	put_at(open(path, O_RDWR | O_CREAT, 0600), F_FLOCK, true);
	T_OK(flock(F_FLOCK, LOCK_EX));
	fd_path(path, sizeof(path), "ofd");
	put_at(open(path, O_RDWR | O_CREAT, 0600), F_OFD, true);
	T_OK(fcntl(F_OFD, F_OFD_SETLK, &(struct flock){ .l_type = F_WRLCK }));
	fd_path(path, sizeof(path), "posix");
	put_at(open(path, O_RDWR | O_CREAT, 0600), F_POSIX, true);
	T_OK(fcntl(F_POSIX, F_SETLK, &(struct flock){ .l_type = F_WRLCK }));
}

/* Another process finds the locks taken. */
static void expect_locked(void)
{
	T_CHILD {
		char path[PATH_MAX];

		fd_path(path, sizeof(path), "flock");
		T_ERR(flock(open(path, O_RDWR), LOCK_EX | LOCK_NB), EWOULDBLOCK);
		fd_path(path, sizeof(path), "ofd");
		T_ERR(fcntl(open(path, O_RDWR), F_OFD_SETLK, &(struct flock){ .l_type = F_WRLCK }), EAGAIN);
		fd_path(path, sizeof(path), "posix");
		T_ERR(fcntl(open(path, O_RDWR), F_SETLK, &(struct flock){ .l_type = F_WRLCK }), EAGAIN);
	}
}

static int count_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 1100; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

ROLE(files)
{
	struct epoll_event ev;
	char buf[64], path[PATH_MAX];
	uint64_t val;

	T_EQ(t_generation(), 2);
	T_EQ(count_fds(), t_word[0]);
	for (int fd = F_PIPE; fd <= F_FAR; fd = fd == F_KEEP ? F_FAR : fd + 1) {
		t_word[1] = fd;
		T_EQ(fcntl(fd, F_GETFD), fd == F_KEEP ? 0 : FD_CLOEXEC);
	}
	T_EQ(read(F_PIPE, buf, sizeof(buf)), 6);
	T_MEMEQ(buf, "unread", 6);
	T_EQ(lseek(F_FILE, 0, SEEK_CUR), 7);
	T_EQ(fcntl(F_APPEND, F_GETFL) & (O_APPEND | O_NONBLOCK | O_ACCMODE), O_APPEND | O_NONBLOCK | O_WRONLY);
	T_EQ(write(F_APPEND, "x", 1), 1);
	T_EQ(lseek(F_FILE, 0, SEEK_END), 11);
	T_EQ(fcntl(F_PATH, F_GETFL) & O_PATH, O_PATH);
	T_OK(openat(F_DIR, "self", O_RDONLY));
	T_OK(accept(F_LISTEN, NULL, NULL));
	T_EQ(epoll_wait(F_EPOLL, &ev, 1, 0), 1);
	T_EQ(ev.data.u64, 0x123456789);
	T_EQ(ev.events, EPOLLIN);
	T_EQ(read(F_TCP, buf, sizeof(buf)), 7);
	T_MEMEQ(buf, "request", 7);
	T_EQ(write(F_TCP, "reply", 5), 5);
	T_EQ(read(F_PEER, buf, sizeof(buf)), 5);
	T_EQ(epoll_wait(F_EPOLL, &ev, 1, 0), 0);
	T_EQ(read(F_EVENT, &val, sizeof(val)), 8);
	T_EQ(val, 5);
	T_EQ(read(F_TIMER, &val, sizeof(val)), 8);
	T_EQ(val, 1);
	T_EQ(pread(F_MEMFD, buf, sizeof(buf), 0), 5);
	T_MEMEQ(buf, "state", 5);
	T_EQ(fcntl(F_MEMFD, F_GET_SEALS), F_SEAL_SHRINK);
	fd_path(path, sizeof(path), "created");
	T_OK(open(path, O_CREAT | O_RDWR, 0600));
	T_EXPECT(read(F_INOTIFY, buf, sizeof(buf)) >= (int)sizeof(struct inotify_event));
	kill(getpid(), SIGUSR1);
	T_EQ(read(F_SIGNAL, &(struct signalfd_siginfo){ 0 }, sizeof(struct signalfd_siginfo)),
	     sizeof(struct signalfd_siginfo));
	expect_locked();
	return 0;
}

static void *crash_thread(void *arg)
{
	(void)arg;
	t_crash();
}

T(files)
{
	for (int threads = 0; threads < 2; threads++) {
		T_CHILD {
			pthread_t t;

			open_files();
			expect_locked();
			t_word[0] = count_fds();
			t_register("files", NULL);
			if (threads && !pthread_create(&t, NULL, crash_thread, NULL))
				pthread_join(t, NULL);
			t_crash();
		}
		T_EXPECT(!system("rm -rf /tmp/zlr-test-*/*"));
	}
}

/* Closing on exec is done by the next ordinary execve(2), not forgotten. */
ROLE(cloexec_gone)
{
	T_EQ(fcntl(F_KEEP, F_GETFD), -1);
	T_EQ(fcntl(F_FAR, F_GETFD), 0);
	T_EQ(t_generation(), 0);
	return 0;
}

ROLE(cloexec_exec)
{
	T_EQ(t_generation(), 2);
	T_EQ(fcntl(F_KEEP, F_GETFD), FD_CLOEXEC);
	execl(t_self, "prog", "@cloexec_gone", NULL);
	return 9;
}

T(cloexec_works_later)
{
	T_CHILD {
		put_at(open("/dev/null", O_RDONLY), F_KEEP, true);
		put_at(open("/dev/null", O_RDONLY), F_FAR, false);
		t_register("cloexec_exec", NULL);
		t_crash();
	}
}

/* ---- System V semaphores and memory, robust futexes ---- */

static void semaphore(int id, int op, int flags)
{
	struct sembuf sop = { .sem_op = op, .sem_flg = SEM_UNDO | flags };

	T_OK(semop(id, &sop, 1));
}

ROLE(still_holds)
{
	struct shmid_ds ds;

	T_EQ(t_generation(), 2);
	T_EQ(semctl(t_word[0], 0, GETVAL), 0);
	T_OK(shmctl(t_word[1], IPC_STAT, &ds));
	T_EQ(ds.shm_nattch, 0);
	return 0;
}

T(semaphores_and_memory)
{
	t_word[0] = T_OK(semget(IPC_PRIVATE, 1, 0600));
	t_word[1] = T_OK(shmget(IPC_PRIVATE, 4096, 0600));
	T_OK(semctl(t_word[0], 0, SETVAL, 1));
	T_CHILD {
		T_ASSERT(shmat(t_word[1], NULL, 0) != (void *)-1);
		semaphore(t_word[0], -1, 0);
		t_register("still_holds", NULL);
		t_crash();
	}
	/* Undone when the process ends for good. */
	T_EQ(semctl(t_word[0], 0, GETVAL), 1);
	semctl(t_word[0], 0, IPC_RMID);
	shmctl(t_word[1], IPC_RMID, NULL);
}

ROLE(robust)
{
	pthread_mutex_t *mutex = mmap(NULL, t_page(), PROT_READ | PROT_WRITE, MAP_SHARED, F_MEMFD, 0);

	T_EQ(t_generation(), 2);
	T_ASSERT(mutex != MAP_FAILED);
	T_EQ(pthread_mutex_lock(mutex), EOWNERDEAD);
	T_EQ(pthread_mutex_consistent(mutex), 0);
	T_EQ(pthread_mutex_unlock(mutex), 0);
	return 0;
}

T(robust_futex)
{
	T_CHILD {
		pthread_mutexattr_t attr;
		pthread_mutex_t *mutex;

		put_at(memfd_create("mutex", 0), F_MEMFD, true);
		T_OK(ftruncate(F_MEMFD, t_page()));
		mutex = mmap(NULL, t_page(), PROT_READ | PROT_WRITE, MAP_SHARED, F_MEMFD, 0);
		T_ASSERT(mutex != MAP_FAILED);
		pthread_mutexattr_init(&attr);
		pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
		pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
		T_EQ(pthread_mutex_init(mutex, &attr), 0);
		T_EQ(pthread_mutex_lock(mutex), 0);
		t_register("robust", NULL);
		t_crash();
	}
}

/* ---- session, terminal, children ---- */

ROLE(terminal)
{
	T_EQ(t_generation(), 2);
	T_EQ(getsid(0), getpid());
	T_EQ(tcgetsid(F_FILE), getpid());
	T_EQ(tcgetpgrp(F_FILE), getpid());
	T_OK(open("/dev/tty", O_RDWR));
	/* The child of the old generation is still ours. */
	T_OK(kill(t_word[0], SIGTERM));
	T_EQ(waitpid(t_word[0], (int[1]){ 0 }, 0), t_word[0]);
	return 0;
}

T(session_terminal_children)
{
	T_CHILD {
		int m = T_OK(posix_openpt(O_RDWR | O_NOCTTY));
		pid_t child;

		T_OK(grantpt(m));
		T_OK(unlockpt(m));
		T_OK(setsid());
		put_at(open(ptsname(m), O_RDWR | O_CLOEXEC), F_FILE, true);
		T_OK(tcgetpgrp(F_FILE));
		child = t_fork();
		if (!child)
			t_sleep_ms(1000000);
		t_word[0] = child;
		t_register("terminal", NULL);
		t_crash();
	}
}

/* ---- arguments ---- */

ROLE(arguments)
{
	T_EQ(argc, 4);
	T_STREQ(argv[0], "");
	T_EQ(strlen(argv[1]), 60000);
	T_STREQ(argv[2], "with space\n");
	T_EQ(strlen(argv[3]), 60000);
	T_EXPECT(!argv[4]);
	T_STREQ(environ[0], "ONE=1");
	T_STREQ(environ[1], "no equals sign");
	T_EXPECT(!environ[2]);
	return 0;
}

ROLE(no_environment)
{
	T_EXPECT(!environ[0]);
	T_EQ(argc, 0);
	return 0;
}

T(arguments)
{
	char *big = malloc(60001);

	memset(big, 'x', 60000);
	big[60000] = 0;
	T_CHILD {
		T_EQ(x_reregist(t_self, (char *[]){ "any name", "@arguments", "", big, "with space\n", big, NULL },
				(char *[]){ "ONE=1", "no equals sign", NULL }, 1), 0);
		/* They were copied. */
		big[0] = 0;
		t_crash();
	}
	T_CHILD {
		T_EQ(x_reregist(t_self, (char *[]){ "", "@no_environment", NULL }, NULL, 1), 0);
		t_crash();
	}
}
