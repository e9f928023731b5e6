// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "points.h"
#include "returned.h"
#include "test.h"
#include "trial.h"

#define POINTS_MAX	1000	/* in one run; a user may have fewer */
#define ROUNDS_MAX	5	/* runs with the same functions, without those that are out */
#define RUNS_MAX	60

struct candidate {
	char *symbol;
	struct function function;
	enum returned_type type;
	int64_t value;
	unsigned int places;
	long long id;		/* of its point in this run; 0: none */
	bool seen;		/* it had a point in a run */
	bool settled;		/* it needs no more of them */
	bool out;		/* it has done what cannot be undone */
	json_t *counts;		/* of its last run with calls, or NULL */
};

struct candidates {
	struct candidate **all;
	size_t nr, size;
	const struct returned_types *types;
	bool failed;
};

static void consider(const char *symbol, const struct function *function, const uint8_t *code, void *arg)
{
	/* What is around all others */
	static const char *const none[] = { "main", "_start", "_init", "_fini", "deregister_tm_clones", "register_tm_clones", "frame_dummy" };
	struct candidates *candidates = arg;
	const enum returned_type type = returned_type(candidates->types, symbol);
	struct candidate *candidate;
	unsigned int places;
	int64_t value;

	for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++) {
		if (!strcmp(symbol, none[i]))
			return;
	}
	/* A name of a point, and nothing that a terminal obeys */
	if (!name_valid(symbol) || !returned_error(function, code, type, &value, &places))
		return;
	if (candidates->nr == candidates->size) {
		const size_t more = candidates->size ? 2 * candidates->size : 64;
		struct candidate **all = reallocarray(candidates->all, more, sizeof(*all));

		if (!all) {
			candidates->failed = true;
			return;
		}
		candidates->all = all;
		candidates->size = more;
	}
	candidate = calloc(1, sizeof(*candidate));
	if (!candidate || !(candidate->symbol = strdup(symbol))) {
		free(candidate);
		candidates->failed = true;
		return;
	}
	candidate->function = *function;
	candidate->type = type;
	candidate->value = value;
	candidate->places = places;
	candidates->all[candidates->nr++] = candidate;
}

static void candidate_free(struct candidate *candidate)
{
	json_decref(candidate->counts);
	free(candidate->symbol);
	free(candidate);
}

static long long calls_of(const struct candidate *candidate)
{
	return candidate->counts ? point_number(candidate->counts, "entered") + point_sum(candidate->counts, "refused_") : 0;
}

static int by_use(const void *a, const void *b)
{
	const struct candidate *one = *(struct candidate *const *)a, *other = *(struct candidate *const *)b;

	if (one->out != other->out)
		return one->out - other->out;
	if (calls_of(one) != calls_of(other))
		return calls_of(one) < calls_of(other) ? 1 : -1;
	return strcmp(one->symbol, other->symbol);
}

/* ---- Runs */

static size_t count_seen(const struct candidates *candidates)
{
	size_t nr = 0;

	for (size_t i = 0; i < candidates->nr; i++)
		nr += candidates->all[i]->seen;
	return nr;
}

/* As many as there can be of those that are not settled; false: what is wrong has been said */
static bool add_points(struct candidates *candidates, int fd)
{
	size_t nr = 0;

	for (size_t i = 0; i < candidates->nr && nr < POINTS_MAX; i++) {
		struct candidate *candidate = candidates->all[i];
		struct point point = { .burst = RESCUE_BURST_MAX, .interval_ms = 1, .value = candidate->value };

		if (candidate->settled)
			continue;
		strcpy(point.name, candidate->symbol);
		candidate->id = point_add(&point, fd, &candidate->function);
		if (candidate->id > 0) {
			nr++;
		} else if (errno == EINVAL) {
			/* It cannot have a breakpoint, and that is no reason to stop */
			candidate->settled = true;
		} else if (errno == EDQUOT && nr) {
			break;
		} else {
			return complain_add(candidate->symbol), false;
		}
	}
	if (nr || count_seen(candidates))
		return true;
	fprintf(stderr, "rescuectl: none of the %zu functions can have a breakpoint\n", candidates->nr);
	return false;
}

static void remove_points(struct candidates *candidates)
{
	for (size_t i = 0; i < candidates->nr; i++) {
		if (candidates->all[i]->id > 0)
			point_remove(candidates->all[i]->id, candidates->all[i]->symbol);
		candidates->all[i]->id = 0;
	}
}

/* How many have turned out to do what cannot be undone. If none has, or @last, this was the last run of all that had a point. */
static unsigned int look(struct candidates *candidates, bool last)
{
	json_t *points = points_read();
	unsigned int out = 0;

	for (size_t i = 0; i < candidates->nr; i++) {
		struct candidate *candidate = candidates->all[i];
		json_t *counts = candidate->id > 0 ? points_get(points, candidate->id) : NULL;

		if (!counts || point_number(counts, "entered") + point_sum(counts, "refused_") == 0)
			continue;
		json_decref(candidate->counts);
		candidate->counts = json_incref(counts);
		candidate->out = candidate->settled = point_sum(counts, "given_up_") + point_sum(counts, "refused_") > 0;
		out += candidate->out;
	}
	for (size_t i = 0; i < candidates->nr; i++) {
		candidates->all[i]->seen |= candidates->all[i]->id > 0;
		candidates->all[i]->settled |= candidates->all[i]->id > 0 && (last || !out);
	}
	json_decref(points);
	return out;
}

static bool are_settled(const struct candidates *candidates)
{
	for (size_t i = 0; i < candidates->nr; i++) {
		if (!candidates->all[i]->settled)
			return false;
	}
	return true;
}

static void progress(void *arg)
{
	fprintf(stderr, "rescuectl: run %u ...\n", *(unsigned int *)arg);
}

/*
 * What is called within a scope is a part of it: those that are out are taken away, and it runs again. Then it is the turn of those for which
 * there was no point.
 */
static bool run_all(struct candidates *candidates, struct trial *trial, char *const *argv)
{
	unsigned int round = 0;
	bool good = true;

	for (unsigned int run = 1; good && !trial->signal && run <= RUNS_MAX && !are_settled(candidates); run++) {
		const int ending = add_points(candidates, trial->fd) ? trial_run(trial, argv, progress, &run) : -1;

		if (ending >= 0) {
			const bool last = ++round == ROUNDS_MAX;
			const unsigned int out = look(candidates, last);

			fprintf(stderr, "rescuectl: run %u ended with status %d: %u functions do what cannot be undone%s\n", run, ending, out,
				out && !last && !trial->signal && run < RUNS_MAX ? "; once more without these" : "");
			if (last || !out)
				round = 0;
		}
		remove_points(candidates);
		/* What was seen before a signal is shown */
		good = ending >= 0 || trial->signal;
	}
	if (good && count_seen(candidates) < candidates->nr)
		fprintf(stderr, "rescuectl: %zu of %zu functions were looked at\n", count_seen(candidates), candidates->nr);
	return good;
}

/* ---- What comes of it */

static const char *type_name(enum returned_type type)
{
	return type == RETURNS_NUMBER ? "number" : type == RETURNS_POINTER ? "pointer" : "unknown";
}

static void print_static(const struct candidates *candidates)
{
	printf("%-40s %8s %8s %8s  %s\n", "SYMBOL", "VALUE", "PLACES", "BYTES", "RETURNS");
	for (size_t i = 0; i < candidates->nr; i++) {
		const struct candidate *candidate = candidates->all[i];

		printf("%-40s %8" PRId64 " %8u %8" PRIu64 "  %s\n", candidate->symbol, candidate->value, candidate->places,
		       candidate->function.size, type_name(candidate->type));
	}
}

static void print_run(struct candidates *candidates, const char *binary)
{
	const struct candidate *best;
	bool called = false;

	qsort(candidates->all, candidates->nr, sizeof(*candidates->all), by_use);
	best = candidates->all[0];
	for (size_t i = 0; i < candidates->nr; i++)
		called |= calls_of(candidates->all[i]) > 0;
	if (!called) {
		printf("None of the %zu functions that were looked at was called: does the command run %s?\n", count_seen(candidates), binary);
		return;
	}
	printf("%-40s %8s %10s %8s %8s  %s\n", "SYMBOL", "VALUE", "CALLS", "CANNOT", "PAGES", "WHY");
	for (size_t i = 0; i < candidates->nr; i++) {
		const struct candidate *candidate = candidates->all[i];
		const long long entered = calls_of(candidate) ? point_number(candidate->counts, "entered") : 0;

		if (!calls_of(candidate))
			continue;
		printf("%-40s %8" PRId64 " %10lld %8lld %8.1f  ", candidate->symbol, candidate->value, calls_of(candidate),
		       point_sum(candidate->counts, "given_up_") + point_sum(candidate->counts, "refused_"),
		       entered ? (double)point_number(candidate->counts, "pages") / entered : 0.0);
		point_reasons(stdout, candidate->counts, point_sum(candidate->counts, "refused_") ? "refused_" : "given_up_");
		putchar('\n');
	}
	if (!best->out && calls_of(best))
		printf("\nTry one: rescuectl test %s %s --value %" PRId64 " -- COMMAND\n", binary, best->symbol, best->value);
	else
		puts("\nNone of these was called without doing what cannot be undone.");
}

/* 0 or 1 */
static int collect(struct candidates *candidates, int fd, const char *binary)
{
	struct returned_types *types = returned_types_read(binary);
	int ret;

	if (!types)
		fprintf(stderr, "rescuectl: no debug information of %s: functions that return a null pointer are not found without\n", binary);
	candidates->types = types;
	ret = function_each(fd, binary, consider, candidates);
	candidates->types = NULL;
	returned_types_free(types);
	if (candidates->failed)
		fprintf(stderr, "rescuectl: %s\n", strerror(ENOMEM));
	return ret || candidates->failed;
}

int suggest(const char *binary, char *const *argv)
{
	struct candidates candidates = { };
	struct trial trial = { .fd = -1 };
	int status, fd = function_open(binary);

	if (fd < 0)
		return 1;
	status = collect(&candidates, fd, binary);
	close(fd);
	if (!status && !candidates.nr) {
		printf("%s: none of its functions that have a name returns an error as far as its code tells\n", binary);
	} else if (!status && !*argv) {
		print_static(&candidates);
	} else if (!status) {
		status = !trial_begin(&trial, binary) || !run_all(&candidates, &trial, argv);
		if (!status)
			print_run(&candidates, binary);
		trial_end(&trial);
		status = trial.signal ? 128 + trial.signal : status;
	}
	for (size_t i = 0; i < candidates.nr; i++)
		candidate_free(candidates.all[i]);
	free(candidates.all);
	return status;
}
