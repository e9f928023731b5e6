// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * The books of connections: where a request begins, where its answer begins, and what the answer was so far. A new generation makes the
 * answer again from its beginning (replay); what the client has of it is compared and not written (skip). See perdure_conn(3).
 *
 * The kernel counts what has been read, released and written; the books are in a state area. A record belongs to a socket by the socket's
 * cookie, which the kernel gives once: its descriptor only tells where the record is. What changes together lies in struct answer, of
 * which there are two; one store tells which of them is true. So a fault at any instruction leaves books that are true.
 */
#include <errno.h>
#include <perdure.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "digest.h"
#include "io.h"

#define LAYOUT		1		/* to be changed with struct books and struct record */
#define FDS_MAX		(1 << 20)	/* nobody's limit by default */
#define WRITE_MAX	(1 << 30)	/* in one call, so that half of a sum tells where it was made */

#ifndef SO_COOKIE
#define SO_COOKIE	57
#endif

enum {
	ENDED = 1,			/* nothing comes after it */
	CONSUMED = 2,			/* a part of the request is gone: it cannot be made again */
};

/*
 * An answer, the last one of the connection. A sum is a number of its bytes, modulo 2^32, and in the upper half their digest; bytes of
 * files are not in it, but which file it was and where.
 */
struct answer {
	uint64_t input;			/* bytes of requests that have been answered before it */
	uint64_t output;		/* bytes of answers before it */
	_Atomic uint64_t written;	/* sum of what has been written of it */
	_Atomic uint64_t attempt;	/* what that becomes if the present write gets through */
	uint32_t flags;
	uint32_t reserved;
};

struct record {
	_Atomic uint64_t id;		/* of the socket; 0: none */
	uint64_t suspected;		/* bytes read and written when it was last suspected of a fault */
	_Atomic uint32_t now;		/* which of the answers */
	uint32_t reserved;
	struct answer answers[2];
	_Alignas(16) char tag[];
};

struct books {
	_Atomic uint32_t plain;		/* something has been read or written uncounted: they are of no use */
	uint32_t reserved[15];
	char records[];
};

struct perdure_conns {
	struct books *books;
	int max;			/* no descriptor is as high */
	size_t record;			/* bytes of each */
	bool restarted;
	int suspect_fd;
};

struct perdure_conn {
	struct perdure_conns *conns;
	struct record *record;		/* NULL: no books are kept */
	int fd;
	unsigned int flags;
	size_t release;			/* bytes of input that have been answered and are held still */
	uint64_t done;			/* bytes of the answer that are there: written, or skipped */
	uint64_t skip;			/* bytes of it that an old generation has written */
	uint64_t checks[2];		/* of these, where they are compared ... */
	uint32_t sums[2];		/* ... and with what */
	struct digest digests[2], *digest;	/* of the bytes that are there; the other one is scratch */
	bool broken;
	/* The file that is being sent */
	struct stat file;
	off_t file_offset;
	uint64_t file_done;
	void *tag;
};

static uint64_t sum(uint64_t done, const struct digest *d)
{
	return (uint64_t)digest_value(d) << 32 | (uint32_t)done;
}

static struct record *record_of(const struct perdure_conns *conns, int fd)
{
	return (struct record *)(conns->books->records + fd * conns->record);
}

static struct answer *answer_of(struct record *r)
{
	return &r->answers[atomic_load_explicit(&r->now, memory_order_relaxed) & 1];
}

/* What no other open file has had while this machine is up */
static uint64_t identity(int fd)
{
	socklen_t len = sizeof(uint64_t);
	uint64_t id = 0;
	struct stat st;

	if (!getsockopt(fd, SOL_SOCKET, SO_COOKIE, &id, &len) && id)
		return id;
	/* Pipes and terminals; unlike a cookie, it has the highest bit */
	return fstat(fd, &st) ? 0 : ((uint64_t)st.st_dev << 40 ^ st.st_ino) | 1ULL << 63;
}

static bool from_outside(const struct reg_info *info)
{
	return info->signo && (info->code == SI_USER || info->code == SI_QUEUE);
}

int perdure_suspect(void)
{
	struct reg_info info;

	if (getreginfo(&info) != 1 || !info.is_restarted || from_outside(&info))
		return -1;
	return info.suspect_fd;
}

struct perdure_conns *perdure_conns_open(const char *name, int max, size_t tag_size)
{
	struct perdure_conns *conns;
	struct reg_info info;
	struct rlimit limit;
	int inherited;

	if (max < 0 || max > FDS_MAX || tag_size > PERDURE_TAG_MAX) {
		errno = EINVAL;
		return NULL;
	}
	if (!max)
		max = getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur > FDS_MAX ? FDS_MAX : limit.rlim_cur;
	conns = calloc(1, sizeof(*conns));
	if (!conns)
		return NULL;
	conns->max = max;
	conns->record = (sizeof(struct record) + tag_size + 15) & ~15UL;
	conns->restarted = getreginfo(&info) == 1 && info.is_restarted;
	conns->suspect_fd = perdure_suspect();
	conns->books = perdure_state_open(name, sizeof(struct books) + max * conns->record, LAYOUT << 16 | tag_size, NULL,
					  &inherited);
	if (!conns->books)
		goto fail;
	if (conns->books->plain) {
		perdure_state_close(conns->books);
		errno = ESTALE;
		goto fail;
	}
	return conns;
fail:
	free(conns);
	return NULL;
}

void perdure_conns_close(struct perdure_conns *conns)
{
	if (!conns)
		return;
	perdure_state_close(conns->books);
	free(conns);
}

/* Uncounted from now on: what the books say is not true in a later generation. */
static bool unprotected(struct perdure_conns *conns)
{
	if (!io_plain())
		return false;
	atomic_store_explicit(&conns->books->plain, 1, memory_order_relaxed);
	return true;
}

/* The client sees that it has not got all, at once. */
static void reset(int fd)
{
	const struct linger now = { .l_onoff = 1 };
	const struct sockaddr none = { .sa_family = AF_UNSPEC };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	if (connect(fd, &none, sizeof(none)))
		shutdown(fd, SHUT_RDWR);
}

static int different(struct perdure_conn *c)
{
	c->broken = true;
	reset(c->fd);
	errno = ESTALE;
	return -1;
}

/* The number of bytes that a sum was made of, which are at most @most */
static uint64_t sum_of(uint64_t sum, uint64_t most)
{
	return most - (uint32_t)(most - (uint32_t)sum);
}

/* Requests that have been answered, and were not released in time, are not to be seen again. */
static bool drop(int fd, uint64_t len)
{
	char buf[4096];
	ssize_t n;

	for (; len; len -= n) {
		size_t part = len < sizeof(buf) ? len : sizeof(buf);

		n = perdure_read(fd, buf, part, 0, HREAD_NOWAIT);
		if (n <= 0 || perdure_release(fd, n))
			return false;
	}
	return true;
}

static bool books_fit(const struct answer *a, const struct io_log *log)
{
	return a->input >= log->released && a->input <= log->read && a->output <= log->written &&
	       !(a->flags & CONSUMED) && sum_of(a->written, log->written - a->output) <= log->written - a->output;
}

static bool inherit(struct perdure_conn *c, const struct io_log *log)
{
	const struct answer *a = answer_of(c->record);
	uint64_t at = log->read + log->written + 1;

	if (!books_fit(a, log) || !drop(c->fd, a->input - log->released))
		return false;
	c->skip = log->written - a->output;
	c->checks[0] = sum_of(a->written, c->skip);
	c->sums[0] = a->written >> 32;
	/* Where nothing is known, nothing is compared. */
	c->checks[1] = (uint32_t)a->attempt == (uint32_t)c->skip ? c->skip : c->checks[0];
	c->sums[1] = c->checks[1] == c->skip && c->skip != c->checks[0] ? a->attempt >> 32 : c->sums[0];
	c->flags = PERDURE_CONN_INHERITED | (a->flags & ENDED ? PERDURE_CONN_ENDED : 0);
	if (c->fd == c->conns->suspect_fd) {
		if (c->record->suspected == at)
			c->flags |= PERDURE_CONN_SUSPECT;
		c->record->suspected = at;
	}
	return true;
}

static void begin(struct perdure_conn *c, uint64_t id, const struct io_log *log)
{
	struct record *r = c->record;

	atomic_store_explicit(&r->id, 0, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst);
	memset((char *)r + sizeof(r->id), 0, c->conns->record - sizeof(r->id));
	r->answers[0].input = log->released;
	r->answers[0].output = log->written;
	atomic_store_explicit(&r->id, id, memory_order_release);
}

struct perdure_conn *perdure_conn_open(struct perdure_conns *conns, int fd)
{
	struct perdure_conn *c;
	struct io_log log;
	uint64_t id;
	int error;

	if (fd < 0 || fd >= conns->max) {
		errno = fd < 0 ? EBADF : ENOSPC;
		return NULL;
	}
	id = identity(fd);
	if (!id)
		return NULL;
	c = calloc(1, sizeof(*c) + conns->record - sizeof(struct record));
	if (!c)
		return NULL;
	c->conns = conns;
	c->fd = fd;
	c->digest = c->digests;
	/* A question to the file, by a call that fails as all do where there are none */
	if (perdure_read(fd, NULL, 0, 0, 0) < 0)
		goto fail;
	if (unprotected(conns)) {
		c->tag = c + 1;
		return c;
	}
	if (getiolog(fd, &log))
		goto fail;
	c->record = record_of(conns, fd);
	c->tag = c->record->tag;
	if (!conns->restarted || (c->record->id != id && !log.written && !log.read)) {
		begin(c, id, &log);
		return c;
	}
	if (c->record->id == id && inherit(c, &log))
		return c;
	reset(fd);
	errno = ESTALE;
fail:
	error = errno;
	free(c);
	errno = error;
	return NULL;
}

int perdure_conn_fd(const struct perdure_conn *c)
{
	return c->fd;
}

unsigned int perdure_conn_flags(const struct perdure_conn *c)
{
	return c->flags;
}

void *perdure_conn_tag(struct perdure_conn *c)
{
	return c->tag;
}

size_t perdure_conn_skip(const struct perdure_conn *c)
{
	return c->skip > c->done ? c->skip - c->done : 0;
}

ssize_t perdure_conn_read(struct perdure_conn *c, void *buf, size_t len)
{
	ssize_t n = perdure_read(c->fd, buf, len, c->release, 0);

	if (n < 0 && errno == ENOBUFS && c->release) {
		/* There may be room when it is gone */
		if (perdure_release(c->fd, c->release))
			return -1;
		c->release = 0;
		n = perdure_read(c->fd, buf, len, 0, 0);
	}
	if (n < 0)
		return -1;
	c->release = 0;
	if (c->record && unprotected(c->conns))
		c->record = NULL;
	return n;
}

/* @len bytes are there of the answer, which are those of @buf, or of a file. Is it the same answer as far as can be told? */
static bool add(struct perdure_conn *c, const char *buf, size_t len)
{
	int i;

	while (len) {
		size_t part = len;

		for (i = 0; i < 2; i++) {
			if (c->checks[i] > c->done && c->checks[i] - c->done < part)
				part = c->checks[i] - c->done;
		}
		if (buf) {
			digest_add(c->digest, buf, part);
			buf += part;
		}
		c->done += part;
		len -= part;
		for (i = 0; i < 2; i++) {
			if (c->done <= c->skip && c->checks[i] == c->done &&
			    c->sums[i] != digest_value(c->digest))
				return false;
		}
	}
	return true;
}

/* How much of @len the client has already; -1: it has something else. */
static ssize_t skip(struct perdure_conn *c, const char *buf, size_t len)
{
	size_t part = perdure_conn_skip(c);

	if (c->broken)
		return different(c);
	if (part > len)
		part = len;
	return add(c, buf, part) ? (ssize_t)part : different(c);
}

ssize_t perdure_conn_write(struct perdure_conn *c, const void *buf, size_t len)
{
	const char *p = buf;
	struct digest *whole;
	ssize_t skipped, n;
	struct answer *a;

	if (!c->record)
		return perdure_write(c->fd, buf, len);
	if (len > WRITE_MAX)
		len = WRITE_MAX;
	skipped = 0;
	if (c->broken || c->done < c->skip) {
		skipped = skip(c, p, len);
		if (skipped < 0 || ((size_t)skipped == len && len))
			return skipped;
		p += skipped;
		len -= skipped;
	}
	a = answer_of(c->record);
	whole = c->digest == c->digests ? c->digests + 1 : c->digests;
	*whole = *c->digest;
	digest_add(whole, p, len);
	atomic_store_explicit(&a->attempt, sum(c->done + len, whole), memory_order_release);
	n = perdure_write(c->fd, p, len);
	if (n < 0)
		return skipped ? skipped : -1;
	c->done += n;
	if ((size_t)n == len) {
		c->digest = whole;
		atomic_store_explicit(&a->written, a->attempt, memory_order_release);
	} else {
		digest_add(c->digest, p, n);
		atomic_store_explicit(&a->written, sum(c->done, c->digest), memory_order_release);
	}
	if (unprotected(c->conns))
		c->record = NULL;
	return skipped + n;
}

static ssize_t write_to(void *c, const void *buf, size_t len)
{
	return perdure_conn_write(c, buf, len);
}

ssize_t perdure_conn_writev(struct perdure_conn *c, const struct iovec *iov, int n)
{
	if (!c->record || n <= 0)
		return perdure_writev(c->fd, iov, n);
	return io_writev(iov, n, write_to, c);
}

/* A run of a file, from an offset on, counts as what tells which one it is. Another file by the same name is another one. */
static bool same_run(struct perdure_conn *c, const struct stat *st, off_t offset)
{
	return c->file_done == c->done && c->file_offset == offset && c->file.st_dev == st->st_dev &&
	       c->file.st_ino == st->st_ino && c->file.st_size == st->st_size &&
	       c->file.st_mtim.tv_sec == st->st_mtim.tv_sec && c->file.st_mtim.tv_nsec == st->st_mtim.tv_nsec;
}

static void add_run(struct perdure_conn *c, const struct stat *st, off_t offset)
{
	const uint64_t run[] = { st->st_dev, st->st_ino, st->st_size, st->st_mtim.tv_sec, st->st_mtim.tv_nsec, offset };

	digest_add(c->digest, run, sizeof(run));
}

static bool move_on(int in_fd, off_t *offset, size_t len)
{
	if (offset)
		*offset += len;
	return offset || lseek(in_fd, len, SEEK_CUR) >= 0;
}

ssize_t perdure_conn_sendfile(struct perdure_conn *c, int in_fd, off_t *offset, size_t count)
{
	ssize_t skipped, n;
	struct answer *a;
	struct stat st;
	off_t at;

	if (!c->record)
		return perdure_sendfile(c->fd, in_fd, offset, count);
	if (count > WRITE_MAX)
		count = WRITE_MAX;
	at = offset ? *offset : lseek(in_fd, 0, SEEK_CUR);
	if (at < 0 || fstat(in_fd, &st))
		return -1;
	if (!same_run(c, &st, at))
		add_run(c, &st, at);
	/* What is not there cannot have been sent */
	if (S_ISREG(st.st_mode) && count > (uint64_t)st.st_size - (at < st.st_size ? at : st.st_size))
		count = st.st_size - (at < st.st_size ? at : st.st_size);
	skipped = skip(c, NULL, count);
	if (skipped < 0 || !move_on(in_fd, offset, skipped))
		return -1;
	n = 0;
	if ((size_t)skipped < count) {
		a = answer_of(c->record);
		atomic_store_explicit(&a->attempt, sum(c->done + count - skipped, c->digest), memory_order_release);
		n = perdure_sendfile(c->fd, in_fd, offset, count - skipped);
		if (n > 0) {
			c->done += n;
			atomic_store_explicit(&a->written, sum(c->done, c->digest), memory_order_release);
		}
	}
	c->file = st;
	c->file_done = c->done;
	c->file_offset = at + skipped + (n > 0 ? n : 0);
	if (unprotected(c->conns))
		c->record = NULL;
	return n < 0 && !skipped ? -1 : skipped + (n > 0 ? n : 0);
}

static void next(struct perdure_conn *c, size_t len, uint32_t flags)
{
	struct record *r = c->record;
	struct answer *a = answer_of(r), *b = a == &r->answers[0] ? &r->answers[1] : &r->answers[0];

	b->input = a->input + len;
	b->output = a->output + c->done;
	b->flags = flags;
	atomic_store_explicit(&b->written, 0, memory_order_relaxed);
	atomic_store_explicit(&b->attempt, 0, memory_order_relaxed);
	atomic_store_explicit(&r->now, b - r->answers, memory_order_release);
	c->release += len;
}

int perdure_conn_done(struct perdure_conn *c, size_t len, unsigned int flags)
{
	if (flags & ~PERDURE_LAST) {
		errno = EINVAL;
		return -1;
	}
	if (!c->record)
		return 0;
	/* The client has got more than what was made now */
	if (c->broken || perdure_conn_skip(c))
		return different(c);
	next(c, len, flags & PERDURE_LAST ? ENDED : 0);
	c->done = c->skip = c->checks[0] = c->checks[1] = 0;
	memset(c->digest, 0, sizeof(*c->digest));
	c->file_done = UINT64_MAX;
	c->flags &= ~PERDURE_CONN_SUSPECT;
	return 0;
}

int perdure_conn_consume(struct perdure_conn *c, size_t len)
{
	struct answer *a;
	size_t release;

	if (!c->record)
		return 0;
	a = answer_of(c->record);
	a->flags |= CONSUMED;
	atomic_signal_fence(memory_order_seq_cst);
	release = c->release + len;
	if (perdure_release(c->fd, release))
		return -1;
	c->release = 0;
	a->input += len;
	return 0;
}

int perdure_conn_close(struct perdure_conn *c)
{
	uint64_t id;
	int r;

	if (!c)
		return 0;
	/* Another thread may have got the descriptor, and its record, right afterwards */
	id = c->record ? c->record->id : 0;
	r = close(c->fd);
	if (c->record)
		atomic_compare_exchange_strong(&c->record->id, &id, 0);
	free(c);
	return r;
}
