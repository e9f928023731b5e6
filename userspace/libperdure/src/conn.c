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
#include <fcntl.h>
#include <perdure.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "digest.h"
#include "io.h"

#define LAYOUT		1		/* to be changed with struct books and struct record */
#define FDS_MAX		(1 << 20)
#define FDS		(1 << 16)	/* when nobody says */
#define BOOKS_MAX	16		/* in a process */
#define SEND_MAX	(1 << 30)	/* in one call, so that half of a sum tells where it was made */
/* What a fault cuts off of a write is compared in steps of so many bytes. */
#define STEP		8192
#define STEPS		16		/* of one write */
#define RELEASE_SOON	4096		/* bytes that do not wait for the next read */
#define CONTROL_MAX	8		/* records of TLS that are no data, before some is to come */
#define TLS_BOTH	(PERDURE_TLS_TX | PERDURE_TLS_RX)

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
	uint64_t number;		/* of answers before it */
	uint64_t input;			/* bytes of requests that have been answered before it */
	uint64_t output;		/* bytes of answers before it */
	uint32_t flags;
	uint32_t reserved;
	_Atomic uint64_t written;	/* sum of what has been written of it */
	_Atomic uint64_t run;		/* sum where the last file begins, the file included; 0: none */
	_Atomic uint64_t steps[STEPS + 1];	/* sums that the present write goes through, ended by 0 */
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
	uint64_t run_check;		/* where a file begins, */
	uint32_t run_sum;		/* and with what that is compared */
	uint64_t number;
	struct digest digests[2], *digest;	/* of the bytes that are there; the other one is scratch */
	bool broken;
	/* The file that is being sent */
	struct stat file;
	off_t file_offset;
	uint64_t file_done;
	void *tag;
};

static _Atomic(struct books *) all[BOOKS_MAX];

/* What the books say is not true in a later generation. It may be a signal handler that reads. */
static void mark_all(void)
{
	struct books *books;
	int i;

	for (i = 0; i < BOOKS_MAX; i++) {
		books = atomic_load(&all[i]);
		if (books)
			atomic_store(&books->plain, 1);
	}
}

static bool mark_later(struct books *books)
{
	struct books *none;
	int i;

	io_on_plain = mark_all;
	for (i = 0; i < BOOKS_MAX; i++) {
		none = NULL;
		if (atomic_compare_exchange_strong(&all[i], &none, books)) {
			if (io_plain())
				mark_all();
			return true;
		}
	}
	errno = ENOSPC;
	return false;
}

static void mark_no_more(struct books *books)
{
	struct books *it;
	int i;

	for (i = 0; i < BOOKS_MAX; i++) {
		it = books;
		atomic_compare_exchange_strong(&all[i], &it, NULL);
	}
}

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

/* Has there been a restart? */
static bool look_back(int *suspect_fd)
{
	struct reg_info info;
	bool restarted = getreginfo(&info) == 1 && info.is_restarted;

	*suspect_fd = restarted && !from_outside(&info) ? info.suspect_fd : -1;
	return restarted;
}

int perdure_suspect(void)
{
	int fd;

	look_back(&fd);
	return fd;
}

struct perdure_conns *perdure_conns_open(const char *name, int max, size_t tag_size)
{
	struct perdure_conns *conns;
	int fd;

	if (max < 0 || max > FDS_MAX || tag_size > PERDURE_TAG_MAX) {
		errno = EINVAL;
		return NULL;
	}
	/* The limit of open files may change from one generation to the next. */
	if (!max)
		max = FDS;
	conns = calloc(1, sizeof(*conns));
	if (!conns)
		return NULL;
	conns->max = max;
	conns->record = (sizeof(struct record) + tag_size + 15) & ~15UL;
	if ((size_t)max > SIZE_MAX / 16 / conns->record) {	/* of 32 bits */
		errno = ENOMEM;
		goto fail;
	}
	conns->restarted = look_back(&conns->suspect_fd);
	conns->books = perdure_state_open(name, sizeof(struct books) + max * conns->record, LAYOUT << 16 | tag_size, NULL, NULL);
	if (!conns->books)
		goto fail;
	if (conns->books->plain) {
		/* It stays until it is discarded, for the next generation to see */
		fd = fcntl(perdure_state_fd(conns->books), F_DUPFD_CLOEXEC, 0);
		perdure_state_close(conns->books);
		errno = fd < 0 ? errno : ESTALE;
		goto fail;
	}
	if (mark_later(conns->books))
		return conns;
	perdure_state_close(conns->books);
	errno = ENOSPC;
fail:
	free(conns);
	return NULL;
}

void perdure_conns_close(struct perdure_conns *conns)
{
	if (!conns)
		return;
	mark_no_more(conns->books);
	perdure_state_close(conns->books);
	free(conns);
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
	uint64_t at = log->read + log->written + 1, step;
	int i;

	if (!books_fit(a, log) || !drop(c->fd, a->input - log->released))
		return false;
	c->skip = log->written - a->output;
	c->checks[0] = sum_of(a->written, c->skip);
	c->sums[0] = a->written >> 32;
	/* The last step of a write that the old generation did not come back from. Where nothing is known, nothing is compared. */
	c->checks[1] = c->checks[0];
	c->sums[1] = c->sums[0];
	for (i = 0; i < STEPS && a->steps[i]; i++) {
		step = sum_of(a->steps[i], c->skip);
		if (step > c->checks[1] && step <= c->skip) {
			c->checks[1] = step;
			c->sums[1] = a->steps[i] >> 32;
		}
	}
	if (a->run && sum_of(a->run, c->skip) >= c->checks[0]) {
		c->run_check = sum_of(a->run, c->skip);
		c->run_sum = a->run >> 32;
	}
	c->number = a->number;
	c->flags |= PERDURE_CONN_INHERITED | (a->flags & ENDED ? PERDURE_CONN_ENDED : 0);
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
	int error, tls;

	if (fd < 0 || fd >= conns->max) {
		errno = fd < 0 ? EBADF : ENOSPC;
		return NULL;
	}
	tls = tls_directions(fd);
	if (tls && tls != TLS_BOTH) {
		/* What it reads or writes is ciphertext to us, and the keys for that are in the process. */
		errno = EPROTONOSUPPORT;
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
	c->flags = tls ? PERDURE_CONN_TLS : 0;
	c->digest = c->digests;
	c->run_check = UINT64_MAX;
	if (!io_plain() && getiolog(fd, &log) && !io_missing())
		goto fail;
	c->record = record_of(conns, fd);
	if (io_plain()) {
		/* How much of it was written cannot be told any more */
		if (conns->restarted && c->record->id == id)
			goto stale;
		c->record = NULL;
		c->tag = c + 1;
		return c;
	}
	c->tag = c->record->tag;
	if (!conns->restarted || (c->record->id != id && !log.written && !log.read)) {
		begin(c, id, &log);
		return c;
	}
	if (c->record->id == id && inherit(c, &log))
		return c;
stale:
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

uint64_t perdure_conn_number(const struct perdure_conn *c)
{
	return c->number;
}

size_t perdure_conn_skip(const struct perdure_conn *c)
{
	uint64_t left = c->skip > c->done ? c->skip - c->done : 0;

	return left > SIZE_MAX ? SIZE_MAX : left;
}

static ssize_t read_some(struct perdure_conn *c, void *buf, size_t len)
{
	ssize_t n = perdure_read(c->fd, buf, len, c->release, 0);

	if (n < 0 && errno == ENOBUFS && c->release) {
		/* There may be room when it is gone */
		if (perdure_release(c->fd, c->release))
			return -1;
		c->release = 0;
		n = perdure_read(c->fd, buf, len, 0, 0);
	}
	if (n >= 0)
		c->release = 0;
	return n;
}

ssize_t perdure_conn_read(struct perdure_conn *c, void *buf, size_t len)
{
	ssize_t n;
	int i;

	for (i = 0; i < CONTROL_MAX; i++) {
		n = read_some(c, buf, len);
		if (n >= 0 || errno != EIO || !(c->flags & PERDURE_CONN_TLS))
			return n;
		n = perdure_tls_control(c->fd);
		if (n <= 0)
			return n;
	}
	errno = EPROTO;
	return -1;
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

static struct digest *scratch(struct perdure_conn *c)
{
	struct digest *d = c->digest == c->digests ? c->digests + 1 : c->digests;

	*d = *c->digest;
	return d;
}

/* STEPS steps at most */
static ssize_t write_some(struct perdure_conn *c, const char *p, size_t len)
{
	struct answer *a = answer_of(c->record);
	struct digest *d = scratch(c);
	size_t at, part;
	ssize_t n;
	int i = 0;

	for (at = 0; at < len; at += part) {
		part = len - at < STEP ? len - at : STEP;
		digest_add(d, p + at, part);
		atomic_store_explicit(&a->steps[i++], sum(c->done + at + part, d), memory_order_release);
	}
	atomic_store_explicit(&a->steps[i], 0, memory_order_release);
	n = perdure_write(c->fd, p, len);
	if (n < 0)
		return -1;
	c->done += n;
	if ((size_t)n == len) {
		c->digest = d;
		atomic_store_explicit(&a->written, a->steps[i - 1], memory_order_release);
	} else {
		digest_add(c->digest, p, n);
		atomic_store_explicit(&a->written, sum(c->done, c->digest), memory_order_release);
	}
	return n;
}

/* No books: all that is known is whether an answer has begun. */
static ssize_t unbooked(struct perdure_conn *c, ssize_t n)
{
	if (n > 0)
		c->done += n;
	return n;
}

ssize_t perdure_conn_write(struct perdure_conn *c, const void *buf, size_t len)
{
	ssize_t put = 0, n;
	size_t part;

	if (!c->record || !len)
		return unbooked(c, perdure_write(c->fd, buf, len));
	if (c->broken || c->done < c->skip) {
		put = skip(c, buf, len);
		if (put < 0)
			return -1;
	}
	while ((size_t)put < len) {
		part = len - put < STEPS * STEP ? len - put : STEPS * STEP;
		n = write_some(c, (const char *)buf + put, part);
		if (n < 0)
			return put ? put : -1;
		put += n;
		if ((size_t)n < part)
			break;
	}
	return put;
}

static ssize_t write_to(void *c, const void *buf, size_t len)
{
	return perdure_conn_write(c, buf, len);
}

ssize_t perdure_conn_writev(struct perdure_conn *c, const struct iovec *iov, int n)
{
	if (!c->record || n <= 0)
		return unbooked(c, perdure_writev(c->fd, iov, n));
	return io_writev(iov, n, write_to, c);
}

/* A run of a file, from an offset on, counts as what tells which one it is. Another file by the same name is another one. */
static bool same_run(struct perdure_conn *c, const struct stat *st, off_t offset)
{
	return c->file_done == c->done && c->file_offset == offset && c->file.st_dev == st->st_dev &&
	       c->file.st_ino == st->st_ino && c->file.st_size == st->st_size &&
	       c->file.st_mtim.tv_sec == st->st_mtim.tv_sec && c->file.st_mtim.tv_nsec == st->st_mtim.tv_nsec;
}

static void add_run(struct digest *d, const struct stat *st, off_t offset)
{
	const uint64_t run[] = { st->st_dev, st->st_ino, st->st_size, st->st_mtim.tv_sec, st->st_mtim.tv_nsec, offset };

	digest_add(d, run, sizeof(run));
}

static bool move_on(int in_fd, off_t *offset, size_t len)
{
	if (offset)
		*offset += len;
	return offset || lseek(in_fd, len, SEEK_CUR) >= 0;
}

ssize_t perdure_conn_sendfile(struct perdure_conn *c, int in_fd, off_t *offset, size_t count)
{
	ssize_t skipped = 0, n = 0;
	struct answer *a;
	struct digest *d;
	struct stat st;
	off_t at;

	if (!c->record)
		return unbooked(c, perdure_sendfile(c->fd, in_fd, offset, count));
	if (count > SEND_MAX)
		count = SEND_MAX;
	at = offset ? *offset : lseek(in_fd, 0, SEEK_CUR);
	if (at < 0 || fstat(in_fd, &st))
		return perdure_sendfile(c->fd, in_fd, offset, count);	/* it says what is wrong */
	d = scratch(c);
	if (!same_run(c, &st, at))
		add_run(d, &st, at);
	/* What is not there cannot have been sent; what has no size, as in /proc, may be there */
	if (S_ISREG(st.st_mode) && st.st_size && count > (uint64_t)st.st_size - (at < st.st_size ? at : st.st_size))
		count = st.st_size - (at < st.st_size ? at : st.st_size);
	if (c->broken || c->done < c->skip) {
		if (c->done == c->run_check && c->run_sum != digest_value(d))
			return different(c);
		c->digest = d;
		skipped = skip(c, NULL, count);
		if (skipped < 0 || !move_on(in_fd, offset, skipped))
			return -1;
	}
	if ((size_t)skipped < count) {
		a = answer_of(c->record);
		atomic_store_explicit(&a->run, sum(c->done, d), memory_order_release);
		n = perdure_sendfile(c->fd, in_fd, offset, count - skipped);
		if (n > 0) {
			c->digest = d;
			c->done += n;
			atomic_store_explicit(&a->written, sum(c->done, d), memory_order_release);
		}
	}
	if (!skipped && n <= 0)
		return n;
	skipped += n > 0 ? n : 0;
	c->file = st;
	c->file_done = c->done;
	c->file_offset = at + skipped;
	return skipped;
}

static void next(struct perdure_conn *c, size_t len, uint32_t flags)
{
	struct record *r = c->record;
	struct answer *a = answer_of(r), *b = a == &r->answers[0] ? &r->answers[1] : &r->answers[0];

	b->number = a->number + 1;
	b->input = a->input + len;
	b->output = a->output + c->done;
	b->flags = flags;
	atomic_store_explicit(&b->written, 0, memory_order_relaxed);
	atomic_store_explicit(&b->run, 0, memory_order_relaxed);
	atomic_store_explicit(&b->steps[0], 0, memory_order_relaxed);
	atomic_store_explicit(&r->now, b - r->answers, memory_order_release);
	c->release += len;
}

int perdure_conn_done(struct perdure_conn *c, size_t len, unsigned int flags)
{
	if (flags & ~PERDURE_LAST) {
		errno = EINVAL;
		return -1;
	}
	if (!c->record) {
		c->number++;
		c->done = 0;
		return 0;
	}
	/* The client has got more than what was made now */
	if (c->broken || perdure_conn_skip(c))
		return different(c);
	c->number++;
	next(c, len, flags & PERDURE_LAST ? ENDED : 0);
	c->done = c->skip = c->checks[0] = c->checks[1] = 0;
	c->run_check = UINT64_MAX;
	memset(c->digest, 0, sizeof(*c->digest));
	c->file_done = UINT64_MAX;
	c->flags &= ~PERDURE_CONN_SUSPECT;
	/* The rest goes with the next read, which may be far away */
	if (c->release > RELEASE_SOON && !perdure_release(c->fd, c->release))
		c->release = 0;
	return 0;
}

int perdure_conn_consume(struct perdure_conn *c, size_t len)
{
	struct answer *a;

	if (!c->record || !len)
		return 0;
	/* What is released and not in the books is as good as consumed: they do not fit */
	if (perdure_release(c->fd, c->release + len))
		return -1;
	a = answer_of(c->record);
	a->flags |= CONSUMED;
	atomic_signal_fence(memory_order_seq_cst);
	a->input += len;
	c->release = 0;
	return 0;
}

int perdure_conn_close(struct perdure_conn *c)
{
	uint64_t id;
	int r;

	if (!c)
		return 0;
	/* Only who has got all that he was to get is told that this is the end. */
	if (c->flags & PERDURE_CONN_TLS && !c->broken && !c->done && !c->skip)
		perdure_tls_alert(c->fd, PERDURE_TLS_CLOSE_NOTIFY);
	/* Another thread may have got the descriptor, and its record, right afterwards */
	id = c->record ? c->record->id : 0;
	r = close(c->fd);
	if (c->record)
		atomic_compare_exchange_strong(&c->record->id, &id, 0);
	free(c);
	return r;
}
