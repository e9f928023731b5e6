// SPDX-License-Identifier: GPL-2.0-or-later
/* A thread faults that is not the first: the new generation is the service, and not what that thread had become. */
#include "gen.h"

#include <pthread.h>

enum { NICE = 5, SLACK = 77777 };
enum { W_CPUS, W_CHILD, W_READY, W_THREAD };

static int cpus(void)
{
	cpu_set_t set;

	T_OK(sched_getaffinity(0, sizeof(set), &set));
	return CPU_COUNT(&set);
}

static void one_cpu(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	T_OK(sched_setaffinity(0, sizeof(set), &set));
}

static void in_thread(void *(*run)(void *))
{
	pthread_t t;

	T_EQ(pthread_create(&t, NULL, run, NULL), 0);
}

static void fault_in(void *(*run)(void *))
{
	in_thread(run);
	for (;;)
		pause();
}

/* ---- scheduling ---- */

static void *works_for_itself(void *arg T_UNUSED)
{
	struct sched_param p = { .sched_priority = 0 };

	one_cpu(1);
	T_OK(syscall(SYS_sched_setscheduler, 0, SCHED_BATCH, &p));
	T_OK(setpriority(PRIO_PROCESS, 0, 10));
	T_OK(prctl(PR_SET_TIMERSLACK, 123456));
	t_crash();
}

static void *does_nothing_special(void *arg T_UNUSED)
{
	while (!t_word[W_READY])
		t_sleep_ms(1);
	t_crash();
}

/* What the first thread had, or what it was made to have. */
ROLE(as_before)
{
	int set = atoi(argv[0]);
	cpu_set_t cpu;

	T_EQ(t_generation(), 2);
	T_OK(sched_getaffinity(0, sizeof(cpu), &cpu));
	T_EQ((uint64_t)CPU_COUNT(&cpu), set ? 1 : t_word[W_CPUS]);
	T_EXPECT(CPU_ISSET(0, &cpu));
	T_EQ(sched_getscheduler(0), SCHED_OTHER);
	T_EQ(getpriority(PRIO_PROCESS, 0), set ? NICE : 0);
	T_EQ(prctl(PR_GET_TIMERSLACK), set ? SLACK : 50000);
	T_OK(prctl(PR_GET_PDEATHSIG, &set));
	T_EQ(set, SIGKILL);
	return 0;
}

T(scheduling)
{
	t_word[W_CPUS] = cpus();
	if (t_word[W_CPUS] < 2)
		t_skip("one processor");
	T_CHILD {
		t_register("as_before", "0", NULL);
		fault_in(works_for_itself);
	}
	T_CHILD {
		t_register("as_before", "1", NULL);
		in_thread(does_nothing_special);
		one_cpu(0);
		T_OK(setpriority(PRIO_PROCESS, 0, NICE));
		T_OK(prctl(PR_SET_TIMERSLACK, SLACK));
		t_word[W_READY] = 1;
		for (;;)
			pause();
	}
}

/* A first thread that has ended still says what the service was. */
static void *ends_it(void *main)
{
	T_EQ(pthread_join(*(pthread_t *)main, NULL), 0);
	works_for_itself(NULL);
	return NULL;
}

T(first_thread_gone)
{
	t_word[W_CPUS] = cpus();
	if (t_word[W_CPUS] < 2)
		t_skip("one processor");
	T_CHILD {
		static pthread_t main;
		pthread_t t;

		main = pthread_self();
		t_register("as_before", "0", NULL);
		T_EQ(pthread_create(&t, NULL, ends_it, &main), 0);
		pthread_exit(NULL);
	}
}

/* ---- threads that are elsewhere, or somebody else ---- */

static void *in_other_namespace(void *arg T_UNUSED)
{
	T_OK(unshare(CLONE_NEWNET));
	t_crash();
}

static void *other_user(void *arg T_UNUSED)
{
	T_OK(syscall(SYS_setresuid, -1, T_NOBODY, -1));
	t_crash();
}

static void *other_group(void *arg T_UNUSED)
{
	T_OK(syscall(SYS_setresgid, -1, T_NOBODY, -1));
	t_crash();
}

static void *was_elsewhere(void *arg T_UNUSED)
{
	T_OK(syscall(SYS_setresuid, -1, T_NOBODY, -1));
	T_OK(syscall(SYS_setresuid, -1, 0, -1));
	t_crash();
}

T(thread_is_not_the_service)
{
	static const struct {
		const char *name;
		void *(*run)(void *arg);
		bool lives;
	} cases[] = {
		{ "namespace", in_other_namespace, false },
		{ "user", other_user, false },
		{ "group", other_group, false },
		{ "back again", was_elsewhere, true },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		pid_t pid = t_fork();
		int status;

		t_context = cases[i].name;
		if (!pid) {
			t_register(cases[i].lives ? "gen2" : "must_not_run", NULL);
			fault_in(cases[i].run);
		}
		status = t_wait(pid);
		if (cases[i].lives)
			T_EXITED(status, 0);
		else
			T_KILLED(status, SIGSEGV);
	}
}

/* ---- children that end with their parent ---- */

static pid_t child(void)
{
	pid_t pid = T_OK(fork());

	if (!pid) {
		T_OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
		t_word[W_READY] = 1;
		for (;;)
			pause();
	}
	while (!t_word[W_READY])
		t_sleep_ms(1);
	return pid;
}

static void *has_a_child(void *arg T_UNUSED)
{
	t_word[W_CHILD] = child();
	t_word[W_THREAD] = 1;
	for (;;)
		pause();
	return NULL;
}

static void *faults(void *arg T_UNUSED)
{
	t_crash();
}

ROLE(still_has_a_child)
{
	int status;

	T_EQ(t_generation(), 2);
	t_sleep_ms(50);
	T_EQ(waitpid(t_word[W_CHILD], &status, WNOHANG), 0);
	/* The death of the service is another matter. */
	return 0;
}

T(children_with_a_death_signal)
{
	T_OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
	/* Of the first thread or another one; and the other one faults. */
	for (int i = 0; i < 2; i++) {
		t_context = i ? "of a thread" : "of the first thread";
		memset(t_word, 0, 5 * sizeof(t_word[0]));
		T_CHILD {
			t_register("still_has_a_child", NULL);
			if (!i) {
				t_word[W_CHILD] = child();
				fault_in(faults);
			}
			in_thread(has_a_child);
			while (!t_word[W_THREAD])
				t_sleep_ms(1);
			t_crash();
		}
		T_KILLED(t_wait(t_word[W_CHILD]), SIGKILL);
	}
}
