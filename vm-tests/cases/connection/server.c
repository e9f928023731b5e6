// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * server PORT THREADS DIR: answers lines, and keeps its books by perdure_conn(3). Without threads (0) it is a loop with poll(2), else each
 * connection has a thread. What it is asked for:
 *
 *	bytes N SEED	N bytes that follow from SEED, written in pieces
 *	vector N SEED	the same, by writev
 *	file NAME	a file of DIR, by sendfile
 *	whole NAME	the same, at once
 *	time N		N times the time of day, so that each generation says something else
 *	moment N	the same, in one write, of which little is on its way at a time
 *	noted N		the same, but the time is noted in the tag: all generations say what the first one has
 *	load N		N bytes follow; the answer is their sum
 *	fault		a fault, each time
 *	calls		how many of the library there have been
 *	last		an answer, and the end of the connection
 *	end		the same, and a fault between the two
 *
 * An answer is "LENGTH\n" and so many bytes. FAULT_AT=n: a fault before the nth call of the library, once.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <perdure.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FDS = 256, LINE = 256, PIECE = 1500 };

struct client {
	struct perdure_conn *conn;
	char in[LINE];
	size_t have;
};

static struct perdure_conns *conns;
static struct client clients[FDS];
static const char *place;
static long *calls;		/* of the library, in all generations */
static long fault_at;

#define FAULT() (*(volatile int *)0 = 0)

static void step(void)
{
	if (fault_at && __atomic_add_fetch(calls, 1, __ATOMIC_SEQ_CST) == fault_at)
		FAULT();
}

static void fill(char *p, size_t n, size_t at, unsigned long seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = 'a' + ((at + i) * 2654435761u + seed * 40503u) / 65536 % 26;
}

static bool put(struct client *c, const char *p, size_t n)
{
	while (n) {
		step();
		ssize_t w = perdure_conn_write(c->conn, p, n);

		step();
		if (w < 0)
			return false;
		p += w;
		n -= w;
	}
	return true;
}

static bool put_vector(struct client *c, size_t n, unsigned long seed)
{
	char head[32], *body = malloc(n);
	struct iovec iov[] = { { head, sprintf(head, "%zu\n", n) }, { body, n / 3 }, { body + n / 3, n - n / 3 } };
	int i = 0;

	fill(body, n, 0, seed);
	while (i < 3) {
		step();
		ssize_t w = perdure_conn_writev(c->conn, iov + i, 3 - i);

		step();
		if (w < 0)
			break;
		for (; i < 3 && (size_t)w >= iov[i].iov_len; i++)
			w -= iov[i].iov_len;
		if (i < 3) {
			iov[i].iov_base = (char *)iov[i].iov_base + w;
			iov[i].iov_len -= w;
		}
	}
	free(body);
	return i == 3;
}

static bool put_bytes(struct client *c, size_t n, unsigned long seed)
{
	char piece[PIECE];
	size_t at, part;

	if (!put(c, piece, sprintf(piece, "%zu\n", n)))
		return false;
	for (at = 0; at < n; at += part) {
		part = n - at < PIECE ? n - at : PIECE;
		fill(piece, part, at, seed);
		if (!put(c, piece, part))
			return false;
	}
	return true;
}

static bool put_file(struct client *c, const char *name, size_t most)
{
	char path[512], head[32];
	struct stat st;
	off_t at = 0;
	bool good;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", place, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		return put(c, "0\n", 2);
	good = put(c, head, sprintf(head, "%lld\n", (long long)st.st_size));
	while (good && at < st.st_size) {
		step();
		good = perdure_conn_sendfile(c->conn, fd, &at, most) > 0;
		step();
	}
	close(fd);
	return good;
}

static bool put_time(struct client *c, size_t n)
{
	char text[32];
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	if (!put(c, text, sprintf(text, "%zu\n", 20 * n)))
		return false;
	sprintf(text, "%010lld.%09ld", (long long)t.tv_sec % 10000000000LL, t.tv_nsec);
	while (n--) {
		if (!put(c, text, 20))
			return false;
	}
	return true;
}

static bool put_moment(struct client *c, size_t n, bool note)
{
	struct { uint64_t number, ns; } now, *tag = perdure_conn_tag(c->conn);
	const int little = 16384;
	struct timespec t;
	size_t len, i;
	char *text;
	bool good;

	if (!note)
		setsockopt(perdure_conn_fd(c->conn), SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));

	clock_gettime(CLOCK_REALTIME, &t);
	now.number = perdure_conn_number(c->conn) + 1;
	now.ns = t.tv_sec * 1000000000ull + t.tv_nsec;
	if (note && tag->number == now.number)
		now = *tag;
	else if (note) {
		tag->ns = now.ns;
		__atomic_store_n(&tag->number, now.number, __ATOMIC_SEQ_CST);
	}
	text = malloc(32 + 20 * n);
	len = sprintf(text, "%zu\n", 20 * n);
	for (i = 0; i < n; i++)
		len += sprintf(text + len, "%020llu", (unsigned long long)now.ns);
	good = put(c, text, len);
	free(text);
	return good;
}

/* More than is held: it is consumed as it comes, and cannot come again. */
static bool load(struct client *c, size_t line, size_t n)
{
	unsigned long sum = 0;
	char text[32];

	if (perdure_conn_consume(c->conn, line))
		return false;
	memmove(c->in, c->in + line, c->have -= line);
	while (n) {
		size_t part = c->have < n ? c->have : n;

		for (size_t i = 0; i < part; i++)
			sum += (unsigned char)c->in[i];
		if (part && perdure_conn_consume(c->conn, part))
			return false;
		memmove(c->in, c->in + part, c->have -= part);
		n -= part;
		if (n && !c->have) {
			ssize_t got = perdure_conn_read(c->conn, c->in, sizeof(c->in));

			if (got <= 0)
				return false;
			c->have = got;
		}
	}
	sprintf(text, "%lu", sum);
	n = sprintf(text, "%zu\n%lu", strlen(text), sum);
	return put(c, text, n) && !perdure_conn_done(c->conn, 0, 0);
}

/* The first line of what has come. False: the connection is over. */
static bool answer(struct client *c, size_t line)
{
	unsigned long seed = 0;
	char name[LINE] = "", text[LINE + 32];
	size_t n = 0;
	bool good, fault = !strncmp(c->in, "end", 3), last = fault || !strncmp(c->in, "last", 4);

	if (perdure_conn_flags(c->conn) & PERDURE_CONN_SUSPECT) {
		good = put(c, "4\nsick", 6);
	} else if (sscanf(c->in, "bytes %zu %lu", &n, &seed) == 2) {
		good = put_bytes(c, n, seed);
	} else if (sscanf(c->in, "vector %zu %lu", &n, &seed) == 2) {
		good = put_vector(c, n, seed);
	} else if (sscanf(c->in, "file %200s", name) == 1) {
		good = put_file(c, name, 50000);
	} else if (sscanf(c->in, "whole %200s", name) == 1) {
		good = put_file(c, name, SIZE_MAX);
	} else if (sscanf(c->in, "moment %zu", &n) == 1 || sscanf(c->in, "noted %zu", &n) == 1) {
		good = put_moment(c, n, c->in[0] == 'n');
	} else if (sscanf(c->in, "time %zu", &n) == 1) {
		good = put_time(c, n);
	} else if (sscanf(c->in, "load %zu", &n) == 1) {
		return load(c, line, n);
	} else if (!strncmp(c->in, "calls", 5)) {
		n = sprintf(name, "%ld", *calls);
		good = put(c, text, sprintf(text, "%zu\n%s", n, name));
	} else if (!strncmp(c->in, "fault", 5)) {
		FAULT();
	} else {
		good = put(c, "3\nbye", 5);
	}
	if (!good)
		return false;
	step();
	if (perdure_conn_done(c->conn, line, last ? PERDURE_LAST : 0))
		return false;
	if (fault)
		FAULT();
	step();
	memmove(c->in, c->in + line, c->have -= line);
	return !last;
}

static bool serve(struct client *c)
{
	ssize_t n;
	char *end;

	step();
	n = perdure_conn_read(c->conn, c->in + c->have, sizeof(c->in) - c->have);
	step();
	if (n <= 0)
		return n < 0 && errno == EINTR;
	c->have += n;
	while ((end = memchr(c->in, '\n', c->have))) {
		if (!answer(c, end + 1 - c->in))
			return false;
	}
	return c->have < sizeof(c->in);
}

static void over(struct client *c)
{
	struct perdure_conn *conn = c->conn;

	c->conn = NULL;
	perdure_conn_close(conn);
}

static void *alone(void *arg)
{
	struct client *c = arg;

	while (serve(c))
		;
	over(c);
	return NULL;
}

static void take(int fd, bool threads)
{
	struct client *c = &clients[fd];
	pthread_t thread;

	memset(c, 0, sizeof(*c));
	c->conn = perdure_conn_open(conns, fd);
	if (!c->conn) {
		dprintf(2, "server: %d: %s\n", fd, strerror(errno));
		close(fd);
	} else if (perdure_conn_flags(c->conn) & PERDURE_CONN_ENDED) {
		over(c);
	} else if (threads) {
		pthread_create(&thread, NULL, alone, c);
		pthread_detach(thread);
	}
}

static int listen_at(int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	return bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 64) ? -1 : fd;
}

int main(int argc, char **argv)
{
	struct pollfd p[FDS] = { 0 };
	int restarted = argc == 4 ? perdure_register(argv) : -1, listener = -1, n = 0;
	struct perdure_inherited *list = NULL;
	bool threads;

	if (restarted < 0 && errno != ENOSYS && errno != EOPNOTSUPP) {
		perror("server PORT THREADS DIR");
		return 2;
	}
	threads = atoi(argv[2]);
	place = argv[3];
	fault_at = getenv("FAULT_AT") ? atol(getenv("FAULT_AT")) : 0;
	signal(SIGPIPE, SIG_IGN);
	conns = perdure_conns_open("connection", FDS, 16);
	if (!conns && errno == ESTALE) {
		dprintf(2, "server: the books are of no use\n");
		restarted = 0;
		if (perdure_state_discard("connection"))
			perror("server: discard");
		closefrom(3);
		conns = perdure_conns_open("connection", FDS, 16);
	}
	calls = perdure_state_open("calls", sizeof(*calls), 1, NULL, NULL);
	if (!conns || !calls) {
		perror("server");
		return 1;
	}
	if (restarted > 0)
		n = perdure_inherited(&list);
	for (int i = 0; i < n; i++) {
		if (list[i].kind == PERDURE_LISTENING)
			listener = list[i].fd;
		else if (list[i].kind == PERDURE_ACCEPTED)
			take(list[i].fd, threads);
		else
			close(list[i].fd);
	}
	free(list);
	if (listener < 0)
		listener = listen_at(atoi(argv[1]));
	if (listener < 0) {
		perror("server: listen");
		return 1;
	}
	for (;;) {
		for (int fd = 0; fd < FDS; fd++)
			p[fd] = (struct pollfd){ .fd = fd == listener || (!threads && clients[fd].conn) ? fd : -1, .events = POLLIN };
		if (poll(p, FDS, -1) < 0)
			continue;
		for (int fd = 0; fd < FDS; fd++) {
			if (!p[fd].revents)
				continue;
			if (fd == listener) {
				int got = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

				step();
				if (got >= FDS)
					close(got);
				else if (got >= 0)
					take(got, threads);
			} else if (!serve(&clients[fd])) {
				over(&clients[fd]);
			}
		}
	}
}
