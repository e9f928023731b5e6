/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * libreplay: a server whose requests are executed exactly once, over its crashes and those of the servers that it calls. See
 * docs/design/replay.md.
 *
 * A server has methods. A client begins a session and sends requests, numbered. What a method reads, and what it is told by
 * others, is logged; after a crash the methods run again on what was logged, and come to the state that they had.
 *
 * So a method takes everything from its call: variables, time, random numbers, the replies of other servers. It does the same
 * whenever it is given the same.
 *
 * Functions that return int: 0, or -1 and errno. Those of a call are for the thread that its method runs on, until the method
 * returns. All others may be called by any thread.
 */
#ifndef REPLAY_H
#define REPLAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct replay_server;
struct replay_call;

/*
 * A method. Returns the status that the client sees, 200 to 599 as in HTTP; what it says is given to replay_reply().
 *
 * When a function of the call fails with ECANCELED, the method must return at once: it has been taken back, or the server
 * stops. What it returns then is not used.
 */
typedef int (*replay_method_fn)(struct replay_call *call, const void *body, size_t size, void *arg);

/* errno: ENOMEM */
struct replay_server *replay_new(void);

/*
 * Before replay_start(). @name: 1 to 255 of A-Z a-z 0-9 . _ - /, as in the URL's path. New requests are executed by the highest
 * @version (1 or more), those that are replayed by that which executed them. errno: EINVAL, EEXIST, EBUSY (started)
 */
int replay_method(struct replay_server *server, const char *name, unsigned int version, replay_method_fn run, void *arg);

/*
 * Recovers what the log says, and serves. @path: its file of options. errno: EINVAL (the file), EBUSY (another server has this log, or
 * this one has been started), EMEDIUMTYPE (no log: replayctl format), EPROTONOSUPPORT (a log of another version), EILSEQ (a
 * damaged log), ENOSPC (a device smaller than its log), EFBIG (a log too small for request_log), EADDRINUSE, EIO and those of open(2). replay_error() says more.
 */
int replay_start(struct replay_server *server, const char *path);

/* What the last function of @server that failed has to say; valid until the next one. */
const char *replay_error(const struct replay_server *server);

/* Takes nothing more, and ends the threads. Sessions go on when the log is opened the next time. */
void replay_stop(struct replay_server *server);

/* Stops, too */
void replay_free(struct replay_server *server);

/* replay_start(), wait for SIGTERM or SIGINT, replay_stop(). With errors on standard error: what main() returns. */
int replay_main(struct replay_server *server, const char *path);

/*
 * The session's variables: they end with it. At most 2 MiB for a session, 1 MiB for one. A value that is given lasts until the
 * method returns. errno: ENOENT (get: no such), EINVAL (@name: 1 to 255 bytes), EFBIG, ENOSPC, ECANCELED
 */
int replay_get(struct replay_call *call, const char *name, const void **value, size_t *size);
int replay_set(struct replay_call *call, const char *name, const void *value, size_t size);
int replay_unset(struct replay_call *call, const char *name);

/* The same as a number. EINVAL: it is none */
int replay_get_number(struct replay_call *call, const char *name, int64_t *number);
int replay_set_number(struct replay_call *call, const char *name, int64_t number);

/*
 * Variables that all sessions share (paper, 3.3). A read and a later write are two steps: between them others may write. errno as
 * above.
 */
int replay_read(struct replay_call *call, const char *name, const void **value, size_t *size);
int replay_write(struct replay_call *call, const char *name, const void *value, size_t size);
int replay_remove(struct replay_call *call, const char *name);

/*
 * One step: @update gets the old value (NULL: none) and returns the new one's size, which it writes to @new, or -1 to leave all as
 * it is. It may run again, waits for nothing, and calls no function of a call. @room: what the new value may take, at most 1 MiB.
 */
typedef ptrdiff_t (*replay_update_fn)(void *arg, const void *old, size_t size, void *new_value, size_t room);
int replay_update(struct replay_call *call, const char *name, size_t room, replay_update_fn update, void *arg);

/* A shared number: adds @by to it, and gives the sum in @sum (may be NULL). One that is not there is 0. EINVAL: it is no number */
int replay_add(struct replay_call *call, const char *name, int64_t by, int64_t *sum);
int replay_read_number(struct replay_call *call, const char *name, int64_t *number);
int replay_write_number(struct replay_call *call, const char *name, int64_t number);

/*
 * Calls a method of another server, [member] or [service] @service of the file, exactly once: sent again until it is answered,
 * which may take as long as the other is away, or until its `timeout`. @status and the reply are its method's. errno: EHOSTUNREACH
 * (no such @service), EFBIG (more than 1 MiB; if the reply is, the request has been executed), ETIMEDOUT (nobody knows whether it
 * has been), ESTALE (the session there has ended: the next call begins another), EPROTO (it does not take it), EREMOTEIO (the session there is stuck), EBADMSG (it does not keep to the protocol), EINVAL, ECANCELED
 */
int replay_call_method(struct replay_call *call, const char *service, const char *method, const void *body, size_t size,
		       int *status, const void **reply, size_t *reply_size);

/* The time (ns since 1970), random bytes (at most 64 KiB) and a random UUID: the same again in a replay. errno: EINVAL, ECANCELED */
int replay_time(struct replay_call *call, uint64_t *ns);
int replay_random(struct replay_call *call, void *bytes, size_t size);
int replay_uuid(struct replay_call *call, char uuid[37]);

/* What the client gets; of several calls the last one counts. @type: as Content-Type has it, NULL for none. errno: EFBIG, EINVAL */
int replay_reply(struct replay_call *call, const char *type, const void *body, size_t size);
__attribute__((format(printf, 2, 3)))
int replay_reply_text(struct replay_call *call, const char *format, ...);

/* Is this a replay? For logs and metrics, which would count twice; not for what a method does. */
int replay_replaying(const struct replay_call *call);

#ifdef __cplusplus
}
#endif

#endif
