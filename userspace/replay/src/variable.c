// SPDX-License-Identifier: LGPL-2.1-or-later
/* Shared variables (paper, 3.3 and 4.2): value logging, and undo by the next reader */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

struct variable *variable_get(struct server *server, const char *name)
{
	struct variable *v;

	HASH_FIND_STR(server->variables, name, v);
	if (!v) {
		v = must_alloc(sizeof(*v));
		v->name = strdup(name);
		HASH_ADD_KEYPTR(hh, server->variables, v->name, strlen(v->name), v);
	}
	return v;
}

void variable_free(struct server *server, struct variable *v)
{
	HASH_DEL(server->variables, v);
	free(v->name);
	bytes_free(&v->value);
	vector_free(&v->depends);
	free(v);
}

static void put_value(struct bytes *b, bool present, const struct bytes *value)
{
	put_u8(b, present);
	put_blob(b, value->data, present ? value->len : 0);
}

static void get_value(struct cursor *c, bool *present, struct bytes *value)
{
	*present = get_u8(c);
	get_bytes(c, value);
}

/* The variable as the record at @lsn left it; the record's previous one is the result. */
static uint64_t take_record(struct server *server, struct variable *v, uint64_t lsn)
{
	struct bytes payload = { 0 };
	uint64_t previous = 0;
	struct cursor c;
	uint8_t type;
	size_t len;

	v->lsn = lsn;
	vector_free(&v->depends);
	if (!lsn) {
		v->present = false;
		v->value.len = 0;
		return 0;
	}
	log_read(&server->log, lsn, &type, &payload);
	c = cursor(payload.data, payload.len);
	if (type != R_VARIABLE)
		get_u64(&c);
	get_blob(&c, &len);
	if (type == R_UPDATE) {
		get_u8(&c);
		get_blob(&c, &len);
	}
	get_value(&c, &v->present, &v->value);
	if (type != R_VARIABLE) {
		get_vector(&c, &v->depends);
		previous = get_u64(&c);
	}
	bytes_free(&payload);
	return previous;
}

/*
 * To the last value that is no orphan, along the chain of writes. No other session is needed for it, so threads that wait for
 * a variable cannot wait for each other.
 */
static void roll_back(struct server *server, struct variable *v)
{
	uint64_t previous;

	v->busy = true;
	do {
		previous = take_record(server, v, v->lsn);
		if (judge_asking(server, &v->depends) != ORPHAN || server->stopping)
			break;
		take_record(server, v, previous);
	} while (v->lsn);
	v->busy = false;
	server->env->wake(server->env, &v->busy);
}

/*
 * One that nobody else is at, and if it is to be read, one that is no orphan. The table's lock is not held all the time, so a
 * variable may be gone and another come.
 */
static struct variable *variable_take(struct server *server, const char *name, bool read)
{
	struct state unknown;
	struct variable *v;

	for (;;) {
		v = variable_get(server, name);
		if (v->busy)
			server->env->wait(server->env, &v->busy, 0);
		else if (!read || server->stopping || judge(server, &v->depends, &unknown) == ALIVE)
			return v;
		else
			roll_back(server, v);
	}
}

static const char *show(char *out, size_t size, const char *verb, const char *name, bool present, const void *value, size_t len)
{
	const unsigned char *at = value;
	size_t n = snprintf(out, size, "it %s \"%s\"%s", verb, name, present ? " = \"" : ", absent"), i;

	for (i = 0; present && i < len && i < 40 && n + 8 < size; i++)
		n += snprintf(out + n, size - n, at[i] >= ' ' && at[i] < 0x7f && at[i] != '"' ? "%c" : "\\x%02x", at[i]);
	if (present && n + 1 < size)
		snprintf(out + n, size - n, "\"");
	return out;
}

static bool same_name(struct replay_call *call, struct cursor *c, const char *verb, const char *name)
{
	char *logged = get_text(c), now[400], then[400];
	bool same = !strcmp(logged, name);

	if (!same)
		call_diverged(call, show(now, sizeof(now), verb, name, false, NULL, 0),
			      show(then, sizeof(then), verb, logged, false, NULL, 0));
	free(logged);
	return same;
}

/* The value that a replay makes is the one that was made */
static void compare(struct replay_call *call, const char *verb, const char *name, bool present, const struct bytes *value, bool was,
		    const struct bytes *logged)
{
	char now[400], then[400];

	if (was != present || (present && !bytes_equal(logged, value)))
		call_diverged(call, show(now, sizeof(now), verb, name, present, value->data, value->len),
			      show(then, sizeof(then), verb, name, was, logged->data, logged->len));
}

static int check(const char *name, size_t len)
{
	if (!*name || strlen(name) > NAME_MAX_LEN)
		return -EINVAL;
	return len > VALUE_MAX ? -EFBIG : 0;
}

int call_read(struct replay_call *call, const char *name, bool *present, struct bytes *value)
{
	struct server *server = call->server;
	struct session *s = call->session;
	struct bytes payload = { 0 };
	struct vector depends = { 0 };
	struct variable *v;
	struct cursor c;
	int err = check(name, 0);

	if (err)
		return err;
	server->env->lock(server->env);
	if (call_replay(call, R_READ, &payload, &c)) {
		if (same_name(call, &c, "reads", name)) {
			get_value(&c, present, value);
			get_vector(&c, &depends);
			if (call_depends(call, &depends))
				goto out;
		}
	}
	v = call_room(call) ? NULL : variable_take(server, name, true);
	if (call_enter(call)) {
		err = -ECANCELED;
		goto out;
	}
	payload.len = 0;
	put_u64(&payload, s->key);
	put_text(&payload, name);
	put_value(&payload, v->present, &v->value);
	put_vector(&payload, &v->depends);
	session_append(server, s, R_READ, &payload);
	vector_merge(&s->depends, &v->depends);
	*present = v->present;
	bytes_set(value, v->value.data, v->present ? v->value.len : 0);
out:
	err = err ? err : call_enter(call);
	server->env->unlock(server->env);
	bytes_free(&payload);
	vector_free(&depends);
	return err;
}

/* After a record of @v at @lsn: what nobody else can lose needs no earlier one */
static void written(struct server *server, struct variable *v, uint64_t lsn)
{
	v->lsn = lsn;
	if (!v->depends.n) {
		v->base = lsn;
		v->writes = v->age = 0;
	} else {
		if (!v->base)
			v->base = lsn;
		if (++v->writes >= server->config.variable_checkpoint)
			server->env->wake(server->env, &server->keeper);
	}
}

int call_write(struct replay_call *call, const char *name, bool present, const void *data, size_t len)
{
	const struct bytes value = { .data = (uint8_t *)data, .len = len };
	struct server *server = call->server;
	struct session *s = call->session;
	struct bytes payload = { 0 }, logged = { 0 };
	struct state unknown;
	struct variable *v;
	struct cursor c;
	bool was;
	int err = check(name, len);

	if (err)
		return err;
	server->env->lock(server->env);
	if (call_replay(call, R_WRITE, &payload, &c)) {
		if (same_name(call, &c, "writes", name)) {
			get_value(&c, &was, &logged);
			compare(call, "writes", name, present, &value, was, &logged);
		}
		goto out;
	}
	/* A write takes the place of what was there, orphan or not */
	v = call_room(call) ? NULL : variable_take(server, name, false);
	if (call_enter(call))
		goto out;
	judge(server, &s->depends, &unknown);
	payload.len = 0;
	put_u64(&payload, s->key);
	put_text(&payload, name);
	put_value(&payload, present, &value);
	put_vector(&payload, &s->depends);
	put_u64(&payload, v->lsn);
	v->present = present;
	bytes_set(&v->value, data, present ? len : 0);
	vector_copy(&v->depends, &s->depends);
	written(server, v, session_append(server, s, R_WRITE, &payload));
out:
	err = call_enter(call);
	server->env->unlock(server->env);
	bytes_free(&payload);
	bytes_free(&logged);
	return err;
}

int call_update(struct replay_call *call, const char *name, update_fn update, void *arg)
{
	struct server *server = call->server;
	struct session *s = call->session;
	struct bytes payload = { 0 }, value = { 0 }, logged = { 0 };
	struct vector depends = { 0 };
	bool present, was;
	struct variable *v;
	struct state unknown;
	struct cursor c;
	int err = check(name, 0);

	if (err)
		return err;
	server->env->lock(server->env);
	if (call_replay(call, R_UPDATE, &payload, &c)) {
		if (same_name(call, &c, "updates", name)) {
			get_value(&c, &present, &value);
			get_value(&c, &was, &logged);
			get_vector(&c, &depends);
			if (call_depends(call, &depends)) {
				update(arg, &present, &value);
				compare(call, "makes", name, present, &value, was, &logged);
				goto out;
			}
		}
	}
	v = call_room(call) ? NULL : variable_take(server, name, true);
	if (call_enter(call))
		goto out;
	judge(server, &s->depends, &unknown);
	present = v->present;
	bytes_set(&value, v->value.data, v->value.len);
	payload.len = 0;
	put_u64(&payload, s->key);
	put_text(&payload, name);
	put_value(&payload, present, &value);
	update(arg, &present, &value);
	if (value.len > VALUE_MAX) {
		err = -EFBIG;
		session_stick(server, s, "method %s makes \"%s\" larger than %u bytes", s->method, name, VALUE_MAX);
		goto out;
	}
	put_value(&payload, present, &value);
	vector_merge(&s->depends, &v->depends);
	put_vector(&payload, &s->depends);
	put_u64(&payload, v->lsn);
	v->present = present;
	bytes_set(&v->value, value.data, present ? value.len : 0);
	vector_copy(&v->depends, &s->depends);
	written(server, v, session_append(server, s, R_UPDATE, &payload));
out:
	err = call_enter(call);
	server->env->unlock(server->env);
	bytes_free(&payload);
	bytes_free(&value);
	bytes_free(&logged);
	vector_free(&depends);
	return err;
}

void variable_checkpoint(struct server *server, const char *name)
{
	struct variable *v = variable_take(server, name, true);
	struct bytes payload = { 0 };
	struct vector depends = { 0 };
	int err;

	if (server->stopping)
		return;
	/* Nobody writes it meanwhile: one that is written all the time would never be checkpointed */
	v->busy = true;
	vector_copy(&depends, &v->depends);
	/* The keeper has other things to do than to wait for a member that is away */
	err = flush_others(server, &depends, NULL, true);
	vector_free(&depends);
	v->busy = false;
	server->env->wake(server->env, &v->busy);
	if (err || !has_room(server, v->value.len + 2 * NAME_MAX_LEN))
		return;
	vector_free(&v->depends);
	put_text(&payload, v->name);
	put_value(&payload, v->present, &v->value);
	v->lsn = v->base = log_append(&server->log, R_VARIABLE, &payload);
	v->writes = v->age = 0;
	bytes_free(&payload);
	server->checkpoints++;
	if (!v->present)
		variable_free(server, v);
}
