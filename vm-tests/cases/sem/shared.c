// SPDX-License-Identifier: GPL-2.0-or-later
/* Shared areas, and robust mutexes in shared memory, when their holders are restarted or die in the middle. */
#include "sem.h"

#include <pthread.h>
#include <sys/mount.h>

struct state {
	uint64_t a, b;
	uint64_t by[8];		/* updates of each worker */
};

static const struct state *open_area(void)
{
	const struct state *s = perdure_shared_open("workers", sizeof(*s), 1, NULL);

	T_ASSERT(s);
	return s;
}

/* One update; fault at a step of it, or not. Returns what the beginning said. */
static int update(const struct state *s, int who, int fault_at)
{
	int what = T_OK(perdure_shared_begin(s, 15000)), step = 0;
	uint64_t next = s->a + 1, mine = s->by[who] + 1;

#define STEP	do { if (step++ == fault_at) t_crash(); } while (0)
	T_EQ(s->a, s->b);
	STEP;
	T_EQ(perdure_shared_stage(s, &s->a, &next, 8), 0);
	STEP;
	T_EQ(perdure_shared_stage(s, &s->b, &next, 8), 0);
	usleep(1000);		/* most of the time of a worker: random deaths are to come here */
	T_EQ(perdure_shared_stage(s, &s->by[who], &mine, 8), 0);
	STEP;
	T_EQ(perdure_shared_commit(s), 0);
	STEP;
#undef STEP
	return what;
}

ROLE(steps)
{
	static const int what[] = { 0, PERDURE_SHARED_UNDONE, PERDURE_SHARED_UNDONE, 0 };
	int gen = t_generation();
	const struct state *s = open_area();

	/* The death of the generation before this one was at step gen - 2. Others need not wait for our next update. */
	T_CHILD {
		T_EQ(perdure_shared_begin(s, 0), 0);
		T_EQ(s->a, s->b);
		T_EQ(perdure_shared_cancel(s), 0);
	}
	T_EQ(update(s, 0, gen < 5 ? gen - 1 : -1), what[gen - 2]);
	return 0;
}

T(restarted_at_each_step)
{
	const struct state *s = open_area();

	T_CHILD {
		t_register("steps", NULL);
		update(s, 0, 0);
	}
	T_EQ(s->a, 2);		/* that of the fourth generation, and of the last */
	T_EQ(s->by[0], 2);
	T_EQ(perdure_shared_remove("workers"), 0);
}

ROLE(late)
{
	const struct state *s = open_area();

	t_word[1] = 1;
	while (!t_word[2])
		t_sleep_ms(2);
	/* It is told all the same, and once; its children are not. */
	T_CHILD {
		T_EQ(perdure_shared_begin(s, 0), 0);
		T_EQ(perdure_shared_cancel(s), 0);
	}
	T_EQ(perdure_shared_begin(s, 0), PERDURE_SHARED_UNDONE);
	T_EQ(s->a, 7);
	T_EQ(perdure_shared_cancel(s), 0);
	T_EQ(perdure_shared_begin(s, 0), 0);
	T_EQ(perdure_shared_cancel(s), 0);
	return 0;
}

/* One that is restarted within an update does not keep others out until its next one. */
T(restarted_and_in_no_hurry)
{
	const struct state *s = open_area();
	uint64_t one = 1, seven = 7;
	pid_t pid = t_fork();

	if (!pid) {
		t_register("late", NULL);
		T_EQ(perdure_shared_begin(s, 0), 0);
		T_EQ(perdure_shared_stage(s, &s->a, &one, sizeof(one)), 0);
		t_crash();
	}
	while (!t_word[1])
		t_sleep_ms(2);
	T_EQ(perdure_shared_begin(s, 0), 0);
	T_EQ(s->a, 0);
	T_EQ(perdure_shared_stage(s, &s->a, &seven, sizeof(seven)), 0);
	T_EQ(perdure_shared_commit(s), 0);
	t_word[2] = 1;
	T_EXITED(t_wait(pid), 0);
	T_EQ(perdure_shared_remove("workers"), 0);
}

enum { WORKERS = 3 };

ROLE(worker)
{
	int who = atoi(argv[0]);
	const struct state *s = open_area();
	int what;

	t_word[20 + who] = 1;
	do {
		what = update(s, who, -1);
		if (what)
			atomic_fetch_add(&t_word[what], 1);
		t_word[10 + who]++;
	} while (!t_word[0]);
	return 0;
}

static pid_t start(int who)
{
	pid_t pid = t_fork();

	if (!pid) {
		t_register("worker", (char[]){ '0' + who, 0 }, NULL);
		t_crash();
	}
	return pid;
}

/* Faults, and deaths for good, at random instants. */
T_LIMIT(random_deaths, 90)
{
	const struct state *s = open_area();
	uint64_t seed = t_seed(), sum = 0;
	int rounds = t_rounds(60);
	pid_t pid[WORKERS];

	for (int i = 0; i < WORKERS; i++)
		pid[i] = start(i);
	/* Until one has died in the middle of an update; most do */
	for (int i = 0; i < rounds || (!t_word[PERDURE_SHARED_UNDONE] && i < 10 * rounds); i++) {
		int who = t_rand(&seed) % WORKERS;

		while (!t_word[20 + who])
			t_sleep_ms(2);
		t_word[20 + who] = 0;
		if (t_rand(&seed) % 4) {
			kill(pid[who], SIGABRT);
		} else {
			kill(pid[who], SIGKILL);
			t_wait(pid[who]);
			pid[who] = start(who);
		}
		usleep(t_rand(&seed) % 40000);
	}
	for (int i = 0; i < WORKERS; i++) {
		while (!t_word[20 + i])
			t_sleep_ms(2);
	}
	t_word[0] = 1;
	for (int i = 0; i < WORKERS; i++)
		T_EXITED(t_wait(pid[i]), 0);
	T_RANGE(perdure_shared_begin(s, 0), 0, 2);
	T_EQ(s->a, s->b);
	for (int i = 0; i < WORKERS; i++) {
		sum += s->by[i];
		/* Each update that was reported done is there; deaths come between the two. */
		T_EXPECT(s->by[i] >= t_word[10 + i]);
	}
	T_EQ(sum, s->a);
	T_EXPECT(s->a > (uint64_t)rounds / 10);
	T_EQ(perdure_shared_cancel(s), 0);
	t_note("%d deaths, %llu updates, %llu undone and %llu completed by the next one", rounds,
	       (unsigned long long)s->a, (unsigned long long)t_word[PERDURE_SHARED_UNDONE],
	       (unsigned long long)t_word[PERDURE_SHARED_COMPLETED]);
	T_EXPECT(t_word[PERDURE_SHARED_UNDONE] > 0);
	T_EQ(perdure_shared_remove("workers"), 0);
}

T(forked_in_an_update)
{
	const struct state *s = open_area();
	uint64_t one = 1;
	int go[2];
	char c;

	T_OK(pipe(go));
	T_EQ(perdure_shared_begin(s, 0), 0);
	T_EQ(perdure_shared_stage(s, &s->a, &one, sizeof(one)), 0);
	pid_t pid = t_fork();

	if (!pid) {
		T_ERR(perdure_shared_stage(s, &s->a, &one, sizeof(one)), EPERM);
		T_ERR(perdure_shared_commit(s), EPERM);
		T_ERR(perdure_shared_cancel(s), EPERM);
		T_ERR(perdure_shared_begin(s, 0), EAGAIN);
		T_EQ(write(go[1], "", 1), 1);
		T_EQ(perdure_shared_begin(s, -1), 0);
		T_EQ(s->a, 1);
		T_EQ(perdure_shared_cancel(s), 0);
		exit(0);
	}
	T_EQ(read(go[0], &c, 1), 1);
	T_ERR(perdure_shared_begin(s, 0), EDEADLK);
	T_EQ(perdure_shared_commit(s), 0);
	T_EXITED(t_wait(pid), 0);
	T_EQ(perdure_shared_remove("workers"), 0);
}

T(closed_in_an_update)
{
	const struct state *s = open_area();
	uint64_t one = 1;

	T_EQ(perdure_shared_begin(s, 0), 0);
	T_EQ(perdure_shared_stage(s, &s->a, &one, sizeof(one)), 0);
	perdure_shared_close(s);
	s = open_area();
	T_EQ(s->a, 0);
	T_EQ(perdure_shared_begin(s, 0), 0);
	T_EQ(perdure_shared_cancel(s), 0);
	T_EQ(perdure_shared_remove("workers"), 0);
}

/* How many sets of semaphores there are. */
static int sets(void)
{
	struct seminfo info;

	T_OK(semctl(0, 0, SEM_INFO, &info));
	return info.semusz;
}

/* An area has its memory from the beginning, or there is none: nor a semaphore. */
T(no_room)
{
	T_CHILD {
		const char *s;

		T_OK(unshare(CLONE_NEWNS | CLONE_NEWIPC));
		T_OK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
		T_OK(mount("small", "/dev/shm", "tmpfs", 0, "size=1M"));
		T_ASSERT(!perdure_shared_open("large", 1 << 20, 1, NULL));
		T_EQ(errno, ENOSPC);
		T_EQ(sets(), 0);
		/* What was begun takes no room. */
		T_ASSERT(perdure_shared_open("small", 400000, 1, NULL));
		T_EQ(sets(), 1);
		T_ASSERT(!perdure_shared_open("large", 1 << 20, 1, NULL));
		T_EQ(errno, ENOSPC);
		T_EQ(sets(), 1);
		T_OK(umount2("/dev/shm", MNT_DETACH));
		s = perdure_shared_open("large", 1 << 20, 1, NULL);
		T_ASSERT(s);
		T_EQ(s[(1 << 20) - 1], 0);
		T_EQ(sets(), 2);
		T_EQ(perdure_shared_remove("large"), 0);
		T_EQ(sets(), 1);
	}
}

/* ---- robust mutexes ---- */

enum { F_MUTEX = 20 };

static pthread_mutex_t *map_mutex(void)
{
	void *p = mmap(NULL, t_page(), PROT_READ | PROT_WRITE, MAP_SHARED, F_MUTEX, 0);

	T_ASSERT(p != MAP_FAILED);
	return p;
}

ROLE(mutex_again)
{
	pthread_mutex_t *m = map_mutex();
	int first = atoi(argv[0]);

	T_EQ(t_generation(), 2);
	if (first) {
		T_EQ(pthread_mutex_lock(m), EOWNERDEAD);
		T_EQ(pthread_mutex_consistent(m), 0);
	} else {
		/* The other process was faster, and has repaired it. */
		while (!MARK(0))
			t_sleep_ms(2);
		T_EQ(pthread_mutex_lock(m), 0);
	}
	T_EQ(pthread_mutex_unlock(m), 0);
	return 0;
}

static void *locks(void *m)
{
	T_EQ(pthread_mutex_lock(m), 0);
	MARK(1) = 1;
	for (;;)
		pause();
	return NULL;
}

enum { BY_MAIN, BY_OTHER, BY_FAULTING_THREAD, BY_MAIN_NOT_FAULTING, HOLDERS };

/* Locks first if it is to. */
static void *faults(void *m)
{
	if (m)
		T_EQ(pthread_mutex_lock(m), 0);
	MARK(2)++;
	t_crash();
}

static void hold_and_fault(pthread_mutex_t *m, int holder)
{
	pthread_t t;

	if (holder == BY_MAIN || holder == BY_MAIN_NOT_FAULTING)
		T_EQ(pthread_mutex_lock(m), 0);
	if (holder == BY_OTHER) {
		T_EQ(pthread_create(&t, NULL, locks, m), 0);
		while (!MARK(1))
			t_sleep_ms(2);
	}
	if (holder == BY_MAIN || holder == BY_OTHER)
		faults(NULL);
	T_EQ(pthread_create(&t, NULL, faults, holder == BY_FAULTING_THREAD ? m : NULL), 0);
	for (;;)
		pause();
}

/* Held by the first thread or another one, which faults itself or not; had again by the new generation, or by another process. */
static void robust(int protocol)
{
	pthread_mutexattr_t attr;
	pthread_mutex_t *m;
	int fd = T_OK(memfd_create("mutex", 0));

	T_OK(dup2(fd, F_MUTEX));
	T_OK(ftruncate(F_MUTEX, t_page()));
	m = map_mutex();
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	T_EQ(pthread_mutexattr_setprotocol(&attr, protocol), 0);
	T_EQ(pthread_mutex_init(m, &attr), 0);
	for (int how = 0; how < 2 * HOLDERS; how++) {
		int first = how & 1, holder = how >> 1;
		pid_t pid;

		MARK(0) = MARK(1) = MARK(2) = 0;
		pid = t_fork();
		if (!pid) {
			t_register("mutex_again", first ? "1" : "0", NULL);
			hold_and_fault(m, holder);
		}
		if (!first) {
			while (!MARK(2))
				t_sleep_ms(2);
			T_EQ(pthread_mutex_lock(m), EOWNERDEAD);
			T_EQ(pthread_mutex_consistent(m), 0);
			T_EQ(pthread_mutex_unlock(m), 0);
			MARK(0) = 1;
		}
		T_EXITED(t_wait(pid), 0);
		T_EQ(pthread_mutex_trylock(m), 0);
		T_EQ(pthread_mutex_unlock(m), 0);
	}
}

T(robust_mutex)
{
	robust(PTHREAD_PRIO_NONE);
}

T(robust_mutex_with_priority_inheritance)
{
	robust(PTHREAD_PRIO_INHERIT);
}
