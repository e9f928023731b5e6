/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Bytes that grow, and reading them again. Numbers are little-endian. Memory that is not to be had ends the process: a crash
 * is what replay is for, a server with half a state is not.
 */
#ifndef REPLAY_BYTES_H
#define REPLAY_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
	uint8_t *data;
	size_t len, room;
};

/* What is left to read. A read beyond the end sets @bad and gives zeros: the reader checks once, at the end. */
struct cursor {
	const uint8_t *at, *end;
	bool bad;
};

void *must_alloc(size_t size);
void *must_resize(void *old, size_t size);

void bytes_free(struct bytes *b);
void bytes_room(struct bytes *b, size_t room);
void bytes_add(struct bytes *b, const void *data, size_t len);
void bytes_set(struct bytes *b, const void *data, size_t len);
bool bytes_equal(const struct bytes *a, const struct bytes *b);
void put_number(struct bytes *b, uint64_t value, unsigned int size);
void put_blob(struct bytes *b, const void *data, size_t len);
void put_text(struct bytes *b, const char *text);

struct cursor cursor(const void *data, size_t len);
uint64_t get_number(struct cursor *c, unsigned int size);
const void *get_blob(struct cursor *c, size_t *len);
void get_bytes(struct cursor *c, struct bytes *b);
/* The text in memory of its own */
char *get_text(struct cursor *c);

static inline void put_u8(struct bytes *b, uint8_t v) { put_number(b, v, 1); }
static inline void put_u16(struct bytes *b, uint16_t v) { put_number(b, v, 2); }
static inline void put_u32(struct bytes *b, uint32_t v) { put_number(b, v, 4); }
static inline void put_u64(struct bytes *b, uint64_t v) { put_number(b, v, 8); }
static inline uint8_t get_u8(struct cursor *c) { return get_number(c, 1); }
static inline uint16_t get_u16(struct cursor *c) { return get_number(c, 2); }
static inline uint32_t get_u32(struct cursor *c) { return get_number(c, 4); }
static inline uint64_t get_u64(struct cursor *c) { return get_number(c, 8); }

#endif
