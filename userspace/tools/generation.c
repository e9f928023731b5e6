// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What a generation of an unmodified program finds: what the first one was started with, and nothing else. A restart in
 * place leaves everything to the new image that an execve(2) leaves, so what the old one did to its process is undone here.
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
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "generation.h"
#include "ports.h"

enum { FAILED = 125 };
/* Descriptors of the program's own are below, mostly; the table of a process that has one here takes 8 KiB. */
enum { HIGH = 512 };
enum { QUICK_MS = 2000, DELAY_MAX_MS = 10000, TERM_MS = 1000, KILL_MS = 5000 };

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void pause_ms(unsigned int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	nanosleep(&t, NULL);
}

/* ---- signals ---- */

const int end_signals[END_SIGNALS] = { SIGTERM, SIGINT, SIGQUIT };

int wait_for_end(unsigned int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
	sigset_t set;
	int sig;

	sigemptyset(&set);
	for (size_t i = 0; i < END_SIGNALS; i++)
		sigaddset(&set, end_signals[i]);
	sig = sigtimedwait(&set, NULL, &t);
	return sig > 0 ? sig : 0;
}

void start_block_all(void)
{
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
}

void start_restore_mask(const struct start *s)
{
	static const struct timespec now;
	sigset_t set;

	/* What was meant for the old generation, which a new one would do by itself, or die of; one fault sent twice, too */
	sigfillset(&set);
	for (size_t i = 0; i < END_SIGNALS; i++)
		sigdelset(&set, end_signals[i]);
	while (sigtimedwait(&set, NULL, &now) > 0)
		;
	sigemptyset(&set);
	for (int sig = 1; sig <= 64; sig++)
		if (s->blocked >> (sig - 1) & 1)
			sigaddset(&set, sig);
	sigprocmask(SIG_SETMASK, &set, NULL);
}

/* ---- how this process is ---- */

static uint64_t hash(uint64_t h, const char *s)
{
	for (; *s; s++)
		h = (h ^ (unsigned char)*s) * 0x100000001b3;
	return h;
}

static FILE *open_status(void)
{
	FILE *f = fopen("/proc/self/status", "re");

	if (!f)
		err(FAILED, "needs /proc: /proc/self/status");
	return f;
}

/* What no execve(2) brings back, and what one of root's does */
static const char *const keys[] = { "Uid:", "Gid:", "Groups:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "Seccomp_filters:",
				    "CapInh:", "CapPrm:", "CapAmb:" };
enum { LASTING = 7, ALL = sizeof(keys) / sizeof(*keys) };

/* A hash of so many of them; closes the file. */
static uint64_t credentials(FILE *f, size_t nr_keys)
{
	uint64_t h = 0xcbf29ce484222325;
	char *line = NULL;
	size_t size = 0;

	while (getline(&line, &size, f) > 0)
		for (size_t i = 0; i < nr_keys; i++)
			if (!strncmp(line, keys[i], strlen(keys[i])))
				h = hash(h, line);
	free(line);
	fclose(f);
	return h;
}

/* A mask of signals or capabilities */
static uint64_t status_mask(const char *key)
{
	size_t size = 0, len = strlen(key);
	FILE *f = open_status();
	uint64_t mask = 0;
	char *line = NULL;

	while (getline(&line, &size, f) > 0)
		if (!strncmp(line, key, len))
			mask = strtoull(line + len, NULL, 16);
	free(line);
	fclose(f);
	return mask;
}

bool has_privileges(void)
{
	return !geteuid() || status_mask("CapPrm:");
}

/* The path of our cgroup's list of processes, allocated; NULL where there is none to be seen. */
static char *cgroup_procs(void)
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	char *line = NULL, *path = NULL;
	size_t size = 0;

	while (f && getline(&line, &size, f) > 0) {
		line[strcspn(line, "\n")] = 0;
		/* The root has everybody's */
		if (!strncmp(line, "0::/", 4) && line[4] &&
		    asprintf(&path, "/sys/fs/cgroup%s/cgroup.procs", line + 3) < 0)
			path = NULL;
	}
	free(line);
	if (f)
		fclose(f);
	return path;
}

/*
 * Are we alone in our cgroup? Then it is the service's, as that of a unit of systemd. The first process of a container
 * gets all orphans anyway, and who looks into that container is in the same cgroup.
 */
static bool is_own_cgroup(void)
{
	char *path = getpid() == 1 ? NULL : cgroup_procs();
	FILE *f = path ? fopen(path, "re") : NULL;
	bool own = false;
	int pid;

	if (f && fscanf(f, "%d", &pid) == 1 && pid == getpid())
		own = fscanf(f, "%d", &pid) != 1;
	if (f)
		fclose(f);
	free(path);
	return own;
}

static bool is_file(int fd, const struct file *file)
{
	struct stat st;

	return !fstat(fd, &st) && st.st_dev == file->device && st.st_ino == file->inode;
}

static int by_number(const void *a, const void *b)
{
	return ((const struct file *)a)->fd - ((const struct file *)b)->fd;
}

static void note_files(struct start *s)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *d;

	if (!dir)
		err(FAILED, "needs /proc: /proc/self/fd");
	while ((d = readdir(dir))) {
		int fd = atoi(d->d_name), flags = fcntl(fd, F_GETFD);
		struct stat st;

		if (!isdigit((unsigned char)d->d_name[0]) || flags < 0 || flags & FD_CLOEXEC || fstat(fd, &st))
			continue;
		s->files = realloc(s->files, (s->nr_files + 1) * sizeof(*s->files));
		if (!s->files)
			err(FAILED, "files");
		s->files[s->nr_files++] = (struct file){ fd, -1, st.st_dev, st.st_ino,
							 fcntl(fd, F_GETFL) & (O_NONBLOCK | O_APPEND) };
	}
	closedir(dir);
	if (s->files)
		qsort(s->files, s->nr_files, sizeof(*s->files), by_number);
}

void start_note(struct start *s)
{
	s->credentials = credentials(open_status(), ALL);
	s->lasting = credentials(open_status(), LASTING);
	s->umask = umask(0);
	umask(s->umask);
	s->ignored = status_mask("SigIgn:");
	s->blocked = status_mask("SigBlk:");
	for (int i = 0; i < 16; i++) {
		struct rlimit r = { RLIM_INFINITY, RLIM_INFINITY };

		getrlimit(i, &r);
		s->limits[i].soft = r.rlim_cur;
		s->limits[i].hard = r.rlim_max;
	}
	s->own_cgroup = is_own_cgroup();
	s->dir = getcwd(NULL, 0);
	if (!s->dir)
		err(FAILED, "working directory");
	note_files(s);
}

/* A duplicate above all that the program is given, and mostly above all that it opens. */
static int duplicate(const struct start *s, int fd)
{
	int from = s->nr_files && s->files[s->nr_files - 1].fd >= HIGH ? s->files[s->nr_files - 1].fd + 1 : HIGH, to;

	to = fcntl(fd, F_DUPFD, from);
	/* A limit below that: as high as there is room */
	for (from = 256; to < 0 && from >= 16; from /= 2)
		to = fcntl(fd, F_DUPFD, from);
	if (to < 0)
		err(FAILED, "a duplicate of descriptor %d (see ulimit -n)", fd);
	return to;
}

void start_keep_files(struct start *s)
{
	for (size_t i = 0; i < s->nr_files; i++)
		s->files[i].kept = duplicate(s, s->files[i].fd);
}

/* ---- as text ---- */

char *start_text(const struct start *s)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		err(FAILED, "arguments");
	fprintf(f, "%lx %x %x %lx %lx %x %lx %lx %x", s->born_ns, s->deaths, s->keeper, s->credentials, s->lasting, s->umask, s->ignored,
		s->blocked, s->own_cgroup);
	for (int i = 0; i < 16; i++)
		fprintf(f, " %lx %lx", s->limits[i].soft, s->limits[i].hard);
	fprintf(f, " %zx", s->nr_files);
	for (size_t i = 0; i < s->nr_files; i++)
		fprintf(f, " %x %x %lx %lx %x", s->files[i].fd, s->files[i].kept, s->files[i].device, s->files[i].inode,
			s->files[i].flags);
	fprintf(f, " %s", s->dir);
	if (fclose(f))
		err(FAILED, "arguments");
	return text;
}

static uint64_t take(const char **text)
{
	char *end;
	uint64_t n = strtoull(*text, &end, 16);

	*text = end == *text || *end != ' ' ? "" : end + 1;
	return n;
}

bool start_parse(struct start *s, const char *text)
{
	s->born_ns = take(&text);
	s->deaths = take(&text);
	s->keeper = take(&text);
	s->credentials = take(&text);
	s->lasting = take(&text);
	s->umask = take(&text);
	s->ignored = take(&text);
	s->blocked = take(&text);
	s->own_cgroup = take(&text);
	for (int i = 0; i < 16; i++) {
		s->limits[i].soft = take(&text);
		s->limits[i].hard = take(&text);
	}
	s->nr_files = take(&text);
	if (s->nr_files > strlen(text) || !(s->files = calloc(s->nr_files + 1, sizeof(*s->files))))
		return false;
	for (size_t i = 0; i < s->nr_files; i++) {
		s->files[i].fd = take(&text);
		s->files[i].kept = take(&text);
		s->files[i].device = take(&text);
		s->files[i].inode = take(&text);
		s->files[i].flags = take(&text);
	}
	s->dir = strdup(text);
	return s->dir && *s->dir == '/';
}

/* ---- files ---- */

void start_restore_flags(const struct start *s)
{
	for (size_t i = 0; i < s->nr_files; i++) {
		int now = fcntl(s->files[i].fd, F_GETFL), want = (now & ~(O_NONBLOCK | O_APPEND)) | s->files[i].flags;

		if (now >= 0 && now != want)
			fcntl(s->files[i].fd, F_SETFL, want);
	}
}

static int compare_ints(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

void close_others(int *keep, size_t n)
{
	unsigned int next = 0;

	qsort(keep, n, sizeof(*keep), compare_ints);
	for (size_t i = 0; i < n; i++) {
		if ((unsigned int)keep[i] > next)
			syscall(SYS_close_range, next, keep[i] - 1, 0);
		next = keep[i] + 1;
	}
	syscall(SYS_close_range, next, ~0U, 0);
}

static const char *restore_files(struct start *s, int *ports, size_t nr_ports)
{
	int *keep = calloc(s->nr_files + nr_ports + 1, sizeof(*keep));
	size_t n = 0;

	if (!keep)
		return "no memory";
	for (size_t i = 0; i < s->nr_files; i++) {
		struct file *f = &s->files[i];

		/* Who closes all descriptors that he does not know may have left the original */
		if (!is_file(f->kept, f))
			f->kept = is_file(f->fd, f) ? duplicate(s, f->fd) : -1;
		if (f->kept < 0 && f->fd > STDERR_FILENO) {
			free(keep);
			return "it has closed a descriptor that it was given, and the duplicate of it";
		}
		if (f->kept >= 0)
			keep[n++] = f->kept;
	}
	for (size_t i = 0; i < nr_ports; i++)
		keep[n++] = ports[i] = duplicate(s, ports[i]);
	close_others(keep, n);
	for (size_t i = 0; i < s->nr_files; i++) {
		struct file *f = &s->files[i];

		if (f->kept < 0)
			f->kept = open("/dev/null", O_RDWR);
		if (f->kept >= 0 && f->kept != f->fd && dup2(f->kept, f->fd) < 0) {
			free(keep);
			return "no descriptors";
		}
	}
	start_restore_flags(s);
	free(keep);
	return NULL;
}

size_t ports_find(const struct start *s, int *ports, size_t max)
{
	DIR *dir = opendir("/proc/self/fd");
	struct port_list *list = MAP_FAILED;
	char link[64], name[64];
	struct dirent *d;
	struct stat st;
	size_t n = 0;

	while (dir && list == MAP_FAILED && (d = readdir(dir))) {
		ssize_t length = readlinkat(dirfd(dir), d->d_name, link, sizeof(link) - 1);

		snprintf(name, sizeof(name), "/memfd:%s (deleted)", PORT_LIST);
		link[length > 0 ? length : 0] = 0;
		if (!strcmp(link, name) && !fstat(atoi(d->d_name), &st) && st.st_size == sizeof(*list))
			list = mmap(NULL, sizeof(*list), PROT_READ, MAP_SHARED, atoi(d->d_name), 0);
	}
	if (list == MAP_FAILED)
		goto out;
	rewinddir(dir);
	while (n < max && (d = readdir(dir))) {
		int fd = atoi(d->d_name), listens = 0;
		socklen_t size = sizeof(listens);
		bool known = false, given = false;

		if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) || !listens || fstat(fd, &st))
			continue;
		for (size_t i = 0; i < PORTS && list->inodes[i]; i++)
			known |= list->inodes[i] == st.st_ino;
		for (size_t i = 0; i < s->nr_files; i++)
			given |= is_file(fd, &s->files[i]);
		/* Once, however many descriptors it has */
		for (size_t i = 0; i < n; i++) {
			struct stat other;

			given |= !fstat(ports[i], &other) && other.st_ino == st.st_ino;
		}
		if (known && !given)
			ports[n++] = fd;
	}
	munmap(list, sizeof(*list));
out:
	if (dir)
		closedir(dir);
	return n;
}

bool start_has_changed(const struct start *s, pid_t pid)
{
	struct stat ours, its;
	char path[40];
	FILE *f;

	/* To another user namespace, the numbers are others */
	snprintf(path, sizeof(path), "/proc/%d/ns/user", pid);
	if (stat("/proc/self/ns/user", &ours) || stat(path, &its) || ours.st_ino != its.st_ino)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	f = fopen(path, "re");
	return f && credentials(f, LASTING) != s->lasting;
}

const char *start_restore(struct start *s, int *ports, size_t nr_ports)
{
	static const struct itimerval never;
	const char *why;

	if (credentials(open_status(), ALL) != s->credentials)
		return "it has given up privileges, or filters its system calls, since it was started";
	why = restore_files(s, ports, nr_ports);
	if (why)
		return why;
	if (chdir(s->dir))
		return "its working directory is no longer to be reached";
	umask(s->umask);
	for (int i = 0; i < 16; i++) {
		struct rlimit r = { s->limits[i].soft, s->limits[i].hard }, now;

		if (!getrlimit(i, &now) && (now.rlim_cur != r.rlim_cur || now.rlim_max != r.rlim_max) && setrlimit(i, &r))
			return "it has lowered its limits for good (setrlimit)";
	}
	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, sig <= 64 && s->ignored >> (sig - 1) & 1 ? SIG_IGN : SIG_DFL);
	setitimer(ITIMER_REAL, &never, NULL);
	setitimer(ITIMER_VIRTUAL, &never, NULL);
	setitimer(ITIMER_PROF, &never, NULL);
	return NULL;
}

/* ---- children ---- */

struct process {
	pid_t pid, parent;
	bool ours;
};

static struct process *processes(size_t *n)
{
	DIR *dir = opendir("/proc");
	struct process *list = NULL;
	struct dirent *d;

	*n = 0;
	while (dir && (d = readdir(dir))) {
		char path[300], text[512], *end, state;
		FILE *f;
		int parent;

		if (!isdigit((unsigned char)d->d_name[0]))
			continue;
		snprintf(path, sizeof(path), "/proc/%s/stat", d->d_name);
		f = fopen(path, "re");
		if (!f)
			continue;
		text[fread(text, 1, sizeof(text) - 1, f)] = 0;
		fclose(f);
		end = strrchr(text, ')');
		if (!end || sscanf(end + 1, " %c %d", &state, &parent) != 2 || state == 'Z' || state == 'X')
			continue;
		list = realloc(list, (*n + 1) * sizeof(*list));
		if (!list)
			err(FAILED, "children");
		list[(*n)++] = (struct process){ atoi(d->d_name), parent, false };
	}
	if (dir)
		closedir(dir);
	return list;
}

static pid_t parent_of(const struct process *list, size_t n, pid_t pid)
{
	for (size_t i = 0; i < n; i++)
		if (list[i].pid == pid)
			return list[i].parent;
	return 0;
}

/* ExecReload= of our unit is in our cgroup, and waits for what it has asked for: that, and what it is part of, if it is not ours. */
static void spare(struct process *list, size_t n, pid_t asker, pid_t base)
{
	bool within = false;
	pid_t pid;

	for (pid = asker; pid > 1 && !within; pid = parent_of(list, n, pid))
		within = pid == base;
	for (pid = asker; pid > 1; pid = within ? 0 : parent_of(list, n, pid))
		for (size_t i = 0; i < n; i++)
			list[i].ours &= list[i].pid != pid;
}

/* Who descends from base, and who shares a cgroup that is ours. Not this process, its keeper, nor base. */
static size_t signal_children(const struct start *s, pid_t base, int sig)
{
	size_t n, count = 0;
	struct process *list = processes(&n);
	char *path = s->own_cgroup ? cgroup_procs() : NULL;
	FILE *f = path ? fopen(path, "re") : NULL;
	bool more = true;
	int pid;

	while (f && fscanf(f, "%d", &pid) == 1)
		for (size_t i = 0; i < n; i++)
			list[i].ours |= list[i].pid == pid;
	if (f)
		fclose(f);
	free(path);
	while (more) {
		more = false;
		for (size_t i = 0; i < n; i++) {
			bool is = list[i].parent == base;

			for (size_t j = 0; j < n && !is; j++)
				is = list[j].ours && list[j].pid == list[i].parent;
			more |= is && !list[i].ours;
			list[i].ours |= is;
		}
	}
	spare(list, n, s->asker, base);
	for (size_t i = 0; i < n; i++) {
		if (!list[i].ours || list[i].pid == getpid() || list[i].pid == base || list[i].pid == s->keeper)
			continue;
		/* Who is somebody else by now, as by sudo(8), cannot be ended by us */
		if (kill(list[i].pid, sig))
			continue;
		/* A stopped one takes no SIGTERM */
		if (sig == SIGTERM)
			kill(list[i].pid, SIGCONT);
		count++;
	}
	free(list);
	return count;
}

void end_children(const struct start *s, pid_t base)
{
	uint64_t begun = now_ns();
	unsigned int pause = 1, ms;
	bool asked = false;

	signal(SIGCHLD, SIG_DFL);
	for (;;) {
		ms = (now_ns() - begun) / 1000000;
		if (!signal_children(s, base, ms >= TERM_MS ? SIGKILL : asked ? 0 : SIGTERM))
			break;
		asked = true;
		if (ms >= TERM_MS + KILL_MS) {
			warnx("children of the old generation do not end, and are left (state D in ps)");
			break;
		}
		pause_ms(pause);
		pause = pause < 20 ? 2 * pause : 20;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

unsigned int back_off(struct start *s, uint64_t now, unsigned int delay_ms)
{
	uint64_t ms = delay_ms;

	s->deaths = now - s->born_ns < QUICK_MS * 1000000ull ? s->deaths + 1 : 0;
	if (!s->deaths || !ms)
		return 0;
	for (unsigned int i = 1; i < s->deaths && ms < DELAY_MAX_MS; i++)
		ms *= 2;
	return ms < DELAY_MAX_MS ? ms : delay_ms > DELAY_MAX_MS ? delay_ms : DELAY_MAX_MS;
}
