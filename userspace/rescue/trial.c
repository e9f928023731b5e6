// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trial.h"

#define PROGRESS_S	5

static bool failed(const char *what, const char *hint)
{
	fprintf(stderr, "rescuectl: %s: %s%s\n", what, strerror(errno), hint);
	return false;
}

/* Without the rights of a file that has more than who executes it */
static bool copy(const struct trial *trial, int from)
{
	struct stat st;
	ssize_t n;

	if (fstat(from, &st) || fchmod(trial->fd, st.st_mode & 0777))
		return false;
	do {
		n = sendfile(trial->fd, from, NULL, 1 << 30);
	} while (n > 0);
	return !n;
}

bool trial_begin(struct trial *trial, const char *binary)
{
	const char *place = getenv("TMPDIR") ?: "/tmp";
	int from, to;
	bool good;

	*trial = (struct trial){ .fd = -1, .binary = realpath(binary, NULL) };
	from = trial->binary ? open(trial->binary, O_RDONLY | O_CLOEXEC) : -1;
	if (from < 0)
		return failed(binary, "");
	if (snprintf(trial->directory, sizeof(trial->directory), "%s/rescue-XXXXXX", place) >= PATH_MAX - NAME_MAX || !mkdtemp(trial->directory)) {
		*trial->directory = 0;
		close(from);
		return failed(place, ": a copy of the file goes there; set TMPDIR to another place");
	}
	snprintf(trial->copy, sizeof(trial->copy), "%.3800s/%.255s", trial->directory, strrchr(trial->binary, '/') + 1);
	to = trial->fd = open(trial->copy, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
	good = to >= 0 && copy(trial, from);
	close(from);
	if (!good)
		return failed(trial->copy, ": a copy of the file goes there; set TMPDIR to another place");
	/* A file that somebody can write to is not executed */
	trial->fd = open(trial->copy, O_RDONLY | O_CLOEXEC);
	close(to);
	return trial->fd >= 0 || failed(trial->copy, "");
}

void trial_end(struct trial *trial)
{
	if (trial->fd >= 0)
		close(trial->fd);
	if (*trial->copy)
		unlink(trial->copy);
	if (*trial->directory)
		rmdir(trial->directory);
	free(trial->binary);
}

static bool write_to(const char *path, const char *format, unsigned int id)
{
	char text[64];
	const int fd = open(path, O_WRONLY | O_CLOEXEC), length = snprintf(text, sizeof(text), format, id, id);
	const bool good = fd >= 0 && write(fd, text, length) == length;

	close(fd);
	return good;
}

/* Without root, one has to be it in a user namespace of one's own; one's identity outside stays */
static bool own_mounts(void)
{
	const unsigned int uid = geteuid(), gid = getegid();

	if (!unshare(CLONE_NEWNS))
		return true;
	return !unshare(CLONE_NEWUSER | CLONE_NEWNS) && write_to("/proc/self/setgroups", "deny", 0) &&
	       write_to("/proc/self/uid_map", "%u %u 1", uid) && write_to("/proc/self/gid_map", "%u %u 1", gid);
}

/* In the child: nothing of its mounts is seen outside */
static void execute(const struct trial *trial, char *const *argv, const sigset_t *mask)
{
	if (!own_mounts())
		failed("mount namespace", ": be root, or let users have namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)");
	else if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount(trial->copy, trial->binary, NULL, MS_BIND, NULL))
		failed(trial->binary, ": the copy cannot be put in its place");
	else if (!sigprocmask(SIG_SETMASK, mask, NULL) && execvp(*argv, argv))
		failed(*argv, errno == EACCES ? ": if its copy is what cannot be executed, set TMPDIR to a place without the option noexec" : "");
}

/* Lets it end by what would have ended it without us; a terminal has sent it to both. */
static void pass_on(pid_t pid, const siginfo_t *info)
{
	if (info->si_code <= 0)
		kill(pid, info->si_signo);
}

int trial_run(const struct trial *trial, char *const *argv, void (*progress)(void *arg), void *arg)
{
	const struct timespec patience = { .tv_sec = PROGRESS_S };
	sigset_t mask, before;
	int pipe_fds[2], status;
	bool began = true;
	char byte;
	pid_t pid;

	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGHUP);
	if (pipe2(pipe_fds, O_CLOEXEC)) {
		failed("pipe", "");
		return -1;
	}
	sigprocmask(SIG_BLOCK, &mask, &before);
	pid = fork();
	if (!pid) {
		execute(trial, argv, &before);
		/* exec() closes it without a byte */
		_exit(write(pipe_fds[1], "!", 1) != 1);
	}
	close(pipe_fds[1]);
	if (pid < 0)
		failed("fork", "");
	else
		began = read(pipe_fds[0], &byte, 1) != 1;
	close(pipe_fds[0]);
	while (pid > 0 && waitpid(pid, &status, WNOHANG) != pid) {
		siginfo_t info;

		if (sigtimedwait(&mask, &info, &patience) < 0)
			progress(arg);
		else if (info.si_signo != SIGCHLD)
			pass_on(pid, &info);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (pid < 0 || !began)
		return -1;
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
