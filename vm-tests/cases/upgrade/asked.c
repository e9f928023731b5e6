// SPDX-License-Identifier: GPL-2.0-or-later
/* RESTARTCTL_RESTART itself: who may, what the process is doing, what becomes of it, and of one that cannot start. */
#include "../policy/pol.h"

#include <elf.h>
#include <pthread.h>
#include <sys/ptrace.h>
#include <sys/time.h>

#include "../lib/seccomp.h"

enum {
	W_GEN,		/* the generation that runs, once it has noted the rest */
	W_STOP,		/* end */
	W_FLAGS, W_SIGNO, W_CODE, W_TID, W_SUSPECT, W_RESTARTS, W_MASK, W_PATH, W_ENV, W_OTHER,
	W_CRASH,	/* generation that is to fault */
	W_TICKS, W_READY,
};

static int pidfd_of(pid_t pid)
{
	return T_OK(syscall(SYS_pidfd_open, pid, 0));
}

static struct restart_request last;

/* Asks for a restart; path NULL: of the registered program. */
static int ask(pid_t pid, const char *path, char *const argv[], unsigned int trial_ms)
{
	int fd = pidfd_of(pid), ret, err;

	last = (struct restart_request){ .pidfd = fd, .path = (uintptr_t)path, .argv = (uintptr_t)argv, .trial_ms = trial_ms };
	do {
		ret = syscall(NR_restartctl, RESTARTCTL_RESTART, &last, sizeof(last), 0);
		err = errno;
		if (ret && err == EAGAIN && !last.error)
			t_sleep_ms(20);
	} while (ret && err == EAGAIN && !last.error);
	close(fd);
	errno = err;
	return ret;
}

static void on_alarm(void)
{
	t_handle(SIGALRM, t_on_signal, 0);
	setitimer(ITIMER_REAL, &(struct itimerval){ .it_value = { 0, 300000 }, .it_interval = { 0, 100000 } }, NULL);
}

static void off_alarm(void)
{
	setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
}

static void wait_gen(unsigned int generation)
{
	while (t_word[W_GEN] < generation)
		t_sleep_ms(5);
}

static void note(const char *what)
{
	struct reg_info info = reg_info();
	sigset_t mask;
	char path[PATH_MAX] = "";

	sigprocmask(SIG_SETMASK, NULL, &mask);
	t_word[W_FLAGS] = info.flags;
	t_word[W_SIGNO] = info.signo;
	t_word[W_CODE] = info.code;
	t_word[W_TID] = info.fault_tid;
	t_word[W_SUSPECT] = info.suspect_fd;
	t_word[W_RESTARTS] = info.restarts;
	t_word[W_MASK] = sigismember(&mask, SIGUSR2);
	x_regpath(path, sizeof(path));
	t_word[W_PATH] = strstr(path, "/other") != NULL;
	t_word[W_ENV] = getenv("KEPT") != NULL;
	t_word[W_OTHER] = strstr(t_self, "/other") != NULL;
	if (t_word[W_CRASH] == info.generation) {
		if (!strcmp(what, "exit"))
			exit(3);
		if (!strcmp(what, "late"))
			t_sleep_ms(300);
		t_crash();
	}
	t_word[W_GEN] = info.generation;
}

/* What a service does in each of its generations. */
ROLE(runs)
{
	note(argc ? argv[0] : "");
	while (!t_word[W_STOP]) {
		t_word[W_TICKS]++;
		t_sleep_ms(5);
	}
	return 0;
}

static pid_t service(void (*first)(void *), void *arg)
{
	pid_t pid = t_fork();
	sigset_t mask;

	if (pid) {
		wait_gen(1);
		return pid;
	}
	setenv("KEPT", "1", 1);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR2);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	t_register("runs", NULL);
	t_word[W_GEN] = 1;
	if (first)
		first(arg);
	while (!t_word[W_STOP])
		t_sleep_ms(5);
	_exit(0);
}

static void stop(pid_t pid)
{
	t_word[W_STOP] = 1;
	T_EXITED(t_wait(pid), 0);
	t_word[W_STOP] = 0;
	t_word[W_GEN] = 0;
	t_word[W_CRASH] = 0;
}

static char *runs[] = { "other", "@runs", NULL };
static char *runs_exit[] = { "other", "@runs", "exit", NULL };
static char *runs_late[] = { "other", "@runs", "late", NULL };

/* A copy of this program, for an upgrade. */
static char *other(char *buf)
{
	t_copy(t_self, t_path(buf, "other"), 0755);
	return buf;
}

/* ---- arguments ---- */

static long ctl(const void *arg, size_t size, unsigned int flags)
{
	return syscall(NR_restartctl, RESTARTCTL_RESTART, arg, size, flags);
}

T(arguments)
{
	pid_t pid = service(NULL, NULL), dead;
	int fd = pidfd_of(pid), gone;
	char *none[] = { NULL }, path[PATH_MAX + 10];
	struct restart_request good = { .pidfd = fd }, r;
	struct { struct restart_request r; char more[64]; } big = { .r = good };

	T_ERR(ctl(&good, sizeof(good), 1), EINVAL);
	T_ERR(ctl(&good, sizeof(good) - 1, 0), EINVAL);
	T_ERR(ctl(&good, 0, 0), EINVAL);
	T_ERR(ctl(&good, t_page() + 1, 0), E2BIG);
	big.more[60] = 1;
	T_ERR(ctl(&big, sizeof(big), 0), E2BIG);
	T_ERR(ctl(t_none(), sizeof(good), 0), EFAULT);
	T_ERR(ctl(NULL, sizeof(good), 0), EFAULT);

#define BAD(err, ...) do { \
	r = (struct restart_request){ __VA_ARGS__ }; \
	T_ERR(ctl(&r, sizeof(r), 0), err); \
	T_EQ(r.error, 0); \
	T_EQ(r.generation, 0); \
} while (0)
	BAD(EINVAL, .pidfd = fd, .flags = 1);
	BAD(EINVAL, .pidfd = fd, .path = (uintptr_t)"/bin/true");
	BAD(EINVAL, .pidfd = fd, .argv = (uintptr_t)runs);
	BAD(EINVAL, .pidfd = fd, .path = (uintptr_t)"/bin/true", .argv = (uintptr_t)none);
	BAD(EINVAL, .pidfd = fd, .path = (uintptr_t)"bin/true", .argv = (uintptr_t)runs);
	BAD(EINVAL, .pidfd = fd, .trial_ms = 1);
	BAD(EINVAL, .pidfd = fd, .path = (uintptr_t)"/bin/true", .argv = (uintptr_t)runs, .trial_ms = RESTART_TRIAL_MAX_MS + 1);
	BAD(EFAULT, .pidfd = fd, .path = (uintptr_t)t_none(), .argv = (uintptr_t)runs);
	BAD(EFAULT, .pidfd = fd, .path = (uintptr_t)"/bin/true", .argv = (uintptr_t)t_none());
	BAD(EFAULT, .pidfd = fd, .path = (uintptr_t)"/bin/true", .argv = (uintptr_t)((char *[]){ t_none(), NULL }));
	memset(path, '/', sizeof(path));
	path[sizeof(path) - 1] = 0;
	BAD(ENAMETOOLONG, .pidfd = fd, .path = (uintptr_t)path, .argv = (uintptr_t)runs);
	BAD(EBADF, .pidfd = -1);
	BAD(EBADF, .pidfd = 0);
	BAD(ENOENT, .pidfd = pidfd_of(getpid()));
	dead = t_fork();
	if (!dead)
		_exit(0);
	gone = pidfd_of(dead);
	t_wait(dead);
	BAD(ESRCH, .pidfd = gone);
	T_EQ(t_word[W_GEN], 1);

	/* A zero that this kernel does not know is fine. */
	big.more[60] = 0;
	T_EQ(ctl(&big, sizeof(big), 0), 0);
	T_EQ(big.r.generation, 2);
	wait_gen(2);
	stop(pid);
	T_EQ(x_unregister(), -1);
}

/* ---- the restart ---- */

T(same_program)
{
	pid_t pid = service(NULL, NULL);
	int log = log_open(), fd;
	const char *line;

	T_EQ(proc_num(pid, "left"), 1);
	for (unsigned int i = 2; i < 5; i++) {
		T_EQ(ask(pid, NULL, NULL, 0), 0);
		T_EQ(last.error, 0);
		T_EQ(last.generation, i);
		wait_gen(i);
		T_EQ(t_word[W_FLAGS], REG_ASKED);
		T_EQ(t_word[W_SIGNO], 0);
		T_EQ(t_word[W_CODE], 0);
		T_EQ(t_word[W_TID], getpid());
		T_EQ((int)t_word[W_SUSPECT], -1);
		T_EQ(t_word[W_RESTARTS], 0);
		T_EQ(t_word[W_MASK], 1);
		T_STREQ(proc_line(pid, "cause"), "asked");
		T_EQ(proc_num(pid, "left"), 1);
		T_EQ(proc_num(pid, "restarts"), 0);
		line = log_next(log, pid);
		T_STREQ(log_value(line, "cause"), "asked");
		T_STREQ(log_value(line, "outcome"), "restarted");
		T_EQ(atoi(log_value(line, "generation")), i);
		T_EQ(atoi(log_value(line, "tid")), getpid());
	}
	/* The one fault that is allowed is still there; at the limit, a restart on purpose is. */
	T_OK(kill(pid, SIGSEGV));
	wait_gen(5);
	T_EQ(t_word[W_FLAGS], 0);
	T_EQ(t_word[W_RESTARTS], 1);
	T_EQ(proc_num(pid, "left"), 0);
	T_EQ(ask(pid, NULL, NULL, 0), 0);
	wait_gen(6);
	T_EQ(t_word[W_RESTARTS], 1);
	T_OK(kill(pid, SIGSEGV));
	T_KILLED(t_wait(pid), SIGSEGV);
	fd = pidfd_of(getpid());
	close(fd);
	close(log);
}

/* In user mode, asleep in one way or another, with all signals blocked, or with a handler of each. */
static int pipefd[2];

static void spins(void *arg T_UNUSED)
{
	for (;;)
		__asm__ volatile("");
}

static void reads(void *arg T_UNUSED)
{
	char c;

	for (;;)
		(void)!read(pipefd[0], &c, 1);
}

static void polls(void *arg T_UNUSED)
{
	struct pollfd p = { .fd = pipefd[0], .events = POLLIN };

	for (;;)
		poll(&p, 1, -1);
}

static void suspends(void *arg T_UNUSED)
{
	sigset_t all;

	sigfillset(&all);
	for (;;)
		sigsuspend(&all);
}

static void blocks(void *arg T_UNUSED)
{
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	for (;;)
		pause();
}

static void *spinning_thread(void *arg)
{
	spins(arg);
	return NULL;
}

static void *reading_thread(void *arg)
{
	reads(arg);
	return NULL;
}

static void threads(void *arg T_UNUSED)
{
	pthread_t t;

	for (int i = 0; i < 3; i++) {
		T_EQ(pthread_create(&t, NULL, spinning_thread, NULL), 0);
		T_EQ(pthread_create(&t, NULL, reading_thread, NULL), 0);
	}
	reads(NULL);
}

static void leaderless(void *arg T_UNUSED)
{
	pthread_t t;

	T_EQ(pthread_create(&t, NULL, reading_thread, NULL), 0);
	pthread_exit(NULL);
}

static void vforks(void *arg T_UNUSED)
{
	for (;;) {
		pid_t pid = vfork();

		if (!pid) {
			struct timespec ts = { 0, 300000000 };

			nanosleep(&ts, NULL);
			_exit(0);
		}
		waitpid(pid, NULL, 0);
	}
}

/* Another thread has the role of a user for a while: the first one acts for the process. */
static void *in_a_role(void *arg T_UNUSED)
{
	T_OK(syscall(SYS_setresuid, -1, T_NOBODY, -1));
	for (;;)
		pause();
}

static void served_in_roles(void *arg T_UNUSED)
{
	pthread_t t;

	T_EQ(pthread_create(&t, NULL, in_a_role, NULL), 0);
	reads(NULL);
}

T_LIMIT(whatever_it_does, 60)
{
	static const struct {
		const char *name;
		void (*does)(void *arg);
	} what[] = {
		{ "spins", spins }, { "reads", reads }, { "polls", polls }, { "suspends", suspends }, { "blocks", blocks },
		{ "threads", threads }, { "no first thread", leaderless }, { "vforks", vforks }, { "roles", served_in_roles },
	};

	T_OK(pipe(pipefd));
	for (size_t i = 0; i < ARRAY_LEN(what); i++) {
		pid_t pid = service(what[i].does, NULL);

		t_context = what[i].name;
		t_sleep_ms(50);
		T_EQ(ask(pid, NULL, NULL, 0), 0);
		T_EQ(last.generation, 2);
		wait_gen(2);
		T_EQ(t_word[W_MASK], 1);
		T_EQ(ask(pid, NULL, NULL, 0), 0);
		wait_gen(3);
		stop(pid);
	}
}

T(stopped)
{
	pid_t pid = service(NULL, NULL);

	T_OK(kill(pid, SIGSTOP));
	T_OK(waitpid(pid, NULL, WUNTRACED));
	on_alarm();
	T_ERR(ask(pid, NULL, NULL, 0), EINTR);
	T_EQ(last.error, 0);
	T_EQ(last.generation, 0);
	off_alarm();
	/* It was withdrawn, for good. */
	T_OK(kill(pid, SIGCONT));
	t_sleep_ms(200);
	T_EQ(t_word[W_GEN], 1);
	stop(pid);
}

T(asked_and_then_continued)
{
	pid_t pid = service(NULL, NULL), child;

	T_OK(kill(pid, SIGSTOP));
	T_OK(waitpid(pid, NULL, WUNTRACED));
	child = t_fork();
	if (!child) {
		T_EQ(ask(pid, NULL, NULL, 0), 0);
		T_EQ(last.generation, 2);
		_exit(0);
	}
	t_sleep_ms(300);
	T_EQ(t_word[W_GEN], 1);
	/* One at a time */
	T_ERR(ask(pid, NULL, NULL, 0), EBUSY);
	T_OK(kill(pid, SIGCONT));
	T_EXITED(t_wait(child), 0);
	wait_gen(2);
	/* Who asks may be killed: nothing is left behind. */
	T_OK(kill(pid, SIGSTOP));
	T_OK(waitpid(pid, NULL, WUNTRACED));
	child = t_fork();
	if (!child) {
		ask(pid, NULL, NULL, 0);
		_exit(0);
	}
	t_sleep_ms(200);
	t_reap(child);
	T_OK(kill(pid, SIGCONT));
	t_sleep_ms(200);
	T_EQ(t_word[W_GEN], 2);
	T_EQ(ask(pid, NULL, NULL, 0), 0);
	wait_gen(3);
	/* And so may the process. */
	T_OK(kill(pid, SIGSTOP));
	T_OK(waitpid(pid, NULL, WUNTRACED));
	child = t_fork();
	if (!child) {
		T_ERR(ask(pid, NULL, NULL, 0), ESRCH);
		T_EQ(last.error, 0);
		_exit(0);
	}
	t_sleep_ms(200);
	T_OK(kill(pid, SIGKILL));
	T_EXITED(t_wait(child), 0);
	T_KILLED(t_wait(pid), SIGKILL);
}

T(traced)
{
	pid_t pid = service(NULL, NULL), asker;
	int status;

	T_OK(ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXEC));
	T_OK(ptrace(PTRACE_INTERRUPT, pid, 0, 0));
	T_EQ(waitpid(pid, &status, 0), pid);
	on_alarm();
	T_ERR(ask(pid, NULL, NULL, 0), EINTR);
	off_alarm();
	T_OK(ptrace(PTRACE_CONT, pid, 0, 0));
	t_sleep_ms(100);
	T_EQ(t_word[W_GEN], 1);
	asker = t_fork();
	if (!asker) {
		T_EQ(ask(pid, NULL, NULL, 0), 0);
		_exit(0);
	}
	T_EQ(waitpid(pid, &status, 0), pid);
	T_EQ(status >> 8, SIGTRAP | PTRACE_EVENT_EXEC << 8);
	T_OK(ptrace(PTRACE_DETACH, pid, 0, 0));
	T_EXITED(t_wait(asker), 0);
	wait_gen(2);
	stop(pid);
}

/* A pending signal that has a handler comes first, with the old program's handler. */
static void count(int sig T_UNUSED)
{
	t_word[W_TICKS]++;
}

static void handles(void *arg T_UNUSED)
{
	t_handle(SIGUSR1, count, 0);
	for (;;)
		pause();
}

T(signals_that_are_pending)
{
	pid_t pid = service(handles, NULL);

	T_OK(kill(pid, SIGSTOP));
	T_OK(waitpid(pid, NULL, WUNTRACED));
	T_OK(kill(pid, SIGUSR1));
	T_OK(kill(pid, SIGUSR2));	/* blocked: stays so, and pending */
	if (!t_fork()) {
		T_EQ(ask(pid, NULL, NULL, 0), 0);
		_exit(0);
	}
	t_sleep_ms(200);
	T_EQ(t_word[W_TICKS], 0);
	T_OK(kill(pid, SIGCONT));
	T_OK(wait(NULL));
	wait_gen(2);
	T_RANGE(t_word[W_TICKS], 1, 1000000);
	stop(pid);
}

/* ---- itself ---- */

ROLE(itself_again)
{
	note("");
	return 0;
}

static void *asks(void *arg T_UNUSED)
{
	ask(getpid(), NULL, NULL, 0);
	t_check(false, __FILE__, __LINE__, "goes on after its own restart");
	return NULL;
}

T(itself)
{
	pthread_t t;

	T_CHILD {
		t_register("itself_again", NULL);
		T_ERR(ask(getpid(), "/nonexistent", runs, 0), ENOENT);
		T_EQ(last.error, ENOENT);
		ask(getpid(), NULL, NULL, 0);
		t_check(false, __FILE__, __LINE__, "goes on after its own restart");
	}
	T_EQ(t_word[W_GEN], 2);
	T_EQ(t_word[W_FLAGS], REG_ASKED);
	t_word[W_GEN] = 0;
	T_CHILD {
		t_register("itself_again", NULL);
		T_EQ(pthread_create(&t, NULL, asks, NULL), 0);
		for (;;)
			pause();
	}
	T_EQ(t_word[W_GEN], 2);
}

/* ---- what cannot be executed ---- */

T_LIMIT(kept, 40)
{
	char path[PATH_MAX], *long_arg = malloc(100 << 10), *many[] = { "x", long_arg, NULL };
	pid_t pid = service(handles, NULL);
	int log = log_open(), writer;
	uint64_t ticks;

#define KEPT(err, name, argv) do { \
	t_context = #err; \
	T_ERR(ask(pid, name, argv, 1000), err); \
	T_EQ(last.error, err); \
	T_EQ(last.generation, 0); \
	T_EQ(proc_num(pid, "generation"), 1); \
	T_EQ(proc_num(pid, "trial_left_ns"), 0); \
	T_STREQ(log_value(log_next(log, pid), "outcome"), "kept"); \
} while (0)
	KEPT(ENOENT, "/nonexistent", runs);
	KEPT(EACCES, "/etc/passwd", runs);
	t_write_file(t_path(path, "garbage"), "garbage\1\2", 9, 0755);
	KEPT(ENOEXEC, path, runs);
	t_write_file(t_path(path, "empty"), "", 0, 0755);
	KEPT(ENOEXEC, path, runs);
	t_write_file(t_path(path, "script"), "#!/nonexistent\n", 15, 0755);
	KEPT(ENOENT, path, runs);
	other(path);
	writer = T_OK(open(path, O_WRONLY));
	KEPT(ETXTBSY, path, runs);
	close(writer);
	/* More than an image may have is no image. */
	memset(long_arg, 'a', 100 << 10);
	long_arg[(100 << 10) - 1] = 0;
	many[0] = long_arg;
	t_context = "E2BIG";
	T_ERR(ask(pid, path, many, 0), E2BIG);
	T_EQ(last.error, 0);
	t_context = NULL;

	/* The old one has its handlers, its mask, and its registration. */
	ticks = t_word[W_TICKS];
	T_OK(kill(pid, SIGUSR1));
	T_OK(kill(pid, SIGUSR2));
	while (t_word[W_TICKS] == ticks)
		t_sleep_ms(5);
	T_OK(kill(pid, SIGSEGV));
	wait_gen(2);
	T_EQ(t_word[W_FLAGS], 0);
	T_EQ(t_word[W_OTHER], 0);
	stop(pid);
	close(log);
}

/* Who is restarted on purpose is stable after its time; that something could not be executed meanwhile changes nothing. */
T(stable_all_the_same)
{
	pid_t pid = service(NULL, NULL);
	int log = log_open();
	const char *rec;

	T_OK(t_sysctl("stable_ms", 3000 * t_slow()));
	T_EQ(ask(pid, NULL, NULL, 0), 0);
	T_ERR(ask(pid, "/nonexistent", runs, 1000), ENOENT);
	T_STREQ(log_value(log_next(log, pid), "outcome"), "restarted");
	T_STREQ(log_value(log_next(log, pid), "outcome"), "kept");
	rec = log_next(log, pid);
	T_STREQ(log_value(rec, "outcome"), "stable");
	T_STREQ(log_value(rec, "cause"), "asked");
	T_STREQ(log_value(rec, "generation"), "2");
	T_OK(t_sysctl("stable_ms", 0));
	stop(pid);
	close(log);
}

/* ---- another program ---- */

T(other_program)
{
	char path[PATH_MAX];
	pid_t pid = service(NULL, NULL);

	T_EQ(ask(pid, other(path), runs, 0), 0);
	wait_gen(2);
	T_EQ(t_word[W_OTHER], 1);
	T_EQ(t_word[W_PATH], 1);
	T_EQ(t_word[W_ENV], 1);
	T_EQ(t_word[W_MASK], 1);
	T_STREQ(proc_line(pid, "argv"), "other @runs");
	T_STREQ(proc_line(pid, "path"), path);
	/* It is what a fault executes, and what an upgrade goes on from. */
	T_OK(kill(pid, SIGSEGV));
	wait_gen(3);
	T_EQ(t_word[W_OTHER], 1);
	for (unsigned int i = 4; i < 8; i++) {
		T_EQ(ask(pid, i % 2 ? path : t_self, runs, 0), 0);
		wait_gen(i);
		T_EQ(t_word[W_OTHER], i % 2);
		T_EQ(t_word[W_ENV], 1);
	}
	stop(pid);
}

T_LIMIT(trial, 40)
{
	static const struct {
		char **argv;
		int signo, code;
		unsigned int flags;
	} ways[] = { { runs, SIGSEGV, 1, 0 }, { runs_late, SIGSEGV, 1, 0 }, { runs_exit, 0, 3, REG_EXIT } };
	char path[PATH_MAX];
	int log = log_open();

	other(path);
	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		pid_t pid = service(NULL, NULL);

		/* Also at the limit */
		T_OK(kill(pid, SIGSEGV));
		wait_gen(2);
		log_next(log, pid);
		T_EQ(proc_num(pid, "left"), 0);
		t_word[W_CRASH] = 3;
		T_EQ(ask(pid, path, ways[i].argv, 10000), 0);
		T_EQ(last.generation, 3);
		wait_gen(4);
		T_EQ(t_word[W_FLAGS], ways[i].flags | REG_REVERTED);
		T_EQ(t_word[W_SIGNO], ways[i].signo);
		T_EQ(t_word[W_CODE], ways[i].code);
		T_EQ(t_word[W_OTHER], 0);
		T_EQ(t_word[W_PATH], 0);
		T_EQ(proc_num(pid, "reverted"), 1);
		T_EQ(proc_num(pid, "trial_left_ns"), 0);
		T_STREQ(log_value(log_next(log, pid), "cause"), "asked");
		T_STREQ(log_value(log_next(log, pid), "outcome"), "reverted");
		/* Once: the next one is as ever. */
		T_OK(kill(pid, SIGSEGV));
		T_KILLED(t_wait(pid), SIGSEGV);
		T_STREQ(log_value(log_next(log, pid), "outcome"), "limit");
		t_word[W_GEN] = t_word[W_CRASH] = 0;
	}
	close(log);
}

T(trial_is_over)
{
	char path[PATH_MAX];
	pid_t pid = service(NULL, NULL);

	T_EQ(ask(pid, other(path), runs, 300), 0);
	wait_gen(2);
	T_RANGE(proc_num(pid, "trial_left_ns"), 0, 300000000);
	t_sleep_ms(400);
	T_EQ(proc_num(pid, "trial_left_ns"), 0);
	T_OK(kill(pid, SIGSEGV));
	wait_gen(3);
	T_EQ(t_word[W_OTHER], 1);
	T_EQ(t_word[W_FLAGS], 0);
	stop(pid);
}

/* Two upgrades in one trial go back to the one that was no try; an end on purpose is one. */
T(trial_in_a_trial)
{
	char path[PATH_MAX];
	pid_t pid = service(NULL, NULL);

	T_EQ(ask(pid, other(path), runs, 60000), 0);
	wait_gen(2);
	T_EQ(ask(pid, path, runs, 60000), 0);
	wait_gen(3);
	/* A restart does not end the trial. */
	T_EQ(ask(pid, NULL, NULL, 0), 0);
	wait_gen(4);
	T_EQ(t_word[W_OTHER], 1);
	T_RANGE(proc_num(pid, "trial_left_ns"), 1, 60000000000);
	T_OK(kill(pid, SIGABRT));
	wait_gen(5);
	T_EQ(t_word[W_OTHER], 0);
	T_EQ(t_word[W_FLAGS], REG_REVERTED);
	T_EQ(ask(pid, path, runs, 60000), 0);
	wait_gen(6);
	stop(pid);

	/* The program before is gone: what is there is restarted by the policy. */
	pid = service(NULL, NULL);
	T_EQ(ask(pid, other(path), runs, 0), 0);
	wait_gen(2);
	T_EQ(ask(pid, t_self, runs, 60000), 0);
	wait_gen(3);
	T_OK(unlink(path));
	T_OK(kill(pid, SIGSEGV));
	wait_gen(4);
	T_EQ(t_word[W_FLAGS], 0);
	T_EQ(t_word[W_OTHER], 0);
	stop(pid);
}

/* A file cut short: its headers are good, and its data is found missing when the old image is gone. */
static void cut(const char *path)
{
	int fd = T_OK(open(path, O_RDWR | O_CLOEXEC));
	Elf64_Ehdr head;
	Elf64_Phdr seg;

	T_ASSERT(pread(fd, &head, sizeof(head), 0) == sizeof(head));
	for (int i = 0; i < head.e_phnum; i++) {
		T_ASSERT(pread(fd, &seg, sizeof(seg), head.e_phoff + i * sizeof(seg)) == sizeof(seg));
		if (seg.p_type == PT_LOAD && seg.p_flags & PF_W)
			T_OK(ftruncate(fd, seg.p_offset & -t_page()));
	}
	close(fd);
}

T(lost_and_back)
{
	char path[PATH_MAX];
	pid_t pid = service(handles, NULL);
	int log = log_open(), lost = 0;

	cut(other(path));
	lost = ask(pid, path, runs, 60000) ? errno : 0;
	T_EXPECT(lost == EFAULT || lost == EIO || lost == ENOMEM || !lost);
	t_note("a file cut short: %s", lost ? strerrorname_np(lost) : "executed");
	T_EQ(last.error, lost);
	wait_gen(lost ? 2 : 3);
	T_EQ(last.generation, 2);
	T_EQ(t_word[W_OTHER], 0);
	T_EXPECT(t_word[W_FLAGS] & REG_REVERTED);
	T_EQ(t_word[W_MASK], 1);
	T_STREQ(log_value(log_next(log, pid), "outcome"), lost ? "reverted" : "restarted");
	/* And this is a service as ever. */
	T_EQ(ask(pid, NULL, NULL, 0), 0);
	wait_gen(last.generation);
	T_OK(kill(pid, SIGSEGV));
	wait_gen(last.generation + 1);
	T_EQ(t_word[W_FLAGS], 0);
	stop(pid);
	close(log);
}

/* ---- who may ---- */

static void as_nobody(void *dumpable)
{
	t_drop_root();
	T_OK(prctl(PR_SET_DUMPABLE, dumpable != NULL, 0, 0, 0));
	t_word[W_READY] = 1;
	reads(NULL);
}

static pid_t service_of_nobody(bool dumpable)
{
	pid_t pid;

	t_word[W_READY] = 0;
	pid = service(as_nobody, dumpable ? "" : NULL);
	while (!t_word[W_READY])
		t_sleep_ms(5);
	return pid;
}

static void contained(void *arg T_UNUSED)
{
	t_contained_root();
	t_word[W_READY] = 1;
	reads(NULL);
}

T_LIMIT(who_may, 60)
{
	char path[PATH_MAX];
	pid_t roots = service(NULL, NULL), pid;
	int fd = pidfd_of(roots);

	T_OK(pipe(pipefd));
	T_OK(chmod(other(path), 0755));
	T_CHILD {
		t_drop_root();
		T_ERR(ask(roots, NULL, NULL, 0), EPERM);
		T_ERR(ask(roots, path, runs, 0), EPERM);
		T_EQ(last.error, 0);
		/* A descriptor that somebody passed on changes nothing. */
		T_ERR(ctl(&(struct restart_request){ .pidfd = fd }, sizeof(struct restart_request), 0), EPERM);
	}
	/* It is not told who is registered. */
	T_CHILD {
		t_drop_root();
		T_ERR(ask(1, NULL, NULL, 0), EPERM);
	}
	T_EQ(t_word[W_GEN], 1);
	stop(roots);

	/* His own service; another program, if he may look into it. */
	for (int dumpable = 0; dumpable < 2; dumpable++) {
		t_context = dumpable ? "dumpable" : "not dumpable";
		pid = service_of_nobody(dumpable);
		T_CHILD {
			t_drop_root();
			T_EQ(ask(pid, NULL, NULL, 0), 0);
			wait_gen(2);
		}
		T_EQ(t_word[W_CODE], T_NOBODY);
		T_CHILD {
			t_drop_root();
			if (dumpable) {
				T_EQ(ask(pid, path, runs, 0), 0);
				wait_gen(3);
				T_EQ(t_word[W_OTHER], 1);
			} else {
				T_ERR(ask(pid, path, runs, 0), EPERM);
				T_EQ(last.error, 0);
				T_EQ(t_word[W_GEN], 2);
			}
		}
		/* Root of a namespace of his own is nobody here, though the user is the same. */
		T_CHILD {
			t_contained_root();
			T_ERR(ask(pid, NULL, NULL, 0), EPERM);
			T_ERR(ask(pid, path, runs, 0), EPERM);
		}
		/* Who may execute nothing has nothing executed. */
		T_CHILD {
			answer_call(NATIVE, __NR_execve, SECCOMP_RET_ERRNO | EPERM);
			T_ERR(ask(pid, path, runs, 0), EPERM);
			T_EQ(last.error, 0);
		}
		stop(pid);
	}
	t_context = NULL;

	/* The other way: whose namespace it is may; the others of its user may not. */
	t_word[W_READY] = 0;
	pid = service(contained, NULL);
	while (!t_word[W_READY])
		t_sleep_ms(5);
	T_EQ(ask(pid, NULL, NULL, 0), 0);
	wait_gen(2);
	T_CHILD {
		t_contained_root();
		T_ERR(ask(pid, NULL, NULL, 0), EPERM);
	}
	stop(pid);
}

/* A descriptor for a process outside of one's PID namespace is none to ask by. */
T(from_a_pid_namespace)
{
	pid_t pid = service(NULL, NULL), inside;
	int fd = pidfd_of(pid);

	T_CHILD {
		T_OK(unshare(CLONE_NEWPID));
		inside = t_fork();
		if (!inside) {
			T_ERR(ctl(&(struct restart_request){ .pidfd = fd }, sizeof(struct restart_request), 0), EPERM);
			_exit(0);
		}
		T_EXITED(t_wait(inside), 0);
	}
	T_EQ(ctl(&(struct restart_request){ .pidfd = fd }, sizeof(struct restart_request), 0), 0);
	wait_gen(2);
	stop(pid);
}

/* One process after another, not as fast as one can ask. */
T(pace)
{
	pid_t pid = service(NULL, NULL);
	struct restart_request r = { .pidfd = pidfd_of(pid) };
	uint64_t start = t_now_ns();
	int soon = 0, done = 0;

	while (t_now_ns() - start < 1000000000ull) {
		if (!ctl(&r, sizeof(r), 0))
			done++;
		else if (errno == EAGAIN && !r.error)
			soon++;
		else
			T_EQ(errno, 0);
	}
	T_RANGE(done, 2, 11);
	T_RANGE(soon, 1, INT_MAX);
	T_EQ(t_sysctl("enabled", 0), 0);
	T_ERR(ctl(&r, sizeof(r), 0), EOPNOTSUPP);
	T_EQ(t_sysctl("enabled", 1), 0);
	stop(pid);
}

/* ---- what is read and written ---- */

/* Sends the stream over descriptor 3 from where the kernel says that it is, after what descriptor 4 says. */
static void stream(void)
{
	char buf[5000];
	struct io_log log;

	for (;;) {
		T_EQ(x_getiolog(3, &log), 0);
		if (log.written >= t_word[W_STOP] && t_word[W_STOP])
			_exit(0);
		t_fill(buf, sizeof(buf), log.written);
		if (x_lwrite(3, buf, 1 + log.written % sizeof(buf)) < 0)
			T_EQ(errno, EINTR);
	}
}

ROLE(streams)
{
	t_word[W_GEN] = t_generation();
	stream();
	return 0;
}

T_LIMIT(counts_are_exact, 60)
{
	static char buf[1 << 16];
	int sv[2], done = 0;
	uint64_t got = 0;
	pid_t pid, asker;
	ssize_t n;

	T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sv));
	pid = t_fork();
	if (!pid) {
		T_OK(dup2(sv[0], 3));
		if (sv[1] != 3)
			close(sv[1]);
		t_register("streams", NULL);
		t_word[W_GEN] = 1;
		stream();
	}
	close(sv[0]);
	wait_gen(1);
	asker = t_fork();
	if (!asker) {
		for (int i = 0; i < t_rounds(30); i++) {
			T_EQ(ask(pid, NULL, NULL, 0), 0);
			t_sleep_ms(i % 7);
		}
		t_word[W_STOP] = 1;
		_exit(0);
	}
	while ((n = T_OK(read(sv[1], buf, sizeof(buf)))) > 0) {
		if (t_match(buf, n, got) != (size_t)n) {
			t_check(false, __FILE__, __LINE__, "the stream differs after byte %llu", (unsigned long long)got);
			break;
		}
		got += n;
		done++;
	}
	T_EXITED(t_wait(asker), 0);
	T_EXITED(t_wait(pid), 0);
	T_EQ(t_word[W_GEN], t_rounds(30) + 1);
	t_note("%llu bytes in %d reads", (unsigned long long)got, done);
}

/* What is held is unread again, and names no suspect. */
ROLE(holds)
{
	struct reg_info info = reg_info();
	char buf[16];

	T_IOLOG(3, 10, 4, 6, 0);
	T_EQ(info.suspect_fd, -1);
	T_EQ(x_hread(3, buf, 6, 6), 6);
	T_MEMEQ(buf, "456789", 6);
	t_word[W_GEN] = 2;
	return 0;
}

T(held_is_unread)
{
	int sv[2];
	char buf[16];
	pid_t pid;

	T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sv));
	pid = t_fork();
	if (!pid) {
		T_OK(dup2(sv[0], 3));
		T_OK(write(sv[1], "0123456789", 10));
		T_EQ(x_hread(3, buf, 10, 4), 10);
		t_register("holds", NULL);
		t_word[W_GEN] = 1;
		for (;;)
			pause();
	}
	wait_gen(1);
	T_EQ(ask(pid, NULL, NULL, 0), 0);
	T_EXITED(t_wait(pid), 0);
	T_EQ(t_word[W_GEN], 2);
}
