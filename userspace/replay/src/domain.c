// SPDX-License-Identifier: LGPL-2.1-or-later
/* The other servers of the domain: what they have lost, and what they have to flush (paper, 3.1 and 4) */
#include <stdio.h>
#include <stdlib.h>

#include "core.h"

#define RETRY_NS	(20 * 1000000ull)
#define TOLD_EPOCHS	8	/* with a refusal; who needs more asks */

const struct peer *find_member(const struct server *server, uint16_t member)
{
	unsigned int i;

	for (i = 0; i < server->config.nr_peers; i++)
		if (server->config.peers[i].member == member)
			return &server->config.peers[i];
	return NULL;
}

static enum verdict judge_state(const struct server *server, const struct state *state)
{
	enum verdict verdict = history_judge(&server->histories[state->member], state);

	if (state->member == server->config.self) {
		/* What we have written in this epoch goes before all that we write now. No future of ours can be known. */
		if (verdict == ALIVE)
			return DURABLE;
		return verdict == UNKNOWN ? ORPHAN : verdict;
	}
	/* One that is in the domain no more can be asked for nothing: what it has not told to be durable is lost */
	if (verdict != DURABLE && !find_member(server, state->member))
		return ORPHAN;
	return verdict;
}

enum verdict judge(struct server *server, struct vector *v, struct state *unknown)
{
	enum verdict all = ALIVE;
	unsigned int i = 0;

	while (i < v->n) {
		enum verdict verdict = judge_state(server, &v->states[i]);

		if (verdict == ORPHAN)
			return ORPHAN;
		if (verdict == DURABLE) {
			vector_remove(v, i);
			continue;
		}
		if (verdict == UNKNOWN) {
			all = UNKNOWN;
			*unknown = v->states[i];
		}
		i++;
	}
	return all;
}

static void ask(struct server *server, const struct state *about)
{
	struct message message = {
		.kind = M_HISTORY,
		.from = server->config.self,
		.state = *about,
	};
	struct exchange x = { .peer = find_member(server, about->member), .message = &message };

	thread_blocked(server, true);
	server->env->unlock(server->env);
	server->env->exchange(server->env, &x, 1);
	server->env->lock(server->env);
	if (!x.error)
		learn_endings(server, &x.reply.endings);
	if (x.error || x.reply.answer != A_OK)
		nap(server, RETRY_NS);
	thread_blocked(server, false);
	reply_free(&x.reply);
}

enum verdict judge_asking(struct server *server, struct vector *v)
{
	struct state unknown;
	enum verdict verdict;

	while ((verdict = judge(server, v, &unknown)) == UNKNOWN && !server->stopping)
		ask(server, &unknown);
	return verdict == UNKNOWN ? ORPHAN : verdict;
}

bool learn(struct server *server, uint16_t member, struct cursor history)
{
	struct bytes payload = { 0 };
	struct session *s, *next;
	struct state unknown;
	uint64_t orphans = 0;
	char why[128];
	bool new;

	put_u16(&payload, member);
	bytes_add(&payload, history.at, history.end - history.at);
	new = member < MEMBERS_MAX && member != server->config.self &&
	      get_history(&history, &server->histories[member], log_end(&server->log));
	if (new) {
		server->learned[member] = log_append(&server->log, R_LEARNED, &payload);
		server->worked += server->log.sector;
		HASH_ITER(hh, server->sessions, s, next) {
			if (s->orphan || !s->live || judge(server, &s->depends, &unknown) != ORPHAN)
				continue;
			s->orphan = true;
			orphans++;
			session_queue(server, s);
		}
	}
	server->orphans += orphans;
	if (orphans) {
		const struct peer *peer = find_member(server, member);

		snprintf(why, sizeof(why), "they depended on what %s has lost", peer ? peer->name : "another server");
		report(server, "orphan", "rolled-back", orphans, 0, why);
	}
	bytes_free(&payload);
	return new;
}

void learn_endings(struct server *server, const struct bytes *endings)
{
	struct cursor c = cursor(endings->data, endings->len);

	while (c.at < c.end && !c.bad) {
		uint16_t member = get_u16(&c);
		size_t len;
		const void *history = get_blob(&c, &len);

		if (!c.bad)
			learn(server, member, cursor(history, len));
	}
}

void put_endings(struct server *server, struct bytes *endings, uint16_t member, uint32_t from)
{
	const struct history *h = &server->histories[member];
	struct bytes history = { 0 };

	if (!from && h->n > TOLD_EPOCHS)
		from = h->endings[h->n - TOLD_EPOCHS].first;
	put_history(&history, h, from);
	put_u16(endings, member);
	put_blob(endings, history.data, history.len);
	bytes_free(&history);
}

int flush_others(struct server *server, struct vector *v, const struct session *session, bool once)
{
	struct message messages[MEMBERS_MAX];
	struct exchange legs[MEMBERS_MAX];
	unsigned int i, n;

	for (;;) {
		if (judge_asking(server, v) == ORPHAN || (session && session->orphan) || server->stopping)
			return -ECANCELED;
		if (!v->n)
			return 0;
		n = v->n;
		for (i = 0; i < n; i++) {
			messages[i] = (struct message){ .kind = M_FLUSH, .from = server->config.self, .state = v->states[i] };
			legs[i] = (struct exchange){ .peer = find_member(server, v->states[i].member), .message = &messages[i] };
		}
		thread_blocked(server, true);
		server->env->unlock(server->env);
		server->env->exchange(server->env, legs, n);
		server->env->lock(server->env);
		for (i = 0; i < n; i++) {
			const struct state *flushed = &messages[i].state;
			const struct state *now = vector_find(v, flushed->member);

			if (!legs[i].error) {
				learn_endings(server, &legs[i].reply.endings);
				if (legs[i].reply.answer == A_OK && now)
					vector_remove(v, now - v->states);
			}
			reply_free(&legs[i].reply);
		}
		/* Who is away, or refuses, or has lost it without saying so, is asked again in a while */
		if (v->n == n && !once)
			nap(server, RETRY_NS);
		thread_blocked(server, false);
		if (v->n == n && once)
			return -EAGAIN;
	}
}

/* After a recovery every member has to know where our last epoch ended: until each has it in its log. */
void announce(struct server *server)
{
	struct history *own = &server->histories[server->config.self];
	struct message message = { .kind = M_RECOVERED, .from = server->config.self };
	struct exchange legs[MEMBERS_MAX];
	unsigned int i, n = 0;

	for (i = 0; i < server->config.nr_peers; i++) {
		const struct peer *peer = &server->config.peers[i];

		if (peer->member != OUTSIDE && server->told[peer->member] != own->epoch)
			legs[n++] = (struct exchange){ .peer = peer, .message = &message };
	}
	if (!n)
		return;
	put_history(&message.body, own, 0);
	server->env->unlock(server->env);
	server->env->exchange(server->env, legs, n);
	server->env->lock(server->env);
	for (i = 0; i < n; i++) {
		if (!legs[i].error && legs[i].reply.answer == A_OK)
			server->told[legs[i].peer->member] = own->epoch;
		reply_free(&legs[i].reply);
	}
	bytes_free(&message.body);
}
