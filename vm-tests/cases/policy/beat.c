// SPDX-License-Identifier: GPL-2.0-or-later
/* Heartbeats: who is late, who is not, and what a hang cannot prevent. */
#include "pol.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/ptrace.h>

enum { W_RUNS, W_TIME, W_STOP, W_BEATS };

/* A generation that a hang has started, soon after the deadline. */
ROLE(after_hang)
{
	struct reg_info info = reg_info();

	T_EQ(info.generation, 2);
	T_EQ(info.flags, REG_HANG);
	T_EQ(info.signo, SIGABRT);
	T_EQ(info.code, SI_KERNEL);
	T_STREQ(proc_line(getpid(), "cause"), "hang");
	/* Not early; and not much late, which depends on the machine. */
	T_RANGE(info.fault_time_ns - t_word[W_TIME], BEAT_MS * MS, BEAT_MS * 2 * MS + 2000 * t_slow() * MS);
	t_word[W_RUNS]++;
	return 0;
}

static void promise(const char *role)
{
	t_register(role, NULL);
	t_word[W_TIME] = t_now_ns();
	policy(0, 0, 0, BEAT_MS * MS);
}

/* ---- ways to hang ---- */

static void spin(void)
{
	for (volatile unsigned long i = 0;; i++)
		;
}

static void in_pause(void)
{
	pause();
}

static void in_read(void)
{
	char c;
	int p[2];

	T_OK(pipe(p));
	read(p[0], &c, 1);
}

static void in_hread(void)
{
	char c;
	int p[2];

	T_OK(pipe(p));
	hread(p[0], &c, 1, 0);
}

static void in_sleep(void)
{
	struct timespec ts = { .tv_sec = 1000 };

	while (nanosleep(&ts, &ts))
		;
}

static void in_futex(void)
{
	uint32_t word = 0;

	for (;;)
		syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0);
}

static void in_epoll(void)
{
	struct epoll_event ev;
	int fd = T_OK(epoll_create1(0));

	epoll_wait(fd, &ev, 1, -1);
}

static void in_wait(void)
{
	pid_t pid = t_fork();

	if (!pid)
		in_pause();
	waitpid(pid, NULL, 0);
}

static void in_syscalls(void)
{
	for (;;)
		syscall(SYS_getppid);
}

static void blocked(void)
{
	sigset_t all;

	sigfillset(&all);
	for (;;) {
		sigprocmask(SIG_SETMASK, &all, NULL);
		sigdelset(&all, SIGABRT);
		sigprocmask(SIG_SETMASK, &all, NULL);
		sigaddset(&all, SIGABRT);
	}
}

static void ignored(void)
{
	signal(SIGABRT, SIG_IGN);
	in_sleep();
}

static void handled(void)
{
	t_handle(SIGABRT, t_on_signal, 0);
	in_sleep();
}

static void in_sigwait(void)
{
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	for (;;)
		sigwaitinfo(&all, NULL);
}

static void in_handler(int sig)
{
	(void)sig;
	spin();
}

static void hang_in_handler(void)
{
	struct sigaction sa = { .sa_handler = in_handler };

	sigfillset(&sa.sa_mask);
	T_OK(sigaction(SIGUSR1, &sa, NULL));
	raise(SIGUSR1);
}

static void *hang_thread(void *fn)
{
	((void (*)(void))fn)();
	return NULL;
}

static void leader_gone(void)
{
	pthread_t thread;

	T_EQ(pthread_create(&thread, NULL, hang_thread, spin), 0);
	pthread_exit(NULL);
}

static void many_threads(void)
{
	pthread_t thread;

	for (int i = 0; i < 8; i++)
		T_EQ(pthread_create(&thread, NULL, hang_thread, i & 1 ? in_sleep : in_pause), 0);
	in_futex();
}

/* The leader cannot be woken; the others can. */
static void vfork_waits(void)
{
	pthread_t thread;

	T_EQ(pthread_create(&thread, NULL, hang_thread, in_sleep), 0);
	if (!vfork()) {
		/* The parent is where no signal but SIGKILL reaches it. */
		while (t_word[W_RUNS] == 0 && getppid() != 1)
			usleep(10000);
		_exit(0);
	}
}

ROLE(hangs_after_exec)
{
	spin();
	return 1;
}

/* The threads that an execve(2) kills do not take the heartbeat with them. */
T(exec_with_threads)
{
	t_word[W_RUNS] = 0;
	T_CHILD {
		pthread_t thread;

		T_OK(syscall(NR_reregist, t_self, (char *[]){ t_self, "@after_hang", NULL }, environ, 0, REREGIST_EXEC));
		for (int i = 0; i < 4; i++)
			T_EQ(pthread_create(&thread, NULL, hang_thread, in_sleep), 0);
		policy(0, 0, 0, BEAT_MS * MS);
		t_word[W_TIME] = t_now_ns();
		execl(t_self, "prog", "@hangs_after_exec", NULL);
	}
	T_EQ(t_word[W_RUNS], 1);
}

T_LIMIT(hangs, 120)
{
	static const struct {
		const char *name;
		void (*fn)(void);
	} ways[] = {
#define WAY(fn) { #fn, fn }
		WAY(spin), WAY(in_pause), WAY(in_read), WAY(in_hread), WAY(in_sleep), WAY(in_futex), WAY(in_epoll),
		WAY(in_wait), WAY(in_syscalls), WAY(blocked), WAY(ignored), WAY(handled), WAY(in_sigwait),
		WAY(hang_in_handler), WAY(leader_gone), WAY(many_threads),
	};

	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		t_context = ways[i].name;
		t_word[W_RUNS] = 0;
		T_CHILD {
			promise("after_hang");
			ways[i].fn();
			for (;;)
				pause();
		}
		T_EQ(t_word[W_RUNS], 1);
	}
}

ROLE(after_vfork)
{
	T_EQ(reg_info().flags, REG_HANG);
	t_word[W_RUNS]++;
	return 0;
}

T(hang_with_a_thread_that_waits_for_vfork)
{
	T_CHILD {
		pid_t guard = t_fork();

		/* exec has to wait for the thread, so let its child end a little after the deadline */
		if (!guard) {
			t_sleep_ms(BEAT_MS * 3);
			t_word[W_RUNS] |= 1ull << 32;
			_exit(0);
		}
		promise("after_vfork");
		vfork_waits();
		for (;;)
			pause();
	}
	T_EQ(t_word[W_RUNS] & 0xffffffff, 1);
}

/* ---- who beats is not late ---- */

static void beat_for(unsigned int ms, unsigned int every_ms)
{
	uint64_t end = t_now_ns() + ms * MS;

	while (t_now_ns() < end) {
		T_EQ(x_heartbeat(), 0);
		t_sleep_ms(every_ms);
	}
}

static void *beating_thread(void *arg)
{
	(void)arg;
	beat_for(BEAT_MS * 5, BEAT_MS / 20);
	_exit(0);
}

T_LIMIT(beats, 60)
{
	pthread_t thread;

	T_CHILD {
		promise("must_not_run");
		beat_for(BEAT_MS * 5, BEAT_MS / 20);
		T_EQ(t_generation(), 1);
		T_RANGE(proc_num(getpid(), "heartbeat_left_ns"), 1, (long long)(BEAT_MS * MS));
		T_EQ(proc_num(getpid(), "heartbeat_ns"), (long long)(BEAT_MS * MS));
	}
	/* One thread beats for all. */
	T_CHILD {
		promise("must_not_run");
		T_EQ(pthread_create(&thread, NULL, beating_thread, NULL), 0);
		in_pause();
	}
	/* Who beats is not interrupted by the timer that looks. A long deadline: a busy machine oversleeps. */
	T_CHILD {
		struct timespec ts = { .tv_sec = BEAT_MS / 2 / 1000, .tv_nsec = BEAT_MS / 2 % 1000 * MS };

		promise("must_not_run");
		policy(0, 0, 0, 5 * BEAT_MS * MS);
		for (int i = 0; i < 6; i++) {
			T_EQ(nanosleep(&ts, NULL) ? errno : 0, 0);
			T_EQ(x_heartbeat(), 0);
		}
	}
}

T_LIMIT(no_deadline_any_more, 60)
{
	T_CHILD {
		promise("must_not_run");
		policy(0, 0, 0, 0);
		T_EQ(proc_num(getpid(), "heartbeat_left_ns"), 0);
		t_sleep_ms(BEAT_MS * 3);
		T_EQ(t_generation(), 1);
	}
	T_CHILD {
		promise("must_not_run");
		T_EQ(x_unregister(), 0);
		t_sleep_ms(BEAT_MS * 3);
		/* A new registration promises nothing. */
		t_register("must_not_run", NULL);
		t_sleep_ms(BEAT_MS * 3);
	}
	/* A longer one starts anew. */
	T_CHILD {
		promise("must_not_run");
		policy(0, 0, 0, BEAT_MS * 20 * MS);
		t_sleep_ms(BEAT_MS * 3);
		T_EQ(t_generation(), 1);
		policy(0, 0, 0, BEAT_MS * 20 * MS);
		T_EXPECT(proc_num(getpid(), "heartbeat_left_ns") > (long long)(BEAT_MS * 10 * MS));
	}
}

ROLE(wait_a_while)
{
	t_sleep_ms(BEAT_MS * 3);
	return 0;
}

T(not_for_children_nor_after_exec)
{
	T_CHILD {
		pid_t pid;

		promise("must_not_run");
		pid = t_fork();
		if (!pid) {
			t_sleep_ms(BEAT_MS * 3);
			_exit(3);
		}
		beat_for(BEAT_MS * 4, BEAT_MS / 20);
		T_EXITED(t_wait(pid), 3);
		promise("must_not_run");
		T_OK(execl(t_self, t_self, "@wait_a_while", NULL));
	}
}

T(switched_off)
{
	T_CHILD {
		promise("must_not_run");
		T_OK(t_sysctl("enabled", 0));
		t_sleep_ms(BEAT_MS * 4);
		T_OK(t_sysctl("enabled", 1));
		beat_for(BEAT_MS * 2, BEAT_MS / 20);
		T_EQ(t_generation(), 1);
	}
}

/* ---- stopped, traced, frozen ---- */

static pid_t beater(void)
{
	pid_t pid = t_fork();

	if (!pid) {
		promise("must_not_run");
		while (!t_word[W_STOP]) {
			T_EQ(x_heartbeat(), 0);
			t_word[W_BEATS]++;
			t_sleep_ms(BEAT_MS / 20);
		}
		T_EQ(t_generation(), 1);
		_exit(21);
	}
	while (t_word[W_BEATS] < 3)
		t_sleep_ms(5);
	return pid;
}

static void end_beater(pid_t pid)
{
	uint64_t beats = t_word[W_BEATS];

	while (t_word[W_BEATS] < beats + 3)
		t_sleep_ms(5);
	t_sleep_ms(BEAT_MS * 2);
	t_word[W_STOP] = 1;
	T_EXITED(t_wait(pid), 21);
}

T_LIMIT(stopped, 60)
{
	pid_t pid = beater();
	int status;

	for (int i = 0; i < 3; i++) {
		uint64_t beats;

		T_OK(kill(pid, SIGSTOP));
		T_OK(waitpid(pid, &status, WUNTRACED));
		T_EXPECT(WIFSTOPPED(status));
		beats = t_word[W_BEATS];
		t_sleep_ms(BEAT_MS * (i + 1));
		T_EQ(t_word[W_BEATS], beats);
		T_OK(kill(pid, SIGCONT));
		t_sleep_ms(BEAT_MS / 2);
	}
	end_beater(pid);
}

T_LIMIT(traced, 60)
{
	pid_t pid = beater();
	int status;

	T_OK(ptrace(PTRACE_SEIZE, pid, NULL, 0));
	T_OK(ptrace(PTRACE_INTERRUPT, pid, NULL, 0));
	T_OK(waitpid(pid, &status, 0));
	T_EXPECT(WIFSTOPPED(status));
	t_sleep_ms(BEAT_MS * 3);
	T_OK(ptrace(PTRACE_DETACH, pid, NULL, 0));
	end_beater(pid);
}

T_LIMIT(frozen, 60)
{
	char mnt[64], dir[96], file[128], text[32] = "";
	pid_t pid;

	snprintf(mnt, sizeof(mnt), "%.40s/cgroup", t_tmpdir());
	T_OK(mkdir(mnt, 0755));
	if (mount("none", mnt, "cgroup2", 0, NULL))
		t_skip("no cgroup2");
	snprintf(dir, sizeof(dir), "%s/zlr-policy", mnt);
	T_OK(mkdir(dir, 0755));
	pid = beater();
	snprintf(file, sizeof(file), "%s/cgroup.procs", dir);
	snprintf(text, sizeof(text), "%d", pid);
	T_EQ(t_put(file, text), 0);
	snprintf(file, sizeof(file), "%s/cgroup.freeze", dir);
	T_EQ(t_put(file, "1"), 0);
	t_sleep_ms(BEAT_MS * 3);
	T_EQ(t_put(file, "0"), 0);
	end_beater(pid);
	for (int i = 0; i < 100 && rmdir(dir); i++)
		t_sleep_ms(20);
	umount2(mnt, MNT_DETACH);
}

/* A hang that a tracer sees, and takes away: the time starts again. */
T(tracer_takes_it)
{
	int status, seen = 0;
	pid_t pid = t_fork();

	if (!pid) {
		raise(SIGSTOP);
		promise("must_not_run");
		spin();
	}
	T_OK(waitpid(pid, &status, WUNTRACED));
	T_OK(ptrace(PTRACE_SEIZE, pid, NULL, 0));
	T_OK(kill(pid, SIGCONT));
	while (seen < 2) {
		T_OK(waitpid(pid, &status, 0));
		T_ASSERT(WIFSTOPPED(status));
		seen += WSTOPSIG(status) == SIGABRT && !(status >> 16);
		T_OK(ptrace(PTRACE_CONT, pid, NULL, 0));
	}
	T_OK(kill(pid, SIGKILL));
	T_KILLED(t_wait(pid), SIGKILL);
}

/* ---- more than one ---- */

/* A new generation has the whole time, and its own hang. */
ROLE(hang_again)
{
	struct reg_info info = reg_info();

	T_EQ(info.flags, REG_HANG);
	t_word[W_RUNS]++;
	if (t_word[W_RUNS] > 1)
		T_EXPECT(info.fault_time_ns - t_word[W_TIME] >= BEAT_MS * MS);
	T_EXPECT(proc_num(getpid(), "heartbeat_left_ns") > 0);
	t_word[W_TIME] = info.fault_time_ns;
	in_sleep();
	return 0;
}

T(hang_until_the_limit)
{
	pid_t pid = t_fork();
	int status;

	if (!pid) {
		t_register("hang_again", NULL);
		policy(RESTART_LIMIT, 2, 600000, BEAT_MS * MS);
		spin();
	}
	status = t_wait(pid);
	T_KILLED(status, SIGABRT);
	T_EXPECT(WCOREDUMP(status));
	T_EQ(t_word[W_RUNS], 2);
}

/* pid 1 of a namespace hangs, and its container lives. */
ROLE(init_again)
{
	T_EQ(getpid(), 1);
	T_EQ(reg_info().flags, REG_HANG);
	T_OK(kill(1, SIGTERM));
	t_word[W_RUNS]++;
	return 5;
}

T(init_hangs)
{
	T_CHILD {
		pid_t pid;

		T_OK(unshare(CLONE_NEWPID));
		pid = T_OK(fork());
		if (!pid) {
			t_register("init_again", NULL);
			policy(0, 0, 0, BEAT_MS * MS);
			spin();
		}
		T_EXITED(t_wait(pid), 5);
	}
	T_EQ(t_word[W_RUNS], 1);
}

/* ---- many threads ---- */

#define TRACE	"/sys/kernel/tracing/"

static void *last_thread(void *arg)
{
	(void)arg;
	t_word[W_BEATS] = gettid_();
	in_pause();
	return NULL;
}

static void start_threads(int n)
{
	pthread_attr_t attr;
	pthread_t thread;

	T_EQ(pthread_attr_init(&attr), 0);
	T_EQ(pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN), 0);
	for (int i = 0; i < n; i++)
		T_ASSERT(!pthread_create(&thread, &attr, hang_thread, in_pause));
	T_ASSERT(!pthread_create(&thread, &attr, last_thread, NULL));
}

/* The shortest of the timer's interrupts in the trace, in microseconds, and how many there are */
static unsigned long shortest_us(int *runs)
{
	static char text[16 << 20];
	unsigned long began[64] = {}, shortest = -1, sec, usec;
	char *next;

	*runs = 0;
	t_get(TRACE "trace", text, sizeof(text));
	for (char *line = text; line && *line; line = next) {
		char *event, *time;
		unsigned int cpu;

		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		event = strstr(line, ": hrtimer_expire_");
		time = strchr(line, '[');
		if (*line == '#' || !event || !time)
			continue;
		cpu = atoi(time + 1) % 64;
		for (time = event; time > line && time[-1] != ' '; time--)
			;
		if (sscanf(time, "%lu.%lu", &sec, &usec) != 2)
			continue;
		usec += sec * 1000000;
		if (strstr(event, "function=zlr_beat_timer")) {
			began[cpu] = usec;
		} else if (strstr(event, "expire_exit") && began[cpu]) {
			if (usec - began[cpu] < shortest)
				shortest = usec - began[cpu];
			began[cpu] = 0;
			++*runs;
		}
	}
	return shortest;
}

/* The process never beats, and the last of its threads, which a tracer has stopped, is its excuse. */
static unsigned long timer_us(int threads)
{
	int status, runs = 0;
	unsigned long us = 0;
	pid_t pid;

	t_word[W_BEATS] = 0;
	t_word[W_STOP] = 0;
	pid = t_fork();
	if (!pid) {
		start_threads(threads);
		while (!t_word[W_STOP])
			t_sleep_ms(5);
		t_register("must_not_run", NULL);
		policy(0, 0, 0, RESTART_HEARTBEAT_MIN);
		in_pause();
	}
	while (!t_word[W_BEATS])
		t_sleep_ms(5);
	T_OK(ptrace(PTRACE_SEIZE, (pid_t)t_word[W_BEATS], NULL, 0));
	T_OK(ptrace(PTRACE_INTERRUPT, (pid_t)t_word[W_BEATS], NULL, 0));
	T_OK(waitpid((pid_t)t_word[W_BEATS], &status, __WALL));
	close(T_OK(open(TRACE "trace", O_WRONLY | O_TRUNC)));
	T_OK(t_put(TRACE "events/timer/hrtimer_expire_entry/enable", "1"));
	T_OK(t_put(TRACE "events/timer/hrtimer_expire_exit/enable", "1"));
	t_word[W_STOP] = 1;
	for (int i = 0; i < 50 * t_slow() && runs < 5; i++) {
		t_sleep_ms(200);
		us = shortest_us(&runs);
	}
	T_EXPECT(runs >= 5);
	T_EQ(proc_num(pid, "generation"), 1);
	T_OK(t_put(TRACE "events/timer/hrtimer_expire_entry/enable", "0"));
	T_OK(t_put(TRACE "events/timer/hrtimer_expire_exit/enable", "0"));
	close(T_OK(open(TRACE "trace", O_WRONLY | O_TRUNC)));
	kill(pid, SIGKILL);
	T_OK(waitpid((pid_t)t_word[W_BEATS], &status, __WALL));
	T_KILLED(t_wait(pid), SIGKILL);
	return us;
}

/* However many threads there are, what is done with interrupts off is the same. */
T_LIMIT(timer_looks_at_no_thread, 60)
{
	unsigned long one, many;

	if (access(TRACE "events/timer", F_OK))
		t_skip("no tracepoints in this kernel");
	one = timer_us(0);
	many = timer_us(t_slow() > 1 ? 1000 : 4000);
	t_note("the timer's interrupt: %lu us, with thousands of threads %lu us", one, many);
	T_EXPECT(many <= 4 * one + 20 * t_slow());
}

T_LIMIT(hang_among_a_thousand_threads, 60)
{
	t_word[W_RUNS] = 0;
	T_CHILD {
		start_threads(1000);
		promise("after_hang");
		in_sleep();
	}
	T_EQ(t_word[W_RUNS], 1);
}

/* Timers against everything else: threads that set, beat, unregister, exec and exit. */
static void *meddler(void *arg)
{
	uint64_t seed = (uintptr_t)arg + 1;
	struct restart_policy p = {};

	for (;;) {
		p.heartbeat_ns = t_rand(&seed) % 3 ? RESTART_HEARTBEAT_MIN : 0;
		switch (t_rand(&seed) % 4) {
		case 0:
			x_setpolicy(&p);
			break;
		case 1:
			perdure_unregister();
			break;
		case 2:
			t_register("meddled", NULL);
			break;
		default:
			x_heartbeat();
		}
	}
	return NULL;
}

ROLE(meddled)
{
	t_word[W_RUNS]++;
	_exit(t_word[W_RUNS] & 1 ? 0 : 1);
}

T_LIMIT(races, 60)
{
	uint64_t seed = t_seed();

	for (int i = 0; i < t_rounds(40); i++) {
		pid_t pid = t_fork();
		int status;

		if (!pid) {
			pthread_t thread;

			t_register("meddled", NULL);
			for (long n = 0; n < 3; n++)
				T_EQ(pthread_create(&thread, NULL, meddler, (void *)(t_rand(&seed) | 1)), 0);
			t_sleep_ms(t_rand(&seed) % 40);
			if (i & 1)
				execl("/bin/true", "true", NULL);
			_exit(0);
		}
		t_rand(&seed);
		status = t_wait(pid);
		T_EXPECT(WIFEXITED(status) || WTERMSIG(status) == SIGABRT);
	}
}
