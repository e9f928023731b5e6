/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What the core needs of the world: one lock, waiting, threads, clock, random numbers, a device, the other servers. The core
 * does no I/O and reads no clock but by this, so a simulator can be the world (sim/).
 */
#ifndef REPLAY_ENV_H
#define REPLAY_ENV_H

#include "bytes.h"
#include "state.h"

struct env;
struct peer;

enum message_kind {
	M_START,	/* a session is started: the reply's session is its name */
	M_CALL,		/* a request of a session */
	M_END,		/* the session is ended */
	M_FLUSH,	/* within the domain: @state must be durable before you answer */
	M_RECOVERED,	/* within the domain: @endings of the sender */
	M_HISTORY,	/* within the domain: your endings from @state's epoch on */
};

/* Borrowed by who gets it, unless said otherwise. */
struct message {
	enum message_kind kind;
	uint16_t from;			/* the member that sends it, OUTSIDE for all others */
	const char *session;		/* M_CALL, M_END */
	const char *key;		/* M_CALL without a session: the one that was begun with this key, or now is */
	uint64_t sequence;		/* M_CALL, M_END */
	const char *method;		/* M_CALL */
	struct bytes body;		/* M_CALL; M_RECOVERED: history */
	struct vector depends;		/* the sender's, within the domain */
	struct state state;		/* M_FLUSH, M_HISTORY */
};

#define OUTSIDE	UINT16_MAX

enum answer {
	A_OK,
	A_RETRY,	/* recovering, too much to do, or one of us has to roll back first: send it again */
	A_GONE,		/* no such session: it has ended, or never was */
	A_SEQUENCE,	/* not the next request of the session: @sequence is */
	A_CHANGED,	/* a request with this sequence number has been executed, and was another */
	A_STUCK,	/* the session cannot be replayed: @body says why */
	A_ORPHAN,	/* M_FLUSH: it has been lost */
	A_REFUSED,	/* not understood: @body says why */
	A_TIMEOUT,	/* of ourselves: it has not answered in time */
	A_LARGE,	/* likewise: it has executed it, and its reply is more than we take */
};

/* Whoever gets it frees it. */
struct reply {
	enum answer answer;
	uint64_t sequence;
	int32_t status;			/* the method's */
	struct bytes body;		/* the method's; M_START: the session's name */
	struct vector depends;		/* within the domain */
	struct bytes endings;		/* within the domain: of members, that the sender must not know: u16 member, history; ... */
};

void reply_free(struct reply *reply);
void message_free(struct message *message);	/* one that owns its parts */
struct message *message_copy(const struct message *message);

/* One message to one peer. @error is 0, or a negative errno: it may or may not have arrived. */
struct exchange {
	const struct peer *peer;
	const struct message *message;
	struct reply reply;
	int error;
	uint64_t patience;		/* ns to wait for it; 0: as long as the environment sees fit */
};

/* What operators are told of a recovery: one record, as those of the ladder's other rungs */
struct verdict_record {
	const char *cause;		/* start, orphan, diverged */
	const char *outcome;		/* replayed, rolled-back, stuck */
	uint64_t epoch;
	uint64_t took;			/* ns */
	uint64_t sessions, requests;	/* that it was about */
	const char *why;		/* for people */
};

struct env {
	void (*lock)(struct env *env);
	void (*unlock)(struct env *env);
	/*
	 * With the lock held, which is free meanwhile: until wake() of the same @what, or until the clock says @until (0: no
	 * limit), or for no reason.
	 */
	void (*wait)(struct env *env, const void *what, uint64_t until);
	void (*wake)(struct env *env, const void *what);
	void (*wake_one)(struct env *env, const void *what);
	int (*thread)(struct env *env, void (*run)(void *arg), void *arg);
	uint64_t (*clock)(struct env *env);		/* ns, only forward */
	uint64_t (*time)(struct env *env);		/* ns since 1970 */
	void (*random)(struct env *env, void *data, size_t len);
	/* 0 or a negative errno. What has been written stays over a loss of power. */
	int (*read)(struct env *env, uint64_t place, void *data, size_t len);
	int (*write)(struct env *env, uint64_t place, const void *data, size_t len);
	/* All at once; the lock is not held. */
	void (*exchange)(struct env *env, struct exchange *exchanges, unsigned int n);
	/* With the lock held: it must not wait */
	void (*report)(struct env *env, const struct verdict_record *record);
	/* The server cannot go on: it does not return. */
	void (*fail)(struct env *env, const char *why) __attribute__((noreturn));
};

#endif
