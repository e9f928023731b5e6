/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Shared by the programs of this suite. */
#ifndef SEM_H
#define SEM_H

#include "../restart/gen.h"

#include <perdure.h>
#include <sys/ipc.h>
#include <sys/sem.h>

#define SET		((int)t_word[0])	/* the set that the generations of a test share */
#define MARK(n)		(t_word[1 + (n)])
#define REC		(SEM_UNDO | SEM_RECOVER)
#define NOW		IPC_NOWAIT

/* A set with these values, in SET. */
#define SETS(...) do { \
	unsigned short _v[] = { __VA_ARGS__ }; \
	t_word[0] = T_OK(semget(IPC_PRIVATE, ARRAY_LEN(_v), 0600)); \
	T_OK(semctl(SET, 0, SETALL, _v)); \
} while (0)

#define OP(num, op, flg)	{ (num), (op), (short)(flg) }
#define DO(...) ({ \
	struct sembuf _s[] = { __VA_ARGS__ }; \
	semop(SET, _s, ARRAY_LEN(_s)); })
#define VAL(num)		semctl(SET, num, GETVAL)

/* Nobody else can take a unit of it. */
static T_UNUSED void others_stay_out(int num)
{
	T_CHILD
		T_ERR(DO(OP(num, -1, SEM_UNDO | NOW)), EAGAIN);
	T_CHILD
		T_ERR(DO(OP(num, -1, REC | NOW)), EAGAIN);
}

static T_UNUSED void remove_set(void)
{
	T_OK(semctl(SET, 0, IPC_RMID));
}

/* The block dies by a fault and comes back as role; its checks count. */
#define RESTARTS(...) \
	for (pid_t _p = t_fork(); !_p || (T_EXITED(t_wait(_p), 0), 0); \
	     t_register(__VA_ARGS__, NULL), t_crash())

#endif
