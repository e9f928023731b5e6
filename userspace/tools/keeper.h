/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef KEEPER_H
#define KEEPER_H

#include "generation.h"

/* By this name a generation that cannot be what the first one was stops, and waits for what its keeper decides. */
#define SURRENDER	"perdurectl-end"

struct keeper_options {
	char **path;			/* of the program that is started; changes with an upgrade */
	unsigned int burst;		/* so many restarts, 1 to 64, */
	uint64_t interval_ms;		/* in so many milliseconds; 0: without limit */
	bool on_exit, children;		/* a status other than 0 is a fault; children of the old generation stay */
	unsigned int delay_ms;
	const char *pid_file;
};

/*
 * What "perdurectl upgrade" tells a keeper, in a file in memory: whoever may look into it by ptrace(2) finds that among its
 * descriptors.
 * A path, and for how many milliseconds the program is on trial.
 */
#define TOLD		"perdurectl-program"
#define TOLD_FORMAT	"%u %s"

/* Becomes the program, with these sockets of the last generation's; the kernel restarts it at most burst times, if not 0. */
typedef void launch_fn(struct start *s, int *ports, size_t nr_ports, unsigned int burst);

/* Has the program run in a child. Does not return: ends as the program does in the end. */
_Noreturn void keeper(struct start *s, const struct keeper_options *o, launch_fn *launch);

/*
 * Until the next generation may begin, given when this one was over: waits if it died right after its start, and dies of a signal by which
 * somebody wants the end; then removes what it has left of a PID file, and says so where that is not possible.
 */
void await_turn(struct start *s, uint64_t over_ns, const char *name, unsigned int delay_ms, const char *pid_file);

/* Without a core dump */
_Noreturn void die_of(int sig);

#endif
