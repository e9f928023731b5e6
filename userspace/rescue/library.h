/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Where a C library has errno */
#ifndef RESCUE_LIBRARY_H
#define RESCUE_LIBRARY_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"

struct library {
	char *path;
	int fd;
	uint64_t errno_at;	/* in the file, in bytes: the word that tells how far errno is from the thread pointer */
	struct library *next;
};

/* "EIO", "5": false if it is not an error number */
bool error_parse(const char *text, uint32_t *error);

/* Of a point with an errno: it stays open, and is looked at once. NULL: it has no errno, or what is wrong has been said. */
const struct library *library_of(const struct point *point);

#endif
