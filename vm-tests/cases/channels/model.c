// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Random sequences of send, hread, the plain ways of reading, peek, poll, select, epoll and restart on every kind of
 * channel, against a model of what is held, unread and yet to come. One process is both ends. All that it knows is in
 * shared memory, so that the generation after a restart goes on where the last one was.
 * A failure names the seed: PERDURE_SEED=N model -t KIND repeats it; PERDURE_TRACE=1 prints each step.
 */
#include "chan.h"

#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/uio.h>

enum { MODEL_FD = 30, DUP, EDGE, LEVEL, SPLICE_RD, SPLICE_WR };
enum { HELD_MAX = 60000, MSG_BITS = 16, MSGS = 256, BUF = 16384 };

/* A byte is known by its position; that of a datagram has the message's number above its offset. */
typedef uint64_t pos_t;

struct model {
	uint64_t rnd, seed;
	int kind, step, steps, restarts;
	pos_t sent, taken;		/* streams: bytes; datagrams: messages */
	unsigned int len[MSGS];		/* datagrams: length of message number i % MSGS */
	uint64_t read, released, written;
	int held, nread;		/* bytes that are held; the first nread of them are read, the others unread */
	bool edge;			/* an edge is due */
	bool nonblock;
	pos_t bytes[HELD_MAX];
};

static struct model *m;
static const struct kind *kind;
static char what[256];
static bool trace;

#define CHECK(cond) do { \
	if (!t_check(cond, __FILE__, __LINE__, "seed %llu step %d (%d restarts), %s: expected %s", \
		     (unsigned long long)m->seed, m->step, m->restarts, what, #cond)) { \
		t_note("held %d read %d, stream %llu of %llu, errno %s", m->held, m->nread, \
		       (unsigned long long)m->taken, (unsigned long long)m->sent, strerrorname_np(errno)); \
		_exit(1); \
	} \
} while (0)

static unsigned int rnd(unsigned int n)
{
	return t_rand(&m->rnd) % n;
}

static void doing(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void doing(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (trace)
		t_note("%d: %s [held %d read %d avail %d]", m->step, what, m->held, m->nread,
		       (int)(m->sent - m->taken));
}

static bool dgram(void)
{
	return kind->flags & DGRAM;
}

static int unread(void)
{
	return m->held - m->nread;
}

/* What is written to a terminal comes to its reader a little later, and each read gives what it gives. */
static bool late(void)
{
	return kind->flags & TTY;
}

/* Bytes of the stream, or datagrams, that are in the file. */
static int avail(void)
{
	return m->sent - m->taken;
}

static pos_t file_pos(int i)
{
	return dgram() ? m->taken << MSG_BITS | i : m->taken + i;
}

/* Length of the datagram that is next among the unread: what is left of it. */
static int next_unread(void)
{
	int n = 1, i = m->nread;

	if (!dgram())
		return unread();
	while (i + n < m->held && m->bytes[i + n] >> MSG_BITS == m->bytes[i] >> MSG_BITS)
		n++;
	return n;
}

/* What the i-th byte that is read next must be. */
static unsigned char next_byte(int i)
{
	return t_byte(i < unread() ? m->bytes[m->nread + i] : file_pos(i - (unread() && !dgram() ? unread() : 0)));
}

static bool same(const unsigned char *buf, int n)
{
	for (int i = 0; i < n; i++) {
		if (buf[i] != next_byte(i)) {
			t_note("byte %d of %d is 0x%02x, expected 0x%02x", i, n, buf[i], next_byte(i));
			return false;
		}
	}
	return true;
}

/* Drops n held bytes from position i on. */
static void drop(int i, int n)
{
	memmove(m->bytes + i, m->bytes + i + n, (m->held - i - n) * sizeof(pos_t));
	m->held -= n;
	m->released += n;
}

static void take(int n)
{
	m->taken += dgram() ? 1 : n;
}

static void log_is(void)
{
	struct io_log log;

	CHECK(!x_getiolog(RD, &log));
	CHECK(log.read == m->read);
	CHECK(log.released == m->released);
	CHECK(log.held == (uint64_t)m->held);
	CHECK(log.unread == (uint64_t)unread());
	CHECK(!x_getiolog(WR, &log));
	CHECK(log.written == m->written);
}

/* ---- the steps ---- */

static void do_send(void)
{
	static unsigned char buf[BUF];
	int n = dgram() ? rnd(2000) : 1 + rnd(rnd(4) ? 200 : 6000);
	bool log = rnd(2), had = avail();
	ssize_t ret;

	if (dgram() && !rnd(3))
		n = rnd(20);
	if (late() && avail() + n > 3000)
		return;		/* what a terminal has no room for does not come by itself */
	if (m->held + avail() + n > HELD_MAX / 2 || (dgram() && (avail() > 8 || m->held > HELD_MAX / 2)))
		return;
	if (!n && kind->flags & SOCK && strcmp(kind->name, "udp4") && strcmp(kind->name, "udp6"))
		n = 1;	/* zero bytes look like the end */
	if (!n)
		log = false;
	doing("%s(%d)", log ? "lwrite" : "write", n);
	for (int i = 0; i < n; i++)
		buf[i] = t_byte(dgram() ? m->sent << MSG_BITS | i : m->sent + i);
	ret = log ? x_lwrite(WR, buf, n) : write(WR, buf, n);
	if (ret < 0) {
		CHECK(errno == EAGAIN);
		return;
	}
	CHECK(dgram() ? ret == n : ret > 0 && ret <= n);
	if (dgram())
		m->len[m->sent % MSGS] = n;
	m->sent += dgram() ? 1 : ret;
	if (log)
		m->written += ret;
	/* TLS tells of a record when those before it have been read. */
	if (!(kind->flags & TLS) || !had)
		m->edge = true;
}

static void do_hread(void)
{
	static unsigned char buf[BUF + 1];
	int r = rnd(5), n = r == 0 ? rnd(8) : r == 1 ? 1 + rnd(BUF) : 1 + rnd(500), fd = rnd(2) ? RD : DUP;
	bool nowait = (!unread() && !avail()) || rnd(2), raw = rnd(2);
	uint64_t dlen = 0;
	struct io_log log;
	int want, from_file, most, had = unread(), got_unread;
	ssize_t ret;

	switch (rnd(6)) {
	case 0:		/* what was handled */
		dlen = m->nread;
		break;
	case 1:		/* some of it */
		dlen = rnd(m->nread + 1);
		break;
	case 2:		/* some of this call as well */
		dlen = m->nread + rnd(n + 1);
		break;
	case 3:		/* wrong, here and there */
		if (!rnd(3))
			dlen = m->held + n + 1 + rnd(100);
		break;
	}
	doing("hread%s(%d, %llu)", nowait ? "(nowait)" : "", n, (unsigned long long)dlen);
	memset(buf, 0xa5, sizeof(buf));
	if (nowait || raw)
		ret = syscall(NR_hread, fd, buf, n, dlen, nowait ? HREAD_NOWAIT : 0);
	else
		ret = hread(fd, buf, n, dlen);
	CHECK(buf[n] == 0xa5);
	CHECK(!x_getiolog(RD, &log));
	if (ret < 0 && errno == EAGAIN) {
		CHECK(!had && (!avail() || late()) && n && dlen <= (uint64_t)m->held + n);
		return;
	}
	if (!n) {
		CHECK(dlen > (uint64_t)m->nread ? ret == -1 && errno == EINVAL : ret == 0);
		if (!ret)
			drop(0, dlen), m->nread -= dlen;
		return;
	}
	CHECK(ret >= 0 || errno == EINVAL);

	/* How many bytes the call had in hand. */
	from_file = log.read - m->read;
	CHECK(log.read >= m->read);
	if (!dgram()) {
		most = had + avail();
		want = n < most ? n : most;
		got_unread = late() && ret > 0 ? (int)ret - from_file : n < had ? n : had;
		if (ret < 0) {
			CHECK(from_file <= want - got_unread);
			CHECK(late() || dlen > (uint64_t)m->nread + got_unread + from_file);
		} else {
			CHECK(ret == got_unread + from_file && ret > 0 && ret <= want);
			if (!(kind->flags & (TCP | TTY | TLS)))
				CHECK(ret == want);
		}
		if (ret > 0)
			CHECK(same(buf, ret));
		for (int i = 0; i < from_file; i++)
			m->bytes[m->held++] = file_pos(i);
		take(from_file);
	} else if (had) {
		most = next_unread();
		want = n < most ? n : most;
		CHECK(!from_file);
		if (ret < 0) {
			/* What did not fit may have gone. */
			CHECK(dlen > (uint64_t)m->nread + want);
			CHECK(log.held == (uint64_t)m->held || log.held == (uint64_t)m->held - (most - want));
			drop(m->nread + want, m->held - log.held);
		} else {
			CHECK(ret == want && same(buf, ret));
			drop(m->nread + want, most - want);
		}
		got_unread = want;
	} else {
		got_unread = 0;
		most = avail() ? (int)m->len[m->taken % MSGS] : 0;
		want = n < most ? n : most;
		if (ret < 0) {
			CHECK(from_file == 0 || from_file == want || from_file == most);
			CHECK(dlen > (uint64_t)m->nread + want);
			if (!from_file && most)
				CHECK(dlen > (uint64_t)m->held + n);
		} else {
			CHECK(avail() && ret == want && from_file == want && same(buf, ret));
		}
		for (int i = 0; i < from_file; i++)
			m->bytes[m->held++] = file_pos(i);
		if (ret >= 0 || from_file || dlen <= (uint64_t)m->held + n)
			take(1);
	}
	m->read = log.read;
	if (ret < 0) {
		for (int i = 0; i < n; i++)
			CHECK(!buf[i]);
		return;
	}
	m->nread += ret;
	CHECK(dlen <= (uint64_t)m->nread);
	drop(0, dlen);
	m->nread -= dlen;
}

/* read(2) and its relatives: what was unread is released, what comes from the file is never held. */
static void do_plain(void)
{
	static unsigned char buf[BUF];
	int n = 1 + rnd(rnd(3) ? 300 : BUF), how = rnd(kind->flags & SOCK ? 7 : 2), had = unread(), most, i;
	struct iovec iov[2] = { { buf, n / 2 }, { buf + n / 2, n - n / 2 } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	bool may_block = how < 2 || how == 6;
	ssize_t ret = -1;

	if (may_block && !had && !avail() && !m->nonblock)
		return;
	if (how == 6 && (dgram() || (kind->flags & SOCK) == 0))
		how = 2;
	switch (how) {
	case 0:
		doing("read(%d)", n);
		ret = read(RD, buf, n);
		break;
	case 1:
		doing("readv(%d)", n);
		ret = readv(RD, iov, 2);
		break;
	case 2:
		doing("recv(%d)", n);
		ret = recv(RD, buf, n, MSG_DONTWAIT);
		break;
	case 3:
		doing("recvmsg(%d)", n);
		ret = recvmsg(RD, &msg, MSG_DONTWAIT);
		break;
	case 4:
		doing("recv(%d, MSG_PEEK)", n);
		ret = recv(RD, buf, n, MSG_DONTWAIT | MSG_PEEK);
		break;
	case 5:
		doing("recvmsg(%d, MSG_PEEK)", n);
		ret = recvmsg(DUP, &msg, MSG_DONTWAIT | MSG_PEEK);
		break;
	case 6:
		doing("splice(%d)", n);
		ret = splice(RD, NULL, SPLICE_WR, NULL, n, SPLICE_F_NONBLOCK);
		if (ret > 0)
			CHECK(read(SPLICE_RD, buf, ret) == ret);
		break;
	}
	if (ret < 0) {
		CHECK(errno == EAGAIN && !had && (!avail() || late()));
		return;
	}
	CHECK(had || avail());
	if (!dgram()) {
		most = had + avail();
		CHECK(ret > 0 && ret <= (n < most ? n : most));
	} else {
		most = had ? next_unread() : (int)m->len[m->taken % MSGS];
		CHECK(ret == (n < most ? n : most));
		if (how == 3 || how == 5)
			CHECK(!!(msg.msg_flags & MSG_TRUNC) == (n < most));
	}
	CHECK(same(buf, ret));
	if (how == 4 || how == 5)
		return;
	if (had) {
		i = dgram() ? most : ret < had ? (int)ret : had;
		drop(m->nread, i);
		if (!dgram())
			take(ret - i);
	} else {
		take(ret);
	}
}

static void do_poll(void)
{
	bool want = unread() || avail();
	struct pollfd pfd = { .fd = rnd(2) ? RD : DUP, .events = POLLIN };
	struct timeval tv = { want ? 5 : 0, 0 };
	struct epoll_event ev;
	fd_set set;

	switch (rnd(3)) {
	case 0:
		doing("poll");
		CHECK(poll(&pfd, 1, want ? 5000 : 0) == want);
		CHECK(!!(pfd.revents & POLLIN) == want);
		break;
	case 1:
		doing("select");
		FD_ZERO(&set);
		FD_SET(RD, &set);
		CHECK(select(RD + 1, &set, NULL, NULL, &tv) == want);
		break;
	case 2:
		doing("epoll, level-triggered");
		CHECK(epoll_wait(LEVEL, &ev, 1, want ? 5000 : 0) == want);
		break;
	}
}

/* Edges may come too often, but not for nothing; one is due after new data and after a restart with unread data. */
static void do_edge(void)
{
	bool want = unread() || avail();
	struct epoll_event ev;
	int n;

	doing("epoll, edge-triggered%s", m->edge ? ", due" : "");
	n = epoll_wait(EDGE, &ev, 1, want && m->edge ? 5000 : 0);
	if (!want)
		CHECK(n == 0);
	else if (m->edge)
		CHECK(n == 1);
	m->edge = false;
}

static void do_nonblock(void)
{
	m->nonblock = !m->nonblock;
	doing("O_NONBLOCK %s", m->nonblock ? "on" : "off");
	CHECK(!fcntl(RD, F_SETFL, (fcntl(RD, F_GETFL) & ~O_NONBLOCK) | (m->nonblock ? O_NONBLOCK : 0)));
}

static void do_restart(void)
{
	doing("restart");
	m->restarts++;
	if (m->nread)
		m->edge = true;
	m->nread = 0;
	if (rnd(2))
		raise(SIGABRT);
	t_crash();
}

/* The end: the writer goes, and all that is left comes in order, then the end of the file. */
static void drain(void)
{
	static unsigned char buf[BUF];
	struct pollfd pfd = { .fd = RD, .events = POLLIN };
	ssize_t ret;

	doing("drain");
	if (kind->flags & TCP || !strcmp(kind->name, "unix stream"))
		T_OK(shutdown(WR, SHUT_WR));
	else if (!(kind->flags & TTY))
		close(WR);
	while (unread() || avail()) {
		int had = unread(), most = had ? next_unread() : (int)m->len[m->taken % MSGS];

		CHECK(poll(&pfd, 1, 5000) == 1 && pfd.revents & POLLIN);
		ret = x_hread_nowait(RD, buf, BUF, 0);
		CHECK(dgram() ? ret == most : ret > 0 && ret <= had + avail());
		CHECK(same(buf, ret));
		for (int i = had; i < (dgram() ? had ? had : most : ret); i++)
			m->bytes[m->held++] = file_pos(i - had), m->read++;
		if (!dgram())
			take(ret > had ? ret - had : 0);
		else if (!had)
			take(1);
		m->nread += ret;
		/* Released when there is enough of it. */
		if (m->nread > HELD_MAX / 2) {
			CHECK(x_hread(RD, NULL, 0, m->nread) == 0);
			drop(0, m->nread);
			m->nread = 0;
		}
	}
	if (kind->flags & STREAM && !(kind->flags & TTY)) {
		CHECK(poll(&pfd, 1, 5000) == 1);
		CHECK(x_hread(RD, buf, BUF, 0) == 0);
		CHECK(x_hread(RD, buf, BUF, m->nread) == 0);
		CHECK(x_hread(RD, buf, BUF, 1) == -1 && errno == EINVAL);
	} else {
		CHECK(x_hread(RD, NULL, 0, m->nread) == 0);
	}
	drop(0, m->nread);
	m->nread = 0;
	CHECK(!m->held);
	if (kind->flags & TTY || dgram())
		CHECK(x_hread_nowait(RD, buf, BUF, 0) <= 0);
	else
		CHECK(read(RD, buf, BUF) == 0);
}

static void go_on(void)
{
	if (m->step)
		log_is();
	while (m->step++ < m->steps) {
		unsigned int r = rnd(100);

		if (r < 28)
			do_send();
		else if (r < 68)
			do_hread();
		else if (r < 80)
			do_plain();
		else if (r < 88)
			do_poll();
		else if (r < 95)
			do_edge();
		else if (r < 97)
			do_nonblock();
		else
			do_restart();
		log_is();
	}
	drain();
}

ROLE(model)
{
	trace = getenv("PERDURE_TRACE");
	m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED, MODEL_FD, 0);
	T_ASSERT(m != MAP_FAILED);
	kind = &kinds[m->kind];
	t_context = kind->name;
	if (t_generation() != (uint64_t)m->restarts + 1)
		T_EQ(t_generation(), m->restarts + 1);
	go_on();
	return 0;
}

static void start(int nr)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int fd[2];

	put_at(memfd_create("model", 0), MODEL_FD);
	T_OK(ftruncate(MODEL_FD, sizeof(*m)));
	m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED, MODEL_FD, 0);
	T_ASSERT(m != MAP_FAILED);
	m->kind = nr;
	m->seed = m->rnd = t_seed();
	m->steps = t_rounds(1200);
	kind = &kinds[nr];
	trace = getenv("PERDURE_TRACE");
	t_context = kind->name;
	open_at(kind, RD, WR);
	T_OK(fcntl(WR, F_SETFL, fcntl(WR, F_GETFL) | O_NONBLOCK));
	T_OK(dup2(RD, DUP));
	T_OK(pipe(fd));
	put_at(fd[0], SPLICE_RD);
	put_at(fd[1], SPLICE_WR);
	put_at(epoll_create1(0), LEVEL);
	T_OK(epoll_ctl(LEVEL, EPOLL_CTL_ADD, RD, &ev));
	put_at(epoll_create1(0), EDGE);
	ev.events = EPOLLIN | EPOLLET;
	T_OK(epoll_ctl(EDGE, EPOLL_CTL_ADD, RD, &ev));
	t_register("model", NULL);
	go_on();
}

static void play(int nr)
{
	T_CHILD {
		start(nr);
	}
}

#define MODEL(name, nr) T_LIMIT(name, 60) { play(nr); }
MODEL(pipe, 0)
MODEL(fifo, 1)
MODEL(unix_stream, 2)
MODEL(tcp4, 3)
MODEL(tcp6, 4)
MODEL(tls12, 5)
MODEL(tls13, 6)
MODEL(chacha, 7)
MODEL(unix_dgram, 8)
MODEL(seqpacket, 9)
MODEL(udp4, 10)
MODEL(udp6, 11)
MODEL(pty, 12)
