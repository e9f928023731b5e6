/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef RESCUE_TEST_H
#define RESCUE_TEST_H

#include "config.h"

/* rescuectl test: a command whose calls of a function fault on purpose; the status of rescuectl */
int test(struct point *point, char *const *argv);

/* rescuectl suggest: functions of a file that return an error; with a command, what becomes of their calls */
int suggest(const char *binary, char *const *argv);

#endif
