// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * echo [PORT]: sends every byte back, exactly once, also when it faults in between: on the line
 * "crash", at the worst instant, when the answer is sent and the request not yet done.
 *
 * The library keeps the books of its connections: after a restart it reads again what it had not
 * done, and what it has sent already is not sent twice. On other kernels it is an ordinary server.
 */
#include <arpa/inet.h>
#include <perdure.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FDS = 256 };

static struct perdure_conns *books;
static struct perdure_conn *conns[MAX_FDS];
static int restarted;

static int listen_on(int port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	return bind(fd, (struct sockaddr *)&addr, sizeof(addr)) || listen(fd, 64) ? -1 : fd;
}

static void take(int fd)
{
	struct perdure_conn *c = fd < 0 ? NULL : perdure_conn_open(books, fd);

	if (c)
		conns[fd] = c;
	else if (fd >= 0)
		close(fd);	/* too many, or one that cannot go on */
}

/* False when the connection is over. */
static int echo(struct perdure_conn *c)
{
	ssize_t n, done, w;
	char buf[4096];

	n = perdure_conn_read(c, buf, sizeof(buf));
	if (n <= 0)
		return 0;
	for (done = 0; done < n; done += w)
		if ((w = perdure_conn_write(c, buf + done, n - done)) < 0)
			return 0;
	if (!restarted && memmem(buf, n, "crash\n", 6))
		raise(SIGSEGV);
	return perdure_conn_done(c, n, 0) == 0;
}

int main(int argc, char **argv)
{
	struct perdure_inherited *list = NULL;
	int fd, i, n = 0, listener = -1;
	struct pollfd p[MAX_FDS];

	signal(SIGPIPE, SIG_IGN);
	restarted = perdure_register(argv) == 1;
	if (!perdure_protected())
		perror("echo: a fault will end it");
	books = perdure_conns_open("echo", MAX_FDS, 0);
	if (books && restarted)
		n = perdure_inherited(&list);
	for (i = 0; i < n; i++)
		if (list[i].kind == PERDURE_LISTENING)
			listener = list[i].fd;
		else if (list[i].kind == PERDURE_ACCEPTED)
			take(list[i].fd);
	if (listener < 0)
		listener = listen_on(argc > 1 ? atoi(argv[1]) : 7007);
	if (!books || listener < 0) {
		perror("echo");
		return 1;
	}
	for (;;) {
		for (fd = 0; fd < MAX_FDS; fd++)
			p[fd] = (struct pollfd){ fd == listener || conns[fd] ? fd : -1, POLLIN, 0 };
		if (poll(p, MAX_FDS, -1) < 0)
			continue;
		for (fd = 0; fd < MAX_FDS; fd++) {
			if (p[fd].revents && fd == listener) {
				take(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
			} else if (p[fd].revents && !echo(conns[fd])) {
				perdure_conn_close(conns[fd]);
				conns[fd] = NULL;
			}
		}
	}
}
