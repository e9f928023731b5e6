/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * TCP connections that two hosts hold: Documentation/networking/tcp_replica.rst
 */
#ifndef _LINUX_TCP_REPLICA_H
#define _LINUX_TCP_REPLICA_H

#include <linux/types.h>

/* The socket option, of level IPPROTO_TCP; its value is a struct tcp_replica */
#define TCP_REPLICA		500

/**
 * enum tcp_replica_role - what a host is for a service or for a connection
 * @TCP_REPLICA_OFF: No replication. Of a service: new connections are ordinary ones, and those
 *	that are replicated stay so until they end.
 * @TCP_REPLICA_PRIMARY: This host talks to the client. It acknowledges and sends no more than
 *	both hosts have.
 * @TCP_REPLICA_MUTED: This host stores what the client sends and generates its own answers, but
 *	only its peer hears of that.
 * @TCP_REPLICA_ALONE: This host has no peer: the connection is an ordinary one, and so are the
 *	service's new ones. TCP_REPLICA_JOIN can give them a copy later.
 */
enum tcp_replica_role {
	TCP_REPLICA_OFF,
	TCP_REPLICA_PRIMARY,
	TCP_REPLICA_MUTED,
	TCP_REPLICA_ALONE,
};

/**
 * enum tcp_replica_op - what setsockopt() does
 * @TCP_REPLICA_SET: Gives the service at @address and @port its role, peer and key. Any TCP
 *	socket of the network namespace will do to ask for it.
 * @TCP_REPLICA_PROMOTE: The connections of the service that are replicated go on alone, at once;
 *	so does the service.
 * @TCP_REPLICA_ABANDON: The connections of the service that are replicated end here without a
 *	word, since the peer has them; new ones are ordinary.
 * @TCP_REPLICA_JOIN: The connections of the service that are alone and idle get a copy on the peer,
 *	which is the muted one. To be repeated, for those that are busy.
 * @TCP_REPLICA_GATE: Sets or clears TCP_REPLICA_UNGATED and TCP_REPLICA_BUSY of this socket's own
 *	connection. A new copy begins with both cleared.
 * @TCP_REPLICA_LEAVE: One host gives up its copy of this socket's own connection: the muted one.
 *	The primary goes on alone as soon as its peer has agreed. Sets TCP_REPLICA_BUSY.
 */
enum tcp_replica_op {
	TCP_REPLICA_SET,
	TCP_REPLICA_PROMOTE,
	TCP_REPLICA_ABANDON,
	TCP_REPLICA_JOIN,
	TCP_REPLICA_GATE,
	TCP_REPLICA_LEAVE,
};

/*
 * In @flags: the primary sends what it has, whether or not its peer has generated it yet. For
 * answers that are the same on both hosts.
 */
#define TCP_REPLICA_UNGATED	(1U << 0)

/*
 * In @flags: the server is in the midst of a request, or of what is none. While the connection is
 * alone, TCP_REPLICA_JOIN gives it no copy, since that one's server would begin there.
 */
#define TCP_REPLICA_BUSY	(1U << 1)

/**
 * struct tcp_replica - a service, or how a connection stands
 * @op: in: one of enum tcp_replica_op
 * @flags: TCP_REPLICA_UNGATED, TCP_REPLICA_BUSY
 * @role: one of enum tcp_replica_role
 * @patience_ms: A primary whose peer answers, but does not generate what it waits for, goes on
 *	alone after this time. 0: never.
 * @address: of the service; of an IPv4 address the first four bytes, the rest are zero
 * @peer: where this host's peer is reached, of the same family
 * @key: what both hosts of a service share; never given out
 * @family: AF_INET or AF_INET6
 * @port: in network byte order
 * @ifindex: of @peer, if that is a link-local address; else 0
 * @id: out: names this connection on both hosts
 * @unstored: out: bytes of the client's that this host has, and its peer has not yet
 * @unsent: out: bytes of the answer that this host has, and its peer has not yet
 */
struct tcp_replica {
	__u32 op;
	__u32 flags;
	__u32 role;
	__u32 patience_ms;
	__u8 address[16];
	__u8 peer[16];
	__u8 key[16];
	__u16 family;
	__be16 port;
	__u32 ifindex;
	__u64 id;
	__u32 unstored;
	__u32 unsent;
};

#endif /* _LINUX_TCP_REPLICA_H */
