// SPDX-License-Identifier: LGPL-2.1-or-later
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"

#define READY	"1 when the log has been read and requests are taken"

static void give(struct page *page, json_t *json)
{
	char *text = json_dumps(json, JSON_INDENT(2));

	page->type = "application/json";
	if (text)
		bytes_set(&page->body, text, strlen(text));
	bytes_add(&page->body, "\n", 1);
	free(text);
	json_decref(json);
}

static void refuse(struct page *page, int status, const char *why)
{
	page->status = status;
	bytes_set(&page->body, why, strlen(why));
}

static json_int_t number(uint64_t n)
{
	return n;
}

static json_t *status(const struct server *server)
{
	const struct log *log = &server->log;

	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I}, s:{s:I, s:I, s:I, s:I, s:I, s:I}}",
			 "state", server->stopping ? "stopping" : server->recovering ? "recovering" : "serving",
			 "member", number(server->config.self), "epoch", number(log->ended.epoch),
			 "sessions", number(HASH_COUNT(server->sessions)), "to_replay", number(server->recovering),
			 "stuck", number(count_stuck(server)), "variables", number(HASH_COUNT(server->variables)),
			 "threads", number(server->threads),
			 "log", "size", number(log->ring), "used", number(log_used(log)), "tail", number(log->tail), "end",
			 number(log_end(log)), "durable", number(log->durable), "flushes", number(log->flushes), "bytes_written",
			 number(log->sectors * 512),
			 "counts", "executed", number(server->requests), "replayed", number(server->replayed), "checkpoints",
			 number(server->checkpoints), "orphans", number(server->orphans), "rolled_back", number(server->rollbacks),
			 "diverged", number(server->divergences));
}

static const char *state_of(const struct session *s)
{
	return s->stuck ? "stuck" : s->ended ? "ended" : !s->live ? "to replay" : s->replaying ? "replaying" : s->orphan ? "orphan" :
	       s->method ? "executing" : s->busy ? "busy" : "idle";
}

/* Not their names: who has one can use the session */
static json_t *sessions(struct server *server)
{
	uint64_t now = server->env->clock(server->env);
	json_t *all = json_array();
	const struct session *s;
	char key[24];

	for (s = server->sessions; s; s = s->hh.next) {
		json_t *one;

		snprintf(key, sizeof(key), "%016" PRIx64, s->key);
		one = json_pack("{s:s, s:s, s:I, s:f, s:I, s:I, s:I}", "session", key, "state", state_of(s), "next", number(s->expected),
				"idle_s", (now - s->used) / 1e9, "variables_bytes", number(s->values_size), "log_bytes",
				number(s->logged), "depends_on", number(s->depends.n));
		if (s->client != OUTSIDE)
			json_object_set_new(one, "member", json_integer(s->client));
		if (s->method)
			json_object_set_new(one, "method", json_string(s->method));
		if (s->stuck)
			json_object_set_new(one, "why", json_string(s->stuck));
		json_array_append_new(all, one);
	}
	return all;
}

static json_t *domain(const struct server *server)
{
	json_t *all = json_array();
	unsigned int i;

	for (i = 0; i < server->config.nr_peers; i++) {
		const struct peer *peer = &server->config.peers[i];

		if (peer->member == OUTSIDE)
			continue;
		json_array_append_new(all, json_pack("{s:s, s:I, s:I, s:b}", "name", peer->name, "member", number(peer->member),
						     "epoch", number(server->histories[peer->member].epoch), "knows_our_epoch",
						     server->told[peer->member] == server->log.ended.epoch));
	}
	return all;
}

struct metric {
	const char *name, *type, *help;
	uint64_t value;
};

static void metrics(const struct server *server, struct page *page)
{
	const struct log *log = &server->log;
	const struct metric all[] = {
		{ "ready", "gauge", READY, 1 },
		{ "requests_total", "counter", "Requests executed", server->requests },
		{ "replayed_total", "counter", "Requests executed again, in a recovery", server->replayed },
		{ "checkpoints_total", "counter", "Checkpoints of sessions and shared variables", server->checkpoints },
		{ "orphans_total", "counter", "Sessions that depended on what another server has lost", server->orphans },
		{ "rolled_back_total", "counter", "Sessions that were taken back to before such a dependency", server->rollbacks },
		{ "diverged_total", "counter", "Sessions whose method did not do again what it had done", server->divergences },
		{ "log_flushes_total", "counter", "Writes of the log", log->flushes },
		{ "log_written_bytes_total", "counter", "Bytes that these wrote", log->sectors * 512 },
		{ "log_records_total", "counter", "Records of the log", log->records },
		{ "log_size_bytes", "gauge", "Size of the log", log->ring },
		{ "log_used_bytes", "gauge", "Of it what a recovery would read", log_used(log) },
		{ "sessions", "gauge", "Sessions", HASH_COUNT(server->sessions) },
		{ "sessions_to_replay", "gauge", "Sessions that have not been replayed since the start", server->recovering },
		{ "sessions_stuck", "gauge", "Sessions that cannot be replayed: replayctl sessions says why", count_stuck(server) },
		{ "variables", "gauge", "Shared variables", HASH_COUNT(server->variables) },
		{ "threads", "gauge", "Threads for methods", server->threads },
		{ "threads_blocked", "gauge", "Of them those that wait for other servers", server->blocked },
		{ "epoch", "gauge", "Grows with each start", log->ended.epoch },
	};
	char text[512];
	size_t i;

	page->type = "text/plain; version=0.0.4";
	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		int n = snprintf(text, sizeof(text), "# HELP replay_%s %s\n# TYPE replay_%s %s\nreplay_%s %" PRIu64 "\n", all[i].name,
				 all[i].help, all[i].name, all[i].type, all[i].name, all[i].value);

		bytes_add(&page->body, text, n);
	}
}

static void ask_checkpoint(struct server *server)
{
	server->checkpoint_asked = true;
	server->env->wake(server->env, &server->keeper);
	while (server->checkpoint_asked && !server->stopping)
		server->env->wait(server->env, &server->checkpoint_asked, server->env->clock(server->env) + 1000000000);
}

/* One that cannot be replayed is given up: "/end/" and the key, as /sessions shows it */
static void end_stuck(struct server *server, const char *text, struct page *page)
{
	struct session *s;
	uint64_t key;
	char *end;

	errno = 0;
	key = strtoull(text, &end, 16);
	if (errno || *end || strlen(text) != 16) {
		refuse(page, 400, "a session is 16 hexadecimal digits, as `replayctl sessions` shows it\n");
		return;
	}
	HASH_FIND(hh, server->sessions, &key, sizeof(key), s);
	if (!s || s->ended) {
		refuse(page, 404, "there is no such session\n");
		return;
	}
	if (!s->stuck) {
		refuse(page, 409, "it is not stuck: its client ends it, or session_ttl\n");
		return;
	}
	s->due_drop = true;
	session_queue(server, s);
	while (s && !s->ended && !server->stopping) {
		nap(server, 10000000);
		HASH_FIND(hh, server->sessions, &key, sizeof(key), s);
	}
	if (!server->stopping)
		log_flush(&server->log, log_end(&server->log) - 1);
}

/* The server is not there yet: all that may be looked at is how far the log has been read */
static void reading_page(const struct server *server, const char *path, struct page *page)
{
	unsigned int percent = server->log.ring ? server->log.scanned * 100 / server->log.ring : 0;
	char text[128];

	if (!strcmp(path, "/metrics"))
		snprintf(text, sizeof(text), "# HELP replay_ready " READY "\n# TYPE replay_ready gauge\nreplay_ready 0\n");
	else if (!strcmp(path, "/status"))
		snprintf(text, sizeof(text), "{\"state\": \"reading\", \"read_percent\": %u}\n", percent);
	else
		snprintf(text, sizeof(text), "The log is being read: %u %% of its size\n", percent);
	page->status = strcmp(path, "/metrics") && strcmp(path, "/status") ? 503 : 200;
	bytes_set(&page->body, text, strlen(text));
}

void control_page(void *arg, bool ready, const char *method, const char *path, struct page *page)
{
	struct server *server = arg;
	bool get = !strcmp(method, "GET");
	json_t *json = NULL;

	if (!ready) {
		reading_page(server, path, page);
		return;
	}
	server->env->lock(server->env);
	if (get && !strcmp(path, "/status"))
		json = status(server);
	else if (get && !strcmp(path, "/sessions"))
		json = sessions(server);
	else if (get && !strcmp(path, "/domain"))
		json = domain(server);
	else if (get && !strcmp(path, "/metrics"))
		metrics(server, page);
	else if (!strcmp(method, "POST") && !strcmp(path, "/checkpoint"))
		ask_checkpoint(server);
	else if (!strcmp(method, "POST") && !strncmp(path, "/end/", 5))
		end_stuck(server, path + 5, page);
	else
		refuse(page, 404, "GET /status, /sessions, /domain, /metrics; POST /checkpoint, /end/SESSION\n");
	server->env->unlock(server->env);
	if (json)
		give(page, json);
}
