// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * perdurectl restart, perdurectl upgrade: a registered process executes its program again, or another one, in place. The
 * kernel does it (restartctl(2)); here is who that process is, what it is to execute, and what became of it, in words.
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
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <perdure.h>

#include "keeper.h"
#include "run.h"
#include "upgrade.h"
#include "words.h"

/* What scripts can tell apart */
enum { DONE = 0, UNCHANGED = 1, USAGE = 2, REVERTED = 3, DEAD = 4, NOBODY = 5 };
enum { TRIAL_S = 10, TIMEOUT_S = 30, PACE_MS = 50 };

static struct {
	bool upgrade;
	const char *check, *who, *program;
	double timeout, wait, trial;
} opt = { .timeout = TIMEOUT_S, .trial = -1 };

static void usage(FILE *to)
{
	fputs("usage: perdurectl restart [OPTION...] PID|UNIT\n"
	      "       perdurectl upgrade [OPTION...] PID|UNIT PROGRAM\n\n"
	      "  -c, --check CMD        first, CMD has to succeed; it finds PERDURE_PID and PERDURE_PROGRAM in its environment\n"
	      "  -t, --timeout SECONDS  for the process to answer (30)\n"
	      "  -w, --wait SECONDS     and then, see whether the new generation lives so long (0)\n"
	      "  -T, --trial SECONDS    upgrade: for so long, a fault or an exit status other than 0 brings the old program back;\n"
	      "                         0: nothing does (10, or that of --wait)\n\n"
	      "Status: 0 done; 1 not done, the old program goes on; 2 wrong arguments; 3 the new one failed, and what was there\n"
	      "before runs again; 4 the process has ended; 5 there is nothing to restart.\n", to);
}

static double seconds(const char *what, const char *s, double max)
{
	char *end;
	double n = strtod(s, &end);

	if (*end || !*s || !(n >= 0 && n <= max))
		errx(USAGE, "%s %s: not a number of seconds from 0 to %.0f", what, s, max);
	return n;
}

static void options(int argc, char **argv)
{
	static const struct option names[] = {
		{ "check", required_argument, NULL, 'c' },
		{ "timeout", required_argument, NULL, 't' },
		{ "wait", required_argument, NULL, 'w' },
		{ "trial", required_argument, NULL, 'T' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	opt.upgrade = !strcmp(argv[0], "upgrade");
	while ((c = getopt_long(argc, argv, "c:t:w:T:h", names, NULL)) != -1) {
		switch (c) {
		case 'c':
			opt.check = optarg;
			break;
		case 't':
			opt.timeout = seconds("--timeout", optarg, 86400);
			if (!opt.timeout)
				errx(USAGE, "--timeout 0: no process answers so fast");
			break;
		case 'w':
			opt.wait = seconds("--wait", optarg, RESTART_TRIAL_MAX_MS / 1000);
			break;
		case 'T':
			if (!opt.upgrade)
				errx(USAGE, "--trial: only for upgrade; a restart has no other program to go back to");
			opt.trial = seconds("--trial", optarg, RESTART_TRIAL_MAX_MS / 1000);
			break;
		case 'h':
			usage(stdout);
			exit(0);
		default:
			usage(stderr);
			exit(USAGE);
		}
	}
	if (argc - optind != 1 + opt.upgrade)
		errx(USAGE, opt.upgrade ? "upgrade needs a process and a program: perdurectl upgrade PID|UNIT PROGRAM" :
					  "restart needs a process: perdurectl restart PID|UNIT");
	opt.who = argv[optind];
	opt.program = argv[optind + 1];		/* NULL at the end */
	if (opt.trial < 0)
		opt.trial = opt.wait > TRIAL_S ? opt.wait : TRIAL_S;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* ---- which process ---- */

static char text[5 << 17];		/* argv of 128 KiB, every byte escaped */

/* The value of a line "key:<tab>value" of /proc/PID/restart, to be freed; NULL if there is none. */
static char *registered(long pid, const char *key)
{
	size_t len = strlen(key);
	char path[64], *line, *next;

	snprintf(path, sizeof(path), "/proc/%ld/restart", pid);
	if (read_file(path, text, sizeof(text)) < 0)
		return NULL;
	for (line = text; *line; line = next) {
		next = strchrnul(line, '\n');
		if (*next)
			*next++ = 0;
		if (!strncmp(line, key, len) && !strncmp(line + len, ":\t", 2))
			return strdup(line + len + 2);
	}
	return NULL;
}

static long long registered_number(long pid, const char *key)
{
	char *value = registered(pid, key);
	long long n = value ? atoll(value) : -1;

	free(value);
	return n;
}

/* As the kernel writes them. In place; ended by NULL. */
static char **words(char *line)
{
	size_t n = 1;
	char **list, *to;
	const char *from;
	unsigned char c;

	for (char *p = line; *p; p++)
		n += *p == ' ';
	list = calloc(n + 1, sizeof(*list));
	if (!list)
		err(UNCHANGED, "arguments");
	n = 0;
	list[n++] = to = line;
	for (from = line; *from; ) {
		if (*from == ' ') {
			*to++ = 0;
			list[n++] = to;
			from++;
		} else {
			from = unescape(from, &c);
			*to++ = c;
		}
	}
	*to = 0;
	return list;
}

/* What systemctl says of a property of the unit; empty when it knows nothing. */
static char *property(const char *unit, const char *name)
{
	static char value[PATH_MAX];
	int p[2], status;
	pid_t pid;

	if (pipe2(p, O_CLOEXEC) || (pid = fork()) < 0)
		err(NOBODY, "systemctl");
	if (!pid) {
		dup2(p[1], STDOUT_FILENO);
		execlp("systemctl", "systemctl", "show", "--value", "-p", name, "--", unit, (char *)NULL);
		_exit(127);
	}
	close(p[1]);
	if (read_all(p[0], value, sizeof(value)) < 0)
		value[0] = 0;
	close(p[0]);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		errx(NOBODY, "%s is no process id, and there is no systemctl to ask for a unit: give the process id", unit);
	if (status)
		exit(NOBODY);		/* it has said why */
	value[strcspn(value, "\n")] = 0;
	return value;
}

/* The registered process of a control group, if there is just one; 0: none. */
static long in_cgroup(const char *unit, const char *cgroup)
{
	char path[PATH_MAX + 64];
	long pid, found = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cgroup.procs", cgroup);
	f = *cgroup ? fopen(path, "re") : NULL;
	if (!f)
		return 0;
	while (fscanf(f, "%ld", &pid) == 1) {
		if (registered_number(pid, "registered") != 1)
			continue;
		if (found)
			errx(NOBODY, "%s has more than one registered process, %ld and %ld among them: give the process id", unit,
			     found, pid);
		found = pid;
	}
	fclose(f);
	return found;
}

/* Of /proc/PID/status; -1: it cannot be read */
static long status_number(long pid, const char *key)
{
	static char status[16 << 10];
	char path[64], *found;

	snprintf(path, sizeof(path), "/proc/%ld/status", pid);
	if (read_file(path, status, sizeof(status)) <= 0)
		return -1;
	found = strstr(status, key);
	return found ? atol(found + strlen(key)) : -1;
}

/* What the process was started with by "perdurectl run"; false if it was not, or that is not for us to see. */
static bool start_of(long pid, struct start *s)
{
	char *line = registered(pid, "argv");
	char **argv = line ? words(line) : NULL;

	return argv && argv[0] && argv[1] && argv[2] && run_start(argv, s);
}

static bool is_told(int dir, const char *name)
{
	static const char link[] = "/memfd:" TOLD " (deleted)";
	char target[sizeof(link)];

	return readlinkat(dir, name, target, sizeof(target)) == sizeof(link) - 1 && !memcmp(target, link, sizeof(link) - 1);
}

/*
 * The process that this keeper has, by the pidfd that it holds; 0: none at the moment; -1: it is no keeper, or we may not look into it
 * with ptrace(2).
 */
static long keeps(long keeper)
{
	char path[64 + NAME_MAX], info[512], *line;
	bool is_keeper = false;
	struct dirent *d;
	long found = -1;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%ld/fd", keeper);
	dir = opendir(path);
	while (dir && (d = readdir(dir))) {
		is_keeper |= is_told(dirfd(dir), d->d_name);
		snprintf(path, sizeof(path), "/proc/%ld/fdinfo/%s", keeper, d->d_name);
		line = read_file(path, info, sizeof(info)) > 0 ? strstr(info, "\nPid:") : NULL;
		if (line)
			found = atol(line + 5) > 0 ? atol(line + 5) : 0;
	}
	if (dir)
		closedir(dir);
	return is_keeper ? found : -1;
}

/*
 * The process that this keeper has, which is not the one that it had; 0: none. A child of the service's that has lost its parent is the
 * keeper's, too, and may register itself, by whatever arguments: if the keeper cannot be asked, there must be one only.
 */
static long kept_by(long keeper, long other)
{
	long pid, found = keeps(keeper);
	struct start s;
	struct dirent *d;
	DIR *dir;

	if (found >= 0)
		return found && found != other && start_of(found, &s) ? found : 0;
	found = 0;
	dir = opendir("/proc");
	while (dir && (d = readdir(dir))) {
		pid = atol(d->d_name);
		if (pid <= 0 || pid == other || status_number(pid, "\nPPid:") != keeper || !start_of(pid, &s) || s.keeper != keeper)
			continue;
		if (found)
			errx(NOBODY, "process %ld keeps a service, and processes %ld and %ld say that they are that: ask as root, or give the process id",
			     keeper, found, pid);
		found = pid;
	}
	if (dir)
		closedir(dir);
	return found;
}

/* A keeper's process means the one that it keeps. */
static long program_of(long pid)
{
	double end = now() + opt.timeout;
	long kept;

	if (pid <= 0 || registered_number(pid, "registered") == 1)
		return pid;
	while (!(kept = keeps(pid)) && now() < end)
		poll(NULL, 0, PACE_MS);
	if (!kept)
		errx(NOBODY, "process %ld keeps a service, which does not run at the moment: perdurectl log tells why", pid);
	return kept > 0 ? kept : kept_by(pid, 0) ?: pid;
}

static long find_process(const char *who)
{
	long pid, main_pid;
	char *end;

	if (isdigit((unsigned char)*who)) {
		pid = strtol(who, &end, 10);
		if (!*end && pid > 0)
			return program_of(pid);
	}
	main_pid = atol(property(who, "MainPID"));
	pid = program_of(main_pid);
	/* A wrapper may be the main process, and not the service. */
	if (pid == main_pid && (pid <= 0 || registered_number(pid, "registered") != 1)) {
		long other = in_cgroup(who, property(who, "ControlGroup"));

		pid = other ? other : pid;
	}
	if (pid <= 0)
		errx(NOBODY, "unit %s has no process: systemctl status %s", who, who);
	return pid;
}

/* ---- which program ---- */

/*
 * What the process is to execute instead: the new program with the arguments of the old one. What "perdurectl run" has
 * registered is perdurectl itself, if it has files to close before; the program is one of its arguments, then.
 */
static void exchange(long pid, const char *program, struct restart_request *request)
{
	char *path = registered(pid, "path"), *line = registered(pid, "argv"), **argv, **word;

	if (!path || !line)
		errx(UNCHANGED, "process %ld: its program and arguments are for its owner and root; nothing has changed", pid);
	path = words(path)[0];
	argv = words(line);
	word = run_program(argv);
	if (word) {
		*word = (char *)program;
		request->path = (uintptr_t)path;
		request->argv = (uintptr_t)argv;
		return;
	}
	if (!strcmp(path, program)) {
		/* Replaced in its place: there is no old one to go back to. */
		if (opt.trial && opt.wait)
			warnx("%s is what is registered: if it fails, there is nothing to go back to", program);
		request->trial_ms = 0;
		return;
	}
	if (!strcmp(argv[0], path))
		argv[0] = (char *)program;
	request->path = (uintptr_t)program;
	request->argv = (uintptr_t)argv;
}

/* ---- who keeps it ---- */

static struct {
	long pid;			/* 0: nobody */
	int fd;				/* where it is told, -1: it is not */
	char before[PATH_MAX + 16];	/* what is there */
	ssize_t len;
} kept = { .fd = -1 };

/* Where this process cannot become what it was, somebody else has to start it, or nobody can. */
static void find_keeper(long pid)
{
	long parent = status_number(pid, "\nPPid:"), its;
	struct start s;

	if (!start_of(pid, &s))
		return;
	/* In a container, it knows itself by another number */
	its = s.keeper ? keeps(parent) : 0;
	if (its == pid || (its < 0 && parent == s.keeper))
		kept.pid = parent;
	else if (start_has_changed(&s, pid))
		errx(UNCHANGED, "process %ld cannot be restarted in its process: it has given up privileges, or filters its system calls, since "
		     "it was started (perdurectl run without --in-place keeps them for it); nothing has changed", pid);
}

/* It starts the new program from now on, should it have to. */
static void tell_keeper(const char *program)
{
	char path[64];
	struct dirent *d;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%ld/fd", kept.pid);
	dir = opendir(path);
	while (dir && kept.fd < 0 && (d = readdir(dir)))
		if (is_told(dirfd(dir), d->d_name))
			kept.fd = openat(dirfd(dir), d->d_name, O_RDWR | O_CLOEXEC);
	if (!dir || kept.fd < 0)
		errx(UNCHANGED, "process %ld, the keeper of the service, cannot be told of the new program: only root, or who may look into it with "
		     "ptrace(2), does that; nothing has changed", kept.pid);
	closedir(dir);
	kept.len = pread(kept.fd, kept.before, sizeof(kept.before), 0);
	if (kept.len < 0 || ftruncate(kept.fd, 0) || dprintf(kept.fd, TOLD_FORMAT, (unsigned int)(opt.trial * 1000), program) < 0)
		err(UNCHANGED, "process %ld, the keeper of the service", kept.pid);
}

/* Nothing has come of it. */
static void untell_keeper(void)
{
	if (kept.fd >= 0 && (ftruncate(kept.fd, 0) || pwrite(kept.fd, kept.before, kept.len, 0) != kept.len))
		warn("process %ld, the keeper of the service, believes that the program has changed", kept.pid);
}

/*
 * Either the new generation has become the program by now, or it has found that it cannot; then the keeper ends it and starts another
 * process. Returns which one.
 */
static long follow(long pid, int *pidfd)
{
	double end = now() + opt.timeout;
	char path[64], comm[32];
	long other = 0;

	while (now() < end) {
		snprintf(path, sizeof(path), "/proc/%ld/comm", other ? other : pid);
		if (read_file(path, comm, sizeof(comm)) > 0 && strcmp(comm, "perdurectl\n") && strcmp(comm, SURRENDER "\n"))
			break;
		poll(NULL, 0, PACE_MS / 10);
		if (poll(&(struct pollfd){ .fd = *pidfd, .events = POLLIN }, 1, 0) > 0)
			other = kept_by(kept.pid, pid);
	}
	if (!other && poll(&(struct pollfd){ .fd = *pidfd, .events = POLLIN }, 1, 0) > 0)
		errx(DEAD, "process %ld has ended, and there is no other one that is registered: perdurectl log", pid);
	if (!other)
		return pid;
	close(*pidfd);
	*pidfd = syscall(SYS_pidfd_open, other, 0);
	if (*pidfd < 0)
		errx(DEAD, "process %ld, in place of %ld, has ended: perdurectl log", other, pid);
	warnx("process %ld could not be restarted in its process: in its place, its keeper has started process %ld", pid, other);
	return other;
}

/* ---- and what became of it ---- */

static void check(long pid, const char *program)
{
	char number[24];
	int status;
	pid_t child;

	snprintf(number, sizeof(number), "%ld", pid);
	setenv("PERDURE_PID", number, 1);
	setenv("PERDURE_PROGRAM", program, 1);
	child = fork();
	if (child < 0)
		err(UNCHANGED, "--check");
	if (!child) {
		execl("/bin/sh", "sh", "-c", opt.check, (char *)NULL);
		_exit(127);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(status))
		errx(UNCHANGED, "--check: killed by signal %d; nothing has changed", WTERMSIG(status));
	if (status)
		errx(UNCHANGED, "--check: status %d; nothing has changed", WEXITSTATUS(status));
}

static void on_alarm(int sig)
{
	(void)sig;
}

/* 0 or an errno: asks as long as somebody else does, or has just done, and not for longer than --timeout. */
static int ask(struct restart_request *request)
{
	const struct sigaction action = { .sa_handler = on_alarm };	/* no SA_RESTART */
	double end = now() + opt.timeout, left = opt.timeout;
	int error;

	sigaction(SIGALRM, &action, NULL);
	for (;;) {
		struct itimerval timer = {
			.it_value = { (time_t)left, (suseconds_t)((left - (time_t)left) * 1e6) + 1 },
			.it_interval = { 0, 100000 },	/* should one come before the call */
		};

		setitimer(ITIMER_REAL, &timer, NULL);
		error = restartctl(RESTARTCTL_RESTART, request, sizeof(*request)) ? errno : 0;
		timer = (struct itimerval){ 0 };
		setitimer(ITIMER_REAL, &timer, NULL);
		left = end - now();
		if ((error != EAGAIN && error != EBUSY) || request->error || left <= 0)
			return error;
		poll(NULL, 0, PACE_MS);
	}
}

/* Nothing was executed: why, and what to do. */
static void refused(long pid, int error)
{
	switch (error) {
	case ENOSYS:
		errx(NOBODY, "this kernel has no zero-loss restart: boot a Perdure kernel (uname -r: ...-perdure)");
	case EOPNOTSUPP:
		errx(NOBODY, "it is switched off: sysctl kernel.restart.enabled=1");
	case EINVAL:
		errx(NOBODY, "this kernel cannot restart on purpose: it is older than this program");
	case ENOENT:
		errx(NOBODY, "process %ld is not registered: it has to call reregist(2), or be started by perdurectl run", pid);
	case ESRCH:
		errx(DEAD, "process %ld has ended, or executed something else", pid);
	case EINTR:
	case EBUSY:
	case EAGAIN:
		errx(UNCHANGED, "process %ld does not answer within %g s: it is stopped, frozen, traced, or waits for a device "
		     "(see State in /proc/%ld/status); nothing has changed", pid, opt.timeout, pid);
	case EPERM:
		errx(UNCHANGED, opt.upgrade ? "process %ld: only root, or who may attach to it with ptrace(2), exchanges its program; "
				"nothing has changed" : "process %ld: only root, or who may send it signals, restarts it; nothing has "
				"changed", pid);
	default:
		errx(UNCHANGED, "process %ld: %s; nothing has changed", pid, strerror(error));
	}
}

/* The program could not be executed. */
static const char *advice(int error)
{
	switch (error) {
	case ENOENT:
		return "is it there, and its interpreter, as the process sees it?";
	case EACCES:
		return "may its user execute it?";
	case ENOEXEC:
		return "is it a program for this machine? A script needs a first line like #!/bin/sh";
	case ETXTBSY:
		return "it is open for writing: write a copy, and rename that";
	case EPERM:
		return "its first thread has other credentials than it registered with; try again, or have it register anew";
	case EXDEV:
		return "the process has changed its root directory or mount namespace since it registered";
	default:
		return "see perdurectl log";
	}
}

/* Sees whether the generation lives for so long. */
static int watch(long pid, int pidfd, uint64_t generation)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };
	double end = now() + opt.wait;
	long long runs;

	while (now() < end) {
		if (poll(&p, 1, PACE_MS) > 0 && kept.pid && !kill(kept.pid, 0))
			errx(REVERTED, "process %ld has ended within %g s, and its keeper, process %ld, starts another one: perdurectl log", pid,
			     opt.wait, kept.pid);
		if (p.revents)
			errx(DEAD, "process %ld has ended within %g s: perdurectl log %ld", pid, opt.wait, pid);
		runs = registered_number(pid, "generation");
		if (runs <= 0 || (uint64_t)runs == generation)
			continue;
		if (registered_number(pid, "reverted") == 1)
			errx(REVERTED, "process %ld: the new program failed, and the one before runs again, as generation %lld: "
			     "perdurectl log %ld", pid, runs, pid);
		errx(REVERTED, "process %ld: restarted again, as generation %lld: perdurectl log %ld", pid, runs, pid);
	}
	return DONE;
}

int upgrade(int argc, char **argv)
{
	struct restart_request request = { 0 };
	char *program = NULL;
	int error, pidfd;
	long pid;

	options(argc, argv);
	pid = find_process(opt.who);
	pidfd = syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0)
		errx(NOBODY, errno == ESRCH || errno == EINVAL ? "there is no process %ld" : "process %ld: %m", pid);
	if (registered_number(pid, "registered") == 0)
		refused(pid, ENOENT);
	request.pidfd = pidfd;
	find_keeper(pid);
	if (opt.upgrade) {
		program = absolute(opt.program);
		if (!program)
			err(UNCHANGED, "working directory");
		request.trial_ms = opt.trial * 1000;
		exchange(pid, program, &request);
	} else {
		program = registered(pid, "path");
	}
	if (opt.check)
		check(pid, program ? program : "");

	if (opt.upgrade && kept.pid)
		tell_keeper(program);
	error = ask(&request);
	if (error)
		untell_keeper();
	if (error && request.generation)
		errx(REVERTED, "process %ld: %s: %s; the program before runs again, as generation %llu", pid, program,
		     strerror(error), (unsigned long long)request.generation);
	if (error && request.error)
		errx(UNCHANGED, "process %ld: %s: %s (%s); the old program goes on", pid, program ? program : "its program",
		     strerror(error), advice(error));
	if (error)
		refused(pid, error);
	printf("process %ld: generation %llu\n", pid, (unsigned long long)request.generation);
	if (kept.pid) {
		long other = follow(pid, &pidfd);

		if (other != pid)
			request.generation = registered_number(other, "generation");
		pid = other;
	}
	if (registered_number(pid, "registered") == 0)
		warnx("process %ld is registered no longer: the new program got privileges when it was executed, or has given it up", pid);
	if (fflush(stdout))
		err(UNCHANGED, "writing");
	return watch(pid, pidfd, request.generation);
}
