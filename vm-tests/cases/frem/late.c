// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Preloaded into frem, and not into what it runs.
 * FREM_LATE=SECONDS: an attach takes its time, while CRIU goes on, and fails.
 * FREM_LEFT=1: of the first process that it asks for, the kernel says that it has ended.
 * FREM_DIE=N: it is killed just before its Nth step.
 * FREM_SYNCED=FILE, in what it runs, too: a line for each path that fsync() is called for; there it waits while FILE.hold exists.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <perdure/lazy_loader.h>

static int late, left, steps;

__attribute__((constructor)) static void begin(void)
{
	late = atoi(getenv("FREM_LATE") ?: "0");
	left = atoi(getenv("FREM_LEFT") ?: "0");
	steps = atoi(getenv("FREM_DIE") ?: "0");
	if (!getenv("FREM_SYNCED"))
		unsetenv("LD_PRELOAD");
}

static void step(void)
{
	if (steps && !--steps)
		kill(getpid(), SIGKILL);
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *arg;
	int ret;

	step();
	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (request == UFFDIO_LAZY_ATTACH && late) {
		sleep(late);
		errno = EMFILE;
		return -1;
	}
	ret = syscall(SYS_ioctl, fd, request, arg);
	if (request == UFFDIO_LAZY_STAT && left) {
		struct uffdio_lazy_stat *stat = arg;

		left = 0;
		stat->state = UFFD_LAZY_FAILED;
		stat->error = ESRCH;
	}
	return ret;
}

int poll(struct pollfd *fds, nfds_t nr, int timeout)
{
	struct timespec limit = { timeout / 1000, timeout % 1000 * 1000000L };

	step();
	return ppoll(fds, nr, timeout < 0 ? NULL : &limit, NULL);
}

int accept4(int fd, struct sockaddr *address, socklen_t *len, int flags)
{
	step();
	return syscall(SYS_accept4, fd, address, len, flags);
}

ssize_t recv(int fd, void *buf, size_t len, int flags)
{
	step();
	return syscall(SYS_recvfrom, fd, buf, len, flags, NULL, NULL);
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	step();
	return syscall(SYS_recvmsg, fd, msg, flags);
}

ssize_t write(int fd, const void *buf, size_t len)
{
	step();
	return syscall(SYS_write, fd, buf, len);
}

int fsync(int fd)
{
	const char *list = getenv("FREM_SYNCED");
	char name[32], path[4096], hold[4096];
	FILE *file;
	ssize_t n;

	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	n = readlink(name, path, sizeof(path) - 1);
	if (list && n > 0) {
		path[n] = '\0';
		snprintf(hold, sizeof(hold), "%s.hold", list);
		file = fopen(list, "a");
		if (!file || fprintf(file, "%s\n", path) < 0 || fclose(file))
			abort();
		while (!access(hold, F_OK))
			usleep(10000);
	}
	return syscall(SYS_fsync, fd);
}
