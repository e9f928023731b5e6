/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A seccomp filter that answers in the kernel's place. */
#ifndef SECCOMP_H
#define SECCOMP_H

#include "t.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

/* From now on all our calls fail with err; 0: they do nothing and succeed. */
static void answer_calls(int err)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, NR_reregist, 0, 2),
		BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, NR_restartctl, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { ARRAY_LEN(code), code };

	T_OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	T_OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog));
}

#endif
