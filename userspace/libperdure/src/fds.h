/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The open file descriptors, also where there is no /proc/self/fd */
#ifndef FDS_H
#define FDS_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/*
 * No descriptor of this process is as high: the size of the kernel's table, or more. RLIMIT_NOFILE does not tell, it may be
 * a thousand millions. select(2) does: a bit for a descriptor that is not open is EBADF, and none at all beyond the table.
 */
static inline int fd_end(void)
{
	const int bits = 8 * sizeof(unsigned long);
	struct timespec now = { 0 };
	struct rlimit limit;
	int n;

	for (n = 64; n < 1 << 30; n *= 2) {
		unsigned long *set;
		int r;

		if (fcntl(n, F_GETFD) >= 0)
			continue;
		set = calloc(n / bits + 1, sizeof(*set));
		if (!set)
			break;
		set[n / bits] = 1UL << n % bits;
		r = syscall(SYS_pselect6, n + 1, set, NULL, NULL, &now, NULL);
		free(set);
		if (r >= 0)
			return n;
		if (errno != EBADF)	/* forbidden, perhaps */
			break;
	}
	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur > 1 << 30)
		return 1 << 30;
	return limit.rlim_cur;
}

/* Calls see() for each, and for some that are not open, until it returns something else than 0, which is returned. */
static inline int fd_each(int (*see)(int fd, void *arg), void *arg)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *d;
	int r = 0, error;

	if (dir) {
		while (!r && (d = readdir(dir))) {
			if (d->d_name[0] != '.' && atoi(d->d_name) != dirfd(dir))
				r = see(atoi(d->d_name), arg);
		}
		error = errno;
		closedir(dir);
		errno = error;
	} else {
		/* No /proc, in a chroot perhaps */
		for (int i = 0, end = fd_end(); !r && i < end; i++)
			r = see(i, arg);
	}
	return r;
}

#endif
