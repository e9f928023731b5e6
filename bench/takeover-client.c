// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Clients of a web server: takeover-client [-c CLIENTS] [-r RATE] [-w SECONDS] [-s SECONDS | -n REQUESTS] BYTES URL...
 *
 * Each of CLIENTS (1) asks for the next of the URLs, http://ADDRESS:PORT/PATH, on a connection of its own, as soon as it has its answer.
 * With -r, so many requests a second begin, at equal distances, and the time of each is counted from when it is due; CLIENTS is
 * then how many there can be at once. For -s seconds (5), or until -n have been asked. What begins in the first -w is not counted.
 *
 * An answer is right when its status is 200 and its body has BYTES, of which byte i is 'a' + i % 26; that of a program's, whose URL
 * has "cgi-bin", can be any. What takes LIMIT_NS has failed. Prints JSON: how many were asked, how many answers a second
 * ended in the time that counts, how long each took, how many of all failed, by what.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_NS	30000000000ull
#define SECOND		1000000000.0
#define CLIENTS_MAX	4096
#define HEAD_MAX	4096
#define ERRNO_MAX	134

struct url {
	struct sockaddr_in to;
	char request[512];
	size_t length;
	bool any;
};

struct client {
	int fd;				/* -1: it has nothing to do */
	const struct url *url;
	uint64_t due;
	bool asked, in_body;
	size_t have;			/* of the head, then of the body */
	char head[HEAD_MAX];
};

static struct client clients[CLIENTS_MAX];
static int number = 1, epoll, busy;
static struct url *urls;
static int nurls;
static size_t bytes;
static uint64_t start, counted, finish;
static unsigned long begun, failed, ended, ntimes, room;
static uint64_t *times;
static struct {
	const char *what;
	unsigned long count;
} errors[ERRNO_MAX + 1];

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void die(const char *what)
{
	fprintf(stderr, "takeover-client: %s\n", what);
	exit(2);
}

static void parse(struct url *url, const char *text)
{
	char address[64], path[256];
	int port;

	if (sscanf(text, "http://%63[0-9.]:%d%255s", address, &port, path) != 3)
		die("a URL is http://ADDRESS:PORT/PATH, with an IPv4 address");
	url->to = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
	if (inet_pton(AF_INET, address, &url->to.sin_addr) != 1)
		die("a URL has no IPv4 address");
	url->any = strstr(path, "cgi-bin");
	url->length = snprintf(url->request, sizeof(url->request), "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n",
			       path, address);
}

static void stop(struct client *c)
{
	close(c->fd);
	c->fd = -1;
	busy--;
}

/* @error: an errno, 0 for an answer that ends early, or -1 for one that is wrong */
static void fails(struct client *c, int error)
{
	const int i = error >= 0 && error < ERRNO_MAX ? error : ERRNO_MAX;

	errors[i].what = i == ERRNO_MAX ? "wrong" : i ? strerror(error) : "ended early";
	errors[i].count++;
	failed++;
	stop(c);
}

static void answered(struct client *c)
{
	const uint64_t t = now();

	if (t >= counted && t < finish)
		ended++;
	if (c->due >= counted && c->due < finish) {
		if (ntimes == room) {
			room = room ? 2 * room : 4096;
			times = realloc(times, room * sizeof(*times));
			if (!times)
				die("no memory");
		}
		times[ntimes++] = t - c->due;
	}
	stop(c);
}

static void begin(struct client *c, uint64_t due)
{
	struct epoll_event event = { .events = EPOLLOUT, .data.ptr = c };

	c->url = &urls[begun++ % nurls];
	c->due = due;
	c->asked = c->in_body = false;
	c->have = 0;
	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (c->fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event))
		die(strerror(errno));
	busy++;
	if (connect(c->fd, (const struct sockaddr *)&c->url->to, sizeof(c->url->to)) && errno != EINPROGRESS)
		fails(c, errno);
}

static void ask(struct client *c)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = c };
	socklen_t size = sizeof(int);
	int error = 0;

	getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
	/* It is short, and the first that is sent: all of it fits */
	if (!error && send(c->fd, c->url->request, c->url->length, MSG_NOSIGNAL) != (ssize_t)c->url->length)
		error = errno;
	if (error) {
		fails(c, error);
		return;
	}
	c->asked = true;
	epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
}

/* False: it is wrong */
static bool body(struct client *c, const char *data, size_t length)
{
	for (size_t i = 0; i < length && !c->url->any; i++)
		if (data[i] != (char)('a' + (c->have + i) % 26))
			return false;
	c->have += length;
	return c->have <= bytes;
}

static void hear(struct client *c)
{
	static char data[65536];
	ssize_t n = recv(c->fd, data, sizeof(data), 0);
	const char *rest = data;
	bool good = true;

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		fails(c, n ? errno : 0);
		return;
	}
	if (!c->in_body) {
		const size_t before = c->have, part = (size_t)n < HEAD_MAX - 1 - before ? (size_t)n : HEAD_MAX - 1 - before;
		const char *end;

		memcpy(c->head + before, data, part);
		c->have += part;
		c->head[c->have] = 0;
		end = strstr(c->head, "\r\n\r\n");
		if (!end && c->have < HEAD_MAX - 1)
			return;
		good = end && !strncmp(c->head, "HTTP/1.1 200 ", 13);
		if (good)
			rest = data + (end + 4 - c->head - before);
		c->in_body = true;
		c->have = 0;
	}
	if (!good || !body(c, rest, data + n - rest))
		fails(c, -1);
	else if (c->have == bytes)
		answered(c);
}

static void late(void)
{
	const uint64_t t = now();

	for (int i = 0; i < number; i++)
		if (clients[i].fd >= 0 && t - clients[i].due > LIMIT_NS)
			fails(&clients[i], ETIMEDOUT);
}

static void tell(void)
{
	const char *comma = "";

	printf("{\"asked\": %lu, \"answers_s\": %.4f, \"failed\": %lu, \"why\": {", begun,
	       ended / ((finish - counted) / SECOND), failed);
	for (int i = 0; i <= ERRNO_MAX; i++) {
		if (!errors[i].count)
			continue;
		printf("%s\"%s\": %lu", comma, errors[i].what, errors[i].count);
		comma = ", ";
	}
	printf("}, \"times_us\": [");
	for (unsigned long i = 0; i < ntimes; i++)
		printf("%s%lu", i ? ", " : "", (unsigned long)(times[i] / 1000));
	printf("]}\n");
}

int main(int argc, char **argv)
{
	const struct rlimit files = { CLIENTS_MAX + 64, CLIENTS_MAX + 64 };
	double rate = 0, warm = 0, seconds = 5;
	unsigned long most = 0, due = 0;
	uint64_t looked = 0;
	int option;

	while ((option = getopt(argc, argv, "c:r:w:s:n:")) != -1) {
		switch (option) {
		case 'c': number = atoi(optarg); break;
		case 'r': rate = atof(optarg); break;
		case 'w': warm = atof(optarg); break;
		case 's': seconds = atof(optarg); break;
		case 'n': most = strtoul(optarg, NULL, 10); break;
		default: die("see the head of bench/takeover-client.c");
		}
	}
	nurls = argc - optind - 1;
	if (nurls < 1 || number < 1 || number > CLIENTS_MAX)
		die("usage: takeover-client [-c CLIENTS] [-r RATE] [-w SECONDS] [-s SECONDS | -n REQUESTS] BYTES URL...");
	if (number > 900 && setrlimit(RLIMIT_NOFILE, &files))
		die("not allowed to have so many connections");
	bytes = strtoul(argv[optind], NULL, 10);
	urls = calloc(nurls, sizeof(*urls));
	epoll = epoll_create1(0);
	if (!urls || epoll < 0)
		die(strerror(errno));
	for (int i = 0; i < nurls; i++)
		parse(&urls[i], argv[optind + 1 + i]);
	for (int i = 0; i < number; i++)
		clients[i].fd = -1;
	start = now();
	counted = start + warm * SECOND;
	finish = most ? UINT64_MAX : start + (warm + seconds) * SECOND;
	for (;;) {
		struct epoll_event events[64];
		uint64_t t = now();
		bool more = t < finish && (!most || begun < most);
		int n;

		for (int i = 0; i < number && more; i++) {
			if (clients[i].fd >= 0)
				continue;
			if (rate && start + due / rate * SECOND > t)
				break;
			begin(&clients[i], rate ? start + (uint64_t)(due++ / rate * SECOND) : t);
			more = !most || begun < most;
		}
		if (!more && !busy)
			break;
		n = epoll_wait(epoll, events, 64, rate ? 1 : 20);
		for (int i = 0; i < n; i++) {
			struct client *c = events[i].data.ptr;

			if (c->fd < 0)
				continue;
			if (c->asked)
				hear(c);
			else
				ask(c);
		}
		if (t - looked > SECOND / 10) {
			looked = t;
			late();
		}
	}
	if (most)
		finish = now();
	tell();
	return 0;
}
