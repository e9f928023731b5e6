// SPDX-License-Identifier: GPL-2.0-or-later
/* A thread faults that is not the first: the new generation is the service, and not what that thread had become. */
#include "gen.h"

#include <grp.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/securebits.h>
#include <pthread.h>
#include <sys/fsuid.h>

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

static void *faults(void *arg T_UNUSED)
{
	t_crash();
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

/* The policy and priority of the first thread, when others have the ordinary ones */
ROLE(of_the_first_thread)
{
	struct sched_param p;

	T_EQ(t_generation(), 2);
	T_EQ(sched_getscheduler(0), atoi(argv[0]));
	T_OK(sched_getparam(0, &p));
	T_EQ(p.sched_priority, atoi(argv[1]));
	return 0;
}

T(scheduling_policy)
{
	static const struct {
		int policy, priority;
	} cases[] = { { SCHED_BATCH, 0 }, { SCHED_IDLE, 0 }, { SCHED_FIFO, 7 }, { SCHED_RR, 3 },
		      { SCHED_FIFO | SCHED_RESET_ON_FORK, 5 } };

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char policy[16], priority[16];

		t_word[W_READY] = 0;
		snprintf(policy, sizeof(policy), "%d", cases[i].policy);
		snprintf(priority, sizeof(priority), "%d", cases[i].priority);
		t_context = policy;
		T_CHILD {
			struct sched_param p = { .sched_priority = cases[i].priority };

			t_register("of_the_first_thread", policy, priority, NULL);
			in_thread(does_nothing_special);
			T_OK(syscall(SYS_sched_setscheduler, 0, cases[i].policy, &p));
			t_word[W_READY] = 1;
			for (;;)
				pause();
		}
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

static void *saved_user(void *arg T_UNUSED)
{
	T_OK(syscall(SYS_setresuid, -1, -1, T_NOBODY));
	t_crash();
}

static void *user_of_files(void *arg T_UNUSED)
{
	syscall(SYS_setfsuid, T_NOBODY);
	t_crash();
}

static void *other_groups(void *arg T_UNUSED)
{
	T_OK(syscall(SYS_setgroups, 2, ((gid_t[]){ T_NOBODY, T_OTHER })));
	t_crash();
}

/* Without what lets root read every file */
static void *fewer_capabilities(void *arg T_UNUSED)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct d[2];

	T_OK(syscall(SYS_capget, &h, d));
	d[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
	T_OK(syscall(SYS_capset, &h, d));
	t_crash();
}

static void *other_securebits(void *arg T_UNUSED)
{
	T_OK(prctl(PR_SET_SECUREBITS, SECBIT_NOROOT));
	t_crash();
}

static void *other_directory(void *arg T_UNUSED)
{
	T_OK(unshare(CLONE_FS));
	T_OK(chdir("/tmp"));
	umask(0);
	t_crash();
}

static void *other_root(void *arg T_UNUSED)
{
	T_OK(unshare(CLONE_FS));
	T_OK(chroot("/"));
	T_OK(chdir("/"));
	t_crash();
}

static void *other_mounts(void *arg T_UNUSED)
{
	T_OK(unshare(CLONE_NEWNS));
	t_crash();
}

static void *own_files(void *arg T_UNUSED)
{
	T_OK(unshare(CLONE_FILES));
	t_crash();
}

static void *closes_files(void *arg T_UNUSED)
{
	T_OK(syscall(SYS_close_range, 500, 600, CLOSE_RANGE_UNSHARE));
	t_crash();
}

static void *was_elsewhere(void *arg T_UNUSED)
{
	T_OK(syscall(SYS_setresuid, -1, T_NOBODY, -1));
	T_OK(syscall(SYS_setresuid, -1, 0, -1));
	t_crash();
}

static void *waits(void *arg T_UNUSED)
{
	for (;;)
		pause();
	return NULL;
}

struct worker {
	pthread_t main;
	void *(*run)(void *arg);
};

static void *when_first_thread_is_gone(void *arg)
{
	struct worker *w = arg;

	T_EQ(pthread_join(w->main, NULL), 0);
	return w->run(NULL);
}

enum { FIRST_LIVES, FIRST_GONE, LAST_THREAD };

static pid_t service(void *(*run)(void *arg), const char *role, int how)
{
	static struct worker w;
	pid_t pid = t_fork();
	pthread_t t;

	if (pid)
		return pid;
	t_register(role, NULL);
	if (how != LAST_THREAD)
		in_thread(waits);
	if (how == FIRST_LIVES)
		fault_in(run);
	w = (struct worker){ pthread_self(), run };
	T_EQ(pthread_create(&t, NULL, when_first_thread_is_gone, &w), 0);
	pthread_exit(NULL);
}

T_LIMIT(thread_is_not_the_service, 60)
{
	static const struct {
		const char *name;
		void *(*run)(void *arg);
		bool lives, lives_alone;
	} cases[] = {
		{ "namespace", in_other_namespace, false, false },
		{ "mount namespace", other_mounts, false, false },
		{ "user", other_user, false, false },
		{ "group", other_group, false, false },
		{ "saved user", saved_user, false, false },
		{ "user of files", user_of_files, false, false },
		{ "groups", other_groups, false, false },
		{ "capabilities", fewer_capabilities, false, false },
		{ "securebits", other_securebits, false, false },
		{ "root", other_root, false, true },
		/* Of the last thread they are the service's. */
		{ "directory", other_directory, false, true },
		{ "files", own_files, false, true },
		{ "files that it closes", closes_files, false, true },
		{ "back again", was_elsewhere, true, true },
	};
	static const char *const hows[] = { "", ", first thread gone", ", last thread" };
	char context[80];

	t_context = context;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		for (int how = FIRST_LIVES; how <= LAST_THREAD; how++) {
			bool lives = how == LAST_THREAD ? cases[i].lives_alone : cases[i].lives;
			int status;

			snprintf(context, sizeof(context), "%s%s", cases[i].name, hows[how]);
			status = t_wait(service(cases[i].run, lives ? "gen2" : "must_not_run", how));
			if (lives)
				T_EXITED(status, 0);
			else
				T_KILLED(status, SIGSEGV);
		}
	}
}

/* ---- a service that has changed as a whole ---- */

enum { W_DONE = 8 };

static void *faults_later(void *arg T_UNUSED)
{
	while (!t_word[W_DONE])
		t_sleep_ms(1);
	t_crash();
}

ROLE(is_nobody)
{
	char buf[PATH_MAX];

	T_EQ(t_generation(), 2);
	T_EQ(getuid(), T_NOBODY);
	T_EQ(geteuid(), T_NOBODY);
	T_EQ(getgroups(0, NULL), 0);
	T_STREQ(getcwd(buf, sizeof(buf)), "/tmp");
	T_EQ(umask(0), 077);
	return 0;
}

/* Registered as root, then dropped, as most services do it */
T(drops_root_after_registering)
{
	T_CHILD {
		t_register("is_nobody", NULL);
		in_thread(waits);
		in_thread(faults_later);
		/* Of all threads: these are calls of the C library. */
		T_OK(setgroups(0, NULL));
		t_drop_root();
		T_OK(chdir("/tmp"));
		umask(077);
		t_word[W_DONE] = 1;
		for (;;)
			pause();
	}
}

/* ---- the only thread in a role ---- */

static void is_user(void)
{
	T_OK(setresuid(-1, T_NOBODY, -1));
}

static void is_group(void)
{
	T_OK(setresgid(-1, T_NOBODY, -1));
}

static void reads_as_user(void)
{
	setfsuid(T_NOBODY);
}

static void could_be_user(void)
{
	T_OK(setresuid(-1, -1, T_NOBODY));
}

static void is_somebody_else(void)
{
	t_drop_root();
}

ROLE(in_its_role)
{
	return 0;
}

/* A restart would be for good what was meant for a while, unless the service registered like that. */
T(only_thread_in_a_role)
{
	static const struct {
		const char *name;
		void (*become)(void);
		bool lives;
	} cases[] = {
		{ "user", is_user, false }, { "group", is_group, false }, { "user of files", reads_as_user, false },
		{ "saved user", could_be_user, false }, { "somebody else", is_somebody_else, true },
	};
	int status;
	pid_t pid;

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		for (int before = 0; before < 2; before++) {
			t_context = cases[i].name;
			pid = t_fork();
			if (!pid) {
				if (before)
					cases[i].become();
				t_register(before || cases[i].lives ? "in_its_role" : "must_not_run", NULL);
				if (!before)
					cases[i].become();
				t_crash();
			}
			status = t_wait(pid);
			if (before || cases[i].lives)
				T_EXITED(status, 0);
			else
				T_KILLED(status, SIGSEGV);
		}
	}
}

/* ---- another thread is somebody else ---- */

static void *goes_away(void *arg T_UNUSED)
{
	T_OK(unshare(CLONE_FILES | CLONE_FS));
	T_OK(chdir("/tmp"));
	T_OK(syscall(SYS_setresuid, -1, T_NOBODY, -1));
	t_word[W_READY] = 1;
	for (;;)
		pause();
	return NULL;
}

ROLE(has_stayed)
{
	char buf[PATH_MAX];

	T_EQ(t_generation(), 2);
	T_EQ(geteuid(), 0);
	T_STREQ(getcwd(buf, sizeof(buf)), "/");
	return 0;
}

T(another_thread_is_not_the_service)
{
	for (int first = 0; first < 2; first++) {
		t_word[W_READY] = 0;
		T_CHILD {
			T_OK(chdir("/"));
			t_register("has_stayed", NULL);
			in_thread(goes_away);
			while (!t_word[W_READY])
				t_sleep_ms(1);
			if (first)
				t_crash();
			fault_in(faults);
		}
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
