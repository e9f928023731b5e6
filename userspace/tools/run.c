// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * perdurectl run: registers this process for what it executes next, and executes it. REREGIST_EXEC is what makes the
 * registration stay over that execve(2), so the program needs no change, no library and no dynamic linker.
 *
 * With --fresh or --listen what is registered is perdurectl itself: in each new generation it closes what the old one had opened,
 * and executes the program again.
 */
#include <ctype.h>
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <perdure.h>

#include "numbers.h"
#include "run.h"

/* As the shell has it: the program cannot be executed, does not exist; we ourselves failed. */
enum { USAGE = 2, FAILED = 125, NOT_EXECUTABLE = 126, NOT_FOUND = 127 };
enum { LISTEN_FDS_START = 3, MAX_LISTEN = 32 };

extern char **environ;

static struct {
	int child_id;
	bool try, fresh, keep;
	const char *again;		/* descriptors that the program was given, from an earlier generation of us */
	char *path;			/* and what that found: the working directory may be another by now */
	const char *listen[MAX_LISTEN];
	int listens;
	struct restart_policy policy;
} opt;

static void usage(FILE *to)
{
	fputs("usage: perdurectl run [OPTION...] [--] PROGRAM [ARGUMENT...]\n\n"
	      "  -i, --child-id N       the program's role, which getreginfo(2) tells it (0)\n"
	      "  -b, --burst N          restart at most N times (1)\n"
	      "  -t, --interval MS        in so many milliseconds (60000)\n"
	      "  -q, --quarantine       once more, when the same connection is the suspect again\n"
	      "  -e, --on-exit          an exit status other than 0 is a fault, too\n"
	      "  -c, --core             leave a core dump at each restart\n"
	      "  -H, --heartbeat MS     for a program that calls perdure_heartbeat(2) at least so often\n"
	      "  -l, --listen [HOST:]PORT\n"
	      "                         a listening socket, handed over as systemd does (LISTEN_FDS); repeat for more\n"
	      "  -f, --fresh            a new generation gets the files that the program was started with, not those that\n"
	      "                         it opened itself: for one that opens its own port; the rule with --listen\n"
	      "  -k, --keep             with --listen, all files all the same\n"
	      "  -n, --try              where the kernel cannot do it, run the program unprotected\n", to);
}

static long number(const char *what, const char *s, long min, long max)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(s, &end, 10);
	if (*end || !*s || errno || n < min || n > max)
		errx(USAGE, "%s %s: not a number from %ld to %ld", what, s, min, max);
	return n;
}

static int options(int argc, char **argv)
{
	static const struct option names[] = {
		{ "child-id", required_argument, NULL, 'i' },
		{ "burst", required_argument, NULL, 'b' },
		{ "interval", required_argument, NULL, 't' },
		{ "quarantine", no_argument, NULL, 'q' },
		{ "on-exit", no_argument, NULL, 'e' },
		{ "core", no_argument, NULL, 'c' },
		{ "heartbeat", required_argument, NULL, 'H' },
		{ "listen", required_argument, NULL, 'l' },
		{ "fresh", no_argument, NULL, 'f' },
		{ "keep", no_argument, NULL, 'k' },
		{ "try", no_argument, NULL, 'n' },
		{ "help", no_argument, NULL, 'h' },
		{ "again", required_argument, NULL, 'A' },
		{ "path", required_argument, NULL, 'P' },
		{ NULL, 0, NULL, 0 },
	};
	struct restart_policy *p = &opt.policy;
	int c;

	/* "+": the program's options are not ours */
	while ((c = getopt_long(argc, argv, "+i:b:t:qecH:l:fknh", names, NULL)) != -1) {
		switch (c) {
		case 'i':
			opt.child_id = number("--child-id", optarg, INT_MIN, INT_MAX);
			break;
		case 'b':
			p->burst = number("--burst", optarg, 1, 64);
			break;
		case 't':
			p->interval_ms = number("--interval", optarg, 1, UINT32_MAX);
			break;
		case 'q':
			p->flags |= RESTART_QUARANTINE;
			break;
		case 'e':
			p->flags |= RESTART_ON_EXIT;
			break;
		case 'c':
			p->flags |= RESTART_CORE;
			break;
		case 'H':
			p->heartbeat_ns = number("--heartbeat", optarg, 1, 86400000) * 1000000ull;
			break;
		case 'l':
			if (opt.listens == MAX_LISTEN)
				errx(USAGE, "--listen: not more than %d", MAX_LISTEN);
			opt.listen[opt.listens++] = optarg;
			break;
		case 'f':
			opt.fresh = true;
			break;
		case 'k':
			opt.keep = true;
			break;
		case 'n':
			opt.try = true;
			break;
		case 'A':
			opt.again = optarg;
			break;
		case 'P':
			opt.path = optarg;
			break;
		case 'h':
			usage(stdout);
			exit(0);
		default:
			usage(stderr);
			exit(USAGE);
		}
	}
	if (p->burst || p->interval_ms) {
		p->flags |= RESTART_LIMIT;
		p->burst = p->burst ? p->burst : 1;
		p->interval_ms = p->interval_ms ? p->interval_ms : 60000;
	}
	if (opt.keep && (opt.fresh || !opt.listens))
		errx(USAGE, "--keep: only with --listen, and without --fresh");
	/* Who waits for an answer of the old generation is to see its end: nobody else knows of that connection. */
	if (opt.listens && !opt.keep)
		opt.fresh = true;
	if (optind == argc)
		errx(USAGE, "run which program? perdurectl run [OPTION...] -- PROGRAM [ARGUMENT...]");
	return optind;
}

/* What execvp(3) would execute, as a path that does not depend on the working directory. */
static char *find(const char *name)
{
	const char *list = getenv("PATH"), *end;
	char *path = NULL, *cwd;
	int error = ENOENT;
	struct stat st;

	if (strchr(name, '/')) {
		if (*name == '/')
			return strdup(name);
		cwd = getcwd(NULL, 0);
		if (!cwd || asprintf(&path, "%s/%s", cwd, name) < 0)
			err(FAILED, "working directory");
		return path;
	}
	for (list = list ? list : "/usr/bin:/bin"; list; list = *end ? end + 1 : NULL) {
		end = strchrnul(list, ':');
		/* An empty element is the working directory. */
		cwd = *list == '/' ? NULL : getcwd(NULL, 0);
		if (asprintf(&path, "%s%s%.*s/%s", cwd ? cwd : "", cwd ? "/" : "", (int)(end - list), list, name) < 0)
			err(FAILED, "PATH");
		if (!stat(path, &st) && S_ISREG(st.st_mode) && !access(path, X_OK))
			return path;
		if (errno != ENOENT && errno != ENOTDIR)
			error = errno;
		free(path);
	}
	errno = error;
	err(error == ENOENT ? NOT_FOUND : NOT_EXECUTABLE, "%s", name);
}

/* The kernel drops our registration when the program gains privileges by its execution: say so before. */
static bool is_privileged(const char *path)
{
	struct stat st;

	if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) > 0)
		return false;
	if (stat(path, &st))
		err(errno == ENOENT ? NOT_FOUND : NOT_EXECUTABLE, "%s", path);
	return ((st.st_mode & S_ISUID) && st.st_uid != getuid()) ||
	       ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st.st_gid != getgid()) ||
	       (getuid() && getxattr(path, "security.capability", NULL, 0) >= 0);
}

/* ---- files ---- */

static void listen_on(const char *where, int fd)
{
	char *host = strdup(where), *port = strrchr(host, ':');
	struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *ai;
	int s, on = 1, error;

	if (port)
		*port++ = 0;
	else
		port = host, host = NULL;
	/* [::1]:80 */
	if (host && *host == '[' && host[strlen(host) - 1] == ']') {
		host[strlen(host) - 1] = 0;
		host++;
	}
	/* It would take the last 16 bits of any number. */
	if (isdigit((unsigned char)*port) && port[strspn(port, "0123456789")] == 0)
		number("--listen", port, 1, 65535);
	error = getaddrinfo(host && *host ? host : NULL, port, &hints, &ai);
	if (error)
		errx(FAILED, "--listen %s: %s", where, gai_strerror(error));
	if (fcntl(fd, F_GETFD) >= 0)
		errx(FAILED, "--listen %s: descriptor %d, where it belongs, is in use: start perdurectl without it", where, fd);
	s = socket(ai->ai_family, ai->ai_socktype | SOCK_CLOEXEC, ai->ai_protocol);
	if (s < 0 || setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) || bind(s, ai->ai_addr, ai->ai_addrlen) ||
	    listen(s, SOMAXCONN))
		err(FAILED, "--listen %s", where);
	freeaddrinfo(ai);
	if (s == fd ? fcntl(s, F_SETFD, 0) < 0 : dup2(s, fd) < 0 || close(s))
		err(FAILED, "--listen %s", where);
}

static void listen_all(void)
{
	char text[16];

	if (!opt.listens || opt.again)
		return;
	if (getenv("LISTEN_FDS"))
		errx(USAGE, "--listen: there are sockets already (LISTEN_FDS); take them all from one place");
	for (int i = 0; i < opt.listens; i++)
		listen_on(opt.listen[i], LISTEN_FDS_START + i);
	snprintf(text, sizeof(text), "%d", opt.listens);
	setenv("LISTEN_FDS", text, 1);
	/* It stays ours: a restart does not change it. */
	snprintf(text, sizeof(text), "%d", getpid());
	setenv("LISTEN_PID", text, 1);
}

/* "0,1,2": the files that the program is given, those that are not close-on-exec. */
static char *given(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *d;
	char *list = NULL;
	size_t size;
	FILE *f;

	if (!dir)
		err(FAILED, "--fresh needs /proc: /proc/self/fd");
	f = open_memstream(&list, &size);
	if (!f)
		err(FAILED, "--fresh");
	while ((d = readdir(dir))) {
		int fd = atoi(d->d_name), flags = fcntl(fd, F_GETFD);

		if (d->d_name[0] != '.' && flags >= 0 && !(flags & FD_CLOEXEC))
			fprintf(f, "%s%d", ftell(f) ? "," : "", fd);
	}
	closedir(dir);
	fclose(f);
	return list;
}

/* All others are the old generation's own. */
static void close_others(const char *list)
{
	unsigned int next = 0;

	/* Descriptors in /proc/self/fd are in ascending order, and so is the list. */
	while (*list) {
		char *end;
		unsigned int fd = strtoul(list, &end, 10);

		if (end == list || fd < next)
			errx(FAILED, "--again: not a list of descriptors");
		if (fd > next)
			syscall(SYS_close_range, next, fd - 1, 0);
		next = fd + 1;
		list = *end ? end + 1 : end;
	}
	syscall(SYS_close_range, next, ~0U, 0);
}

/* ---- registration ---- */

static void unable(const char *why)
{
	if (!opt.try)
		errx(FAILED, "%s (--try runs the program all the same, unprotected)", why);
	warnx("%s: a fault will be the end", why);
}

static void enroll(const char *path, char **argv)
{
	if (syscall(__NR_reregist, path, argv, environ, opt.child_id, REREGIST_EXEC)) {
		switch (errno) {
		case ENOSYS:
			unable("this kernel has no zero-loss restart: boot a Perdure kernel");
			return;
		case EOPNOTSUPP:
			unable("it is switched off: sysctl kernel.restart.enabled=1");
			return;
		case EPERM:
			unable("a seccomp filter forbids our system calls (allow 500 to 506), or execve");
			return;
		case EINVAL:
			unable("this kernel cannot register what is executed next: it is older than this program");
			return;
		case E2BIG:
			unable("arguments and environment are more than 128 KiB: env -i makes the environment small");
			return;
		case ENOENT:
		case ENOTDIR:
			err(NOT_FOUND, "%s", path);
		default:
			err(NOT_EXECUTABLE, "%s", path);
		}
	}
	if (!opt.policy.flags && !opt.policy.heartbeat_ns)
		return;
	if (perdure_setpolicy(&opt.policy, sizeof(opt.policy))) {
		const char *why = "this kernel knows no policies: it is older than this program";

		if (errno == EINVAL)
			why = "this kernel does not know this policy (--quarantine needs CONFIG_ZLR_IO)";
		else if (errno != ENOSYS && errno != EPERM && errno != EOPNOTSUPP)
			err(FAILED, "policy");
		if (!opt.try)
			errx(FAILED, "%s", why);
		warnx("%s: kernel.restart.min_interval_ms rules", why);
	}
}

/* argv with --again and --path after "run", for the next generation of ourselves */
static char **arguments_again(int argc, char **argv, char *list, char *path)
{
	char **again = calloc(argc + 6, sizeof(*again));
	int n = 0;

	if (!again)
		err(FAILED, "--fresh");
	again[n++] = "perdurectl";
	again[n++] = "run";
	again[n++] = "--again";
	again[n++] = list;
	again[n++] = "--path";
	again[n++] = path;
	memcpy(again + n, argv + 1, argc * sizeof(*argv));
	return again;
}

int run(int argc, char **argv)
{
	int first = options(argc, argv);
	char **program = argv + first, *path, self[PATH_MAX];
	bool privileged;
	ssize_t n;

	if (opt.again)
		close_others(opt.again);
	path = opt.path ? opt.path : find(*program);
	privileged = is_privileged(path);
	if (privileged && !opt.try)
		errx(NOT_EXECUTABLE, "%s gets privileges when it is executed, and may not be registered by one who has not: "
		     "run it as the user whom it becomes, or have it register itself", path);
	listen_all();
	if (privileged) {
		unable("the program gets privileges when it is executed");
	} else if (!opt.fresh) {
		enroll(path, program);
	} else if (!opt.again) {
		n = readlink("/proc/self/exe", self, sizeof(self) - 1);
		if (n < 0)
			err(FAILED, "--fresh needs /proc: /proc/self/exe");
		self[n] = 0;
		enroll(self, arguments_again(argc, argv, given(), path));
	} else {
		/* Once more, to keep it over the next execve(2), too; the policy is there. */
		char again[PATH_MAX];

		n = readlink("/proc/self/exe", again, sizeof(again) - 1);
		again[n < 0 ? 0 : n] = 0;
		if (syscall(__NR_reregist, again, argv - 1, environ, opt.child_id, REREGIST_EXEC))
			err(FAILED, "registering again");
	}

	execv(path, program);
	if (errno == ENOEXEC)
		errx(NOT_EXECUTABLE, "%s: not a program that the kernel executes (a script needs a first line like #!/bin/sh)",
		     path);
	err(errno == ENOENT ? NOT_FOUND : NOT_EXECUTABLE, "%s", path);
}
