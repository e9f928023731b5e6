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
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <perdure.h>

#include "run.h"
#include "upgrade.h"
#include "verdicts.h"
#include "words.h"

#define LOG	"/proc/restart_log"
#define RECORD	(3 * PATH_MAX)		/* longer than any line of the log */

enum { FAILED = 1, USAGE = 2 };

static bool json;

/* ---- keys and values ---- */

struct pair {
	const char *key, *value;
};

/* Cuts a line of the log (key=value ...), in place. */
static int split_record(char *line, struct pair *pairs, int max)
{
	int n = 0;

	for (char *word = strtok(line, " \n"); word && n < max; word = strtok(NULL, " \n")) {
		char *equals = strchr(word, '=');

		if (!equals)
			continue;
		*equals = 0;
		pairs[n++] = (struct pair){ word, equals + 1 };
	}
	return n;
}

/* Cuts lines of /proc/PID/restart (key:<tab>value), in place. */
static int split_lines(char *text, struct pair *pairs, int max)
{
	int n = 0;

	for (char *line = strtok(text, "\n"); line && n < max; line = strtok(NULL, "\n")) {
		char *tab = strstr(line, ":\t");

		if (!tab)
			continue;
		*tab = 0;
		pairs[n++] = (struct pair){ line, tab + 2 };
	}
	return n;
}

static const char *value_of(const struct pair *pairs, int n, const char *key)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(pairs[i].key, key))
			return pairs[i].value;
	return "-";
}

/* A number of JSON: digits, without a leading 0. */
static bool is_number(const char *s)
{
	s += *s == '-';
	if (!*s || (*s == '0' && s[1]))
		return false;
	return strspn(s, "0123456789") == strlen(s);
}

/* Names are bytes, which JSON shows as Latin-1. */
static void print_char(unsigned char c)
{
	if (c == '"' || c == '\\')
		printf("\\%c", c);
	else if (c < ' ' || c > '~')
		printf("\\u%04x", c);
	else
		putchar(c);
}

/* To the end of the string, or to the next space where that ends it. */
static const char *print_string(const char *s, bool to_space)
{
	unsigned char c;

	putchar('"');
	while (*s && !(to_space && *s == ' ')) {
		s = unescape(s, &c);
		print_char(c);
	}
	putchar('"');
	return s;
}

static void print_value(const struct pair *p)
{
	bool policy = !strcmp(p->key, "policy"), text = !strcmp(p->key, "comm") || !strcmp(p->key, "path");
	const char *s = p->value;

	if (policy && !strcmp(s, "-")) {
		printf("[]");
	} else if (policy || !strcmp(p->key, "argv")) {
		/* A space is always between two, of which each may be empty */
		putchar('[');
		while (*(s = print_string(s, true))) {
			printf(", ");
			s++;
		}
		putchar(']');
	} else if (!text && is_number(s)) {
		printf("%s", s);
	} else {
		print_string(s, false);
	}
}

/* pid: put before the rest, if not 0. */
static void print_object(long pid, const char *comm, const struct pair *pairs, int n)
{
	putchar('{');
	if (pid) {
		/* /proc/PID/comm escapes nothing */
		printf("\"pid\": %ld, \"comm\": \"", pid);
		while (*comm)
			print_char(*comm++);
		putchar('"');
	}
	for (int i = 0; i < n; i++) {
		printf("%s\"%s\": ", i || pid ? ", " : "", pairs[i].key);
		print_value(&pairs[i]);
	}
	putchar('}');
}

/* ---- what the kernel can do ---- */

/* Why there is nothing to see, for people. */
static void explain(void)
{
	int version = perdure_abi_version();

	if (version < 0 && errno == ENOSYS)
		errx(FAILED, "this kernel has no zero-loss restart: boot a Perdure kernel (uname -r: ...-perdure)");
	if (version < 0 && errno == EOPNOTSUPP)
		errx(FAILED, "it is switched off: sysctl kernel.restart.enabled=1");
	if (version < 0)
		err(FAILED, "a seccomp filter forbids our system calls: run this outside of the sandbox, or allow 500 to 506");
}

/* The file of /proc with which a kernel like this one tells. It does so when nothing is restarted at the moment, too. */
static void must_tell(const char *path)
{
	if (access("/proc/self", F_OK))
		errx(FAILED, "/proc is not mounted: mount -t proc proc /proc");
	if (!access(path, F_OK)) {
		if (perdure_abi_version() < 0 && errno == EOPNOTSUPP)
			warnx("it is switched off, and faults kill: sysctl kernel.restart.enabled=1");
		return;
	}
	explain();
	errx(FAILED, "this kernel does not tell (no %s): it is older than this program", path);
}

/* ---- list and show ---- */

/* Its length, 0 without text, or -1. */
static ssize_t read_file(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n, got = 0;

	if (fd < 0)
		return -1;
	while ((n = read(fd, buf + got, size - 1 - got)) > 0)
		got += n;
	close(fd);
	if (n < 0)
		return -1;
	buf[got] = 0;
	return got;
}

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
	/* A terminal would obey what a process calls itself */
	for (; !json && *comm; comm++)
		if (!isprint((unsigned char)*comm))
			*comm = '?';
}

/* False when there is no such process, or it does not say. */
static bool registration(long pid, struct pair *pairs, int *n)
{
	if (read_proc(pid, "restart", text, sizeof(text)) < 0)
		return false;
	*n = split_lines(text, pairs, 64);
	return true;
}

static int compare(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;

	return x < y ? -1 : x > y;
}

static int list(int argc, char **argv)
{
	static const char *const columns[] = { "child_id", "generation", "signo", "cause", "left", "policy" };
	size_t n = 0, room = 0, shown = 0;
	struct pair pairs[64];
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
				printf("%7s  %-15s  %4s  %10s  %4s  %-5s  %4s  %s\n", "PID", "PROGRAM", "ROLE", "GENERATION",
				       "SIG", "CAUSE", "LEFT", "POLICY");
			printf("%7ld  %-15s", pids[i], comm);
			for (int c = 0; c < 6; c++) {
				static const int width[] = { 4, 10, 4, -5, 4, 0 };

				printf("  %*s", width[c], value_of(pairs, count, columns[c]));
			}
			putchar('\n');
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
	struct pair pairs[64];
	char comm[64], *end;
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
			errx(FAILED, "there is no process %ld", pid);
		err(FAILED, "/proc/%ld/restart", pid);
	}
	comm_of(pid, comm, sizeof(comm));
	if (json) {
		print_object(pid, comm, pairs, n);
		putchar('\n');
		return 0;
	}
	printf("%-18s %ld\n%-18s %s\n", "pid", pid, "comm", comm);
	for (int i = 0; i < n; i++)
		printf("%-18s %s\n", pairs[i].key, pairs[i].value);
	if (strcmp(value_of(pairs, n, "registered"), "1"))
		fprintf(stderr, "perdurectl: process %ld is not registered: a fault kills it\n", pid);
	else if (!strcmp(value_of(pairs, n, "path"), "-"))
		fprintf(stderr, "perdurectl: its program and arguments are for its owner and root\n");
	return 0;
}

/* ---- log and watch ---- */

static void print_time(const char *ns)
{
	long long t = atoll(ns);
	time_t s = t / 1000000000;
	struct tm tm;
	char buf[32];

	if (!localtime_r(&s, &tm) || !strftime(buf, sizeof(buf), "%F %T", &tm))
		strcpy(buf, "-");
	printf("%s.%03lld", buf, t / 1000000 % 1000);
}

static const char *signal_name(const char *number)
{
	const char *name = sigabbrev_np(atoi(number));
	static char buf[32];

	snprintf(buf, sizeof(buf), name ? "SIG%s" : "signal %s", name ? name : number);
	return buf;
}

/* Of libreplay: what became of sessions */
static void print_replay(const struct pair *p, int n)
{
	printf("%s  replay: %s", value_of(p, n, "cause"), value_of(p, n, "outcome"));
	if (atoll(value_of(p, n, "sessions")))
		printf(", %s sessions", value_of(p, n, "sessions"));
	if (atoll(value_of(p, n, "requests")))
		printf(", %s requests", value_of(p, n, "requests"));
	printf(", %lld us after the start of epoch %s\n", atoll(value_of(p, n, "took_ns")) / 1000, value_of(p, n, "generation"));
}

/* Of takeoverd: what became of a service */
static void print_takeover(const struct pair *p, int n)
{
	const long long took = atoll(value_of(p, n, "took_ns"));

	printf("%s  takeover: %s, epoch %s", value_of(p, n, "cause"), value_of(p, n, "outcome"), value_of(p, n, "generation"));
	if (took)
		printf(", after %lld us", took / 1000);
	putchar('\n');
}

/* Of a function that faulted */
static void print_rescue(const struct pair *p, int n)
{
	/* The kernel itself sends SIGABRT to a function that takes too long */
	const bool late = atoi(value_of(p, n, "signo")) == SIGABRT && atoi(value_of(p, n, "code")) == SI_KERNEL;
	const char *fault = late ? "deadline" : signal_name(value_of(p, n, "signo"));

	printf("%s  rescue: %s ", strcmp(value_of(p, n, "cause"), "injected") ? fault : "injected", value_of(p, n, "path"));
	if (!strcmp(value_of(p, n, "outcome"), "rescued"))
		printf("returns an error, after %lld us\n", atoll(value_of(p, n, "restore_ns")) / 1000);
	else
		printf("could not be rescued: %s\n", value_of(p, n, "cause"));
}

/* One record, for people: when, who, why, and what came of it. */
static void print_record(const struct pair *p, int n)
{
	const char *cause = value_of(p, n, "cause"), *outcome = value_of(p, n, "outcome");
	long long took = atoll(value_of(p, n, "retain_ns")) + atoll(value_of(p, n, "exec_ns")) +
			 atoll(value_of(p, n, "restore_ns"));

	print_time(value_of(p, n, "time_ns"));
	printf("  %s[%s]  ", value_of(p, n, "comm"), value_of(p, n, "pid"));
	if (!strcmp(value_of(p, n, "rung"), "replay")) {
		print_replay(p, n);
		return;
	}
	if (!strcmp(value_of(p, n, "rung"), "takeover")) {
		print_takeover(p, n);
		return;
	}
	if (!strcmp(value_of(p, n, "rung"), "rescue")) {
		print_rescue(p, n);
		return;
	}
	if (!strcmp(cause, "exit"))
		printf("exit %s", value_of(p, n, "code"));
	else if (!strcmp(cause, "hang"))
		printf("hang");
	else if (!strcmp(cause, "asked"))
		printf("asked by process %s of user %s", value_of(p, n, "tid"), value_of(p, n, "code"));
	else
		printf("%s", signal_name(value_of(p, n, "signo")));
	if (!strcmp(outcome, "restarted"))
		printf("  %s: generation %s after %lld us", value_of(p, n, "rung"), value_of(p, n, "generation"), took / 1000);
	else if (!strcmp(outcome, "reverted"))
		printf("  %s: back to %s, generation %s after %lld us", value_of(p, n, "rung"), value_of(p, n, "path"),
		       value_of(p, n, "generation"), took / 1000);
	else if (!strcmp(outcome, "kept"))
		printf("  not done: %s: %s; the old program goes on", value_of(p, n, "path"), strerror(atoi(value_of(p, n, "error"))));
	else if (!strcmp(outcome, "limit"))
		printf("  dead: one fault too many");
	else if (!strcmp(outcome, "killed"))
		printf("  killed while it was being restarted");
	else if (!strcmp(outcome, "ended"))
		printf("  ended by itself while it was being restarted");
	else
		printf("  dead: %s: %s", outcome, strerror(atoi(value_of(p, n, "error"))));
	if (!strcmp(value_of(p, n, "suspect_twice"), "1"))
		printf(", descriptor %s suspect again", value_of(p, n, "suspect_fd"));
	if (strcmp(value_of(p, n, "core_pid"), "0") && strcmp(value_of(p, n, "core_pid"), "-"))
		printf(", core dumped by %s", value_of(p, n, "core_pid"));
	putchar('\n');
}

static int open_log(void)
{
	int fd;

	must_tell(LOG);
	fd = open(LOG, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		err(FAILED, LOG);
	return fd;
}

/* Calls see() for each record that is there. A read gives whole records. */
static void records(int fd, void (*see)(char *line))
{
	static char buf[4 * RECORD];
	ssize_t n;

	while ((n = read(fd, buf, sizeof(buf) - 1)) > 0) {
		char *line = buf, *end;

		buf[n] = 0;
		while ((end = strchr(line, '\n'))) {
			*end = 0;
			see(line);
			line = end + 1;
		}
	}
	if (n < 0)
		err(FAILED, LOG);
}

static long last;		/* of `log -n`: show that many */
static long only;		/* process */

static bool wanted(const char *line)
{
	char key[32];
	const char *found;

	snprintf(key, sizeof(key), " pid=%ld ", only);
	found = strstr(line, key);
	return !only || found;
}

static void print_line(char *line)
{
	struct pair pairs[64];
	int n;

	if (!wanted(line))
		return;
	n = split_record(line, pairs, 64);
	if (json) {
		/* A line each: what reads them needs no end */
		print_object(0, NULL, pairs, n);
		putchar('\n');
	} else {
		print_record(pairs, n);
	}
}

/* Records of all rungs, to be sorted */
static char **lines;
static size_t nr_lines;

static void keep(char *line)
{
	if (!wanted(line))
		return;
	lines = realloc(lines, (nr_lines + 1) * sizeof(*lines));
	if (!lines || !(lines[nr_lines++] = strdup(line)))
		err(FAILED, "log");
}

static int compare_times(const void *a, const void *b)
{
	uint64_t x = verdict_time(*(char *const *)a), y = verdict_time(*(char *const *)b);

	return x < y ? -1 : x > y;
}

static void log_arguments(int argc, char **argv)
{
	char *end;

	if (argc > 2)
		errx(USAGE, "%s takes at most one process id", argv[0]);
	if (argc == 2) {
		only = strtol(argv[1], &end, 10);
		if (*end || only <= 0)
			errx(USAGE, "%s is not a process id", argv[1]);
	}
}

static int show_log(int argc, char **argv)
{
	int fd;

	log_arguments(argc, argv);
	verdicts_read(0, keep);
	/* A stock kernel has nothing to tell; programs may have */
	fd = nr_lines && access(LOG, F_OK) ? -1 : open_log();
	if (fd >= 0) {
		records(fd, keep);
		close(fd);
	}
	if (nr_lines)
		qsort(lines, nr_lines, sizeof(*lines), compare_times);
	for (size_t i = last && nr_lines > (size_t)last ? nr_lines - last : 0; i < nr_lines; i++)
		print_line(lines[i]);
	if (!nr_lines && !json)
		fprintf(stderr, "perdurectl: no fault of a registered process%s since boot%s\n", only ? " of that number" : "",
			geteuid() ? ", of those that you may see" : "");
	return 0;
}

static uint64_t watched;	/* the time of the last record of a program */

static void print_new(char *line)
{
	uint64_t time = verdict_time(line);

	struct timespec now;

	/* A clock that was wrong must not hide what comes */
	clock_gettime(CLOCK_REALTIME, &now);
	if (time > watched && time <= now.tv_sec * 1000000000ull + now.tv_nsec)
		watched = time;
	print_line(line);
}

static int watch(int argc, char **argv)
{
	struct pollfd p[2] = { { .events = POLLIN }, { .events = POLLIN } };
	char event[4096];
	struct timespec now;

	log_arguments(argc, argv);
	p[1].fd = verdicts_watch();
	p[0].fd = p[1].fd >= 0 && access(LOG, F_OK) ? -1 : open_log();
	clock_gettime(CLOCK_REALTIME, &now);
	watched = now.tv_sec * 1000000000ull + now.tv_nsec;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (p[0].fd >= 0 && lseek(p[0].fd, 0, SEEK_END) < 0)
		err(FAILED, LOG);
	for (;;) {
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			err(FAILED, LOG);
		if (p[0].fd >= 0)
			records(p[0].fd, print_line);
		if (p[1].fd >= 0 && read(p[1].fd, event, sizeof(event)) > 0)
			verdicts_read(watched, print_new);
		if (ferror(stdout))
			return FAILED;
	}
}

/* ---- the rest ---- */

static int check(int argc, char **argv)
{
	static const char *const files[] = { "enabled", "min_interval_ms", "cap_burst", "cap_interval_ms",
					     "held_bytes_max" };
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
	      "  log [-n N] [PID] what happened at the faults so far\n"
	      "  watch [PID]      the same, as it happens\n"
	      "  check            can this kernel do it?\n"
	      "  run              a program that a fault restarts; perdurectl run --help\n"
	      "  restart          start one of them again, in place; perdurectl restart --help\n"
	      "  upgrade          the same, with another program\n\n"
	      "See perdurectl(1).\n", to);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "lines", required_argument, NULL, 'n' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ NULL, 0, NULL, 0 },
	};
	static const struct {
		const char *name;
		int (*fn)(int argc, char **argv);
	} commands[] = {
		{ "list", list }, { "show", show }, { "log", show_log }, { "watch", watch }, { "check", check },
	};
	const char *command;
	char *end;
	int opt, status;

	/* What comes after "run" is its own, and the program's */
	if (argc > 1 && !strcmp(argv[1], "run"))
		return run(argc - 1, argv + 1);
	if (argc > 1 && (!strcmp(argv[1], "restart") || !strcmp(argv[1], "upgrade")))
		return upgrade(argc - 1, argv + 1);
	while ((opt = getopt_long(argc, argv, "jn:hV", options, NULL)) != -1) {
		switch (opt) {
		case 'j':
			json = true;
			break;
		case 'n':
			last = strtol(optarg, &end, 10);
			if (*end || last <= 0)
				errx(USAGE, "-n %s: not a number of lines", optarg);
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
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(command, commands[i].name))
			continue;
		if (last && strcmp(command, "log"))
			errx(USAGE, "-n is for log");
		status = commands[i].fn(argc, argv);
		if (fflush(stdout) || ferror(stdout))
			err(FAILED, "writing");
		return status;
	}
	if (!strcmp(command, "run") || !strcmp(command, "restart") || !strcmp(command, "upgrade"))
		errx(USAGE, "%s has to be the first word; it takes no --json", command);
	errx(USAGE, "no such command: %s; there are list, show, log, watch, check, run, restart and upgrade", command);
}
