// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * shop [PORT [PORT_OF_STOCK]]: "buy N" takes N things from stock and answers "sold N, M left"; "error" when that fails. It has a
 * mistake: it cannot write the invoice of 13, and when it tries, they have been taken already.
 *
 * A server as any, which knows nothing of rescue points; order() can fail, as functions can.
 */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct order {
	int n;
	char invoice[64];
};

static int stock, sold;

/* How many are left, or -1. */
__attribute__((__noinline__)) int order(struct order *order)
{
	char answer[64] = "";
	int left;

	if (dprintf(stock, "take %d\n", order->n) < 0 || read(stock, answer, sizeof(answer) - 1) <= 0 ||
	    sscanf(answer, "%d", &left) != 1)
		return -1;
	sold += order->n;
	if (order->n == 13)
		*(volatile int *)NULL = 0;
	snprintf(order->invoice, sizeof(order->invoice), "sold %d, %d left\n", order->n, left);
	return left;
}

static int connected(int port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	return connect(fd, (struct sockaddr *)&addr, sizeof(addr)) ? -1 : fd;
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 7011) };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

	signal(SIGPIPE, SIG_IGN);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	stock = connected(argc > 2 ? atoi(argv[2]) : 7010);
	if (stock < 0 || bind(listener, (struct sockaddr *)&addr, sizeof(addr)) || listen(listener, 64)) {
		perror("shop");
		return 1;
	}
	for (;;) {
		FILE *client = fdopen(accept(listener, NULL, NULL), "r+");
		struct order one;
		char line[64];

		while (client && fgets(line, sizeof(line), client)) {
			if (!strcmp(line, "sold\n"))
				fprintf(client, "%d\n", sold);
			else if (sscanf(line, "buy %d", &one.n) != 1 || order(&one) < 0)
				fputs("error\n", client);
			else
				fputs(one.invoice, client);
			fflush(client);
		}
		if (client)
			fclose(client);
	}
}
