/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The log of an update: new bytes of ranges of an area, one after the other. */
#ifndef JOURNAL_H
#define JOURNAL_H

#include <errno.h>
#include <stdint.h>
#include <string.h>

struct journal {
	char *data;		/* of the area */
	uint64_t size;
	char *log;
	uint64_t log_size;
};

struct entry {
	uint64_t offset;
	uint64_t len;
};

static inline uint64_t entry_size(uint64_t len)
{
	return sizeof(struct entry) + (len + 7) / 8 * 8;
}

/* Copy a committed log to the data. Doing it twice, or once and a half, does no harm. */
static inline int journal_apply(const struct journal *j, uint64_t commit)
{
	uint64_t pos = 0;

	if (commit > j->log_size)
		return -1;
	while (pos < commit) {
		const struct entry *e = (const struct entry *)(j->log + pos);

		if (e->offset > j->size || e->len > j->size - e->offset)
			return -1;
		memcpy(j->data + e->offset, e + 1, e->len);
		pos += entry_size(e->len);
	}
	return 0;
}

/* Append a range to the log, whose length is *staged. */
static inline int journal_stage(const struct journal *j, uint64_t *staged, uint64_t offset,
				const void *src, size_t len)
{
	struct entry *e;

	if (offset > j->size || len > j->size - offset) {
		errno = EINVAL;
		return -1;
	}
	if (entry_size(len) > j->log_size - *staged) {
		errno = ENOSPC;
		return -1;
	}
	e = (struct entry *)(j->log + *staged);
	e->offset = offset;
	e->len = len;
	memcpy(e + 1, src, len);
	*staged += entry_size(len);
	return 0;
}

/* FNV-1a */
static inline uint64_t hash(const void *p, size_t len)
{
	const unsigned char *c = p;
	uint64_t x = 0xcbf29ce484222325ULL;

	while (len--)
		x = (x ^ *c++) * 0x100000001b3ULL;
	return x;
}

#endif
