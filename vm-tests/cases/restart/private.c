// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Who may look into a new generation: nobody who could not look into the old one. It has all the files, those too that an exec
 * would have closed before it made the process open to its user.
 */
#include "gen.h"

#include <grp.h>
#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/ptrace.h>
#include <sys/uio.h>


#define SUID_DUMPABLE	"/proc/sys/fs/suid_dumpable"

enum { KEY = 20 };
enum { W_GENERATION, W_END, W_READY };

/* What another process of the user gets of it. */
enum { L_FILE = 1, L_MEM = 2, L_DIR = 4, L_LINK = 8, L_READ = 16, L_TRACE = 32, L_ALL = 63 };

static void become(uid_t uid)
{
	T_OK(setgroups(0, NULL));
	T_OK(setresgid(uid, uid, uid));
	T_OK(setresuid(uid, uid, uid));
}

static int look(pid_t pid)
{
	struct iovec mine = { &(char){ 0 }, 1 }, its = { (void *)t_self, 1 };
	int pidfd = T_OK(syscall(SYS_pidfd_open, pid, 0)), got = 0;
	char path[64], to[64];

	if (syscall(SYS_pidfd_getfd, pidfd, KEY, 0) >= 0)
		got |= L_FILE;
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	if (open(path, O_RDONLY) >= 0)
		got |= L_MEM;
	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	if (open(path, O_RDONLY) >= 0)
		got |= L_DIR;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, KEY);
	if (readlink(path, to, sizeof(to)) >= 0)
		got |= L_LINK;
	/* Any error but this one comes later. */
	if (process_vm_readv(pid, &mine, 1, &its, 1, 0) >= 0 || errno != EPERM)
		got |= L_READ;
	if (!ptrace(PTRACE_SEIZE, pid, NULL, NULL)) {
		got |= L_TRACE;
		T_OK(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL));
		T_EQ(waitpid(pid, NULL, 0), pid);
		T_OK(ptrace(PTRACE_DETACH, pid, NULL, NULL));
	}
	close(pidfd);
	return got;
}

/* As the user: look, send the fault when there is one to send, look again when the new generation is there. */
static int look_as(uid_t uid, pid_t pid, int sig)
{
	int status;
	pid_t child = t_fork();

	if (!child) {
		become(uid);
		if (sig)
			T_OK(kill(pid, sig));
		while (sig && t_word[W_GENERATION] != 2)
			t_sleep_ms(1);
		_exit(look(pid));
	}
	status = t_wait(child);
	T_EXPECT(WIFEXITED(status));
	return WEXITSTATUS(status);
}

ROLE(lives)
{
	t_word[W_GENERATION] = t_generation();
	while (!t_word[W_END])
		t_sleep_ms(1);
	return 0;
}

/* ---- services that are not for their user's eyes ---- */

/* The classic daemon */
static void drops_root(void)
{
	become(T_NOBODY);
}

static void says_so(void)
{
	become(T_NOBODY);
	T_OK(prctl(PR_SET_DUMPABLE, 0));
}

/* A saved user ID that an exec gives up */
static void may_go_back(void)
{
	T_OK(setgroups(0, NULL));
	T_OK(setresgid(T_NOBODY, T_NOBODY, T_NOBODY));
	T_OK(setresuid(T_NOBODY, T_NOBODY, 0));
	T_OK(prctl(PR_SET_DUMPABLE, 1));
	/* It means to stay so. */
	t_register("lives", NULL);
}

/* Capabilities that an exec gives up */
static void has_capabilities(void)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct d[2] = { { .permitted = 1 << CAP_NET_BIND_SERVICE } };

	T_OK(prctl(PR_SET_KEEPCAPS, 1));
	become(T_NOBODY);
	T_OK(syscall(SYS_capset, &h, d));
	T_OK(prctl(PR_SET_DUMPABLE, 1));
}

/* Its user has every capability in the new user namespace. */
static void sandboxes_itself(void)
{
	become(T_NOBODY);
	T_OK(unshare(CLONE_NEWUSER));
}

/* Not private: what the test must be able to see */
static void is_an_ordinary_program(void)
{
	become(T_NOBODY);
	T_OK(prctl(PR_SET_DUMPABLE, 1));
}

static void check(const char *name, void (*become_it)(void), const char *suid_dumpable, int expect)
{
	pid_t pid;

	t_context = name;
	memset(t_word, 0, 3 * sizeof(t_word[0]));
	T_OK(t_put(SUID_DUMPABLE, suid_dumpable));
	pid = t_fork();
	if (!pid) {
		char path[PATH_MAX];
		int fd = T_OK(open(t_path(path, "key"), O_RDWR | O_CREAT | O_CLOEXEC, 0600));

		T_ASSERT(dup3(fd, KEY, O_CLOEXEC) == KEY);
		close(fd);
		t_register("lives", NULL);
		become_it();
		/* A change of user takes back what t_fork() asked for. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		t_word[W_READY] = 1;
		for (;;)
			pause();
	}
	while (!t_word[W_READY])
		t_sleep_ms(1);
	/* While it is dumpable, its user may open the directory, but nothing in it. */
	T_EQ(look_as(T_NOBODY, pid, 0) & ~L_DIR, expect & ~L_DIR);
	T_EQ(look_as(T_NOBODY, pid, SIGSEGV), expect);
	T_EQ(t_word[W_GENERATION], 2);
	t_word[W_END] = 1;
	T_EXITED(t_wait(pid), 0);
	T_OK(t_put(SUID_DUMPABLE, "0"));
}

T(other_processes_of_the_user)
{
	/* An arrangement that forbids everything would pass the others, too. */
	check("an ordinary program", is_an_ordinary_program, "0", L_ALL);
	check("drops root", drops_root, "0", 0);
	check("drops root, root may dump", drops_root, "2", 0);
	check("says so", says_so, "0", 0);
	check("says so, anybody may dump", says_so, "1", 0);
	check("may go back to root", may_go_back, "0", 0);
	check("has capabilities", has_capabilities, "0", 0);
	check("sandboxes itself", sandboxes_itself, "0", 0);
}

/* ---- how dumpable a new generation is ---- */

ROLE(tells_dumpable)
{
	T_EQ(t_generation(), 2);
	t_word[0] = 1 + prctl(PR_GET_DUMPABLE);
	return 0;
}

static int dumpable_after(int before, const char *suid_dumpable, uid_t uid)
{
	t_word[0] = 0;
	T_OK(t_put(SUID_DUMPABLE, suid_dumpable));
	T_CHILD {
		if (uid) {
			become(uid);
			T_OK(prctl(PR_SET_DUMPABLE, 1));
		}
		if (before != 1)
			T_OK(prctl(PR_SET_DUMPABLE, before));
		t_register("tells_dumpable", NULL);
		t_crash();
	}
	T_OK(t_put(SUID_DUMPABLE, "0"));
	return t_word[0] - 1;
}

/* An exec that changes credentials, here the file system's user ID, sets what the system says. */
static int dumpable_after_change(int before, const char *suid_dumpable)
{
	t_word[0] = 0;
	T_OK(t_put(SUID_DUMPABLE, suid_dumpable));
	T_CHILD {
		T_EQ(setfsuid(T_NOBODY), 0);
		t_register("tells_dumpable", NULL);
		T_OK(prctl(PR_SET_DUMPABLE, before));
		t_crash();
	}
	T_OK(t_put(SUID_DUMPABLE, "0"));
	return t_word[0] - 1;
}

T(dumpable)
{
	T_EQ(dumpable_after(1, "0", 0), 1);
	T_EQ(dumpable_after(0, "0", 0), 0);
	T_EQ(dumpable_after(1, "0", T_NOBODY), 1);
	T_EQ(dumpable_after(0, "1", T_NOBODY), 0);
	T_EQ(dumpable_after(0, "2", T_NOBODY), 0);
	T_EQ(dumpable_after_change(1, "0"), 0);
	T_EQ(dumpable_after_change(1, "2"), 2);
	T_EQ(dumpable_after_change(0, "2"), 0);
	T_EQ(dumpable_after_change(0, "1"), 0);
}

/* ---- a program that its user may execute, but not read ---- */

T(unreadable_program)
{
	char path[PATH_MAX];
	pid_t pid;

	memset(t_word, 0, 3 * sizeof(t_word[0]));
	t_copy(t_self, t_path(path, "unreadable"), 0711);
	pid = t_fork();
	if (!pid) {
		become(T_NOBODY);
		T_OK(prctl(PR_SET_DUMPABLE, 1));
		T_OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
		T_EQ(x_reregist(path, (char *[]){ "prog", "@lives", NULL }, environ, 0), 0);
		T_ASSERT(dup2(STDIN_FILENO, KEY) == KEY);
		t_word[W_READY] = 1;
		for (;;)
			pause();
	}
	while (!t_word[W_READY])
		t_sleep_ms(1);
	T_EQ(look_as(T_NOBODY, pid, SIGSEGV), 0);
	t_word[W_END] = 1;
	T_EXITED(t_wait(pid), 0);
}

/* ---- core dumps ---- */

ROLE(dumps_no_core)
{
	struct reg_info info;

	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.core_pid, 0);
	if (info.generation == 2)
		t_crash();
	T_EQ(info.generation, 3);
	return 0;
}

/* It would be the user's file. */
T(core_dump_by_a_child)
{
	struct restart_policy policy = { .flags = RESTART_CORE };

	T_CHILD {
		t_register("dumps_no_core", NULL);
		T_EQ(x_setpolicy(&policy), 0);
		become(T_NOBODY);
		t_crash();
	}
}
