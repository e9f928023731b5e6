/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Files of rescue.d: see rescue.d(5) */
#ifndef RESCUE_CONFIG_H
#define RESCUE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "function.h"

#define RESCUE_DIRECTORY	"/etc/perdure/rescue.d"
#define DEFAULT_BURST		10
#define DEFAULT_INTERVAL_MS	60000

struct point {
	char name[RESCUE_NAME_MAX];
	char *binary, *symbol, *build_id, *libc;
	int64_t value;
	bool has_value;
	uint32_t burst, interval_ms, deadline_ms, output, inject, error;
	/* Of a file: */
	char *path;
	int line;
	unsigned int given;	/* options */
	bool wrong;		/* a line of it is: it is not to be used */
	struct point *next;
};

/* "-1", "0x7f": false if it is not a number of 64 bits. In hexadecimal all of them can be said. */
bool value_parse(const char *text, int64_t *value);
bool burst_parse(const char *text, uint32_t *burst);
bool interval_parse(const char *text, uint32_t *interval_ms);
bool output_parse(const char *text, uint32_t *output);
const char *output_name(uint32_t output);
bool name_valid(const char *name);

/*
 * A file, or all *.conf of a directory in the order of their names. What is wrong is said on stderr, with file and line; returns how many
 * files or lines are.
 */
int config_read(const char *path, struct point **points);
void config_free(struct point *points);

#endif
