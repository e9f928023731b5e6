// SPDX-License-Identifier: LGPL-2.1-or-later
#include <errno.h>
#include <ini.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "record.h"
#include "units.h"
#include "options.h"

#define KEY_MIN		16
#define KEY_MAX		1024

struct parser {
	struct options *o;
	char *error;		/* ERROR_MAX / 2 */
};

static int wrong(struct parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns what tells the library that the line is bad */
static int wrong(struct parser *p, const char *format, ...)
{
	va_list args;

	if (*p->error)
		return 0;
	va_start(args, format);
	vsnprintf(p->error, ERROR_MAX / 2, format, args);
	va_end(args);
	return 0;
}

struct known {
	const char *name;
	const char *const (*units)[2];	/* of units.h */
	uint64_t min, max;
	size_t offset;
	bool narrow;		/* an unsigned int */
};

#define AT(member) offsetof(struct options, member)
static const struct known known[] = {
	{ "connections", unit_counts, 1, 1000000, AT(connections) },
	{ "threads", unit_counts, 1, 1024, AT(config.threads), true },
	{ "threads_max", unit_counts, 1, 65536, AT(config.threads_max), true },
	{ "session_checkpoint", unit_sizes, 1024, 1ull << 40, AT(config.session_checkpoint) },
	{ "variable_checkpoint", unit_counts, 1, 1ull << 32, AT(config.variable_checkpoint) },
	{ "server_checkpoint", unit_sizes, 4096, 1ull << 40, AT(config.server_checkpoint) },
	{ "forced_after", unit_counts, 1, 1000000, AT(config.forced_after), true },
	{ "log_cache", unit_sizes, 0, 1ull << 40, AT(config.log_cache) },
	{ "request_log", unit_sizes, 4096, 4 << 20, AT(config.request_log) },
	{ "sessions", unit_counts, 1, 100000000, AT(config.sessions) },
	{ "session_ttl", unit_times, 1000000000, 1ull << 62, AT(config.session_ttl) },
	{ "key_ttl", unit_times, 1000000000, 1ull << 62, AT(config.key_ttl) },
	{ "batch", unit_times, 0, 10000000000ull, AT(config.batch) },
};

static int set_text(struct parser *p, char **to, const char *name, const char *value)
{
	if (*to)
		return wrong(p, "%s is given twice", name);
	if (!*value)
		return wrong(p, "%s has no value", name);
	*to = strdup(value);
	return *to != NULL;
}

static int server_option(struct parser *p, const char *name, const char *value)
{
	const struct known *k;
	uint64_t n;

	if (!strcmp(name, "name"))
		return set_text(p, &p->o->name, name, value);
	if (!strcmp(name, "log"))
		return set_text(p, &p->o->log, name, value);
	if (!strcmp(name, "listen"))
		return set_text(p, &p->o->listen, name, value);
	if (!strcmp(name, "control"))
		return set_text(p, &p->o->control, name, value);
	if (!strcmp(name, "metrics"))
		return set_text(p, &p->o->metrics, name, value);
	if (!strcmp(name, "cors")) {
		if (strcmp(value, "*") && strncmp(value, "http://", 7) && strncmp(value, "https://", 8))
			return wrong(p, "cors = %s: it is an origin, as https://shop.example, or *", value);
		return set_text(p, &p->o->cors, name, value);
	}
	for (k = known; k < known + sizeof(known) / sizeof(known[0]); k++) {
		if (strcmp(name, k->name))
			continue;
		if (!unit_parse(value, k->units, k->max, &n) || n < k->min || n > k->max)
			return wrong(p, "%s = %s: not %s from %llu to %llu", name, value,
				     k->units == unit_sizes ? "a size (bytes, k, M, G)" : k->units == unit_times ? "a time (ms, s, m, h, d; limits in ns)" :
				     "a number", (unsigned long long)k->min, (unsigned long long)k->max);
		if (k->narrow)
			*(unsigned int *)((char *)p->o + k->offset) = n;
		else
			*(uint64_t *)((char *)p->o + k->offset) = n;
		return 1;
	}
	return wrong(p, "[server] has no option %s", name);
}

static int read_key(struct parser *p, const char *path)
{
	char data[KEY_MAX + 2];
	FILE *f = fopen(path, "re");
	size_t n;

	if (!f)
		return wrong(p, "key = %s: %s", path, strerror(errno));
	n = fread(data, 1, sizeof(data), f);
	fclose(f);
	while (n && (data[n - 1] == '\n' || data[n - 1] == ' '))
		n--;
	if (n < KEY_MIN || n > KEY_MAX || memchr(data, '\n', n) || memchr(data, 0, n))
		return wrong(p, "key = %s: not one line of %u to %u characters (`openssl rand -hex 32` makes one)", path, KEY_MIN, KEY_MAX);
	bytes_set(&p->o->domain_key, data, n);
	bytes_add(&p->o->domain_key, "", 1);
	return 1;
}

static int domain_option(struct parser *p, const char *name, const char *value)
{
	if (!strcmp(name, "listen"))
		return set_text(p, &p->o->domain_listen, name, value);
	if (!strcmp(name, "key"))
		return read_key(p, value);
	return wrong(p, "[domain] has no option %s", name);
}

static struct service *service_of(struct parser *p, const char *name)
{
	struct service *s;

	LL_FOREACH(p->o->services, s)
		if (!strcmp(s->name, name))
			return s;
	s = must_alloc(sizeof(*s));
	s->name = strdup(name);
	s->member = OUTSIDE;
	LL_APPEND(p->o->services, s);
	return s;
}

static int service_option(struct parser *p, struct service *s, bool member, const char *name, const char *value)
{
	uint64_t n;

	s->inside |= member;
	if (!strcmp(name, "url")) {
		size_t len = strlen(value);

		if (strncmp(value, "http://", 7) && strncmp(value, "https://", 8))
			return wrong(p, "url = %s: it begins with http:// or https://", value);
		if (!set_text(p, &s->url, name, value))
			return 0;
		while (len && s->url[len - 1] == '/')
			s->url[--len] = 0;
		return 1;
	}
	if (!strcmp(name, "ca"))
		return access(value, R_OK) ? wrong(p, "ca = %s: %s", value, strerror(errno)) : set_text(p, &s->ca, name, value);
	if (member && !strcmp(name, "number")) {
		if (!unit_parse(value, unit_counts, MEMBERS_MAX - 1, &n) || n >= MEMBERS_MAX)
			return wrong(p, "number = %s: not from 0 to %u", value, MEMBERS_MAX - 1);
		s->member = n;
		return 1;
	}
	if (!strcmp(name, "timeout"))
		return unit_parse(value, unit_times, 86400000000000ull, &s->timeout) && s->timeout ? 1 :
		       wrong(p, "timeout = %s: not a time from 1ms to 1d (ms, s, m, h, d)", value);
	if (!member && !strcmp(name, "protocol")) {
		s->plain = !strcmp(value, "idempotency-key");
		return s->plain || !strcmp(value, "replay") ? 1 : wrong(p, "protocol = %s: it is replay or idempotency-key", value);
	}
	return wrong(p, "[%s %s] has no option %s", member ? "member" : "service", s->name, name);
}

static int handle(void *arg, const char *section, const char *name, const char *value)
{
	struct parser *p = arg;

	if (!strcmp(section, "server"))
		return server_option(p, name, value);
	if (!strcmp(section, "domain"))
		return domain_option(p, name, value);
	if (!strncmp(section, "member ", 7) && section[7])
		return service_option(p, service_of(p, section + 7), true, name, value);
	if (!strncmp(section, "service ", 8) && section[8])
		return service_option(p, service_of(p, section + 8), false, name, value);
	return wrong(p, "there is no section [%s], but [server], [domain], [member NAME] and [service NAME]", section);
}

/* What only the whole file shows */
static void check(struct parser *p)
{
	struct options *o = p->o;
	struct service *s, *other;
	bool members = false, self = false;

	if (!o->name || !o->log || !o->listen)
		wrong(p, "[server] wants a %s", !o->name ? "name" : !o->log ? "log" : "listen");
	LL_FOREACH(o->services, s) {
		if (!s->url)
			wrong(p, "%s has no url", s->name);
		if (s->inside && s->member == OUTSIDE)
			wrong(p, "[member %s] wants a number", s->name);
		if (s->member == OUTSIDE)
			continue;
		members = true;
		s->domain_key = (const char *)o->domain_key.data;
		LL_FOREACH(s->next, other)
			if (other->member == s->member)
				wrong(p, "%s and %s have the same number", s->name, other->name);
		if (o->name && !strcmp(s->name, o->name)) {
			self = true;
			o->config.self = s->member;
		}
	}
	if (members && !self)
		wrong(p, "this server, %s, is not among the members of its domain", o->name ? o->name : "?");
	if ((members || o->domain_listen) && (!o->domain_listen || !o->domain_key.len))
		wrong(p, "[domain] wants a %s", o->domain_listen ? "key" : "listen");
	if (o->control)
		o->verdicts = record_beside(o->control);
	if (o->config.threads_max < o->config.threads)
		o->config.threads_max = o->config.threads;
}

/* That this process may use */
static unsigned int processors(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

int options_read(struct options *o, const char *path, char error[ERROR_MAX])
{
	char what[ERROR_MAX / 2] = "";
	struct parser p = { .o = o, .error = what };
	FILE *f = fopen(path, "re");
	int line, err;

	*o = (struct options){
		.connections = 1000,
		.config = {
			.threads = 2 * processors(), .threads_max = 256,
			.session_checkpoint = 128 << 10, .variable_checkpoint = 256, .server_checkpoint = 8 << 20, .forced_after = 4,
			.sessions = 200000, .log_cache = 16 << 20, .session_ttl = 86400 * 1000000000ull, .key_ttl = 3600 * 1000000000ull,
		},
	};
	if (!f) {
		err = -errno;
		snprintf(error, ERROR_MAX, "%s: %s", path, strerror(-err));
		return err;
	}
	line = ini_parse_file(f, handle, &p);
	err = ferror(f) ? -EIO : 0;
	fclose(f);
	if (!err && !line && !*what)
		check(&p);
	if (!err && !line && !*what)
		return 0;
	options_free(o);
	if (err)
		snprintf(error, ERROR_MAX, "%s: %s", path, strerror(-err));
	else if (!*what)
		snprintf(error, ERROR_MAX, "%s:%d: neither [section] nor name = value, or a line of more than 199 characters", path, line);
	else if (line)
		snprintf(error, ERROR_MAX, "%s:%d: %s", path, line, what);
	else
		snprintf(error, ERROR_MAX, "%s: %s", path, what);
	return err ? err : -EINVAL;
}

void options_free(struct options *o)
{
	struct service *s, *next;

	LL_FOREACH_SAFE(o->services, s, next) {
		free(s->name);
		free(s->url);
		free(s->ca);
		free(s);
	}
	free(o->name);
	free(o->log);
	free(o->listen);
	free(o->control);
	free(o->metrics);
	free(o->cors);
	free(o->verdicts);
	free(o->domain_listen);
	bytes_free(&o->domain_key);
	*o = (struct options){ 0 };
}
