/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where an area and its log are, and the log of an update: new bytes of ranges of an area, one after the other. */
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

/* Room for the entries of small ranges */
#define LOG_EXTRA	65536

static inline size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

/* Behind the header's page: the data, a page that nobody may touch, the log. */
static inline size_t layout_log(size_t size, size_t page)
{
	return page + round_up(size, page) + page;
}

static inline size_t layout_log_size(size_t size, size_t page)
{
	return round_up(size + LOG_EXTRA, page);
}

static inline size_t layout_total(size_t size, size_t page)
{
	return layout_log(size, page) + layout_log_size(size, page);
}

static inline struct journal layout_journal(void *base, size_t size, size_t page)
{
	return (struct journal){
		.data = (char *)base + page,
		.size = size,
		.log = (char *)base + layout_log(size, page),
		.log_size = layout_log_size(size, page),
	};
}

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

		/* It may have been damaged: no entry goes beyond the log. */
		if (commit - pos < sizeof(*e) || e->offset > j->size || e->len > j->size - e->offset ||
		    entry_size(e->len) > commit - pos)
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
