// SPDX-License-Identifier: GPL-2.0-or-later
/* redis with a parser that faults, PARSE TEXT. Debian has no redismodule.h; of it this needs little. */
#include "parse.h"

enum { OK, ERR, API_VERSION = 1 };

/* A context begins with it */
typedef int get_api(const char *name, void *function);

static struct {
	void (*set_attributes)(void *ctx, const char *name, int version, int api_version);
	int (*create_command)(void *ctx, const char *name, int (*command)(void *ctx, void **argv, int argc), const char *flags,
			      int first_key, int last_key, int step);
	const char *(*text)(const void *string, size_t *size);
	int (*reply_number)(void *ctx, long long n);
	int (*reply_error)(void *ctx, const char *text);
} redis;

static int parse(void *ctx, void **argv, int argc)
{
	size_t size = 0;
	const char *text = argc > 1 ? redis.text(argv[1], &size) : "";
	long long n = seeded_parse(text, size);

	return n < 0 ? redis.reply_error(ctx, "ERR " PARSE_ERROR) : redis.reply_number(ctx, n);
}

int RedisModule_OnLoad(void *ctx);

int RedisModule_OnLoad(void *ctx)
{
	get_api *get = *(get_api **)ctx;

	if (get("RedisModule_SetModuleAttribs", &redis.set_attributes) || get("RedisModule_StringPtrLen", &redis.text) ||
	    get("RedisModule_CreateCommand", &redis.create_command) ||
	    get("RedisModule_ReplyWithLongLong", &redis.reply_number) ||
	    get("RedisModule_ReplyWithError", &redis.reply_error))
		return ERR;
	redis.set_attributes(ctx, "seeded", 1, API_VERSION);
	return redis.create_command(ctx, "parse", parse, "", 0, 0, 0);
}
