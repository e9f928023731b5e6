// SPDX-License-Identifier: GPL-2.0-or-later
/* REREGIST_EXEC: a registration that stays over one execve(2), unless that one gains privileges. */
#include "gen.h"

#include <sys/mount.h>

/* Registers for "prog @role" and executes "path @next". */
static void launch(const char *role, int id, const char *path, const char *next)
{
	char name[32];

	snprintf(name, sizeof(name), "@%s", role);
	T_OK(syscall(NR_reregist, t_self, (char *[]){ t_self, name, NULL }, environ, id, REREGIST_EXEC));
	execl(path, "prog", next, NULL);
	T_ASSERT(!"execve");
}

ROLE(crashes)
{
	struct reg_info info;

	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.child_id, 42);
	T_EQ(info.generation, 1);
	T_EQ(info.is_restarted, 0);
	t_crash();
}

T(stays)
{
	T_CHILD
		launch("gen2", 42, t_self, "@crashes");
}

ROLE(not_registered)
{
	struct reg_info info;

	T_EQ(x_getreginfo(&info), 0);
	return 0;
}

ROLE(executes)
{
	T_EQ(t_generation(), 1);
	execl(t_self, "prog", "@not_registered", NULL);
	return 1;
}

/* One execve(2), not two; without the flag, none. */
T(only_once)
{
	T_CHILD
		launch("must_not_run", 1, t_self, "@executes");
	T_CHILD {
		t_register("must_not_run", NULL);
		execl(t_self, "prog", "@not_registered", NULL);
	}
	/* The last registration counts. */
	T_CHILD {
		T_OK(syscall(NR_reregist, t_self, (char *[]){ t_self, NULL }, environ, 0, REREGIST_EXEC));
		t_register("must_not_run", NULL);
		execl(t_self, "prog", "@not_registered", NULL);
	}
	T_CHILD {
		T_OK(syscall(NR_reregist, t_self, (char *[]){ t_self, NULL }, environ, 0, REREGIST_EXEC));
		T_OK(x_unregister());
		execl(t_self, "prog", "@not_registered", NULL);
	}
}

/* An execve(2) that fails is none. */
T(failed_exec)
{
	T_CHILD {
		T_OK(syscall(NR_reregist, t_self, (char *[]){ t_self, "@gen2", NULL }, environ, 42, REREGIST_EXEC));
		execl("/nonexistent", "prog", NULL);
		execl("/proc/self/status", "prog", NULL);
		execl(t_self, "prog", "@crashes", NULL);
	}
}

/* One that fails with the old program gone is no fault of that: it dies, as without us. */
T(exec_fails_halfway)
{
	static char file[1 << 20];
	char path[PATH_MAX];
	int status, n = t_get("/proc/self/exe", file, sizeof(file));

	/* What the headers promise is not there */
	T_ASSERT(n > 4096);
	t_write_file(t_path(path, "cut"), file, 1000, 0755);
	for (int keep = 0; keep < 2; keep++) {
		pid_t pid = t_fork();

		if (!pid) {
			setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
			T_OK(syscall(NR_reregist, t_self, (char *[]){ t_self, "@must_not_run", NULL }, environ, 0, keep ? REREGIST_EXEC : 0));
			execl(path, "prog", NULL);
			_exit(1);
		}
		status = t_wait(pid);
		T_EXPECT(WIFSIGNALED(status));
	}
}

ROLE(starts_anew)
{
	t_register("must_not_run", NULL);
	T_EQ(t_generation(), 1);
	return 0;
}

ROLE(clears)
{
	T_EQ(t_generation(), 2);
	T_OK(syscall(NR_reregist, t_self, (char *[]){ t_self, NULL }, environ, 0, REREGIST_EXEC));
	T_OK(x_unregister());
	execl(t_self, "prog", "@starts_anew", NULL);
	return 1;
}

/* A registration that was dropped before the execve(2) leaves nothing to the next. */
T(cleared_before)
{
	T_CHILD {
		t_register("clears", NULL);
		t_crash();
	}
}

/* A fault before the execve(2): the program runs. */
T(fault_before)
{
	T_CHILD {
		T_OK(syscall(NR_reregist, t_self, (char *[]){ t_self, "@gen2", NULL }, environ, 42, REREGIST_EXEC));
		t_crash();
	}
}

/* Each generation keeps itself registered over an execve(2) of its own, as perdurectl run does. */
ROLE(relay)
{
	uint64_t gen = t_generation();

	t_word[0] = gen;
	if (gen == 4)
		return 0;
	launch("relay", 42, t_self, "@crashes_later");
	return 1;
}

ROLE(crashes_later)
{
	T_EQ(t_generation(), t_word[0]);
	t_crash();
}

T(again_and_again)
{
	T_CHILD
		launch("relay", 42, t_self, "@crashes");
	T_EQ(t_word[0], 4);
}

static void privileged(mode_t mode, bool drop, const char *role)
{
	char path[PATH_MAX];

	t_copy_privileged(path, "priv", mode);
	T_CHILD {
		if (drop)
			t_drop_root();
		launch("must_not_run", 1, path, role);
	}
}

T(gained_privileges)
{
	/* /tmp may be mounted nosuid. */
	T_OK(mount("none", t_tmpdir(), "tmpfs", 0, "mode=755"));
	privileged(04755, true, "@not_registered");
	privileged(02755, true, "@not_registered");
	/* Root that becomes somebody else */
	privileged(04755, false, "@not_registered");
	/* Without the bits, the same file */
	privileged(0755, true, "@registered");
	T_OK(umount(t_tmpdir()));
}

ROLE(registered)
{
	T_EQ(t_generation(), 1);
	return 0;
}

/* no_new_privs: nothing is gained, nothing is dropped. */
T(no_new_privileges)
{
	T_OK(mount("none", t_tmpdir(), "tmpfs", 0, "mode=755"));
	T_OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	privileged(06755, true, "@registered");
	T_OK(umount(t_tmpdir()));
}
