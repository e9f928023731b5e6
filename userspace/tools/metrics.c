// SPDX-License-Identifier: GPL-2.0-or-later
#include "metrics.h"

#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Users can have as many units as they like, programs write what they like, and each combination costs whoever stores it. */
#define SERIES_MAX	1000
#define OTHER		"other"
#define UNTRUE		"?"	/* for the unit of what is not root's */

static struct series {
	char *rung, *outcome, *unit;
	uint64_t count, took_ns, last_ns;
} *series;
static size_t nr_series;
static time_t start;

static char *copy(const char *text)
{
	char *new = strdup(text);

	if (!new)
		err(FAILED, "--metrics");
	return new;
}

static struct series *find(const char *rung, const char *outcome, const char *unit)
{
	struct series *s;

	for (s = series; s < series + nr_series; s++)
		if (!strcmp(s->rung, rung) && !strcmp(s->outcome, outcome) && !strcmp(s->unit, unit))
			return s;
	if (nr_series >= 2 * SERIES_MAX && strcmp(rung, OTHER))
		return find(OTHER, OTHER, OTHER);
	if (nr_series >= SERIES_MAX && strcmp(unit, OTHER))
		return find(rung, outcome, OTHER);
	series = realloc(series, (nr_series + 1) * sizeof(*series));
	if (!series)
		err(FAILED, "--metrics");
	s = series + nr_series++;
	*s = (struct series){ .rung = copy(rung), .outcome = copy(outcome), .unit = copy(unit) };
	return s;
}

static uint64_t number(const struct pair *p, int n, const char *key)
{
	return strtoull(value_of(p, n, key), NULL, 10);
}

void metrics_count(const struct pair *p, int n, const char *unit, bool of_root)
{
	struct series *s = find(value_of(p, n, "rung"), value_of(p, n, "outcome"), !of_root ? UNTRUE : unit ? unit : "");

	/* One record tells of all that are missing */
	s->count += of_root && !strcmp(s->rung, "log") ? number(p, n, "missing") : 1;
	s->took_ns += number(p, n, "retain_ns") + number(p, n, "exec_ns") + number(p, n, "restore_ns") + number(p, n, "took_ns");
	s->last_ns = number(p, n, "time_ns");
}

/* What is in the way within a label is escaped; the kernel has done so with all that is not printed. */
static void label(FILE *to, const char *name, const char *value)
{
	fprintf(to, "%s=\"", name);
	for (; *value; value++) {
		if (*value == '\\' || *value == '"')
			putc('\\', to);
		putc(*value, to);
	}
	putc('"', to);
}

static void print(FILE *to, const char *name, const struct series *s)
{
	fprintf(to, "%s{", name);
	label(to, "rung", s->rung);
	label(to, ",outcome", s->outcome);
	label(to, ",unit", s->unit);
	fputs("} ", to);
}

static void family(FILE *to, const char *name, const char *type, const char *help)
{
	fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void seconds(FILE *to, uint64_t ns)
{
	fprintf(to, "%" PRIu64 ".%09" PRIu64 "\n", ns / 1000000000, ns % 1000000000);
}

void metrics_print(FILE *to)
{
	struct series *s;

	if (!start)
		start = time(NULL);
	family(to, "perdure_watch_start_time_seconds", "gauge", "When perdurectl watch began to count");
	fprintf(to, "perdure_watch_start_time_seconds %lld\n", (long long)start);
	family(to, "perdure_verdicts_total", "counter", "Faults, and what came of them: records of perdurectl log");
	for (s = series; s < series + nr_series; s++) {
		print(to, "perdure_verdicts_total", s);
		fprintf(to, "%" PRIu64 "\n", s->count);
	}
	family(to, "perdure_verdicts_duration_seconds_total", "counter", "How long the rung itself took, without what the program does after it");
	for (s = series; s < series + nr_series; s++) {
		print(to, "perdure_verdicts_duration_seconds_total", s);
		seconds(to, s->took_ns);
	}
	family(to, "perdure_verdicts_last_time_seconds", "gauge", "When the last one was");
	for (s = series; s < series + nr_series; s++) {
		print(to, "perdure_verdicts_last_time_seconds", s);
		seconds(to, s->last_ns);
	}
}
