/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The world that a server runs in: threads, clocks and a log file or device of Linux */
#ifndef REPLAY_WORLD_H
#define REPLAY_WORLD_H

#include <pthread.h>

#include "env.h"

struct log;

#define WAIT_BUCKETS	64
#define ERROR_MAX	512

struct world {
	struct env env;
	pthread_mutex_t lock;
	struct sleeper *sleepers[WAIT_BUCKETS];
	int fd;
	uint64_t size;
	uint32_t sector;
	bool direct;		/* past the page cache */
	_Atomic bool stopping;	/* what is asked of other servers is given up */
	const char *name;	/* of the server */
	const char *verdicts;	/* the file of verdict records, or NULL */
};

/* What a person is told; @err is the result */
__attribute__((format(printf, 3, 4)))
int set_error(char error[ERROR_MAX], int err, const char *format, ...);

void world_init(struct world *w);
/*
 * The log file or device, for this process alone. 0, or a negative errno, and @error says what to do. Wants nothing of ours.
 */
int world_open(struct world *w, const char *path, bool read_only, char error[ERROR_MAX]);
void world_close(struct world *w);
/*
 * A file of @size bytes, all of them written, so that a later write changes no metadata; of a device (@size 0: all of it) as much.
 * Then an empty log, or what has been scanned of @from. What is there and is no log is left alone without @force. @progress may be
 * NULL.
 */
int world_format(const char *path, uint64_t size, bool force, struct log *from, void (*progress)(uint64_t done, uint64_t all),
		 char error[ERROR_MAX]);

#endif
