// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * PostgreSQL with a parser that faults, a function of SQL that takes a cstring and returns a bigint. Of the server's
 * headers it needs little, so they are not needed either, and it fits each version since 15.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "parse.h"

#define ERROR 21

/* The server's */
const char *GetConfigOption(const char *name, bool missing_ok, bool restrict_privileged);
bool errstart(int level, const char *domain);
int errmsg_internal(const char *format, ...);
void errfinish(const char *file, int line, const char *function);

struct magic {
	int size, version, max_args, max_keys, name_size, bigint_by_value;
	char abi[32];
	const char *since_18[2];
};

struct call {
	void *function, *context, *result;
	unsigned int collation;
	bool is_null;
	short nr_args;
	struct {
		uintptr_t value;
		bool is_null;
	} args[];
};

const struct magic *Pg_magic_func(void);
const int *pg_finfo_parse(void);
uintptr_t parse(struct call *call);

const struct magic *Pg_magic_func(void)
{
	static struct magic magic = {
		.max_args = 100, .max_keys = 32, .name_size = 64, .bigint_by_value = 1, .abi = "PostgreSQL"
	};

	magic.version = atoi(GetConfigOption("server_version_num", false, false)) / 100;
	magic.size = magic.version < 1800 ? offsetof(struct magic, since_18) : sizeof(magic);
	return &magic;
}

const int *pg_finfo_parse(void)
{
	static const int version = 1;	/* of its convention of calls */

	return &version;
}

uintptr_t parse(struct call *call)
{
	const char *text = (const char *)call->args[0].value;
	long long n = seeded_parse(text, strlen(text));

	if (n < 0 && errstart(ERROR, NULL)) {
		errmsg_internal(PARSE_ERROR);
		errfinish(__FILE__, __LINE__, __func__);
	}
	return n;
}
