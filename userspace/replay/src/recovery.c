// SPDX-License-Identifier: LGPL-2.1-or-later
/* After a crash: one scan of the log, from the oldest checkpoint to the end (paper, 4.3) */
#include <stdlib.h>
#include <string.h>

#include "core.h"

static void scan_variable(struct server *server, uint64_t lsn, uint8_t type, struct cursor c)
{
	char *name = get_text(&c);
	struct variable *v = variable_get(server, name);
	size_t len;

	if (type == R_UPDATE) {
		get_u8(&c);
		get_blob(&c, &len);
	}
	v->present = get_u8(&c);
	get_bytes(&c, &v->value);
	vector_free(&v->depends);
	if (type != R_VARIABLE)
		get_vector(&c, &v->depends);
	v->lsn = lsn;
	v->writes++;
	if (!v->depends.n || !v->base) {
		v->base = lsn;
		v->writes = v->age = 0;
	}
	free(name);
	if (type == R_VARIABLE && !v->present)
		variable_free(server, v);
}

/* Its records, once more: as if the session had begun here */
static void scan_carry(struct server *server, struct session *s, uint64_t lsn, struct cursor c)
{
	const uint8_t *start = c.at;
	bool base = true;

	s->hold = lsn;
	positions_clear(s);
	while (c.at < c.end && !c.bad) {
		/* Behind the carrying record's header and key */
		uint64_t place = lsn + RECORD_HEADER + 8 + (c.at - start);
		uint32_t len = get_u32(&c);
		uint8_t type;

		get_u32(&c);
		type = get_u8(&c);
		if (base) {
			struct cursor state = cursor(c.at, len);

			if (type == R_CHECKPOINT)
				get_u64(&state);
			session_identity_get(server, &state, s);
			s->base = place;
		} else {
			position_add(s, place);
		}
		base = false;
		c.at += len;
	}
}

static void scan_skip(struct session *s, uint64_t orphan)
{
	struct positions *p = &s->positions;

	while (p->nr_buffer && p->buffer[p->nr_buffer - 1] >= orphan)
		p->nr_buffer--;
}

static void scan_histories(struct server *server, uint64_t lsn, struct cursor c)
{
	unsigned int member;

	for (member = 0; member < MEMBERS_MAX && !c.bad; member++) {
		size_t len;
		const void *data = get_blob(&c, &len);
		struct cursor history = cursor(data, len);

		get_history(&history, &server->histories[member], lsn);
	}
}

/* Or who crashes often enough would never have a checkpoint forced */
static void grow_older(struct server *server)
{
	struct variable *v;
	struct session *s;

	for (s = server->sessions; s; s = s->hh.next)
		s->age++;
	for (v = server->variables; v; v = v->hh.next)
		v->age++;
}

static void scan_record(void *arg, uint64_t lsn, uint8_t type, struct cursor c)
{
	struct server *server = arg;
	struct session *s = NULL;
	uint64_t key = lsn;

	if (type != R_START && type != R_VARIABLE && type != R_LEARNED && type != R_SERVER) {
		key = get_u64(&c);
		HASH_FIND(hh, server->sessions, &key, sizeof(key), s);
	}
	switch (type) {
	case R_START:
	case R_CHECKPOINT:
		if (!s)
			s = session_new(server, key);
		session_identity_get(server, &c, s);
		s->base = s->hold = lsn;
		s->age = 0;
		positions_clear(s);
		break;
	case R_CARRY:
		if (!s)
			s = session_new(server, key);
		scan_carry(server, s, lsn, c);
		break;
	case R_REQUEST:
	case R_READ:
	case R_WRITE:
	case R_UPDATE:
	case R_VALUE:
	case R_REPLY:
		/* Of a session that is not known, a checkpoint is still to come */
		if (s)
			position_add(s, lsn);
		if (type == R_WRITE || type == R_UPDATE)
			scan_variable(server, lsn, type, c);
		break;
	case R_SKIP:
		if (s)
			scan_skip(s, get_u64(&c));
		break;
	case R_END:
		if (s)
			session_free(server, s);
		return;
	case R_VARIABLE:
		scan_variable(server, lsn, type, c);
		break;
	case R_LEARNED:
		key = get_u16(&c) % MEMBERS_MAX;
		get_history(&c, &server->histories[key], lsn);
		break;
	case R_SERVER:
		scan_histories(server, lsn, c);
		grow_older(server);
		break;
	}
	if (s)
		s->lsn = lsn;
	if (s && !s->idle)
		session_used(server, s);
}

int server_scan(struct server *server)
{
	int err = log_scan(&server->log, scan_record, server);
	struct session *s;

	for (s = server->sessions; s; s = s->hh.next)
		s->positions.scanned = s->positions.nr_buffer;
	return err;
}
