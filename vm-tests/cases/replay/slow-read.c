// SPDX-License-Identifier: GPL-2.0-or-later
/* A disk whose reads take their time. LD_PRELOAD=libslow-read.so */
#include <dlfcn.h>
#include <sys/uio.h>
#include <time.h>

ssize_t preadv64(int fd, const struct iovec *iov, int count, off_t place);

ssize_t preadv64(int fd, const struct iovec *iov, int count, off_t place)
{
	static ssize_t (*real)(int fd, const struct iovec *iov, int count, off_t place);
	const struct timespec pause = { .tv_nsec = 5000000 };

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "preadv64");
	nanosleep(&pause, NULL);
	return real(fd, iov, count, place);
}
