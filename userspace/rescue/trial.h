/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A command that runs with a copy of a file in its place: points on that are for nobody else */
#ifndef RESCUE_TRIAL_H
#define RESCUE_TRIAL_H

#include <signal.h>
#include <stdbool.h>

struct trial {
	char *binary;		/* that is copied */
	char directory[4096];	/* where the copy is; "": nowhere */
	char copy[4096];
	int fd;			/* of that */
	sigset_t before;	/* signals that were blocked */
	sigset_t ending;	/* those that end the command, and that wait until then */
	int signal;		/* the one that has come, or 0: no run begins any more */
};

/*
 * false: what is wrong has been said. Either way, trial_end() takes away what there is, and until then no signal ends us before all else is
 * taken away.
 */
bool trial_begin(struct trial *trial, const char *binary);

/*
 * Runs it until it ends; @progress is called every five seconds. The status is that of a shell: 128 + n if it dies by signal n. -1: it has
 * not begun, and why has been said, or a signal came before.
 */
int trial_run(struct trial *trial, char *const *argv, void (*progress)(void *arg), void *arg);

void trial_end(struct trial *trial);

#endif
