// SPDX-License-Identifier: GPL-2.0-or-later
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "library.h"
#include "points.h"
#include "test.h"
#include "trial.h"

/* Of the point of that number */
static void progress(void *arg)
{
	json_t *points = points_read(), *point = points_get(points, *(long long *)arg);

	if (point)
		fprintf(stderr, "rescuectl: %lld calls, %lld faults on purpose, %lld undone ...\n", point_number(point, "entered"),
			point_number(point, "injected"), point_number(point, "rescued"));
	json_decref(points);
}

static void print_ending(const char *command, int status)
{
	if (status > 128 && status < 128 + NSIG)
		printf("%s died: SIG%s\n", command, sigabbrev_np(status - 128) ?: "?");
	else
		printf("%s ended with status %d\n", command, status);
}

/* What became of it: 0 if there were faults, and all were undone */
static int judge(json_t *counts, const struct point *point, enum returned_type type)
{
	const long long entered = point_number(counts, "entered"), injected = point_number(counts, "injected");
	const long long given_up = point_sum(counts, "given_up_"), refused = point_sum(counts, "refused_"), died = point_sum(counts, "died_");

	printf("%s: %lld calls, %lld faults on purpose, %lld faults undone: it returned %" PRId64 "\n", point->symbol, entered, injected,
	       point_number(counts, "rescued"), point->value);
	if (type == RETURNS_UNKNOWN)
		printf("no debug information tells what %s returns: its callers get that value only if it is a number or a pointer\n", point->symbol);
	if (point_number(counts, "errno_unset"))
		printf("%lld of them did not set errno: another C library is what the program has, name it by --libc\n", point_number(counts, "errno_unset"));
	if (died) {
		printf("%lld faults were not undone: ", died);
		point_reasons(stdout, counts, "died_");
		putchar('\n');
	}
	if (given_up) {
		printf("%lld calls did what cannot be undone: ", given_up);
		point_reasons(stdout, counts, "given_up_");
		putchar('\n');
	}
	if (refused) {
		printf("%lld calls were not protected: ", refused);
		point_reasons(stdout, counts, "refused_");
		putchar('\n');
	}
	if (!entered && !refused)
		printf("no call of %s: does the command run %s, and this function of it?\n", point->symbol, point->binary);
	else if (!injected)
		printf("no fault: %s has not returned %u times\n", point->symbol, point->inject);
	return !injected || died || point_number(counts, "errno_unset");
}

int test(struct point *point, char *const *argv)
{
	const struct library *library;
	struct function function;
	struct stat st, other;
	enum returned_type type;
	struct trial trial;
	json_t *points;
	long long id;
	int status = 1, ending;

	if (!trial_begin(&trial, point->binary))
		goto out;
	if (function_find(trial.fd, trial.binary, point->symbol, &function))
		goto out;
	type = returned_type_find(trial.fd, trial.binary, &function);
	if (!point_can_return(point->symbol, trial.binary, type))
		goto out;
	library = library_of(point);
	if (point->error && !library)
		goto out;
	/* A function of the C library: the command has the copy */
	if (library && !stat(trial.binary, &st) && !fstat(library->fd, &other) && st.st_dev == other.st_dev && st.st_ino == other.st_ino) {
		free(point->libc);
		point->libc = strdup(trial.copy);
	}
	id = point_add(point, trial.fd, &function);
	if (id < 0) {
		complain_add(point->name);
		goto out;
	}
	ending = trial_run(&trial, argv, progress, &id);
	points = points_read();
	if (ending >= 0) {
		status = judge(points_get(points, id), point, type);
		print_ending(*argv, ending);
		status |= !!ending;
	}
	json_decref(points);
	point_remove(id, point->name);
out:
	trial_end(&trial);
	return trial.signal ? 128 + trial.signal : status;
}
