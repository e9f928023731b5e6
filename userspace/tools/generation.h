/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef GENERATION_H
#define GENERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What a program was started with, and what each new generation of it is to find again. See perdurectl(1), run. */

struct file {
	int fd, kept;			/* the number that it was given by, and that of a duplicate which nobody touches */
	uint64_t device, inode;
	int flags;			/* of the open file: O_NONBLOCK, O_APPEND */
};

struct start {
	uint64_t born_ns;		/* CLOCK_MONOTONIC: when this generation was executed */
	unsigned int deaths;		/* so many generations before it died right after that */
	pid_t keeper;			/* our parent, which can start the program with the privileges that it had; 0: none */
	pid_t asker;			/* of this restart, 0: nobody has; not passed on */
	uint64_t credentials, lasting;	/* hashes, of all and of what no execve(2) brings back */
	mode_t umask;
	uint64_t ignored, blocked;	/* signals */
	struct { uint64_t soft, hard; } limits[16];
	bool own_cgroup;
	char *dir;			/* working directory */
	struct file *files;
	size_t nr_files;
};

/* The first generation: notes how this process is. Descriptors that are not close-on-exec are what it is given. */
void start_note(struct start *s);

/* Duplicates of the files, for a process that is about to execute the program. */
void start_keep_files(struct start *s);

/* As an argument of the next generation, allocated; and back again. False: not what start_text() made. */
char *start_text(const struct start *s);
bool start_parse(struct start *s, const char *text);

/*
 * A later generation, in the process of the one before: puts files, directory, umask, limits and signals back to what they
 * were, and closes everything else but the sockets in @ports, which come back at high numbers.
 * Returns why that is not possible, or NULL.
 */
const char *start_restore(struct start *s, int *ports, size_t nr_ports);

/* Is that process no longer what it was, as far as can be told from outside? Then start_restore() will fail in it. */
bool start_has_changed(const struct start *s, pid_t pid);

/* Closes everything but these, which it sorts. */
void close_others(int *keep, size_t n);

/* Status flags of given files are shared with whoever had them before. */
void start_restore_flags(const struct start *s);

/*
 * Ends what descends from base, and what else is in our cgroup where that is the service's own; never this process, nor its keeper, nor
 * who has asked for the restart. SIGTERM, and SIGKILL a second later.
 */
void end_children(const struct start *s, pid_t base);

/*
 * The mask of signals that the program was started with. Until it has it, nothing must come through: what the old generation
 * asked for (SIGIO, SIGALRM) would kill.
 */
void start_block_all(void);
void start_restore_mask(const struct start *s);

/* How long to wait until the next generation, given that this one is over now. Counts deaths; that somebody has asked for is none. */
#define NO_DEATH	UINT64_MAX
unsigned int back_off(struct start *s, uint64_t now_ns, unsigned int delay_ms);

/* Listening sockets that the program opened through the preloaded library; at most max. */
size_t ports_find(const struct start *s, int *ports, size_t max);

/* Is there anything that the program could give up? */
bool has_privileges(void);

uint64_t now_ns(void);

/* By these somebody wants the end */
enum { END_SIGNALS = 3 };
extern const int end_signals[END_SIGNALS];

/* With all signals blocked: until the time is over, or somebody wants the end: that signal. */
int wait_for_end(unsigned int ms);

#endif
