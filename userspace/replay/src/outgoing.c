// SPDX-License-Identifier: LGPL-2.1-or-later
/* Requests of a session to other servers (paper, 2.1: its outgoing sessions) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define RETRY_NS	(20 * 1000000ull)
#define RETRY_MAX_NS	(2000 * 1000000ull)

static const struct peer *find_peer(const struct server *server, const char *name)
{
	unsigned int i;

	for (i = 0; i < server->config.nr_peers; i++)
		if (!strcmp(server->config.peers[i].name, name))
			return &server->config.peers[i];
	return NULL;
}

/*
 * The same message again and again, until its reply is here and is no orphan. Each time what leaves the domain depends on
 * nothing that can be lost, and what stays in it says what it depends on.
 */
static int exchange(struct replay_call *call, const struct peer *peer, struct message *m, struct reply *reply)
{
	struct server *server = call->server;
	struct session *s = call->session;
	uint64_t delay = RETRY_NS, until = peer->timeout ? server->env->clock(server->env) + peer->timeout : UINT64_MAX, now;
	struct exchange x;
	int err;

	for (;;) {
		bool inside = peer->member != OUTSIDE;

		m->from = inside ? server->config.self : OUTSIDE;
		err = inside ? 0 : session_flush(server, s);
		if (err || call_enter(call))
			return -ECANCELED;
		vector_free(&m->depends);
		if (inside) {
			vector_copy(&m->depends, &s->depends);
			vector_add(&m->depends, (struct state){ .member = server->config.self, .epoch = server->log.ended.epoch,
								.lsn = s->lsn });
		}
		now = server->env->clock(server->env);
		if (now >= until) {
			*reply = (struct reply){ .answer = A_TIMEOUT };
			return 0;
		}
		x = (struct exchange){ .peer = peer, .message = m, .patience = peer->timeout ? until - now : 0 };
		thread_blocked(server, true);
		server->env->unlock(server->env);
		server->env->exchange(server->env, &x, 1);
		server->env->lock(server->env);
		if (!x.error) {
			learn_endings(server, &x.reply.endings);
			if (!inside)
				vector_free(&x.reply.depends);
		}
		if (!x.error && x.reply.answer != A_RETRY && judge_asking(server, &x.reply.depends) == ALIVE) {
			thread_blocked(server, false);
			if (call_enter(call)) {
				reply_free(&x.reply);
				return -ECANCELED;
			}
			*reply = x.reply;
			return 0;
		}
		reply_free(&x.reply);
		now = server->env->clock(server->env);
		if (now < until && !call_enter(call))
			nap(server, delay < until - now ? delay : until - now);
		thread_blocked(server, false);
		if (call_enter(call))
			return -ECANCELED;
		if (delay < RETRY_MAX_NS)
			delay *= 2;
	}
}

static struct outgoing *outgoing_find(const struct session *s, const struct peer *peer)
{
	struct outgoing *o;

	LL_FOREACH(s->outgoing, o)
		if (o->peer == peer)
			return o;
	return NULL;
}

/* What is asked is in the record, too: by its checksum, a body may be large */
static uint32_t asked(const struct message *m, const struct peer *peer)
{
	uint32_t sum = crc32c(m->kind, peer->name, strlen(peer->name));

	if (m->method)
		sum = crc32c(sum, m->method, strlen(m->method));
	return crc32c(sum, m->body.data, m->body.len);
}

static void describe(char *out, size_t size, const struct message *m, const struct peer *peer, uint32_t sum)
{
	snprintf(out, size, "%s of %s (%zu bytes, checksum %08x)", m->method ? m->method : "a session", peer->name, m->body.len, sum);
}

/* One exchange, from the log if it has been made before */
static int ask(struct replay_call *call, const struct peer *peer, struct message *m, struct reply *reply)
{
	struct server *server = call->server;
	struct session *s = call->session;
	struct bytes payload = { 0 };
	uint32_t sum = asked(m, peer);
	char what[400];
	struct cursor c;
	int err = 0;

	describe(what, sizeof(what), m, peer, sum);
	if (call_replay(call, R_REPLY, &payload, &c)) {
		uint32_t logged = get_u32(&c);
		char *then = get_text(&c);

		if (logged != sum)
			call_diverged(call, what, then);
		free(then);
		reply->answer = get_u8(&c);
		reply->status = get_u32(&c);
		reply->sequence = get_u64(&c);
		get_bytes(&c, &reply->body);
		get_vector(&c, &reply->depends);
		if (logged == sum && call_depends(call, &reply->depends))
			goto out;
		reply_free(reply);
		*reply = (struct reply){ 0 };
	}
	err = call_room(call);
	if (err)
		goto out;
	err = exchange(call, peer, m, reply);
	if (err)
		goto out;
	payload.len = 0;
	put_u64(&payload, s->key);
	put_u32(&payload, sum);
	put_text(&payload, what);
	put_u8(&payload, reply->answer);
	put_u32(&payload, reply->status);
	put_u64(&payload, reply->sequence);
	put_blob(&payload, reply->body.data, reply->body.len);
	put_vector(&payload, &reply->depends);
	session_append(server, s, R_REPLY, &payload);
	vector_merge(&s->depends, &reply->depends);
out:
	bytes_free(&payload);
	vector_free(&m->depends);
	return err ? err : call_enter(call);
}

static int to_errno(enum answer answer)
{
	switch (answer) {
	case A_OK:
		return 0;
	case A_GONE:
		return -ESTALE;
	case A_STUCK:
		return -EREMOTEIO;
	case A_REFUSED:
		return -EPROTO;
	case A_TIMEOUT:
		return -ETIMEDOUT;
	case A_LARGE:
		return -EFBIG;
	default:
		return -EBADMSG;
	}
}

int call_method(struct replay_call *call, const char *name, const char *method, const void *body, size_t len,
		int32_t *status, struct bytes *result)
{
	const struct peer *peer = find_peer(call->server, name);
	struct session *s = call->session;
	struct reply reply = { 0 };
	struct message m = { 0 };
	struct outgoing *o;
	int err;

	if (!peer)
		return -EHOSTUNREACH;
	if (len > VALUE_MAX)
		return -EFBIG;
	call->server->env->lock(call->server->env);
	o = outgoing_find(s, peer);
	err = call_enter(call);
	if (!err && !o) {
		m.kind = M_START;
		err = ask(call, peer, &m, &reply);
		if (!err)
			err = to_errno(reply.answer);
		if (!err) {
			o = must_alloc(sizeof(*o));
			o->peer = peer;
			o->session = strndup((char *)reply.body.data, reply.body.len);
			o->sequence = reply.sequence;
			LL_APPEND(s->outgoing, o);
		}
		reply_free(&reply);
		reply = (struct reply){ 0 };
	}
	if (!err) {
		m = (struct message){ .kind = M_CALL, .session = o->session, .sequence = o->sequence, .method = method,
				      .body = { .data = (uint8_t *)body, .len = len } };
		err = ask(call, peer, &m, &reply);
	}
	if (!err) {
		err = to_errno(reply.answer);
		*status = reply.status;
		bytes_set(result, reply.body.data, reply.body.len);
		o->sequence++;
		/* It does not go on: the next request begins another */
		if (err == -ESTALE || err == -EREMOTEIO || err == -EBADMSG || err == -ETIMEDOUT) {
			LL_DELETE(s->outgoing, o);
			free(o->session);
			free(o);
		}
	}
	reply_free(&reply);
	call->server->env->unlock(call->server->env);
	return err;
}
