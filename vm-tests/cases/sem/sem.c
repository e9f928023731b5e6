// SPDX-License-Identifier: GPL-2.0-or-later
/* SEM_RECOVER: what a new generation takes again, what it does not, and that the others stay out. */
#include "sem.h"

#include <pthread.h>
#include <sys/mount.h>

/* ---- without a restart ---- */

static void ordinary(void)
{
	SETS(2, 0);
	T_EQ(DO(OP(0, -1, REC)), 0);
	T_EQ(VAL(0), 1);
	T_EQ(DO(OP(0, -1, REC)), 0);
	T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	T_EQ(DO(OP(0, 1, SEM_UNDO)), 0);
	T_EQ(DO(OP(0, -1, REC | NOW)), 0);
	T_ERR(DO(OP(1, -1, REC | NOW)), EAGAIN);
	remove_set();
}

T(first_generation_takes_as_usual)
{
	T_CHILD
		ordinary();
	T_CHILD {
		t_register("must_not_run", NULL);
		ordinary();
	}
}

/* A bit that no kernel knew, and that some program may set: as ever, but for who has registered. */
T(flags_of_others)
{
	SETS(1, 1);
	T_EQ(DO(OP(0, -1, SEM_RECOVER | NOW)), 0);
	T_EQ(DO(OP(0, 0, SEM_RECOVER | NOW)), 0);
	T_EQ(DO(OP(0, 0, REC | NOW)), 0);
	T_EQ(DO(OP(0, 1, SEM_RECOVER | NOW)), 0);
	T_EQ(DO(OP(1, 1, REC | NOW), OP(1, -1, REC | NOW)), 0);
	T_ERR(DO(OP(0, 0, SEM_RECOVER | NOW)), EAGAIN);
	T_EQ(VAL(0), 1);
	T_EQ(VAL(1), 1);
	remove_set();
}

T(wrong_flags)
{
	SETS(1, 1);
	t_register("must_not_run", NULL);
	T_ERR(DO(OP(0, -1, SEM_RECOVER)), EINVAL);
	T_ERR(DO(OP(0, -1, SEM_RECOVER | NOW)), EINVAL);
	T_ERR(DO(OP(0, 0, SEM_RECOVER | NOW)), EINVAL);
	T_ERR(DO(OP(0, 0, REC | NOW)), EINVAL);
	T_ERR(DO(OP(0, 1, SEM_RECOVER)), EINVAL);
	T_ERR(DO(OP(0, 1, REC)), EINVAL);
	T_ERR(DO(OP(0, -1, SEM_UNDO), OP(1, 1, REC)), EINVAL);
	T_ERR(DO(OP(0, -1, REC), OP(1, -1, SEM_RECOVER)), EINVAL);
	T_EQ(VAL(0), 1);
	T_EQ(VAL(1), 1);
	/* The next bit still means nothing. */
	T_EQ(DO(OP(0, -1, REC | 0x4000)), 0);
	remove_set();
}

T(other_errors_as_before)
{
	static struct sembuf many[600];
	struct sembuf rec = OP(0, -1, REC);

	SETS(1, 1);
	T_ERR(semop(-1, &rec, 1), EINVAL);
	T_ERR(semop(0x7ffffff0, &rec, 1), EINVAL);
	T_ERR(semop(SET, &rec, 0), EINVAL);
	T_ERR(semop(SET, many, 600), E2BIG);
	T_ERR(semop(SET, t_gone(), 1), EFAULT);
	T_ERR(DO(OP(2, -1, REC)), EFBIG);
	T_EQ(semctl(SET, 0, SETVAL, 0), 0);
	T_ERR(semtimedop(SET, &rec, 1, &(struct timespec){ 0, 20000000 }), EAGAIN);
	T_ERR(semtimedop(SET, &rec, 1, &(struct timespec){ 0, 1000000000 }), EINVAL);
	T_ERR(semtimedop(SET, &rec, 1, t_gone()), EFAULT);
	t_handle(SIGUSR1, t_on_signal, SA_RESTART);
	pid_t pid = t_signaller(getpid(), SIGUSR1, 50);

	T_ERR(semop(SET, &rec, 1), EINTR);
	t_reap(pid);
	T_CHILD {
		t_drop_root();
		T_ERR(semop(SET, &rec, 1), EACCES);
	}
	/* More than an adjustment can hold. */
	T_EQ(semctl(SET, 0, SETVAL, 32767), 0);
	T_EQ(DO(OP(0, -32767, REC)), 0);
	T_EQ(semctl(SET, 1, SETVAL, 1), 0);
	T_OK(DO(OP(0, 1, 0)));
	T_ERR(DO(OP(0, -1, REC)), ERANGE);
	remove_set();
}

/* ---- taken again ---- */

ROLE(takes_again)
{
	T_EQ(t_generation(), 2);
	T_EQ(VAL(0), 0);
	others_stay_out(0);
	/* Plain operations know nothing of it. */
	T_ERR(DO(OP(0, -1, SEM_UNDO | NOW)), EAGAIN);
	T_ERR(DO(OP(0, -1, NOW)), EAGAIN);
	T_EQ(DO(OP(0, -1, REC)), 1);
	T_EQ(VAL(0), 0);
	T_EQ(semctl(SET, 0, GETPID), getpid());
	others_stay_out(0);
	/* Once. */
	T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	T_EQ(DO(OP(0, 1, SEM_UNDO)), 0);
	T_EQ(VAL(0), 1);
	T_EQ(DO(OP(0, -1, REC | NOW)), 0);
	T_EQ(VAL(0), 0);
	T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	return 0;
}

T(taken_again_once)
{
	/* Whether the old generation used the flag does not matter. */
	for (int flags = SEM_UNDO; flags; flags = flags == REC ? 0 : REC) {
		SETS(1);
		RESTARTS("takes_again")
			T_EQ(DO(OP(0, -1, flags)), 0);
		T_EQ(VAL(0), 1);
		remove_set();
	}
}

/* Waiters get it when it is released, and not before. */
ROLE(releases_late)
{
	T_EQ(t_generation(), 2);
	T_EQ(DO(OP(0, -1, REC)), 1);
	for (int i = 0; i < 50 && semctl(SET, 0, GETNCNT) != 1; i++)
		t_sleep_ms(10);
	T_EQ(semctl(SET, 0, GETNCNT), 1);
	T_EQ(MARK(0), 0);
	MARK(1) = 1;
	T_EQ(DO(OP(0, 1, SEM_UNDO)), 0);
	return 0;
}

T(waiters_wait_on)
{
	pid_t pid;

	SETS(1, 0);
	pid = t_fork();
	if (!pid) {
		T_EQ(DO(OP(1, -1, 0)), 0);
		T_EQ(DO(OP(0, -1, SEM_UNDO)), 0);
		T_EQ(MARK(1), 1);
		MARK(0) = 1;
		_exit(0);
	}
	RESTARTS("releases_late") {
		T_EQ(DO(OP(0, -1, REC)), 0);
		T_EQ(DO(OP(1, 1, 0)), 0);
		while (semctl(SET, 0, GETNCNT) != 1)
			t_sleep_ms(5);
	}
	T_EXITED(t_wait(pid), 0);
	T_EQ(MARK(0), 1);
	T_EQ(VAL(0), 1);
	remove_set();
}

ROLE(units)
{
	T_EQ(t_generation(), 2);
	T_EQ(VAL(0), 2);
	T_EQ(DO(OP(0, -1, REC)), 1);
	T_EQ(VAL(0), 2);
	/* Two are left of the old ones: the other one comes from the semaphore. */
	T_EQ(DO(OP(0, -3, REC)), 1);
	T_EQ(VAL(0), 1);
	T_EQ(DO(OP(0, -1, REC)), 0);
	T_EQ(VAL(0), 0);
	T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	T_EQ(DO(OP(0, 5, SEM_UNDO)), 0);
	T_EQ(VAL(0), 5);
	return 0;
}

ROLE(units_missing)
{
	T_EQ(t_generation(), 2);
	/* All or nothing: what could not be completed is inherited still. */
	T_ERR(DO(OP(0, -6, REC | NOW)), EAGAIN);
	T_EQ(VAL(0), 2);
	T_EQ(DO(OP(0, -3, REC)), 1);
	T_EQ(VAL(0), 2);
	return 0;
}

T(several_units)
{
	SETS(5);
	RESTARTS("units")
		T_EQ(DO(OP(0, -3, REC)), 0);
	T_EQ(VAL(0), 5);
	RESTARTS("units_missing")
		T_EQ(DO(OP(0, -3, REC)), 0);
	T_EQ(VAL(0), 5);
	remove_set();
}

/* ---- several semaphores in one call ---- */

ROLE(mixed)
{
	T_EQ(t_generation(), 2);
	/* 0 and 2 are ours; 1 is another's. */
	T_ERR(DO(OP(0, -1, REC | NOW), OP(1, -1, REC | NOW), OP(2, -1, REC | NOW)), EAGAIN);
	T_EQ(VAL(0), 0);
	T_EQ(VAL(2), 0);
	T_ERR(DO(OP(0, -1, REC | NOW), OP(3, 32767, 0)), ERANGE);
	T_ERR(DO(OP(0, -1, REC | NOW), OP(9, -1, REC | NOW)), EFBIG);
	MARK(0) = 1;
	/* Now it waits, until the other process lets go. */
	T_EQ(DO(OP(0, -1, REC), OP(1, -1, REC), OP(2, -1, REC)), 2);
	T_EQ(MARK(1), 1);
	for (int i = 0; i < 3; i++)
		T_EQ(VAL(i), 0);
	T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	T_ERR(DO(OP(2, -1, REC | NOW)), EAGAIN);
	T_EQ(DO(OP(0, 1, SEM_UNDO), OP(1, 1, SEM_UNDO), OP(2, 1, SEM_UNDO)), 0);
	for (int i = 0; i < 3; i++)
		T_EQ(VAL(i), 1);
	return 0;
}

T(all_or_nothing)
{
	pid_t pid;

	SETS(1, 1, 1, 1, 0);
	pid = t_fork();
	if (!pid) {
		T_EQ(DO(OP(1, -1, SEM_UNDO), OP(4, 1, 0)), 0);
		while (!MARK(0) || semctl(SET, 1, GETNCNT) != 1)
			t_sleep_ms(5);
		MARK(1) = 1;
		T_EQ(DO(OP(1, 1, SEM_UNDO)), 0);
		_exit(0);
	}
	RESTARTS("mixed")
		T_EQ(DO(OP(4, -1, 0), OP(0, -1, REC), OP(2, -1, REC)), 0);
	T_EXITED(t_wait(pid), 0);
	remove_set();
}

/* The same semaphore more than once in a call. */
ROLE(repeated)
{
	T_EQ(t_generation(), 2);
	/* Undone in the middle: two inherited, one lost by the release. */
	T_ERR(DO(OP(0, -1, REC | NOW), OP(0, 2, SEM_UNDO), OP(0, -1, REC | NOW), OP(1, -1, NOW)), EAGAIN);
	T_EQ(VAL(0), 0);
	T_ERR(DO(OP(0, -1, REC | NOW), OP(0, -2, REC | NOW)), EAGAIN);
	T_ERR(DO(OP(0, -2, REC | NOW), OP(0, 32767, 0), OP(0, 1, 0)), ERANGE);
	T_EQ(VAL(0), 0);
	T_EQ(DO(OP(0, -1, REC | NOW), OP(0, -1, REC | NOW)), 2);
	T_EQ(VAL(0), 0);
	T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	T_EQ(DO(OP(0, 2, SEM_UNDO)), 0);
	T_EQ(VAL(0), 2);
	return 0;
}

ROLE(released_and_taken)
{
	T_EQ(t_generation(), 2);
	/* What is released and then taken is not inherited. */
	T_EQ(DO(OP(0, 2, SEM_UNDO), OP(0, -1, REC | NOW)), 0);
	T_EQ(VAL(0), 1);
	T_EQ(DO(OP(0, -1, REC | NOW)), 0);
	T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	return 0;
}

T(one_semaphore_repeatedly)
{
	SETS(2, 0);
	RESTARTS("repeated")
		T_EQ(DO(OP(0, -2, REC)), 0);
	T_EQ(VAL(0), 2);
	RESTARTS("released_and_taken")
		T_EQ(DO(OP(0, -2, REC)), 0);
	T_EQ(VAL(0), 2);
	remove_set();
}

/* ---- releasing ---- */

ROLE(gives_back)
{
	T_EQ(t_generation(), 2);
	T_EQ(DO(OP(0, 1, SEM_UNDO)), 0);
	T_EQ(VAL(0), 1);
	/* It was the inherited one. */
	T_CHILD
		T_EQ(DO(OP(0, -1, SEM_UNDO | NOW)), 0);
	T_EQ(DO(OP(0, -1, REC | NOW)), 0);
	T_EQ(VAL(0), 0);
	T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	return 0;
}

ROLE(gives_back_its_own_first)
{
	T_EQ(t_generation(), 2);
	T_EQ(DO(OP(0, -1, SEM_UNDO)), 0);
	T_EQ(VAL(0), 0);
	T_EQ(DO(OP(0, 1, SEM_UNDO)), 0);
	T_EQ(VAL(0), 1);
	T_EQ(DO(OP(0, -1, REC)), 1);
	T_EQ(VAL(0), 1);
	T_EQ(DO(OP(0, -1, REC | NOW)), 0);
	T_EQ(VAL(0), 0);
	return 0;
}

T(released_without_taking)
{
	SETS(1);
	RESTARTS("gives_back")
		T_EQ(DO(OP(0, -1, REC)), 0);
	T_EQ(VAL(0), 1);
	T_EQ(semctl(SET, 0, SETVAL, 2), 0);
	RESTARTS("gives_back_its_own_first")
		T_EQ(DO(OP(0, -1, REC)), 0);
	T_EQ(VAL(0), 2);
	remove_set();
}

/* A process that has given, not taken, has nothing to be inherited. */
ROLE(producer)
{
	T_EQ(t_generation(), 2);
	T_EQ(VAL(0), 3);
	T_EQ(DO(OP(0, -1, REC | NOW)), 0);
	T_EQ(VAL(0), 2);
	return 0;
}

T(given_is_not_held)
{
	SETS(0);
	RESTARTS("producer")
		T_EQ(DO(OP(0, 3, SEM_UNDO)), 0);
	T_EQ(VAL(0), 0);
	remove_set();
}

ROLE(holds_nothing)
{
	T_EQ(t_generation(), 2);
	T_EQ(VAL(0), 0);
	T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	return 0;
}

T(taken_for_good_is_not_held)
{
	SETS(1);
	RESTARTS("holds_nothing")
		T_EQ(DO(OP(0, -1, 0)), 0);
	T_EQ(VAL(0), 0);
	remove_set();
}

/* ---- the end ---- */

ROLE(ends)
{
	int how = atoi(argv[0]);

	T_EQ(t_generation(), 2);
	if (how & 1)
		T_EQ(DO(OP(0, -1, REC)), 1);
	if (how & 2)
		raise(SIGKILL);
	return 0;
}

T(final_death_releases)
{
	for (int how = 0; how < 4; how++) {
		pid_t pid;

		SETS(1);
		pid = t_fork();
		if (!pid) {
			T_EQ(DO(OP(0, -1, REC)), 0);
			t_register("ends", (char[]){ '0' + how, 0 }, NULL);
			t_crash();
		}
		if (how & 2)
			T_KILLED(t_wait(pid), SIGKILL);
		else
			T_EXITED(t_wait(pid), 0);
		T_EQ(VAL(0), 1);
		remove_set();
	}
}

ROLE(again_and_again)
{
	int gen = t_generation();

	T_EQ(VAL(0), 0);
	if (gen % 3)
		T_EQ(DO(OP(0, -1, REC | NOW)), 1);
	if (gen < 12)
		t_crash();
	return 0;
}

T(twelve_generations)
{
	SETS(1);
	RESTARTS("again_and_again")
		T_EQ(DO(OP(0, -1, REC)), 0);
	T_EQ(VAL(0), 1);
	remove_set();
}

ROLE(executed)
{
	T_EQ(t_generation(), 0);
	T_EQ(VAL(0), 0);
	T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	return 0;
}

ROLE(executes)
{
	T_EQ(t_generation(), 2);
	execl(t_self, "prog", "@executed", NULL);
	return 9;
}

T(another_program_inherits_nothing)
{
	SETS(1);
	RESTARTS("executes")
		T_EQ(DO(OP(0, -1, REC)), 0);
	T_EQ(VAL(0), 1);
	remove_set();
}

ROLE(privileged)
{
	T_EQ(geteuid(), T_OTHER);
	/* What its predecessor held has been released, as if that had died: it does not wait for itself */
	T_EQ(VAL(0), 1);
	T_EQ(DO(OP(0, -1, REC | NOW)), 0);
	T_EQ(VAL(0), 0);
	MARK(0) = 1;
	return 0;
}

T(a_privileged_program_inherits_nothing)
{
	char path[PATH_MAX];

	/* /tmp may be mounted nosuid. */
	T_OK(mount("none", t_tmpdir(), "tmpfs", 0, "mode=755"));
	t_copy_privileged(path, "prog", 04755);
	SETS(1);
	T_OK(semctl(SET, 0, IPC_SET, &(struct semid_ds){ .sem_perm = { .mode = 0666 } }));
	T_CHILD {
		t_drop_root();
		T_EQ(DO(OP(0, -1, REC)), 0);
		T_EQ(x_reregist(path, (char *[]){ "prog", "@privileged", NULL }, environ, 0), 0);
		t_crash();
	}
	T_EQ(MARK(0), 1);
	T_EQ(VAL(0), 1);
	remove_set();
	T_OK(umount(t_tmpdir()));
}

/* ---- set anew, removed ---- */

ROLE(set_anew)
{
	int val = atoi(argv[0]);

	T_EQ(t_generation(), 2);
	if (!strcmp(argv[1], "SETALL")) {
		T_EQ(semctl(SET, 0, SETALL, (unsigned short[]){ val, 1 }), 0);
	} else {
		T_CHILD
			T_EQ(semctl(SET, 0, SETVAL, val), 0);
		/* The other one is ours still. */
		T_EQ(DO(OP(1, -1, REC | NOW)), 1);
	}
	if (!val) {
		T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
		T_EQ(DO(OP(0, 1, 0)), 0);
	}
	T_EQ(DO(OP(0, -1, REC | NOW)), 0);
	T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	return 0;
}

T(setting_a_value_ends_it)
{
	for (int i = 0; i < 4; i++) {
		SETS(1, 1);
		RESTARTS("set_anew", i & 1 ? "1" : "0", i & 2 ? "SETALL" : "SETVAL")
			T_EQ(DO(OP(0, -1, REC), OP(1, -1, REC)), 0);
		T_EQ(VAL(0), 1);
		T_EQ(VAL(1), 1);
		remove_set();
	}
}

ROLE(removed)
{
	T_EQ(t_generation(), 2);
	T_ERR(DO(OP(0, -1, REC | NOW)), (int)t_word[10]);
	return 0;
}

ROLE(removed_now)
{
	int old = SET;

	T_EQ(t_generation(), 2);
	remove_set();
	T_ERR(DO(OP(0, -1, REC | NOW)), EINVAL);
	/* In the same slot of the table, perhaps: a set of its own all the same. */
	SETS(1);
	T_EXPECT(SET != old);
	T_EQ(DO(OP(0, -1, REC | NOW)), 0);
	T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	remove_set();
	/* Removed under a waiter. */
	SETS(0);
	if (!t_fork()) {
		while (semctl(SET, 0, GETNCNT) != 1)
			t_sleep_ms(5);
		_exit(semctl(SET, 0, IPC_RMID));
	}
	T_ERR(DO(OP(0, -1, REC)), EIDRM);
	return 0;
}

T(removed_sets)
{
	SETS(1);
	t_word[10] = EINVAL;
	RESTARTS("removed") {
		T_EQ(DO(OP(0, -1, REC)), 0);
		remove_set();
	}
	SETS(1);
	RESTARTS("removed_now")
		T_EQ(DO(OP(0, -1, REC)), 0);
}

/* ---- several processes ---- */

ROLE(one_of_two)
{
	T_EQ(t_generation(), 2);
	T_EQ(DO(OP(0, -1, REC | NOW)), 1);
	/* The other unit is not ours. */
	T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	T_EQ(VAL(0), 0);
	MARK(atoi(argv[0])) = 1;
	while (!MARK(0) || !MARK(1))
		t_sleep_ms(5);
	return 0;
}

T(several_holders)
{
	pid_t pid[2];

	SETS(2, 0);
	for (int i = 0; i < 2; i++) {
		pid[i] = t_fork();
		if (!pid[i]) {
			T_EQ(DO(OP(0, -1, REC)), 0);
			T_EQ(DO(OP(1, 1, 0)), 0);
			T_EQ(DO(OP(1, -2, 0), OP(1, 2, 0)), 0);	/* both have theirs */
			t_register("one_of_two", (char[]){ '0' + i, 0 }, NULL);
			t_crash();
		}
	}
	for (int i = 0; i < 2; i++)
		T_EXITED(t_wait(pid[i]), 0);
	T_EQ(VAL(0), 2);
	remove_set();
}

ROLE(with_child)
{
	T_EQ(t_generation(), 2);
	T_CHILD
		T_ERR(DO(OP(0, -1, REC | NOW)), EAGAIN);
	T_EQ(DO(OP(0, -1, REC | NOW)), 1);
	return 0;
}

T(fork_children_inherit_nothing)
{
	SETS(1);
	RESTARTS("with_child")
		T_EQ(DO(OP(0, -1, REC)), 0);
	remove_set();
}

/* Two processes with one undo list: nobody can tell who holds what. */
T(shared_undo_list)
{
	pid_t pid, other;

	SETS(2, 0);
	pid = t_fork();
	if (!pid) {
		other = syscall(SYS_clone, CLONE_SYSVSEM | SIGCHLD, NULL, NULL, NULL, NULL);
		if (!other) {
			T_EQ(DO(OP(0, -1, SEM_UNDO)), 0);
			T_EQ(DO(OP(1, 1, 0)), 0);
			for (;;)
				pause();
		}
		T_EQ(DO(OP(1, -1, 0)), 0);
		T_EQ(DO(OP(0, -1, REC)), 0);
		t_word[11] = other;
		t_register("holds_nothing", NULL);
		t_crash();
	}
	T_EXITED(t_wait(pid), 0);
	T_EQ(VAL(0), 0);
	/* A subreaper gets the other one; its end is the last. */
	kill(t_word[11], SIGKILL);
	for (int i = 0; i < 100 && VAL(0) != 2; i++)
		t_sleep_ms(20);
	T_EQ(VAL(0), 2);
	remove_set();
}

ROLE(namespace)
{
	T_EQ(t_generation(), 2);
	T_EQ(VAL(0), 0);
	T_EQ(DO(OP(0, -1, REC | NOW)), 1);
	/* In yet another one, the same number is another set, or none. */
	T_OK(unshare(CLONE_NEWIPC));
	T_ERR(DO(OP(0, -1, REC | NOW)), EINVAL);
	return 0;
}

ROLE(left_behind)
{
	T_EQ(t_generation(), 2);
	T_ERR(DO(OP(0, -1, REC | NOW)), EINVAL);
	return 0;
}

T(namespaces)
{
	RESTARTS("namespace") {
		T_OK(unshare(CLONE_NEWIPC));
		SETS(1);
		T_EQ(DO(OP(0, -1, REC)), 0);
	}
	/* Leaving the namespace releases, as ever. */
	SETS(1);
	RESTARTS("left_behind") {
		T_EQ(DO(OP(0, -1, REC)), 0);
		T_OK(unshare(CLONE_NEWIPC));
	}
	T_EQ(VAL(0), 1);
	remove_set();
}

/* ---- threads ---- */

static void *take_one(void *arg)
{
	(void)arg;
	T_EQ(DO(OP(0, -1, REC)), 0);
	atomic_fetch_add(&MARK(0), 1);
	for (;;)
		pause();
	return NULL;
}

static void *take_again(void *arg)
{
	int n = 0, r;

	(void)arg;
	while ((r = DO(OP(0, -1, REC | NOW))) >= 0) {
		n += r;
		sched_yield();
	}
	T_EQ(errno, EAGAIN);
	return (void *)(long)n;
}

ROLE(threads)
{
	pthread_t t[4];
	int sum = 0;

	T_EQ(t_generation(), 2);
	T_EQ(VAL(0), 3);
	for (int i = 0; i < 4; i++)
		T_EQ(pthread_create(&t[i], NULL, take_again, NULL), 0);
	for (int i = 0; i < 4; i++) {
		void *n;

		pthread_join(t[i], &n);
		sum += (long)n;
	}
	/* Four threads had one each: these, and the three units that were free, are ours now. */
	T_EQ(sum, 4);
	T_EQ(VAL(0), 0);
	return 0;
}

T(threads_hold_together)
{
	SETS(7);
	for (int who = 0; who < 2; who++) {
		RESTARTS("threads") {
			pthread_t t;

			MARK(0) = 0;
			for (int i = 0; i < 4; i++)
				T_EQ(pthread_create(&t, NULL, take_one, NULL), 0);
			while (MARK(0) < 4)
				t_sleep_ms(2);
			t_register("threads", NULL);
			if (who) {
				pthread_kill(t, SIGABRT);
				for (;;)
					pause();
			}
		}
		T_EQ(VAL(0), 7);
	}
	remove_set();
}

static void *waits(void *arg)
{
	(void)arg;
	DO(OP(0, -1, REC));
	t_check(false, __FILE__, __LINE__, "got a semaphore that is 0");
	return NULL;
}

T(waiting_is_not_holding)
{
	SETS(0);
	RESTARTS("holds_nothing") {
		pthread_t t;

		T_EQ(pthread_create(&t, NULL, waits, NULL), 0);
		while (semctl(SET, 0, GETNCNT) != 1)
			t_sleep_ms(2);
	}
	T_EQ(VAL(0), 0);
	T_EQ(semctl(SET, 0, GETNCNT), 0);
	remove_set();
}

/* ---- every entry to the call ---- */

static long int80(long nr, long a, long b, long c, long d, long e)
{
	long ret;

	/* The sixth argument is in ebp: 0. */
	__asm__ volatile("sub $128, %%rsp; push %%rbp; xor %%ebp, %%ebp; int $0x80; pop %%rbp; add $128, %%rsp"
			 : "=a" (ret) : "a" (nr), "b" (a), "c" (b), "d" (c), "S" (d), "D" (e)
			 : "r8", "r9", "r10", "r11", "memory", "cc");
	if ((int)ret < 0 && (int)ret > -4096) {
		errno = -(int)ret;
		return -1;
	}
	return (int)ret;
}

enum { SEMOP = 1, SEMTIMEDOP = 4, NR32_ipc = 117, NR32_semtimedop_time64 = 420 };

static long take(int entry, struct sembuf *sop)
{
	static struct timespec *ts;	/* zeroed, below 4 GiB */

	if (!ts)
		ts = mmap(NULL, t_page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	switch (entry) {
	case 0:
		return semop(SET, sop, 1);
	case 1:
		return semtimedop(SET, sop, 1, ts);
	case 2:
		return syscall(SYS_semop, SET, sop, 1);
	case 3:
		return syscall(SYS_semtimedop, SET, sop, 1, ts);
	case 4:
		return int80(NR32_ipc, SEMOP, SET, 1, 0, (long)sop);
	case 5:
		return int80(NR32_ipc, SEMTIMEDOP, SET, 1, 0, (long)sop);
	default:
		return int80(NR32_semtimedop_time64, SET, (long)sop, 1, (long)ts, 0);
	}
}

ROLE(every_entry)
{
	struct sembuf *sop = mmap(NULL, t_page(), PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	int entries = atoi(argv[0]);

	T_EQ(t_generation(), 2);
	T_ASSERT(sop != MAP_FAILED);
	for (int i = 0; i < entries; i++) {
		*sop = (struct sembuf)OP(i, -1, REC | NOW);
		T_EQ(take(i, sop), 1);
		T_EQ(VAL(i), 0);
		T_ERR(take(i, sop), EAGAIN);
		*sop = (struct sembuf)OP(i, -1, SEM_RECOVER | NOW);
		T_ERR(take(i, sop), EINVAL);
	}
	return 0;
}

T(every_entry)
{
	int entries = 7, status;
	pid_t pid = t_fork();

	if (!pid) {
		int80(20, 0, 0, 0, 0, 0);	/* getpid */
		_exit(0);
	}
	status = t_wait(pid);
	if (!WIFEXITED(status)) {
		t_note("no 32-bit system calls in this kernel");
		entries = 4;
	}
	SETS(1, 1, 1, 1, 1, 1, 1);
	RESTARTS("every_entry", (char[]){ '0' + entries, 0 }) {
		for (int i = 0; i < 7; i++)
			T_EQ(DO(OP(i, -1, REC)), 0);
	}
	remove_set();
}

/* A set and an operation too big for the stack. */
ROLE(large)
{
	struct sembuf sops[400];

	T_EQ(t_generation(), 2);
	for (int i = 0; i < 400; i++)
		sops[i] = (struct sembuf)OP(i, -1, REC | NOW);
	T_EQ(semop(SET, sops, 400), 200);
	for (int i = 0; i < 400; i++)
		T_EQ(VAL(i), 0);
	T_ERR(DO(OP(399, -1, REC | NOW)), EAGAIN);
	return 0;
}

T(large_set)
{
	unsigned short ones[500];
	struct sembuf sops[200];

	for (int i = 0; i < 500; i++)
		ones[i] = 1;
	for (int i = 0; i < 200; i++)
		sops[i] = (struct sembuf)OP(2 * i, -1, REC);
	t_word[0] = T_OK(semget(IPC_PRIVATE, 500, 0600));
	T_OK(semctl(SET, 0, SETALL, ones));
	RESTARTS("large")
		T_EQ(semop(SET, sops, 200), 0);
	for (int i = 0; i < 400; i++)
		T_EQ(VAL(i), 1);
	remove_set();
}

/* Permission is asked each time. */
/* Many sets, some of which go away at any time; all others are inherited. */
enum { MANY = 400 };

static int many[MANY];

ROLE(many)
{
	int id, taken = 0, all = 0;
	FILE *f = fopen(argv[0], "r");

	T_EQ(t_generation(), 2);
	T_ASSERT(f);
	while (fscanf(f, "%d", &id) == 1) {
		int rc = semop(id, &(struct sembuf)OP(0, -1, REC | NOW), 1);

		if (all++ % 2)
			T_EXPECT(rc == 1 || (rc < 0 && (errno == EINVAL || errno == EIDRM)));
		else
			T_EQ(rc, 1);
		taken += rc == 1;
	}
	T_EQ(all, MANY);
	T_EXPECT(taken >= MANY / 2);
	fclose(f);
	return 0;
}

T_LIMIT(many_sets, 60)
{
	char path[PATH_MAX];
	FILE *f = fopen(t_path(path, "sets"), "w");
	pid_t pid;

	T_ASSERT(f);
	for (int i = 0; i < MANY; i++) {
		many[i] = T_OK(semget(IPC_PRIVATE, 1 + i % 3, 0600));
		T_OK(semctl(many[i], 0, SETVAL, 1));
		fprintf(f, "%d\n", many[i]);
	}
	fclose(f);
	pid = t_fork();
	if (!pid) {
		for (int i = 0; i < MANY; i++)
			T_EQ(semop(many[i], &(struct sembuf)OP(0, -1, SEM_UNDO), 1), 0);
		t_register("many", path, NULL);
		MARK(0) = 1;
		t_crash();
	}
	while (!MARK(0))
		sched_yield();
	for (int i = 1; i < MANY; i += 2)
		T_OK(semctl(many[i], 0, IPC_RMID));
	T_EXITED(t_wait(pid), 0);
	for (int i = 0; i < MANY; i += 2) {
		T_EQ(semctl(many[i], 0, GETVAL), 1);
		T_OK(semctl(many[i], 0, IPC_RMID));
	}
}

ROLE(not_allowed)
{
	T_EQ(t_generation(), 2);
	T_ERR(DO(OP(0, -1, REC | NOW)), EACCES);
	return 0;
}

T(permission_taken_away)
{
	SETS(1);
	RESTARTS("not_allowed") {
		struct semid_ds ds;

		T_EQ(DO(OP(0, -1, REC)), 0);
		T_OK(semctl(SET, 0, IPC_STAT, &ds));
		ds.sem_perm.mode = 0;
		T_OK(semctl(SET, 0, IPC_SET, &ds));
		t_drop_root();
	}
	T_EQ(semctl(SET, 0, GETVAL), 1);
	remove_set();
}
