// SPDX-License-Identifier: LGPL-2.1-or-later
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <isa-l/crc.h>

#include "log.h"

#define BLOCK_MAGIC	0x4c425052u	/* "RPBL" */
#define ANCHOR_MAGIC	"perdure replay log"
#define VERSION		1
#define SCAN_SIZE	(1u << 20)

uint32_t crc32c(uint32_t seed, const void *data, size_t len)
{
	/* The library's function does not write, and takes an int */
	return ~crc32_iscsi((unsigned char *)data, len, ~seed);
}

static uint64_t align(uint64_t lsn, uint32_t sector)
{
	return (lsn + sector - 1) / sector * sector;
}

/* The ring goes round: at most two pieces */
static int ring_io(struct log *log, uint64_t lsn, uint8_t *data, size_t len, bool write)
{
	while (len) {
		uint64_t at = lsn % log->ring;
		size_t piece = len < log->ring - at ? len : log->ring - at;
		int err = write ? log->env->write(log->env, RING_PLACE + at, data, piece) :
				  log->env->read(log->env, RING_PLACE + at, data, piece);

		if (err)
			return err;
		lsn += piece;
		data += piece;
		len -= piece;
	}
	return 0;
}

static __attribute__((noreturn, format(printf, 2, 3))) void fail(struct log *log, const char *format, ...)
{
	char why[256];
	va_list args;

	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	log->env->fail(log->env, why);
}

/* Anchors */

static void anchor_make(const struct log *log, struct bytes *b)
{
	bytes_add(b, ANCHOR_MAGIC, sizeof(ANCHOR_MAGIC));
	put_u32(b, VERSION);
	put_u64(b, log->anchors);
	bytes_add(b, log->uuid, sizeof(log->uuid));
	put_u64(b, log->ring);
	put_u32(b, log->sector);
	put_u64(b, log->checkpoint);
	put_u64(b, log->tail);
	put_history(b, &log->ended, 0);
	while (b->len < ANCHOR_SIZE - 4)
		put_u8(b, 0);
	put_u32(b, crc32c(0, b->data, b->len));
}

static int slot_write(struct log *log)
{
	struct bytes b = { 0 };
	int err;

	log->anchors++;
	anchor_make(log, &b);
	err = log->env->write(log->env, log->anchors % 2 * ANCHOR_SIZE, b.data, b.len);
	bytes_free(&b);
	return err;
}

/* To both slots: one may be torn by a crash, and one may go bad later */
static int anchor_write(struct log *log)
{
	int err = slot_write(log);

	return err ? err : slot_write(log);
}

static int anchor_read(struct log *log, struct env *env, unsigned int slot)
{
	uint8_t data[ANCHOR_SIZE];
	int err = env->read(env, slot * ANCHOR_SIZE, data, sizeof(data));
	struct cursor c = cursor(data, sizeof(data));
	struct cursor crc = cursor(data + sizeof(data) - 4, 4);

	if (err)
		return err;
	if (memcmp(data, ANCHOR_MAGIC, sizeof(ANCHOR_MAGIC)))
		return -EMEDIUMTYPE;
	c.at += sizeof(ANCHOR_MAGIC);
	if (get_u32(&c) != VERSION)
		return -EPROTONOSUPPORT;
	if (get_u32(&crc) != crc32c(0, data, sizeof(data) - 4))
		return -EILSEQ;
	log->anchors = get_u64(&c);
	memcpy(log->uuid, c.at, sizeof(log->uuid));
	c.at += sizeof(log->uuid);
	log->ring = get_u64(&c);
	log->sector = get_u32(&c);
	log->checkpoint = get_u64(&c);
	log->tail = get_u64(&c);
	get_history(&c, &log->ended, 0);
	return c.bad ? -EILSEQ : 0;
}

/*
 * Epochs begin at the time of day: a log that is made anew for the same member is not taken for the one before. LSN 0 means
 * "none", so the first block begins at the first sector.
 */
int log_format(struct env *env, uint64_t device_size, uint32_t sector)
{
	struct log log = { .env = env, .sector = sector, .tail = sector, .ended.epoch = env->time(env) / 1000000000 };

	if (device_size < RING_PLACE + RING_MIN)
		return -ENOSPC;
	log.ring = (device_size - RING_PLACE) / sector * sector;
	env->random(env, log.uuid, sizeof(log.uuid));
	return anchor_write(&log);
}

int log_copy(struct log *from, struct env *env, uint64_t device_size, uint32_t sector)
{
	struct log log = *from;
	uint64_t lsn, ring = device_size < RING_PLACE ? 0 : (device_size - RING_PLACE) / from->sector * from->sector;
	uint8_t *piece;
	int err = 0;

	if (ring < from->ring)
		return -ENOSPC;
	if (from->sector % sector)
		return -EINVAL;
	log.env = env;
	log.ring = ring;
	piece = must_alloc(CHUNK_SIZE);
	for (lsn = from->tail; !err && lsn < from->durable; lsn += CHUNK_SIZE) {
		size_t len = from->durable - lsn < CHUNK_SIZE ? from->durable - lsn : CHUNK_SIZE;

		err = ring_io(from, lsn, piece, len, false);
		if (!err)
			err = ring_io(&log, lsn, piece, len, true);
	}
	free(piece);
	return err ? err : anchor_write(&log);
}

int log_open(struct log *log, struct env *env, uint64_t device_size)
{
	struct log slots[2] = { 0 };
	int errors[2], better, i;

	for (i = 0; i < 2; i++)
		errors[i] = anchor_read(&slots[i], env, i);
	if (errors[0] && errors[1])
		return errors[0] == -EMEDIUMTYPE ? errors[1] : errors[0];
	better = errors[0] || (!errors[1] && slots[1].anchors > slots[0].anchors);
	*log = slots[better];
	history_free(&slots[!better].ended);
	log->env = env;
	if (RING_PLACE + log->ring > device_size)
		return -ENOSPC;
	log->starts_apart = log->ring / STARTS_MAX;
	return 0;
}

const char *log_problem(int err)
{
	switch (-err) {
	case EMEDIUMTYPE:
		return "it is no log: `replayctl format` makes one";
	case EPROTONOSUPPORT:
		return "its format is that of another version of libreplay";
	case EILSEQ:
		return "it is damaged (`replayctl verify` says where): a block is not what its checksum says, or a good one lies behind a bad one";
	case EFBIG:
		return "request_log is more than an eighth of it: have a larger log, or say less";
	case ENOSPC:
		return "the file or device is smaller than the log in it";
	default:
		return strerror(-err);
	}
}

/* Blocks */

static void block_seal(struct log *log, struct block *block)
{
	struct bytes header = { 0 };
	uint64_t end = align(block->lsn + block->bytes.len, log->sector);
	static const uint8_t zeros[4096];
	uint32_t len = block->bytes.len;

	bytes_add(&block->bytes, zeros, end - block->lsn - len);
	put_u32(&header, BLOCK_MAGIC);
	put_u32(&header, 0);
	put_u64(&header, block->lsn);
	put_u32(&header, log->ended.epoch);
	put_u32(&header, len);
	bytes_add(&header, log->uuid, sizeof(log->uuid));
	memcpy(block->bytes.data, header.data, BLOCK_HEADER);
	header.len = 0;
	put_u32(&header, crc32c(0, block->bytes.data, len));
	memcpy(block->bytes.data + 4, header.data, 4);
	bytes_free(&header);
}

struct block_header {
	uint32_t crc, epoch, len;
	uint64_t lsn;
};

static bool header_good(const struct log *log, const uint8_t *data, uint64_t lsn, struct block_header *h)
{
	struct cursor c = cursor(data, BLOCK_HEADER);

	if (get_u32(&c) != BLOCK_MAGIC)
		return false;
	h->crc = get_u32(&c);
	h->lsn = get_u64(&c);
	h->epoch = get_u32(&c);
	h->len = get_u32(&c);
	return h->lsn == lsn && h->len >= BLOCK_HEADER && h->len <= BLOCK_MAX && !memcmp(c.at, log->uuid, sizeof(log->uuid));
}

/* What a scan has read ahead */
struct window {
	uint64_t lsn;
	struct bytes bytes;
};

/* @len bytes at @lsn, which begins a sector; NULL and @err: not read, or beyond the ring's end (0) */
static const uint8_t *window_at(struct log *log, struct window *w, uint64_t lsn, size_t len, int *err)
{
	uint64_t stop = log->tail + log->ring;
	size_t size = align(len > SCAN_SIZE ? len : SCAN_SIZE, log->sector);

	*err = 0;
	if (lsn >= w->lsn && lsn + len <= w->lsn + w->bytes.len)
		return w->bytes.data + (lsn - w->lsn);
	if (lsn + len > stop)
		return NULL;
	if (size > stop - lsn)
		size = stop - lsn;
	w->bytes.len = 0;
	if (w->bytes.room < size) {
		w->bytes.data = must_resize(w->bytes.data, size);
		w->bytes.room = size;
	}
	*err = ring_io(log, lsn, w->bytes.data, size, false);
	if (*err)
		return NULL;
	w->lsn = lsn;
	w->bytes.len = size;
	return w->bytes.data;
}

/* The whole block into @b: 1 if it is good, 0 if not, or a negative errno */
static int block_read(struct log *log, struct window *w, uint64_t lsn, uint32_t epoch, struct bytes *b, struct block_header *h)
{
	int err;
	const uint8_t *data = window_at(log, w, lsn, BLOCK_HEADER, &err);

	if (!data || !header_good(log, data, lsn, h) || h->epoch < epoch)
		return err;
	data = window_at(log, w, lsn, h->len, &err);
	if (!data)
		return err;
	bytes_set(b, data, h->len);
	memset(b->data + 4, 0, 4);
	return crc32c(0, b->data, h->len) == h->crc;
}

static void remember_start(struct log *log, uint64_t lsn)
{
	unsigned int dropped = 0;

	if (log->nr_starts && lsn < log->starts[log->nr_starts - 1] + log->starts_apart)
		return;
	while (dropped < log->nr_starts && log->starts[dropped] < log->tail)
		dropped++;
	if (!dropped && log->nr_starts == STARTS_MAX)
		return;
	log->nr_starts -= dropped;
	memmove(log->starts, log->starts + dropped, log->nr_starts * sizeof(log->starts[0]));
	log->starts[log->nr_starts++] = lsn;
}

static void block_new(struct log *log, uint64_t lsn)
{
	static const uint8_t zeros[BLOCK_HEADER];
	struct block *block = must_alloc(sizeof(*block));

	block->lsn = lsn;
	bytes_add(&block->bytes, zeros, sizeof(zeros));
	if (log->last)
		log->last->next = block;
	else
		log->first = block;
	log->last = block;
	remember_start(log, lsn);
}

/* The scan */

static int scan_records(scan_fn scan, void *arg, uint64_t lsn, const struct bytes *b)
{
	size_t at = BLOCK_HEADER;

	while (at < b->len) {
		struct cursor c = cursor(b->data + at, b->len - at);
		uint32_t len = get_u32(&c);
		uint8_t type;

		get_u32(&c);
		type = get_u8(&c);
		if (c.bad || len > (size_t)(c.end - c.at))
			return -EILSEQ;
		scan(arg, lsn + at, type, cursor(c.at, len));
		at += RECORD_HEADER + len;
	}
	return 0;
}

/*
 * One write is in flight at a time. So behind the end there is at most what is left of the one that was cut, and nothing whole
 * behind that: who finds something has a log in whose middle a block has gone bad.
 */
static int look_behind(struct log *log, struct window *w, uint64_t end, uint32_t epoch, struct bytes *b)
{
	uint64_t stop = end + BLOCK_MAX, lsn;
	struct block_header h;
	int good = 0;

	if (stop > log->tail + log->ring)
		stop = log->tail + log->ring;
	for (lsn = end + log->sector; lsn < stop && !good; lsn += log->sector)
		good = block_read(log, w, lsn, epoch, b, &h);
	return good > 0 ? -EILSEQ : good;
}

int log_scan(struct log *log, scan_fn scan, void *arg)
{
	uint64_t lsn = log->tail;
	struct window w = { 0 };
	struct bytes b = { 0 };
	struct block_header h;
	uint32_t epoch = 0;
	int good;

	for (;;) {
		good = lsn < log->tail + log->ring ? block_read(log, &w, lsn, epoch, &b, &h) : 0;
		if (good > 0 && h.epoch > log->ended.epoch)
			good = -EILSEQ;
		if (good <= 0)
			break;
		epoch = h.epoch;
		log->scanned = lsn - log->tail;
		remember_start(log, lsn);
		good = scan_records(scan, arg, lsn, &b);
		if (good)
			break;
		lsn += align(h.len, log->sector);
	}
	if (!good)
		good = look_behind(log, &w, lsn, epoch, &b);
	/* The checkpoint was durable before the anchor told of it */
	if (!good && log->checkpoint >= lsn)
		good = -EILSEQ;
	log->durable = log->wanted = lsn;
	bytes_free(&w.bytes);
	bytes_free(&b);
	return good;
}

void log_begin(struct log *log)
{
	int err;

	history_learn(&log->ended, (struct ending){ .first = log->ended.epoch, .last = log->ended.epoch, .end = log->durable });
	log->ended.epoch++;
	log->env->unlock(log->env);
	err = anchor_write(log);
	log->env->lock(log->env);
	if (err)
		fail(log, "the log's anchor cannot be written: %s", strerror(-err));
	block_new(log, log->durable);
}

/* Records */

uint64_t log_end(const struct log *log)
{
	return log->last ? log->last->lsn + log->last->bytes.len : log->durable;
}

uint64_t log_place(struct log *log)
{
	if (log->last->bytes.len >= BLOCK_FULL)
		block_new(log, align(log->last->lsn + log->last->bytes.len, log->sector));
	return log_end(log);
}

void log_record(struct bytes *b, uint64_t lsn, uint8_t type, const struct bytes *payload)
{
	put_u32(b, payload->len);
	put_u32(b, crc32c(crc32c(type, &lsn, sizeof(lsn)), payload->data, payload->len));
	put_u8(b, type);
	bytes_add(b, payload->data, payload->len);
}

uint64_t log_append(struct log *log, uint8_t type, const struct bytes *payload)
{
	uint64_t lsn = log_place(log);

	if (payload->len > RECORD_MAX || lsn + payload->len + BLOCK_HEADER + 4096 > log->tail + log->ring)
		fail(log, "the log is full: %" PRIu64 " bytes, of which all are needed", log->ring);
	log_record(&log->last->bytes, lsn, type, payload);
	log->records++;
	return lsn;
}

void log_want(struct log *log, uint64_t lsn)
{
	if (log->wanted > lsn)
		return;
	log->wanted = lsn + 1;
	log->env->wake(log->env, &log->wanted);
}

void log_flush(struct log *log, uint64_t lsn)
{
	log_want(log, lsn);
	while (log->durable <= lsn)
		log->env->wait(log->env, &log->durable, 0);
}

void log_writer(struct log *log)
{
	struct env *env = log->env;

	while (!log->stop || log->wanted > log->durable) {
		struct block *block = log->first;
		int err;

		if (log->wanted <= log->durable) {
			env->wait(env, &log->wanted, 0);
			continue;
		}
		if (log->batch_ns && block == log->last && block->bytes.len < BLOCK_FULL) {
			uint64_t until = env->clock(env) + log->batch_ns;

			while (env->clock(env) < until)
				env->wait(env, &log->batch_ns, until);
			block = log->first;
		}
		if (block == log->last)
			block_new(log, align(block->lsn + block->bytes.len, log->sector));
		block_seal(log, block);
		env->unlock(env);
		err = ring_io(log, block->lsn, block->bytes.data, block->bytes.len, true);
		env->lock(env);
		if (err)
			fail(log, "the log cannot be written: %s: nothing that was not stored has been acknowledged", strerror(-err));
		log->flushes++;
		log->sectors += block->bytes.len / 512;
		log->durable = block->lsn + block->bytes.len;
		log->first = block->next;
		bytes_free(&block->bytes);
		free(block);
		env->wake(env, &log->durable);
		log->flushed(log->flushed_arg);
	}
}

/* A record that is not durable yet lies in a block that waits */
static const uint8_t *in_memory(const struct log *log, uint64_t lsn)
{
	const struct block *block;

	for (block = log->first; block; block = block->next)
		if (lsn >= block->lsn && lsn < block->lsn + block->bytes.len)
			return block->bytes.data + (lsn - block->lsn);
	return NULL;
}

/* Chunks of the device that have been read: sessions that replay side by side want the same ones */
struct chunk {
	uint64_t number;
	size_t size;			/* less where the log ended when it was read */
	UT_hash_handle hh;
	uint8_t data[CHUNK_SIZE];
};

static void chunk_drop(struct log *log, struct chunk *chunk)
{
	HASH_DEL(log->cache, chunk);
	free(chunk);
}

/* Part of one chunk. Waits if it is to be read. */
static int chunk_copy(struct log *log, uint64_t lsn, uint8_t *to, size_t len)
{
	uint64_t number = lsn / CHUNK_SIZE, begin = number * CHUNK_SIZE, durable = log->durable;
	struct chunk *chunk, *other;
	size_t size = CHUNK_SIZE;
	int err;

	HASH_FIND(hh, log->cache, &number, sizeof(number), chunk);
	if (chunk && lsn + len <= begin + chunk->size) {
		memcpy(to, chunk->data + (lsn - begin), len);
		/* The one that was used last is last */
		HASH_DEL(log->cache, chunk);
		HASH_ADD(hh, log->cache, number, sizeof(number), chunk);
		return 0;
	}
	/* What is being written now must not stay in it half */
	if (begin + size > durable)
		size = durable - begin;
	if (lsn + len > begin + size)
		return -EILSEQ;
	chunk = must_alloc(sizeof(*chunk));
	chunk->number = number;
	chunk->size = size;
	log->env->unlock(log->env);
	err = ring_io(log, begin, chunk->data, size, false);
	log->env->lock(log->env);
	if (!err)
		memcpy(to, chunk->data + (lsn - begin), len);
	HASH_FIND(hh, log->cache, &number, sizeof(number), other);
	if (err || (other && other->size >= size) || !log->cache_chunks) {
		free(chunk);
		return err;
	}
	if (other)
		chunk_drop(log, other);
	HASH_ADD(hh, log->cache, number, sizeof(number), chunk);
	if (HASH_COUNT(log->cache) > log->cache_chunks)
		chunk_drop(log, log->cache);
	return 0;
}

static int copy_out(struct log *log, uint64_t lsn, uint8_t *to, size_t len)
{
	while (len) {
		size_t piece = CHUNK_SIZE - lsn % CHUNK_SIZE;
		int err;

		if (piece > len)
			piece = len;
		err = chunk_copy(log, lsn, to, piece);
		if (err)
			return err;
		lsn += piece;
		to += piece;
		len -= piece;
	}
	return 0;
}

void log_read(struct log *log, uint64_t lsn, uint8_t *type, struct bytes *payload)
{
	const uint8_t *at = in_memory(log, lsn);
	uint8_t header[RECORD_HEADER];
	uint32_t len, crc;
	struct cursor c;
	int err = 0;

	if (at)
		memcpy(header, at, sizeof(header));
	else
		err = copy_out(log, lsn, header, sizeof(header));
	c = cursor(header, sizeof(header));
	len = get_u32(&c);
	crc = get_u32(&c);
	*type = get_u8(&c);
	if (!err && len > RECORD_MAX)
		err = -EILSEQ;
	if (!err) {
		bytes_room(payload, len);
		if (at && len)
			memcpy(payload->data, at + RECORD_HEADER, len);
		else if (len)
			err = copy_out(log, lsn + RECORD_HEADER, payload->data, len);
		payload->len = len;
	}
	if (!err && crc32c(crc32c(*type, &lsn, sizeof(lsn)), payload->data, len) != crc)
		err = -EILSEQ;
	if (err)
		fail(log, "the log cannot be read at %#" PRIx64 ": %s", lsn, strerror(-err));
}

void log_anchor(struct log *log, uint64_t checkpoint, uint64_t tail)
{
	struct env *env = log->env;
	struct log copy;
	unsigned int i;
	int err;

	while (log->writing_anchor)
		env->wait(env, &log->writing_anchor, 0);
	log->writing_anchor = true;
	for (i = log->nr_starts; i && log->starts[i - 1] > tail; i--)
		;
	/* A scan can begin at the start of a block only */
	copy = *log;
	copy.checkpoint = checkpoint;
	copy.ended.n = 0;
	if (i && log->starts[i - 1] > copy.tail)
		copy.tail = log->starts[i - 1];
	env->unlock(env);
	err = anchor_write(&copy);
	env->lock(env);
	if (err)
		fail(log, "the log's anchor cannot be written: %s", strerror(-err));
	/* Only now may what lies before be overwritten */
	log->anchors = copy.anchors;
	log->checkpoint = copy.checkpoint;
	log->ended.n = 0;
	log->tail = copy.tail;
	log->writing_anchor = false;
	env->wake(env, &log->writing_anchor);
}

void log_close(struct log *log)
{
	struct block *block;

	while ((block = log->first)) {
		log->first = block->next;
		bytes_free(&block->bytes);
		free(block);
	}
	log->last = NULL;
	while (log->cache)
		chunk_drop(log, log->cache);
	history_free(&log->ended);
}
