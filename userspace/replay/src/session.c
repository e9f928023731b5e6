// SPDX-License-Identifier: LGPL-2.1-or-later
/* Sessions: what comes in, what goes out, and whose turn it is (paper, 3.1 and 3.2) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

void reply_free(struct reply *reply)
{
	bytes_free(&reply->body);
	bytes_free(&reply->endings);
	vector_free(&reply->depends);
}

void message_free(struct message *m)
{
	free((char *)m->session);
	free((char *)m->key);
	free((char *)m->method);
	bytes_free(&m->body);
	vector_free(&m->depends);
	free(m);
}

struct message *message_copy(const struct message *m)
{
	struct message *copy = must_alloc(sizeof(*copy));

	*copy = *m;
	copy->session = m->session ? strdup(m->session) : NULL;
	copy->key = m->key ? strdup(m->key) : NULL;
	copy->method = m->method ? strdup(m->method) : NULL;
	copy->body = (struct bytes){ 0 };
	bytes_set(&copy->body, m->body.data, m->body.len);
	copy->depends = (struct vector){ 0 };
	vector_copy(&copy->depends, &m->depends);
	return copy;
}

/* The table */

struct session *session_new(struct server *server, uint64_t key)
{
	struct session *s = must_alloc(sizeof(*s));

	s->key = s->lsn = s->base = s->hold = key;
	HASH_ADD(hh, server->sessions, key, sizeof(s->key), s);
	return s;
}

void session_used(struct server *server, struct session *s)
{
	if (s->idle)
		DL_DELETE2(*s->idle, s, idle_prev, idle_next);
	s->idle = &server->idle[!s->name];
	s->used = server->env->clock(server->env);
	DL_APPEND2(*s->idle, s, idle_prev, idle_next);
}

/* What replay makes again */
void session_reset(struct session *s)
{
	struct value *value, *next_value;
	struct outgoing *o, *next;

	HASH_ITER(hh, s->values, value, next_value) {
		HASH_DEL(s->values, value);
		free(value->name);
		bytes_free(&value->bytes);
		free(value);
	}
	LL_FOREACH_SAFE(s->outgoing, o, next) {
		free(o->session);
		free(o);
	}
	s->outgoing = NULL;
	s->values_size = 0;
	s->expected = 1;
	s->replied = false;
	s->asked = 0;
	s->status = 0;
	bytes_free(&s->reply);
	vector_free(&s->depends);
}

void session_free(struct server *server, struct session *s)
{
	session_reset(s);
	HASH_DEL(server->sessions, s);
	if (s->idle)
		DL_DELETE2(*s->idle, s, idle_prev, idle_next);
	if (s->name)
		HASH_DELETE(named, server->named, s);
	free(s->name);
	positions_clear(s);
	free(s->positions.buffer);
	free(s->positions.segment);
	free(s->stuck);
	free(s);
}

void session_put(struct server *server, struct session *s)
{
	if (s->ended && !s->busy && !s->queued && !s->committing && !s->carried)
		session_free(server, s);
}

void session_name(const struct session *s, char name[SESSION_NAME_LEN + 1])
{
	unsigned int i;

	name += sprintf(name, "%016llx-", (unsigned long long)s->key);
	for (i = 0; i < TOKEN_SIZE; i++)
		name += sprintf(name, "%02x", s->token[i]);
}

void session_identity_put(struct bytes *b, const struct session *s)
{
	bytes_add(b, s->token, sizeof(s->token));
	put_u16(b, s->client);
	put_text(b, s->name ? s->name : "");
}

void session_identity_get(struct server *server, struct cursor *c, struct session *s)
{
	char *name;
	size_t i;

	for (i = 0; i < sizeof(s->token); i++)
		s->token[i] = get_u8(c);
	s->client = get_u16(c);
	name = get_text(c);
	if (*name && !s->name && !session_find_named(server, s->client, name)) {
		s->name = name;
		HASH_ADD_KEYPTR(named, server->named, s->name, strlen(s->name), s);
	} else {
		free(name);
	}
}

struct session *session_find_named(struct server *server, uint16_t client, const char *name)
{
	struct session *s;

	HASH_FIND(named, server->named, name, strlen(name), s);
	return s && s->client == client && !s->ended ? s : NULL;
}

uint32_t request_sum(const char *method, const struct bytes *body)
{
	return crc32c(crc32c(0, method, strlen(method)), body->data, body->len);
}

/* The token keeps sessions from those who guess, and from those of an epoch whose end was lost */
struct session *session_find(struct server *server, const char *name)
{
	char right[SESSION_NAME_LEN + 1];
	struct session *s;
	uint64_t key;
	char *end;

	if (!name || strlen(name) != SESSION_NAME_LEN)
		return NULL;
	key = strtoull(name, &end, 16);
	HASH_FIND(hh, server->sessions, &key, sizeof(key), s);
	if (!s || s->ended)
		return NULL;
	session_name(s, right);
	return strcmp(name, right) ? NULL : s;
}

/* Position streams */

size_t position_count(const struct session *s)
{
	return s->positions.nr_spilled * POSITION_BUFFER + s->positions.nr_buffer;
}

void position_add(struct session *s, uint64_t lsn)
{
	struct positions *p = &s->positions;

	if (p->nr_buffer == p->room) {
		p->room = p->room ? p->room * 2 : 16;
		p->buffer = must_resize(p->buffer, p->room * sizeof(*p->buffer));
	}
	p->buffer[p->nr_buffer++] = lsn;
}

void position_push(struct server *server, struct session *s, uint64_t lsn)
{
	struct positions *p = &s->positions;
	struct bytes payload = { 0 };
	unsigned int i;

	position_add(s, lsn);
	/* Or each crash would have the log grow by all streams */
	while (p->nr_buffer > POSITION_BUFFER + p->scanned) {
		put_u64(&payload, s->key);
		for (i = 0; i < POSITION_BUFFER; i++)
			put_u64(&payload, p->buffer[i]);
		p->spilled = must_resize(p->spilled, (p->nr_spilled + 1) * sizeof(*p->spilled));
		p->spilled[p->nr_spilled++] = log_append(&server->log, R_POSITIONS, &payload);
		payload.len = 0;
		p->nr_buffer -= POSITION_BUFFER;
		memmove(p->buffer, p->buffer + POSITION_BUFFER, p->nr_buffer * sizeof(*p->buffer));
	}
	bytes_free(&payload);
}

static void segment_read(struct server *server, struct session *s, size_t nr, uint64_t *segment)
{
	struct bytes payload = { 0 };
	unsigned int i;
	struct cursor c;
	uint8_t type;

	log_read(&server->log, s->positions.spilled[nr], &type, &payload);
	c = cursor(payload.data, payload.len);
	get_u64(&c);
	for (i = 0; i < POSITION_BUFFER; i++)
		segment[i] = get_u64(&c);
	bytes_free(&payload);
}

uint64_t position_get(struct server *server, struct session *s, size_t index)
{
	struct positions *p = &s->positions;
	size_t nr = index / POSITION_BUFFER;

	/* Its records may be carried on while a part is read: then the stream is another one */
	while (nr < p->nr_spilled && (!p->segment || p->nr_segment != nr)) {
		uint64_t *segment = must_alloc(POSITION_BUFFER * sizeof(*segment));
		unsigned int cuts = s->cuts;

		segment_read(server, s, nr, segment);
		if (cuts != s->cuts) {
			free(segment);
			continue;
		}
		free(p->segment);
		p->segment = segment;
		p->nr_segment = nr;
	}
	if (nr >= p->nr_spilled)
		return p->buffer[index - p->nr_spilled * POSITION_BUFFER];
	return p->segment[index % POSITION_BUFFER];
}

void position_truncate(struct server *server, struct session *s, size_t count)
{
	struct positions *p = &s->positions;
	uint64_t *segment = NULL;

	/* What is read is of the stream as it is then: it may be carried on meanwhile */
	while (count < p->nr_spilled * POSITION_BUFFER) {
		unsigned int cuts = s->cuts;

		segment = must_resize(segment, POSITION_BUFFER * sizeof(*segment));
		segment_read(server, s, count / POSITION_BUFFER, segment);
		if (cuts != s->cuts)
			continue;
		free(p->buffer);
		p->buffer = segment;
		p->room = POSITION_BUFFER;
		p->nr_spilled = count / POSITION_BUFFER;
		free(p->segment);
		p->segment = NULL;
		segment = NULL;
		break;
	}
	free(segment);
	s->cuts++;
	p->nr_buffer = count - p->nr_spilled * POSITION_BUFFER;
}

uint64_t *positions_copy(struct server *server, struct session *s, size_t *count)
{
	uint64_t *all = NULL;
	unsigned int cuts;
	size_t nr, done;

	/* It may grow, or be cut, while a part is read */
	do {
		cuts = s->cuts;
		for (done = 0; done < s->positions.nr_spilled && cuts == s->cuts; done++) {
			all = must_resize(all, (done + 1) * POSITION_BUFFER * sizeof(*all));
			segment_read(server, s, done, all + done * POSITION_BUFFER);
		}
	} while (cuts != s->cuts);
	nr = s->positions.nr_buffer;
	*count = done * POSITION_BUFFER + nr;
	all = must_resize(all, *count * sizeof(*all));
	if (nr)
		memcpy(all + done * POSITION_BUFFER, s->positions.buffer, nr * sizeof(*all));
	return all;
}

void positions_clear(struct session *s)
{
	s->cuts++;
	free(s->positions.spilled);
	free(s->positions.segment);
	s->positions.spilled = s->positions.segment = NULL;
	s->positions.nr_spilled = s->positions.nr_buffer = s->positions.scanned = 0;
}

uint64_t session_append(struct server *server, struct session *s, enum record type, const struct bytes *payload)
{
	s->lsn = log_append(&server->log, type, payload);
	s->logged += payload->len + RECORD_HEADER;
	s->request_logged += payload->len;
	if (s->method)
		server->held += payload->len + RECORD_HEADER;
	server->worked += payload->len + RECORD_HEADER;
	position_push(server, s, s->lsn);
	return s->lsn;
}

/* Whose turn it is */

void session_queue(struct server *server, struct session *s)
{
	if (s->busy) {
		s->again = true;
	} else if (!s->queued) {
		s->queued = true;
		DL_APPEND(server->queue, s);
		server->env->wake_one(server->env, &server->queue);
	}
}

void session_receive(struct server *server, struct session *s, const struct message *message,
		     void (*done)(void *arg, struct reply *reply), void *arg)
{
	struct inbox *in = must_alloc(sizeof(*in));

	in->message = message_copy(message);
	in->done = done;
	in->arg = arg;
	DL_APPEND(s->inbox, in);
	/* Of those that are to be replayed, one that somebody waits for is first */
	if (s->queued && !s->live) {
		DL_DELETE(server->queue, s);
		DL_PREPEND(server->queue, s);
	}
	session_queue(server, s);
}

void session_stick(struct server *server, struct session *s, const char *format, ...)
{
	char why[512];
	va_list args;

	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	free(s->stuck);
	s->stuck = strdup(why);
	server->divergences++;
	report(server, "diverged", "stuck", 1, 0, s->stuck);
}

unsigned int count_stuck(const struct server *server)
{
	const struct session *s;
	unsigned int n = 0;

	for (s = server->sessions; s; s = s->hh.next)
		n += s->stuck != NULL;
	return n;
}

/* Takes the reply's parts; gives up the lock meanwhile. */
static void inbox_answer(struct server *server, struct session *s, struct inbox *in, struct reply *reply)
{
	DL_DELETE(s->inbox, in);
	server->env->unlock(server->env);
	in->done(in->arg, reply);
	message_free(in->message);
	free(in);
	server->env->lock(server->env);
}

static void refuse(struct server *server, struct session *s, struct inbox *in, enum answer answer, const char *why)
{
	struct reply reply = { .answer = answer, .sequence = s->expected };
	unsigned int i;

	if (why)
		bytes_set(&reply.body, why, strlen(why));
	/* It may be that one of us has to roll back, and does not know it */
	if (in->message->from != OUTSIDE) {
		put_endings(server, &reply.endings, server->config.self, 0);
		for (i = 0; i < in->message->depends.n; i++) {
			const struct state *state = &in->message->depends.states[i];

			if (state->member != server->config.self)
				put_endings(server, &reply.endings, state->member, state->epoch);
		}
	}
	inbox_answer(server, s, in, &reply);
}

void session_refuse(struct server *server, struct session *s)
{
	while (s->inbox)
		refuse(server, s, s->inbox, s->stuck && !s->ended ? A_STUCK : A_RETRY, s->ended ? NULL : s->stuck);
}

int session_flush(struct server *server, struct session *s)
{
	struct vector depends = { 0 };
	int err;

	log_want(&server->log, s->lsn);
	vector_copy(&depends, &s->depends);
	err = flush_others(server, &depends, s, false);
	vector_free(&depends);
	if (err)
		return err;
	/* Only who is at the session adds to it */
	vector_free(&s->depends);
	log_flush(&server->log, s->lsn);
	return s->orphan ? -ECANCELED : 0;
}

/*
 * Before a message leaves the domain, all that it depends on is durable; within the domain what it depends on goes with it
 * (paper, Figure 7). -EAGAIN: the log's writer will say when.
 */
static int prepare(struct server *server, struct session *s, const struct message *m, struct vector *depends)
{
	struct state own = { .member = server->config.self, .epoch = server->log.ended.epoch, .lsn = s->lsn };

	if (m->from != OUTSIDE) {
		vector_copy(depends, &s->depends);
		vector_add(depends, own);
		return 0;
	}
	if (s->depends.n)
		return session_flush(server, s);
	if (server->log.durable > s->lsn)
		return 0;
	if (!s->committing) {
		s->committing = true;
		DL_APPEND2(server->committing, s, commit_prev, commit_next);
	}
	log_want(&server->log, s->lsn);
	return -EAGAIN;
}

static int answer(struct server *server, struct session *s, struct inbox *in)
{
	struct reply reply = { .answer = A_OK, .sequence = in->message->sequence };
	char name[SESSION_NAME_LEN + 1];
	int err = prepare(server, s, in->message, &reply.depends);

	if (err)
		return err;
	if (in->message->kind == M_START) {
		session_name(s, name);
		bytes_set(&reply.body, name, SESSION_NAME_LEN);
		reply.sequence = s->expected;
	} else {
		reply.status = s->status;
		bytes_set(&reply.body, s->reply.data, s->reply.len);
	}
	inbox_answer(server, s, in, &reply);
	return 0;
}

static void end(struct server *server, struct session *s)
{
	struct bytes payload = { 0 };

	/* An end cannot be rolled back */
	if (session_flush(server, s))
		return;
	put_u64(&payload, s->key);
	s->lsn = log_append(&server->log, R_END, &payload);
	bytes_free(&payload);
	s->ended = true;
	room_again(server);
}

static int serve(struct server *server, struct session *s, struct inbox *in)
{
	struct message *m = in->message;
	struct state unknown;

	session_used(server, s);
	s->due_end = false;
	if (m->kind == M_START)
		return answer(server, s, in);
	if (m->sequence + 1 == s->expected && s->replied && m->kind == M_CALL) {
		if (request_sum(m->method, &m->body) == s->asked)
			return answer(server, s, in);
		refuse(server, s, in, m->from == OUTSIDE ? A_CHANGED : A_RETRY, NULL);
		return 0;
	}
	if (judge(server, &m->depends, &unknown) != ALIVE) {
		refuse(server, s, in, A_RETRY, NULL);
	} else if (m->sequence != s->expected) {
		/* Within the domain one of us may have to roll back first */
		refuse(server, s, in, m->from == OUTSIDE ? A_SEQUENCE : A_RETRY, NULL);
	} else if (m->kind == M_END) {
		end(server, s);
		/* It is told that it has ended: so it has */
		if (s->ended)
			log_flush(&server->log, s->lsn);
	} else if (log_used(&server->log) + server->reserved + m->body.len + server->reserve > server->log.ring / 4 * 3 ||
		   (server->held_by && server->held + m->body.len > server->log.ring / 4)) {
		/* The rest is for checkpoints */
		no_room(server, REQUESTS, "requests wait: the log has no room for them; make it larger, or see replayctl sessions for who holds it");
		refuse(server, s, in, A_RETRY, NULL);
	} else {
		server->waiting[REQUESTS].since = 0;
		execute(server, s, m);
	}
	return 0;
}

static bool checkpoint_due(const struct server *server, const struct session *s)
{
	/* First what has been executed is answered */
	if (s->inbox && (s->inbox->message->kind == M_START || s->inbox->message->sequence < s->expected))
		return false;
	return (s->due_checkpoint || s->logged >= server->config.session_checkpoint) && checkpoint_has_room(server, s);
}

void session_run(struct server *server, struct session *s)
{
	s->busy = true;
	s->again = false;
	while (!server->stopping) {
		if (s->due_drop && !s->ended)
			session_lost(server, s);
		if (s->ended || s->stuck) {
			struct reply gone = { .answer = A_OK };

			if (s->inbox && s->ended && s->inbox->message->kind == M_END)
				inbox_answer(server, s, s->inbox, &gone);
			else if (s->inbox)
				session_refuse(server, s);
			else
				break;
		} else if (!s->live || s->orphan) {
			session_recover(server, s);
		} else if (checkpoint_due(server, s)) {
			session_checkpoint(server, s);
		} else if (s->inbox) {
			if (serve(server, s, s->inbox) == -EAGAIN)
				break;
		} else if (s->due_end) {
			end(server, s);
		} else {
			break;
		}
	}
	s->busy = false;
	if (s->again && !s->ended && !server->stopping)
		session_queue(server, s);
	session_put(server, s);
}
