// SPDX-License-Identifier: GPL-2.0-or-later
/* Workers that fault at every step of an update that a recoverable semaphore protects, and at random instants. */
#include "sem.h"

enum { WORKERS = 3 };

struct data {
	_Atomic uint64_t owner;		/* pid of the worker inside; 0: nobody */
	_Atomic uint64_t a, b;		/* equal when nobody is inside */
	_Atomic uint64_t repaired, updates;
	_Atomic int stop;
};

#define DATA	((struct data *)&t_word[8])

/* One update; the step at which to fault, or -1. */
static void update(int fault_at)
{
	int step = 0, recovered = DO(OP(0, -1, REC));
	struct data *d = DATA;
	uint64_t me = getpid();

#define STEP	do { if (step++ == fault_at) t_crash(); } while (0)
	T_RANGE(recovered, 0, 1);
	STEP;
	if (recovered) {
		/* Ours, wherever the old generation was. */
		T_EXPECT(d->owner == me || (!d->owner && d->a == d->b));
		if (d->a != d->b) {
			T_EQ(d->a, d->b + 1);
			d->b = d->a;
			d->repaired++;
		}
	} else {
		T_EQ(d->owner, 0);
		T_EQ(d->a, d->b);
	}
	STEP;
	d->owner = me;
	STEP;
	d->a++;
	STEP;
	usleep(1000);	/* most of an update, so that random faults hit it here */
	d->b++;
	STEP;
	T_EQ(d->owner, me);
	d->owner = 0;
	STEP;
	d->updates++;
	T_EQ(DO(OP(0, 1, SEM_UNDO)), 0);
	STEP;
#undef STEP
}

enum { STEPS = 7 };

/* Each generation faults one step later than the one before. */
ROLE(step_by_step)
{
	int at = t_generation() - 1;

	/* In the last generation, all that was held is taken over or free. */
	if (at < STEPS)
		update(at);
	else
		update(-1);
	return 0;
}

T(every_step)
{
	SETS(1);
	T_CHILD {
		t_register("step_by_step", NULL);
		update(0);
	}
	T_EQ(VAL(0), 1);
	T_EQ(DATA->owner, 0);
	T_EQ(DATA->a, DATA->b);
	T_EQ(DATA->repaired, 1);
	remove_set();
}

ROLE(worker)
{
	t_word[20 + atoi(argv[0])] = 1;
	/* Once more at the end: what a fault has left is taken over. */
	do
		update(-1);
	while (!DATA->stop);
	return 0;
}

T_LIMIT(random_faults, 90)
{
	uint64_t seed = t_seed();
	pid_t pid[WORKERS];
	int rounds = t_rounds(150), faults = 0;

	SETS(1);
	for (int i = 0; i < WORKERS; i++) {
		pid[i] = t_fork();
		if (!pid[i]) {
			t_register("worker", (char[]){ '0' + i, 0 }, NULL);
			t_crash();
		}
		while (!t_word[20 + i])
			t_sleep_ms(5);
	}
	/* On until a fault has cut an update in two; every other one waits until its worker is back from the last. */
	for (int i = 0; i < rounds || (!DATA->repaired && i < 20 * rounds); i++) {
		int which = t_rand(&seed) % WORKERS;

		while (i % 2 && !t_word[20 + which])
			t_sleep_ms(1);
		t_word[20 + which] = 0;
		kill(pid[which], SIGABRT);
		faults++;
		usleep(t_rand(&seed) % 40000);
	}
	DATA->stop = 1;
	for (int i = 0; i < WORKERS; i++)
		T_EXITED(t_wait(pid[i]), 0);
	T_EQ(VAL(0), 1);
	T_EQ(DATA->owner, 0);
	T_EQ(DATA->a, DATA->b);
	T_EXPECT(DATA->updates > (uint64_t)rounds / 10);
	T_EXPECT(DATA->repaired > 0);
	t_note("%d faults, %llu updates, %llu of them repaired", faults, (unsigned long long)DATA->updates,
	       (unsigned long long)DATA->repaired);
	remove_set();
}
