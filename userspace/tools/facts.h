/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the kernel tells, as text with keys; for people and for programs. A key that is new there is new here. */
#ifndef FACTS_H
#define FACTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum { FAILED = 1, USAGE = 2, NOT_REGISTERED = 5, SOME = 6 };
enum { PAIRS = 64 };

struct pair {
	const char *key, *value;
};

/* Cuts a line of the log (key=value ...), in place. */
int split_record(char *line, struct pair *pairs, int max);

/* Cuts lines of /proc/PID/restart (key:<tab>value), in place. */
int split_lines(char *text, struct pair *pairs, int max);

/* "-" if there is none */
const char *value_of(const struct pair *pairs, int n, const char *key);

/* As an object of JSON. pid: put before the rest, with comm as it is, if not 0. */
void print_object(long pid, const char *comm, const struct pair *pairs, int n);

/* A value as the kernel writes it, with the letters of other languages in place of \ooo, where that is safe. */
void print_text(FILE *to, const char *value);

/* What a process calls itself; what a terminal would obey is a question mark. */
void print_name(FILE *to, const char *bytes);

/* "152 us", "3.2 s", "5 min" */
void print_span(FILE *to, uint64_t ns);

/* Of systemd, from a control group: the service or scope that its path has below the slices. Allocated; NULL: none. */
char *unit_of(const char *cgroup);

/* The bytes of a value; allocated. */
char *bytes_of(const char *value);

/* Why there is nothing to see, for people: does not return if there is a reason. */
void explain(void);

/* The file of /proc with which a kernel like this one tells. It does so when nothing is restarted at the moment, too. */
void must_tell(const char *path);

#endif
