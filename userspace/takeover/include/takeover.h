/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * libtakeover: what a server says and asks about a connection that two hosts have. See takeover(7).
 *
 * A server whose two copies answer every request with the same bytes needs none of it. One whose answers differ has the primary
 * execute a request and log the whole reply at the backup, which writes the logged reply to its own socket.
 *
 * All functions may be called by any thread, and after fork(), but a reply by one thread at a time. Those that return int:
 * 0, or -1 and errno. Where the kernel has no replication, or no service of takeoverd(8), connections are TAKEOVER_OFF, which costs one
 * failed getsockopt(2).
 *
 * None of them waits longer than the service's `patience` (takeover.conf(5)), except that takeover_reply_wait() waits for a primary that
 * is executing the request for as long as that takes.
 */
#ifndef TAKEOVER_H
#define TAKEOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct takeover_reply;

enum takeover_role {
	TAKEOVER_OFF,		/* one host has the connection, as ever */
	TAKEOVER_PRIMARY,	/* both have it, and this one talks to the client */
	TAKEOVER_BACKUP,	/* both have it, and this one is mute */
	TAKEOVER_ALONE,		/* this host has it, as any other, until the peer can have a copy */
};

/*
 * What this host is for the connection @fd. It may become TAKEOVER_ALONE at any time. @id, which may be NULL: what the connection is
 * called on both hosts; 0 if it is TAKEOVER_OFF. Whatever is wrong with @fd, it is TAKEOVER_OFF. Keeps errno.
 *
 * One that is alone and idle may get a copy on the peer again: it is TAKEOVER_PRIMARY then, under another @id. So a server asks before each request,
 * and counts requests from the first one that it saw under this @id.
 */
enum takeover_role takeover_role(int fd, uint64_t *id);

/*
 * What the connection is to be from now on; 0 for neither. TAKEOVER_OPEN, of the primary: the next bytes are the same
 * on both hosts anyway, so the client need not wait for the backup to have generated them. TAKEOVER_BUSY, of any role:
 * while the connection is alone it gets no new backup, though it looks idle. The server has answered, or said
 * "100 Continue", before it has read the whole request; or it has read a part of the next one, too; or what comes is no
 * request. A new backup begins with neither.
 * errno: ENOENT (TAKEOVER_OFF), EINVAL (other flags), EBADF, ENOTSOCK
 */
enum { TAKEOVER_OPEN = 1, TAKEOVER_BUSY = 2 };

int takeover_gate(int fd, unsigned int flags);

/*
 * Either host: the backup ends its copy without a word to the client, and the primary goes on alone, and is
 * TAKEOVER_BUSY. What the backup does with @fd afterwards reaches nobody; it closes it. errno: ENOENT (TAKEOVER_OFF),
 * EBADF, ENOTSOCK
 */
int takeover_leave(int fd);

/*
 * The primary, before it executes request @number of connection @id: the backup's log learns who does. Numbers grow with each request of this @id,
 * are the same on both hosts, and each is used once. Until takeover_reply_end() or takeover_reply_abort() the caller keeps @fd open.
 *
 * When this, or any of the next four, fails, the reply can no longer be logged. The connection then goes on unprotected: takeover_leave()
 * has been called. The request is to be executed, and its reply sent, all the same. Where this one fails, *@reply becomes NULL.
 *
 * errno: ENOTCONN (the connection is not TAKEOVER_PRIMARY), ECONNREFUSED (no takeoverd here), EPERM (`group` is not the caller's), EHOSTUNREACH (none at the peer),
 * ENOENT (this takeoverd has no such service), EACCES (the peer has another key), EPROTO (another version), ETIMEDOUT, EMFILE, ENFILE, ENOMEM
 */
int takeover_reply_begin(int fd, uint64_t id, uint64_t number, struct takeover_reply **reply);

/*
 * The next bytes of the reply, as they go to the client's socket. They may be written to it at any time: the kernel keeps them until
 * the backup has the whole reply. errno: ENOSPC (the log has no room), EPIPE (the log has ended it), ETIMEDOUT
 */
int takeover_reply_write(struct takeover_reply *reply, const void *data, size_t size);

/* The same from a file: @size bytes of @in from @offset on. errno: as above, EIO (the file is shorter), and those of pread(2) */
int takeover_reply_sendfile(struct takeover_reply *reply, int in, off_t offset, size_t size);

/*
 * That was the whole reply. Frees @reply, whatever it returns. @acknowledged: returns when the backup has said that it has it; else the
 * kernel sees to it that the client gets nothing before. errno: as above
 */
int takeover_reply_end(struct takeover_reply *reply, bool acknowledged);

/* There will be no reply that is logged: the connection goes on unprotected. Frees @reply, which may be NULL. Keeps errno. */
void takeover_reply_abort(struct takeover_reply *reply);

enum takeover_verdict {
	TAKEOVER_REFUSED,	/* this host ends its copy: close @fd. takeover_leave() has been called */
	TAKEOVER_REPLY,		/* it has been logged: write it */
	TAKEOVER_EXECUTE,	/* the primary is gone, and has logged none: this host executes the request, and answers */
};

struct takeover_result {
	int fd;			/* read-only, offset 0; the caller closes it. -1 if there is none */
	uint64_t length;
};

/*
 * The backup, instead of executing request @number of connection @id. A reply that is logged is given once, and a request whose reply
 * has been logged is never TAKEOVER_EXECUTE. When the primary has ended the connection without a reply, the role becomes
 * TAKEOVER_ALONE, which is noticed within 100 ms, with or without a takeoverd. One that is alone waits no longer than 4 s for a takeoverd
 * that hangs, and 1 s for one that is not there, and then takes what is in its store; 100 ms in a process that knows it already.
 *
 * TAKEOVER_REFUSED: the log could not store the reply; or nobody executes the request, though the primary's host has been there for
 * longer than `patience`; or the connection has ended.
 */
enum takeover_verdict takeover_reply_wait(int fd, uint64_t id, uint64_t number, struct takeover_result *result);

#ifdef __cplusplus
}
#endif

#endif
