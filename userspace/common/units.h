/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Numbers of files of options, and of command lines */
#ifndef COMMON_UNITS_H
#define COMMON_UNITS_H

#include <stdbool.h>
#include <stdint.h>

/* What a number may be followed by, and how many it stands for; ended by { NULL } */
typedef const char *const units[][2];

extern units unit_sizes;	/* "64k", "4M", "1G" */
extern units unit_times;	/* "500ms", "30s", "5m", "2h", "1d": in ns */
extern units unit_counts;	/* none */

/* Not more than @max */
bool unit_parse(const char *text, units of, uint64_t max, uint64_t *value);

#endif
