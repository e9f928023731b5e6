// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The parent of a program that was started with privileges. The kernel restarts the program in its own process, as ever; where
 * that process can no longer be what it was (another user, another root, a filter), it dies, and is started afresh from here.
 * Its children are ours when it dies: nobody is left.
 */
#include <ctype.h>
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "keeper.h"
#include "ports.h"
#include "record.h"
#include "verdicts.h"

enum { FAILED = 125, TIMES = 64 };

static pid_t program;
static int log_fd = -1, told_fd = -1;
static int program_fd = -1;		/* a pidfd; by it, others know which of our children is the program */
static char *before;			/* the program before the one on trial; NULL: there is none */
static uint64_t trial_ns;		/* how long that is */
static uint64_t times[TIMES];		/* of restarts; a ring */
static unsigned int nr_times;

void die_of(int sig)
{
	static const struct rlimit none;
	sigset_t set;

	setrlimit(RLIMIT_CORE, &none);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	signal(sig, SIG_DFL);
	sigemptyset(&set);
	sigaddset(&set, sig);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	raise(sig);
	_exit(128 + sig);
}

void await_turn(struct start *s, uint64_t over_ns, const char *name, unsigned int delay_ms, const char *pid_file)
{
	unsigned int ms = back_off(s, over_ns, delay_ms);
	int sig = 0;

	if (ms) {
		warnx("%s died right after its start: the next one is in %u ms", name, ms);
		sig = wait_for_end(ms);
	}
	if (sig)
		die_of(sig);
	if (pid_file && unlink(pid_file) && errno != ENOENT)
		warn("--pid-file %s", pid_file);
}

static const char *name(const struct keeper_options *o)
{
	return basename(*o->path);
}

static bool is_fault(int sig)
{
	return sig == SIGSEGV || sig == SIGBUS || sig == SIGILL || sig == SIGFPE || sig == SIGABRT || sig == SIGSYS ||
	       sig == SIGTRAP;
}

/* ---- the limit ---- */

static void count_restart(uint64_t now)
{
	times[nr_times++ % TIMES] = now;
}

/* ---- upgrades ---- */

/* Somebody who may has exchanged the program: from now on that is ours to start. */
static void exchange(const struct keeper_options *o)
{
	static char text[PATH_MAX + 16];
	ssize_t n = told_fd < 0 ? -1 : pread(told_fd, text, sizeof(text) - 1, 0);
	unsigned long ms;
	char *path;

	if (n <= 0)
		return;
	text[n] = 0;
	ms = strtoul(text, &path, 10);
	if (path == text || *path++ != ' ' || *path != '/' || !strcmp(path, *o->path))
		return;
	before = *o->path;
	trial_ns = ms * 1000000ull;
	*o->path = strdup(path);
	if (!*o->path)
		err(FAILED, "upgrade");
}

/* It has failed in its trial. */
static void exchange_back(const struct keeper_options *o)
{
	if (!before)
		return;
	*o->path = before;
	before = NULL;
	if (ftruncate(told_fd, 0))
		warn("upgrade");
}

/* ---- the log ---- */

struct news {
	int restarts;			/* after faults */
	bool limit, asked;		/* it has reached the limit; the last one was asked for, */
	pid_t asker;			/* by this process */
};

/* What the kernel has done about the program since we looked last. */
static struct news look_at_log(uint64_t now, const struct keeper_options *o)
{
	static char buf[64 << 10];
	struct news news = { 0 };
	char pid[32];
	ssize_t n;

	snprintf(pid, sizeof(pid), " pid=%d ", program);
	while (log_fd >= 0 && (n = read(log_fd, buf, sizeof(buf) - 1)) > 0) {
		buf[n] = 0;
		for (char *line = strtok(buf, "\n"); line; line = strtok(NULL, "\n")) {
			if (!strstr(line, pid))
				continue;
			if (strstr(line, " outcome=reverted"))
				exchange_back(o);
			if (strstr(line, " outcome=restarted")) {
				const char *tid = strstr(line, " tid=");

				news.asked = strstr(line, " cause=asked ") != NULL;
				news.asker = news.asked && tid ? atoi(tid + 5) : 0;
				if (news.asked) {
					exchange(o);
				} else {
					count_restart(now);
					news.restarts++;
				}
			}
			news.limit |= strstr(line, " outcome=limit") != NULL;
		}
	}
	return news;
}

static unsigned int left(const struct keeper_options *o, uint64_t now)
{
	unsigned int used = 0;

	if (!o->interval_ms)
		return o->burst;
	for (unsigned int i = 0; i < TIMES && i < nr_times; i++)
		used += now - times[i] < o->interval_ms * 1000000;
	return used < o->burst ? o->burst - used : 0;
}

/* ---- the program ---- */

/* A number that names this process: of sockets, of a watchdog */
static void now_means(const char *name, pid_t old)
{
	const char *value = getenv(name);
	char text[16];

	if (!value || atoi(value) != old)
		return;
	snprintf(text, sizeof(text), "%d", getpid());
	setenv(name, text, 1);
}

static void start_program(struct start *s, launch_fn *launch, int *ports, size_t nr_ports, unsigned int burst)
{
	const pid_t self = getpid();

	s->born_ns = now_ns();
	program = fork();
	if (program < 0)
		err(FAILED, "fork");
	if (program) {
		int fd = syscall(SYS_pidfd_open, program, 0);

		/* By one number for ever: who looks finds it */
		if (program_fd < 0) {
			program_fd = fd;
		} else if (fd >= 0) {
			dup3(fd, program_fd, O_CLOEXEC);
			close(fd);
		}
		/* They are the program's: what it closes is to be closed */
		for (size_t i = 0; i < nr_ports; i++)
			close(ports[i]);
		return;
	}
	if (log_fd >= 0)
		close(log_fd);
	if (told_fd >= 0)
		close(told_fd);
	if (program_fd >= 0)
		close(program_fd);
	/* Without us nobody would look after it */
	prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
	if (getppid() != self)
		_exit(FAILED);
	start_restore_mask(s);
	s->keeper = self;
	now_means("LISTEN_PID", self);
	now_means("WATCHDOG_PID", self);
	launch(s, ports, nr_ports, burst);
	_exit(FAILED);
}

/* The sockets that a stopped generation has for the next one. */
static size_t take_ports(int *ports, size_t max)
{
	socklen_t size = sizeof(int);
	int listens;
	struct dirent *d;
	char path[32];
	size_t n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", program);
	dir = program_fd < 0 ? NULL : opendir(path);
	while (dir && n < max && (d = readdir(dir))) {
		int fd = isdigit((unsigned char)d->d_name[0]) ? (int)syscall(SYS_pidfd_getfd, program_fd, atoi(d->d_name), 0) : -1;

		if (fd < 0)
			continue;
		if (!getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) && listens)
			ports[n++] = fd;
		else
			close(fd);
	}
	if (dir)
		closedir(dir);
	return n;
}

/* Has it? And has somebody asked it to end, which it would have done by now if it did not block all signals? */
static bool has_surrendered(int *asked)
{
	char path[32], *line = NULL;
	bool has = false;
	size_t size = 0;
	FILE *f;

	*asked = 0;
	snprintf(path, sizeof(path), "/proc/%d/status", program);
	f = fopen(path, "re");
	while (f && getline(&line, &size, f) > 0) {
		uint64_t pending = strncmp(line, "ShdPnd:", 7) ? 0 : strtoull(line + 7, NULL, 16);

		has |= !strcmp(line, "Name:\t" SURRENDER "\n");
		for (size_t i = 0; i < END_SIGNALS && !*asked; i++)
			*asked = pending >> (end_signals[i] - 1) & 1 ? end_signals[i] : 0;
	}
	free(line);
	if (f)
		fclose(f);
	return has;
}

/* One word of a record, as the kernel writes them; cut where there is no room. */
static void escape(char *to, size_t size, const char *from)
{
	for (; *from && size > 4; from++) {
		bool plain = *from > ' ' && *from <= '~' && *from != '\\';
		int n = snprintf(to, size, plain ? "%c" : "\\%03o", (unsigned char)*from);

		to += n;
		size -= n;
	}
	*to = 0;
}

/* The kernel has nothing to tell of a process that it did not restart. Without the right to, nobody is told. */
static void record_afresh(const char *name, const siginfo_t *end)
{
	const char *cause = end->si_code == CLD_STOPPED ? "changed" : end->si_code == CLD_EXITED ? "exit" : "fault";
	char comm[64], group[256] = "-", line[256];
	struct timespec now;
	FILE *f = fopen("/proc/self/cgroup", "re");

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, "0::", 3))
			escape(group, sizeof(group), strtok(line + 3, "\n"));
	if (f)
		fclose(f);
	escape(comm, sizeof(comm), name);
	clock_gettime(CLOCK_REALTIME, &now);
	mkdir(KEEPERS, 0755);
	record_add(KEEPERS "/run.verdicts", "time_ns=%llu pid=%d uid=%u comm=%s rung=restart cause=%s signo=%d code=%d outcome=afresh "
		   "generation=1 cgroup=%s\n", now.tv_sec * 1000000000ull + now.tv_nsec, program, getuid(), comm, cause,
		   end->si_code == CLD_KILLED || end->si_code == CLD_DUMPED ? end->si_status : 0,
		   end->si_code == CLD_EXITED ? end->si_status : 0, group);
}

static _Noreturn void end_as(const siginfo_t *end, const struct keeper_options *o)
{
	if (end->si_code == CLD_EXITED) {
		/* A daemon is a child of ours now, and nobody's soon */
		if (!end->si_status && !waitid(P_ALL, 0, &(siginfo_t){ 0 }, WEXITED | WNOHANG | WNOWAIT))
			warnx("%s went into the background, and is not protected: have it stay in the foreground", name(o));
		exit(end->si_status);
	}
	die_of(end->si_status);
}

void keeper(struct start *s, const struct keeper_options *o, launch_fn *launch)
{
	int ports[PORTS];
	size_t nr_ports = 0;
	sigset_t all;
	bool over;

	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	told_fd = memfd_create(TOLD, MFD_CLOEXEC);
	log_fd = open("/proc/restart_log", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (log_fd >= 0 && lseek(log_fd, 0, SEEK_END) < 0) {
		close(log_fd);
		log_fd = -1;
	}
	/* All that somebody sends is for the program. What stops a job stops us, too. */
	sigfillset(&all);
	for (size_t i = 0; i < 4; i++)
		sigdelset(&all, (const int[]){ SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT }[i]);
	signal(SIGCHLD, SIG_DFL);
	sigprocmask(SIG_BLOCK, &all, NULL);
	start_program(s, launch, ports, 0, o->burst);
	for (;;) {
		siginfo_t got, end = { 0 };
		struct news news;
		bool no_fault;		/* it was asked for, or a program has failed in its trial */
		unsigned int may;
		int sig, asked = 0;

		sig = sigwaitinfo(&all, &got);
		if (sig < 0)
			continue;
		if (sig != SIGCHLD) {
			/* A terminal tells the whole group */
			if (got.si_code != SI_KERNEL)
				kill(program, sig);
			continue;
		}
		over = false;
		while (!over && !waitid(P_ALL, 0, &got, WEXITED | WSTOPPED | WNOHANG) && got.si_pid) {
			if (got.si_pid == program) {
				end = got;
				over = end.si_code != CLD_STOPPED || has_surrendered(&asked);
			}
			got.si_pid = 0;
		}
		if (!over)
			continue;

		news = look_at_log(now_ns(), o);
		may = news.limit ? 0 : left(o, now_ns());
		if (end.si_code == CLD_STOPPED) {
			no_fault = news.asked;
			/* The restart that did not help, and the start below are one, if we could see the former */
			if (news.restarts > 0 && !no_fault) {
				nr_times--;
				may++;
			}
			if (!may && !no_fault) {
				/* It dies of its fault */
				kill(program, SIGCONT);
				continue;
			}
			nr_ports = take_ports(ports, PORTS);
			kill(program, SIGKILL);
			while (waitpid(program, NULL, 0) < 0 && errno == EINTR)
				;
			if (asked)
				die_of(asked);
		} else {
			nr_ports = 0;
			news.asker = 0;
			no_fault = before && now_ns() - s->born_ns < trial_ns &&
				   (end.si_code == CLD_EXITED ? end.si_status : is_fault(end.si_status));
			if (no_fault) {
				warnx("%s has failed in its trial: %s again", *o->path, before);
				exchange_back(o);
			} else if (end.si_code == CLD_EXITED ? !o->on_exit || !end.si_status : !is_fault(end.si_status))
				end_as(&end, o);
			if (!may && !no_fault) {
				warnx("%s died once too often (see --burst, --interval)", name(o));
				end_as(&end, o);
			}
		}
		s->asker = news.asker;
		if (!o->children)
			end_children(s, getpid());
		await_turn(s, no_fault ? NO_DEATH : now_ns(), name(o), o->delay_ms, o->pid_file);
		if (!no_fault)
			count_restart(now_ns());
		start_program(s, launch, ports, nr_ports, o->interval_ms ? left(o, now_ns()) : o->burst);
		warnx("%s is started afresh, as process %d", name(o), program);
		record_afresh(name(o), &end);
	}
}
