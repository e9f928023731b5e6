// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * This test kills a process at every instruction of an update of its state area, and looks at what
 * the next generation finds: all of the old bytes, or all of the new ones.
 *
 * Like the kernel's restart, the end is an exec in place that keeps the files: ptrace steps to the
 * instant and delivers a signal, whose handler executes the next generation.
 */
#include "../lib/t.h"

#include <dirent.h>
#include <perdure.h>
#include <sys/ptrace.h>

#define NAME	"crash"
#define SIZE	6000
#define NEW	1000000		/* where in the test's stream of bytes the new ones come from */
#define MARK	SIGWINCH	/* between two of these a process is watched; ignored when it is not */
#define NR	ARRAY_LEN(ranges)

/* What is updated: odd places and lengths, and across a page. */
static const struct {
	size_t start, len;
} ranges[] = { { 3, 101 }, { 4090, 20 }, { 5990, 10 } };

/* What the last generation finds: its exit status. */
enum { OLD = 10, NEWER, ZERO, TORN, LOST };

/* ---- the process that is killed ---- */

static char *next_argv[] = { t_self, (char *)"@generation", NULL, NULL };

static void fault(int sig T_UNUSED)
{
	/* A restart keeps all files. */
	for (int fd = 3; fd < 32; fd++)
		fcntl(fd, F_SETFD, 0);
	execv(t_self, next_argv);
	_exit(99);
}

static char *open_area(void)
{
	return perdure_state_open(NAME, SIZE, 0, NULL, NULL);
}

static int look(const char *area)
{
	char image[SIZE] = { 0 };

	if (!area)
		return LOST;
	if (!memcmp(area, image, SIZE))
		return ZERO;
	t_fill(image, SIZE, 0);
	if (!memcmp(area, image, SIZE))
		return OLD;
	for (size_t i = 0; i < NR; i++)
		t_fill(image + ranges[i].start, ranges[i].len, NEW + ranges[i].start);
	return memcmp(area, image, SIZE) ? TORN : NEWER;
}

/*
 * @generation DEEDS: a letter for each generation, this one and those after it. o opens the area;
 * c stages and commits; u has staged and updates; l looks, and is the last.
 */
ROLE(generation)
{
	char *area = NULL, bytes[NR][128];
	char deed = argv[0][0];

	next_argv[2] = argv[0] + 1;
	t_handle(SIGUSR1, fault, SA_NODEFER);
	if (deed == 'l')
		return look(open_area());

	if (deed != 'o') {
		area = open_area();
		if (!area)
			return LOST;
		t_fill(area, SIZE, 0);
		/* Once before, for the dynamic linker. */
		perdure_state_stage(area, area, area, 1);
		perdure_state_update(area, area, area, 1);
		perdure_state_commit(area);
		for (size_t i = 0; i < NR; i++)
			t_fill(bytes[i], ranges[i].len, NEW + ranges[i].start);
		for (size_t i = 0; deed == 'u' && i < NR - 1; i++)
			perdure_state_stage(area, area + ranges[i].start, bytes[i], ranges[i].len);
	}

	kill(getpid(), MARK);
	switch (deed) {
	case 'o':
		open_area();
		break;
	case 'u':
		perdure_state_update(area, area + ranges[NR - 1].start, bytes[NR - 1], ranges[NR - 1].len);
		break;
	case 'c':
		for (size_t i = 0; i < NR; i++)
			perdure_state_stage(area, area + ranges[i].start, bytes[i], ranges[i].len);
		perdure_state_commit(area);
		break;
	}
	kill(getpid(), MARK);
	return 98;
}

/* ---- the tracer ---- */

enum unit { INSTRUCTION, CHANGE, CALL };

/*
 * When a generation dies: after so many instructions, changes of the file, entries to the kernel
 * and exits. Changes are looked for, instruction by instruction, after `calls` of the latter.
 */
struct death {
	long after;
	enum unit unit;
	long calls;
};

struct watched {
	pid_t pid;
	char *file, *before;	/* of the area, CHANGE only */
	size_t size;
};

static void map_file(struct watched *w)
{
	char path[300], link[64];
	struct dirent *d;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", w->pid);
	dir = opendir(path);
	T_ASSERT(dir);
	while ((d = readdir(dir))) {
		ssize_t n = readlinkat(dirfd(dir), d->d_name, link, sizeof(link) - 1);
		int fd;

		if (n < 0 || (link[n] = 0, !strstr(link, "memfd:perdure-" NAME)))
			continue;
		fd = T_OK(openat(dirfd(dir), d->d_name, O_RDONLY));
		w->size = T_OK(lseek(fd, 0, SEEK_END));
		w->file = mmap(NULL, w->size, PROT_READ, MAP_SHARED, fd, 0);
		T_ASSERT(w->file != MAP_FAILED);
		w->before = malloc(w->size);
		T_ASSERT(w->before);
		memcpy(w->before, w->file, w->size);
		close(fd);
	}
	closedir(dir);
	T_ASSERT(w->file);
}

static void unmap_file(struct watched *w)
{
	if (w->file)
		munmap(w->file, w->size);
	free(w->before);
}

/* On to the next instant; false when the deed is done. */
static bool step(struct watched *w, enum unit unit)
{
	int status;

	do {
		T_OK(ptrace(unit == CALL ? PTRACE_SYSCALL : PTRACE_SINGLESTEP, w->pid, 0, 0));
		status = t_wait(w->pid);
		T_ASSERT(WIFSTOPPED(status));
		if (WSTOPSIG(status) == MARK)
			return false;
		T_ASSERT(WSTOPSIG(status) == SIGTRAP);
	} while (unit == CHANGE && !memcmp(w->before, w->file, w->size));
	if (unit == CHANGE)
		memcpy(w->before, w->file, w->size);
	return true;
}

/*
 * Runs all generations. Returns what the last one found; *done tells whether the last watched one
 * had done its deed when it died.
 */
static int die(const char *deeds, const struct death *death, bool *done)
{
	struct watched w = { .pid = t_fork() };
	int status;

	if (!w.pid) {
		next_argv[2] = (char *)deeds;
		if (ptrace(PTRACE_TRACEME))
			_exit(77);
		execv(t_self, next_argv);
		_exit(97);
	}
	for (; deeds[0] != 'l'; deeds++, death++) {
		/* Up to the exec, and from there to the first mark of the new image. */
		for (int sig = SIGTRAP; sig; sig = sig == SIGTRAP ? MARK : 0) {
			do {
				status = t_wait(w.pid);
				if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
					t_skip("ptrace is not allowed here");
				T_ASSERT(WIFSTOPPED(status));
				if (WSTOPSIG(status) != sig || sig == SIGTRAP)
					T_OK(ptrace(PTRACE_CONT, w.pid, 0, 0));
			} while (WSTOPSIG(status) != sig);
		}
		T_OK(ptrace(PTRACE_SETOPTIONS, w.pid, 0, PTRACE_O_EXITKILL));
		if (death->unit == CHANGE)
			map_file(&w);
		for (long n = 0; n < death->calls; n++)
			T_ASSERT(step(&w, CALL));
		*done = false;
		for (long n = 0; n < death->after && !*done; n++)
			*done = !step(&w, death->unit);
		unmap_file(&w);
		w.file = w.before = NULL;
		T_OK(ptrace(deeds[1] == 'l' ? PTRACE_DETACH : PTRACE_CONT, w.pid, 0, SIGUSR1));
	}
	status = t_wait(w.pid);
	T_ASSERT(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Dies at each instruction of the deed, and then after it. Returns the first one that gives the new bytes. */
static long die_everywhere(const char *deeds, long *last)
{
	struct death at = { 0, INSTRUCTION };
	long first = -1;
	bool done;

	for (done = false; !done; at.after++) {
		int found = die(deeds, &at, &done);

		if (first < 0 && found == NEWER)
			first = at.after;
		if (!T_EQ(found, first < 0 ? OLD : NEWER))
			t_note("after %ld instructions of %s", at.after, deeds);
	}
	*last = at.after - 1;
	t_note("%ld instructions, the new bytes from number %ld on", *last, first);
	T_RANGE(first, 10, *last - 10);
	return first;
}

T_LIMIT(update, 45)
{
	long last;

	die_everywhere("ul", &last);
}

/* And then it dies again, while the next generation completes what was committed. */
T_LIMIT(commit_and_recovery, 45)
{
	long last, first = die_everywhere("cl", &last);
	int changes = 0;

	for (int i = 0; i < 2; i++) {
		struct death at[2] = { { first + (last - first) * i / 2, INSTRUCTION } };
		static const enum unit units[] = { CALL, CHANGE };

		for (size_t u = 0; u < ARRAY_LEN(units); u++) {
			bool done = false;

			at[1].unit = units[u];
			/* Bytes are copied between the last call of the deed and the mark. */
			at[1].calls = u ? at[1].after - 8 : 0;
			for (at[1].after = 0; !done; at[1].after++) {
				if (!T_EQ(die("col", at, &done), NEWER))
					t_note("after %ld instructions, and then %ld %s", at[0].after,
					       at[1].after, u ? "changes" : "calls");
				changes += u && !done;
			}
		}
	}
	t_note("%d changes by recovery", changes);
	T_RANGE(changes, 10, 10000);
}

/* A generation that dies while it makes the area leaves none, or an empty one. */
T_LIMIT(creation, 10)
{
	struct death at = { 0, CALL };
	bool done = false;

	for (; !done; at.after++)
		T_EQ(die("ol", &at, &done), ZERO);
	T_RANGE(at.after, 10, 1000);
}
