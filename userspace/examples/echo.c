// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * echo [PORT]: sends every byte back, exactly once, also when it faults in between: on the line
 * "crash", at the worst instant, when the answer is sent and the request not yet released.
 *
 * It needs no state area: the kernel keeps the sockets, the bytes held and the count of those
 * written, and there is nothing else to know.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <perdure.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LISTENER = 3, MAX_FDS = 256 };	/* the first socket that we make is 3 */

extern char **environ;

static int listen_on(int port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	return fd != LISTENER || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) || listen(fd, 64);
}

/* False when the connection is over. */
static int echo(int fd, int restarted)
{
	struct io_log log;
	char buf[4096];
	ssize_t n, done, w;

	/* What was held comes again from its first byte: how much of it is answered already? */
	if (getiolog(fd, &log) || (n = hread(fd, buf, sizeof(buf), 0)) <= 0)
		return 0;
	for (done = log.written - log.released; done < n; done += w)
		if ((w = lwrite(fd, buf + done, n - done)) < 0)
			return 0;
	if (!restarted && memmem(buf, n, "crash\n", 6))
		raise(SIGSEGV);
	return hread(fd, NULL, 0, n) == 0;	/* release it */
}

int main(int argc, char **argv)
{
	struct reg_info info = { 0 };
	struct pollfd p[MAX_FDS];
	int fd, restarted = getreginfo(&info) == 1 && info.is_restarted;

	if (!restarted && (reregist(realpath("/proc/self/exe", NULL), argv, environ, 0) ||
			   listen_on(argc > 1 ? atoi(argv[1]) : 7007))) {
		perror("echo");
		return 1;
	}
	signal(SIGPIPE, SIG_IGN);
	/* The sockets that are open are those to serve, new or inherited. */
	for (fd = 0; fd < MAX_FDS; fd++)
		p[fd] = (struct pollfd){ fcntl(fd, F_GETFD) < 0 ? -1 : fd, POLLIN, 0 };
	while (poll(p + LISTENER, MAX_FDS - LISTENER, -1) > 0) {
		if (p[LISTENER].revents && (fd = accept(LISTENER, NULL, NULL)) >= 0) {
			if (fd < MAX_FDS)
				p[fd].fd = fd;
			else
				close(fd);
		}
		for (fd = LISTENER + 1; fd < MAX_FDS; fd++)
			if (p[fd].fd >= 0 && p[fd].revents && !echo(fd, restarted))
				close(fd), p[fd].fd = -1;
	}
	return 1;
}
