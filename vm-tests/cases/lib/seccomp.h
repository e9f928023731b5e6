/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Seccomp filters that answer in the kernel's place. */
#ifndef SECCOMP_H
#define SECCOMP_H

#include "t.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#ifdef __aarch64__
#define NATIVE	AUDIT_ARCH_AARCH64
#else
#define NATIVE	AUDIT_ARCH_X86_64
#endif

static void filter(struct sock_filter *code, size_t len)
{
	struct sock_fprog prog = { len, code };

	T_OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	T_OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog));
}

/* From now on a call of this table, native or another, gets this answer (SECCOMP_RET_...). */
__attribute__((unused)) static void answer_call(unsigned int arch, int nr, unsigned int answer)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, arch, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, answer),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	filter(code, ARRAY_LEN(code));
}

/* From now on all our calls fail with err; 0: they do nothing and succeed. */
__attribute__((unused)) static void answer_calls(int err)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, NR_reregist, 0, 2),
		BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, NR_rescue, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	filter(code, ARRAY_LEN(code));
}

#endif
