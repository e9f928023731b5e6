/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What libtakeover, takeoverd and takeoverctl say to each other */
#ifndef TAKEOVER_WIRE_H
#define TAKEOVER_WIRE_H

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TAKEOVER_VERSION	1
#define TAKEOVER_SOCKET		"/run/takeover/takeoverd.sock"
#define TAKEOVER_STORE		"/run/takeover/store"

/* A service; the port is in network byte order, an IPv4 address is the first four bytes */
struct endpoint {
	uint16_t family;
	uint16_t port;
	uint8_t address[16];
};

/* Beside the socket: where replies are, for servers that find no takeoverd to ask */
#define STORE_LINK		"replies"

/* A reply that is logged, and not given yet, is a file of this name: address, port, id, number */
#define STORE_NAME		"%s-%u.%016" PRIx64 ".%" PRIu64

/*
 * On this host: messages of the control socket, which is SOCK_SEQPACKET. Each is answered by one, but for LOCAL_ALONE, which changes
 * the LOCAL_WAIT that is not answered yet, and LOCAL_LOOK, which asks for it.
 */
enum {
	/* Requests */
	LOCAL_LOG,		/* a connection to the log of the service's peer */
	LOCAL_WAIT,		/* for the reply to @number of @id */
	LOCAL_ALONE,		/* the connection is alone by now */
	LOCAL_COMMAND,		/* of takeoverctl: @text */
	/* Answers */
	LOCAL_GIVEN,		/* a descriptor, of @length bytes if it is a file; of a command its output, and @error its exit status */
	LOCAL_EXECUTE,
	LOCAL_REFUSED,		/* @error says why */
	LOCAL_LOOK,		/* the service has been promoted */
};

#define COMMAND_MAX	512

struct local_request {
	uint32_t version;
	uint32_t type;
	uint64_t id;
	uint64_t number;
	struct endpoint service;
	uint32_t alone;
	char text[];		/* LOCAL_COMMAND: up to COMMAND_MAX */
};

struct local_answer {
	uint32_t type;
	int32_t error;
	uint64_t length;
	uint32_t patience_ms;
	uint32_t reserved;
};

/* @fd: what came with it, or -1. EAGAIN: nothing there */
static inline int local_receive(int s, struct local_answer *answer, int *fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = { answer, sizeof(*answer) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	struct cmsghdr *c;
	ssize_t n = recvmsg(s, &message, MSG_CMSG_CLOEXEC);

	*fd = -1;
	if (n < 0)
		return -1;
	c = CMSG_FIRSTHDR(&message);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(c), sizeof(*fd));
	if (n == sizeof(*answer))
		return 0;
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	errno = n ? EPROTO : ECONNREFUSED;
	return -1;
}

/* Between the hosts, over TCP, all in network byte order. How a connection begins is in peer.c; then a log's is messages of this. */
enum {
	LOG_BEGIN = 1,		/* to the log: @number of @id is being executed */
	LOG_DATA,		/* @length bytes of its reply follow */
	LOG_END,		/* that was all of it */
	LOG_END_SAY,		/* the same; answered by LOG_STORED or LOG_REFUSED */
	LOG_ABORT,		/* there will be no reply */
	LOG_STORED,		/* from the log */
	LOG_REFUSED,		/* it has no room for it; at any time */
};

#define LOG_DATA_MAX	(1u << 20)

struct log_message {
	uint32_t type;
	uint32_t length;
	uint64_t id;
	uint64_t number;
};

#endif
