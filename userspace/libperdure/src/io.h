/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef IO_H
#define IO_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Do the plain calls take the place of the kernel's? */
bool io_plain(void);

/* Join a vector, 1 MiB of it at most, and have it written by @put. */
ssize_t io_writev(const struct iovec *iov, int n, ssize_t (*put)(void *to, const void *buf, size_t len), void *to);

#endif
