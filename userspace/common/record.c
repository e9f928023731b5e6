// SPDX-License-Identifier: LGPL-2.1-or-later
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "record.h"

#define RECORD_MAX	512
#define FILE_MAX	(64u << 10)	/* then another is begun */

char *record_beside(const char *socket)
{
	static const char end[] = ".verdicts";
	const char *dot = strrchr(socket, '.');
	size_t len = dot && !strchr(dot, '/') ? (size_t)(dot - socket) : strlen(socket);
	char *path = malloc(len + sizeof(end));

	if (path) {
		memcpy(path, socket, len);
		memcpy(path + len, end, sizeof(end));
	}
	return path;
}

int record_add(const char *path, const char *format, ...)
{
	char line[RECORD_MAX], old[PATH_MAX];
	struct stat st;
	va_list args;
	int fd, n, saved;

	va_start(args, format);
	n = vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	if (n >= (int)sizeof(line)) {
		errno = EMSGSIZE;
		return -1;
	}
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0640);
	if (fd >= 0 && !fstat(fd, &st) && st.st_size > FILE_MAX && snprintf(old, sizeof(old), "%s.old", path) < (int)sizeof(old) &&
	    !rename(path, old)) {
		close(fd);
		fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
	}
	if (fd < 0)
		return -1;
	n = write(fd, line, n) == n ? 0 : -1;
	saved = errno;
	close(fd);
	errno = saved;
	return n;
}
