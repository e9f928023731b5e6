/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The log (paper, 3.1: one for all sessions). A log sequence number (LSN) is a place in an endless log, of which the device
 * holds the last part: a ring. Records lie in blocks, one block is one write. A block begins at a multiple of the device's
 * sector; a record lies whole in one block.
 *
 *	device:	anchor 0 | anchor 1 | ring ...
 *	block:	magic, crc, lsn, epoch, length, uuid | record, record, ... | zeros up to the sector's end
 *	record:	length, crc, type | payload
 *
 * All functions but log_format() and log_open() want the server's lock held; those that wait give it up meanwhile, and say so.
 */
#ifndef REPLAY_LOG_H
#define REPLAY_LOG_H

#include <uthash.h>

#include "env.h"

#define ANCHOR_SIZE	4096
#define RING_PLACE	(2 * ANCHOR_SIZE)
#define ENDINGS_MAX	200		/* that an anchor has room for, and some */
#define BLOCK_HEADER	40
#define RECORD_HEADER	9
#define RECORD_MAX	(12u << 20)	/* a session that is carried: its state, its request, and what they may log */
#define BLOCK_FULL	(64u << 10)	/* the paper's 128 sectors: no record is begun behind it */
#define BLOCK_MAX	(BLOCK_FULL + RECORD_HEADER + RECORD_MAX + 4096)
#define RING_MIN	(1u << 20)
#define CHUNK_SIZE	(64u << 10)	/* that is read at a time */

struct chunk;

struct block {
	uint64_t lsn;
	struct bytes bytes;
	struct block *next;
};

/* Where blocks begin: a scan can begin at one of them. */
#define STARTS_MAX	1024

struct log {
	struct env *env;
	uint8_t uuid[16];
	uint64_t ring;			/* its size in bytes */
	uint32_t sector;
	struct history ended;		/* our epochs that no server checkpoint tells of; and this epoch */
	uint64_t anchors;		/* anchors written */
	uint64_t checkpoint;		/* the last server checkpoint's record, 0 for none */
	uint64_t tail;			/* a scan starts here; nothing before it is needed */
	uint64_t durable;		/* everything before is on the device */
	uint64_t wanted;		/* somebody waits for records up to here */
	struct block *first, *last;	/* not durable yet; the last one takes records */
	uint64_t starts[STARTS_MAX];
	unsigned int nr_starts;
	uint64_t starts_apart;
	uint64_t batch_ns;		/* paper, 5.5: how long a flush waits for others to come along */
	bool writing_anchor;
	struct chunk *cache;		/* of the device, the one that was used last at the end */
	unsigned int cache_chunks;	/* that it may hold */
	void (*flushed)(void *arg);	/* called after each write */
	void *flushed_arg;
	bool stop;
	/* figures */
	uint64_t flushes, sectors, records;
	_Atomic uint64_t scanned;	/* bytes, while log_scan() reads; any thread may look */
};

int log_format(struct env *env, uint64_t device_size, uint32_t sector);
/*
 * What has been scanned of @from, at the same LSNs, on another device, whose anchors are written last. -ENOSPC: it is smaller,
 * -EINVAL: its sectors are larger
 */
int log_copy(struct log *from, struct env *env, uint64_t device_size, uint32_t sector);
/*
 * -EMEDIUMTYPE: no log of ours; -EPROTONOSUPPORT: of another version; -EILSEQ: damaged; -ENOSPC: the device has become smaller.
 */
int log_open(struct log *log, struct env *env, uint64_t device_size);
/* What such an error means, and what to do */
const char *log_problem(int err);

/*
 * All records from the tail to the end, which is then durable. -EILSEQ: damaged: a good block lies behind a bad one.
 */
typedef void (*scan_fn)(void *arg, uint64_t lsn, uint8_t type, struct cursor payload);
int log_scan(struct log *log, scan_fn scan, void *arg);
/*
 * The next epoch, and where the one before has ended: both in the anchor before anything is written, or said. It takes no room
 * in the log: who crashes at every start does not fill it. May wait.
 */
void log_begin(struct log *log);

/* Where the next record will be */
uint64_t log_place(struct log *log);
/* A record as it lies at @lsn: for one that lies within another, and is read as if it did not */
void log_record(struct bytes *b, uint64_t lsn, uint8_t type, const struct bytes *payload);
/* The record's LSN */
uint64_t log_append(struct log *log, uint8_t type, const struct bytes *payload);
/* The writer: one thread runs it, until log->stop, and all that is wanted is written */
void log_writer(struct log *log);
void log_close(struct log *log);
/* Have it written, and do not wait */
void log_want(struct log *log, uint64_t lsn);
/* Waits until the record at @lsn, and all before, are durable. */
void log_flush(struct log *log, uint64_t lsn);
/* May wait. The payload replaces @payload. Damage is the end of the server. */
void log_read(struct log *log, uint64_t lsn, uint8_t *type, struct bytes *payload);
/* The last server checkpoint, which tells of all our ended epochs, is at @checkpoint, nothing before @tail is needed. May wait. */
void log_anchor(struct log *log, uint64_t checkpoint, uint64_t tail);
uint64_t log_end(const struct log *log);

static inline uint64_t log_used(const struct log *log)
{
	return log_end(log) - log->tail;
}

uint32_t crc32c(uint32_t seed, const void *data, size_t len);

#endif
