/* SPDX-License-Identifier: GPL-2.0-or-later */
/* perdurectl log, perdurectl watch */
#ifndef LOG_H
#define LOG_H

#include <stdbool.h>
#include <stdint.h>

struct log_options {
	bool json;
	long last;			/* of log: so many lines; 0: all */
	bool status;			/* of log: is there something to show? */
	int64_t since;			/* what comes after this number; -1: not given */
	bool journal;			/* of watch */
	const char *hook, *cursor, *metrics;
};

int show_log(int argc, char **argv, const struct log_options *options);
int watch_log(int argc, char **argv, const struct log_options *options);

#endif
