/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef IO_H
#define IO_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

/*
 * The kernel's calls have failed once as they do where they are not. That is for good: its counts miss what has been read and written
 * since, so a later one would be wrong. One word, that all threads may set.
 */
extern bool io_is_plain __attribute__((visibility("hidden")));

static inline bool io_plain(void)
{
	return __atomic_load_n(&io_is_plain, __ATOMIC_RELAXED);
}

/* Called once, before anything is read or written plainly; or NULL */
extern void (*io_on_plain)(void) __attribute__((visibility("hidden")));

/* A call has failed: because there are no such calls, or none any more? errno stays. */
bool io_missing(void);

/* Which directions of a connection's TLS are the kernel's: PERDURE_TLS_TX, PERDURE_TLS_RX. */
int tls_directions(int fd) __attribute__((visibility("hidden")));

/* Join a vector, 1 MiB of it at most, and have it written by @put. */
ssize_t io_writev(const struct iovec *iov, int n, ssize_t (*put)(void *to, const void *buf, size_t len), void *to);

#endif
