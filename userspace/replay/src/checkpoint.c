// SPDX-License-Identifier: LGPL-2.1-or-later
/* Checkpoints: of a session (paper, 3.2), and of the server, fuzzy (3.4) */
#include <stdlib.h>
#include <string.h>

#include "core.h"

void session_state_put(struct bytes *b, const struct session *s)
{
	const struct outgoing *o;
	struct value *value, *next;
	unsigned int n = 0;

	put_u64(b, s->expected);
	put_u8(b, s->replied);
	put_u32(b, s->asked);
	put_u32(b, s->status);
	put_blob(b, s->reply.data, s->reply.len);
	put_u32(b, HASH_COUNT(s->values));
	HASH_ITER(hh, s->values, value, next) {
		put_text(b, value->name);
		put_blob(b, value->bytes.data, value->bytes.len);
	}
	LL_COUNT(s->outgoing, o, n);
	put_u32(b, n);
	LL_FOREACH(s->outgoing, o) {
		put_text(b, o->peer->name);
		put_text(b, o->session);
		put_u64(b, o->sequence);
	}
}

void session_state_get(struct server *server, struct cursor *c, struct session *s)
{
	unsigned int n, i;

	session_identity_get(server, c, s);
	s->expected = get_u64(c);
	s->replied = get_u8(c);
	s->asked = get_u32(c);
	s->status = get_u32(c);
	get_bytes(c, &s->reply);
	for (n = get_u32(c); n && !c->bad; n--) {
		struct value *value = must_alloc(sizeof(*value));

		value->name = get_text(c);
		get_bytes(c, &value->bytes);
		s->values_size += strlen(value->name) + value->bytes.len;
		HASH_ADD_KEYPTR(hh, s->values, value->name, strlen(value->name), value);
	}
	for (n = get_u32(c); n && !c->bad; n--) {
		struct outgoing *o = must_alloc(sizeof(*o));
		char *name = get_text(c);

		o->session = get_text(c);
		o->sequence = get_u64(c);
		for (i = 0; i < server->config.nr_peers; i++)
			if (!strcmp(server->config.peers[i].name, name))
				o->peer = &server->config.peers[i];
		if (o->peer) {
			LL_APPEND(s->outgoing, o);
		} else {
			/* It is not called any more */
			free(o->session);
			free(o);
		}
		free(name);
	}
}

/* At most */
static size_t state_size(const struct session *s)
{
	const struct outgoing *o;
	size_t size = 1024 + s->values_size + 8 * HASH_COUNT(s->values) + s->reply.len;

	LL_FOREACH(s->outgoing, o)
		size += 3 * NAME_MAX_LEN;
	return size;
}

/* Requests leave a quarter of the log to checkpoints; these leave the last sixteenth to what ends sessions. */
bool has_room(const struct server *server, size_t size)
{
	return log_used(&server->log) + size <= server->log.ring / 16 * 15;
}

bool checkpoint_has_room(const struct server *server, const struct session *s)
{
	return has_room(server, state_size(s));
}

void session_checkpoint(struct server *server, struct session *s)
{
	struct bytes payload = { 0 };

	/* It must never be an orphan */
	if (session_flush(server, s) || !checkpoint_has_room(server, s))
		return;
	put_u64(&payload, s->key);
	session_identity_put(&payload, s);
	session_state_put(&payload, s);
	s->base = s->hold = s->lsn = log_append(&server->log, R_CHECKPOINT, &payload);
	bytes_free(&payload);
	positions_clear(s);
	s->logged = 0;
	s->age = 0;
	s->due_checkpoint = false;
	server->checkpoints++;
}

/* What a recovery would have to read from */
uint64_t server_oldest(const struct server *server)
{
	const struct variable *v;
	const struct session *s;
	uint64_t lsn = log_end(&server->log);

	for (s = server->sessions; s; s = s->hh.next)
		if (s->hold < lsn)
			lsn = s->hold;
	for (v = server->variables; v; v = v->hh.next)
		if (v->base && v->base < lsn)
			lsn = v->base;
	return lsn;
}

struct copied {
	uint8_t type;
	struct bytes payload;
};

static void copied_free(struct copied *records, size_t n)
{
	while (n--)
		bytes_free(&records[n].payload);
	free(records);
}

/*
 * The base and the stream. While they are read the session goes on: then once more for what it has added, and all again if its
 * stream was cut.
 */
static struct copied *copy_records(struct server *server, struct session *s, size_t *count)
{
	struct copied *records = NULL;
	uint64_t *positions = NULL;
	unsigned int cuts = s->cuts;
	size_t n = 0, done = 0;

	for (;;) {
		records = must_resize(records, (done + 1) * sizeof(*records));
		records[done] = (struct copied){ 0 };
		log_read(&server->log, done ? positions[done - 1] : s->base, &records[done].type, &records[done].payload);
		if (done++ == n) {
			free(positions);
			positions = positions_copy(server, s, &n);
		}
		if (cuts != s->cuts) {
			copied_free(records, done);
			records = NULL;
			cuts = s->cuts;
			done = n = 0;
		} else if (done == n + 1) {
			break;
		}
	}
	free(positions);
	*count = done;
	return records;
}

void session_carry(struct server *server, struct session *s)
{
	struct positions *p = &s->positions;
	struct bytes payload = { 0 };
	uint64_t *places, start, lsn;
	struct copied *records;
	size_t n, i;

	s->carried = true;
	records = copy_records(server, s, &n);
	places = must_alloc(n * sizeof(*places));
	start = log_place(&server->log) + RECORD_HEADER;
	put_u64(&payload, s->key);
	for (i = 0; i < n; i++) {
		places[i] = start + payload.len;
		log_record(&payload, places[i], records[i].type, &records[i].payload);
	}
	if (!s->ended && payload.len < RECORD_MAX && log_used(&server->log) + payload.len < server->log.ring / 8 * 7) {
		lsn = log_append(&server->log, R_CARRY, &payload);
		s->hold = lsn;
		s->base = places[0];
		free(p->spilled);
		free(p->segment);
		free(p->buffer);
		*p = (struct positions){ .nr_buffer = n - 1, .scanned = n - 1, .room = n, .buffer = places };
		memmove(places, places + 1, (n - 1) * sizeof(*places));
		s->cuts++;
	} else {
		free(places);
	}
	copied_free(records, n);
	bytes_free(&payload);
	s->carried = false;
	session_put(server, s);
}

/* Who keeps the log from being used again: a session, or a variable */
struct holder {
	uint64_t from;		/* this place on */
	uint64_t key;
	char *variable;		/* its name */
};

static int by_place(const void *a, const void *b)
{
	const struct holder *x = a, *y = b;

	return x->from < y->from ? -1 : x->from > y->from;
}

static struct holder *holders(struct server *server, uint64_t old, size_t *count)
{
	struct holder *all = must_alloc((HASH_COUNT(server->sessions) + HASH_COUNT(server->variables) + 1) * sizeof(*all));
	struct variable *v;
	struct session *s;
	size_t n = 0;

	for (s = server->sessions; s; s = s->hh.next)
		if (++s->age >= server->config.forced_after || s->hold < old)
			all[n++] = (struct holder){ .from = s->hold, .key = s->key };
	for (v = server->variables; v; v = v->hh.next)
		if (v->base && (++v->age >= server->config.forced_after || v->writes >= server->config.variable_checkpoint || v->base < old))
			all[n++] = (struct holder){ .from = v->base, .variable = strdup(v->name) };
	qsort(all, n, sizeof(*all), by_place);
	*count = n;
	return all;
}

/* Returns how much it may write */
static size_t move(struct server *server, const struct holder *h, uint64_t old)
{
	struct variable *v;
	struct session *s;
	size_t size;

	if (h->variable) {
		HASH_FIND_STR(server->variables, h->variable, v);
		size = v ? v->value.len : 0;
		if (v)
			variable_checkpoint(server, h->variable);
		return size;
	}
	HASH_FIND(hh, server->sessions, &h->key, sizeof(h->key), s);
	if (!s)
		return 0;
	size = state_size(s);
	s->due_checkpoint = true;
	session_queue(server, s);
	/* At work, or waiting for another server: nobody knows how long */
	if (s->hold < old && (s->busy || s->stuck || !s->live || s->depends.n))
		session_carry(server, s);
	return size;
}

/*
 * The oldest first, and not all at once: what they write is to have room, and when the log is told of it there is more. So also
 * those that fill most of the log can be moved on.
 */
static void force(struct server *server)
{
	/* With half of the log in use, those that hold the older half of that */
	uint64_t ring = server->log.ring, old = log_used(&server->log) > ring / 2 ? log_end(&server->log) - ring / 4 : 0;
	size_t budget = ring / 16, n, i;
	struct holder *all = holders(server, old, &n);

	for (i = 0; i < n; i++) {
		if (budget && !server->stopping) {
			size_t size = move(server, &all[i], old);

			budget -= size < budget ? size : budget;
		}
		free(all[i].variable);
	}
	free(all);
}

void server_checkpoint(struct server *server, bool forced)
{
	struct bytes payload = { 0 }, history = { 0 };
	unsigned int member;
	uint64_t lsn, tail;

	if (forced)
		force(server);
	tail = server_oldest(server);
	/* It is not what the last of the room is for, unless it makes some */
	if (server->stopping || (!has_room(server, 0) && tail == server->oldest))
		return;
	server->oldest = tail;
	for (member = 0; member < MEMBERS_MAX; member++) {
		if (member != server->config.self)
			history_prune(&server->histories[member], server->log.tail);
		put_history(&history, &server->histories[member], 0);
		put_blob(&payload, history.data, history.len);
		history.len = 0;
	}
	lsn = log_append(&server->log, R_SERVER, &payload);
	server->worked = 0;
	bytes_free(&payload);
	bytes_free(&history);
	log_flush(&server->log, lsn);
	log_anchor(&server->log, lsn, tail);
}
