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
#include <sys/stat.h>
#include <unistd.h>

#include "library.h"
#include "points.h"
#include "test.h"

#define STATUS_SOME	3	/* something is wrong, and the others are done */

static int usage(FILE *to, int status)
{
	fputs("usage: rescuectl COMMAND\n\n"
	      "  add BINARY SYMBOL --value N [--name NAME] [--burst N] [--interval TIME]\n"
	      "      [--deadline TIME] [--output give-up|cork|cascade] [--errno NAME [--libc FILE]] [--inject N]\n"
	      "                     SYMBOL returns N when it faults, in all processes that run BINARY; of a file\n"
	      "                     of your own: in yours\n"
	      "  remove NAME... [--user UID]\n"
	      "                     takes points away; --all: each\n"
	      "  list [--json]      the points there are, and what has become of their faults\n"
	      "  load [PATH]        adds those of a file or a directory (" RESCUE_DIRECTORY "), and replaces what has changed\n"
	      "  unload [PATH]      takes those of a file or a directory away\n"
	      "  check [PATH]       says what is wrong with them, and changes nothing\n"
	      "  suggest BINARY [-- COMMAND...]\n"
	      "                     functions of it that return an error; which of those that COMMAND calls are fit for a point\n"
	      "  test BINARY SYMBOL --value N [--inject N] [...] -- COMMAND...\n"
	      "                     runs it with a copy of BINARY, in which each N-th (1) return of SYMBOL faults\n"
	      "  show BINARY SYMBOL where a function begins, and where it is left\n"
	      "  cascade COMMAND... runs it; its TCP connections let peers undo what they have sent\n", to);
	return status;
}

/* Is that number's file still at its path? @gone or @replaced if not; NULL: it is, or nothing is known */
static const char *changed(const char *path, const char *number, const char *gone, const char *replaced)
{
	const char *how = NULL;
	char now[FILE_NUMBER];
	struct stat st;
	int fd;

	if (!*path || !*number)
		return NULL;
	if (stat(path, &st))
		return errno == ENOENT || errno == ENOTDIR ? gone : NULL;
	if (!S_ISREG(st.st_mode))
		return replaced;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return NULL;
	file_number(fd, now);
	if (*now && strcmp(now, number))
		how = replaced;
	close(fd);
	return how;
}

/* What the kernel does not know of them */
static void add_notes(json_t *points)
{
	struct notes notes;
	json_t *point;
	size_t i;

	notes_read(&notes);
	json_array_foreach(points, i, point) {
		const json_t *note = notes_of(&notes, point);
		const char *how = changed(note_text(note, "binary"), note_text(note, "file"), "file gone", "file replaced");

		if (!how)
			how = changed(note_text(note, "libc"), note_text(note, "libc_file"), "C library gone", "C library replaced");
		if (note)
			json_object_set(point, "binary", json_object_get(note, "binary"));
		if (how)
			json_object_set_new(point, "changed", json_string(how));
	}
	json_decref(notes.all);
}

static int list(bool json)
{
	json_t *points = points_read(), *point;
	const char *why, *how, *separator;
	size_t i;

	if (!points)
		return complain(POINTS_FILE);
	add_notes(points);
	if (json) {
		json_dumpf(points, stdout, JSON_INDENT(2));
		putchar('\n');
		json_decref(points);
		return 0;
	}
	printf("%-32s %10s %8s %8s %8s %8s  %s\n", "NAME", "ENTERED", "RESCUED", "GIVEN UP", "REFUSED", "DIED", "WHY");
	json_array_foreach(points, i, point) {
		/* Scopes of programs' own, and of peers, when there were any */
		if (!point_number(point, "id") && !point_number(point, "entered") && !point_sum(point, "refused_") && !point_sum(point, "died_"))
			continue;
		printf("%-32s %10lld %8lld %8lld %8lld %8lld  ", point_name(point), point_number(point, "entered"), point_number(point, "rescued"),
		       point_sum(point, "given_up_"), point_sum(point, "refused_"), point_sum(point, "died_"));
		why = point_sum(point, "died_") ? "died_" : point_sum(point, "refused_") ? "refused_" : "given_up_";
		point_reasons(stdout, point, why);
		separator = point_sum(point, why) ? ", " : "";
		if (point_number(point, "errno_unset")) {
			printf("%serrno not set %lld", separator, point_number(point, "errno_unset"));
			separator = ", ";
		}
		how = json_string_value(json_object_get(point, "changed"));
		if (how) {
			printf("%s%s", separator, how);
			separator = ", ";
		}
		if (point_number(point, "id") && point_number(point, "uid") != geteuid())
			printf("%sof user %lld", separator, point_number(point, "uid"));
		putchar('\n');
	}
	json_decref(points);
	return 0;
}

/* ---- Points */

static const struct point *find_name(const struct point *points, const char *name)
{
	while (points && strcmp(points->name, name))
		points = points->next;
	return points;
}

/* Those that came from files there, and that these do not have any more: how many. They are away from @there, too. */
static unsigned int remove_gone(const char *path, const struct point *points, json_t *there, const struct notes *notes, int *errors)
{
	char *place = notes_place(path);
	unsigned int removed = 0;

	for (size_t i = place ? json_array_size(there) : 0; i-- > 0;) {
		json_t *point = json_array_get(there, i);

		if (note_is_of(notes_of(notes, point), place) && !find_name(points, point_name(point)))
			removed += points_drop(there, i, errors);
	}
	free(place);
	return removed;
}

/* The status if so many points are as they are to be, and something else may be wrong */
static int outcome(unsigned int right, unsigned int wrong)
{
	return !wrong ? 0 : right ? STATUS_SOME : 1;
}

static int load(const char *path)
{
	unsigned int counts[POINT_COUNTS] = { };
	struct point *points = NULL;
	int errors = config_read(path, &points);
	const bool readable = !errors;
	struct notes notes;
	json_t *before;

	if (!notes_begin(&notes)) {
		config_free(points);
		return 1;
	}
	before = points_read();
	for (struct point *point = points; point; point = point->next) {
		/* What is wrong has been said */
		if (!point->wrong)
			point_place(point, before, &notes, counts);
	}
	/* A line that is wrong may be the one that names a point */
	if (readable)
		counts[POINT_REMOVED] += remove_gone(path, points, before, &notes, &errors);
	counts[POINT_WRONG] += errors;
	printf("%u added, %u replaced, %u there before, %u wrong", counts[POINT_NEW], counts[POINT_REPLACED], counts[POINT_THERE],
	       counts[POINT_WRONG]);
	if (counts[POINT_REMOVED])
		printf(", %u removed", counts[POINT_REMOVED]);
	if (counts[POINT_KEPT])
		printf(", %u kept for processes of files that were replaced", counts[POINT_KEPT]);
	putchar('\n');
	notes_end(&notes);
	json_decref(before);
	config_free(points);
	return outcome(counts[POINT_NEW] + counts[POINT_REPLACED] + counts[POINT_THERE], counts[POINT_WRONG]);
}

/* Those of the files, and those that came from there, and no others */
static int unload(const char *path)
{
	struct point *points = NULL;
	unsigned int removed;
	struct notes notes;
	int errors = 0;
	json_t *there;

	if (!notes_begin(&notes))
		return 1;
	there = points_read();
	if (!there)
		errors += complain(POINTS_FILE);
	removed = remove_gone(path, NULL, there, &notes, &errors);
	/* That there is no such file may be why */
	if (!removed || !access(path, F_OK) || errno != ENOENT)
		errors += config_read(path, &points);
	for (struct point *point = points; point; point = point->next)
		removed += points_remove(there, point->name, geteuid(), &errors);
	printf("%u removed, %d wrong\n", removed, errors);
	notes_end(&notes);
	json_decref(there);
	config_free(points);
	return outcome(removed, errors);
}

static int check(const char *path)
{
	struct point *points = NULL;
	int errors = config_read(path, &points), right = 0;

	for (struct point *point = points; point; point = point->next) {
		struct function function;
		int fd;

		if (point->wrong)
			continue;
		fd = point_open(point, &function);
		if (fd < 0) {
			errors++;
		} else {
			right++;
			close(fd);
		}
	}
	printf("%d right, %d wrong\n", right, errors);
	config_free(points);
	return !!errors;
}

/*
 * Whose points of that name are meant: one's own, or those of the only other user who has some. @uid: of that one, -1: nobody was named. -1: what is
 * wrong has been said.
 */
static long long find_user(json_t *points, const char *name, long long uid)
{
	long long found = -1;
	json_t *point;
	size_t i;

	if (uid < 0 && points_find(points, name))
		return geteuid();
	json_array_foreach(points, i, point) {
		const long long owner = point_number(point, "uid");

		if (!point_number(point, "id") || strcmp(point_name(point), name) || (uid >= 0 && owner != uid))
			continue;
		if (found >= 0 && owner != found) {
			fprintf(stderr, "rescuectl: several users have a point %s, as `rescuectl list` shows: say --user %lld or another\n",
				name, found);
			return -1;
		}
		found = owner;
	}
	if (found < 0)
		fprintf(stderr, "rescuectl: there is no point %s%s: `rescuectl list` shows them\n", name, uid < 0 ? "" : " of that user");
	else if (uid < 0)
		printf("%s is user %lld's\n", name, found);
	return found;
}

static int remove_points(char *const *names, bool all, long long uid)
{
	json_t *points = points_read(), *point;
	int errors = 0;
	size_t i;

	if (!points)
		return complain(POINTS_FILE);
	json_array_foreach(points, i, point) {
		if (all && point_number(point, "id") && (uid < 0 || point_number(point, "uid") == uid))
			errors += point_remove(point_number(point, "id"), point_name(point));
	}
	for (; *names; names++) {
		const long long owner = find_user(points, *names, uid);

		if (owner < 0)
			errors++;
		else
			points_remove(points, *names, owner, &errors);
	}
	json_decref(points);
	return !!errors;
}

static int show(const char *binary, const char *symbol)
{
	int fd = function_open(binary);
	struct function function;

	if (fd < 0)
		return 1;
	if (function_find(fd, binary, symbol, &function)) {
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

/* BINARY SYMBOL: 0, or the status */
static int complete(char **argv, struct point *point)
{
	point->binary = file_path(argv[0]);
	if (!point->binary)
		return complain(argv[0]);
	point->symbol = argv[1];
	if (!point->has_value) {
		fprintf(stderr, "rescuectl: what does %s return when it fails? Say it: --value N\n", point->symbol);
		return 2;
	}
	if (point->libc && !point->error) {
		fprintf(stderr, "rescuectl: --libc is where errno is: which one? Say it: --errno NAME\n");
		return 2;
	}
	if (!*point->name && !name_valid(point->symbol)) {
		fprintf(stderr, "rescuectl: %s cannot be the name of a point: --name NAME\n", point->symbol);
		return 2;
	}
	if (!*point->name)
		strcpy(point->name, point->symbol);
	return 0;
}

static int add(const struct point *point)
{
	unsigned int counts[POINT_COUNTS] = { };
	struct notes notes;
	json_t *before;
	bool there;

	if (!notes_begin(&notes))
		return 1;
	before = points_read();
	there = points_find(before, point->name);
	if (there)
		fprintf(stderr, "rescuectl: there is a point %s already: `rescuectl remove %s` takes it away\n", point->name, point->name);
	else
		point_place(point, before, &notes, counts);
	notes_end(&notes);
	json_decref(before);
	return there || counts[POINT_WRONG];
}

static int try(struct point *point, char *const *argv, bool limited)
{
	if (!point->inject)
		point->inject = 1;
	if (!limited)
		point->burst = RESCUE_BURST_MAX;
	return test(point, argv);
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

/* What is wrong with the argument of an option; NULL: nothing */
static const char *take(int option, const char *text, struct point *point, int64_t *user)
{
	switch (option) {
	case 'u':
		return value_parse(text, user) && *user >= 0 ? NULL : "not the number of a user";
	case 'v':
		point->has_value = value_parse(text, &point->value);
		return point->has_value ? NULL : "not a number, as -1 or 0x7f";
	case 'n':
		snprintf(point->name, sizeof(point->name), "%s", text);
		return name_valid(text) ? NULL : "not a name: up to 127 characters without blanks";
	case 'b':
		return burst_parse(text, &point->burst) ? NULL : "not a number from 1 to 1000000";
	case 'I':
		return burst_parse(text, &point->inject) ? NULL : "not a number from 1 to 1000000";
	case 'i':
		return interval_parse(text, &point->interval_ms) ? NULL : "not a time from 1ms to 49d (ms, s, m, h, d)";
	case 'd':
		return interval_parse(text, &point->deadline_ms) ? NULL : "not a time from 1ms to 49d (ms, s, m, h, d)";
	case 'e':
		return error_parse(text, &point->error) ? NULL : "not an error, as EIO or 5";
	case 'l':
		free(point->libc);
		point->libc = file_path(text);
		return point->libc ? NULL : strerror(errno);
	case 'o':
		return output_parse(text, &point->output) ? NULL : "not give-up, cork or cascade";
	default:
		return NULL;
	}
}

/* Does the command know all options that are given? */
static bool knows(const char *command, const char *given)
{
	static const char *const known[][2] = {
		{ "add", "vnbidoelI" }, { "test", "vnbidoelI" }, { "remove", "au" }, { "list", "j" },
	};
	const char *options = "";

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
		if (!strcmp(command, known[i][0]))
			options = known[i][1];
	}
	return given[strspn(given, options)] == 0;
}

/* The status; what could not be written is an error */
static int written(int status)
{
	if (!fflush(stdout) && !ferror(stdout))
		return status;
	fputs("rescuectl: not all of the output could be written\n", stderr);
	return status ?: 1;
}

static int obey(int argc, char **argv)
{
	static const struct option options[] = {
		{ "value", required_argument, NULL, 'v' },
		{ "name", required_argument, NULL, 'n' },
		{ "burst", required_argument, NULL, 'b' },
		{ "interval", required_argument, NULL, 'i' },
		{ "deadline", required_argument, NULL, 'd' },
		{ "output", required_argument, NULL, 'o' },
		{ "errno", required_argument, NULL, 'e' },
		{ "libc", required_argument, NULL, 'l' },
		{ "inject", required_argument, NULL, 'I' },
		{ "json", no_argument, NULL, 'j' },
		{ "all", no_argument, NULL, 'a' },
		{ "user", required_argument, NULL, 'u' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ }
	};
	struct point point = { .burst = DEFAULT_BURST, .interval_ms = DEFAULT_INTERVAL_MS };
	char given[sizeof(options) / sizeof(*options)] = "";
	const char *command, *why;
	int option, which;
	int64_t user = -1;

	/* Options of the command are its own */
	while ((option = getopt_long(argc, argv, argc > 1 && !strcmp(argv[1], "cascade") ? "+" : "", options, &which)) != -1) {
		if (option == '?')
			return usage(stderr, 2);
		if (option == 'h')
			return usage(stdout, 0);
		if (option == 'V') {
			puts("rescuectl " PERDURE_VERSION);
			return 0;
		}
		why = strchr(given, option) ? "given twice" : take(option, optarg, &point, &user);
		if (why) {
			fprintf(stderr, "rescuectl: --%s%s%s: %s\n", options[which].name, optarg ? " " : "", optarg ?: "", why);
			return 2;
		}
		given[strlen(given)] = option;
	}
	if (optind == argc)
		return usage(stderr, 2);
	command = argv[optind++];
	argc -= optind;
	argv += optind;
	if (!knows(command, given))
		return usage(stderr, 2);
	if ((!strcmp(command, "add") && argc == 2) || (!strcmp(command, "test") && argc > 2)) {
		int status = complete(argv, &point);

		if (!status)
			status = argc == 2 ? add(&point) : try(&point, argv + 2, strchr(given, 'b'));
		free(point.binary);
		free(point.libc);
		return status;
	}
	if (!strcmp(command, "suggest") && argc)
		return suggest(argv[0], argv + 1);
	if (!strcmp(command, "remove") && !argc == !!strchr(given, 'a'))
		return remove_points(argv, !argc, user);
	if (!strcmp(command, "list") && !argc)
		return list(strchr(given, 'j'));
	if (!strcmp(command, "load") && argc <= 1)
		return load(argc ? *argv : RESCUE_DIRECTORY);
	if (!strcmp(command, "unload") && argc <= 1)
		return unload(argc ? *argv : RESCUE_DIRECTORY);
	if (!strcmp(command, "check") && argc <= 1)
		return check(argc ? *argv : RESCUE_DIRECTORY);
	if (!strcmp(command, "show") && argc == 2)
		return show(argv[0], argv[1]);
	if (!strcmp(command, "cascade") && argc && !strcmp(*argv, "--")) {
		argc--;
		argv++;
	}
	if (!strcmp(command, "cascade") && argc)
		return cascade(argv);
	return usage(stderr, 2);
}

int main(int argc, char **argv)
{
	return written(obey(argc, argv));
}
