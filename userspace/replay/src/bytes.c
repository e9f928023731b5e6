// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"

void *must_resize(void *old, size_t size)
{
	void *p = realloc(old, size ? size : 1);

	if (!p) {
		fprintf(stderr, "replay: no memory for %zu bytes: the process ends, and replays when it is started again\n", size);
		abort();
	}
	return p;
}

void *must_alloc(size_t size)
{
	return memset(must_resize(NULL, size), 0, size);
}

void bytes_free(struct bytes *b)
{
	free(b->data);
	*b = (struct bytes){ 0 };
}

void bytes_room(struct bytes *b, size_t room)
{
	if (room > b->room) {
		b->room = room;
		b->data = must_resize(b->data, room);
	}
}

void bytes_add(struct bytes *b, const void *data, size_t len)
{
	if (b->len + len > b->room)
		bytes_room(b, (b->len + len) * 2);
	if (len)
		memcpy(b->data + b->len, data, len);
	b->len += len;
}

void bytes_set(struct bytes *b, const void *data, size_t len)
{
	b->len = 0;
	bytes_add(b, data, len);
}

bool bytes_equal(const struct bytes *a, const struct bytes *b)
{
	return a->len == b->len && (!a->len || !memcmp(a->data, b->data, a->len));
}

void put_number(struct bytes *b, uint64_t value, unsigned int size)
{
	uint8_t out[8];
	unsigned int i;

	for (i = 0; i < size; i++)
		out[i] = value >> (8 * i);
	bytes_add(b, out, size);
}

void put_blob(struct bytes *b, const void *data, size_t len)
{
	put_u32(b, len);
	bytes_add(b, data, len);
}

void put_text(struct bytes *b, const char *text)
{
	put_blob(b, text, strlen(text));
}

struct cursor cursor(const void *data, size_t len)
{
	const uint8_t *at = data;

	return (struct cursor){ .at = at, .end = len ? at + len : at };
}

uint64_t get_number(struct cursor *c, unsigned int size)
{
	uint64_t value = 0;
	unsigned int i;

	if ((size_t)(c->end - c->at) < size) {
		c->bad = true;
		c->at = c->end;
		return 0;
	}
	for (i = 0; i < size; i++)
		value |= (uint64_t)*c->at++ << (8 * i);
	return value;
}

const void *get_blob(struct cursor *c, size_t *len)
{
	const void *data;

	*len = get_u32(c);
	if ((size_t)(c->end - c->at) < *len) {
		c->bad = true;
		c->at = c->end;
		*len = 0;
	}
	data = c->at;
	c->at += *len;
	return data;
}

void get_bytes(struct cursor *c, struct bytes *b)
{
	size_t len;
	const void *data = get_blob(c, &len);

	bytes_set(b, data, len);
}

char *get_text(struct cursor *c)
{
	size_t len;
	const void *data = get_blob(c, &len);
	char *text = must_alloc(len + 1);

	memcpy(text, data, len);
	return text;
}
