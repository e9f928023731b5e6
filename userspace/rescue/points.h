/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Points that the kernel has */
#ifndef RESCUE_POINTS_H
#define RESCUE_POINTS_H

#include <jansson.h>
#include <stdio.h>

#include "config.h"
#include "notes.h"
#include "returned.h"

#define POINTS_FILE	"/proc/rescue"

/* Says what is wrong, by errno, and what to do; 1 */
int complain(const char *what);
/* The same, of a point that could not be added */
int complain_add(const char *name);

long rescue(unsigned int op, unsigned long arg, size_t size);

/* One object for each point; NULL and errno: the kernel does not say */
json_t *points_read(void);

/* The number of one's own point of that name, of several the last one; 0: there is none */
long long points_find(json_t *points, const char *name);
/* Takes one away, from @points, too. What is wrong has been said, and is counted. */
bool points_drop(json_t *points, size_t i, int *errors);
/* Takes all of a user's of that name away, from @points, too: how many. What is wrong has been said, and is counted. */
unsigned int points_remove(json_t *points, const char *name, long long uid, int *errors);
/* The point of that number, or NULL */
json_t *points_get(json_t *points, long long id);

long long point_number(const json_t *point, const char *key);
const char *point_name(const json_t *point);
/* Of all keys that begin so */
long long point_sum(json_t *point, const char *prefix);
/* "output 3, threads 1" */
void point_reasons(FILE *to, json_t *point, const char *prefix);

/* Its number, or -1 and errno: EINVAL is the function's own, others are of all of its file */
long long point_add(const struct point *point, int fd, const struct function *function);
/* false: it has been said that its result is not one that a point can set */
bool point_can_return(const char *symbol, const char *binary, enum returned_type type);
/* Opens its file and finds the function; -1: what is wrong has been said */
int point_open(const struct point *point, struct function *function);

/*
 * POINT_NEW is one that is there in addition, POINT_REPLACED one in the place of another one, as what it was to be has changed. POINT_KEPT is
 * one of a file that was replaced, and that somebody still executes, POINT_REMOVED one for which there is no reason any more.
 */
enum point_placed { POINT_WRONG, POINT_NEW, POINT_REPLACED, POINT_THERE, POINT_KEPT, POINT_REMOVED, POINT_COUNTS };

/* Lets the kernel have it as it is to be, and counts what became of it; @before is what it had. What is wrong has been said. */
void point_place(const struct point *point, json_t *before, struct notes *notes, unsigned int *counts);
int point_remove(long long id, const char *name);

#endif
