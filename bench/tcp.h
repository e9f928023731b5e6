/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BENCH_TCP_H
#define BENCH_TCP_H

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "bench.h"

/* Both ends of a connection, with room for a whole message each: calls are measured, not the wait. */
static inline void tcp_pair(int fds[2], int room)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = TRY(socket(AF_INET, SOCK_STREAM, 0)), on = 1;
	socklen_t len = sizeof(addr);

	TRY(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)));
	TRY(setsockopt(listener, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)));
	TRY(bind(listener, (struct sockaddr *)&addr, sizeof(addr)));
	TRY(listen(listener, 1));
	TRY(getsockname(listener, (struct sockaddr *)&addr, &len));
	fds[0] = TRY(socket(AF_INET, SOCK_STREAM, 0));
	TRY(setsockopt(fds[0], SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)));
	TRY(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)));
	TRY(connect(fds[0], (struct sockaddr *)&addr, sizeof(addr)));
	fds[1] = TRY(accept(listener, NULL, NULL));
	for (int i = 0; i < 2; i++)
		TRY(setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
	close(listener);
}

#endif
