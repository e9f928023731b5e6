// SPDX-License-Identifier: LGPL-2.1-or-later
/* A server: its threads, and what comes to it */
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define SECOND	1000000000ull
#define FOREIGN_EPOCHS	1000		/* that are told to be lost, though nobody knows them */

void nap(struct server *server, uint64_t ns)
{
	uint64_t until = server->env->clock(server->env) + ns;
	int here = 0;

	while (server->env->clock(server->env) < until && !server->stopping)
		server->env->wait(server->env, &here, until);
}

const struct method *find_method(const struct server *server, const char *name, uint32_t version)
{
	const struct method *found = NULL, *m;

	for (m = server->config.methods; m < server->config.methods + server->config.nr_methods; m++)
		if (!strcmp(m->name, name) && (version ? m->version == version : !found || m->version > found->version))
			found = m;
	return found;
}

/* Threads */

static void worker(void *arg);

static void thread_start(struct server *server, void (*run)(void *arg))
{
	server->running++;
	if (server->env->thread(server->env, run, server))
		server->running--;
}

/* Who waits for another server leaves his place to another thread: two servers that call each other would wait for ever */
void thread_blocked(struct server *server, bool blocked)
{
	if (!blocked) {
		server->blocked--;
		return;
	}
	server->blocked++;
	if (server->threads - server->blocked < server->config.threads && server->threads < server->config.threads_max) {
		server->threads++;
		thread_start(server, worker);
	}
}

static void thread_end(struct server *server)
{
	server->running--;
	server->env->wake(server->env, &server->running);
	server->env->unlock(server->env);
}

static void worker(void *arg)
{
	struct server *server = arg;

	server->env->lock(server->env);
	while (!server->stopping) {
		struct session *s = server->queue;

		if (!s) {
			server->env->wait(server->env, &server->queue, 0);
			continue;
		}
		DL_DELETE(server->queue, s);
		s->queued = false;
		session_run(server, s);
	}
	thread_end(server);
}

static void writer(void *arg)
{
	struct server *server = arg;

	server->env->lock(server->env);
	log_writer(&server->log);
	thread_end(server);
}

/* Tells the others what we have lost */
static void announcer(void *arg)
{
	struct server *server = arg;
	uint64_t delay = SECOND / 50;

	server->env->lock(server->env);
	while (!server->stopping) {
		announce(server);
		nap(server, delay);
		if (delay < SECOND)
			delay *= 2;
	}
	thread_end(server);
}

/* Who is stuck stays: somebody has to look */
static void expire(struct server *server)
{
	const uint64_t ttl[2] = { server->config.key_ttl, server->config.session_ttl };
	uint64_t now = server->env->clock(server->env);
	struct session *s;
	int i;

	for (i = 0; i < 2; i++) {
		while ((s = server->idle[i]) && ttl[i] && s->used + ttl[i] <= now) {
			s->due_end |= !s->inbox;
			if (s->due_end)
				session_queue(server, s);
			/* So it is last now, and may be first again */
			session_used(server, s);
		}
	}
}

void report(struct server *server, const char *cause, const char *outcome, uint64_t sessions, uint64_t requests, const char *why)
{
	const struct verdict_record record = {
		.cause = cause, .outcome = outcome, .epoch = server->log.ended.epoch, .sessions = sessions, .requests = requests,
		.took = server->env->clock(server->env) - server->started, .why = why,
	};

	server->env->report(server->env, &record);
}

static void keeper(void *arg)
{
	struct server *server = arg;

	server->env->lock(server->env);
	while (!server->stopping) {
		const struct log *log = &server->log;
		bool half = log_used(log) > log->ring / 2, asked = server->checkpoint_asked;
		bool somebody_waits = server->waiting[REQUESTS].since || server->waiting[SESSIONS].since;
		uint64_t now = server->env->clock(server->env);

		/* Checkpoints alone are no reason for others, or there would be no end of them; some work is, or somebody who waits */
		if (asked || server->worked >= server->config.server_checkpoint || (half && server->worked >= log->ring / 64) ||
		    (half && somebody_waits && log_end(log) < server->patience && now - server->moved >= SECOND / 50)) {
			server->moved = now;
			server_checkpoint(server, true);
		} else if (half && server_oldest(server) > log->tail + log->ring / 8) {
			server_checkpoint(server, false);
		}
		if (asked) {
			server->checkpoint_asked = false;
			server->env->wake(server->env, &server->checkpoint_asked);
		}
		expire(server);
		server->env->wait(server->env, &server->keeper, server->env->clock(server->env) + SECOND / 10);
	}
	thread_end(server);
}

/* The log's writer calls it */
static void flushed(void *arg)
{
	struct server *server = arg;
	struct session *s, *next;

	DL_FOREACH_SAFE2(server->committing, s, next, commit_next) {
		if (s->lsn >= server->log.durable)
			continue;
		DL_DELETE2(server->committing, s, commit_prev, commit_next);
		s->committing = false;
		session_queue(server, s);
	}
}

/* Two rounds of the log: when all has been moved twice, all of it is needed */
void room_again(struct server *server)
{
	server->patience = log_end(&server->log) + 2 * server->log.ring;
}

void no_room(struct server *server, enum waits who, const char *why)
{
	struct waiting *w = &server->waiting[who];
	uint64_t now = server->env->clock(server->env);

	server->env->wake(server->env, &server->keeper);
	if (!w->since) {
		*w = (struct waiting){ .since = now };
		room_again(server);
	}
	/* For a moment it is as usual: checkpoints make room */
	if (w->said || now - w->since < 5 * SECOND)
		return;
	w->said = true;
	report(server, "full", "waiting", HASH_COUNT(server->sessions), 0, why);
}

/* No thread of ours is left, or was ever there */
static void server_free(struct server *server)
{
	struct session *s, *next;
	struct variable *v, *next_v;
	unsigned int i;

	HASH_ITER(hh, server->sessions, s, next) {
		session_refuse(server, s);
		session_free(server, s);
	}
	HASH_ITER(hh, server->variables, v, next_v)
		variable_free(server, v);
	for (i = 0; i < MEMBERS_MAX; i++)
		history_free(&server->histories[i]);
	log_close(&server->log);
}

int server_start(struct server *server, struct env *env, const struct config *config, uint64_t device_size)
{
	struct session *s, *next;
	unsigned int i;
	int err;

	*server = (struct server){ .env = env, .config = *config, .started = env->clock(env) };
	err = log_open(&server->log, env, device_size);
	/* Half of the log for what is needed, a quarter for checkpoints; a request and what it logs take an eighth each */
	if (!err && !config->request_log)
		server->config.request_log = server->log.ring / 64 < REQUEST_LOG ? server->log.ring / 64 : REQUEST_LOG;
	if (!err && server->config.request_log > server->log.ring / 8)
		err = -EFBIG;
	/* A small log has no room for long sessions */
	if (server->config.session_checkpoint > server->log.ring / 16)
		server->config.session_checkpoint = server->log.ring / 16;
	/* Few log as much as they may: who does waits when others do, too */
	server->reserve = server->config.request_log / 16 > 4096 ? server->config.request_log / 16 : 4096;
	if (!err)
		err = server_scan(server);
	if (err) {
		server_free(server);
		return err;
	}
	env->lock(env);
	server->log.batch_ns = config->batch;
	server->log.cache_chunks = config->log_cache / CHUNK_SIZE;
	server->log.flushed = flushed;
	server->log.flushed_arg = server;
	log_begin(&server->log);
	for (i = 0; i < server->log.ended.n; i++)
		history_learn(&server->histories[config->self], server->log.ended.endings[i]);
	history_epoch(&server->histories[config->self], server->log.ended.epoch);
	thread_start(server, writer);
	if (server->log.ended.n >= ENDINGS_MAX)
		server_checkpoint(server, false);
	server->open = true;
	HASH_ITER(hh, server->sessions, s, next) {
		server->recovering++;
		session_queue(server, s);
	}
	if (!server->recovering)
		server->worked = log_used(&server->log);
	for (i = 0; i < config->threads; i++) {
		server->threads++;
		thread_start(server, worker);
	}
	thread_start(server, keeper);
	thread_start(server, announcer);
	env->unlock(env);
	return 0;
}

void server_stop(struct server *server)
{
	server->env->lock(server->env);
	server->stopping = true;
	server->env->wake(server->env, &server->queue);
	server->env->wake(server->env, &server->keeper);
	/* The log's writer is last: others wait for it */
	while (server->running > 1)
		server->env->wait(server->env, &server->running, 0);
	server->log.stop = true;
	server->env->wake(server->env, &server->log.wanted);
	while (server->running)
		server->env->wait(server->env, &server->running, 0);
	server_free(server);
	server->env->unlock(server->env);
}

/* What comes in */

static void answer_at_once(void (*done)(void *arg, struct reply *reply), void *arg, enum answer answer, const char *why)
{
	struct reply reply = { .answer = answer };

	if (why)
		bytes_set(&reply.body, why, strlen(why));
	done(arg, &reply);
}

static struct session *session_begin(struct server *server, const struct message *m)
{
	struct session who = { .client = m->from, .name = (char *)m->key };
	struct bytes payload = { 0 };
	struct session *s;
	struct cursor c;

	server->env->random(server->env, who.token, sizeof(who.token));
	session_identity_put(&payload, &who);
	put_vector(&payload, &m->depends);
	s = session_new(server, log_append(&server->log, R_START, &payload));
	c = cursor(payload.data, payload.len);
	session_identity_get(server, &c, s);
	bytes_free(&payload);
	s->live = true;
	s->expected = 1;
	session_used(server, s);
	vector_copy(&s->depends, &m->depends);
	return s;
}

static const char *malformed(const struct server *server, const struct message *m)
{
	if (m->kind != M_START && m->kind != M_CALL && m->kind != M_END)
		return "this is not for clients";
	if (m->body.len > VALUE_MAX || m->body.len > server->log.ring / 8)
		return "the body is too large for the log";
	if (m->kind == M_CALL && (!m->method || !find_method(server, m->method, 0)))
		return "there is no such method";
	if (m->kind != M_START && !m->session && !(m->kind == M_CALL && m->key))
		return "of which session?";
	if (m->key && (!*m->key || strlen(m->key) > NAME_MAX_LEN || m->from != OUTSIDE))
		return "a key has 1 to 255 bytes";
	return NULL;
}

/* Who begins sessions and asks nothing makes room for others */
static void end_unused(struct server *server)
{
	unsigned int looked = 0;
	struct session *s;

	DL_FOREACH2(server->idle[1], s, idle_next) {
		if (s->expected == 1 && s->live && !s->busy && !s->inbox) {
			s->due_end = true;
			session_queue(server, s);
			return;
		}
		if (++looked == 100)
			return;
	}
}

/* NULL: there is none, or a new one must not begin now */
static struct session *whose(struct server *server, const struct message *m)
{
	struct vector depends = { 0 };
	struct session *s = NULL;
	struct state unknown;

	if (m->session) {
		s = session_find(server, m->session);
		return s && s->client == m->from ? s : NULL;
	}
	if (m->key)
		s = session_find_named(server, m->from, m->key);
	if (s)
		return s;
	if (server->config.sessions && HASH_COUNT(server->sessions) >= server->config.sessions) {
		end_unused(server);
		no_room(server, SESSIONS, "new sessions wait: there are as many as `sessions` allows; end them earlier (session_ttl, key_ttl)?");
		return NULL;
	}
	/* Those that there are go on: who begins sessions and leaves them does not take the last of the room */
	if (log_used(&server->log) > server->log.ring / 8 * 5) {
		no_room(server, SESSIONS, "new sessions wait: the log has no room for them; make it larger, or end sessions earlier (session_ttl, key_ttl)");
		return NULL;
	}
	vector_copy(&depends, &m->depends);
	if (judge(server, &depends, &unknown) == ALIVE)
		s = session_begin(server, m);
	server->waiting[SESSIONS].since = 0;
	vector_free(&depends);
	return s;
}

void server_request(struct server *server, const struct message *m, void (*done)(void *arg, struct reply *reply), void *arg)
{
	const char *why = malformed(server, m);
	enum answer answer = A_RETRY;
	struct session *s = NULL;
	unsigned int n = 0;
	struct inbox *in;

	if (why) {
		answer_at_once(done, arg, A_REFUSED, why);
		return;
	}
	server->env->lock(server->env);
	if (server->open && !server->stopping) {
		s = whose(server, m);
		if (!s && m->session)
			answer = m->kind == M_END ? A_OK : A_GONE;
	}
	if (s)
		DL_COUNT(s->inbox, in, n);
	if (n >= INBOX_MAX)
		s = NULL;
	if (s)
		session_receive(server, s, m, done, arg);
	server->env->unlock(server->env);
	if (!s)
		answer_at_once(done, arg, answer, NULL);
}

struct waiter {
	struct server *server;
	struct reply *reply;
	bool done;
};

static void wake_waiter(void *arg, struct reply *reply)
{
	struct waiter *w = arg;
	struct env *env = w->server->env;

	env->lock(env);
	*w->reply = *reply;
	w->done = true;
	env->wake(env, w);
	env->unlock(env);
}

static void request_and_wait(struct server *server, const struct message *m, struct reply *reply)
{
	struct waiter w = { .server = server, .reply = reply };
	struct message copy = *m;
	enum verdict verdict;
	unsigned int i;

	copy.depends = (struct vector){ 0 };
	vector_copy(&copy.depends, &m->depends);
	server->env->lock(server->env);
	verdict = judge_asking(server, &copy.depends);
	server->env->unlock(server->env);
	if (verdict == ALIVE)
		server_request(server, &copy, wake_waiter, &w);
	else
		answer_at_once(wake_waiter, &w, A_RETRY, NULL);
	vector_free(&copy.depends);
	server->env->lock(server->env);
	while (!w.done)
		server->env->wait(server->env, &w, 0);
	/* Who is told to try again may have to roll back first */
	if (reply->answer != A_OK && !reply->endings.len) {
		put_endings(server, &reply->endings, server->config.self, 0);
		for (i = 0; i < m->depends.n; i++)
			if (m->depends.states[i].member != server->config.self)
				put_endings(server, &reply->endings, m->depends.states[i].member, m->depends.states[i].epoch);
	}
	server->env->unlock(server->env);
}

static void flush_for(struct server *server, const struct message *m, struct reply *reply)
{
	enum verdict verdict = history_judge(&server->histories[server->config.self], &m->state);

	if (verdict == ALIVE && m->state.lsn < log_end(&server->log)) {
		log_flush(&server->log, m->state.lsn);
	} else if (verdict != DURABLE) {
		reply->answer = A_ORPHAN;
		put_endings(server, &reply->endings, server->config.self, m->state.epoch);
	}
}

void server_message(struct server *server, const struct message *m, struct reply *reply)
{
	struct history *own = &server->histories[server->config.self];

	*reply = (struct reply){ .answer = A_OK };
	if (m->kind == M_START || m->kind == M_CALL || m->kind == M_END) {
		request_and_wait(server, m, reply);
		return;
	}
	server->env->lock(server->env);
	if (!server->open || server->stopping) {
		reply->answer = A_RETRY;
	} else if (m->kind == M_FLUSH) {
		flush_for(server, m, reply);
	} else if (m->kind == M_HISTORY) {
		/* Of an epoch before this log was made, nothing is left */
		if (history_judge(own, &m->state) == UNKNOWN && m->state.epoch < own->epoch && own->n < FOREIGN_EPOCHS)
			history_learn(own, (struct ending){ .first = m->state.epoch, .last = m->state.epoch });
		put_endings(server, &reply->endings, server->config.self, m->state.epoch ? m->state.epoch : 1);
	} else if (log_used(&server->log) + m->body.len > server->log.ring / 8 * 7) {
		/* It says it again */
		server->env->wake(server->env, &server->keeper);
		reply->answer = A_RETRY;
	} else if (m->from < MEMBERS_MAX) {
		learn(server, m->from, cursor(m->body.data, m->body.len));
		/* The sender will not say it again */
		log_flush(&server->log, server->learned[m->from]);
	}
	server->env->unlock(server->env);
}
