// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * perdurectl: which processes are restarted after a fault, what has happened to them, and "run": a program that knows
 * nothing of this, registered. See perdurectl(1).
 *
 * What the kernel tells is text with keys. It is passed on as it comes, so that a key that is new there is new here.
 */
#include <ctype.h>
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <perdure.h>

#include "facts.h"
#include "log.h"
#include "run.h"
#include "upgrade.h"
#include "words.h"

static bool json;

/* ---- list and show ---- */

static ssize_t read_proc(long pid, const char *name, char *buf, size_t size)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%ld/%s", pid, name);
	return read_file(path, buf, size);
}

/* Room for argv of 128 KiB, every byte escaped. */
static char text[5 << 17];

static void comm_of(long pid, char *comm, size_t size)
{
	ssize_t n = read_proc(pid, "comm", comm, size);

	/* Gone meanwhile, or not readable */
	if (n <= 0)
		strcpy(comm, "-");
	else if (comm[n - 1] == '\n')
		comm[n - 1] = 0;
}

/* The control group that systemd uses, and the unit that it is: added to the rest. */
static int add_unit(long pid, struct pair *pairs, int n)
{
	static char groups[2 * PATH_MAX], *unit;
	char *line;

	if (read_proc(pid, "cgroup", groups, sizeof(groups)) < 0)
		return n;
	for (line = strtok(groups, "\n"); line && strncmp(line, "0::", 3); line = strtok(NULL, "\n"))
		;
	if (!line)
		return n;
	pairs[n++] = (struct pair){ "cgroup", line + 3 };
	free(unit);
	unit = unit_of(line + 3);
	if (unit)
		pairs[n++] = (struct pair){ "unit", unit };
	return n;
}

/* How long ago the last fault was, if that is what began this generation */
static int add_fault_age(struct pair *pairs, int n)
{
	static const char *const parts[] = { "age_ns", "retain_ns", "exec_ns", "restore_ns" };
	const char *cause = value_of(pairs, n, "cause");
	static char age[32];
	uint64_t ns = 0;

	if (!strcmp(cause, "none") || !strcmp(cause, "asked") || !strcmp(value_of(pairs, n, "age_ns"), "-"))
		return n;
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
		ns += strtoull(value_of(pairs, n, parts[i]), NULL, 10);
	snprintf(age, sizeof(age), "%" PRIu64, ns);
	pairs[n++] = (struct pair){ "fault_age_ns", age };
	return n;
}

/* False when there is no such process, or it does not say. */
static bool registration(long pid, struct pair *pairs, int *n)
{
	if (read_proc(pid, "restart", text, sizeof(text)) < 0)
		return false;
	*n = split_lines(text, pairs, PAIRS - 3);
	if (!strcmp(value_of(pairs, *n, "registered"), "1"))
		*n = add_unit(pid, pairs, add_fault_age(pairs, *n));
	return true;
}

/* A time, so wide, or "-" */
static void print_column(const struct pair *pairs, int n, const char *key, int width)
{
	const char *ns = value_of(pairs, n, key);
	char *word = NULL;
	size_t size;
	FILE *f = open_memstream(&word, &size);

	if (!f)
		err(FAILED, "list");
	if (!strcmp(ns, "-"))
		putc('-', f);
	else
		print_span(f, strtoull(ns, NULL, 10));
	fclose(f);
	printf("  %*s", width, word);
	free(word);
}

/* What a process calls itself, in a column */
static void print_comm(const char *comm)
{
	char *word = NULL;
	size_t size;
	FILE *f = open_memstream(&word, &size);

	if (!f)
		err(FAILED, "list");
	print_name(f, comm);
	fclose(f);
	printf("%-15s", word);
	free(word);
}

static int compare(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;

	return x < y ? -1 : x > y;
}

static int list(int argc, char **argv)
{
	static const char *const columns[] = { "child_id", "generation", "signo", "cause", "left" };
	size_t n = 0, room = 0, shown = 0;
	struct pair pairs[PAIRS];
	struct dirent *d;
	long *pids = NULL;
	char comm[64];
	int count;
	DIR *dir;

	(void)argv;
	if (argc > 1)
		errx(USAGE, "list takes no arguments; perdurectl show PID tells of one process");
	must_tell("/proc/self/restart");
	dir = opendir("/proc");
	if (!dir)
		err(FAILED, "/proc");
	while ((d = readdir(dir))) {
		if (!isdigit(d->d_name[0]))
			continue;
		if (n == room) {
			room = room ? 2 * room : 256;
			pids = realloc(pids, room * sizeof(*pids));
			if (!pids)
				err(FAILED, "list");
		}
		pids[n++] = atol(d->d_name);
	}
	closedir(dir);
	qsort(pids, n, sizeof(*pids), compare);

	if (json)
		putchar('[');
	for (size_t i = 0; i < n; i++) {
		if (!registration(pids[i], pairs, &count) || strcmp(value_of(pairs, count, "registered"), "1"))
			continue;
		comm_of(pids[i], comm, sizeof(comm));
		if (json) {
			fputs(shown ? ",\n " : "", stdout);
			print_object(pids[i], comm, pairs, count);
		} else {
			if (!shown)
				printf("%7s  %-15s  %4s  %10s  %4s  %-5s  %4s  %8s  %8s  %8s  %-20s  %s\n", "PID", "PROGRAM", "ROLE",
				       "GENERATION", "SIG", "CAUSE", "LEFT", "LIVES", "FAULT", "DOWNTIME", "UNIT", "POLICY");
			printf("%7ld  ", pids[i]);
			print_comm(comm);
			for (int c = 0; c < 5; c++) {
				static const int width[] = { 4, 10, 4, -5, 4 };

				printf("  %*s", width[c], value_of(pairs, count, columns[c]));
			}
			print_column(pairs, count, "age_ns", 8);
			print_column(pairs, count, "fault_age_ns", 8);
			print_column(pairs, count, "downtime_ns", 8);
			printf("  %-20s  %s\n", value_of(pairs, count, "unit"), value_of(pairs, count, "policy"));
		}
		shown++;
	}
	free(pids);
	if (json)
		printf("]\n");
	else if (!shown)
		fprintf(stderr, "perdurectl: no process is registered\n");
	return 0;
}

static int show(int argc, char **argv)
{
	struct pair pairs[PAIRS];
	char comm[64], *end;
	bool registered;
	long pid;
	int n;

	if (argc != 2)
		errx(USAGE, "show needs one process id: perdurectl show PID");
	pid = strtol(argv[1], &end, 10);
	if (*end || pid <= 0)
		errx(USAGE, "%s is not a process id; perdurectl list shows those that are registered", argv[1]);
	must_tell("/proc/self/restart");
	if (!registration(pid, pairs, &n)) {
		if (errno == EACCES || errno == EPERM)
			errx(FAILED, "process %ld: you may not see it; try as root", pid);
		if (errno == ENOENT || errno == ESRCH)
			errx(NOT_REGISTERED, "there is no process %ld", pid);
		err(FAILED, "/proc/%ld/restart", pid);
	}
	comm_of(pid, comm, sizeof(comm));
	registered = !strcmp(value_of(pairs, n, "registered"), "1");
	if (json) {
		print_object(pid, comm, pairs, n);
		putchar('\n');
		return registered ? 0 : NOT_REGISTERED;
	}
	printf("%-18s %ld\n%-18s ", "pid", pid, "comm");
	print_name(stdout, comm);
	putchar('\n');
	for (int i = 0; i < n; i++) {
		const char *key = pairs[i].key;

		printf("%-18s ", key);
		print_text(stdout, pairs[i].value);
		if (!strcmp(key, "age_ns") || !strcmp(key, "fault_age_ns") || !strcmp(key, "downtime_ns")) {
			printf(" (");
			print_span(stdout, strtoull(pairs[i].value, NULL, 10));
			putchar(')');
		}
		putchar('\n');
	}
	if (!registered)
		fprintf(stderr, "perdurectl: process %ld is not registered: a fault kills it\n", pid);
	else if (!strcmp(value_of(pairs, n, "path"), "-"))
		fprintf(stderr, "perdurectl: its program and arguments are for its owner and root\n");
	return registered ? 0 : NOT_REGISTERED;
}

/* ---- the rest ---- */

static int check(int argc, char **argv)
{
	static const char *const files[] = { "enabled", "min_interval_ms", "cap_burst", "cap_interval_ms",
					     "stable_ms", "held_bytes_max" };
	char path[64], value[64];

	(void)argv;
	if (argc > 1)
		errx(USAGE, "check takes no arguments");
	explain();
	if (json)
		printf("{\"abi\": %d", perdure_abi_version());
	else
		printf("%-18s %d\n", "abi", perdure_abi_version());
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		snprintf(path, sizeof(path), "/proc/sys/kernel/restart/%s", files[i]);
		if (read_file(path, value, sizeof(value)) <= 0)
			continue;
		value[strcspn(value, "\n")] = 0;
		printf(json ? ", \"%s\": %s" : "%-18s %s\n", files[i], value);
	}
	if (json)
		puts("}");
	return 0;
}

static void usage(FILE *to)
{
	fputs("usage: perdurectl [--json] COMMAND\n"
	      "       perdurectl run [OPTION...] [--] PROGRAM [ARGUMENT...]\n"
	      "       perdurectl restart [OPTION...] PID|UNIT\n"
	      "       perdurectl upgrade [OPTION...] PID|UNIT PROGRAM\n\n"
	      "  list             the registered processes\n"
	      "  show PID         all about one\n"
	      "  log [PID]        what happened at the faults so far\n"
	      "    -n, --lines N        the last N lines\n"
	      "    -s, --since SEQ      what comes after that number\n"
	      "    -x, --exit-code      6 if there is something to show\n"
	      "  watch [PID]      the same, as it happens\n"
	      "    -s, --since SEQ      and what has come after that number\n"
	      "    -c, --cursor-file FILE  and what has come since it was noted there\n"
	      "    -H, --hook COMMAND   for each, executed by the shell, with PERDURE_MESSAGE and others in its environment\n"
	      "    -J, --journal        to systemd's journal\n"
	      "    -M, --metrics FILE   counts of them, for Prometheus\n"
	      "  check            can this kernel do it?\n"
	      "  run              a program that a fault restarts; perdurectl run --help\n"
	      "  restart          start one of them again, in place; perdurectl restart --help\n"
	      "  upgrade          the same, with another program\n\n"
	      "See perdurectl(1).\n", to);
}

/* The exit status, if all could be written */
static int written(int status)
{
	if (fflush(stdout) || ferror(stdout))
		err(FAILED, "writing");
	return status;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "lines", required_argument, NULL, 'n' },
		{ "since", required_argument, NULL, 's' },
		{ "exit-code", no_argument, NULL, 'x' },
		{ "cursor-file", required_argument, NULL, 'c' },
		{ "hook", required_argument, NULL, 'H' },
		{ "journal", no_argument, NULL, 'J' },
		{ "metrics", required_argument, NULL, 'M' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ NULL, 0, NULL, 0 },
	};
	static const struct {
		const char *name;
		int (*fn)(int argc, char **argv);
	} commands[] = {
		{ "list", list }, { "show", show }, { "check", check },
	};
	struct log_options log = { .since = -1 };
	const char *command;
	bool of_log, of_watch;
	char *end;
	int opt;

	/* What comes after "run" is its own, and the program's */
	if (argc > 1 && !strcmp(argv[1], "run"))
		return run(argc - 1, argv + 1);
	if (argc > 1 && (!strcmp(argv[1], "restart") || !strcmp(argv[1], "upgrade")))
		return upgrade(argc - 1, argv + 1);
	while ((opt = getopt_long(argc, argv, "jn:s:xc:H:JM:hV", options, NULL)) != -1) {
		switch (opt) {
		case 'j':
			json = log.json = true;
			break;
		case 'n':
			log.last = strtol(optarg, &end, 10);
			if (*end || log.last <= 0)
				errx(USAGE, "-n %s: not a number of lines", optarg);
			break;
		case 's':
			log.since = strtoll(optarg, &end, 10);
			if (*end || !*optarg || log.since < 0)
				errx(USAGE, "--since %s: not the seq of a record", optarg);
			break;
		case 'x':
			log.status = true;
			break;
		case 'c':
			log.cursor = optarg;
			break;
		case 'H':
			log.hook = optarg;
			break;
		case 'J':
			log.journal = true;
			break;
		case 'M':
			log.metrics = optarg;
			break;
		case 'h':
			usage(stdout);
			return 0;
		case 'V':
			printf("perdurectl %s\n", PERDURE_VERSION);
			return 0;
		default:
			usage(stderr);
			return USAGE;
		}
	}
	argv += optind;
	argc -= optind;
	if (!argc) {
		usage(stderr);
		return USAGE;
	}
	command = argv[0];
	of_log = !strcmp(command, "log");
	of_watch = !strcmp(command, "watch");
	if ((log.last || log.status) && !of_log)
		errx(USAGE, "--lines and --exit-code are for log");
	if ((log.cursor || log.hook || log.journal || log.metrics) && !of_watch)
		errx(USAGE, "--cursor-file, --hook, --journal and --metrics are for watch");
	if (log.since >= 0 && !of_log && !of_watch)
		errx(USAGE, "--since is for log and watch");
	if (log.since >= 0 && log.cursor)
		errx(USAGE, "--since: --cursor-file has the number");
	if (of_log)
		return written(show_log(argc, argv, &log));
	if (of_watch)
		return watch_log(argc, argv, &log);
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(command, commands[i].name))
			return written(commands[i].fn(argc, argv));
	if (!strcmp(command, "run") || !strcmp(command, "restart") || !strcmp(command, "upgrade"))
		errx(USAGE, "%s has to be the first word; it takes no --json", command);
	errx(USAGE, "no such command: %s; there are list, show, log, watch, check, run, restart and upgrade", command);
}
