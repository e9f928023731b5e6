/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Points that the kernel has */
#ifndef RESCUE_POINTS_H
#define RESCUE_POINTS_H

#include <jansson.h>
#include <stdio.h>

#include "config.h"

#define POINTS_FILE	"/proc/rescue"

/* Says what is wrong, by errno, and what to do; 1 */
int complain(const char *what);

long rescue(unsigned int op, unsigned long arg, size_t size);

/* One object for each point; NULL and errno: the kernel does not say */
json_t *points_read(void);

/* The number of the point of that name; 0: there is none */
long long points_find(json_t *points, const char *name);
/* The point of that number, or NULL */
json_t *points_get(json_t *points, long long id);

long long point_number(const json_t *point, const char *key);
const char *point_name(const json_t *point);
/* Of all keys that begin so */
long long point_sum(json_t *point, const char *prefix);
/* "output 3, threads 1" */
void point_reasons(FILE *to, json_t *point, const char *prefix);

/* Its number, or -1 and errno */
long long point_add(const struct point *point, int fd, const struct function *function);
/* Finds the function, and adds the point if @add; 0 or 1 */
int point_apply(const struct point *point, bool add);
int point_remove(long long id, const char *name);

#endif
