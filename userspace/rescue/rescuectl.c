// SPDX-License-Identifier: GPL-2.0-or-later
/* rescuectl: functions that return an error when they fault. See rescuectl(8). */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config.h"

#ifndef __NR_rescue
#define __NR_rescue 507
#endif

#define PROC	"/proc/rescue"
#define ERROR_MAX	1024

static int usage(FILE *to, int status)
{
	fputs("usage: rescuectl COMMAND\n\n"
	      "  add BINARY SYMBOL --value N [--name NAME] [--burst N] [--interval TIME]\n"
	      "      [--deadline TIME] [--output give-up|cork|cascade]\n"
	      "                     SYMBOL returns N when it faults, in all processes that run BINARY; of a file\n"
	      "                     of your own: in yours\n"
	      "  remove NAME...     takes points away; --all: each\n"
	      "  list [--json]      the points there are, and what has become of their faults\n"
	      "  load [PATH]        adds those of a file or a directory (" RESCUE_DIRECTORY ") that are not there\n"
	      "  check [PATH]       says what is wrong with them, and changes nothing\n"
	      "  show BINARY SYMBOL where a function begins, and where it is left\n"
	      "  cascade COMMAND... runs it; its TCP connections let peers undo what they have sent\n", to);
	return status;
}

static long rescue(unsigned int op, unsigned long arg, size_t size)
{
	return syscall(__NR_rescue, op, arg, size, 0);
}

static int complain(const char *what)
{
	const char *hint = "";

	if (errno == ENOSYS)
		hint = ": this kernel has no rescue points: boot one of Perdure's";
	else if (errno == EPERM || errno == EACCES)
		hint = ": that is for root; without it you add points to files of your own";
	else if (errno == EDQUOT)
		hint = ": you have as many points as a user can: remove some";
	fprintf(stderr, "rescuectl: %s: %s%s\n", what, strerror(errno), hint);
	return 1;
}

/* ---- What the kernel has */

/* NULL and errno: the kernel does not say */
static json_t *read_points(void)
{
	FILE *file = fopen(PROC, "re");
	char *line = NULL, *save, *word;
	json_t *points;
	size_t size = 0;

	if (!file)
		return NULL;
	points = json_array();
	while (getline(&line, &size, file) > 0) {
		json_t *point = json_object();

		for (word = strtok_r(line, " \n", &save); word; word = strtok_r(NULL, " \n", &save)) {
			char *value = strchr(word, '='), *end;
			long long number;

			if (!value)
				continue;
			*value++ = 0;
			number = strtoll(value, &end, 10);
			json_object_set_new(point, word, *value && !*end && strcmp(word, "name") ? json_integer(number) : json_string(value));
		}
		json_array_append_new(points, point);
	}
	free(line);
	fclose(file);
	return points;
}

static long long number_of(const json_t *point, const char *key)
{
	return json_integer_value(json_object_get(point, key));
}

static const char *name_of(const json_t *point)
{
	return json_string_value(json_object_get(point, "name"));
}

/* The number of the point of that name; 0: there is none */
static long long find_point(json_t *points, const char *name)
{
	json_t *point;
	size_t i;

	json_array_foreach(points, i, point) {
		if (number_of(point, "id") && !strcmp(name_of(point), name))
			return number_of(point, "id");
	}
	return 0;
}

static long long sum_of(json_t *point, const char *prefix)
{
	long long sum = 0;
	const char *key;
	json_t *value;

	json_object_foreach(point, key, value) {
		if (!strncmp(key, prefix, strlen(prefix)))
			sum += json_integer_value(value);
	}
	return sum;
}

/* "output 3, threads 1" */
static void print_reasons(json_t *point, const char *prefix)
{
	const char *key, *separator = "";
	json_t *value;

	json_object_foreach(point, key, value) {
		if (strncmp(key, prefix, strlen(prefix)))
			continue;
		printf("%s%s %lld", separator, key + strlen(prefix), (long long)json_integer_value(value));
		separator = ", ";
	}
}

static int list(bool json)
{
	json_t *points = read_points(), *point;
	size_t i;

	if (!points) {
		if (errno == ENOENT)
			errno = ENOSYS;
		return complain(PROC);
	}
	if (json) {
		json_dumpf(points, stdout, JSON_INDENT(2));
		putchar('\n');
		json_decref(points);
		return 0;
	}
	printf("%-32s %10s %8s %8s %8s %8s  %s\n", "NAME", "ENTERED", "RESCUED", "GIVEN UP", "REFUSED", "DIED", "WHY");
	json_array_foreach(points, i, point) {
		/* Scopes of programs' own, when there were any */
		if (!number_of(point, "id") && !number_of(point, "entered"))
			continue;
		printf("%-32s %10lld %8lld %8lld %8lld %8lld  ", name_of(point), number_of(point, "entered"), number_of(point, "rescued"),
		       sum_of(point, "given_up_"), sum_of(point, "refused_"), sum_of(point, "died_"));
		print_reasons(point, sum_of(point, "died_") ? "died_" : sum_of(point, "refused_") ? "refused_" : "given_up_");
		putchar('\n');
	}
	json_decref(points);
	return 0;
}

/* ---- Points */

/* Finds the function, and adds the point if @add; 0 or 1 */
static int apply(const struct point *point, bool add)
{
	int fd = open(point->binary, O_RDONLY | O_CLOEXEC);
	struct rescue_point args = { .fd = fd, .value = point->value, .burst = point->burst,
				     .interval_ms = point->interval_ms, .deadline_ms = point->deadline_ms, .output = point->output };
	struct function function;
	char error[ERROR_MAX];

	if (fd < 0)
		return complain(point->binary);
	if (function_find(fd, point->binary, point->symbol, &function, error, sizeof(error))) {
		fprintf(stderr, "rescuectl: %s\n", error);
		close(fd);
		return 1;
	}
	if (point->build_id && strncmp(point->build_id, function.build_id, FUNCTION_BUILD_ID)) {
		fprintf(stderr, "rescuectl: %s: its build ID is %s, not %s: look whether the point is right for it, and change build_id\n",
			point->binary, *function.build_id ? function.build_id : "missing", point->build_id);
		close(fd);
		return 1;
	}
	if (add) {
		strcpy(args.name, point->name);
		args.entry = function.entry;
		args.nr_returns = function.nr_returns;
		args.returns = (uintptr_t)function.returns;
		if (rescue(RESCUE_ADD, (unsigned long)&args, sizeof(args)) < 0) {
			close(fd);
			return complain(point->name);
		}
	}
	close(fd);
	return 0;
}

static int load(const char *path, bool add)
{
	struct point *points = NULL, *point;
	int errors = config_read(path, &points), there = 0, added = 0;
	json_t *before = add ? read_points() : NULL;

	for (point = points; point; point = point->next) {
		/* What is incomplete has been said */
		if (!point->binary || !point->symbol || !point->has_value)
			continue;
		if (find_point(before, point->name)) {
			there++;
			continue;
		}
		if (apply(point, add))
			errors++;
		else
			added++;
	}
	if (add)
		printf("%d added, %d there before, %d wrong\n", added, there, errors);
	else
		printf("%d right, %d wrong\n", added, errors);
	json_decref(before);
	config_free(points);
	return !!errors;
}

static int remove_point(long long id, const char *name)
{
	return rescue(RESCUE_REMOVE, id, 0) ? complain(name) : 0;
}

static int remove_points(char *const *names, bool all)
{
	json_t *points = read_points(), *point;
	int status = 0;
	size_t i;

	if (!points)
		return complain(PROC);
	json_array_foreach(points, i, point) {
		if (all && number_of(point, "id"))
			status |= remove_point(number_of(point, "id"), name_of(point));
	}
	for (; *names; names++) {
		const long long id = find_point(points, *names);

		if (id) {
			status |= remove_point(id, *names);
		} else {
			fprintf(stderr, "rescuectl: there is no point %s: `rescuectl list` shows them\n", *names);
			status = 1;
		}
	}
	json_decref(points);
	return status;
}

static int show(const char *binary, const char *symbol)
{
	int fd = open(binary, O_RDONLY | O_CLOEXEC);
	struct function function;
	char error[ERROR_MAX];

	if (fd < 0)
		return complain(binary);
	if (function_find(fd, binary, symbol, &function, error, sizeof(error))) {
		fprintf(stderr, "rescuectl: %s\n", error);
		close(fd);
		return 1;
	}
	printf("binary    %s\nbuild_id  %s\nsymbol    %s, %" PRIu64 " bytes\nentered   0x%" PRIx64 "\n", binary,
	       *function.build_id ? function.build_id : "-", symbol, function.size, function.entry);
	printf("left      %u places, %u of them by a jump:", function.nr_returns, function.tails);
	for (unsigned int i = 0; i < function.nr_returns; i++)
		printf(" 0x%" PRIx64, function.returns[i]);
	putchar('\n');
	close(fd);
	return 0;
}

/* ---- Arguments */

static int add(int argc, char **argv, struct point *point)
{
	json_t *before;
	bool there;

	if (argc != 2)
		return usage(stderr, 2);
	point->binary = realpath(argv[0], NULL);
	if (!point->binary)
		return complain(argv[0]);
	point->symbol = argv[1];
	if (!point->has_value) {
		fprintf(stderr, "rescuectl: what does %s return when it fails? Say it: --value N\n", point->symbol);
		return 2;
	}
	if (!*point->name && snprintf(point->name, sizeof(point->name), "%s", point->symbol) >= (int)sizeof(point->name)) {
		fprintf(stderr, "rescuectl: %s is too long for a name: --name NAME\n", point->symbol);
		return 2;
	}
	before = read_points();
	there = find_point(before, point->name);
	json_decref(before);
	if (there) {
		fprintf(stderr, "rescuectl: there is a point %s already: `rescuectl remove %s` takes it away\n", point->name, point->name);
		return 1;
	}
	return apply(point, true);
}

static int cascade(char **argv)
{
	if (rescue(RESCUE_SOCKETS, 1, 0)) {
		if (errno == EINVAL || errno == EOPNOTSUPP)
			fputs("rescuectl: this kernel has no peers that go back: boot a newer one of Perdure's\n", stderr);
		else
			complain("cascade");
		return 1;
	}
	execvp(*argv, argv);
	fprintf(stderr, "rescuectl: %s: %s\n", *argv, strerror(errno));
	return 1;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "value", required_argument, NULL, 'v' },
		{ "name", required_argument, NULL, 'n' },
		{ "burst", required_argument, NULL, 'b' },
		{ "interval", required_argument, NULL, 'i' },
		{ "deadline", required_argument, NULL, 'd' },
		{ "output", required_argument, NULL, 'o' },
		{ "json", no_argument, NULL, 'j' },
		{ "all", no_argument, NULL, 'a' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ }
	};
	struct point point = { .burst = DEFAULT_BURST, .interval_ms = DEFAULT_INTERVAL_MS };
	bool json = false, all = false;
	const char *command;
	int option;

	/* Options of the command are its own */
	while ((option = getopt_long(argc, argv, argc > 1 && !strcmp(argv[1], "cascade") ? "+" : "", options, NULL)) != -1) {
		bool good = true;

		switch (option) {
		case 'v':
			good = point.has_value = value_parse(optarg, &point.value);
			break;
		case 'n':
			good = name_valid(optarg);
			snprintf(point.name, sizeof(point.name), "%s", optarg);
			break;
		case 'b':
			good = burst_parse(optarg, &point.burst);
			break;
		case 'i':
			good = interval_parse(optarg, &point.interval_ms);
			break;
		case 'd':
			good = interval_parse(optarg, &point.deadline_ms);
			break;
		case 'o':
			good = output_parse(optarg, &point.output);
			break;
		case 'j':
			json = true;
			break;
		case 'a':
			all = true;
			break;
		case 'h':
			return usage(stdout, 0);
		case 'V':
			puts("rescuectl " PERDURE_VERSION);
			return 0;
		default:
			return usage(stderr, 2);
		}
		if (!good) {
			fprintf(stderr, "rescuectl: %s: not what it should be; see rescuectl(8)\n", optarg);
			return 2;
		}
	}
	if (optind == argc)
		return usage(stderr, 2);
	command = argv[optind++];
	argc -= optind;
	argv += optind;
	if (!strcmp(command, "add"))
		return add(argc, argv, &point);
	if (!strcmp(command, "remove") && !argc == all)
		return remove_points(argv, all);
	if (!strcmp(command, "list") && !argc)
		return list(json);
	if (!strcmp(command, "load") && argc <= 1)
		return load(argc ? *argv : RESCUE_DIRECTORY, true);
	if (!strcmp(command, "check") && argc <= 1)
		return load(argc ? *argv : RESCUE_DIRECTORY, false);
	if (!strcmp(command, "show") && argc == 2)
		return show(argv[0], argv[1]);
	if (!strcmp(command, "cascade") && argc)
		return cascade(argv);
	return usage(stderr, 2);
}
