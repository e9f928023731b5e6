// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The reply log: what the peer's servers write, and our own wait for.
 *
 * A reply is a file without a name while it comes. When it is whole, it is given to who waits for it; if nobody does yet, it gets a
 * name, so that it outlives this program. It is given once. Of each connection the highest number that has been answered is kept for
 * a while: such a request is never executed, and never logged again.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <syslog.h>
#include <unistd.h>
#include <uthash.h>
#include <utlist.h>

#include "takeoverd.h"

#define ENTRY_COST	4096u			/* of an empty file */
#define ENTRY_KEPT_NS	(60 * SECOND_NS)	/* that nobody asks for, and nobody writes to */
#define PAST_KEPT_NS	(600 * SECOND_NS)
#define PAST_MAX	1000000u
#define LOGS_MAX	16384u
#define READ_SIZE	(256u << 10)

struct key {
	uint64_t service;	/* its place in memory */
	uint64_t id;
	uint64_t number;
};

struct entry {
	struct key key;
	struct service *svc;
	enum { OPEN, WHOLE, REFUSED, LOST } state;
	int fd;
	bool named;
	uint64_t size, when;
	struct log *from;	/* of OPEN */
	UT_hash_handle hh;
};

struct past {
	struct key key;		/* its number: 0 */
	uint64_t answered;	/* the highest number, and one */
	uint64_t when;
	UT_hash_handle hh;
};

struct wait {
	struct key key;
	struct client *client;
	struct service *svc;
	bool alone;
	uint64_t quiet_since;
	UT_hash_handle hh;
};

/* A connection on which one server's process of the peer writes, one reply after another */
struct log {
	struct watch watch;
	struct service *svc;
	struct log_message head;
	size_t have;		/* of the head */
	uint32_t left;		/* data to come */
	bool open;		/* a reply is under way */
	struct key key;		/* which */
	struct entry *entry;	/* NULL: it is not wanted any more */
	struct log *prev, *next;
};

static struct entry *entries;
static struct past *pasts;
static struct wait *waits;
static unsigned int logs_count;
static uint64_t used;
static int dir = -1;

static struct key key_of(const struct service *svc, uint64_t id, uint64_t number)
{
	return (struct key){ (uintptr_t)svc, id, number };
}

/* What has been answered. */

static bool past_answered(struct key key)
{
	const uint64_t number = key.number;
	struct past *past;

	key.number = 0;
	HASH_FIND(hh, pasts, &key, sizeof(key), past);
	return past && number < past->answered;
}

static void past_set(struct key key)
{
	const uint64_t number = key.number;
	struct past *past;

	key.number = 0;
	HASH_FIND(hh, pasts, &key, sizeof(key), past);
	if (past) {
		HASH_DEL(pasts, past);
	} else if (HASH_COUNT(pasts) < PAST_MAX) {
		past = must_alloc(sizeof(*past));
	} else {
		past = pasts;	/* the one that has been used the longest time ago: it is the first */
		HASH_DEL(pasts, past);
		past->answered = 0;
	}
	past->key = key;
	past->when = now_ns();
	if (past->answered <= number)
		past->answered = number + 1;
	HASH_ADD(hh, pasts, key, sizeof(past->key), past);
}

/* Entries. */

static void entry_name(const struct entry *e, char name[256])
{
	snprintf(name, 256, STORE_NAME, endpoint_text(&e->svc->c->at), ntohs(e->svc->c->at.port), e->key.id, e->key.number);
}

static struct entry *entry_find(struct key key)
{
	struct entry *e;

	HASH_FIND(hh, entries, &key, sizeof(key), e);
	return e;
}

static struct entry *entry_new(struct service *svc, struct key key, int state)
{
	struct entry *e = must_alloc(sizeof(*e));

	e->svc = svc;
	e->key = key;
	e->state = state;
	e->fd = -1;
	e->when = now_ns();
	used += ENTRY_COST;
	HASH_ADD(hh, entries, key, sizeof(e->key), e);
	return e;
}

/* What it takes, beside itself */
static void entry_empty(struct entry *e)
{
	char name[256];

	if (e->named) {
		entry_name(e, name);
		unlinkat(dir, name, 0);
		e->named = false;
	}
	if (e->fd >= 0)
		close(e->fd);
	e->fd = -1;
	used -= e->size;
	e->size = 0;
	if (e->from)
		e->from->entry = NULL;
	e->from = NULL;
}

static void entry_free(struct entry *e)
{
	entry_empty(e);
	if (e->state != REFUSED)
		used -= ENTRY_COST;
	HASH_DEL(entries, e);
	free(e);
}

uint64_t store_used(void) { return used; }
uint64_t store_entries(void) { return HASH_COUNT(entries); }

uint64_t store_open_entries(void)
{
	const struct entry *e;
	uint64_t count = 0;

	for (e = entries; e; e = e->hh.next)
		count += e->state == OPEN;
	return count;
}

/* Waits. */

static void wait_end(struct wait *wait, uint32_t type, int fd, uint64_t length)
{
	struct client *client = wait->client;

	HASH_DEL(waits, wait);
	free(wait);
	client_answer(client, type, fd, length);
}

static struct wait *wait_find(struct key key)
{
	struct wait *wait;

	HASH_FIND(hh, waits, &key, sizeof(key), wait);
	return wait;
}

static void log_drain(struct service *svc);
static void log_say(struct log *log, uint32_t type);

static void entry_give(struct entry *e, struct wait *wait)
{
	const uint64_t length = e->size;
	char name[256];
	int fd;

	/* Read-only, and with a place of its own */
	if (e->named) {
		entry_name(e, name);
		fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	} else {
		snprintf(name, sizeof(name), "/proc/self/fd/%d", e->fd);
		fd = open(name, O_RDONLY | O_CLOEXEC);
	}
	past_set(e->key);
	if (fd < 0) {
		say(LOG_ERR, "%s: a reply cannot be given: %s", e->svc->c->name, strerror(errno));
		e->svc->refused++;
	} else {
		e->svc->replies++;
	}
	/* Who has not heard of us for too long looks for the name, and then for this: it finds one of them */
	wait_end(wait, fd < 0 ? LOCAL_REFUSED : LOCAL_GIVEN, fd, length);
	entry_free(e);
}

/* Is there an answer now? */
static void wait_look(struct wait *wait)
{
	struct service *svc = wait->svc;
	const struct key key = wait->key;
	struct entry *e;

	if (wait->alone) {
		/* What the primary has said is not to be lost in our own socket. It may be the answer, which ends the wait. */
		log_drain(svc);
		if (!wait_find(key))
			return;
	}
	e = entry_find(key);
	if (e && e->state == WHOLE) {
		entry_give(e, wait);
	} else if ((e && e->state == REFUSED) || past_answered(key)) {
		if (e)
			entry_free(e);
		past_set(key);
		svc->refused++;
		wait_end(wait, LOCAL_REFUSED, -1, 0);
	} else if (wait->alone) {
		if (e && e->from)
			log_say(e->from, LOG_REFUSED);
		if (e)
			entry_free(e);
		past_set(key);
		svc->executed++;
		wait_end(wait, LOCAL_EXECUTE, -1, 0);
	}
}

struct wait *wait_new(struct client *client, struct service *svc, uint64_t id, uint64_t number, bool alone)
{
	const struct key key = key_of(svc, id, number);
	struct wait *wait;

	if (wait_find(key)) {
		client_answer(client, LOCAL_REFUSED, -1, 0);
		return NULL;
	}
	wait = must_alloc(sizeof(*wait));
	*wait = (struct wait){ .key = key, .client = client, .svc = svc, .alone = alone, .quiet_since = now_ns() };
	HASH_ADD(hh, waits, key, sizeof(wait->key), wait);
	wait_look(wait);
	return wait_find(key);
}

void wait_alone(struct wait *wait)
{
	wait->alone = true;
	wait_look(wait);
}

void wait_cancel(struct wait *wait)
{
	HASH_DEL(waits, wait);
	free(wait);
}

void waits_look(struct service *svc)
{
	struct wait *wait;

	for (wait = waits; wait; wait = wait->hh.next)
		if (wait->svc == svc)
			client_look(wait->client);
}

/* Logs. */

static void log_say(struct log *log, uint32_t type)
{
	const struct log_message m = { htonl(type), 0, htobe64(log->key.id), htobe64(log->key.number) };

	/* One that does not read goes without: its kernel learns it from our server */
	send(log->watch.fd, &m, sizeof(m), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void entry_refuse(struct entry *e, const char *why)
{
	struct log *log = e->from;
	struct wait *wait;

	say(LOG_WARNING, "%s: a reply is not logged: %s", e->svc->c->name, why);
	entry_empty(e);
	used -= ENTRY_COST;	/* it is remembered, but takes no file: a log that refuses gets room again */
	e->state = REFUSED;
	e->when = now_ns();
	if (log)
		log_say(log, LOG_REFUSED);
	wait = wait_find(e->key);
	if (wait)
		wait_look(wait);
}

static void reply_begin(struct log *log, struct key key)
{
	struct entry *e;

	log->open = true;
	log->key = key;
	log->entry = NULL;
	if (key.number == UINT64_MAX || entry_find(key) || past_answered(key)) {
		log_say(log, LOG_REFUSED);
		return;
	}
	e = entry_new(log->svc, key, OPEN);
	e->from = log;
	log->entry = e;
	if (used > config.store_limit) {
		entry_refuse(e, "store_limit");
		return;
	}
	e->fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0640);
	if (e->fd < 0)
		entry_refuse(e, strerror(errno));
}

static void reply_data(struct log *log, const void *data, size_t size)
{
	struct entry *e = log->entry;
	ssize_t n;

	if (!e)
		return;
	if (used + size > config.store_limit) {
		entry_refuse(e, "store_limit");
		return;
	}
	n = write(e->fd, data, size);
	e->when = now_ns();
	if (n > 0) {
		used += n;
		e->size += n;
	}
	if (n != (ssize_t)size)
		entry_refuse(e, n < 0 ? strerror(errno) : strerror(ENOSPC));
}

static void reply_end(struct log *log, bool acknowledge)
{
	struct entry *e = log->entry;
	char path[32], name[256];
	struct wait *wait;

	log->open = false;
	log->entry = NULL;
	if (!e) {
		if (acknowledge)
			log_say(log, LOG_REFUSED);
		return;
	}
	wait = wait_find(e->key);
	if (!wait) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", e->fd);
		entry_name(e, name);
		if (linkat(AT_FDCWD, path, dir, name, AT_SYMLINK_FOLLOW)) {
			entry_refuse(e, strerror(errno));
			return;
		}
		/* Its name is enough: there may be more of them than descriptors */
		e->named = true;
		close(e->fd);
		e->fd = -1;
	}
	e->state = WHOLE;
	e->from = NULL;
	e->when = now_ns();
	if (wait)
		entry_give(e, wait);
	if (acknowledge)
		log_say(log, LOG_STORED);
}

/* Its writer is gone, or does not go on */
static void reply_lost(struct log *log, bool refused)
{
	struct entry *e = log->entry;
	struct wait *wait;

	log->open = false;
	log->entry = NULL;
	if (!e)
		return;
	e->from = NULL;
	entry_empty(e);
	e->when = now_ns();
	e->svc->lost++;
	if (refused) {
		entry_refuse(e, "the primary has given it up");
		return;
	}
	e->state = LOST;
	wait = wait_find(e->key);
	if (wait)
		wait->quiet_since = now_ns();
}

/* false: this is not our protocol */
static bool log_message(struct log *log)
{
	const uint32_t type = ntohl(log->head.type), length = ntohl(log->head.length);
	const struct key key = key_of(log->svc, be64toh(log->head.id), be64toh(log->head.number));
	const bool same = log->open && !memcmp(&key, &log->key, sizeof(key));

	log->have = 0;
	if (type == LOG_BEGIN ? log->open || length : !same || (type != LOG_DATA && length))
		return false;
	switch (type) {
	case LOG_BEGIN:
		reply_begin(log, key);
		return true;
	case LOG_DATA:
		log->left = length;
		return length <= LOG_DATA_MAX;
	case LOG_END:
	case LOG_END_SAY:
		reply_end(log, type == LOG_END_SAY);
		return true;
	case LOG_ABORT:
		reply_lost(log, true);
		return true;
	}
	return false;
}

static bool log_bytes(struct log *log, const char *data, size_t size)
{
	while (size) {
		size_t part;

		if (log->left) {
			part = size < log->left ? size : log->left;
			log->left -= part;
			reply_data(log, data, part);
		} else {
			part = sizeof(log->head) - log->have;
			part = size < part ? size : part;
			memcpy((char *)&log->head + log->have, data, part);
			log->have += part;
			if (log->have == sizeof(log->head) && !log_message(log))
				return false;
		}
		data += part;
		size -= part;
	}
	return true;
}

static void log_close(struct log *log)
{
	reply_lost(log, false);
	DL_DELETE(log->svc->logs, log);
	logs_count--;
	watch_close(&log->watch);
	free(log);
}

/* false: there is no more to come. @turns: how much of it, before others have their turn */
static bool log_read(struct log *log, unsigned int turns)
{
	static char buffer[READ_SIZE];

	while (turns--) {
		ssize_t n = recv(log->watch.fd, buffer, sizeof(buffer), MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return true;
		if (n <= 0)
			return false;
		if (!log_bytes(log, buffer, n)) {
			say(LOG_WARNING, "%s: a log's connection does not keep to the protocol", log->svc->c->name);
			return false;
		}
		if (n < (ssize_t)sizeof(buffer))
			return true;
	}
	return true;
}

static void log_ready(struct watch *watch, uint32_t events)
{
	struct log *log = (struct log *)watch;

	(void)events;
	if (!log_read(log, 1))
		log_close(log);
}

/* All that has come by now */
static void log_drain(struct service *svc)
{
	static bool draining;
	struct log *log, *next;

	if (draining)
		return;
	draining = true;
	DL_FOREACH_SAFE(svc->logs, log, next)
		if (!log_read(log, UINT_MAX))
			log_close(log);
	draining = false;
}

void log_accept(struct service *svc, int fd)
{
	const unsigned int patience_ms = svc->c->patience / 1000000;
	const int on = 1, idle = 10;
	struct log *log;

	/* One whose host is gone says nothing */
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof(patience_ms));
	log = logs_count < LOGS_MAX ? calloc(1, sizeof(*log)) : NULL;
	if (log)
		log->watch = (struct watch){ fd, log_ready };
	if (!log || watch_add(&log->watch, EPOLLIN)) {
		free(log);
		close(fd);
		return;
	}
	log->svc = svc;
	logs_count++;
	DL_APPEND(svc->logs, log);
}

void logs_close(struct service *svc)
{
	log_drain(svc);
	while (svc->logs)
		log_close(svc->logs);
}

/* Time. */

/* Nobody executes it, though the peer's host is there, and has been for long enough: it has been asked meanwhile */
static bool wait_in_vain(const struct wait *wait, uint64_t now)
{
	const struct entry *e = entry_find(wait->key);
	const uint64_t limit = wait->quiet_since + wait->svc->c->patience;

	return wait->svc->state == PROTECTED && (!e || e->state == LOST) && now > limit && wait->svc->alive_at > limit;
}

/* A server may begin a reply and forget it, and its process live on */
static void entry_forgotten(struct entry *e)
{
	struct log *log = e->from;

	e->svc->forgotten++;
	entry_refuse(e, "it was begun, and nothing has come of it since");
	log_close(log);
}

void store_tick(uint64_t now)
{
	static uint64_t swept;
	struct entry *e, *next_entry;
	struct past *past, *next_past;
	struct wait *wait, *next_wait;

	HASH_ITER(hh, waits, wait, next_wait)
		if (wait_in_vain(wait, now)) {
			e = entry_find(wait->key);
			if (e)
				entry_free(e);
			past_set(wait->key);
			wait->svc->refused++;
			wait_end(wait, LOCAL_REFUSED, -1, 0);
		}
	if (now - swept < SECOND_NS)
		return;
	swept = now;
	HASH_ITER(hh, entries, e, next_entry) {
		/* However long it takes, as long as somebody wants it */
		if (e->state == OPEN && wait_find(e->key))
			e->when = now;
		if (now - e->when <= ENTRY_KEPT_NS || wait_find(e->key))
			continue;
		if (e->state == OPEN) {
			entry_forgotten(e);
		} else {
			past_set(e->key);
			entry_free(e);
		}
	}
	HASH_ITER(hh, pasts, past, next_past) {
		if (now - past->when < PAST_KEPT_NS)
			break;
		HASH_DEL(pasts, past);
		free(past);
	}
}

/* What was whole when the last one ended. Its name says what it is. */
static void entry_found(const char *name)
{
	char address[INET6_ADDRSTRLEN];
	struct endpoint at = { 0 };
	struct service *svc;
	struct entry *e;
	unsigned int port;
	uint64_t id, number;
	struct stat st;

	if (sscanf(name, "%45[^-]-%u.%" SCNx64 ".%" SCNu64, address, &port, &id, &number) != 4)
		return;
	at.family = strchr(address, ':') ? AF_INET6 : AF_INET;
	at.port = htons(port);
	if (inet_pton(at.family, address, at.address) != 1 || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
		return;
	svc = service_at(&at);
	/* Nobody asks for it: one that has been taken out of the file is still among them while its connections are with both hosts */
	if (!svc) {
		unlinkat(dir, name, 0);
		return;
	}
	e = entry_new(svc, key_of(svc, id, number), WHOLE);
	e->named = true;
	e->size = st.st_size;
	used += e->size;
}

int store_open(void)
{
	const struct group *group = config.group ? getgrnam(config.group) : NULL;
	char beside[PATH_MAX], new[PATH_MAX];
	struct dirent *entry;
	struct statvfs room;
	DIR *d;
	int fd;

	if (config.group && !group) {
		say(LOG_ERR, "group = %s: there is no such group", config.group);
		return -1;
	}
	if ((mkdir(config.store_dir, 0750) && errno != EEXIST) || (dir = open(config.store_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 ||
	    (group && (fchown(dir, -1, group->gr_gid) || fchmod(dir, 02750)))) {
		say(LOG_ERR, "store_dir = %s: %s", config.store_dir, strerror(errno));
		return -1;
	}
	fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0640);
	if (fd < 0) {
		say(LOG_ERR, "store_dir = %s: %s", config.store_dir, errno == EOPNOTSUPP ? "its file system has no O_TMPFILE" : strerror(errno));
		return -1;
	}
	close(fd);
	/* Others write there, too: our own states, and the host's service manager */
	if (!fstatvfs(dir, &room) && config.store_limit > (uint64_t)room.f_blocks * room.f_frsize / 2) {
		config.store_limit = (uint64_t)room.f_blocks * room.f_frsize / 2;
		say(LOG_WARNING, "store_limit is more than half of %s: %" PRIu64 " MiB are used", config.store_dir, config.store_limit >> 20);
	}
	control_beside(STORE_LINK, beside);
	control_beside(STORE_LINK ".new", new);
	unlink(new);
	if (symlink(config.store_dir, new) || rename(new, beside)) {
		say(LOG_ERR, "%s: %s", beside, strerror(errno));
		return -1;
	}
	d = opendir(config.store_dir);
	while (d && (entry = readdir(d)))
		entry_found(entry->d_name);
	if (d)
		closedir(d);
	return 0;
}
