// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * This test checks what of libperdure works on every kernel: reading, writing, and the kinds of descriptors. It is the same program on a
 * kernel that has the calls, on one that has not, and where they are forbidden or switched off.
 */
#include "../lib/seccomp.h"
#include "../lib/t.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <perdure.h>
#include <pty.h>
#include <signal.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

/* Does the kernel hold and count? */
static bool counts(void)
{
	return hread(-1, NULL, 0, 0) < 0 && errno == EBADF;
}

static void held(int fd, uint64_t want)
{
	struct io_log log;

	if (!counts())
		return;
	T_OK(getiolog(fd, &log));
	T_EQ(log.held, want);
}

static void written(int fd, uint64_t want)
{
	struct io_log log;

	if (!counts())
		return;
	T_OK(getiolog(fd, &log));
	T_EQ(log.written, want);
}

static void stream(int sv[2], int kind)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int listener;

	if (kind != AF_INET) {
		T_OK(socketpair(AF_UNIX, kind, 0, sv));
		return;
	}
	listener = T_OK(socket(AF_INET, SOCK_STREAM, 0));
	T_OK(bind(listener, (struct sockaddr *)&a, sizeof(a)));
	T_OK(listen(listener, 1));
	T_OK(getsockname(listener, (struct sockaddr *)&a, &len));
	sv[1] = T_OK(socket(AF_INET, SOCK_STREAM, 0));
	T_OK(connect(sv[1], (struct sockaddr *)&a, sizeof(a)));
	sv[0] = T_OK(accept(listener, NULL, NULL));
	close(listener);
}

/* The plain form, on anything that has two ends */
static void there_and_back(int from, int to)
{
	char buf[16];

	T_EQ(perdure_write(to, "twelve bytes", 12), 12);
	written(to, 12);
	T_EQ(perdure_read(from, buf, 5, 0, 0), 5);
	T_MEMEQ(buf, "twelv", 5);
	held(from, 5);
	T_EQ(perdure_read(from, buf, sizeof(buf), 5, 0), 7);
	T_MEMEQ(buf, "e bytes", 7);
	held(from, 7);
	T_EQ(perdure_release(from, 7), 0);
	held(from, 0);
	T_EQ(perdure_read(from, NULL, 0, 0, 0), 0);
	T_ERR(perdure_read(from, buf, 1, 0, HREAD_NOWAIT), EAGAIN);
	if (counts())
		T_ERR(perdure_release(from, 1), EINVAL);
	else
		T_EQ(perdure_release(from, 1), 0);
}

static void all_kinds(void)
{
	int ends[2], kinds[] = { AF_INET, SOCK_STREAM };

	T_OK(pipe(ends));
	there_and_back(ends[0], ends[1]);
	close(ends[1]);
	T_EQ(perdure_read(ends[0], kinds, 1, 0, 0), 0);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		int sv[2];

		stream(sv, kinds[i] == AF_INET ? AF_INET : SOCK_STREAM);
		there_and_back(sv[0], sv[1]);
		shutdown(sv[1], SHUT_WR);
		T_EQ(perdure_read(sv[0], ends, 1, 0, 0), 0);
	}
}

T(streams)
{
	all_kinds();
}

static void vectors_of(int from, int to, bool datagrams)
{
	char a[3], b[4], c[100];
	struct iovec in[] = { { a, 3 }, { NULL, 0 }, { b, 4 }, { c, sizeof(c) } };
	struct iovec out[] = { { "one", 3 }, { "", 0 }, { "two!", 4 }, { "three", 5 } };

	T_EQ(perdure_writev(to, out, 4), 12);
	written(to, 12);
	T_EQ(perdure_writev(to, out, 1), 3);
	written(to, 15);
	/* One datagram stays one, and does not take a part of the next */
	T_EQ(perdure_readv(from, in, 4, 0, 0), datagrams ? 12 : 15);
	T_MEMEQ(a, "one", 3);
	T_MEMEQ(b, "two!", 4);
	T_MEMEQ(c, "three", 5);
	if (datagrams)
		T_EQ(perdure_readv(from, in, 1, 0, 0), 3);
	T_ERR(perdure_readv(from, in, 2, 0, HREAD_NOWAIT), EAGAIN);
	held(from, 15);
	T_EQ(perdure_release(from, datagrams ? 12 : 15), 0);
	/* Nothing asked for */
	T_EQ(perdure_readv(from, in + 1, 1, 0, 0), 0);
	T_EQ(perdure_readv(from, in, 0, 0, 0), 0);
	T_EQ(perdure_writev(to, out + 1, 1), 0);
	T_ERR(perdure_readv(from, in, -1, 0, 0), EINVAL);
	T_ERR(perdure_writev(to, out, -1), EINVAL);
	T_ERR(perdure_readv(from, in, IOV_MAX + 1, 0, 0), EINVAL);
	T_ERR(perdure_readv(from, (struct iovec[]){ { a, SIZE_MAX / 2 }, { a, SIZE_MAX / 2 } }, 2, 0, 0), EINVAL);
	T_ERR(perdure_readv(from, in, 4, 0, 0x80), EINVAL);
}

T(vectors)
{
	int sv[2], ends[2];

	stream(sv, AF_INET);
	vectors_of(sv[0], sv[1], false);
	stream(sv, SOCK_STREAM);
	vectors_of(sv[0], sv[1], false);
	stream(sv, SOCK_SEQPACKET);
	vectors_of(sv[0], sv[1], true);
	T_OK(pipe(ends));
	vectors_of(ends[0], ends[1], false);
}

/* More than is joined at once arrives whole, by who goes on after a short write */
T(large_vector)
{
	enum { SIZE = 3 << 20 };
	char *from = malloc(SIZE), *to = malloc(SIZE);
	size_t sent = 0, got = 0;
	int sv[2];
	pid_t pid;

	stream(sv, AF_INET);
	t_fill(from, SIZE, 0);
	pid = t_fork();
	if (!pid) {
		while (sent < SIZE) {
			size_t half = (SIZE - sent) / 2;
			struct iovec out[] = { { from + sent, half }, { from + sent + half, SIZE - sent - half } };

			sent += T_OK(perdure_writev(sv[1], out, 2));
		}
		_exit(0);
	}
	while (got < SIZE) {
		size_t half = (SIZE - got) / 2;
		struct iovec in[] = { { to + got, half }, { to + got + half, SIZE - got - half } };
		ssize_t n = T_OK(perdure_readv(sv[0], in, 2, 0, 0));

		T_ASSERT(n > 0);
		T_OK(perdure_release(sv[0], n));
		got += n;
	}
	T_MEMEQ(to, from, SIZE);
	T_EXITED(t_wait(pid), 0);
}

T(senders)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) }, from = { 0 }, mine = { 0 };
	int server = T_OK(socket(AF_INET, SOCK_DGRAM, 0)), client = T_OK(socket(AF_INET, SOCK_DGRAM, 0)), sv[2];
	char x[4], y[20];
	struct iovec in[] = { { x, sizeof(x) }, { y, sizeof(y) } };
	struct msghdr msg = { .msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = in, .msg_iovlen = 2 };
	socklen_t len = sizeof(a);

	T_OK(bind(server, (struct sockaddr *)&a, sizeof(a)));
	T_OK(getsockname(server, (struct sockaddr *)&a, &len));
	T_OK(connect(client, (struct sockaddr *)&a, sizeof(a)));
	T_OK(getsockname(client, (struct sockaddr *)&mine, &len));
	T_ERR(perdure_recvmsg(server, &msg, 0, HREAD_NOWAIT), EAGAIN);
	T_EQ(send(client, "a datagram", 10, 0), 10);
	T_EQ(send(client, "", 0, 0), 0);
	T_EQ(send(client, "another", 7, 0), 7);
	T_EQ(perdure_recvmsg(server, &msg, 0, 0), 10);
	T_MEMEQ(x, "a da", 4);
	T_MEMEQ(y, "tagram", 6);
	T_EQ(msg.msg_namelen, sizeof(from));
	T_EQ(from.sin_port, mine.sin_port);
	held(server, 10);
	/* One without a byte */
	memset(&from, 0, sizeof(from));
	T_EQ(perdure_recvmsg(server, &msg, 10, 0), 0);
	T_EQ(from.sin_port, mine.sin_port);
	T_EQ(perdure_recvmsg(server, &msg, 0, 0), 7);
	T_MEMEQ(x, "anot", 4);
	held(server, 7);
	T_ERR(perdure_recvmsg(server, &msg, 0, HREAD_NOWAIT), EAGAIN);
	T_ERR(perdure_recvmsg(server, &msg, 0, 2), EINVAL);
	/* Of a stream, nobody */
	stream(sv, AF_INET);
	T_EQ(write(sv[1], "stream", 6), 6);
	msg.msg_namelen = sizeof(from);
	T_EQ(perdure_recvmsg(sv[0], &msg, 0, 0), 6);
	T_EQ(msg.msg_namelen, 0);
	held(sv[0], 6);
	T_OK(pipe(sv));
	T_ERR(perdure_recvmsg(sv[0], &msg, 0, 0), ENOTSOCK);
}

T(files)
{
	char path[4200], buf[10];
	off_t at = 2;
	int fd, sv[2];

	t_tmpdir();
	t_write_file(t_path(path, "file"), "0123456789", 10, 0600);
	fd = T_OK(open(path, O_RDWR));
	T_EQ(perdure_read(fd, buf, 4, 0, 0), 4);
	T_MEMEQ(buf, "0123", 4);
	stream(sv, AF_INET);
	T_EQ(perdure_sendfile(sv[1], fd, &at, 3), 3);
	T_EQ(at, 5);
	T_EQ(perdure_sendfile(sv[1], fd, NULL, 100), 6);
	written(sv[1], 9);
	T_EQ(perdure_read(sv[0], buf, sizeof(buf), 0, 0), 9);
	T_MEMEQ(buf, "234456789", 9);
	T_EQ(perdure_write(fd, "+", 1), 1);
	T_EQ(perdure_read(fd, buf, 1, 0, 0), 0);
}

T(terminals)
{
	struct termios raw;
	int master, slave;
	char buf[10];

	cfmakeraw(&raw);
	T_OK(openpty(&master, &slave, NULL, &raw, NULL));
	T_ERR(perdure_read(slave, buf, 1, 0, HREAD_NOWAIT), EAGAIN);
	T_EQ(write(master, "typed", 5), 5);
	T_EQ(perdure_read(slave, buf, sizeof(buf), 0, HREAD_NOWAIT), 5);
	T_MEMEQ(buf, "typed", 5);
	held(slave, 5);
}

T(errors)
{
	char buf[4];
	int ends[2];

	T_OK(pipe(ends));
	T_ERR(perdure_read(-1, buf, 1, 0, 0), EBADF);
	T_ERR(perdure_read(-1, NULL, 0, 0, 0), EBADF);
	T_ERR(perdure_read(ends[1], buf, 1, 0, 0), EBADF);
	T_ERR(perdure_read(ends[0], buf, 1, 0, 0x100), EINVAL);
	T_ERR(perdure_read(ends[0], NULL, 0, 0, 0x100), EINVAL);
	T_ERR(perdure_write(-1, buf, 1), EBADF);
	T_ERR(perdure_write(ends[1], t_gone(), 1), EFAULT);
	T_EQ(write(ends[1], "x", 1), 1);
	T_ERR(perdure_read(ends[0], t_gone(), 1, 0, 0), EFAULT);
	T_EQ(perdure_read(ends[0], buf, 1, 0, 0), 1);
	T_ERR(perdure_sendfile(ends[1], ends[0], NULL, 1), EINVAL);
	T_ERR(perdure_release(-1, 0), EBADF);
}

static const char *const nobody[] = { "library", NULL };

T(protection)
{
	errno = 0;
	T_EQ(perdure_protected(), 0);
	T_EQ(errno, counts() ? ENOENT : ENOSYS);
	if (!counts()) {
		T_ERR(perdure_register((char **)nobody), ENOSYS);
		return;
	}
	T_EQ(perdure_register((char **)nobody), 0);
	T_EQ(perdure_protected(), 1);
	T_EQ(perdure_register((char **)nobody), 0);
}

/* Forbidden by a filter that says so, or that has never heard of them */
T(forbidden)
{
	static const int answers[] = { EPERM, ENOSYS, EOPNOTSUPP };

	for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
		T_CHILD {
			answer_calls(answers[i]);
			T_EQ(perdure_protected(), 0);
			T_EQ(errno, answers[i]);
			T_ERR(perdure_register((char **)nobody), answers[i]);
			all_kinds();
			T_EQ(perdure_protected(), 0);
			T_EQ(errno, answers[i]);
		}
	}
}

/* A file that says EOPNOTSUPP itself does not make all others plain */
T(other_errors)
{
	int ends[2], listener = T_OK(socket(AF_UNIX, SOCK_DGRAM, 0));
	char buf[1];

	T_ASSERT(perdure_read(listener, buf, 1, 0, HREAD_NOWAIT) < 0);
	T_OK(pipe(ends));
	there_and_back(ends[0], ends[1]);
}

T(switched_off)
{
	int ends[2];
	char buf[10];

	if (!counts())
		t_skip("this kernel has nothing to switch off");
	if (geteuid())
		t_skip("only root can switch it off");
	T_OK(pipe(ends));
	T_EQ(perdure_register((char **)nobody), 0);
	T_EQ(write(ends[1], "first second", 12), 12);
	T_EQ(perdure_read(ends[0], buf, 6, 0, 0), 6);
	T_OK(t_sysctl("enabled", 0));
	T_EQ(perdure_read(ends[0], buf, 6, 6, 0), 6);
	T_MEMEQ(buf, "second", 6);
	T_EQ(perdure_protected(), 0);
	T_EQ(errno, EOPNOTSUPP);
	T_OK(t_sysctl("enabled", 1));
	/* For good: what was read meanwhile was not counted */
	T_EQ(perdure_protected(), 0);
	T_EQ(errno, EOPNOTSUPP);
	T_EQ(write(ends[1], "third", 5), 5);
	T_EQ(perdure_read(ends[0], buf, 6, 0, 0), 5);
	held(ends[0], 6);
}

static enum perdure_kind kind_of(int fd)
{
	struct perdure_inherited *list;
	int n = T_OK(perdure_inherited(&list)), last = -1, kind = -1;

	for (int i = 0; i < n; i++) {
		T_EXPECT(list[i].fd > last);
		last = list[i].fd;
		if (list[i].fd == fd)
			kind = list[i].kind;
	}
	free(list);
	return kind;
}

T(kinds)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_un path = { .sun_family = AF_UNIX };
	int listener = T_OK(socket(AF_INET, SOCK_STREAM, 0)), other = T_OK(socket(AF_INET, SOCK_STREAM, 0)), client, accepted, gone;
	int outgoing = T_OK(socket(AF_INET, SOCK_STREAM, 0)), fresh = T_OK(socket(AF_INET, SOCK_STREAM, 0)), ends[2], local, at;
	socklen_t len = sizeof(a);
	char buf[4200];

	T_OK(bind(listener, (struct sockaddr *)&a, sizeof(a)));
	T_OK(listen(listener, 8));
	T_OK(getsockname(listener, (struct sockaddr *)&a, &len));
	client = T_OK(socket(AF_INET, SOCK_STREAM, 0));
	T_OK(connect(client, (struct sockaddr *)&a, sizeof(a)));
	accepted = T_OK(accept(listener, NULL, NULL));
	gone = T_OK(socket(AF_INET, SOCK_STREAM, 0));
	T_OK(connect(gone, (struct sockaddr *)&a, sizeof(a)));
	at = T_OK(accept(listener, NULL, NULL));
	T_OK(setsockopt(gone, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger)));
	close(gone);
	T_EQ(kind_of(listener), PERDURE_LISTENING);
	T_EQ(kind_of(accepted), PERDURE_ACCEPTED);
	T_EQ(kind_of(at), PERDURE_ACCEPTED);
	T_EQ(kind_of(client), PERDURE_OUTGOING);
	T_EQ(kind_of(fresh), PERDURE_OTHER);
	T_EQ(kind_of(outgoing), PERDURE_OTHER);
	/* Datagrams */
	local = T_OK(socket(AF_INET, SOCK_DGRAM, 0));
	T_EQ(kind_of(local), PERDURE_OTHER);
	a.sin_port = 0;
	T_OK(bind(local, (struct sockaddr *)&a, sizeof(a)));
	T_EQ(kind_of(local), PERDURE_LISTENING);
	T_OK(getsockname(local, (struct sockaddr *)&a, &len));
	T_OK(connect(local, (struct sockaddr *)&a, sizeof(a)));
	T_EQ(kind_of(local), PERDURE_OUTGOING);
	/* Paths */
	close(other);
	other = T_OK(socket(AF_UNIX, SOCK_STREAM, 0));
	t_tmpdir();
	snprintf(path.sun_path, sizeof(path.sun_path), "%.107s", t_path(buf, "socket"));
	T_OK(bind(other, (struct sockaddr *)&path, sizeof(path)));
	T_OK(listen(other, 1));
	close(fresh);
	fresh = T_OK(socket(AF_UNIX, SOCK_STREAM, 0));
	T_OK(connect(fresh, (struct sockaddr *)&path, sizeof(path)));
	at = T_OK(accept(other, NULL, NULL));
	T_EQ(kind_of(other), PERDURE_LISTENING);
	T_EQ(kind_of(at), PERDURE_ACCEPTED);
	T_EQ(kind_of(fresh), PERDURE_OUTGOING);
	/* Two without a name are not each other's */
	T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	T_EQ(kind_of(ends[0]), PERDURE_OUTGOING);
	T_OK(pipe(ends));
	T_EQ(kind_of(ends[0]), PERDURE_OTHER);
	/* State areas are nobody's business, nor is standard input, unless it is a connection */
	T_ASSERT(perdure_state_open("kinds", 100, 1, NULL, NULL));
	T_EQ(kind_of(perdure_state_fd(perdure_state_open("more", 100, 1, NULL, NULL))), (enum perdure_kind)-1);
	T_EQ(kind_of(1), (enum perdure_kind)-1);
	T_OK(dup2(accepted, 0));
	T_EQ(kind_of(0), PERDURE_ACCEPTED);
	T_EQ(perdure_suspect(), -1);
}

/* The books, where there are no restarts: plain reading and writing */
T(books)
{
	struct perdure_conns *conns = perdure_conns_open("books", 0, 8);
	struct perdure_conn *c;
	int sv[2], ends[2];
	char buf[10];

	T_ASSERT(conns);
	stream(sv, AF_INET);
	c = perdure_conn_open(conns, sv[0]);
	T_ASSERT(c);
	T_EQ(perdure_conn_fd(c), sv[0]);
	T_EQ(perdure_conn_flags(c), 0);
	T_EQ(*(uint64_t *)perdure_conn_tag(c), 0);
	*(uint64_t *)perdure_conn_tag(c) = ~0ull;
	T_EQ(perdure_conn_skip(c), 0);
	T_EQ(write(sv[1], "request", 7), 7);
	T_EQ(perdure_conn_read(c, buf, sizeof(buf)), 7);
	T_EQ(perdure_conn_write(c, "answer", 6), 6);
	T_EQ(perdure_conn_writev(c, (struct iovec[]){ { "an", 2 }, { "d", 1 } }, 2), 3);
	held(sv[0], 7);
	written(sv[0], 9);
	T_EQ(read(sv[1], buf, sizeof(buf)), 9);
	T_MEMEQ(buf, "answerand", 9);
	T_ERR(perdure_conn_done(c, 7, 2), EINVAL);
	T_EQ(perdure_conn_done(c, 7, 0), 0);
	T_EQ(write(sv[1], "more", 4), 4);
	T_EQ(perdure_conn_read(c, buf, sizeof(buf)), 4);
	held(sv[0], 4);
	T_EQ(perdure_conn_consume(c, 4), 0);
	held(sv[0], 0);
	T_EQ(perdure_conn_close(c), 0);
	T_EQ(read(sv[1], buf, 1), 0);
	T_ERR(fcntl(sv[0], F_GETFD), EBADF);

	/* Another one there has books of its own */
	T_OK(pipe(ends));
	T_OK(dup2(ends[0], sv[0]));
	c = perdure_conn_open(conns, sv[0]);
	T_ASSERT(c);
	T_EQ(*(uint64_t *)perdure_conn_tag(c), 0);
	perdure_conn_close(c);
	T_EQ(perdure_conn_close(NULL), 0);
	perdure_conns_close(conns);
	perdure_conns_close(NULL);
}

T(books_errors)
{
	struct perdure_conns *conns = perdure_conns_open("small", 20, 0);
	int ends[2];

	T_ASSERT(conns);
	T_EXPECT(!perdure_conn_open(conns, -1) && errno == EBADF);
	T_EXPECT(!perdure_conn_open(conns, 19) && errno == EBADF);
	T_OK(pipe(ends));
	T_OK(dup2(ends[0], 20));
	T_EXPECT(!perdure_conn_open(conns, 20) && errno == ENOSPC);
	T_EXPECT(!perdure_conns_open("large", (1 << 20) + 1, 0) && errno == EINVAL);
	T_EXPECT(!perdure_conns_open("large", -1, 0) && errno == EINVAL);
	T_EXPECT(!perdure_conns_open("tags", 20, PERDURE_TAG_MAX + 1) && errno == EINVAL);
	T_EXPECT(!perdure_conns_open("a/b", 20, 0) && errno == EINVAL);
	T_EXPECT(!perdure_conns_open("small", 21, 0) && errno == ESTALE);
	perdure_conns_close(conns);
}
