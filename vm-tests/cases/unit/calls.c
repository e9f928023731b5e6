// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * This test checks what libperdure's functions hand to the kernel and what they make of its answer.
 * It needs no kernel of ours: seccomp answers in its place, and ptrace listens.
 */
#include "../lib/seccomp.h"
#include "../lib/t.h"

#include <perdure.h>
#include <perdure/rescue.h>
#include <stddef.h>
#include <sys/ptrace.h>

/* <sys/ptrace.h> and <linux/ptrace.h> do not go together. */
#define GET_SYSCALL_INFO	0x420e

struct syscall_info {
	uint8_t op;
	uint32_t arch;
	uint64_t ip, sp;
	struct {
		uint64_t nr, args[6];
	} entry;
};

/* Values to recognize. A flag of 0 and the sizes are the library's own. */
#define PATH	((const char *)0x1001)
#define ARGV	((char **)0x1002)
#define ENVP	((char **)0x1003)
#define BUF	((void *)0x1004)
#define OFFSET	((off_t *)0x1005)
#define BIG	0x7000000000000000ull

static struct call {
	const char *name;
	int nr, nargs, ints;	/* ints: bit n, argument n is one */
	uint64_t args[6];
} calls[] = {
	{ "reregist", NR_reregist, 5, 0x18, { 0x1001, 0x1002, 0x1003, (uint32_t)-7, 0 } },
	{ "perdure_unregister", NR_reregist, 5, 0x18, { 0, 0, 0, 0, REREGIST_CLEAR } },
	{ "getreginfo", NR_getreginfo, 3, 0x4, { 0x1004, sizeof(struct reg_info), 0 } },
	{ "perdure_getreginfo", NR_getreginfo, 3, 0x4, { 0x1004, BIG, 0 } },
	{ "perdure_regpath", NR_getreginfo, 3, 0x4, { 0x1004, BIG, GETREGINFO_PATH } },
	{ "perdure_abi_version", NR_getreginfo, 3, 0x4, { 0, 0, GETREGINFO_VERSION } },
	{ "hread", NR_hread, 5, 0x11, { (uint32_t)-5, 0x1004, BIG, BIG + 1, 0 } },
	{ "lwrite", NR_lwrite, 4, 0x9, { (uint32_t)-5, 0x1004, BIG, 0 } },
	{ "lsendfile", NR_lsendfile, 5, 0x13, { (uint32_t)-5, (uint32_t)-6, 0x1005, BIG, 0 } },
	{ "getiolog", NR_getiolog, 4, 0x9, { (uint32_t)-5, 0x1004, sizeof(struct io_log), 0 } },
	{ "perdure_getiolog", NR_getiolog, 4, 0x9, { (uint32_t)-5, 0x1004, BIG, 0 } },
	{ "perdure_reregist", NR_reregist, 5, 0x18, { 0x1001, 0x1002, 0x1003, (uint32_t)-7, REREGIST_EXEC } },
	{ "restartctl", NR_restartctl, 4, 0x9, { (uint32_t)-7, 0x1004, BIG, 0 } },
	{ "perdure_setpolicy", NR_restartctl, 4, 0x9, { RESTARTCTL_SET_POLICY, 0x1004, BIG, 0 } },
	{ "perdure_getpolicy", NR_restartctl, 4, 0x9, { RESTARTCTL_GET_POLICY, 0x1004, BIG, 0 } },
	{ "perdure_heartbeat", NR_restartctl, 4, 0x9, { RESTARTCTL_HEARTBEAT, 0, 0, 0 } },
	{ "perdure_rescue", NR_rescue, 4, 0x9, { RESCUE_ENTER, (uint64_t)-5, 0, RESCUE_GIVE_UP } },
	{ "perdure_rescue_deadline", NR_rescue, 4, 0x9, { RESCUE_ENTER, (uint64_t)-5, (uint32_t)-6, RESCUE_GIVE_UP } },
	{ "perdure_rescue_cork", NR_rescue, 4, 0x9, { RESCUE_ENTER, (uint64_t)-5, 0, RESCUE_CORK } },
	{ "perdure_rescue_cascade", NR_rescue, 4, 0x9, { RESCUE_ENTER, (uint64_t)-5, 0, RESCUE_CASCADE } },
	{ "perdure_rescue_sockets", NR_rescue, 4, 0x9, { RESCUE_SOCKETS, 1, 0, 0 } },
	{ "perdure_rescue_leave", NR_rescue, 4, 0x9, { RESCUE_LEAVE, 0, 0, 0 } },
};

static long invoke(size_t i)
{
	switch (i) {
	case 0:
		return reregist(PATH, ARGV, ENVP, -7);
	case 1:
		return perdure_unregister();
	case 2:
		return getreginfo(BUF);
	case 3:
		return perdure_getreginfo(BUF, BIG);
	case 4:
		return perdure_regpath(BUF, BIG);
	case 5:
		return perdure_abi_version();
	case 6:
		return hread(-5, BUF, BIG, BIG + 1);
	case 7:
		return lwrite(-5, BUF, BIG);
	case 8:
		return lsendfile(-5, -6, OFFSET, BIG);
	case 9:
		return getiolog(-5, BUF);
	case 10:
		return perdure_getiolog(-5, BUF, BIG);
	case 11:
		return perdure_reregist(PATH, ARGV, ENVP, -7, REREGIST_EXEC);
	case 12:
		return restartctl(-7, BUF, BIG);
	case 13:
		return perdure_setpolicy(BUF, BIG);
	case 14:
		return perdure_getpolicy(BUF, BIG);
	case 15:
		return perdure_heartbeat();
	case 16:
		return perdure_rescue(-5);
	case 17:
		return perdure_rescue_deadline(-5, -6);
	case 18:
		return perdure_rescue_cork(-5);
	case 19:
		return perdure_rescue_cascade(-5);
	case 20:
		return perdure_rescue_sockets(1);
	default:
		return perdure_rescue_leave();
	}
}

T(enosys_without_the_calls)
{
	if (syscall(NR_getreginfo, NULL, 0, GETREGINFO_VERSION) != -1 || errno != ENOSYS)
		t_skip("this kernel has the calls");
	for (size_t i = 0; i < ARRAY_LEN(calls); i++)
		T_ERR(invoke(i), ENOSYS);
}

T(errors_become_errno)
{
	static const int errors[] = { EPERM, ENOSYS, EOPNOTSUPP, EINVAL, ENOBUFS, 4095 };

	for (size_t e = 0; e < ARRAY_LEN(errors); e++) {
		T_CHILD {
			answer_calls(errors[e]);
			for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
				errno = 0;
				if (!T_EQ(invoke(i), -1) || !T_EQ(errno, errors[e]))
					t_note("by %s", calls[i].name);
			}
		}
	}
}

T(success_leaves_errno)
{
	answer_calls(0);
	for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
		errno = 4711;
		if (!T_EQ(invoke(i), 0) || !T_EQ(errno, 4711))
			t_note("by %s", calls[i].name);
	}
}

/* Each function makes one system call, with these arguments. */
T(arguments)
{
	struct syscall_info info;
	size_t seen = 0;
	int status;
	pid_t pid = t_fork();

	if (!pid) {
		if (ptrace(PTRACE_TRACEME))
			_exit(77);
		raise(SIGSTOP);
		for (size_t i = 0; i < ARRAY_LEN(calls); i++)
			invoke(i);
		_exit(0);
	}
	status = t_wait(pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		t_skip("ptrace is not allowed here");
	T_OK(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
	while (!ptrace(PTRACE_SYSCALL, pid, 0, 0)) {
		struct call *c = &calls[seen];

		status = t_wait(pid);
		if (!WIFSTOPPED(status))
			break;
		T_OK(ptrace(GET_SYSCALL_INFO, pid, sizeof(info), &info));
		if (info.op != 1 || info.entry.nr < NR_reregist || info.entry.nr > NR_rescue)
			continue;
		T_ASSERT(seen < ARRAY_LEN(calls));
		T_EQ(info.entry.nr, c->nr);
		for (int i = 0; i < c->nargs; i++) {
			uint64_t arg = info.entry.args[i];

			/* Of an int, only half of the register means something. */
			if (c->ints & 1 << i)
				arg = (uint32_t)arg;
			if (!T_EQ(arg, c->args[i]))
				t_note("argument %d of %s", i, c->name);
		}
		seen++;
	}
	T_EXITED(status, 0);
	T_EQ(seen, ARRAY_LEN(calls));
}

T(structures_are_the_kernels)
{
	T_EQ(sizeof(struct reg_info), REG_INFO_SIZE_VER0);
	T_EQ(sizeof(struct io_log), IO_LOG_SIZE_VER0);
	T_EQ(offsetof(struct reg_info, generation), 8);
	T_EQ(offsetof(struct reg_info, signo), 16);
	T_EQ(offsetof(struct reg_info, fault_addr), 24);
	T_EQ(offsetof(struct reg_info, suspect_fd), 36);
	T_EQ(offsetof(struct reg_info, fault_time_ns), 40);
	T_EQ(offsetof(struct reg_info, restarts), 72);
	T_EQ(offsetof(struct io_log, written), 32);
}
