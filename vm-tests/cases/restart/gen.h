/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Shared by the programs of this suite. */
#ifndef GEN_H
#define GEN_H

#include "../lib/t.h"

/* Every fault restarts, and where one must not, its core dump goes to a place of its own. */
static void no_interval(void)
{
	t_sysctl("enabled", 1);
	t_sysctl("min_interval_ms", 0);
	t_put("/proc/sys/kernel/core_pattern", "/tmp/zlr-core");
	t_put("/proc/sys/kernel/core_uses_pid", "0");
	setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, RLIM_INFINITY });
}

static void __attribute__((constructor)) use_no_interval(void)
{
	t_setup = no_interval;
}

ROLE(must_not_run)
{
	t_check(false, __FILE__, __LINE__, "restarted, where it should not");
	return 0;
}

/* The new generation, when a test wants nothing else of it. */
ROLE(gen2)
{
	T_EQ(t_generation(), 2);
	return 0;
}

#endif
