// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * perdurectl run: registers this process for what it executes next, and executes it. REREGIST_EXEC is what makes the
 * registration stay over that execve(2), so the program needs no change, no library and no dynamic linker.
 *
 * What is registered is perdurectl itself: in each new generation it makes the process what it was at the start
 * (generation.c), and executes the program again. With --keep it is the program, which finds everything as it was.
 * A program that can give up privileges has a keeper (keeper.c), which still has them.
 */
#include <ctype.h>
#include <elf.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <netdb.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <perdure.h>

#include "keeper.h"
#include "ports.h"
#include "run.h"
#include "words.h"

/* As the shell has it: the program cannot be executed, does not exist; we ourselves failed. */
enum { USAGE = 2, FAILED = 125, NOT_EXECUTABLE = 126, NOT_FOUND = 127 };
enum { LISTEN_FDS_START = 3, MAX_LISTEN = 32 };

#ifdef __aarch64__
#define DYNAMIC_LINKER	"/lib/ld-linux-aarch64.so.1"
#else
#define DYNAMIC_LINKER	"/lib64/ld-linux-x86-64.so.2"
#endif

extern char **environ;

static struct {
	int child_id;
	bool try, keep, keeper, in_place, children, no_ports, core, no_core;
	unsigned int delay_ms;
	const char *pid_file;
	const char *again;		/* what the program was started with, from an earlier generation of us */
	char *path;			/* and what that found: the working directory may be another by now */
	const char *listen[MAX_LISTEN];
	int listens;
	struct restart_policy policy;
	unsigned int core_mib;
} opt = { .delay_ms = 100, .core_mib = 1024 };

static struct start start;
static char **arguments;		/* from "run" on */
static int nr_arguments;

static void usage(FILE *to)
{
	fputs("usage: perdurectl run [OPTION...] [--] PROGRAM [ARGUMENT...]\n\n"
	      "  -i, --child-id N       the program's role, which getreginfo(2) tells it (0)\n"
	      "  -b, --burst N          restart at most N times (1)\n"
	      "  -t, --interval MS        in so many milliseconds (60000)\n"
	      "  -q, --quarantine       once more, when the same connection is the suspect again\n"
	      "  -e, --on-exit          an exit status other than 0 is a fault, too\n"
	      "  -c, --core             leave a core dump at each restart, whatever the soft limit says (unless that is 0, it is so)\n"
	      "  -m, --core-max MIB     of at most so many MiB (1024)\n"
	      "  -N, --no-core          leave none\n"
	      "  -H, --heartbeat MS     for a program that calls perdure_heartbeat(2) at least so often\n"
	      "  -l, --listen [HOST:]PORT\n"
	      "                         a listening socket, handed over as systemd does (LISTEN_FDS); repeat for more\n"
	      "  -p, --pid-file FILE    removed before the program is started once more\n"
	      "  -d, --delay MS         after one that died within 2 s of its start, before the next; doubled each time (100)\n"
	      "  -C, --keep-children    do not end the children of the old generation\n"
	      "  -P, --no-ports         do not hand on the listening sockets that the program opens itself\n"
	      "  -k, --keep             everything stays open: for a program that looks for its files (libperdure)\n"
	      "  -I, --in-place         without a parent that keeps the privileges; default where there are none\n"
	      "  -K, --keeper           with one, all the same\n"
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

static char *located(const char *path)
{
	char *full = absolute(path);

	if (!full)
		err(FAILED, "working directory");
	return full;
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
		{ "core-max", required_argument, NULL, 'm' },
		{ "no-core", no_argument, NULL, 'N' },
		{ "heartbeat", required_argument, NULL, 'H' },
		{ "listen", required_argument, NULL, 'l' },
		{ "pid-file", required_argument, NULL, 'p' },
		{ "delay", required_argument, NULL, 'd' },
		{ "keep-children", no_argument, NULL, 'C' },
		{ "no-ports", no_argument, NULL, 'P' },
		{ "keep", no_argument, NULL, 'k' },
		{ "in-place", no_argument, NULL, 'I' },
		{ "keeper", no_argument, NULL, 'K' },
		{ "try", no_argument, NULL, 'n' },
		{ "help", no_argument, NULL, 'h' },
		{ "again", required_argument, NULL, 'A' },
		{ "path", required_argument, NULL, 'R' },
		{ NULL, 0, NULL, 0 },
	};
	struct restart_policy *p = &opt.policy;
	int c;

	/* "+": the program's options are not ours */
	while ((c = getopt_long(argc, argv, "+i:b:t:qecm:NH:l:p:d:CPkIKnh", names, NULL)) != -1) {
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
			opt.core = true;
			break;
		case 'm':
			opt.core_mib = number("--core-max", optarg, 1, 1 << 30);
			break;
		case 'N':
			opt.no_core = true;
			break;
		case 'H':
			p->heartbeat_ns = number("--heartbeat", optarg, 1, 86400000) * 1000000ull;
			break;
		case 'l':
			if (opt.listens == MAX_LISTEN)
				errx(USAGE, "--listen: not more than %d", MAX_LISTEN);
			opt.listen[opt.listens++] = optarg;
			break;
		case 'p':
			/* The program may change its directory before it is started again */
			opt.pid_file = opt.again ? optarg : located(optarg);
			break;
		case 'd':
			opt.delay_ms = number("--delay", optarg, 0, 3600000);
			break;
		case 'C':
			opt.children = true;
			break;
		case 'P':
			opt.no_ports = true;
			break;
		case 'I':
			opt.in_place = true;
			break;
		case 'K':
			opt.keeper = true;
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
		case 'R':
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
	if (opt.core && opt.no_core)
		errx(USAGE, "--core: not with --no-core");
	if (opt.keeper && (opt.keep || opt.in_place))
		errx(USAGE, "--keeper: not with --keep or --in-place");
	if (opt.keep && (opt.pid_file || opt.children || opt.no_ports))
		errx(USAGE, "--keep: nothing is ended, closed or removed; leave out --pid-file, --keep-children and --no-ports");
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

	if (strchr(name, '/'))
		return located(name);
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

/* One that listens, or -1 */
static int listener(const struct addrinfo *ai, bool both)
{
	int s = socket(ai->ai_family, ai->ai_socktype | SOCK_CLOEXEC, ai->ai_protocol), on = 1, error;

	if (s >= 0 && !setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) &&
	    (!both || !setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &(int){ 0 }, sizeof(int))) &&
	    !bind(s, ai->ai_addr, ai->ai_addrlen) && !listen(s, SOMAXCONN))
		return s;
	error = errno;
	if (s >= 0)
		close(s);
	errno = error;
	return -1;
}

static void listen_on(const char *where, int fd)
{
	char *host = strdup(where), *port = strrchr(host, ':');
	struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *ai;
	int s = -1, error;

	if (port)
		*port++ = 0;
	else
		port = host, host = NULL;
	/* [::1]:80 */
	if (host && *host == '[' && host[strlen(host) - 1] == ']') {
		host[strlen(host) - 1] = 0;
		host++;
	}
	if (host && !*host)
		host = NULL;
	/* It would take the last 16 bits of any number. */
	if (isdigit((unsigned char)*port) && port[strspn(port, "0123456789")] == 0)
		number("--listen", port, 1, 65535);
	if (fcntl(fd, F_GETFD) >= 0)
		errx(FAILED, "--listen %s: descriptor %d, where it belongs, is in use: start perdurectl without it", where, fd);
	/* Without a host, IPv6 and IPv4 by one socket, as systemd does it; IPv4 alone where there is nothing else */
	hints.ai_family = host ? AF_UNSPEC : AF_INET6;
	error = getaddrinfo(host, port, &hints, &ai);
	if (!error) {
		s = listener(ai, !host);
		if (s < 0 && (host || (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL)))
			err(FAILED, "--listen %s", where);
		freeaddrinfo(ai);
	}
	if (s < 0 && !host) {
		hints.ai_family = AF_INET;
		error = getaddrinfo(NULL, port, &hints, &ai);
		if (!error) {
			s = listener(ai, false);
			if (s < 0)
				err(FAILED, "--listen %s", where);
			freeaddrinfo(ai);
		}
	}
	if (error)
		errx(FAILED, "--listen %s: %s", where, gai_strerror(error));
	if (s == fd ? fcntl(s, F_SETFD, 0) < 0 : dup2(s, fd) < 0 || close(s))
		err(FAILED, "--listen %s", where);
}

static void listen_all(void)
{
	char text[16];

	if (!opt.listens)
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

/* ---- registration ---- */

static void unable(const char *why)
{
	if (!opt.try)
		errx(FAILED, "%s (--try runs the program all the same, unprotected)", why);
	if (start.keeper)
		warnx("%s: a fault is the end of the process, and another one is started", why);
	else
		warnx("%s: a fault will be the end", why);
}

static void enroll(const char *path, char **argv)
{
	if (perdure_reregist(path, argv, environ, opt.child_id, REREGIST_EXEC)) {
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

		/* Nobody has asked for one */
		if (opt.policy.flags == RESTART_CORE && !opt.policy.heartbeat_ns && !opt.core)
			return;
		if (errno == EINVAL)
			why = "this kernel does not know this policy (--quarantine needs CONFIG_ZLR_IO)";
		else if (errno != ENOSYS && errno != EPERM && errno != EOPNOTSUPP)
			err(FAILED, "policy");
		if (!opt.try)
			errx(FAILED, "%s", why);
		warnx("%s: kernel.restart.min_interval_ms rules", why);
	}
}

/* ---- the preloaded library ---- */

/* Has the program the dynamic linker of our C library? A script: its interpreter. */
static bool is_dynamic(const char *path, bool script)
{
	char head[4096] = "", *end;
	const Elf64_Ehdr *elf = (const Elf64_Ehdr *)head;
	const Elf64_Phdr *p;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, head, sizeof(head) - 1);
	close(fd);
	if (n > 2 && !memcmp(head, "#!", 2) && script) {
		char *interpreter = head + 2 + strspn(head + 2, " \t");

		end = interpreter + strcspn(interpreter, " \t\r\n");
		*end = 0;
		return is_dynamic(interpreter, false);
	}
	if (n < (ssize_t)sizeof(*elf) || memcmp(elf->e_ident, ELFMAG, SELFMAG) || elf->e_ident[EI_CLASS] != ELFCLASS64 ||
	    elf->e_phentsize != sizeof(*p))
		return false;
	p = (const Elf64_Phdr *)(head + elf->e_phoff);
	for (int i = 0; i < elf->e_phnum && (const char *)(p + i + 1) <= head + n; i++)
		if (p[i].p_type == PT_INTERP && p[i].p_offset + p[i].p_filesz <= (size_t)n)
			return !strcmp(head + p[i].p_offset, DYNAMIC_LINKER);
	return false;
}

/* Beside this program where it was built, otherwise where it is installed; NULL: none. */
static const char *library(const char *self)
{
	static char path[PATH_MAX + 32];
	char dir[PATH_MAX];

	snprintf(dir, sizeof(dir), "%s", self);
	snprintf(path, sizeof(path), "%s/perdure-ports.so", dirname(dir));
	if (!access(path, R_OK))
		return path;
	return access(PORTS_LIBRARY, R_OK) ? NULL : PORTS_LIBRARY;
}

static void preload(const char *self, const int *ports, size_t n)
{
	const char *file = library(self), *others = getenv("LD_PRELOAD");
	char *text = NULL;
	size_t size;
	FILE *f;

	if (!file)
		return;
	if (asprintf(&text, "%s%s%s", file, others && *others ? ":" : "", others ? others : "") < 0 ||
	    setenv("LD_PRELOAD", text, 1))
		err(FAILED, "LD_PRELOAD");
	free(text);
	f = open_memstream(&text, &size);
	if (!f)
		err(FAILED, PORTS_ENV);
	for (size_t i = 0; i < n; i++)
		fprintf(f, i ? ",%d" : "%d", ports[i]);
	if (fclose(f) || setenv(PORTS_ENV, text, 1))
		err(FAILED, PORTS_ENV);
	free(text);
}

/* ---- generations ---- */

/* argv with --again and --path after "run", for the next generation of ourselves */
static char **arguments_again(const char *path)
{
	char **again = calloc(nr_arguments + 6, sizeof(*again));
	int n = 0, skip = opt.again ? 5 : 1;

	if (!again)
		err(FAILED, "arguments");
	again[n++] = "perdurectl";
	again[n++] = "run";
	again[n++] = "--again";
	again[n++] = start_text(&start);
	again[n++] = "--path";
	again[n++] = (char *)path;
	memcpy(again + n, arguments + skip, (nr_arguments - skip + 1) * sizeof(*arguments));
	return again;
}

char **run_program(char **argv)
{
	bool again = argv[0] && argv[1] && argv[2] && !strcmp(argv[1], "run") && !strcmp(argv[2], "--again");
	char **word = again ? argv + 2 : NULL;

	while (word && *word && strcmp(*word, "--path"))
		word++;
	return word && word[0] && word[1] ? word + 1 : NULL;
}

static _Noreturn void execute(const char *path, char **program)
{
	execv(path, program);
	if (errno == ENOEXEC)
		errx(NOT_EXECUTABLE, "%s: not a program that the kernel executes (a script needs a first line like #!/bin/sh)",
		     path);
	err(errno == ENOENT ? NOT_FOUND : NOT_EXECUTABLE, "%s", path);
}

bool run_start(char **argv, struct start *s)
{
	return run_program(argv) && start_parse(s, argv[3]);
}

/* Becomes the program. In a later generation in place the policy is there already. */
static void launch(struct start *s, int *ports, size_t nr_ports, unsigned int burst)
{
	char self[PATH_MAX] = "", **program = arguments + optind;

	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		err(FAILED, "needs /proc: /proc/self/exe");
	for (size_t i = 0; i < nr_ports; i++)
		fcntl(ports[i], F_SETFD, 0);
	if (!opt.again) {
		start_keep_files(s);
		start_restore_flags(s);
	}
	s->born_ns = now_ns();
	if (opt.again) {
		if (perdure_reregist(self, arguments_again(opt.path), environ, opt.child_id, REREGIST_EXEC))
			err(FAILED, "registering again");
		start_restore_mask(s);
	} else if (burst) {
		if (opt.policy.flags & RESTART_LIMIT && burst < opt.policy.burst)
			opt.policy.burst = burst;
		/* That is how the next generation begins */
		start_block_all();
		enroll(self, arguments_again(opt.path));
		start_restore_mask(s);
	}
	if (!opt.no_ports && is_dynamic(opt.path, true))
		preload(self, ports, nr_ports);
	execute(opt.path, program);
}

/* This process cannot become what it was: it dies as it would have died without us, unless its keeper takes over. */
static _Noreturn void surrender(const char *why, const struct reg_info *info, int *ports, size_t nr_ports)
{
	warnx("%s cannot be restarted in its process: %s", basename(opt.path), why);
	perdure_unregister();
	if (start.keeper) {
		/* It takes the sockets in these descriptors, and leaves the others to us: to be closed now */
		close_others(ports, nr_ports);
		prctl(PR_SET_NAME, SURRENDER, 0, 0, 0);
		raise(SIGSTOP);
	}
	/* Who asked for it has ended it, and it is to be started again */
	if (info->flags & REG_ASKED)
		_exit(FAILED);
	if (!info->signo)
		_exit(info->code);
	die_of(info->signo);
}

static void again(void)
{
	int ports[PORTS];
	struct reg_info info;
	const char *why;
	size_t nr_ports;

	if (!start_parse(&start, opt.again))
		errx(FAILED, "--again: not what it was given");
	/* Another process may have its number by now */
	if (getppid() != start.keeper)
		start.keeper = 0;
	if (getreginfo(&info) != 1)
		errx(FAILED, "--again is for the kernel to say");
	nr_ports = opt.no_ports ? 0 : ports_find(&start, ports, PORTS);
	why = start_restore(&start, ports, nr_ports);
	if (why)
		surrender(why, &info, ports, nr_ports);
	if (info.flags & REG_ASKED)
		start.asker = info.fault_tid;
	if (!opt.children)
		end_children(&start, start.keeper ? start.keeper : getpid());
	await_turn(&start, info.flags & REG_ASKED ? NO_DEATH : info.fault_time_ns, basename(opt.path), opt.delay_ms, opt.pid_file);
	if (start.ignored & 1u << (SIGCHLD - 1))
		signal(SIGCHLD, SIG_IGN);
	launch(&start, ports, nr_ports, 0);
}

/*
 * A fault leaves with us what it would leave without us: a core dump where the soft limit allows for one, but none that fills a
 * disk. The program and its children have that limit, too.
 */
static void limit_core(void)
{
	const rlim_t max = (rlim_t)opt.core_mib << 20;
	struct rlimit limit;

	if (getrlimit(RLIMIT_CORE, &limit))
		err(FAILED, "RLIMIT_CORE");
	if (opt.no_core)
		limit.rlim_cur = 0;
	else if (opt.core || limit.rlim_cur > max)
		limit.rlim_cur = max < limit.rlim_max ? max : limit.rlim_max;
	if (setrlimit(RLIMIT_CORE, &limit))
		err(FAILED, "RLIMIT_CORE");
	if (opt.core && !limit.rlim_cur)
		warnx("--core: the hard limit of core dumps is 0 (LimitCORE=, ulimit -H -c): there will be none");
	if (limit.rlim_cur)
		opt.policy.flags |= RESTART_CORE;
}

static uint64_t default_interval(void)
{
	FILE *f = fopen("/proc/sys/kernel/restart/min_interval_ms", "re");
	unsigned long ms = 60000;

	if (f && fscanf(f, "%lu", &ms) != 1)
		ms = 60000;
	if (f)
		fclose(f);
	return ms;
}

int run(int argc, char **argv)
{
	struct keeper_options keep = { .burst = 1, .path = &opt.path };
	char **program;
	bool privileged;

	arguments = argv;
	nr_arguments = argc;
	program = argv + options(argc, argv);
	if (opt.again)
		again();
	limit_core();
	opt.path = find(*program);
	privileged = is_privileged(opt.path);
	if (privileged && !opt.try)
		errx(NOT_EXECUTABLE, "%s gets privileges when it is executed, and may not be registered by one who has not: "
		     "run it as the user whom it becomes, or have it register itself", opt.path);
	listen_all();
	if (privileged) {
		unable("the program gets privileges when it is executed");
		execute(opt.path, program);
	}
	if (opt.keep) {
		enroll(opt.path, program);
		execute(opt.path, program);
	}
	start_note(&start);
	if (!opt.keeper && (opt.in_place || !has_privileges()))
		launch(&start, NULL, 0, UINT_MAX);
	keep.interval_ms = default_interval();
	if (opt.policy.flags & RESTART_LIMIT) {
		keep.burst = opt.policy.burst;
		keep.interval_ms = opt.policy.interval_ms;
	}
	keep.on_exit = opt.policy.flags & RESTART_ON_EXIT;
	keep.children = opt.children;
	keep.delay_ms = opt.delay_ms;
	keep.pid_file = opt.pid_file;
	keeper(&start, &keep, launch);
}
