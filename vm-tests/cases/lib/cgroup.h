/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A memory cgroup of the test's own. */
#ifndef CGROUP_H
#define CGROUP_H

#include "t.h"

#include <sys/mount.h>

static char cg_mnt[64], cg_dir[96];

static const char *cg_path(const char *file)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%.30s", cg_dir, file);
	return path;
}

static T_UNUSED void cg_open(const char *limit)
{
	snprintf(cg_mnt, sizeof(cg_mnt), "%.40s/cgroup", t_tmpdir());
	snprintf(cg_dir, sizeof(cg_dir), "%s", cg_mnt);
	T_OK(mkdir(cg_mnt, 0755));
	if (mount("none", cg_mnt, "cgroup2", 0, NULL))
		t_skip("no cgroup2");
	t_put(cg_path("cgroup.subtree_control"), "+memory");
	snprintf(cg_dir, sizeof(cg_dir), "%s/zlr-test-%d", cg_mnt, getpid());
	T_OK(mkdir(cg_dir, 0755));
	if (t_put(cg_path("memory.max"), limit)) {
		rmdir(cg_dir);
		t_skip("no memory controller");
	}
	t_put(cg_path("memory.swap.max"), "0");
}

/* The calling process moves in. */
static T_UNUSED void cg_enter(void)
{
	T_OK(t_put(cg_path("cgroup.procs"), "0"));
}

static T_UNUSED long cg_get(const char *file)
{
	char text[32];

	T_OK(t_get(cg_path(file), text, sizeof(text)));
	return atol(text);
}

static T_UNUSED void cg_close(void)
{
	/* The last process may be on its way out. */
	for (int i = 0; i < 50 && rmdir(cg_dir); i++)
		t_sleep_ms(20);
	T_OK(umount2(cg_mnt, MNT_DETACH));
	T_OK(rmdir(cg_mnt));
}

#endif
