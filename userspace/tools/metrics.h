/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Counts of records, as Prometheus reads them: perdurectl watch --metrics */
#ifndef METRICS_H
#define METRICS_H

#include <stdbool.h>

#include "facts.h"

/* @unit: where it was, as the kernel writes it, or NULL; @of_root: is that true? */
void metrics_count(const struct pair *p, int n, const char *unit, bool of_root);

/* All counts */
void metrics_print(FILE *to);

#endif
