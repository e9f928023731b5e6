// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A network that takes its time: relay DELAY_US PORT:TO... What comes in at 127.0.0.1:PORT goes out
 * to 127.0.0.1:TO after that time, and back after the same. Acknowledgements are the kernel's, so a
 * connection is opened at once: programs that keep theirs open see the delay only. Says "ready".
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PIECE		65536
#define FDS		65536

struct piece {
	struct piece *next;
	uint64_t due;
	int to;
	unsigned int pair;	/* of @to, when it was read: descriptors are used again */
	ssize_t size;		/* 0: the end */
	char data[];
};

static uint64_t delay_ns;
static struct piece *first, **last = &first;
static struct { int other, target; unsigned int pair; } ends[FDS];
static unsigned int pairs;
static int poller;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void watch(int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event)) {
		perror("relay: epoll_ctl");
		exit(1);
	}
}

static struct sockaddr_in address(int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static void listen_at(int port, int target)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	struct sockaddr_in a = address(port);

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 1024)) {
		perror("relay");
		exit(1);
	}
	ends[fd].target = target;
	watch(fd);
}

static void take(int listener)
{
	struct sockaddr_in a = address(ends[listener].target);
	int in = accept(listener, NULL, NULL), out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (in < 0 || out < 0 || in >= FDS || out >= FDS || connect(out, (struct sockaddr *)&a, sizeof(a))) {
		close(in);
		close(out);
		return;
	}
	ends[in].other = out;
	ends[out].other = in;
	ends[in].pair = ends[out].pair = ++pairs;
	ends[in].target = ends[out].target = 0;
	watch(in);
	watch(out);
}

static void receive(int fd)
{
	struct piece *p = malloc(sizeof(*p) + PIECE);

	if (!p)
		exit(1);
	p->size = recv(fd, p->data, PIECE, MSG_DONTWAIT);
	if (p->size < 0 && errno == EAGAIN) {
		free(p);
		return;
	}
	if (p->size <= 0) {
		p->size = 0;
		epoll_ctl(poller, EPOLL_CTL_DEL, fd, NULL);
	}
	p->due = now() + delay_ns;
	p->to = ends[fd].other;
	p->pair = ends[fd].pair;
	p->next = NULL;
	*last = p;
	last = &p->next;
}

/* When one side has ended, both have */
static void send_on(struct piece *p)
{
	int from = ends[p->to].other;

	if (ends[p->to].pair != p->pair)
		return;
	if (p->size && send(p->to, p->data, p->size, MSG_NOSIGNAL) == p->size)
		return;
	ends[p->to].pair = ends[from].pair = 0;
	close(p->to);
	close(from);
}

int main(int argc, char **argv)
{
	struct epoll_event events[64];
	int i, from, to;

	if (argc < 3)
		return 2;
	prctl(PR_SET_TIMERSLACK, 1000);
	delay_ns = strtoull(argv[1], NULL, 10) * 1000;
	poller = epoll_create1(EPOLL_CLOEXEC);
	for (i = 2; i < argc; i++) {
		if (sscanf(argv[i], "%d:%d", &from, &to) != 2)
			return 2;
		listen_at(from, to);
	}
	puts("ready");
	fflush(stdout);
	while (true) {
		uint64_t left = first ? first->due > now() ? first->due - now() : 0 : 0;
		struct timespec wait = { .tv_sec = left / 1000000000, .tv_nsec = left % 1000000000 };
		int n = epoll_pwait2(poller, events, 64, first ? &wait : NULL, NULL);

		for (i = 0; i < n; i++) {
			if (ends[events[i].data.fd].target)
				take(events[i].data.fd);
			else
				receive(events[i].data.fd);
		}
		while (first && first->due <= now()) {
			struct piece *p = first;

			first = p->next;
			if (!first)
				last = &first;
			send_on(p);
			free(p);
		}
	}
}
