// SPDX-License-Identifier: GPL-2.0-or-later
/* Rows of docs/design/security.md that no other suite tests: who is refused what. */
#include "../lib/t.h"

#include <linux/userfaultfd.h>
#include <sys/mount.h>

enum { W_READY, W_STOP, W_PID };

static char *args[] = { "prog", NULL };

static void wait_for_word(int word)
{
	while (!t_word[word])
		t_sleep_ms(5);
}

/* ---- /proc ---- */

ROLE(done)
{
	return 0;
}

/* A restart that ends well; gives the process. */
static pid_t crash(void)
{
	pid_t pid = t_fork();

	if (!pid) {
		t_register("done", NULL);
		t_crash();
	}
	T_EXITED(t_wait(pid), 0);
	return pid;
}

/* Is there a record of the process in the log, as this descriptor shows it? From the beginning. */
static bool logged(int fd, pid_t pid)
{
	static char text[1 << 18];
	char key[32];
	size_t got = 0;
	ssize_t n;

	T_OK(lseek(fd, 0, SEEK_SET));
	while ((n = T_OK(read(fd, text + got, sizeof(text) - 1 - got))) > 0)
		got += n;
	text[got] = 0;
	snprintf(key, sizeof(key), " pid=%d ", pid);
	return strstr(text, key);
}

/* CAP_SYSLOG over a namespace of one's own is none over the machine's. */
T(log_from_a_container)
{
	pid_t pid = crash();
	int fd = T_OK(open("/proc/restart_log", O_RDONLY | O_CLOEXEC));

	T_EXPECT(logged(fd, pid));
	T_CHILD {
		t_contained_root();
		fd = T_OK(open("/proc/restart_log", O_RDONLY | O_CLOEXEC));
		T_EXPECT(!logged(fd, pid));
		pid = crash();
		T_EXPECT(logged(fd, pid));
	}
	close(fd);
}

/* What counts is who has opened the file, not who reads it: it may have been passed on. */
T(log_opened_by_another)
{
	pid_t pid = crash();
	int his, ours;

	T_OK(seteuid(T_NOBODY));
	his = T_OK(open("/proc/restart_log", O_RDONLY | O_CLOEXEC));
	T_OK(seteuid(0));
	ours = T_OK(open("/proc/restart_log", O_RDONLY | O_CLOEXEC));
	T_EXPECT(!logged(his, pid));
	T_CHILD {
		t_drop_root();
		T_EXPECT(logged(ours, pid));
		T_EXPECT(!logged(his, pid));
	}
}

/* A /proc that hides processes hides this file of theirs, too. */
T(hidden_processes)
{
	char place[PATH_MAX], path[PATH_MAX + 32], text[64];

	T_EQ(x_reregist(t_self, args, NULL, 0), 0);
	T_CHILD {
		T_OK(unshare(CLONE_NEWNS));
		T_OK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
		T_OK(mkdir(t_path(place, "proc"), 0755));
		T_OK(mount("none", place, "proc", 0, "hidepid=invisible"));
		snprintf(path, sizeof(path), "%s/%d/restart", place, getppid());
		T_EXPECT(t_get(path, text, sizeof(text)) > 0);
		t_drop_root();
		T_ERR(open(path, O_RDONLY | O_CLOEXEC), ENOENT);
	}
}

ROLE(registers)
{
	T_EQ(geteuid(), T_OTHER);
	T_EQ(x_reregist(t_self, args, NULL, 0), 0);
	t_word[W_READY] = 1;
	wait_for_word(W_STOP);
	return 0;
}

/* Its user has started it, and may signal it: he may not look into it all the same. */
T(privileged_program)
{
	char path[PATH_MAX], file[64], text[4096];
	pid_t pid;

	/* /tmp may be mounted nosuid. */
	T_OK(mount("none", t_tmpdir(), "tmpfs", 0, "mode=755"));
	t_copy_privileged(path, "privileged", 04755);
	T_CHILD {
		t_drop_root();
		pid = t_fork();
		if (!pid) {
			execl(path, path, "@registers", NULL);
			_exit(9);
		}
		wait_for_word(W_READY);
		snprintf(file, sizeof(file), "/proc/%d/restart", pid);
		T_EXPECT(t_get(file, text, sizeof(text)) > 0);
		T_EXPECT(!strncmp(text, "registered:\t1\n", 14));
		T_EXPECT(!strstr(text, "\npath:"));
		T_EXPECT(!strstr(text, "\nargv:"));
		T_EXPECT(!strstr(text, "\nfault_addr:"));
		snprintf(file, sizeof(file), "/proc/%d/touched_set", pid);
		T_ERR(open(file, O_RDWR | O_CLOEXEC), EACCES);
		snprintf(file, sizeof(file), "/proc/%d/lazy_loader", pid);
		T_ERR(open(file, O_RDONLY | O_CLOEXEC), EACCES);
		t_word[W_STOP] = 1;
		T_EXITED(t_wait(pid), 0);
	}
	T_OK(umount(t_tmpdir()));
}

T(loader_of_another_user)
{
	char path[64], text[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/lazy_loader", getpid());
	T_EXPECT(t_get(path, text, sizeof(text)) > 0);
	T_STREQ(text, "state: none\n");
	/* The modes say the same as what is asked for when they are opened. */
	T_OK(stat(path, &st));
	T_EQ(st.st_mode, S_IFREG | 0400);
	T_OK(stat("/proc/self/touched_set", &st));
	T_EQ(st.st_mode, S_IFREG | 0600);
	T_CHILD {
		t_drop_root();
		T_ERR(open(path, O_RDONLY | O_CLOEXEC), EACCES);
	}
	T_CHILD {
		t_contained_root();
		T_ERR(open(path, O_RDONLY | O_CLOEXEC), EACCES);
	}
}

ROLE(stays)
{
	T_EQ(geteuid(), T_OTHER);
	t_word[W_READY] = 1;
	wait_for_word(W_STOP);
	return 0;
}

/* Executed, and so dumpable: what @path does next, this one wants to know. */
ROLE(watches)
{
	char file[64];
	pid_t pid = t_fork();
	int fd;

	if (!pid) {
		wait_for_word(W_PID);
		execl(argv[0], argv[0], "@stays", NULL);
		_exit(9);
	}
	snprintf(file, sizeof(file), "/proc/%d/touched_set", pid);
	fd = T_OK(open(file, O_RDWR | O_CLOEXEC));
	t_word[W_PID] = pid;
	wait_for_word(W_READY);
	/* It is that of the program before, which has gone. */
	T_ERR(write(fd, "start", 5), ESRCH);
	T_ERR(open(file, O_RDWR | O_CLOEXEC), EACCES);
	t_word[W_STOP] = 1;
	T_EXITED(t_wait(pid), 0);
	return 0;
}

T(touched_set_of_the_program_before)
{
	char path[PATH_MAX];

	/* /tmp may be mounted nosuid. */
	T_OK(mount("none", t_tmpdir(), "tmpfs", 0, "mode=755"));
	t_copy_privileged(path, "privileged", 04755);
	T_CHILD {
		t_drop_root();
		execl(t_self, t_self, "@watches", path, NULL);
		T_EXPECT(false);
	}
	T_OK(umount(t_tmpdir()));
}

/* ---- what is for the machine's root ---- */

T(sysctls_from_a_container)
{
	static const char *const names[] = { "enabled", "min_interval_ms", "held_bytes_max", "cap_burst", "cap_interval_ms" };
	char path[64];

	T_CHILD {
		t_contained_root();
		for (size_t i = 0; i < ARRAY_LEN(names); i++) {
			snprintf(path, sizeof(path), T_SYSCTL "%s", names[i]);
			T_ERR(t_put(path, "4096"), EACCES);
		}
	}
}

/* The loader serves the kernel's own faults, too: its ioctls are for who may make a userfaultfd that does. */
static void no_userfaultfd(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	int fd;

	T_ERR(syscall(SYS_userfaultfd, O_CLOEXEC), EPERM);
	fd = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	T_EXPECT(fd < 0 && (errno == EACCES || errno == ENOENT));
	/* One for faults of programs is no image's: errors/permission */
	fd = T_OK(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
	T_OK(ioctl(fd, UFFDIO_API, &api));
}

T(userfaultfd_of_anybody)
{
	char text[8];

	T_EXPECT(t_get("/proc/sys/vm/unprivileged_userfaultfd", text, sizeof(text)) > 0);
	T_STREQ(text, "0\n");
	T_CHILD {
		t_drop_root();
		no_userfaultfd();
	}
	T_CHILD {
		t_contained_root();
		no_userfaultfd();
	}
}
