// SPDX-License-Identifier: GPL-2.0-or-later
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <utlist.h>

#include "config.h"
#include "units.h"

#define NAME_MOST	40
#define MS	1000000ull
#define SECOND	(1000 * MS)

struct parser {
	struct config *c;
	FILE *f;
	int line, wrong_line;	/* that is being read, that is wrong */
	uint32_t given;		/* of [host] */
	bool kept;		/* it is one of our own */
	char what[ERROR_MAX / 2];
};

static int wrong(struct parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns what tells the library that the line is bad */
static int wrong(struct parser *p, const char *format, ...)
{
	va_list args;

	if (*p->what)
		return 0;
	va_start(args, format);
	vsnprintf(p->what, sizeof(p->what), format, args);
	va_end(args);
	p->wrong_line = p->line;
	return 0;
}

bool address_parse(const char *text, bool port, union address *address)
{
	const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
	char copy[INET6_ADDRSTRLEN + IF_NAMESIZE + 10], *host = copy, *service = NULL, *end;
	struct addrinfo *found;

	if (strlen(text) >= sizeof(copy))
		return false;
	strcpy(copy, text);
	if (port) {
		service = strrchr(copy, ':');
		if (!service)
			return false;
		*service++ = 0;
		if (*host == '[') {
			end = strchr(++host, ']');
			if (!end || end[1])
				return false;
			*end = 0;
		} else if (strchr(host, ':')) {
			return false;
		}
		if (strspn(service, "0123456789") != strlen(service) || !*service || atoi(service) < 1 || atoi(service) > 65535)
			return false;
	}
	if (!*host || getaddrinfo(host, service, &hints, &found))
		return false;
	memset(address, 0, sizeof(*address));
	memcpy(address, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	return true;
}

struct endpoint endpoint_of(const union address *address)
{
	struct endpoint at = { .family = address->any.sa_family, .port = ((const struct sockaddr_in *)address)->sin_port };

	if (at.family == AF_INET)
		memcpy(at.address, &((const struct sockaddr_in *)address)->sin_addr, 4);
	else
		memcpy(at.address, &((const struct sockaddr_in6 *)address)->sin6_addr, 16);
	return at;
}

const char *address_unfit(const union address *address)
{
	const uint32_t v4 = ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr);
	const struct in6_addr *v6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
	const bool four = address->any.sa_family == AF_INET;

	if (four ? !(v4 >> 24) : IN6_IS_ADDR_UNSPECIFIED(v6))
		return "that is no host's address";
	if (four ? IN_MULTICAST(v4) || v4 == INADDR_BROADCAST : IN6_IS_ADDR_MULTICAST(v6))
		return "that is the address of many hosts";
	return !four && IN6_IS_ADDR_V4MAPPED(v6) ? "write it as an IPv4 address" : NULL;
}

const char *address_text(const union address *address, bool port)
{
	static char text[2][NI_MAXHOST + 10];
	static unsigned int turn;
	char host[NI_MAXHOST], service[8];
	char *to = text[turn++ % 2];
	const socklen_t len = address->any.sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

	if (getnameinfo(&address->any, len, host, sizeof(host), service, sizeof(service), NI_NUMERICHOST | NI_NUMERICSERV))
		return "?";
	snprintf(to, sizeof(text[0]), !port ? "%s" : address->any.sa_family == AF_INET ? "%s:%s" : "[%s]:%s", host, service);
	return to;
}

const char *endpoint_text(const struct endpoint *at)
{
	static char text[INET6_ADDRSTRLEN];

	return inet_ntop(at->family, at->address, text, sizeof(text));
}

static int set_address(struct parser *p, union address *to, const char *name, const char *value, bool port)
{
	if (to->any.sa_family)
		return wrong(p, "%s is given twice", name);
	if (!address_parse(value, port, to))
		return wrong(p, "%s = %s: not an %s", name, value,
			     port ? "address and a port, as 192.0.2.1:7550 or [2001:db8::1]:7550" : "address, as 192.0.2.1 or 2001:db8::1");
	return 1;
}

/* One of a host */
static int set_host(struct parser *p, union address *to, const char *name, const char *value, bool port)
{
	const char *unfit;

	if (!set_address(p, to, name, value, port))
		return 0;
	unfit = address_unfit(to);
	return unfit ? wrong(p, "%s = %s: %s", name, value, unfit) : 1;
}

static int set_text(struct parser *p, char **to, const char *name, const char *value)
{
	if (*to)
		return wrong(p, "%s is given twice", name);
	if (!*value)
		return wrong(p, "%s has no value", name);
	*to = strdup(value);
	return *to != NULL;
}

static int set_time(struct parser *p, uint64_t *to, const char *name, const char *value, uint64_t min, uint64_t max)
{
	return unit_parse(value, unit_times, max, to) && *to >= min ? 1 :
	       wrong(p, "%s = %s: not a time from %llums to %llums (ms, s, m)", name, value, (unsigned long long)(min / MS), (unsigned long long)(max / MS));
}

static int set_bool(struct parser *p, bool *to, const char *name, const char *value)
{
	*to = !strcmp(value, "yes");
	return *to || !strcmp(value, "no") ? 1 : wrong(p, "%s = %s: it is yes or no", name, value);
}

/* Of which the last one would count, and the others not */
static bool twice(struct parser *p, uint32_t *given, const char *const names[], const char *name)
{
	for (unsigned int i = 0; names[i]; i++)
		if (!strcmp(name, names[i])) {
			if (*given & 1u << i)
				wrong(p, "%s is given twice", name);
			else
				*given |= 1u << i;
		}
	return *p->what;
}

static int host_option(struct parser *p, const char *name, const char *value)
{
	static const char *const names[] = { "arbitrate", "store_limit", NULL };
	struct config *c = p->c;

	if (twice(p, &p->given, names, name))
		return 0;
	if (!strcmp(name, "name"))
		return set_text(p, &c->name, name, value);
	if (!strcmp(name, "log_listen"))
		return set_address(p, &c->log_listen, name, value, true);
	if (!strcmp(name, "metrics"))
		return set_address(p, &c->metrics, name, value, true);
	if (!strcmp(name, "group"))
		return set_text(p, &c->group, name, value);
	if (!strcmp(name, "arbitrate"))
		return set_time(p, &c->arbitrate, name, value, 50 * MS, 10 * SECOND);
	if (!strcmp(name, "store_limit"))
		return unit_parse(value, unit_sizes, 1ull << 40, &c->store_limit) && c->store_limit >= 4096 ? 1 :
		       wrong(p, "store_limit = %s: not a size from 4k to 1024G (bytes, k, M, G)", value);
	if (!strcmp(name, "store_dir") || !strcmp(name, "control")) {
		const bool control = *name == 'c';

		if (*value != '/' || (control && strlen(value) >= sizeof(((struct sockaddr_un *)0)->sun_path) - 16))
			return wrong(p, "%s = %s: not a path that begins with /%s", name, value, control ? ", or too long for a socket" : "");
		return set_text(p, control ? &c->control : &c->store_dir, name, value);
	}
	return wrong(p, "[host] has no option %s", name);
}

static bool parse_key(const char *text, uint8_t key[KEY_SIZE])
{
	if (strlen(text) != 2 * KEY_SIZE || strspn(text, "0123456789abcdefABCDEF") != 2 * KEY_SIZE || strspn(text, "0") == 2 * KEY_SIZE)
		return false;
	for (unsigned int i = 0; i < KEY_SIZE; i++) {
		const char digits[] = { text[2 * i], text[2 * i + 1], 0 };

		key[i] = strtoul(digits, NULL, 16);
	}
	return true;
}

/* Who can read it can speak for the peer, and forge its packets */
static int read_key(struct parser *p, struct service_config *s, const char *path)
{
	char text[2 * KEY_SIZE + 3] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	ssize_t n;

	if (s->has_key)
		return wrong(p, "key_file is given twice");
	if (fd < 0 || fstat(fd, &st)) {
		if (fd >= 0)
			close(fd);
		return wrong(p, "key_file = %s: %s", path, strerror(errno));
	}
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (st.st_mode & 077 || (st.st_uid && st.st_uid != geteuid()))
		return wrong(p, "key_file = %s: others can read or change it: it must be root's, mode 0600", path);
	while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
		text[--n] = 0;
	s->has_key = n == 2 * KEY_SIZE && parse_key(text, s->key);
	explicit_bzero(text, sizeof(text));
	return s->has_key ? 1 : wrong(p, "key_file = %s: not %u hexadecimal digits (`takeoverctl key` makes them)", path, 2 * KEY_SIZE);
}

static int service_option(struct parser *p, struct service_config *s, const char *name, const char *value)
{
	static const char *const names[] = { "address", "port", "role", "interface", "patience", "manage_address", "join", NULL };
	union address address = { 0 };
	uint64_t n;

	if (twice(p, &s->given, names, name))
		return 0;
	if (!strcmp(name, "address")) {
		if (!set_host(p, &address, name, value, false))
			return 0;
		n = s->at.port;
		s->at = endpoint_of(&address);
		s->at.port = n;
		return 1;
	}
	if (!strcmp(name, "port")) {
		if (!unit_parse(value, unit_counts, 65535, &n) || !n)
			return wrong(p, "port = %s: not from 1 to 65535", value);
		s->at.port = htons(n);
		return 1;
	}
	if (!strcmp(name, "role")) {
		s->backup = !strcmp(value, "backup");
		s->has_role = true;
		return s->backup || !strcmp(value, "primary") ? 1 : wrong(p, "role = %s: it is primary or backup", value);
	}
	if (!strcmp(name, "peer"))
		return set_host(p, &s->peer, name, value, false);
	if (!strcmp(name, "peer_log"))
		return set_host(p, &s->peer_log, name, value, true);
	if (!strcmp(name, "interface")) {
		/* It may come later */
		if (!*value || strlen(value) >= IF_NAMESIZE || strchr(value, '/'))
			return wrong(p, "interface = %s: that is no name of an interface", value);
		strcpy(s->interface, value);
		return 1;
	}
	if (!strcmp(name, "key_file"))
		return read_key(p, s, value);
	if (p->kept && !strcmp(name, "key"))
		return s->has_key = parse_key(value, s->key);
	if (!strcmp(name, "patience"))
		return set_time(p, &s->patience, name, value, 100 * MS, 3600 * SECOND);
	if (!strcmp(name, "manage_address"))
		return set_bool(p, &s->manage_address, name, value);
	if (!strcmp(name, "join"))
		return set_bool(p, &s->join, name, value);
	return wrong(p, "[service %s] has no option %s", s->name, name);
}

static struct service_config *service_named(struct parser *p, const char *name)
{
	struct service_config *s;

	LL_FOREACH(p->c->services, s)
		if (!strcmp(s->name, name))
			return s;
	/* The library cuts names of sections */
	if (strlen(name) > NAME_MOST || name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")] || *name == '.' ||
	    !strcmp(name, "all")) {
		wrong(p, "[service %s]: a name is of up to 40 letters, digits, - _ and ., and not \"all\"", name);
		return NULL;
	}
	s = calloc(1, sizeof(*s));
	if (s) {
		strcpy(s->name, name);
		s->patience = 2 * SECOND;
		s->join = true;
		LL_APPEND(p->c->services, s);
	}
	return s;
}

static int handle(void *arg, const char *section, const char *name, const char *value)
{
	struct service_config *s;
	struct parser *p = arg;

	if (!strcmp(section, "host"))
		return host_option(p, name, value);
	if (!*section)
		return wrong(p, "%s stands before any [section]", name);
	if (strncmp(section, "service ", 8) || !section[8])
		return wrong(p, "there is no section [%s], but [host] and [service NAME]", section);
	s = service_named(p, section + 8);
	return s && service_option(p, s, name, value);
}

static const char *lacks(const struct service_config *s)
{
	return !s->at.family ? "address" : !s->at.port ? "port" : !s->peer.any.sa_family ? "peer" : !s->peer_log.any.sa_family ? "peer_log" :
	       !*s->interface ? "interface" : !s->has_key ? "key_file" : !s->has_role ? "role" : NULL;
}

static bool same_host(const union address *a, const struct endpoint *at)
{
	const struct endpoint of = endpoint_of(a);

	return of.family == at->family && !memcmp(of.address, at->address, sizeof(of.address));
}

/* What only the whole file shows */
static void check(struct parser *p)
{
	struct config *c = p->c;
	struct service_config *s, *other;

	if (!c->log_listen.any.sa_family)
		wrong(p, "[host] wants a log_listen");
	if (!c->services)
		wrong(p, "there is no [service NAME]");
	LL_FOREACH(c->services, s) {
		if (lacks(s)) {
			wrong(p, "[service %s] wants a %s", s->name, lacks(s));
			return;
		}
		if (s->peer.any.sa_family != s->at.family)
			wrong(p, "[service %s]: address and peer are not of the same family", s->name);
		if (same_host(&s->peer, &s->at) || same_host(&s->peer_log, &s->at))
			wrong(p, "[service %s]: %s is the service's own address: it is the other host's", s->name,
			      same_host(&s->peer, &s->at) ? "peer" : "peer_log");
		LL_FOREACH(s->next, other)
			if (!memcmp(&s->at, &other->at, sizeof(s->at)))
				wrong(p, "[service %s] and [service %s] have the same address and port", s->name, other->name);
	}
}

static void set_defaults(struct config *c)
{
	char host[NAME_SIZE] = "";

	gethostname(host, sizeof(host) - 1);
	if (!c->name)
		c->name = strdup(host);
	if (!c->control)
		c->control = strdup(TAKEOVER_SOCKET);
	if (!c->store_dir)
		c->store_dir = strdup(TAKEOVER_STORE);
}

/* The library reports its own first mistake only, and goes on: which one is ours, the line tells */
static char *next_line(char *to, int size, void *arg)
{
	struct parser *p = arg;

	p->line++;
	return fgets(to, size, p->f);
}

int config_read(struct config *config, const char *path, char error[ERROR_MAX])
{
	struct parser p = { .c = config, .f = fopen(path, "re") };
	int line;

	*config = (struct config){ .store_limit = 256ull << 20, .arbitrate = 300 * MS };
	if (!p.f) {
		snprintf(error, ERROR_MAX, "%s: %s", path, strerror(errno));
		return -1;
	}
	line = ini_parse_stream(next_line, &p, handle, &p);
	fclose(p.f);
	if (!line && !*p.what)
		check(&p);
	if (!line && !*p.what) {
		set_defaults(config);
		if (config->name && config->control && config->store_dir)
			return 0;
		snprintf(p.what, sizeof(p.what), "%s", strerror(ENOMEM));
	}
	config_free(config);
	if (line && line != p.wrong_line)
		snprintf(error, ERROR_MAX, "%s:%d: neither [section] nor name = value, or a line of more than 199 characters", path, line);
	else if (line)
		snprintf(error, ERROR_MAX, "%s:%d: %s", path, line, p.what);
	else
		snprintf(error, ERROR_MAX, "%s: %s", path, p.what);
	return -1;
}

#define KEPT	"kept"

int config_keep(const struct service_config *s, FILE *f)
{
	fprintf(f, "[service " KEPT "]\naddress = %s\nport = %u\nrole = %s\npeer = %s\npeer_log = %s\ninterface = %s\npatience = %llums\n"
		"join = %s\nmanage_address = %s\nkey = ", endpoint_text(&s->at), ntohs(s->at.port), s->backup ? "backup" : "primary",
		address_text(&s->peer, false), address_text(&s->peer_log, true), s->interface, (unsigned long long)(s->patience / MS),
		s->join ? "yes" : "no", s->manage_address ? "yes" : "no");
	for (unsigned int i = 0; i < KEY_SIZE; i++)
		fprintf(f, "%02x", s->key[i]);
	return fputc('\n', f) == EOF ? -1 : 0;
}

struct service_config *config_kept(const char *path, const char *name)
{
	struct config c = { 0 };
	struct parser p = { .c = &c, .f = fopen(path, "re"), .kept = true };
	struct service_config *s = NULL;

	if (!p.f)
		return NULL;
	if (!ini_parse_stream(next_line, &p, handle, &p) && !*p.what && c.services && !lacks(c.services) && strlen(name) < NAME_SIZE) {
		s = c.services;
		c.services = s->next;
		s->next = NULL;
		strcpy(s->name, name);
	}
	fclose(p.f);
	config_free(&c);
	return s;
}

void config_free(struct config *config)
{
	struct service_config *s, *next;

	LL_FOREACH_SAFE(config->services, s, next) {
		explicit_bzero(s->key, sizeof(s->key));
		free(s);
	}
	free(config->name);
	free(config->store_dir);
	free(config->control);
	free(config->group);
	*config = (struct config){ 0 };
}
