// SPDX-License-Identifier: LGPL-2.1-or-later
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <perdure/tcp_replica.h>
#include "takeover.h"
#include "wire.h"

#define API	__attribute__((visibility("default")))

#define LOCAL_TIMEOUT_MS	3000	/* takeoverd answers sooner, or is not well */
#define LOOK_MS			100	/* how often a role is looked at */
#define COPY_SIZE		65536
#define KEPT_MS			1000	/* no host dies and comes back in less */
#define ABSENT_MS		1000	/* a takeoverd that is away for longer is not being restarted */
#define ABSENT_AGAIN_MS		10000	/* one that nobody has missed for so long may have been there */
#define ALONE_MS		4000	/* one that has not answered somebody who is alone for so long hangs */

/*
 * Connections that are not in use: to takeoverd, and to logs. Who takes one has it for himself, so nothing else needs a lock. A
 * child has none of its parent's.
 */
struct kept {
	int fd;
	int patience_ms;
	bool log;
	bool used;			/* before: its other end may have gone since */
	int64_t given;			/* back, when */
	struct endpoint service;	/* whose log it is */
	struct kept *next;
};

struct takeover_reply {
	int fd;			/* the client's */
	struct kept *log;
	uint64_t id, number;
};

static _Atomic int64_t absent_since, absent_seen;	/* takeoverd */
static struct kept *pool;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t pool_once = PTHREAD_ONCE_INIT;

static void pool_before(void) { pthread_mutex_lock(&pool_lock); }
static void pool_parent(void) { pthread_mutex_unlock(&pool_lock); }

/* Keeps errno */
static void kept_free(struct kept *kept)
{
	int saved = errno;

	close(kept->fd);
	free(kept);
	errno = saved;
}

static void pool_child(void)
{
	while (pool) {
		struct kept *next = pool->next;

		kept_free(pool);
		pool = next;
	}
	pthread_mutex_unlock(&pool_lock);
}

static void pool_init(void)
{
	pthread_atfork(pool_before, pool_parent, pool_child);
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

/* A log that nobody has used for a while may be gone at its other end: while a cable was torn that could not be said */
static bool stale(const struct kept *kept, int64_t now)
{
	return kept->log && now - kept->given > KEPT_MS;
}

static struct kept *pool_take(const struct endpoint *service)
{
	const int64_t now = now_ms();
	struct kept *kept, *found = NULL;

	pthread_once(&pool_once, pool_init);
	pthread_mutex_lock(&pool_lock);
	for (struct kept **at = &pool; (kept = *at);) {
		const bool old = stale(kept, now);
		const bool fits = kept->log == !!service && (!service || !memcmp(&kept->service, service, sizeof(*service)));

		if (!old && (found || !fits)) {
			at = &kept->next;
			continue;
		}
		*at = kept->next;
		if (old)
			kept_free(kept);
		else
			found = kept;
	}
	pthread_mutex_unlock(&pool_lock);
	return found;
}

static void pool_give(struct kept *kept)
{
	kept->used = true;
	kept->given = now_ms();
	pthread_mutex_lock(&pool_lock);
	kept->next = pool;
	pool = kept;
	pthread_mutex_unlock(&pool_lock);
}

/* Connections. */

API enum takeover_role takeover_role(int fd, uint64_t *id)
{
	static const enum takeover_role roles[] = {
		[TCP_REPLICA_OFF] = TAKEOVER_OFF, [TCP_REPLICA_PRIMARY] = TAKEOVER_PRIMARY,
		[TCP_REPLICA_MUTED] = TAKEOVER_BACKUP, [TCP_REPLICA_ALONE] = TAKEOVER_ALONE,
	};
	struct tcp_replica state = { 0 };
	socklen_t len = sizeof(state);
	int saved = errno;

	if (getsockopt(fd, IPPROTO_TCP, TCP_REPLICA, &state, &len) || state.role >= sizeof(roles) / sizeof(roles[0]))
		state = (struct tcp_replica){ 0 };
	errno = saved;
	if (id)
		*id = state.id;
	return roles[state.role];
}

static int replica_op(int fd, uint32_t op, uint32_t flags)
{
	struct tcp_replica arg = { .op = op, .flags = flags };

	if (!setsockopt(fd, IPPROTO_TCP, TCP_REPLICA, &arg, sizeof(arg)))
		return 0;
	if (errno != EBADF && errno != ENOTSOCK)
		errno = ENOENT;		/* a kernel without replication has other words for it */
	return -1;
}

API int takeover_gate(int fd, unsigned int flags)
{
	const uint32_t open = flags & TAKEOVER_OPEN ? TCP_REPLICA_UNGATED : 0;
	const uint32_t busy = flags & TAKEOVER_BUSY ? TCP_REPLICA_BUSY : 0;

	if (flags & ~(TAKEOVER_OPEN | TAKEOVER_BUSY)) {
		errno = EINVAL;
		return -1;
	}
	return replica_op(fd, TCP_REPLICA_GATE, open | busy);
}

API int takeover_leave(int fd)
{
	return replica_op(fd, TCP_REPLICA_LEAVE, 0);
}

static int service_of(int fd, struct endpoint *service)
{
	struct sockaddr_storage name;
	const struct sockaddr_in *v4 = (const void *)&name;
	const struct sockaddr_in6 *v6 = (const void *)&name;
	socklen_t len = sizeof(name);

	*service = (struct endpoint){ 0 };
	if (getsockname(fd, (struct sockaddr *)&name, &len))
		return -1;
	service->family = name.ss_family;
	if (name.ss_family == AF_INET) {
		service->port = v4->sin_port;
		memcpy(service->address, &v4->sin_addr, 4);
	} else if (name.ss_family == AF_INET6) {
		service->port = v6->sin6_port;
		memcpy(service->address, &v6->sin6_addr, 16);
		if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
			service->family = AF_INET;
			memset(service->address, 0, 16);
			memcpy(service->address, &v6->sin6_addr.s6_addr[12], 4);
		}
	}
	return 0;
}

/* takeoverd. */

static void local_name(struct sockaddr_un *name)
{
	const char *path = secure_getenv("TAKEOVER_SOCKET");

	*name = (struct sockaddr_un){ .sun_family = AF_UNIX };
	snprintf(name->sun_path, sizeof(name->sun_path), "%s", path && *path ? path : TAKEOVER_SOCKET);
}

static struct kept *local_open(void)
{
	struct kept *kept = pool_take(NULL);
	struct sockaddr_un name;

	if (kept)
		return kept;
	local_name(&name);
	kept = calloc(1, sizeof(*kept));
	if (!kept)
		return NULL;
	kept->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (kept->fd >= 0 && !connect(kept->fd, (struct sockaddr *)&name, sizeof(name))) {
		absent_since = 0;
		return kept;
	}
	kept_free(kept);	/* of -1, too */
	return NULL;
}

static int local_send(struct kept *local, uint32_t type, uint64_t id, uint64_t number, const struct endpoint *service, bool alone)
{
	struct local_request request = { .version = TAKEOVER_VERSION, .type = type, .id = id, .number = number, .alone = alone };

	request.service = *service;
	return send(local->fd, &request, sizeof(request), MSG_NOSIGNAL) == sizeof(request) ? 0 : -1;
}

static int local_answer(struct kept *local, struct local_answer *answer, int *fd)
{
	int64_t end = now_ms() + LOCAL_TIMEOUT_MS, left;

	while (local_receive(local->fd, answer, fd)) {
		struct pollfd p = { local->fd, POLLIN, 0 };

		if (errno != EAGAIN && errno != EINTR)
			return -1;
		left = end - now_ms();
		if (left <= 0 || !poll(&p, 1, left)) {
			errno = ETIMEDOUT;
			return -1;
		}
	}
	return 0;
}

/* What it makes before anything is taken */
static int store_place(char name[256])
{
	struct sockaddr_un beside;
	struct stat st;

	local_name(&beside);
	/* dirname() may return a constant */
	snprintf(name, 256, "%s/" STORE_LINK, dirname(beside.sun_path));
	return lstat(name, &st);
}

/* There has been one, which may be being started anew: that is waited for, once and not by each who asks. Keeps errno. */
static bool local_returns(void)
{
	const int64_t now = now_ms(), last = absent_seen;
	int saved = errno;
	char name[256];
	bool been;

	if (errno != ENOENT && errno != ECONNREFUSED)
		return false;
	been = !store_place(name);
	errno = saved;
	absent_seen = now;
	if (!absent_since || now - last > ABSENT_AGAIN_MS)
		absent_since = now;
	return been && now - absent_since < ABSENT_MS;
}

/* A kept connection may be one to a takeoverd that is no more: another is tried */
static struct kept *log_open(const struct endpoint *service)
{
	struct local_answer answer;
	struct kept *local, *log;
	bool used;
	int fd;

	for (;;) {
		local = local_open();
		if (!local && local_returns()) {
			poll(NULL, 0, LOOK_MS / 5);
			continue;
		}
		if (!local) {
			errno = errno == ENOENT ? ECONNREFUSED : errno == EACCES ? EPERM : errno;
			return NULL;
		}
		if (!local_send(local, LOCAL_LOG, 0, 0, service, false) && !local_answer(local, &answer, &fd))
			break;
		used = local->used && errno != ETIMEDOUT;
		kept_free(local);
		if (!used)
			return NULL;
	}
	pool_give(local);
	log = answer.type == LOCAL_GIVEN && fd >= 0 ? malloc(sizeof(*log)) : NULL;
	if (log) {
		*log = (struct kept){ .fd = fd, .patience_ms = answer.patience_ms, .log = true, .service = *service };
		return log;
	}
	if (fd >= 0)
		close(fd);
	errno = fd >= 0 ? ENOMEM : answer.error ? answer.error : EPROTO;
	return NULL;
}

/* Replies: the primary. */

/* What the log has said meanwhile: 0 nothing of this reply, 1 that it has it, -1 that it has not */
static int log_hear(struct takeover_reply *reply)
{
	struct log_message m;
	ssize_t n;

	do {
		n = recv(reply->log->fd, &m, sizeof(m), MSG_PEEK | MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (n <= 0) {
			errno = EPIPE;
			return -1;
		}
		if (n < (ssize_t)sizeof(m))
			return 0;
		recv(reply->log->fd, &m, sizeof(m), MSG_DONTWAIT);
		/* One of an earlier reply: its backup has been told */
	} while (be64toh(m.id) != reply->id || be64toh(m.number) != reply->number);
	if (ntohl(m.type) == LOG_STORED)
		return 1;
	errno = ENOSPC;
	return -1;
}

/* Until the socket is ready, and not for ever; nor after a host that is gone by now */
static int log_poll(struct takeover_reply *reply, short events)
{
	struct pollfd p = { reply->log->fd, events, 0 };
	int64_t end = now_ms() + reply->log->patience_ms, left;
	uint64_t id;
	int n;

	for (;;) {
		left = end - now_ms();
		n = poll(&p, 1, left > LOOK_MS ? LOOK_MS : left > 0 ? left : 0);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -1;
		if (takeover_role(reply->fd, &id) != TAKEOVER_PRIMARY || id != reply->id) {
			errno = EPIPE;
			return -1;
		}
		if (left <= 0) {
			errno = ETIMEDOUT;
			return -1;
		}
	}
}

static int log_send(struct takeover_reply *reply, const void *data, size_t size, bool more)
{
	const char *at = data;

	while (size) {
		ssize_t n = send(reply->log->fd, at, size, MSG_NOSIGNAL | (more ? MSG_MORE : 0));

		if (n > 0) {
			at += n;
			size -= n;
		} else if (errno == EAGAIN) {
			if (log_poll(reply, POLLOUT) || log_hear(reply) < 0)
				return -1;
		} else if (errno != EINTR) {
			if (errno != ENOMEM)
				errno = EPIPE;
			return -1;
		}
	}
	return 0;
}

static int log_say(struct takeover_reply *reply, uint32_t type, uint32_t length, bool more)
{
	const struct log_message m = { htonl(type), htonl(length), htobe64(reply->id), htobe64(reply->number) };

	return log_send(reply, &m, sizeof(m), more);
}

/* Nobody else is to use a connection that ends in the middle of something */
static int reply_fail(struct takeover_reply *reply)
{
	int saved = errno;

	if (reply->log) {
		kept_free(reply->log);
		reply->log = NULL;
		takeover_leave(reply->fd);
	}
	errno = saved;
	return -1;
}

/* One that has failed stays so, and the caller may end it, or abort it, as he likes */
static bool reply_ended(const struct takeover_reply *reply)
{
	if (!reply->log)
		errno = EPIPE;
	return !reply->log;
}

API int takeover_reply_begin(int fd, uint64_t id, uint64_t number, struct takeover_reply **reply)
{
	struct takeover_reply *r;
	struct endpoint service;
	uint64_t now;
	int saved;

	*reply = NULL;
	r = calloc(1, sizeof(*r));
	if (r && (takeover_role(fd, &now) != TAKEOVER_PRIMARY || now != id)) {
		errno = ENOTCONN;
		goto fail;
	}
	if (!r || service_of(fd, &service))
		goto fail;
	*r = (struct takeover_reply){ .fd = fd, .id = id, .number = number };
	for (;;) {
		r->log = pool_take(&service);
		if (!r->log)
			break;
		if (!log_hear(r) && !log_say(r, LOG_BEGIN, 0, false))
			goto begun;
		kept_free(r->log);
	}
	r->log = log_open(&service);
	if (!r->log || log_say(r, LOG_BEGIN, 0, false))
		goto fail;
begun:
	*reply = r;
	return 0;
fail:
	saved = errno;
	if (r && r->log)
		kept_free(r->log);
	takeover_leave(fd);
	free(r);
	errno = saved;
	return -1;
}

API int takeover_reply_write(struct takeover_reply *reply, const void *data, size_t size)
{
	const char *at = data;

	if (reply_ended(reply))
		return -1;
	if (log_hear(reply) < 0)
		return reply_fail(reply);
	while (size) {
		size_t part = size < LOG_DATA_MAX ? size : LOG_DATA_MAX;

		if (log_say(reply, LOG_DATA, part, true) || log_send(reply, at, part, false))
			return reply_fail(reply);
		at += part;
		size -= part;
	}
	return 0;
}

/* Not sendfile(2), which ends the caller with SIGPIPE when the log is gone */
API int takeover_reply_sendfile(struct takeover_reply *reply, int in, off_t offset, size_t size)
{
	char buffer[COPY_SIZE];

	if (reply_ended(reply))
		return -1;
	if (log_hear(reply) < 0)
		return reply_fail(reply);
	while (size) {
		size_t part = size < LOG_DATA_MAX ? size : LOG_DATA_MAX;

		if (log_say(reply, LOG_DATA, part, true))
			return reply_fail(reply);
		size -= part;
		while (part) {
			ssize_t n = pread(in, buffer, part < sizeof(buffer) ? part : sizeof(buffer), offset);

			if (n > 0) {
				if (log_send(reply, buffer, n, false))
					return reply_fail(reply);
				offset += n;
				part -= n;
			} else if (!n || errno != EINTR) {
				if (!n)
					errno = EIO;
				return reply_fail(reply);
			}
		}
	}
	return 0;
}

static int stored(struct takeover_reply *reply)
{
	int64_t end = now_ms() + reply->log->patience_ms;
	int heard;

	while (!(heard = log_hear(reply))) {
		if (now_ms() >= end)
			errno = ETIMEDOUT;
		else if (!log_poll(reply, POLLIN))
			continue;
		return -1;
	}
	return heard > 0 ? 0 : -1;
}

API int takeover_reply_end(struct takeover_reply *reply, bool acknowledged)
{
	int result = -1;

	if (reply_ended(reply))
		goto out;
	if (log_hear(reply) < 0 || log_say(reply, acknowledged ? LOG_END_SAY : LOG_END, 0, false) || (acknowledged && stored(reply))) {
		reply_fail(reply);
		goto out;
	}
	pool_give(reply->log);
	result = 0;
out:
	free(reply);
	return result;
}

API void takeover_reply_abort(struct takeover_reply *reply)
{
	int saved = errno;

	if (!reply)
		return;
	if (reply->log && log_say(reply, LOG_ABORT, 0, false)) {
		reply_fail(reply);
	} else if (reply->log) {
		takeover_leave(reply->fd);
		pool_give(reply->log);
	}
	free(reply);
	errno = saved;
}

/* Replies: the backup. */

/* What this process knows of takeoverd, which it need not find out for each request that is alone: it is not there, or hangs */
static _Atomic bool gone, hangs;

/* Without a takeoverd to ask: what it had taken stays. Nobody adds to it meanwhile. */
static enum takeover_verdict stored_reply(const struct endpoint *service, uint64_t id, uint64_t number, struct takeover_result *result)
{
	char name[256], address[INET6_ADDRSTRLEN];
	const bool none = store_place(name);
	enum takeover_verdict verdict;
	struct stat st;
	int dir;

	dir = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);
	/* It is made before anything is taken: who has never had it has no reply */
	if (dir < 0)
		return errno == ENOENT && none ? TAKEOVER_EXECUTE : TAKEOVER_REFUSED;
	inet_ntop(service->family, service->address, address, sizeof(address));
	snprintf(name, sizeof(name), STORE_NAME, address, ntohs(service->port), id, number);
	result->fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	verdict = result->fd < 0 && errno == ENOENT ? TAKEOVER_EXECUTE : TAKEOVER_REFUSED;
	close(dir);
	if (result->fd < 0)
		return verdict;
	if (fstat(result->fd, &st)) {
		close(result->fd);
		result->fd = -1;
		return TAKEOVER_REFUSED;
	}
	result->length = st.st_size;
	return TAKEOVER_REPLY;
}

/* false: it says only that the role is to be looked at */
static bool answer_decides(const struct local_answer *answer, int given, enum takeover_verdict *verdict, struct takeover_result *result)
{
	if (answer->type == LOCAL_LOOK)
		return false;
	*verdict = answer->type == LOCAL_EXECUTE ? TAKEOVER_EXECUTE : TAKEOVER_REFUSED;
	if (answer->type == LOCAL_GIVEN && given >= 0) {
		*result = (struct takeover_result){ given, answer->length };
		*verdict = TAKEOVER_REPLY;
	}
	return true;
}

/* It may have woken up just now: what it has given is not in its store any more, and has been sent before */
static enum takeover_verdict late_reply(const struct kept *local, enum takeover_verdict stored, struct takeover_result *result)
{
	enum takeover_verdict verdict = stored;
	struct local_answer answer;
	int given;

	while (stored == TAKEOVER_EXECUTE && !local_receive(local->fd, &answer, &given)) {
		hangs = false;
		if (answer_decides(&answer, given, &verdict, result))
			break;
	}
	return verdict;
}

API enum takeover_verdict takeover_reply_wait(int fd, uint64_t id, uint64_t number, struct takeover_result *result)
{
	enum takeover_verdict verdict = TAKEOVER_REFUSED;
	struct kept *local = NULL;
	struct endpoint service;
	struct local_answer answer;
	int64_t absent = 0, alone_at = 0;
	bool told = false;	/* that it is alone */
	bool busy;		/* it may well be there, but nobody can get through */
	int saved = errno, given;

	*result = (struct takeover_result){ .fd = -1 };
	if (service_of(fd, &service))
		goto out;
	for (;;) {
		struct pollfd p[2] = { { fd, 0, 0 }, { -1, POLLIN, 0 } };
		const bool alone = takeover_role(fd, NULL) != TAKEOVER_BACKUP;

		if (alone && !alone_at)
			alone_at = now_ms();
		if (alone && now_ms() - alone_at >= (hangs ? LOOK_MS : ALONE_MS)) {
			hangs = true;
			verdict = stored_reply(&service, id, number, result);
			if (local)
				verdict = late_reply(local, verdict, result);
			break;
		}
		if (!local) {
			local = local_open();
			if (local && local_send(local, LOCAL_WAIT, id, number, &service, alone)) {
				kept_free(local);
				local = NULL;
				continue;
			}
			busy = !local && (errno == EAGAIN || errno == EMFILE || errno == ENFILE || errno == ENOMEM);
			told = alone;
			if (local || busy)
				gone = false;
			if (local)
				absent = 0;
			else if (!absent || busy)
				absent = now_ms();
			if (!local && alone && (gone || now_ms() - absent >= ABSENT_MS)) {
				gone = true;
				verdict = stored_reply(&service, id, number, result);
				break;
			}
		} else if (alone && !told) {
			/* If this does not arrive, neither will an answer */
			local_send(local, LOCAL_ALONE, id, number, &service, true);
			told = true;
		}
		p[1].fd = local ? local->fd : -1;
		poll(p, 2, LOOK_MS);
		if (p[0].revents)
			break;		/* whoever asked is not there any more */
		if (!local || !p[1].revents)
			continue;
		if (local_receive(local->fd, &answer, &given)) {
			if (errno == EAGAIN || errno == EINTR)
				continue;
			if (!local->used)
				poll(p, 1, LOOK_MS);	/* it takes nobody now */
			kept_free(local);
			local = NULL;
			continue;
		}
		hangs = false;
		if (!answer_decides(&answer, given, &verdict, result))
			continue;
		pool_give(local);
		local = NULL;
		break;
	}
out:
	if (local)
		kept_free(local);
	if (verdict == TAKEOVER_REFUSED)
		takeover_leave(fd);
	errno = saved;
	return verdict;
}
