/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where there is no /proc/self/fd: how far to look for open file descriptors. */
#ifndef FDS_H
#define FDS_H

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

#endif
