// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A disk that fails, by LD_PRELOAD. REPLAY_DISK: "OPERATION NUMBER FAULT", more of them separated by commas. OPERATION is read or
 * write, NUMBER counts its calls from 1, with a + behind it all calls from there on. FAULT:
 *
 *	eio, enospc	nothing is done, and this is the error
 *	short		a part is done, of whole sectors where there are two or more, and this is the result
 *	torn		a part is written, and the error is EIO
 *	holes		each second sector is written, and the error is EIO
 *	slow		a second passes first
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#define SECTOR	4096ul

static _Atomic unsigned long calls[2];

static const char *fault(const char *operation, unsigned long number)
{
	const char *at = getenv("REPLAY_DISK");
	size_t len = strlen(operation);

	while (at && *at) {
		unsigned long wanted = 0;
		char *end;

		if (!strncmp(at, operation, len) && at[len] == ' ') {
			wanted = strtoul(at + len + 1, &end, 10);
			if (wanted == number || (*end == '+' && number >= wanted))
				return strchr(end, ' ') + 1;
		}
		at = strchr(at, ',');
		if (at)
			at++;
	}
	return NULL;
}

static int is(const char *fault, const char *name)
{
	return fault && !strncmp(fault, name, strlen(name));
}

static ssize_t error(int number)
{
	errno = number;
	return -1;
}

ssize_t pwritev64v2(int fd, const struct iovec *v, int n, off64_t place, int flags)
{
	ssize_t (*next)(int, const struct iovec *, int, off64_t, int) = dlsym(RTLD_NEXT, "pwritev64v2");
	const char *how = fault("write", ++calls[0]);
	size_t half = v->iov_len / 2 / SECTOR * SECTOR, at;
	struct iovec part = { .iov_base = v->iov_base, .iov_len = half };

	if (is(how, "eio"))
		return error(EIO);
	if (is(how, "enospc"))
		return error(ENOSPC);
	if (is(how, "slow"))
		nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
	if (is(how, "short") && half)
		return next(fd, &part, 1, place, flags);
	if (is(how, "torn")) {
		if (half)
			next(fd, &part, 1, place, flags);
		return error(EIO);
	}
	if (is(how, "holes")) {
		part.iov_len = SECTOR;
		for (at = SECTOR; at < v->iov_len; at += 2 * SECTOR) {
			part.iov_base = (char *)v->iov_base + at;
			next(fd, &part, 1, place + at, flags);
		}
		return error(EIO);
	}
	return next(fd, v, n, place, flags);
}

ssize_t preadv64(int fd, const struct iovec *v, int n, off64_t place)
{
	ssize_t (*next)(int, const struct iovec *, int, off64_t) = dlsym(RTLD_NEXT, "preadv64");
	const char *how = fault("read", ++calls[1]);
	struct iovec part = { .iov_base = v->iov_base, .iov_len = v->iov_len / 2 / SECTOR * SECTOR };

	if (is(how, "eio"))
		return error(EIO);
	if (is(how, "short") && part.iov_len)
		return next(fd, &part, 1, place);
	return next(fd, v, n, place);
}
