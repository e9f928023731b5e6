// SPDX-License-Identifier: GPL-2.0-or-later
/* What starts a restart, and what does not: every fault, from every source, in every kind of thread. */
#include "gen.h"
#include "../lib/seccomp.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/epoll.h>

/* What the old generation leaves for the new one. */
enum { W_PID, W_TID, W_ADDR, W_START, W_RUNS };

#define ANY_ADDR	UINT64_MAX

static pid_t tid(void)
{
	return syscall(SYS_gettid);
}

/* ---- sources ---- */

static void segv_unmapped(void)
{
	t_word[W_ADDR] = 0x1230;
	*(volatile int *)0x1230 = 1;
}

static void segv_readonly(void)
{
	volatile char *p = t_readonly();

	t_word[W_ADDR] = (uintptr_t)p + 5;
	p[5] = 1;
}

static void segv_noncanonical(void)
{
#ifdef __aarch64__
	t_word[W_ADDR] = ANY_ADDR;
	*(volatile int *)0x00f0000000000000ul = 1;
#else
	*(volatile int *)T_NONCANON_PTR = 1;
#endif
}

static void segv_jump(void)
{
	void (*volatile fn)(void) = (void (*)(void))0x4560;

	t_word[W_ADDR] = 0x4560;
	fn();
}

static int __attribute__((noinline)) recurse(volatile char *up)
{
	volatile char big[4096];

	big[0] = up[0];
	return (big[0] ? 0 : recurse(big)) + big[1];
}

static void segv_stack(void)
{
	t_word[W_ADDR] = ANY_ADDR;
	recurse((char[1]){ 0 });
}

static void bus_truncated(void)
{
	int fd = T_OK(memfd_create("x", 0));
	volatile char *p = mmap(NULL, t_page(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	T_ASSERT(p != MAP_FAILED);
	t_word[W_ADDR] = (uintptr_t)p + 8;
	p[8] = 1;
}

static void ill(void)
{
	t_word[W_ADDR] = (uintptr_t)&&here;
here:
#ifdef __aarch64__
	__asm__ volatile("udf #0");
#else
	__asm__ volatile("ud2");
#endif
	t_word[W_ADDR] = ANY_ADDR;
	goto *(void *[]){ &&here }[0];
}

#ifndef __aarch64__ /* where no division traps */
static void fpe(void)
{
	t_word[W_ADDR] = ANY_ADDR;
	__asm__ volatile("xor %%edx, %%edx; xor %%ecx, %%ecx; mov $1, %%eax; idivl %%ecx" : : : "eax", "ecx", "edx");
}
#endif

static void trap(void)
{
	t_word[W_ADDR] = ANY_ADDR;
#ifdef __aarch64__
	__asm__ volatile("brk #0");
#else
	__asm__ volatile("int3");
#endif
}

static void seccomp_trap(void)
{
	t_word[W_ADDR] = ANY_ADDR;
	answer_call(NATIVE, SYS_acct, SECCOMP_RET_TRAP);
	syscall(SYS_acct, NULL);
}

static void timer_abrt(void)
{
	struct sigevent ev = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGABRT };
	struct itimerspec when = { .it_value.tv_nsec = 1000000 };
	timer_t timer;

	ev._sigev_un._tid = tid();
	T_OK(timer_create(CLOCK_MONOTONIC, &ev, &timer));
	T_OK(timer_settime(timer, 0, &when, NULL));
	for (;;)
		pause();
}

/* A handler whose stack cannot be used: the kernel forces SIGSEGV. */
static void bad_frame(void)
{
	stack_t ss = { .ss_sp = t_none(), .ss_size = MINSIGSTKSZ > 4096 ? 65536 : 4096 };

	t_word[W_ADDR] = ANY_ADDR;
	T_OK(sigaltstack(&ss, NULL));
	t_handle(SIGUSR1, t_on_signal, SA_ONSTACK);
	syscall(SYS_tgkill, getpid(), tid(), SIGUSR1);
}

#define RAISE(sig) \
	static void raise_##sig(void) { raise(sig); } \
	static void tgkill_##sig(void) { syscall(SYS_tgkill, getpid(), tid(), sig); } \
	static void queue_##sig(void) \
	{ \
		siginfo_t info = { .si_signo = sig, .si_code = SI_QUEUE, .si_pid = getpid() }; \
		syscall(SYS_rt_tgsigqueueinfo, getpid(), tid(), sig, &info); \
	}
RAISE(SIGSEGV)
RAISE(SIGBUS)
RAISE(SIGILL)
RAISE(SIGFPE)
RAISE(SIGABRT)
RAISE(SIGSYS)
RAISE(SIGTRAP)

static void blocked_segv(void)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	segv_unmapped();
}

static void ignored_segv(void)
{
	signal(SIGSEGV, SIG_IGN);
	segv_unmapped();
}

static void handler_faults(int sig)
{
	if (sig == SIGUSR2)
		segv_unmapped();
}

static void in_handler(void)
{
	t_handle(SIGUSR2, handler_faults, 0);
	syscall(SYS_tgkill, getpid(), tid(), SIGUSR2);
}

static void in_segv_handler(void)
{
	/* The second fault, in the handler of the first one, finds the signal blocked. */
	t_handle(SIGSEGV, (void (*)(int))segv_unmapped, 0);
	*(volatile int *)0x7890 = 1;
}

static const struct fault {
	const char *name;
	void (*fn)(void);
	int signo, code;
} faults[] = {
	{ "SIGSEGV, unmapped", segv_unmapped, SIGSEGV, SEGV_MAPERR },
	{ "SIGSEGV, read-only", segv_readonly, SIGSEGV, SEGV_ACCERR },
#ifdef __aarch64__
	{ "SIGSEGV, no address", segv_noncanonical, SIGSEGV, SEGV_MAPERR },
	{ "SIGILL", ill, SIGILL, ILL_ILLOPC },
	{ "SIGTRAP, brk", trap, SIGTRAP, TRAP_BRKPT },
#else
	{ "SIGSEGV, no address", segv_noncanonical, SIGSEGV, SI_KERNEL },
	{ "SIGILL", ill, SIGILL, ILL_ILLOPN },
	{ "SIGFPE", fpe, SIGFPE, FPE_INTDIV },
	{ "SIGTRAP, int3", trap, SIGTRAP, SI_KERNEL },
#endif
	{ "SIGSEGV, jump", segv_jump, SIGSEGV, SEGV_MAPERR },
	{ "SIGSEGV, stack overflow", segv_stack, SIGSEGV, INT_MIN },
	{ "SIGBUS, truncated file", bus_truncated, SIGBUS, BUS_ADRERR },
	{ "SIGSYS, seccomp", seccomp_trap, SIGSYS, 1 /* SYS_SECCOMP */ },
	{ "abort()", abort, SIGABRT, SI_TKILL },
	{ "SIGABRT, timer", timer_abrt, SIGABRT, SI_TIMER },
	{ "SIGSEGV, no stack for a handler", bad_frame, SIGSEGV, SI_KERNEL },
	{ "SIGSEGV, blocked", blocked_segv, SIGSEGV, SEGV_MAPERR },
	{ "SIGSEGV, ignored", ignored_segv, SIGSEGV, SEGV_MAPERR },
	{ "SIGSEGV, in a handler", in_handler, SIGSEGV, SEGV_MAPERR },
	{ "SIGSEGV, in its own handler", in_segv_handler, SIGSEGV, SEGV_MAPERR },
#define RAISED(sig) \
	{ "raise(" #sig ")", raise_##sig, sig, SI_TKILL }, \
	{ "tgkill(" #sig ")", tgkill_##sig, sig, SI_TKILL }, \
	{ "queue " #sig, queue_##sig, sig, SI_QUEUE }
	RAISED(SIGSEGV), RAISED(SIGBUS), RAISED(SIGILL), RAISED(SIGFPE), RAISED(SIGABRT), RAISED(SIGSYS),
	RAISED(SIGTRAP),
};

/* ---- each of them, in the main thread and in another ---- */

ROLE(check_fault)
{
	const struct fault *f = &faults[atoi(argv[0])];
	struct reg_info info;
	uint64_t now = t_now_ns();

	t_context = f->name;
	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.is_restarted, 1);
	T_EQ(info.child_id, 0);
	T_EQ(info.generation, 2);
	T_EQ(info.restarts, 1);
	T_EQ(info.signo, f->signo);
	if (f->code != INT_MIN)
		T_EQ(info.code, f->code);
	if (t_word[W_ADDR] != ANY_ADDR)
		T_EQ(info.fault_addr, t_word[W_ADDR]);
	T_EQ(info.fault_tid, t_word[W_TID]);
	T_EQ(info.suspect_fd, -1);
	T_EQ(info.flags, 0);
	T_EQ(info.core_pid, 0);
	T_RANGE(info.fault_time_ns, t_word[W_START], now);
	T_EXPECT(info.retain_ns > 0);
	T_EXPECT(info.exec_ns > 0);
	T_EXPECT(info.retain_ns + info.exec_ns + info.restore_ns <= now - info.fault_time_ns);
	T_EQ(getpid(), t_word[W_PID]);
	T_EQ(tid(), getpid());
	t_word[W_RUNS]++;
	return 0;
}

static void *run_fault(void *arg)
{
	const struct fault *f = arg;

	t_word[W_TID] = tid();
	t_word[W_ADDR] = 0;
	t_word[W_START] = t_now_ns();
	f->fn();
	t_check(false, __FILE__, __LINE__, "survived");
	_exit(1);
}

static void each_fault(bool threaded)
{
	char nr[8];

	for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
		t_context = faults[i].name;
		T_CHILD {
			t_word[W_PID] = getpid();
			snprintf(nr, sizeof(nr), "%zu", i);
			t_register("check_fault", nr, NULL);
			if (threaded) {
				pthread_t t;

				T_ASSERT(!pthread_create(&t, NULL, run_fault, (void *)&faults[i]));
				pthread_join(t, NULL);
			}
			run_fault((void *)&faults[i]);
		}
	}
	T_EQ(t_word[W_RUNS], ARRAY_LEN(faults));
}

T_LIMIT(faults_in_main_thread, 60)
{
	each_fault(false);
}

T_LIMIT(faults_in_other_thread, 60)
{
	each_fault(true);
}

/* From another process, to the process and to each thread, sleeping. */
ROLE(killed_gen)
{
	struct reg_info info;

	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.generation, 2);
	T_EQ(info.signo, atoi(argv[0]));
	T_EQ(info.code, atoi(argv[1]) ? SI_TKILL : SI_USER);
	T_EQ(info.fault_addr, 0);
	T_EQ(info.fault_tid, t_word[W_TID]);
	return 0;
}

static void *sleeper(void *arg)
{
	t_word[W_START] = tid();
	for (;;)
		pause();
	return arg;
}

T(kill_from_outside)
{
	static const int sigs[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP };
	char sig[8], how[8];

	for (size_t i = 0; i < ARRAY_LEN(sigs); i++) {
		for (int thread = 0; thread < 3; thread++) {
			pid_t pid;

			t_context = strsignal(sigs[i]);
			t_word[W_START] = t_word[W_RUNS] = 0;
			snprintf(sig, sizeof(sig), "%d", sigs[i]);
			snprintf(how, sizeof(how), "%d", thread);
			pid = t_fork();
			if (!pid) {
				pthread_t t;

				t_register("killed_gen", sig, how, NULL);
				T_ASSERT(!pthread_create(&t, NULL, sleeper, NULL));
				t_word[W_RUNS] = 1;	/* pthread_create() blocks signals */
				for (;;)
					pause();
			}
			while (!t_word[W_START] || !t_word[W_RUNS])
				t_sleep_ms(1);
			t_word[W_TID] = thread == 2 ? (uint64_t)t_word[W_START] : (uint64_t)pid;
			if (thread)
				T_OK(syscall(SYS_tgkill, pid, (pid_t)t_word[W_TID], sigs[i]));
			else
				T_OK(kill(pid, sigs[i]));
			T_EXITED(t_wait(pid), 0);
		}
	}
}

/* ---- what is no fault ---- */

T(other_signals_kill)
{
	static const int sigs[] = { SIGKILL, SIGTERM, SIGQUIT, SIGXCPU, SIGXFSZ, SIGHUP, SIGINT, SIGPIPE, SIGALRM,
				    SIGUSR1, SIGUSR2, SIGIO, SIGVTALRM, SIGPROF, SIGPWR, SIGSTKFLT, 40 };

	for (size_t i = 0; i < ARRAY_LEN(sigs); i++) {
		pid_t pid = t_fork();

		t_context = strsignal(sigs[i]);
		if (!pid) {
			t_register("must_not_run", NULL);
			raise(sigs[i]);
			_exit(9);
		}
		T_KILLED(t_wait(pid), sigs[i]);
	}
}

T(limits_kill)
{
	pid_t pid = t_fork();

	if (!pid) {
		struct rlimit cpu = { 1, 2 };

		t_register("must_not_run", NULL);
		T_OK(setrlimit(RLIMIT_CPU, &cpu));
		for (;;)
			;
	}
	T_KILLED(t_wait(pid), SIGXCPU);
	pid = t_fork();
	if (!pid) {
		struct rlimit size = { 0, 0 };
		char path[PATH_MAX];
		int fd = T_OK(open(t_path(path, "f"), O_WRONLY | O_CREAT, 0600));

		t_register("must_not_run", NULL);
		T_OK(setrlimit(RLIMIT_FSIZE, &size));
		if (write(fd, "x", 1))
			_exit(9);
	}
	T_KILLED(t_wait(pid), SIGXFSZ);
}

static void *thread_exits(void *arg)
{
	exit((int)(long)arg);
}

T(exits_are_exits)
{
	pid_t pid = t_fork();
	pthread_t t;

	if (!pid) {
		t_register("must_not_run", NULL);
		_exit(3);
	}
	T_EXITED(t_wait(pid), 3);
	pid = t_fork();
	if (!pid) {
		t_register("must_not_run", NULL);
		T_ASSERT(!pthread_create(&t, NULL, thread_exits, (void *)4));
		for (;;)
			pause();
	}
	T_EXITED(t_wait(pid), 4);
}

static void count_signal(int sig)
{
	t_word[W_RUNS] += sig;
}

T(handled_and_ignored)
{
	static const int sigs[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP };

	t_register("must_not_run", NULL);
	for (size_t i = 0; i < ARRAY_LEN(sigs); i++) {
		t_handle(sigs[i], count_signal, 0);
		t_word[W_RUNS] = 0;
		T_OK(kill(getpid(), sigs[i]));
		raise(sigs[i]);
		T_EQ(t_word[W_RUNS], 2 * sigs[i]);
		t_handle(sigs[i], SIG_IGN, 0);
		T_OK(kill(getpid(), sigs[i]));
		raise(sigs[i]);
	}
	T_EQ(t_generation(), 1);
}

T(blocked_waits)
{
	sigset_t set;

	T_CHILD {
		t_register("gen2", NULL);
		sigemptyset(&set);
		sigaddset(&set, SIGSEGV);
		sigprocmask(SIG_BLOCK, &set, NULL);
		T_OK(kill(getpid(), SIGSEGV));
		T_EQ(t_generation(), 1);
		sigprocmask(SIG_UNBLOCK, &set, NULL);
		_exit(9);
	}
	/* A fault that is accepted otherwise is no fault. */
	T_CHILD {
		int sig;

		t_register("must_not_run", NULL);
		sigprocmask(SIG_BLOCK, &set, NULL);
		sigemptyset(&set);
		sigaddset(&set, SIGSEGV);
		sigprocmask(SIG_BLOCK, &set, NULL);
		T_OK(kill(getpid(), SIGSEGV));
		T_EQ(sigwait(&set, &sig), 0);
		T_EQ(sig, SIGSEGV);
		sigprocmask(SIG_UNBLOCK, &set, NULL);
		T_EQ(t_generation(), 1);
	}
}

ROLE(gen3)
{
	struct reg_info info;

	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.generation, 3);
	T_EQ(info.restarts, 2);
	return 0;
}

/* The second fault is pending when the first one restarts: it is a fault of the new generation. */
T(two_pending)
{
	sigset_t set;

	T_CHILD {
		t_register("gen3", NULL);
		sigfillset(&set);
		sigprocmask(SIG_BLOCK, &set, NULL);
		T_OK(kill(getpid(), SIGABRT));
		T_OK(kill(getpid(), SIGSEGV));
		sigprocmask(SIG_UNBLOCK, &set, NULL);
		_exit(9);
	}
}

T(not_registered_is_killed)
{
	for (int i = 0; i < 3; i++) {
		pid_t pid = t_fork();

		if (!pid) {
			if (i)
				t_register("must_not_run", NULL);
			if (i == 1)
				T_OK(x_unregister());
			if (i == 2) {
				/* A child does not inherit. */
				T_KILLED(({ pid = t_fork(); if (!pid) t_crash(); t_wait(pid); }), SIGSEGV);
				T_OK(x_unregister());
			}
			t_crash();
		}
		T_KILLED(t_wait(pid), SIGSEGV);
	}
}

/* ---- threads ---- */

ROLE(one_thread)
{
	struct stat st;

	T_EQ(t_generation(), 2);
	T_OK(stat("/proc/self/task", &st));
	T_EQ(st.st_nlink, 3);
	T_EQ(tid(), t_word[W_PID]);
	return 0;
}

static int empty_pipe[2];

static void *blocked_in(void *arg)
{
	static int futex;
	struct epoll_event ev;
	struct pollfd pfd = { .fd = empty_pipe[0], .events = POLLIN };
	sigset_t usr1;
	char c;

	atomic_fetch_add(&t_word[W_RUNS], 1);
	switch ((long)arg) {
	case 0:
		return (void *)(long)read(empty_pipe[0], &c, 1);
	case 1:
		syscall(SYS_futex, &futex, FUTEX_WAIT, 0, NULL, NULL, 0);
		break;
	case 2:
		epoll_wait(epoll_create1(0), &ev, 1, -1);
		break;
	case 3:
		poll(&pfd, 1, -1);
		break;
	case 4:
		sigemptyset(&usr1);
		sigaddset(&usr1, SIGUSR1);
		sigwait(&usr1, &(int){ 0 });
		break;
	case 5:
		t_sleep_ms(1000000);
		break;
	case 6:
		for (;;)
			;
	case 7:
		waitpid(-1, NULL, 0);
		break;
	}
	return NULL;
}

T(blocked_threads)
{
	T_OK(pipe(empty_pipe));
	for (long culprit = 0; culprit < 3; culprit++) {
		t_word[W_RUNS] = 0;
		T_CHILD {
			pthread_t t;

			t_word[W_PID] = getpid();
			t_register("one_thread", NULL);
			if (!t_fork())
				t_sleep_ms(1000000);
			for (long i = 0; i < 8; i++)
				T_ASSERT(!pthread_create(&t, NULL, blocked_in, (void *)i));
			while (t_word[W_RUNS] < 8)
				t_sleep_ms(1);
			t_sleep_ms(20);
			switch (culprit) {
			case 0:
				t_crash();
			case 1:
				T_ASSERT(!pthread_create(&t, NULL, (void *(*)(void *))t_crash, NULL));
				pthread_join(t, NULL);
				break;
			case 2:
				/* The main thread has gone. */
				T_ASSERT(!pthread_create(&t, NULL, (void *(*)(void *))t_crash, NULL));
				syscall(SYS_exit, 0);
			}
		}
	}
}

static pthread_barrier_t barrier;

static void *crash_together(void *arg)
{
	pthread_barrier_wait(&barrier);
	if ((long)arg & 1)
		abort();
	t_crash();
}

T_LIMIT(all_threads_fault, 60)
{
	for (int round = 0; round < t_rounds(20); round++) {
		T_CHILD {
			pthread_t t;

			t_word[W_PID] = getpid();
			t_register("one_thread", NULL);
			pthread_barrier_init(&barrier, NULL, 8);
			for (long i = 1; i < 8; i++)
				T_ASSERT(!pthread_create(&t, NULL, crash_together, (void *)i));
			crash_together(NULL);
		}
	}
}

ROLE(executed)
{
	T_EQ(t_generation(), 0);
	t_word[W_RUNS]++;
	return 0;
}

ROLE(restarted)
{
	T_EQ(t_generation(), 2);
	t_word[W_RUNS + 1]++;
	return 0;
}

static void *exec_together(void *arg)
{
	pthread_barrier_wait(&barrier);
	execl(t_self, "prog", "@executed", NULL);
	return arg;
}

T_LIMIT(exec_races, 60)
{
	int rounds = t_rounds(30);

	for (int round = 0; round < rounds; round++) {
		T_CHILD {
			pthread_t t;

			t_register("restarted", NULL);
			pthread_barrier_init(&barrier, NULL, 2);
			T_ASSERT(!pthread_create(&t, NULL, round & 1 ? exec_together : crash_together, NULL));
			if (round & 1)
				crash_together(NULL);
			exec_together(NULL);
			_exit(9);
		}
	}
	T_EQ(t_word[W_RUNS] + t_word[W_RUNS + 1], rounds);
	t_note("%d executed, %d restarted", (int)t_word[W_RUNS], (int)t_word[W_RUNS + 1]);
}

/* Somewhat later each time, until the fault comes first. */
static void *exit_together(void *arg)
{
	pthread_barrier_wait(&barrier);
	if (arg)
		usleep(40 * (long)arg);
	_exit(8);
}

T_LIMIT(exit_races, 60)
{
	int restarts = 0, rounds = t_rounds(30);

	for (int round = 0; round < rounds; round++) {
		pid_t pid = t_fork();
		int status;

		if (!pid) {
			pthread_t t;

			t_register("restarted", NULL);
			pthread_barrier_init(&barrier, NULL, 2);
			T_ASSERT(!pthread_create(&t, NULL, round & 1 ? exit_together : crash_together,
						  (void *)(long)round));
			if (round & 1)
				crash_together(NULL);
			exit_together((void *)(long)round);
		}
		status = t_wait(pid);
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			T_EXITED(status, 8);
		else
			restarts++;
	}
	T_EQ(t_word[W_RUNS + 1], restarts);
	t_note("%d of %d restarted", restarts, rounds);
}

ROLE(waits)
{
	for (;;)
		pause();
	return 0;
}

/* SIGKILL wins, before, during and after. */
T_LIMIT(kill_races, 60)
{
	for (int round = 0; round < t_rounds(40); round++) {
		pid_t pid = t_fork();

		if (!pid) {
			t_register("waits", NULL);
			raise(SIGSEGV);
			_exit(9);
		}
		usleep(round * 500);
		T_OK(kill(pid, SIGKILL));
		T_KILLED(t_wait(pid), SIGKILL);
	}
}

/* ---- vfork ---- */

T(vfork_child_faults)
{
	pid_t pid;

	t_register("must_not_run", NULL);
	pid = vfork();
	if (!pid) {
		*(volatile int *)0x1230 = 1;
		_exit(9);
	}
	T_KILLED(t_wait(pid), SIGSEGV);
	T_EQ(t_generation(), 1);
}

static void *vforks(void *arg)
{
	pid_t pid = vfork();

	if (!pid) {
		t_word[W_TID] = 1;
		/* The parent, whose memory this is, is replaced meanwhile. */
		while (!t_word[W_RUNS + 1])
			syscall(SYS_sched_yield);
		_exit(7);
	}
	return arg;
}

ROLE(vfork_parent)
{
	T_EQ(t_generation(), 2);
	t_word[W_RUNS + 1]++;
	T_EXITED(t_wait(-1), 7);
	return 0;
}

T(vfork_parent_faults)
{
	T_CHILD {
		pthread_t t;

		t_register("vfork_parent", NULL);
		T_ASSERT(!pthread_create(&t, NULL, vforks, NULL));
		while (!t_word[W_TID])
			t_sleep_ms(1);
		t_sleep_ms(10);
		t_crash();
	}
}

/* ---- stopped ---- */

T(stop_and_continue)
{
	pid_t pid = t_fork();
	int status;

	if (!pid) {
		t_register("gen2", NULL);
		raise(SIGSTOP);
		for (;;)
			pause();
	}
	T_OK(waitpid(pid, &status, WUNTRACED));
	T_EXPECT(WIFSTOPPED(status));
	T_OK(kill(pid, SIGSEGV));
	t_sleep_ms(50);
	T_EQ(waitpid(pid, &status, WUNTRACED | WNOHANG), 0);
	T_OK(kill(pid, SIGCONT));
	T_EXITED(t_wait(pid), 0);
}

/* ---- a kernel that wants the process dead gets it ---- */

T(seccomp_kills)
{
	static const unsigned int verdicts[] = { SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_KILL_THREAD };

	for (size_t i = 0; i < ARRAY_LEN(verdicts); i++) {
		pid_t pid = t_fork();

		if (!pid) {
			t_register("must_not_run", NULL);
			answer_call(NATIVE, SYS_acct, verdicts[i]);
			syscall(SYS_acct, NULL);
			_exit(9);
		}
		T_KILLED(t_wait(pid), SIGSYS);
	}
}
