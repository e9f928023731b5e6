// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * stock [PORT]: knows how many there are of a thing, 1000 at first. "take N" takes some of them and answers how many are left.
 *
 * A server as any, which knows nothing of rescue points. With shop it shows peers that go back, too: docs/rescue.md.
 */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 7010) };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, left = 1000;

	signal(SIGPIPE, SIG_IGN);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(listener, (struct sockaddr *)&addr, sizeof(addr)) || listen(listener, 64)) {
		perror("stock");
		return 1;
	}
	for (;;) {
		int fd = accept(listener, NULL, NULL), n;
		char line[64] = "";
		ssize_t size;

		/* One line at a time: who asks waits for the answer */
		while ((size = read(fd, line, sizeof(line) - 1)) > 0) {
			line[size] = '\0';
			n = sscanf(line, "take %d", &n) == 1 && n >= 0 && n <= left ? n : -1;
			left -= n > 0 ? n : 0;
			if (dprintf(fd, n < 0 ? "no\n" : "%d\n", left) < 0)
				break;
		}
		close(fd);
	}
}
