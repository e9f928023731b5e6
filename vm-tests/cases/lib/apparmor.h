/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Profiles of AppArmor, where the kernel has it: the suite asks for it by "append": "lsm=apparmor". */
#ifndef APPARMOR_H
#define APPARMOR_H

#include "t.h"

#include <sys/mount.h>

static T_UNUSED void aa_load(const char *profiles)
{
	char path[PATH_MAX], command[PATH_MAX + 64], label[64];

	if (t_get("/proc/self/attr/apparmor/current", label, sizeof(label)) <= 0)
		t_skip("no AppArmor in this kernel");
	if (access("/sys/kernel/security/apparmor", F_OK))
		T_OK(mount("none", "/sys/kernel/security", "securityfs", 0, NULL));
	t_write_file(t_path(path, "profiles"), profiles, strlen(profiles), 0600);
	snprintf(command, sizeof(command), "apparmor_parser --replace --skip-cache %s", path);
	T_EQ(system(command), 0);
}

/* The calling process, from now on */
static T_UNUSED void aa_confine(const char *profile)
{
	char text[64];

	snprintf(text, sizeof(text), "changeprofile %s", profile);
	T_OK(t_put("/proc/self/attr/apparmor/current", text));
}

#endif
