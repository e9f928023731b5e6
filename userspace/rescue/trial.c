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

#include "function.h"
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

/* What is ignored stays so */
static void block_signals(struct trial *trial)
{
	static const int ending[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	struct sigaction action;
	sigset_t mask;

	sigemptyset(&trial->ending);
	for (size_t i = 0; i < sizeof(ending) / sizeof(*ending); i++) {
		if (!sigaction(ending[i], NULL, &action) && action.sa_handler != SIG_IGN)
			sigaddset(&trial->ending, ending[i]);
	}
	mask = trial->ending;
	sigaddset(&mask, SIGCHLD);
	/* Who ignores it cannot wait for a child */
	signal(SIGCHLD, SIG_DFL);
	sigprocmask(SIG_BLOCK, &mask, &trial->before);
}

bool trial_begin(struct trial *trial, const char *binary)
{
	const char *place = getenv("TMPDIR");
	int from, to;
	bool good;

	*trial = (struct trial){ .fd = -1, .binary = file_path(binary) };
	block_signals(trial);
	if (!place || !*place)
		place = "/tmp";
	if (!trial->binary)
		return failed(binary, "");
	from = function_open(trial->binary);
	if (from < 0)
		return false;
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
	/* One that has come meanwhile ends us now */
	fflush(stdout);
	sigprocmask(SIG_SETMASK, &trial->before, NULL);
}

static bool write_to(const char *path, const char *format, unsigned int id)
{
	char text[64];
	const int fd = open(path, O_WRONLY | O_CLOEXEC), length = snprintf(text, sizeof(text), format, id, id);
	const bool good = fd >= 0 && write(fd, text, length) == length;

	if (fd >= 0)
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
static void execute(const struct trial *trial, char *const *argv)
{
	if (!own_mounts())
		failed("mount namespace", ": be root, or let users have namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)");
	else if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount(trial->copy, trial->binary, NULL, MS_BIND, NULL))
		failed(trial->binary, ": the copy cannot be put in its place");
	else if (!sigprocmask(SIG_SETMASK, &trial->before, NULL) && execvp(*argv, argv))
		failed(*argv, errno == EACCES ? ": if its copy is what cannot be executed, set TMPDIR to a place without the option noexec" : "");
}

/* Lets it end by what would have ended it without us; a terminal has sent it to both. */
static void pass_on(pid_t pid, const siginfo_t *info)
{
	if (info->si_code <= 0)
		kill(pid, info->si_signo);
}

static bool is_ended(struct trial *trial)
{
	const struct timespec now = { };
	const int taken = sigtimedwait(&trial->ending, NULL, &now);

	if (taken > 0)
		trial->signal = taken;
	return trial->signal;
}

/* 0 or -1 */
static int wait_for(struct trial *trial, pid_t pid, int *status, void (*progress)(void *arg), void *arg)
{
	const struct timespec patience = { .tv_sec = PROGRESS_S };
	sigset_t mask = trial->ending;
	siginfo_t info;
	pid_t ended;

	sigaddset(&mask, SIGCHLD);
	while (!(ended = waitpid(pid, status, WNOHANG))) {
		if (sigtimedwait(&mask, &info, &patience) < 0) {
			progress(arg);
		} else if (info.si_signo != SIGCHLD) {
			trial->signal = info.si_signo;
			pass_on(pid, &info);
		}
	}
	return ended == pid ? 0 : -1;
}

int trial_run(struct trial *trial, char *const *argv, void (*progress)(void *arg), void *arg)
{
	int pipe_fds[2], status;
	bool began;
	char byte;
	pid_t pid;

	if (is_ended(trial))
		return -1;
	if (pipe2(pipe_fds, O_CLOEXEC)) {
		failed("pipe", "");
		return -1;
	}
	pid = fork();
	if (!pid) {
		execute(trial, argv);
		/* exec() closes it without a byte */
		_exit(write(pipe_fds[1], "!", 1) != 1);
	}
	if (pid < 0)
		failed("fork", "");
	close(pipe_fds[1]);
	began = pid > 0 && read(pipe_fds[0], &byte, 1) != 1;
	close(pipe_fds[0]);
	if (pid < 0 || wait_for(trial, pid, &status, progress, arg) || !began)
		return -1;
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
