// SPDX-License-Identifier: GPL-2.0-or-later
/* Sockets whose TLS is the kernel's: what they have that others have not. The suite channels has the rest. */
#include "../channels/chan.h"

#include <perdure/rescue.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/time.h>

enum { ALERT = 21, HANDSHAKE = 22, DATA = 23 };

static ssize_t put_record(int fd, int type, const void *buf, size_t len, int flags)
{
	char room[CMSG_SPACE(1)] = { 0 };
	struct iovec iov = { (void *)buf, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_TLS;
	c->cmsg_type = TLS_SET_RECORD_TYPE;
	c->cmsg_len = CMSG_LEN(1);
	*CMSG_DATA(c) = type;
	return sendmsg(fd, &msg, flags);
}

static ssize_t get_record(int fd, int *type, void *buf, size_t len, int flags)
{
	char room[CMSG_SPACE(1)] = { 0 };
	struct iovec iov = { buf, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };
	ssize_t n = recvmsg(fd, &msg, flags);
	struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&msg);

	*type = c && c->cmsg_level == SOL_TLS && c->cmsg_type == TLS_GET_RECORD_TYPE ? *CMSG_DATA(c) : 0;
	return n;
}

static void put_alert(int fd, int level, int what)
{
	T_EQ(put_record(fd, ALERT, (char []){ level, what }, 2, 0), 2);
}

#define ALERT_IS(fd, level, what) do { \
	unsigned char _alert[64]; \
	int _type; \
	READABLE(fd, 1); \
	T_EQ(get_record(fd, &_type, _alert, sizeof(_alert), MSG_DONTWAIT), 2); \
	T_EQ(_type, ALERT); \
	T_EQ(_alert[0], level); \
	T_EQ(_alert[1], what); \
} while (0)

/* One end only, so that the other can send what it likes */
static void use_tls_as(const struct kind *k, int fd)
{
	use_tls(fd, k->open == open_tls12 ? TLS_1_2_VERSION : TLS_1_3_VERSION,
		k->open == open_tls12 ? TLS_CIPHER_AES_GCM_128 :
		k->open == open_tls13 ? TLS_CIPHER_AES_GCM_256 : TLS_CIPHER_CHACHA20_POLY1305);
}

static void make_unread(int fd, int n)
{
	char buf[64];

	READABLE(fd, 1);
	T_ERR(x_hread_nowait(fd, buf, sizeof(buf), 60), EINVAL);
	T_IOLOG(fd, n, 0, n, 0);
}

/* ---- records that are no data ---- */

/* A read without room for the type of a record fails until somebody has taken it. */
T(record_waits)
{
	for_each_kind(k, TLS) {
		unsigned char buf[64];
		int fd[2], type;

		k->open(fd);
		feed(fd[1], 20, 0);
		put_alert(fd[1], 1, 90);
		feed(fd[1], 10, 20);
		READABLE(fd[0], 1);
		GET(fd[0], 20, 0, 0);
		READABLE(fd[0], 1);
		T_ERR(x_hread(fd[0], buf, 64, 20), EIO);
		T_ERR(read(fd[0], buf, 64), EIO);
		T_ERR(x_hread(fd[0], buf, 64, 20), EIO);
		T_IOLOG(fd[0], 20, 0, 0, 0);
		T_EQ(get_record(fd[0], &type, buf, 64, MSG_PEEK), 2);
		T_EQ(type, ALERT);
		ALERT_IS(fd[0], 1, 90);
		GET(fd[0], 10, 20, 30);
		T_IOLOG(fd[0], 30, 30, 0, 0);
	}
}

/* Behind unread data it is not lost, and its error does not come twice. */
T(record_behind_unread_data)
{
	for_each_kind(k, TLS) {
		unsigned char buf[64];
		int fd[2], type;

		for (int plain = 0; plain < 2; plain++) {
			k->open(fd);
			feed(fd[1], 20, 0);
			make_unread(fd[0], 20);
			put_alert(fd[1], 2, 0);
			feed(fd[1], 10, 20);
			t_sleep_ms(20);
			if (plain)
				T_EQ(recv(fd[0], buf, 64, 0), 20);
			else
				T_EQ(x_hread(fd[0], buf, 64, 20), 20);
			T_EQ(t_match(buf, 20, 0), 20);
			ALERT_IS(fd[0], 2, 0);
			GET(fd[0], 10, 20, 10);
			T_EQ(recv(fd[0], buf, 64, MSG_DONTWAIT), -1);
			T_EQ(errno, EAGAIN);

			/* All of it at once, if it is waited for: the same */
			feed(fd[1], 20, 30);
			READABLE(fd[0], 1);
			T_ERR(x_hread_nowait(fd[0], buf, sizeof(buf), 60), EINVAL);
			put_alert(fd[1], 1, 90);
			T_EQ(recv(fd[0], buf, 64, MSG_WAITALL), 20);
			T_EQ(t_match(buf, 20, 30), 20);
			ALERT_IS(fd[0], 1, 90);
			T_EQ(get_record(fd[0], &type, buf, 64, MSG_DONTWAIT), -1);
			T_EQ(errno, EAGAIN);
		}
	}
}

/* Who asks for the type is told that it is data, whether or not it was read before. */
T(type_of_unread_data)
{
	for_each_kind(k, TLS) {
		unsigned char buf[64];
		int fd[2], type;

		k->open(fd);
		feed(fd[1], 20, 0);
		make_unread(fd[0], 20);
		feed(fd[1], 10, 20);
		T_OK(setsockopt(fd[0], IPPROTO_TCP, TCP_INQ, &(int){ 1 }, sizeof(int)));
		T_EQ(get_record(fd[0], &type, buf, 64, MSG_PEEK), 20);
		T_EQ(type, DATA);
		T_EQ(get_record(fd[0], &type, buf, 8, 0), 8);
		T_EQ(type, DATA);
		T_EQ(get_record(fd[0], &type, buf + 8, 56, 0), 12);
		T_EQ(type, DATA);
		T_EQ(t_match(buf, 20, 0), 20);
		T_EQ(get_record(fd[0], &type, buf, 64, 0), 10);
		T_EQ(type, DATA);
		T_EQ(t_match(buf, 10, 20), 10);
	}
}

/* ---- keys ---- */

static void open_ulp(int fd[2])
{
	open_tcp4(fd);
	T_OK(setsockopt(fd[0], IPPROTO_TCP, TCP_ULP, "tls", 3));
	use_tls(fd[1], TLS_1_2_VERSION, TLS_CIPHER_AES_GCM_128);
}

#define KEYS(fd, direction)	set_keys(fd, TLS_1_2_VERSION, TLS_CIPHER_AES_GCM_128, direction)

/* What came as plain text must not be read again as what the peer has encrypted. */
T(no_keys_while_data_is_held)
{
	char buf[64];
	int fd[2];

	open_tcp4(fd);
	feed(fd[1], 20, 0);
	READABLE(fd[0], 1);
	GET(fd[0], 20, 0, 0);
	T_OK(setsockopt(fd[0], IPPROTO_TCP, TCP_ULP, "tls", 3));
	T_EXPECT(!KEYS(fd[0], TLS_RX) && errno == EBUSY);
	T_EQ(x_hread(fd[0], NULL, 0, 19), 0);
	T_EXPECT(!KEYS(fd[0], TLS_RX) && errno == EBUSY);
	/* What is written has nothing to do with it. */
	T_EXPECT(KEYS(fd[0], TLS_TX));
	T_EQ(x_hread(fd[0], NULL, 0, 1), 0);
	T_EXPECT(KEYS(fd[0], TLS_RX));
	use_tls(fd[1], TLS_1_2_VERSION, TLS_CIPHER_AES_GCM_128);
	feed(fd[1], 10, 20);
	READABLE(fd[0], 1);
	GET(fd[0], 10, 20, 10);

	/* Unread */
	open_tcp4(fd);
	feed(fd[1], 20, 0);
	make_unread(fd[0], 20);
	T_OK(setsockopt(fd[0], IPPROTO_TCP, TCP_ULP, "tls", 3));
	T_EXPECT(!KEYS(fd[0], TLS_RX) && errno == EBUSY);
	T_EQ(read(fd[0], buf, 19), 19);
	T_EXPECT(!KEYS(fd[0], TLS_RX) && errno == EBUSY);
	T_EQ(read(fd[0], buf, 19), 1);
	T_EXPECT(KEYS(fd[0], TLS_RX));

	/* Held by another process, while it is there */
	open_tcp4(fd);
	feed(fd[1], 20, 0);
	T_OK(setsockopt(fd[0], IPPROTO_TCP, TCP_ULP, "tls", 3));
	T_CHILD {
		READABLE(fd[0], 1);
		GET(fd[0], 20, 0, 0);
		T_EXPECT(!KEYS(fd[0], TLS_RX) && errno == EBUSY);
	}
	T_EXPECT(KEYS(fd[0], TLS_RX));
}

T(which_directions)
{
	char buf[64];
	int fd[2], p[2];

	open_tcp4(fd);
	T_EQ(perdure_tls(fd[0]), PERDURE_TLS_UNTOUCHED);
	feed(fd[1], 20, 0);
	READABLE(fd[0], 1);
	T_EQ(perdure_tls(fd[0]), PERDURE_TLS_UNTOUCHED);
	T_EQ(perdure_tls(fd[1]), 0);
	make_unread(fd[0], 20);
	T_EQ(perdure_tls(fd[0]), PERDURE_TLS_UNTOUCHED);
	T_EQ(read(fd[0], buf, 1), 1);
	T_EQ(perdure_tls(fd[0]), 0);
	T_EQ(read(fd[0], buf, 19), 19);
	T_OK(setsockopt(fd[0], IPPROTO_TCP, TCP_ULP, "tls", 3));
	T_EQ(perdure_tls(fd[0]), 0);
	T_EXPECT(KEYS(fd[0], TLS_TX));
	T_EQ(perdure_tls(fd[0]), PERDURE_TLS_TX);
	T_EXPECT(KEYS(fd[0], TLS_RX));
	T_EQ(perdure_tls(fd[0]), PERDURE_TLS_TX | PERDURE_TLS_RX);

	/* Written, and nothing read */
	open_tcp4(fd);
	feed(fd[0], 1, 0);
	T_EQ(perdure_tls(fd[0]), 0);

	open_ulp(fd);
	T_EXPECT(KEYS(fd[0], TLS_RX));
	T_EQ(perdure_tls(fd[0]), PERDURE_TLS_RX | PERDURE_TLS_UNTOUCHED);
	T_OK(pipe(p));
	T_EQ(perdure_tls(p[0]), 0);
	T_EQ(perdure_tls(-1), 0);
}

/* ---- alerts, and what the library makes of records that are no data ---- */

T(alerts)
{
	static char record[16384];
	unsigned char buf[64];
	int fd[2];

	for_each_kind(k, TLS) {
		k->open(fd);
		T_EQ(perdure_tls_alert(fd[0], PERDURE_TLS_CLOSE_NOTIFY), 0);
		ALERT_IS(fd[1], 1, 0);
		T_EQ(perdure_tls_alert(fd[0], PERDURE_TLS_INTERNAL_ERROR), 0);
		ALERT_IS(fd[1], 2, 80);
		T_EQ(perdure_tls_alert(fd[0], 100), 0);
		ALERT_IS(fd[1], 1, 100);
		T_ERR(perdure_tls_alert(fd[0], 256), EINVAL);
		T_ERR(perdure_tls_alert(fd[0], -1), EINVAL);
		T_IOLOG(fd[0], 0, 0, 0, 0);
		/* As the file: it does not wait */
		T_OK(fcntl(fd[0], F_SETFL, O_NONBLOCK));
		while (write(fd[0], record, sizeof(record)) > 0 || write(fd[0], fd, sizeof(fd)) > 0)
			;
		T_ERR(perdure_tls_alert(fd[0], 0), EAGAIN);
		close(fd[1]);
		t_sleep_ms(10);
		T_EQ(perdure_tls_alert(fd[0], 0), -1);
	}
	t_context = NULL;
	/* Before there are keys */
	open_tcp4(fd);
	T_EQ(perdure_tls_alert(fd[0], PERDURE_TLS_INTERNAL_ERROR), 0);
	T_EQ(read(fd[1], buf, 64), 7);
	T_MEMEQ(buf, "\x15\x03\x03\x00\x02\x02\x50", 7);
	T_ERR(perdure_tls_alert(-1, 0), EBADF);
}

T(control)
{
	static const struct {
		int type, len, version;		/* version 0: both */
		unsigned char start[2];
		int ret, error, alert, level;	/* alert 0: none */
	} cases[] = {
		{ ALERT, 2, 0, { 1, 0 }, 0, 0, 0, 0 },
		{ ALERT, 2, 0, { 2, 0 }, 0, 0, 0, 0 },
		{ ALERT, 2, 0, { 1, 90 }, 1, 0, 0, 0 },
		{ ALERT, 2, 12, { 1, 100 }, 1, 0, 0, 0 },
		{ ALERT, 2, 13, { 1, 100 }, -1, ECONNRESET, 0, 0 },
		{ ALERT, 2, 0, { 2, 40 }, -1, ECONNRESET, 0, 0 },
		{ ALERT, 1, 0, { 0, 0 }, -1, ECONNRESET, 0, 0 },
		{ HANDSHAKE, 5, 13, { 24, 0 }, -1, EKEYEXPIRED, 80, 2 },
		{ HANDSHAKE, 5, 12, { 24, 0 }, -1, EPROTO, 10, 2 },
		{ HANDSHAKE, 300, 12, { 1, 0 }, 1, 0, 100, 1 },
		{ HANDSHAKE, 4, 12, { 0, 0 }, 1, 0, 100, 1 },
		{ HANDSHAKE, 300, 13, { 1, 0 }, -1, EPROTO, 10, 2 },
		{ HANDSHAKE, 9000, 0, { 11, 0 }, -1, EPROTO, 10, 2 },
		{ 20, 1, 0, { 1, 0 }, -1, EPROTO, 10, 2 },
		{ 77, 1, 0, { 1, 0 }, -1, EPROTO, 10, 2 },
	};
	unsigned char buf[9000];
	char what[64];
	int fd[2];

	for_each_kind(k, TLS) {
		int version = k->open == open_tls12 ? 12 : 13;

		for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
			if (cases[i].version && cases[i].version != version)
				continue;
			snprintf(what, sizeof(what), "%s: case %zu", k->name, i);
			t_context = what;
			k->open(fd);
			memset(buf, 0, sizeof(buf));
			memcpy(buf, cases[i].start, 2);
			T_EQ(put_record(fd[1], cases[i].type, buf, cases[i].len, 0), cases[i].len);
			feed(fd[1], 20, 0);
			READABLE(fd[0], 1);
			if (cases[i].error)
				T_ERR(perdure_tls_control(fd[0]), cases[i].error);
			else
				T_EQ(perdure_tls_control(fd[0]), cases[i].ret);
			if (cases[i].alert)
				ALERT_IS(fd[1], cases[i].level, cases[i].alert);
			else
				READABLE(fd[1], 0);
			/* All of the record is gone, and nothing else: data stays, held or not */
			T_EQ(perdure_tls_control(fd[0]), 1);
			GET(fd[0], 20, 0, 0);
			T_EQ(perdure_tls_control(fd[0]), 1);
			T_IOLOG(fd[0], 20, 0, 0, 0);
			close(fd[0]);
			close(fd[1]);
		}
	}
	t_context = NULL;
	open_tcp4(fd);
	T_ERR(perdure_tls_control(fd[0]), EIO);
	T_ERR(perdure_tls_control(-1), EIO);
}

/* ---- the books ---- */

T(books)
{
	struct perdure_conns *conns = perdure_conns_open("ktls", 0, 0);
	struct perdure_conn *c;
	char buf[64];
	int fd[2];

	T_ASSERT(conns);
	/* Half of it in the process: refused, and left as it is */
	open_ulp(fd);
	T_EXPECT(KEYS(fd[0], TLS_TX));
	T_EXPECT(!perdure_conn_open(conns, fd[0]) && errno == EPROTONOSUPPORT);
	T_EXPECT(KEYS(fd[0], TLS_RX));
	c = perdure_conn_open(conns, fd[0]);
	T_ASSERT(c);
	T_EQ(perdure_conn_flags(c), PERDURE_CONN_TLS);
	T_EQ(perdure_conn_close(c), 0);
	ALERT_IS(fd[1], 1, 0);

	open_ulp(fd);
	T_EXPECT(KEYS(fd[0], TLS_RX));
	T_EXPECT(!perdure_conn_open(conns, fd[0]) && errno == EPROTONOSUPPORT);

	open_tcp4(fd);
	c = perdure_conn_open(conns, fd[0]);
	T_ASSERT(c);
	T_EQ(perdure_conn_flags(c), 0);
	T_EQ(perdure_conn_close(c), 0);
	T_EQ(read(fd[1], buf, 64), 0);

	for_each_kind(k, TLS) {
		/* What is to be passed over is; the end is an end, and answered. */
		k->open(fd);
		c = perdure_conn_open(conns, fd[0]);
		put_alert(fd[1], 1, 90);
		feed(fd[1], 20, 0);
		put_alert(fd[1], 1, 90);
		put_alert(fd[1], 1, 0);
		T_EQ(perdure_conn_read(c, buf, 64), 20);
		T_EQ(t_match(buf, 20, 0), 20);
		T_EQ(perdure_conn_write(c, buf, 20), 20);
		T_EQ(perdure_conn_done(c, 20, 0), 0);
		T_EQ(perdure_conn_read(c, buf, 64), 0);
		T_EQ(perdure_conn_close(c), 0);
		T_EQ(read(fd[1], buf, 64), 20);
		ALERT_IS(fd[1], 1, 0);
		T_EQ(read(fd[1], buf, 64), 0);

		/* In the midst of an answer the end is no good one. */
		k->open(fd);
		c = perdure_conn_open(conns, fd[0]);
		T_EQ(perdure_conn_write(c, buf, 20), 20);
		T_EQ(perdure_conn_close(c), 0);
		T_EQ(read(fd[1], buf, 64), 20);
		T_EQ(read(fd[1], buf, 64), 0);

		/* Nor one without an alert */
		k->open(fd);
		c = perdure_conn_open(conns, fd[0]);
		T_OK(shutdown(fd[1], SHUT_WR));
		T_EQ(perdure_conn_read(c, buf, 64), 0);
		T_EQ(perdure_conn_close(c), 0);

		/* Not for ever */
		k->open(fd);
		c = perdure_conn_open(conns, fd[0]);
		for (int i = 0; i < 100; i++)
			put_alert(fd[1], 1, 90);
		T_ERR(perdure_conn_read(c, buf, 64), EPROTO);
		T_EQ(perdure_conn_close(c), 0);
		close(fd[1]);

		/* New keys cannot be taken */
		if (k->open != open_tls12) {
			k->open(fd);
			c = perdure_conn_open(conns, fd[0]);
			T_EQ(put_record(fd[1], HANDSHAKE, "\x18\0\0\1\0", 5, 0), 5);
			T_ERR(perdure_conn_read(c, buf, 64), EKEYEXPIRED);
			ALERT_IS(fd[1], 2, 80);
			T_EQ(perdure_conn_close(c), 0);
		}
	}
	perdure_conns_close(conns);
}

ROLE(books_again)
{
	struct perdure_conns *conns = perdure_conns_open("again", 0, 0);
	struct perdure_conn *c;
	char buf[64];

	T_EQ(t_generation(), 2);
	T_ASSERT(conns);
	c = perdure_conn_open(conns, RD);
	T_ASSERT(c);
	T_EQ(perdure_conn_flags(c), PERDURE_CONN_TLS | PERDURE_CONN_INHERITED);
	T_EQ(perdure_conn_read(c, buf, 20), 20);
	T_EQ(t_match(buf, 20, 0), 20);
	T_EQ(perdure_conn_skip(c), 5);
	T_EQ(perdure_conn_write(c, buf, 20), 20);
	T_EQ(perdure_conn_done(c, 20, 0), 0);
	T_EQ(perdure_conn_read(c, buf, 20), 10);
	T_EQ(t_match(buf, 10, 20), 10);
	/* Another answer than before: no good end */
	c = perdure_conn_open(conns, RD2);
	T_ASSERT(c);
	t_fill(buf, 20, 7);
	T_ERR(perdure_conn_write(c, buf, 20), ESTALE);
	T_EQ(perdure_conn_close(c), 0);
	return 0;
}

/* An answer that a fault interrupts goes on in the middle; the peer sees one. */
T(books_over_a_restart)
{
	for_each_kind(k, TLS) {
		char buf[64];

		T_CHILD {
			struct perdure_conns *conns;
			struct perdure_conn *c, *d;
			pid_t pid;

			open_at(k, RD, WR);
			open_at(k, RD2, WR2);
			feed(WR, 20, 0);
			pid = t_fork();
			if (!pid) {
				t_register("books_again", NULL);
				conns = perdure_conns_open("again", 0, 0);
				T_ASSERT(conns);
				c = perdure_conn_open(conns, RD);
				d = perdure_conn_open(conns, RD2);
				T_EQ(perdure_conn_read(c, buf, 20), 20);
				T_EQ(perdure_conn_write(c, buf, 5), 5);
				T_EQ(perdure_conn_write(d, buf, 5), 5);
				feed(WR, 10, 20);
				t_crash();
			}
			close(RD);
			close(RD2);
			T_EXITED(t_wait(pid), 0);
			T_EQ(recv(WR, buf, 64, MSG_WAITALL), 20);
			T_EQ(t_match(buf, 20, 0), 20);
			T_EQ(recv(WR2, buf, 64, MSG_WAITALL), 5);
		}
	}
}

enum { UPLOAD = 800000, UPLOAD_FAULTS = 5 };

/* Reads a request of many parts, from its beginning each time, and faults on the way. */
static int takes_upload(void)
{
	struct perdure_conns *conns = perdure_conns_open("upload", 0, 0);
	struct perdure_conn *c;
	static char buf[5000];
	size_t got = 0, stop = t_generation() * UPLOAD / (UPLOAD_FAULTS + 2);
	ssize_t n;

	T_ASSERT(conns);
	c = perdure_conn_open(conns, RD);
	T_ASSERT(c);
	while (got < UPLOAD) {
		n = perdure_conn_read(c, buf, sizeof(buf));
		T_ASSERT(n > 0);
		T_EQ(t_match(buf, n, got), n);
		got += n;
		if (t_generation() <= UPLOAD_FAULTS && got > stop)
			t_crash();
	}
	T_EQ(t_generation(), UPLOAD_FAULTS + 1);
	T_EQ(perdure_conn_write(c, buf, 5), 5);
	T_EQ(perdure_conn_done(c, got, PERDURE_LAST), 0);
	T_EQ(perdure_conn_close(c), 0);
	return 0;
}

ROLE(uploaded)
{
	return takes_upload();
}

T_LIMIT(upload, 60)
{
	for_each_kind(k, TLS) {
		char *all = malloc(UPLOAD), buf[64];
		pid_t pid;

		open_at(k, RD, WR);
		t_fill(all, UPLOAD, 0);
		pid = t_fork();
		if (!pid) {
			close(WR);
			t_register("uploaded", NULL);
			_exit(takes_upload());
		}
		close(RD);
		T_EQ(write(WR, all, UPLOAD), UPLOAD);
		T_EQ(recv(WR, buf, 64, MSG_WAITALL), 5);
		ALERT_IS(WR, 1, 0);
		T_EXITED(t_wait(pid), 0);
		close(WR);
		free(all);
	}
}

/* ---- writing ---- */

/* All that the peer gets until the end; -1: it is not what the stream has. */
static ssize_t drain(int fd)
{
	static char buf[65536];
	ssize_t n, sum = 0;

	while ((n = read(fd, buf, sizeof(buf))) > 0) {
		if (t_match(buf, n, sum) != (size_t)n)
			return -1;
		sum += n;
	}
	return n < 0 ? -errno : sum;
}

static int stream_file(size_t size)
{
	char path[PATH_MAX], *all = malloc(size);
	int fd = T_OK(open(t_path(path, "stream"), O_RDWR | O_CREAT | O_TRUNC, 0600));

	t_fill(all, size, 0);
	T_ASSERT(pwrite(fd, all, size, 0) == (ssize_t)size);
	free(all);
	return fd;
}

enum { BIG = 3000000 };

/* What has been counted is what the peer gets, in bytes of plain text: to the end of what is there, or of its room */
T(counts)
{
	int file = stream_file(BIG);
	char *all = mmap(NULL, BIG, PROT_READ, MAP_SHARED, file, 0);

	for_each_kind(k, TLS) {
		for (int way = 0; way < 4; way++) {
			struct io_log log;
			ssize_t n, got = 0;
			off_t off = 0;
			int fd[2];
			pid_t pid;

			k->open(fd);
			t_word[1] = 0;
			if (way & 1)
				T_OK(fcntl(fd[0], F_SETFL, O_NONBLOCK));
			pid = t_fork();
			if (!pid) {
				close(fd[0]);
				while (way & 1 && !t_word[1])
					t_sleep_ms(1);
				t_word[0] = drain(fd[1]);
				_exit(0);
			}
			close(fd[1]);
			for (;;) {
				if (way & 2)
					n = x_lsendfile(fd[0], file, &off, BIG - got);
				else
					n = x_lwrite(fd[0], all + got, BIG - got);
				if (n <= 0)
					break;
				got += n;
				if (way & 2)
					T_EQ(off, got);
			}
			T_EQ(x_getiolog(fd[0], &log), 0);
			T_EQ(log.written, got);
			if (way & 1) {
				T_RANGE(got, 10000, BIG - 1);
				t_word[1] = 1;
				/* It pushes what is open of a record */
				T_OK(fcntl(fd[0], F_SETFL, 0));
				T_EQ(x_lwrite(fd[0], all + got, 1), 1);
				got++;
			} else {
				T_EQ(got, BIG);
			}
			close(fd[0]);
			T_EXITED(t_wait(pid), 0);
			T_EQ(t_word[0], got);
		}
	}
}

static void *writes_on(void *arg)
{
	int file = stream_file(BIG);
	char *all = mmap(NULL, BIG, PROT_READ, MAP_SHARED, file, 0);
	off_t off = 0;

	while (off < BIG && (arg ? x_lsendfile(WR, file, &off, BIG - off) > 0 : (off += x_lwrite(WR, all + off, BIG - off)) > 0))
		;
	return NULL;
}

ROLE(goes_on_writing)
{
	char *all = malloc(BIG);
	struct io_log log;

	T_EQ(t_generation(), 2);
	t_fill(all, BIG, 0);
	T_EQ(x_getiolog(WR, &log), 0);
	T_RANGE(log.written, 1, BIG - 1);
	T_EQ(x_lwrite(WR, all + log.written, BIG - log.written), BIG - log.written);
	return 0;
}

/* A fault cuts a write that waits for room, at whatever place of a record: the next generation knows where. */
T_LIMIT(fault_cuts_a_write, 100)
{
	for_each_kind(k, TLS) {
		for (int way = 0; way < 2; way++) {
			pthread_t thread;
			pid_t pid;

			open_at(k, RD, WR);
			t_word[0] = 0;
			pid = t_fork();
			if (!pid) {
				close(RD);
				t_register("goes_on_writing", NULL);
				T_ASSERT(!pthread_create(&thread, NULL, writes_on, way ? &thread : NULL));
				for (int sent = 0; !sent; t_sleep_ms(300))
					T_OK(ioctl(WR, SIOCOUTQ, &sent));
				t_word[0] = 1;
				t_crash();
			}
			close(WR);
			while (!t_word[0])
				t_sleep_ms(10);
			t_sleep_ms(200);
			T_EQ(drain(RD), BIG);
			T_EXITED(t_wait(pid), 0);
			close(RD);
		}
	}
}

/* ---- who does not keep to it ---- */

/* What is no TLS ends its own connection, after the data before it, and no other. */
T(garbage)
{
	static const char *const garbage[] = { "GET / HTTP/1.0\r\n\r\n, which is plain text, and long enough to be looked at",
					       "\x17\x03\x03\x00\x30 0123456789 0123456789 0123456789 0123456789 01",
					       "\x17\x03\x03\xff\xff a record that is too long ........................." };

	for_each_kind(k, TLS) {
		for (size_t i = 0; i < ARRAY_LEN(garbage); i++) {
			int fd[2], other[2];
			char buf[64];
			int raw;

			k->open(other);
			feed(other[1], 20, 0);
			open_tcp4(fd);
			raw = fd[1];
			use_tls_as(k, fd[0]);
			T_EQ(send(raw, garbage[i], 53, 0), 53);
			errno = 0;
			T_EQ(x_hread(fd[0], buf, 64, 0), -1);
			T_EXPECT(errno == EBADMSG || errno == EINVAL || errno == EMSGSIZE);
			T_IOLOG(fd[0], 0, 0, 0, 0);
			GET(other[0], 20, 0, 20);
		}
	}
}

/* Behind unread data the error comes afterwards, once asked. */
T(garbage_behind_unread_data)
{
	unsigned char buf[64], record[256];
	int fd[2], to[2];
	ssize_t n;

	for_each_kind(k, TLS) {
		/* A record as it is on the way, of a connection with the same keys */
		open_tcp4(to);
		use_tls_as(k, to[1]);
		feed(to[1], 20, 0);
		n = recv(to[0], record, sizeof(record), 0);
		T_RANGE(n, 40, 80);

		open_tcp4(fd);
		use_tls_as(k, fd[0]);
		T_EQ(send(fd[1], record, n, 0), n);
		make_unread(fd[0], 20);
		/* The same again: its number is wrong */
		T_EQ(send(fd[1], record, n, 0), n);
		t_sleep_ms(20);
		T_EQ(x_hread(fd[0], buf, 64, 0), 20);
		T_EQ(t_match(buf, 20, 0), 20);
		T_ERR(x_hread(fd[0], buf, 64, 0), EBADMSG);
		T_IOLOG(fd[0], 20, 0, 0, 0);
	}
}

/* Half of a record: who waits for the rest sleeps. */
T(half_a_record)
{
	for (int closed = 0; closed < 2; closed++) {
		for_each_kind(k, TLS) {
			struct rusage before, after;
			struct timeval wait = { 0, 500000 };
			char buf[64];
			int fd[2];

			open_tcp4(fd);
			use_tls_as(k, fd[0]);
			if (closed)
				T_OK(shutdown(fd[0], SHUT_WR));
			T_EQ(send(fd[1], "\x17\x03\x03\x00\x40 0123456789", 16, 0), 16);
			t_sleep_ms(20);
			T_OK(setsockopt(fd[0], SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)));
			getrusage(RUSAGE_SELF, &before);
			T_ERR(x_hread(fd[0], buf, 64, 0), EAGAIN);
			getrusage(RUSAGE_SELF, &after);
			T_RANGE((after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000 +
				(after.ru_stime.tv_usec - before.ru_stime.tv_usec) / 1000, 0, 100 * t_slow());
		}
	}
}

/* Messages that can be undone have no place in records: each excludes the other. */
T(cascade)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int fd[2], on = 1, listener;

	open_tls12(fd);
	T_ERR(setsockopt(fd[0], IPPROTO_TCP, TCP_CASCADE, &on, sizeof(on)), EISCONN);
	feed(fd[1], 20, 0);
	READABLE(fd[0], 1);
	GET(fd[0], 20, 0, 20);

	listener = T_OK(socket(AF_INET, SOCK_STREAM, 0));
	fd[1] = T_OK(socket(AF_INET, SOCK_STREAM, 0));
	T_OK(setsockopt(listener, IPPROTO_TCP, TCP_CASCADE, &on, sizeof(on)));
	T_OK(setsockopt(fd[1], IPPROTO_TCP, TCP_CASCADE, &on, sizeof(on)));
	T_OK(bind(listener, (void *)&a, len));
	T_OK(getsockname(listener, (void *)&a, &len));
	T_OK(listen(listener, 1));
	T_OK(connect(fd[1], (void *)&a, len));
	fd[0] = T_OK(accept(listener, NULL, NULL));
	T_ERR(setsockopt(fd[0], IPPROTO_TCP, TCP_ULP, "tls", 3), EOPNOTSUPP);
	feed(fd[1], 20, 0);
	READABLE(fd[0], 1);
	GET(fd[0], 20, 0, 20);
}
