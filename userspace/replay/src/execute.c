// SPDX-License-Identifier: LGPL-2.1-or-later
/* Methods, run for the first time and again (paper, 4.1) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define ROOM_PATIENCE	60000000000ull

static void run_method(struct server *server, struct session *s, const char *name, uint32_t version, uint64_t sequence,
		       const struct bytes *body)
{
	const struct method *method = find_method(server, name, version);
	struct bytes reply = { 0 };
	struct replay_call call = { .server = server, .session = s, .method = method, .reply = &reply };
	int32_t status;

	if (!method) {
		session_stick(server, s, "method %s, version %u, is not here any more: a request of this session was begun with it",
			      name, version);
		return;
	}
	s->method = method->name;
	s->request_logged = 0;
	server->held += s->logged;
	DL_PREPEND2(server->held_by, s, held_prev, held_next);
	server->reserved += server->reserve;
	server->env->unlock(server->env);
	status = method->run(&call, body, &reply);
	server->env->lock(server->env);
	server->reserved -= server->reserve;
	DL_DELETE2(server->held_by, s, held_prev, held_next);
	server->held -= s->logged;
	s->method = NULL;
	if (!s->orphan && !s->stuck && !server->stopping) {
		s->expected = sequence + 1;
		s->replied = true;
		s->asked = request_sum(name, body);
		s->status = status;
		bytes_free(&s->reply);
		s->reply = reply;
		return;
	}
	bytes_free(&reply);
}

void execute(struct server *server, struct session *s, const struct message *m)
{
	const struct method *method = find_method(server, m->method, 0);
	struct bytes payload = { 0 };

	put_u64(&payload, s->key);
	put_u64(&payload, m->sequence);
	put_u32(&payload, method->version);
	put_text(&payload, m->method);
	put_blob(&payload, m->body.data, m->body.len);
	put_vector(&payload, &m->depends);
	session_append(server, s, R_REQUEST, &payload);
	bytes_free(&payload);
	vector_merge(&s->depends, &m->depends);
	server->requests++;
	run_method(server, s, m->method, method->version, m->sequence, &m->body);
}

/* Replay */

/* The session's records from the stream's @index on are not its records any more */
static void skip(struct server *server, struct session *s, size_t index)
{
	uint64_t orphan = position_get(server, s, index);
	struct bytes payload = { 0 };

	put_u64(&payload, s->key);
	put_u64(&payload, orphan);
	s->lsn = log_append(&server->log, R_SKIP, &payload);
	bytes_free(&payload);
	position_truncate(server, s, index);
	s->replaying = false;
	server->rollbacks++;
}

void session_lost(struct server *server, struct session *s)
{
	struct bytes payload = { 0 };

	put_u64(&payload, s->key);
	log_append(&server->log, R_END, &payload);
	bytes_free(&payload);
	s->ended = true;
	room_again(server);
}

/* As it was at the last checkpoint, or when it began. False: it never was. */
static bool load(struct server *server, struct session *s)
{
	struct bytes payload = { 0 };
	struct cursor c;
	bool good = true;
	uint8_t type;

	session_reset(s);
	s->logged = 0;
	log_read(&server->log, s->base, &type, &payload);
	c = cursor(payload.data, payload.len);
	if (type == R_START) {
		session_identity_get(server, &c, s);
		get_vector(&c, &s->depends);
		good = judge_asking(server, &s->depends) == ALIVE;
	} else {
		get_u64(&c);
		session_state_get(server, &c, s);
	}
	bytes_free(&payload);
	return good;
}

static void replay_request(struct server *server, struct session *s, struct cursor *c)
{
	uint64_t sequence = get_u64(c);
	uint32_t version = get_u32(c);
	char *method = get_text(c);
	struct vector depends = { 0 };
	struct bytes body = { 0 };

	get_bytes(c, &body);
	get_vector(c, &depends);
	if (judge_asking(server, &depends) == ORPHAN) {
		if (!server->stopping)
			skip(server, s, s->cursor);
	} else if (!s->orphan) {
		vector_merge(&s->depends, &depends);
		s->cursor++;
		server->replayed++;
		run_method(server, s, method, version, sequence, &body);
	}
	vector_free(&depends);
	bytes_free(&body);
	free(method);
}

static void recovered(struct server *server)
{
	unsigned int stuck = count_stuck(server);
	char why[128];

	server->worked += log_used(&server->log);
	if (stuck)
		snprintf(why, sizeof(why), "%u of them are stuck: `replayctl sessions` says why", stuck);
	report(server, "start", "replayed", HASH_COUNT(server->sessions), server->replayed, stuck ? why : "all are where they were");
}

void session_recover(struct server *server, struct session *s)
{
	struct bytes payload = { 0 };
	bool first = !s->live;

	s->live = true;
	s->orphan = false;
	if (!load(server, s)) {
		if (!server->stopping)
			session_lost(server, s);
		goto out;
	}
	s->cursor = 0;
	s->replaying = true;
	while (s->replaying && !s->orphan && !s->stuck && !server->stopping && s->cursor < position_count(s)) {
		uint64_t lsn = position_get(server, s, s->cursor);
		struct cursor c;
		uint8_t type;

		log_read(&server->log, lsn, &type, &payload);
		c = cursor(payload.data, payload.len);
		get_u64(&c);
		s->lsn = lsn;
		s->logged += payload.len + RECORD_HEADER;
		if (type == R_REQUEST)
			replay_request(server, s, &c);
		else
			session_stick(server, s, "a request has less to do than the first time: record %u at %#llx is left over",
				      type, (unsigned long long)lsn);
	}
	s->replaying = false;
out:
	bytes_free(&payload);
	if (first && !--server->recovering)
		recovered(server);
}

int call_enter(struct replay_call *call)
{
	struct session *s = call->session;

	if (!s->orphan && !s->stuck && !call->server->stopping && s->request_logged > call->server->config.request_log)
		session_stick(call->server, s, "method %s: a request may log %llu bytes at most: raise request_log, and start the server again", s->method,
			      (unsigned long long)call->server->config.request_log);
	return s->orphan || s->stuck || call->server->stopping ? -ECANCELED : 0;
}

/* What those that run have logged is moved on all at once. The one that began first goes on, so that others come to it. */
static bool has_to_wait(const struct server *server, const struct session *s)
{
	return log_used(&server->log) > server->log.ring / 16 * 13 ||
	       (server->held > server->log.ring / 4 && server->held_by->held_prev != s);
}

int call_room(struct replay_call *call)
{
	struct server *server = call->server;
	uint64_t until = server->env->clock(server->env) + ROOM_PATIENCE;
	int err;

	while (!(err = call_enter(call)) && has_to_wait(server, call->session)) {
		no_room(server, REQUESTS, "methods wait: the log has no room for what they log; make it larger, or see replayctl sessions for who holds it");
		if (server->env->clock(server->env) >= until)
			session_stick(server, call->session, "method %s: the log has had no room for what it logs", call->session->method);
		thread_blocked(server, true);
		nap(server, ROOM_PATIENCE / 3000);
		thread_blocked(server, false);
	}
	return err;
}

bool call_replay(struct replay_call *call, enum record type, struct bytes *payload, struct cursor *c)
{
	struct server *server = call->server;
	struct session *s = call->session;
	uint8_t logged;
	uint64_t lsn;

	if (!s->replaying)
		return false;
	/* The crash was here: from now on it is the first time */
	if (s->cursor >= position_count(s)) {
		s->replaying = false;
		return false;
	}
	lsn = position_get(server, s, s->cursor);
	log_read(&server->log, lsn, &logged, payload);
	if (call_enter(call))
		return false;
	*c = cursor(payload->data, payload->len);
	get_u64(c);
	if (logged != type) {
		session_stick(server, s, "method %s asks for a record %u, and the first time it made a record %u at %#llx", s->method,
			      type, logged, (unsigned long long)lsn);
		return false;
	}
	s->cursor++;
	s->lsn = lsn;
	s->logged += payload->len + RECORD_HEADER;
	server->held += payload->len + RECORD_HEADER;
	s->request_logged += payload->len;
	return true;
}

void call_diverged(struct replay_call *call, const char *asked, const char *logged)
{
	struct session *s = call->session;

	session_stick(call->server, s, "method %s does not do what it did the first time: %s now, %s then (record at %#llx)", s->method,
		      asked, logged, (unsigned long long)s->lsn);
}

bool call_depends(struct replay_call *call, struct vector *depends)
{
	struct session *s = call->session;

	if (judge_asking(call->server, depends) == ALIVE && !call_enter(call)) {
		vector_merge(&s->depends, depends);
		return true;
	}
	if (!call_enter(call))
		skip(call->server, s, s->cursor - 1);
	return false;
}

/* What a session has for itself is not logged */

int call_get(struct replay_call *call, const char *name, struct bytes *bytes)
{
	struct value *value;
	int err;

	call->server->env->lock(call->server->env);
	err = call_enter(call);
	if (!err) {
		HASH_FIND_STR(call->session->values, name, value);
		if (value)
			bytes_set(bytes, value->bytes.data, value->bytes.len);
		else
			err = -ENOENT;
	}
	call->server->env->unlock(call->server->env);
	return err;
}

static void forget(struct session *s, struct value *value)
{
	HASH_DEL(s->values, value);
	s->values_size -= strlen(value->name) + value->bytes.len;
	free(value->name);
	bytes_free(&value->bytes);
	free(value);
}

/* @data NULL: it is removed */
int call_set(struct replay_call *call, const char *name, const void *data, size_t len)
{
	struct session *s = call->session;
	size_t old = 0, room = strlen(name);
	struct value *value;
	int err;

	if (!*name || strlen(name) > NAME_MAX_LEN)
		return -EINVAL;
	if (len > VALUE_MAX)
		return -EFBIG;
	call->server->env->lock(call->server->env);
	err = call_enter(call);
	if (!err) {
		HASH_FIND_STR(s->values, name, value);
		if (value)
			old = room + value->bytes.len;
		if (!data) {
			if (value)
				forget(s, value);
		} else if (s->values_size - old + room + len > STATE_MAX) {
			err = -ENOSPC;
		} else {
			if (!value) {
				value = must_alloc(sizeof(*value));
				value->name = strdup(name);
				HASH_ADD_KEYPTR(hh, s->values, value->name, room, value);
			}
			bytes_set(&value->bytes, data, len);
			s->values_size += room + len - old;
		}
	}
	call->server->env->unlock(call->server->env);
	return err;
}

int call_value(struct replay_call *call, enum value_kind kind, void *value, size_t len)
{
	struct server *server = call->server;
	struct bytes payload = { 0 };
	struct cursor c;
	uint64_t now;
	int err;

	server->env->lock(server->env);
	if (call_replay(call, R_VALUE, &payload, &c)) {
		uint8_t logged = get_u8(&c);
		size_t size;
		const void *data = get_blob(&c, &size);

		if (logged != kind || size != len)
			call_diverged(call, kind == V_TIME ? "it asks for the time" : "it asks for random bytes",
				      logged == V_TIME ? "for the time" : "for random bytes of that number, or another");
		else
			memcpy(value, data, len);
		err = call_enter(call);
	} else {
		err = call_room(call);
		if (!err) {
			now = server->env->time(server->env);
			if (kind == V_TIME)
				memcpy(value, &now, len);
			else
				server->env->random(server->env, value, len);
			put_u64(&payload, call->session->key);
			put_u8(&payload, kind);
			put_blob(&payload, value, len);
			session_append(server, call->session, R_VALUE, &payload);
		}
	}
	server->env->unlock(server->env);
	bytes_free(&payload);
	return err;
}
