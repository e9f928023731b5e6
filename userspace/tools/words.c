// SPDX-License-Identifier: GPL-2.0-or-later
#include "words.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *unescape(const char *s, unsigned char *c)
{
	if (s[0] == '\\' && strspn(s + 1, "01234567") >= 3) {
		*c = (s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0');
		return s + 4;
	}
	*c = *s;
	return s + 1;
}

char *absolute(const char *path)
{
	char *cwd, *full = NULL;

	if (*path == '/')
		return strdup(path);
	cwd = getcwd(NULL, 0);
	if (!cwd || asprintf(&full, "%s/%s", cwd, path) < 0)
		full = NULL;
	free(cwd);
	return full;
}

ssize_t read_all(int fd, char *buf, size_t size)
{
	ssize_t n, got = 0;

	while ((n = read(fd, buf + got, size - 1 - got)) > 0)
		got += n;
	buf[got] = 0;
	return n < 0 ? -1 : got;
}

ssize_t read_file(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -1;
	n = read_all(fd, buf, size);
	close(fd);
	return n;
}

bool replace_file(const char *path, bool durable, void (*print)(FILE *to))
{
	bool done = false;
	char *new;
	int error;
	FILE *f;

	if (asprintf(&new, "%s.new", path) < 0)
		return false;
	f = fopen(new, "we");
	error = errno;
	if (f) {
		print(f);
		done = !fflush(f) && !ferror(f) && (!durable || !fsync(fileno(f))) && !rename(new, path);
		error = errno;
		fclose(f);
		if (!done)
			unlink(new);
	}
	free(new);
	errno = error;
	return done;
}
