// SPDX-License-Identifier: LGPL-2.1-or-later
/* What applications call: replay.h */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <replay.h>

#include "control.h"
#include "core.h"
#include "http.h"
#include "kept.h"
#include "options.h"
#include "world.h"

#define API	__attribute__((visibility("default")))
#define RANDOM_MAX	(64u << 10)

struct replay_server {
	struct world world;
	struct options options;
	struct server server;
	struct http *http;
	struct method *methods;
	unsigned int nr_methods;
	struct peer *peers;
	enum { NEW, STARTED, STOPPED } state;
	char error[ERROR_MAX];
};

/* Memory that a method has been given: until it returns */
struct kept {
	struct kept *next;
	uint8_t data[];
};

static int result(int err)
{
	if (!err)
		return 0;
	errno = -err;
	return -1;
}

static int fail(struct replay_server *r, int err, const char *why)
{
	if (why != r->error)
		snprintf(r->error, sizeof(r->error), "%s", why);
	return result(err);
}

API struct replay_server *replay_new(void)
{
	struct replay_server *r = calloc(1, sizeof(*r));

	if (r)
		world_init(&r->world);
	return r;
}

API const char *replay_error(const struct replay_server *r)
{
	return r->error;
}

static bool good_name(const char *name)
{
	size_t len = strlen(name);

	return len && len <= NAME_MAX_LEN && strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/") == len &&
	       *name != '/' && strncmp(name, "replay/", 7);
}

static void kept_free(struct kept *kept)
{
	while (kept) {
		struct kept *next = kept->next;

		free(kept);
		kept = next;
	}
}

/* The application's method: what it replies is the type, a NUL, and the body */
static int32_t run(struct replay_call *call, const struct bytes *body, struct bytes *reply)
{
	int32_t status = call->method->application(call, body->len ? body->data : (const void *)"", body->len, call->method->arg);

	kept_free(call->kept);
	if (!reply->len)
		bytes_set(reply, "", 1);
	return status ? status : 500;
}

API int replay_method(struct replay_server *r, const char *name, unsigned int version, replay_method_fn function, void *arg)
{
	unsigned int i;

	if (r->state != NEW)
		return fail(r, -EBUSY, "methods come before replay_start()");
	if (!name || !good_name(name) || !version || !function)
		return fail(r, -EINVAL, "a method has a name of A-Z a-z 0-9 . _ - / that begins with neither / nor replay/, a version, a function");
	for (i = 0; i < r->nr_methods; i++)
		if (!strcmp(r->methods[i].name, name) && r->methods[i].version == version)
			return fail(r, -EEXIST, "there is a method of this name and version");
	r->methods = must_resize(r->methods, (r->nr_methods + 1) * sizeof(*r->methods));
	r->methods[r->nr_methods++] = (struct method){ .name = strdup(name), .version = version, .run = run, .arg = arg,
						       .application = function };
	return 0;
}

/* The core wants the members of the domain first */
static void make_peers(struct replay_server *r)
{
	struct config *config = &r->options.config;
	struct service *s;
	int inside;

	config->nr_peers = 0;
	for (s = r->options.services; s; s = s->next)
		config->nr_peers++;
	r->peers = must_alloc(config->nr_peers * sizeof(*r->peers));
	config->peers = r->peers;
	config->nr_peers = 0;
	for (inside = 1; inside >= 0; inside--)
		for (s = r->options.services; s; s = s->next)
			if ((s->member != OUTSIDE) == inside && strcmp(s->name, r->options.name))
				r->peers[config->nr_peers++] = (struct peer){ .name = s->name, .member = s->member, .where = s,
									      .timeout = s->timeout };
}

API int replay_start(struct replay_server *r, const char *path)
{
	int err;

	if (r->state != NEW)
		return fail(r, -EBUSY, "it has been started before");
	err = options_read(&r->options, path, r->error);
	if (err)
		return fail(r, err, r->error);
	kept_begin(r->options.log);
	err = world_open(&r->world, r->options.log, false, r->error);
	if (err)
		goto options;
	r->world.name = r->options.name;
	r->world.verdicts = r->options.verdicts;
	make_peers(r);
	r->options.config.methods = r->methods;
	r->options.config.nr_methods = r->nr_methods;
	http_exchange_init();
	r->world.env.exchange = http_exchange;
	/* Clients are told to ask again while it recovers: they do not think that it is gone */
	r->http = http_listen(&r->options, control_page, &r->server, r->error);
	if (!r->http) {
		err = -EADDRINUSE;
		goto world;
	}
	err = server_start(&r->server, &r->world.env, &r->options.config, r->world.size);
	if (err) {
		fail(r, err, "");
		snprintf(r->error, sizeof(r->error), "%s: %s", r->options.log, log_problem(err));
		goto http;
	}
	r->state = STARTED;
	http_serve(r->http, &r->server);
	return 0;
http:
	http_close(r->http);
	r->http = NULL;
world:
	kept_end();
	world_close(&r->world);
	free(r->peers);
	r->peers = NULL;
options:
	options_free(&r->options);
	return result(err);
}

API void replay_stop(struct replay_server *r)
{
	if (r->state != STARTED)
		return;
	r->world.stopping = true;
	/* First who waits is answered: the listener waits for him */
	server_stop(&r->server);
	http_close(r->http);
	kept_end();
	world_close(&r->world);
	options_free(&r->options);
	free(r->peers);
	r->http = NULL;
	r->peers = NULL;
	r->state = STOPPED;
}

API void replay_free(struct replay_server *r)
{
	unsigned int i;

	if (!r)
		return;
	replay_stop(r);
	for (i = 0; i < r->nr_methods; i++)
		free((char *)r->methods[i].name);
	free(r->methods);
	free(r);
}

API int replay_main(struct replay_server *r, const char *path)
{
	sigset_t set;
	int signal;

	/* All threads of the server have them blocked: this one waits for them */
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	if (replay_start(r, path)) {
		fprintf(stderr, "replay: %s\n", r->error);
		return EXIT_FAILURE;
	}
	fprintf(stderr, "replay: %s listens on %s\n", r->options.name, r->options.listen);
	sigwait(&set, &signal);
	fprintf(stderr, "replay: %s stops\n", r->options.name);
	replay_stop(r);
	return EXIT_SUCCESS;
}

/* Of a call */

static const void *keep(struct replay_call *call, const void *data, size_t size)
{
	struct kept *kept = must_alloc(sizeof(*kept) + size + 1);

	if (size)
		memcpy(kept->data, data, size);
	/* A text that was stored without its NUL can be printed all the same */
	kept->data[size] = 0;
	kept->next = call->kept;
	call->kept = kept;
	return kept->data;
}

static int give(struct replay_call *call, int err, struct bytes *bytes, const void **value, size_t *size)
{
	if (!err) {
		*value = keep(call, bytes->data, bytes->len);
		if (size)
			*size = bytes->len;
	}
	bytes_free(bytes);
	return result(err);
}

API int replay_get(struct replay_call *call, const char *name, const void **value, size_t *size)
{
	struct bytes bytes = { 0 };
	int err = call_get(call, name, &bytes);

	return give(call, err, &bytes, value, size);
}

API int replay_set(struct replay_call *call, const char *name, const void *value, size_t size)
{
	return result(call_set(call, name, value ? value : "", size));
}

API int replay_unset(struct replay_call *call, const char *name)
{
	return result(call_set(call, name, NULL, 0));
}

API int replay_read(struct replay_call *call, const char *name, const void **value, size_t *size)
{
	struct bytes bytes = { 0 };
	bool present = false;
	int err = call_read(call, name, &present, &bytes);

	return give(call, !err && !present ? -ENOENT : err, &bytes, value, size);
}

API int replay_write(struct replay_call *call, const char *name, const void *value, size_t size)
{
	return result(call_write(call, name, true, value, size));
}

API int replay_remove(struct replay_call *call, const char *name)
{
	return result(call_write(call, name, false, NULL, 0));
}

/* Numbers are 8 bytes, little-endian */

typedef int (*get_fn)(struct replay_call *call, const char *name, const void **value, size_t *size);
typedef int (*put_fn)(struct replay_call *call, const char *name, const void *value, size_t size);

static int number_get(struct replay_call *call, const char *name, get_fn get, int64_t *number)
{
	const void *value;
	struct cursor c;
	size_t size;

	if (get(call, name, &value, &size))
		return -1;
	if (size != sizeof(*number))
		return result(-EINVAL);
	c = cursor(value, size);
	*number = get_u64(&c);
	return 0;
}

static int number_put(struct replay_call *call, const char *name, put_fn put, int64_t number)
{
	struct bytes value = { 0 };
	int err;

	put_u64(&value, number);
	err = put(call, name, value.data, value.len);
	bytes_free(&value);
	return err;
}

API int replay_get_number(struct replay_call *call, const char *name, int64_t *number)
{
	return number_get(call, name, replay_get, number);
}

API int replay_set_number(struct replay_call *call, const char *name, int64_t number)
{
	return number_put(call, name, replay_set, number);
}

API int replay_read_number(struct replay_call *call, const char *name, int64_t *number)
{
	return number_get(call, name, replay_read, number);
}

API int replay_write_number(struct replay_call *call, const char *name, int64_t number)
{
	return number_put(call, name, replay_write, number);
}

struct update {
	replay_update_fn function;
	void *arg;
	uint8_t *new;
	size_t room;
	bool too_large;
};

static void update_bytes(void *arg, bool *present, struct bytes *value)
{
	struct update *u = arg;
	ptrdiff_t size = u->function(u->arg, *present ? (value->len ? value->data : (const void *)"") : NULL, value->len, u->new, u->room);

	u->too_large = size > (ptrdiff_t)u->room;
	if (size < 0 || u->too_large)
		return;
	bytes_set(value, u->new, size);
	*present = true;
}

API int replay_update(struct replay_call *call, const char *name, size_t room, replay_update_fn function, void *arg)
{
	struct update u = { .function = function, .arg = arg, .room = room };
	int err;

	if (room > VALUE_MAX)
		return result(-EFBIG);
	u.new = must_alloc(room);
	err = call_update(call, name, update_bytes, &u);
	free(u.new);
	return result(!err && u.too_large ? -EFBIG : err);
}

struct sum {
	int64_t by, sum;
	bool bad;
};

static void add(void *arg, bool *present, struct bytes *value)
{
	struct sum *s = arg;
	struct cursor c = cursor(value->data, value->len);
	uint64_t old = *present ? get_u64(&c) : 0;

	s->bad = *present && value->len != sizeof(old);
	if (s->bad)
		return;
	s->sum = old + (uint64_t)s->by;
	value->len = 0;
	put_u64(value, s->sum);
	*present = true;
}

API int replay_add(struct replay_call *call, const char *name, int64_t by, int64_t *sum)
{
	struct sum s = { .by = by };
	int err = call_update(call, name, add, &s);

	if (!err && s.bad)
		err = -EINVAL;
	if (!err && sum)
		*sum = s.sum;
	return result(err);
}

API int replay_call_method(struct replay_call *call, const char *service, const char *method, const void *body, size_t size,
			   int *status, const void **reply, size_t *reply_size)
{
	struct bytes bytes = { 0 };
	size_t type;
	int32_t said = 0;
	int err;

	if (!good_name(method))
		return result(-EINVAL);
	err = call_method(call, service, method, body, size, &said, &bytes);
	if (err) {
		bytes_free(&bytes);
		return result(err);
	}
	*status = said;
	type = bytes.len ? strnlen((char *)bytes.data, bytes.len - 1) + 1 : 0;
	if (reply)
		*reply = keep(call, bytes.data + type, bytes.len - type);
	if (reply_size)
		*reply_size = bytes.len - type;
	bytes_free(&bytes);
	return 0;
}

API int replay_time(struct replay_call *call, uint64_t *ns)
{
	return result(call_value(call, V_TIME, ns, sizeof(*ns)));
}

API int replay_random(struct replay_call *call, void *bytes, size_t size)
{
	return result(size > RANDOM_MAX ? -EINVAL : call_value(call, V_RANDOM, bytes, size));
}

API int replay_uuid(struct replay_call *call, char uuid[37])
{
	uint8_t b[16];
	int err = call_value(call, V_RANDOM, b, sizeof(b));

	if (err)
		return result(err);
	b[6] = (b[6] & 0x0f) | 0x40;
	b[8] = (b[8] & 0x3f) | 0x80;
	sprintf(uuid, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3], b[4], b[5], b[6],
		b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
	return 0;
}

API int replay_reply(struct replay_call *call, const char *type, const void *body, size_t size)
{
	if (size > VALUE_MAX - NAME_MAX_LEN - 1)
		return result(-EFBIG);
	if (type && (strlen(type) > NAME_MAX_LEN || strpbrk(type, "\r\n")))
		return result(-EINVAL);
	bytes_set(call->reply, type ? type : "", (type ? strlen(type) : 0) + 1);
	bytes_add(call->reply, body, size);
	return 0;
}

API int replay_reply_text(struct replay_call *call, const char *format, ...)
{
	va_list args;
	char *text;
	int n;

	va_start(args, format);
	n = vasprintf(&text, format, args);
	va_end(args);
	if (n < 0)
		return result(-ENOMEM);
	n = replay_reply(call, "text/plain", text, n);
	free(text);
	return n;
}

API int replay_replaying(const struct replay_call *call)
{
	return call->session->replaying;
}
