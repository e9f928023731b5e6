// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * perdurectl log, perdurectl watch: what has become of faults, from the kernel and from programs, for people, programs, the
 * journal and a command of the administrator's. See perdurectl(1).
 */
#include "log.h"

#include <ctype.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "facts.h"
#include "metrics.h"
#include "verdicts.h"
#include "words.h"

#define LOG		"/proc/restart_log"
#define RECORD		(10 * PATH_MAX)		/* longer than any line of the log */
#define JOURNAL		"/run/systemd/journal/socket"
#define MESSAGE_ID	"9b6c7f1d2e0a4c3f8d5be1a70c94f263"	/* of all records, in the journal */

enum { HOOK_S = 60, LOG_ERR = 3, LOG_WARNING = 4, LOG_NOTICE = 5, LOG_INFO = 6, SYSLOG_BIT = 34 };

static struct log_options opt;

/* ---- in words ---- */

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
static void print_replay(FILE *to, const struct pair *p, int n)
{
	fprintf(to, "%s  replay: %s", value_of(p, n, "cause"), value_of(p, n, "outcome"));
	if (atoll(value_of(p, n, "sessions")))
		fprintf(to, ", %s sessions", value_of(p, n, "sessions"));
	if (atoll(value_of(p, n, "requests")))
		fprintf(to, ", %s requests", value_of(p, n, "requests"));
	fprintf(to, ", %lld us after the start of epoch %s", atoll(value_of(p, n, "took_ns")) / 1000, value_of(p, n, "generation"));
}

/* Of takeoverd: what became of a service */
static void print_takeover(FILE *to, const struct pair *p, int n)
{
	const long long took = atoll(value_of(p, n, "took_ns"));

	fprintf(to, "%s  takeover: %s, epoch %s", value_of(p, n, "cause"), value_of(p, n, "outcome"), value_of(p, n, "generation"));
	if (took)
		fprintf(to, ", after %lld us", took / 1000);
}

/* Of a function that faulted */
static void print_rescue(FILE *to, const struct pair *p, int n)
{
	/* The kernel itself sends SIGABRT to a function that takes too long */
	const bool late = atoi(value_of(p, n, "signo")) == SIGABRT && atoi(value_of(p, n, "code")) == SI_KERNEL;
	const char *fault = late ? "deadline" : signal_name(value_of(p, n, "signo"));

	fprintf(to, "%s  rescue: %s ", strcmp(value_of(p, n, "cause"), "injected") ? fault : "injected", value_of(p, n, "path"));
	if (!strcmp(value_of(p, n, "outcome"), "rescued"))
		fprintf(to, "returns an error, after %lld us", atoll(value_of(p, n, "restore_ns")) / 1000);
	else
		fprintf(to, "could not be rescued: %s", value_of(p, n, "cause"));
}

/* What ends a generation */
static void print_cause(FILE *to, const struct pair *p, int n)
{
	const char *cause = value_of(p, n, "cause"), *addr = value_of(p, n, "fault_addr");
	const int code = atoi(value_of(p, n, "code"));

	if (!strcmp(cause, "exit")) {
		fprintf(to, "exit %d", code);
	} else if (!strcmp(cause, "hang")) {
		fprintf(to, "hang");
	} else if (!strcmp(cause, "changed")) {
		fprintf(to, "no restart in its process");
	} else if (!strcmp(cause, "asked")) {
		fprintf(to, "asked by process %s of user %d", value_of(p, n, "tid"), code);
	} else {
		fprintf(to, "%s", signal_name(value_of(p, n, "signo")));
		/* Who sends a signal has no address */
		if (code > 0 && code < SI_KERNEL && !strncmp(addr, "0x", 2))
			fprintf(to, " at %s", addr);
	}
}

/* What has become of a new generation. False: it is no record of that. */
static bool print_sequel(FILE *to, const struct pair *p, int n)
{
	const char *cause = value_of(p, n, "cause"), *outcome = value_of(p, n, "outcome"), *generation = value_of(p, n, "generation");
	const uint64_t age = strtoull(value_of(p, n, "age_ns"), NULL, 10);

	if (!strcmp(outcome, "stable")) {
		fprintf(to, "stable: generation %s has lived for ", generation);
		print_span(to, age);
		return true;
	}
	if (strcmp(outcome, "ended"))
		return false;
	if (!strcmp(cause, "exited"))
		fprintf(to, "ended: generation %s, by exit %s, ", generation, value_of(p, n, "code"));
	else if (!strcmp(cause, "killed"))
		fprintf(to, "ended: generation %s, by %s, ", generation, signal_name(value_of(p, n, "signo")));
	else if (!strcmp(cause, "executed"))
		fprintf(to, "ended: generation %s has executed another program, which is not protected, ", generation);
	else if (!strcmp(cause, "cleared"))
		fprintf(to, "ended: generation %s is registered no longer, ", generation);
	else
		return false;
	print_span(to, age);
	fprintf(to, " after its start");
	return true;
}

/* A fault, and what came of it */
static void print_fault(FILE *to, const struct pair *p, int n)
{
	const char *outcome = value_of(p, n, "outcome"), *rung = value_of(p, n, "rung"), *age = value_of(p, n, "age_ns");
	const char *core = value_of(p, n, "core_pid");
	long long took = atoll(value_of(p, n, "retain_ns")) + atoll(value_of(p, n, "exec_ns")) +
			 atoll(value_of(p, n, "restore_ns"));

	print_cause(to, p, n);
	if (!strcmp(outcome, "restarted")) {
		fprintf(to, "  %s: generation %s after %lld us", rung, value_of(p, n, "generation"), took / 1000);
	} else if (!strcmp(outcome, "reverted")) {
		fprintf(to, "  %s: back to ", rung);
		print_text(to, value_of(p, n, "path"));
		fprintf(to, ", generation %s after %lld us", value_of(p, n, "generation"), took / 1000);
	} else if (!strcmp(outcome, "afresh")) {
		fprintf(to, "  %s: started afresh, as process %s", rung, value_of(p, n, "pid"));
	} else if (!strcmp(outcome, "kept")) {
		fprintf(to, "  not done: ");
		print_text(to, value_of(p, n, "path"));
		fprintf(to, ": %s; the old program goes on", strerror(atoi(value_of(p, n, "error"))));
	} else if (!strcmp(outcome, "limit")) {
		fprintf(to, "  dead: one fault too many");
	} else if (!strcmp(outcome, "killed")) {
		fprintf(to, "  killed while it was being restarted");
	} else if (!strcmp(outcome, "ended")) {
		fprintf(to, "  ended by itself while it was being restarted");
	} else {
		fprintf(to, "  dead: %s: %s", outcome, strerror(atoi(value_of(p, n, "error"))));
	}
	if (strcmp(age, "-")) {
		fprintf(to, ", having lived for ");
		print_span(to, strtoull(age, NULL, 10));
	}
	if (!strcmp(value_of(p, n, "suspect_twice"), "1"))
		fprintf(to, ", descriptor %s suspect again", value_of(p, n, "suspect_fd"));
	if (strcmp(core, "0") && strcmp(core, "-"))
		fprintf(to, ", core dumped by %s", core);
}

/* One record, for people: who, why, and what came of it. */
static void print_words(FILE *to, const struct pair *p, int n)
{
	const char *rung = value_of(p, n, "rung"), *unit = value_of(p, n, "unit");

	if (!strcmp(rung, "log")) {
		fprintf(to, "%s records are missing: overwritten before they were read", value_of(p, n, "missing"));
		return;
	}
	if (strcmp(unit, "-")) {
		print_text(to, unit);
		fprintf(to, "  ");
	}
	print_text(to, value_of(p, n, "comm"));
	fprintf(to, "[%s]  ", value_of(p, n, "pid"));
	if (!strcmp(rung, "replay"))
		print_replay(to, p, n);
	else if (!strcmp(rung, "takeover"))
		print_takeover(to, p, n);
	else if (!strcmp(rung, "rescue"))
		print_rescue(to, p, n);
	else if (!print_sequel(to, p, n))
		print_fault(to, p, n);
}

/* ---- records ---- */

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
	static char buf[2 * RECORD];
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

static long only;		/* process */

static bool wanted(const char *line)
{
	char key[32];
	const char *found;

	snprintf(key, sizeof(key), " pid=%ld ", only);
	found = strstr(line, key);
	return !only || found;
}

/* Of the kernel's; -1: a program's, which have none */
static int64_t number_of(const char *line)
{
	return strncmp(line, "seq=", 4) ? -1 : strtoll(line + 4, NULL, 10);
}

/* The keys of a record, and what follows from them; the last value is to be freed. */
static int read_record(char *line, struct pair *pairs, char **unit)
{
	int n = split_record(line, pairs, PAIRS - 1);

	*unit = unit_of(value_of(pairs, n, "cgroup"));
	if (*unit)
		pairs[n++] = (struct pair){ "unit", *unit };
	return n;
}

static void print_line(char *line)
{
	struct pair pairs[PAIRS];
	char *unit;
	int n = read_record(line, pairs, &unit);

	if (opt.json) {
		/* A line each: what reads them needs no end */
		print_object(0, NULL, pairs, n);
	} else {
		print_time(value_of(pairs, n, "time_ns"));
		putchar(' ');
		putchar(' ');
		print_words(stdout, pairs, n);
	}
	putchar('\n');
	free(unit);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void arguments(int argc, char **argv)
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

/* ---- log ---- */

/* Records of all rungs, to be sorted */
static char **lines;
static size_t nr_lines;
static uint64_t since_ns;	/* when the record of --since was, or the oldest one that is there */

static void see_since(char *line)
{
	if (number_of(line) <= opt.since || (opt.since >= 0 && !since_ns))
		since_ns = verdict_time(line);
}

static void keep(char *line)
{
	if (!wanted(line))
		return;
	lines = realloc(lines, (nr_lines + 1) * sizeof(*lines));
	if (!lines || !(lines[nr_lines++] = strdup(line)))
		err(FAILED, "log");
}

static void keep_kernel(char *line)
{
	see_since(line);
	if (number_of(line) > opt.since)
		keep(line);
}

static void keep_program(char *line, bool of_root)
{
	(void)of_root;
	if (verdict_time(line) > since_ns)
		keep(line);
}

static int compare_times(const void *a, const void *b)
{
	uint64_t x = verdict_time(*(char *const *)a), y = verdict_time(*(char *const *)b);

	return x < y ? -1 : x > y;
}

int show_log(int argc, char **argv, const struct log_options *options)
{
	int fd = -1;

	opt = *options;
	arguments(argc, argv);
	if (!access(LOG, F_OK)) {
		fd = open_log();
		records(fd, keep_kernel);
		close(fd);
	}
	verdicts_read(keep_program);
	/* A stock kernel has nothing to tell; programs may have */
	if (fd < 0 && !nr_lines)
		open_log();
	if (nr_lines)
		qsort(lines, nr_lines, sizeof(*lines), compare_times);
	for (size_t i = opt.last && nr_lines > (size_t)opt.last ? nr_lines - opt.last : 0; i < nr_lines; i++)
		print_line(lines[i]);
	if (!nr_lines && !opt.json)
		fprintf(stderr, "perdurectl: no fault of a registered process%s since %s%s\n", only ? " of that number" : "",
			opt.since < 0 ? "boot" : "then", geteuid() ? ", of those that you may see" : "");
	return opt.status && nr_lines ? SOME : 0;
}

/* ---- watch: to whom ---- */

/* How loud the journal says it */
static int priority(const struct pair *p, int n)
{
	const char *outcome = value_of(p, n, "outcome"), *cause = value_of(p, n, "cause");
	static const char *const dead[] = { "limit", "failed", "lost" }, *const fine[] = { "stable", "replayed", "primary" };

	for (size_t i = 0; i < 3; i++) {
		if (!strcmp(outcome, dead[i]))
			return LOG_ERR;
		if (!strcmp(outcome, fine[i]))
			return LOG_INFO;
	}
	if (!strcmp(outcome, "ended") && (!strcmp(cause, "killed") || (!strcmp(cause, "exited") && strcmp(value_of(p, n, "code"), "0"))))
		return LOG_ERR;
	if (!strcmp(outcome, "ended") || !strcmp(outcome, "killed"))
		return LOG_NOTICE;
	return !strcmp(cause, "asked") && strcmp(outcome, "kept") ? LOG_INFO : LOG_WARNING;
}

static const char *variable(const char *key)
{
	static char name[64];
	char *c = name + sprintf(name, "PERDURE_");

	for (; *key && c < name + sizeof(name) - 1; key++)
		*c++ = isalnum((unsigned char)*key) ? toupper((unsigned char)*key) : '_';
	*c = 0;
	return name;
}

/* A field by the journal's protocol: of bytes, whatever they are. */
static void field(FILE *to, const char *name, const char *value)
{
	uint64_t len = htole64(strlen(value));

	fprintf(to, "%s\n", name);
	fwrite(&len, sizeof(len), 1, to);
	fprintf(to, "%s\n", value);
}

/* The journal takes it, or says why not, before the next one is looked at: no buffer is lost with us. */
static void tell_journal(const struct pair *p, int n, const char *message, const char *unit)
{
	static int fd = -1;
	const struct sockaddr_un to = { .sun_family = AF_UNIX, .sun_path = JOURNAL };
	char *text = NULL, *bytes, level[2] = { (char)('0' + priority(p, n)), 0 };
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		err(FAILED, "journal");
	field(f, "MESSAGE", message);
	field(f, "MESSAGE_ID", MESSAGE_ID);
	field(f, "PRIORITY", level);
	field(f, "SYSLOG_IDENTIFIER", "perdure");
	/* By that, journalctl --unit shows it among what the service says: if root says so */
	if (unit)
		field(f, "OBJECT_SYSTEMD_UNIT", unit);
	for (int i = 0; i < n; i++) {
		bytes = bytes_of(p[i].value);
		field(f, variable(p[i].key), bytes);
		free(bytes);
	}
	if (fclose(f))
		err(FAILED, "journal");
	if (fd < 0)
		fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	/* It is away while it is restarted */
	for (int i = 0; fd < 0 || sendto(fd, text, size, MSG_NOSIGNAL, (const struct sockaddr *)&to, sizeof(to)) < 0; i++) {
		if (fd >= 0 && errno == EMSGSIZE) {
			warn("%s: %.80s", JOURNAL, message);
			break;
		}
		if ((errno != ENOENT && errno != ECONNREFUSED && errno != EINTR) || i == 50)
			err(FAILED, JOURNAL);
		poll(NULL, 0, 100);
	}
	free(text);
}

/* The administrator's command, which has a minute. */
static void call_hook(const struct pair *p, int n, const char *message)
{
	pid_t pid = fork();
	struct pollfd end;
	int status;

	if (pid < 0)
		err(FAILED, "--hook");
	if (!pid) {
		/* All that it starts is ended with it */
		setpgid(0, 0);
		for (int i = 0; i < n; i++)
			setenv(variable(p[i].key), bytes_of(p[i].value), 1);
		setenv("PERDURE_MESSAGE", message, 1);
		execl("/bin/sh", "sh", "-c", opt.hook, (char *)NULL);
		_exit(127);
	}
	setpgid(pid, pid);
	end = (struct pollfd){ .fd = syscall(SYS_pidfd_open, pid, 0), .events = POLLIN };
	if (end.fd >= 0 && poll(&end, 1, HOOK_S * 1000) == 0) {
		warnx("--hook %s: not over after %d s, and killed", opt.hook, HOOK_S);
		kill(-pid, SIGKILL);
	}
	if (end.fd >= 0)
		close(end.fd);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status))
		warnx("--hook %s: status %d", opt.hook, WEXITSTATUS(status));
}

/* @of_root: what it says of its unit is true */
static void tell(char *line, bool of_root)
{
	struct pair pairs[PAIRS];
	char *unit, *message = NULL, *bytes;
	size_t size;
	FILE *f;
	int n;

	if (!opt.journal && !opt.hook && !opt.metrics) {
		print_line(line);
		if (ferror(stdout))
			exit(FAILED);
		return;
	}
	n = read_record(line, pairs, &unit);
	if (opt.metrics)
		metrics_count(pairs, n, unit, of_root);
	f = open_memstream(&message, &size);
	if (!f)
		err(FAILED, "watch");
	print_words(f, pairs, n);
	if (fclose(f))
		err(FAILED, "watch");
	bytes = unit && of_root ? bytes_of(unit) : NULL;
	if (opt.journal)
		tell_journal(pairs, n, message, bytes);
	if (opt.hook)
		call_hook(pairs, n, message);
	free(bytes);
	free(message);
	free(unit);
}

/* ---- watch: what is new ---- */

static int64_t seen = -1;	/* the number of the last one of the kernel's */
static bool sees_all;		/* so that a number that is missing was overwritten */
static char boot[64];

/* With CAP_SYSLOG, nothing is hidden from one who is in no container. */
static bool may_see_all(void)
{
	char text[4096], link[64], *found;
	ssize_t n;

	if (read_file("/proc/self/status", text, sizeof(text)) <= 0 || !(found = strstr(text, "\nCapEff:")) ||
	    !(strtoull(found + 8, NULL, 16) >> SYSLOG_BIT & 1))
		return false;
	/* The kernel's own numbers of the first namespaces */
	n = readlink("/proc/self/ns/pid", link, sizeof(link) - 1);
	if (n < 0 || strncmp(link, "pid:[4026531836]", n))
		return false;
	n = readlink("/proc/self/ns/user", link, sizeof(link) - 1);
	return n >= 0 && !strncmp(link, "user:[4026531837]", n);
}

static void print_cursor(FILE *to)
{
	fprintf(to, "%s %" PRId64 "\n", boot, seen);
	verdicts_save(to);
}

/* What has been told is not told again by the next one of us. A restart of the machine leaves no records of before. */
static void write_cursor(void)
{
	if (opt.cursor && !replace_file(opt.cursor, true, print_cursor))
		err(FAILED, "--cursor-file %s", opt.cursor);
}

static void read_cursor(void)
{
	char of[64];
	int64_t last;
	FILE *f;

	if (read_file("/proc/sys/kernel/random/boot_id", boot, sizeof(boot)) <= 0)
		err(FAILED, "boot_id");
	boot[strcspn(boot, "\n")] = 0;
	f = fopen(opt.cursor, "re");
	if (!f) {
		if (errno != ENOENT)
			err(FAILED, "--cursor-file %s", opt.cursor);
		return;
	}
	if (fscanf(f, "%63s %" SCNd64, of, &last) != 2) {
		warnx("--cursor-file %s: not what perdurectl writes; all that is there is told", opt.cursor);
	} else if (!strcmp(of, boot)) {
		seen = last;
		verdicts_load(f);
	}
	fclose(f);
}

static void tell_gap(int64_t seq)
{
	char line[256];

	if (!sees_all || seq <= seen + 1)
		return;
	snprintf(line, sizeof(line), "seq=%" PRId64 " time_ns=%" PRIu64 " pid=0 comm=perdurectl rung=log cause=overwritten outcome=missing "
		 "missing=%" PRId64, seq - 1, now_ns(), seq - 1 - seen);
	tell(line, true);
}

static void see_old(char *line)
{
	seen = number_of(line);
}

static void see_new(char *line)
{
	const int64_t seq = number_of(line);

	if (seq <= seen)
		return;
	tell_gap(seq);
	seen = seq;
	if (!wanted(line))
		return;
	tell(line, true);
	write_cursor();
}

static void see_program(char *line, bool of_root)
{
	if (verdict_time(line) <= since_ns || !wanted(line))
		return;
	tell(line, of_root);
	write_cursor();
}

/* A place that is full now may have room at the next record. */
static void write_metrics(void)
{
	static bool said;

	if (!opt.metrics || replace_file(opt.metrics, false, metrics_print)) {
		said = false;
		return;
	}
	if (!said)
		warn("--metrics %s: not written; it is tried again", opt.metrics);
	said = true;
}

static void see_old_program(char *line, bool of_root)
{
	(void)line;
	(void)of_root;
}

int watch_log(int argc, char **argv, const struct log_options *options)
{
	struct pollfd p[2] = { { .events = POLLIN }, { .events = POLLIN } };
	char event[4096];
	bool from_now;

	opt = *options;
	arguments(argc, argv);
	p[1].fd = verdicts_watch(!access(LOG, F_OK));
	p[0].fd = p[1].fd >= 0 && access(LOG, F_OK) ? -1 : open_log();
	sees_all = may_see_all();
	setvbuf(stdout, NULL, _IOLBF, 0);
	from_now = opt.since < 0 && !opt.cursor;
	if (opt.since >= 0) {
		seen = opt.since;
		if (p[0].fd >= 0) {
			records(p[0].fd, see_since);
			lseek(p[0].fd, 0, SEEK_SET);
		}
	}
	if (opt.cursor)
		read_cursor();
	/* What was before is not told, and its last number is where the next gap is counted from */
	if (p[0].fd >= 0)
		records(p[0].fd, from_now ? see_old : see_new);
	verdicts_read(from_now ? see_old_program : see_program);
	since_ns = 0;
	if (opt.metrics && !replace_file(opt.metrics, false, metrics_print))
		err(FAILED, "--metrics %s", opt.metrics);
	for (;;) {
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			err(FAILED, LOG);
		if (p[0].fd >= 0)
			records(p[0].fd, see_new);
		if (p[1].fd >= 0 && read(p[1].fd, event, sizeof(event)) > 0) {
			verdicts_watch_more(p[1].fd);
			verdicts_read(see_program);
		}
		write_metrics();
		if (ferror(stdout))
			return FAILED;
	}
}
