// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Faults at random instants, in services with threads, for some seconds: every service lives on as the same process,
 * every generation follows the one before, and the state of each, in a shared page, stays whole.
 * PERDURE_STRESS_S says for how long.
 */
#include "gen.h"

#include <pthread.h>

enum { SERVICES = 6, STATE_FD = 20 };

struct service {
	_Atomic uint64_t generation;
	_Atomic uint64_t work;
	_Atomic pid_t pid;
	_Atomic int quit;
};

static struct service *map_state(void)
{
	struct service *s = mmap(NULL, t_page(), PROT_READ | PROT_WRITE, MAP_SHARED, STATE_FD, 0);

	T_ASSERT(s != MAP_FAILED);
	return s;
}

static void *worker(void *arg)
{
	struct service *s = arg;
	int p[2];
	char c;

	/* Some time on the processor, some in the kernel, now and then an exec of a child. */
	for (int i = 0;; i++) {
		s->work++;
		if (i % 3 == 0 && !pipe(p)) {
			if (write(p[1], "x", 1) == 1)
				s->work += read(p[0], &c, 1);
			close(p[0]);
			close(p[1]);
		}
		if (i % 7 == 0)
			sched_yield();
		usleep(200);
	}
	return NULL;
}

ROLE(service)
{
	struct service *s = map_state() + atoi(argv[0]);
	uint64_t gen = t_generation();
	pthread_t t;

	/* A fault before the last generation got here made one more. */
	if (gen <= s->generation)
		T_EQ(gen, s->generation + 1);
	s->generation = gen;
	if (getpid() != s->pid)
		T_EQ(getpid(), s->pid);
	/* Also by execve(2): no new threads while another one replaces the process. */
	for (int i = 0; i < 2; i++) {
		while (pthread_create(&t, NULL, worker, s) == EAGAIN)
			usleep(1000);
	}
	while (!s->quit)
		usleep(3000);
	return 0;
}

T_LIMIT(random_faults, 120)
{
	static const int sigs[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP };
	const char *seconds = getenv("PERDURE_STRESS_S");
	uint64_t seed = t_seed(), end, sent = 0, restarts = 0, before;
	struct service *s;
	pid_t pids[SERVICES];
	char nr[8];
	int fd;

	fd = T_OK(memfd_create("state", 0));
	T_OK(ftruncate(fd, t_page()));
	T_OK(dup2(fd, STATE_FD));
	s = map_state();
	for (int i = 0; i < SERVICES; i++) {
		pids[i] = t_fork();
		if (!pids[i]) {
			s[i].pid = getpid();
			snprintf(nr, sizeof(nr), "%d", i);
			t_register("service", nr, NULL);
			t_crash();
		}
	}
	for (int i = 0; i < SERVICES; i++) {
		while (s[i].generation < 2)
			t_sleep_ms(2);
	}
	end = t_now_ns() + (seconds ? atoi(seconds) : 8) * 1000000000ull;
	while (t_now_ns() < end && !t_shared->failed) {
		int i = t_rand(&seed) % SERVICES;

		T_OK(kill(pids[i], sigs[t_rand(&seed) % ARRAY_LEN(sigs)]));
		sent++;
		usleep(t_rand(&seed) % 20000);
	}
	for (int i = 0; i < SERVICES; i++) {
		/* On a slow machine, only the last generation lives long enough to work */
		for (before = s[i].work; s[i].work == before && !t_shared->failed; )
			t_sleep_ms(2);
		s[i].quit = 1;
		T_EXITED(t_wait(pids[i]), 0);
		restarts += s[i].generation - 2;
	}
	/* Signals may merge; without one, nothing restarts. */
	T_RANGE(restarts, 1, sent);
	t_note("%llu faults sent, %llu restarts", (unsigned long long)sent, (unsigned long long)restarts);
}
