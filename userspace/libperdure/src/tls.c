// SPDX-License-Identifier: LGPL-2.1-or-later
/* Connections whose TLS is the kernel's: what is special about them, and where they end. See perdure_tls(3). */
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <perdure.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "io.h"

#ifndef SOL_TLS
#define SOL_TLS		282
#endif

enum record { ALERT = 21, HANDSHAKE = 22, DATA = 23 };

/* Of handshakes */
enum { HELLO_REQUEST = 0, CLIENT_HELLO = 1, KEY_UPDATE = 24 };

enum { WARNING = 1, FATAL = 2, USER_CANCELED = 90, NO_RENEGOTIATION = 100 };

struct with_type {
	struct msghdr msg;
	struct iovec iov;
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(1)];
};

static struct msghdr *with_type(struct with_type *w, void *buf, size_t len)
{
	memset(w, 0, sizeof(*w));
	w->iov.iov_base = buf;
	w->iov.iov_len = len;
	w->msg.msg_iov = &w->iov;
	w->msg.msg_iovlen = 1;
	w->msg.msg_control = w->room;
	w->msg.msg_controllen = sizeof(w->room);
	return &w->msg;
}

/* 0: not in the kernel */
static int version(int fd, int direction)
{
	struct tls_crypto_info info;
	socklen_t len = sizeof(info);

	return getsockopt(fd, SOL_TLS, direction, &info, &len) ? 0 : info.version;
}

/* All that has come is still to be read, and nothing has been sent. */
static bool untouched(int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);
	int unread;

	return !getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) &&
	       len >= offsetof(struct tcp_info, tcpi_bytes_sent) + sizeof(info.tcpi_bytes_sent) &&
	       !ioctl(fd, SIOCINQ, &unread) && !info.tcpi_bytes_sent && info.tcpi_bytes_received == (uint64_t)unread;
}

int tls_directions(int fd)
{
	return (version(fd, TLS_TX) ? PERDURE_TLS_TX : 0) | (version(fd, TLS_RX) ? PERDURE_TLS_RX : 0);
}

int perdure_tls(int fd)
{
	return tls_directions(fd) | (untouched(fd) ? PERDURE_TLS_UNTOUCHED : 0);
}

static int send_alert(int fd, int alert, int flags)
{
	bool warning = alert == PERDURE_TLS_CLOSE_NOTIFY || alert == USER_CANCELED || alert == NO_RENEGOTIATION;
	char plain[] = { ALERT, 3, 3, 0, 2, warning ? WARNING : FATAL, alert };
	struct cmsghdr *type;
	struct with_type w;

	if (alert & ~0xff) {
		errno = EINVAL;
		return -1;
	}
	flags |= MSG_NOSIGNAL;
	if (!version(fd, TLS_TX))
		return send(fd, plain, sizeof(plain), flags) < 0 ? -1 : 0;
	type = CMSG_FIRSTHDR(with_type(&w, plain + 5, 2));
	type->cmsg_level = SOL_TLS;
	type->cmsg_type = TLS_SET_RECORD_TYPE;
	type->cmsg_len = CMSG_LEN(1);
	*CMSG_DATA(type) = ALERT;
	return sendmsg(fd, &w.msg, flags) < 0 ? -1 : 0;
}

int perdure_tls_alert(int fd, int alert)
{
	return send_alert(fd, alert, 0);
}

static int refuse(int fd, int alert, int error)
{
	send_alert(fd, alert, MSG_DONTWAIT);
	errno = error;
	return -1;
}

/* The type of the next record, and its first bytes; then it is gone, unless it is data. */
static int take_record(int fd, unsigned char start[2], size_t *len)
{
	struct cmsghdr *header;
	struct with_type w;
	char rest[256];
	ssize_t n;
	int type;

	memset(start, 0, 2);
	n = recvmsg(fd, with_type(&w, start, 2), MSG_PEEK | MSG_DONTWAIT);
	if (n < 0)
		return -1;
	*len = n;
	header = CMSG_FIRSTHDR(&w.msg);
	if (!header || header->cmsg_level != SOL_TLS || header->cmsg_type != TLS_GET_RECORD_TYPE)
		return DATA;
	type = *CMSG_DATA(header);
	while (type != DATA) {
		n = recvmsg(fd, with_type(&w, rest, sizeof(rest)), MSG_DONTWAIT);
		if (n < 0)
			return -1;
		if (!n || w.msg.msg_flags & MSG_EOR)
			break;
	}
	return type;
}

int perdure_tls_control(int fd)
{
	int tls = version(fd, TLS_RX);
	unsigned char start[2];
	size_t len;

	if (!tls) {
		errno = EIO;
		return -1;
	}
	switch (take_record(fd, start, &len)) {
	case -1:
		return errno == EAGAIN ? 1 : -1;
	case DATA:
		return 1;
	case ALERT:
		if (len == 2 && start[1] == PERDURE_TLS_CLOSE_NOTIFY)
			return 0;
		if (len == 2 && (start[1] == USER_CANCELED || (tls < TLS_1_3_VERSION && start[0] == WARNING)))
			return 1;
		errno = ECONNRESET;
		return -1;
	case HANDSHAKE:
		if (tls >= TLS_1_3_VERSION && start[0] == KEY_UPDATE)
			return refuse(fd, PERDURE_TLS_INTERNAL_ERROR, EKEYEXPIRED);
		if (tls < TLS_1_3_VERSION && (start[0] == CLIENT_HELLO || start[0] == HELLO_REQUEST))
			return send_alert(fd, NO_RENEGOTIATION, MSG_DONTWAIT) ? -1 : 1;
	}
	return refuse(fd, PERDURE_TLS_UNEXPECTED_MESSAGE, EPROTO);
}
