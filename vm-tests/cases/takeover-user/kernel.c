// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Preloaded: a kernel with TCP_REPLICA, whose connections are what a file says. $TAKEOVER_KERNEL is a directory: "role" has a role's number
 * and an id, "fail" the errno of what is set, "hang" the name of what takes
 * its time, "busy" the peer that there are connections with, "later" how many seconds it is later than it is, "clock" how many its time of
 * day is ahead, and what is set is added to "log". While "slow-look" is there, who is about to open a logged reply stands still, and
 * says so by "looks"; while "slow-take" is, who has just taken one away.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <perdure/tcp_replica.h>

/* A thread's connection can have an id of its own */
_Thread_local uint64_t replica_id;

static int in_place(const char *name, int flags)
{
	const char *place = getenv("TAKEOVER_KERNEL");
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", place ? place : "/nonexistent", name);
	return open(path, flags | O_CLOEXEC, 0600);
}

static int text_of(const char *name, char text[128])
{
	int fd = in_place(name, O_RDONLY);
	ssize_t n = fd >= 0 ? read(fd, text, 127) : -1;

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	return n > 0;
}

/* What it tells of services: the file "proc" */
FILE *fopen(const char *path, const char *mode)
{
	FILE *(*next)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen64");	/* which this is, too */
	int fd;

	if (strcmp(path, "/proc/net/tcp_replica"))
		return next(path, mode);
	fd = in_place("proc", O_RDONLY);
	return fd >= 0 ? fdopen(fd, mode) : NULL;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int (*next)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
	const int result = next(clock, t);
	char text[128];

	if ((clock == CLOCK_BOOTTIME && text_of("later", text)) || (clock == CLOCK_REALTIME && text_of("clock", text)))
		t->tv_sec += atoi(text);
	return result;
}

static void stand(const char *reply, const char *while_there)
{
	char text[128];

	while (strstr(reply, "-80.") && text_of(while_there, text)) {
		close(in_place("looks", O_WRONLY | O_CREAT));
		usleep(10000);
	}
}

int openat(int dir, const char *name, int flags, ...)
{
	int (*next)(int, const char *, int, ...) = dlsym(RTLD_NEXT, "openat64");	/* which this is, too */
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, mode_t) : 0;
	va_end(args);
	stand(name, "slow-look");
	return next(dir, name, flags, mode);
}

int unlinkat(int dir, const char *name, int flags)
{
	int (*next)(int, const char *, int) = dlsym(RTLD_NEXT, "unlinkat");
	const int result = next(dir, name, flags);

	stand(name, "slow-take");
	return result;
}

int getsockopt(int fd, int level, int name, void *restrict value, socklen_t *restrict len)
{
	int (*next)(int, int, int, void *, socklen_t *) = dlsym(RTLD_NEXT, "getsockopt");
	struct tcp_replica *state = value;
	char text[128];

	if (level != IPPROTO_TCP || name != TCP_REPLICA)
		return next(fd, level, name, value, len);
	memset(state, 0, sizeof(*state));
	if (text_of("role", text))
		sscanf(text, "%" SCNu32 " %" SCNu64, (uint32_t *)&state->role, (uint64_t *)&state->id);
	if (replica_id)
		state->id = replica_id;
	return 0;
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	static const char *const ops[] = { "set", "promote", "abandon", "join", "gate", "leave" };
	int (*next)(int, int, int, const void *, socklen_t) = dlsym(RTLD_NEXT, "setsockopt");
	const struct tcp_replica *arg = value;
	char text[128];
	int log, n;

	if (level != IPPROTO_TCP || name != TCP_REPLICA)
		return next(fd, level, name, value, len);
	if (text_of("fail", text)) {
		errno = atoi(text);
		return -1;
	}
	if (text_of("busy", text) && arg->op == TCP_REPLICA_SET && arg->role && memcmp(arg->peer, (in_addr_t[]){ inet_addr(text) }, 4)) {
		errno = EBUSY;
		return -1;
	}
	/* A process has a connection locked, and sleeps */
	if (text_of("hang", text) && !strcmp(text, ops[arg->op]))
		sleep(3);
	n = snprintf(text, sizeof(text), "%s %u %u %u\n", ops[arg->op], arg->role, ntohs(arg->port), arg->patience_ms);
	log = in_place("log", O_WRONLY | O_APPEND | O_CREAT);
	if (log >= 0) {
		if (write(log, text, n) != n)
			abort();
		close(log);
	}
	return 0;
}
