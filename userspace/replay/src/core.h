/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A middleware server (the paper's MSP): sessions, shared variables, and the rest of its domain. One lock, the environment's,
 * guards all of it. A function here wants it held; one that waits gives it up meanwhile, and its comment says "waits".
 */
#ifndef REPLAY_CORE_H
#define REPLAY_CORE_H

#include <errno.h>
#include <stdarg.h>
#include <uthash.h>
#include <utlist.h>

#include "env.h"
#include "log.h"

#define NAME_MAX_LEN		255
#define VALUE_MAX		(1u << 20)	/* a body, a variable */
#define STATE_MAX		(2u << 20)	/* all variables of a session */
#define REQUEST_LOG		(4u << 20)	/* that one may log, if nothing is said and the log is large */
#define INBOX_MAX		8		/* the same request, sent again and again */
#ifndef POSITION_BUFFER			/* the simulator has a smaller one: it is filled more often */
#define POSITION_BUFFER		512
#endif
#define TOKEN_SIZE		16
#define SESSION_NAME_LEN	(16 + 1 + 2 * TOKEN_SIZE)

enum record {
	R_START = 1,	/* token, client, name by the client, depends; its LSN is the session's key */
	R_REQUEST,	/* key, sequence, version, method, body, depends */
	R_READ,		/* key, name, present, value, depends */
	R_WRITE,	/* key, name, present, value, depends, previous */
	R_UPDATE,	/* key, name, old present, old, present, value, depends, previous */
	R_VALUE,	/* key, kind, value: clock, random numbers */
	R_REPLY,	/* key, what was asked, answer, status, body, depends */
	R_SKIP,		/* key, LSN: the session's records from there to here are not replayed (the paper's EOS) */
	R_END,		/* key */
	R_CHECKPOINT,	/* key, token, client, name by the client, the session's state */
	R_CARRY,	/* key, and records of the session, whole: from R_START or R_CHECKPOINT to the last */
	R_POSITIONS,	/* key, LSNs: a part of a position stream */
	R_VARIABLE,	/* name, present, value: a shared variable's checkpoint */
	R_LEARNED,	/* member, history */
	R_SERVER,	/* a server checkpoint: histories of all members */
};

struct peer {
	const char *name;
	uint16_t member;	/* OUTSIDE: of no domain, or another */
	void *where;		/* the environment's */
	uint64_t timeout;	/* ns that a call may take, 0 for ever */
};

struct replay_call;
/* The reply's body is put in @reply; the status is for the client. */
typedef int32_t (*method_fn)(struct replay_call *call, const struct bytes *body, struct bytes *reply);

struct method {
	const char *name;
	uint32_t version;
	method_fn run;
	void *arg;		/* the application's */
	int (*application)(struct replay_call *call, const void *body, size_t size, void *arg);
};

struct config {
	uint16_t self;			/* our member number */
	const struct peer *peers;	/* the others of our domain first, then all that are called */
	unsigned int nr_peers;
	const struct method *methods;	/* of two with one name the one with the higher version serves new requests */
	unsigned int nr_methods;
	unsigned int threads;		/* that run methods at a time */
	unsigned int threads_max;	/* with those that wait for others' replies */
	uint64_t session_checkpoint;	/* bytes logged by a session */
	uint64_t variable_checkpoint;	/* writes */
	uint64_t server_checkpoint;	/* bytes logged by the server */
	unsigned int forced_after;	/* server checkpoints without one of the session or the variable */
	uint64_t sessions;		/* that there may be, 0: any number */
	uint64_t request_log;		/* bytes that one request may log; 0: a 64th of the log, at most REQUEST_LOG */
	uint64_t session_ttl;		/* ns that a session may be idle, 0 for ever */
	uint64_t key_ttl;		/* likewise, of one that a client has named */
	uint64_t log_cache;		/* bytes of the log that are kept in memory for replay */
	uint64_t batch;			/* ns that a flush waits for others (paper, 5.5) */
};

/* A named value: of a session */
struct value {
	char *name;
	struct bytes bytes;
	UT_hash_handle hh;
};

/* A session of another server that a session of ours has started */
struct outgoing {
	const struct peer *peer;
	char *session;
	uint64_t sequence;	/* the next available */
	struct outgoing *next;
};

struct inbox {
	struct message *message;
	void (*done)(void *arg, struct reply *reply);
	void *arg;
	struct inbox *prev, *next;
};

struct positions {
	uint64_t *spilled;	/* R_POSITIONS, POSITION_BUFFER in each */
	uint64_t *buffer;
	size_t nr_spilled, nr_buffer, room;
	size_t scanned;		/* of the buffer's: the scan has made them, and would again */
	uint64_t *segment;	/* the spilled one that was read last */
	size_t nr_segment;
};

struct session {
	uint64_t key;
	uint8_t token[TOKEN_SIZE];
	uint16_t client;
	char *name;		/* by the client, or NULL */

	/* What replay makes again */
	struct value *values;
	size_t values_size;
	uint64_t expected;
	bool replied;		/* to the request before the expected one: this buffered reply */
	uint32_t asked;		/* its checksum */
	int32_t status;
	struct bytes reply;
	struct outgoing *outgoing;
	struct vector depends;
	uint64_t lsn;		/* the state number */

	/* What replay needs */
	uint64_t base;		/* R_START or R_CHECKPOINT */
	uint64_t hold;		/* the log is needed from here: base, or the R_CARRY that base lies in */
	unsigned int cuts;	/* the position stream has been cut so often */
	struct positions positions;
	size_t cursor;
	bool replaying;
	uint64_t logged;	/* since base */
	uint64_t request_logged;
	struct session *held_prev, *held_next;

	/* What is to be done */
	bool live;		/* its state is in memory */
	bool orphan;
	bool busy;		/* a thread is at it, and nobody else may change it */
	bool queued, again;
	bool committing;	/* waits for the log */
	bool due_checkpoint, due_end, due_drop, ended;
	bool carried;		/* the keeper is at it */
	char *stuck;		/* it cannot be replayed, and why */
	const char *method;	/* being executed */
	unsigned int age;	/* server checkpoints since base */
	uint64_t used;		/* the clock at the last request */
	struct session **idle;	/* the list that it is in: the server's */
	struct session *idle_prev, *idle_next;
	struct inbox *inbox;

	struct session *prev, *next;	/* of the queue */
	struct session *commit_prev, *commit_next;
	UT_hash_handle hh, named;
};

struct variable {
	char *name;
	bool present;
	struct bytes value;
	struct vector depends;
	uint64_t lsn;		/* the state number: the last write */
	uint64_t base;		/* where its chain begins */
	uint64_t writes;	/* since then */
	unsigned int age;
	bool busy;		/* being rolled back, or checkpointed */
	UT_hash_handle hh;
};

struct waiting {
	uint64_t since;		/* the clock; 0: nobody waits */
	bool said;
};

enum waits { REQUESTS, SESSIONS };

struct server {
	struct env *env;
	struct config config;
	struct log log;
	struct history histories[MEMBERS_MAX];
	uint64_t learned[MEMBERS_MAX];	/* our last record about the member */
	uint32_t told[MEMBERS_MAX];	/* the epoch of ours that the member has acknowledged to know */
	struct session *sessions;
	struct session *named;		/* those with a name by the client */
	struct variable *variables;
	struct session *queue;
	struct session *committing;
	struct session *idle[2];	/* the one that was used last at the end: of clients' names, others */
	unsigned int threads, blocked;
	unsigned int recovering;	/* sessions that have not been replayed */
	uint64_t started;		/* the clock when the log began to be read */
	uint64_t worked;		/* bytes that sessions have logged since the last server checkpoint */
	uint64_t reserve;		/* bytes that a method is expected to log */
	uint64_t reserved;		/* of those that run */
	uint64_t held;			/* bytes that the sessions of those that run have logged: they cannot have a checkpoint */
	struct session *held_by;	/* the one that began first at the end */
	int keeper;			/* to be woken */
	bool checkpoint_asked;		/* by the operator */
	struct waiting waiting[2];	/* for room: requests, new sessions */
	uint64_t oldest;		/* that was needed at the last server checkpoint */
	uint64_t moved;			/* the clock when things were last moved on for who waits */
	uint64_t patience;		/* the log's end up to which moving things on may still make room */
	bool open;			/* recovered so far that requests are taken */
	bool stopping;
	unsigned int running;		/* threads of ours */
	/* figures */
	uint64_t requests, replayed, orphans, rollbacks, checkpoints, divergences;
};

struct replay_call {
	struct server *server;
	struct session *session;
	const struct method *method;
	struct bytes *reply;
	struct kept *kept;	/* what the method has been given, api.c */
};

/* server.c */
/*
 * Recovers and starts the threads; waits. 0, -EFBIG: more than an eighth of the log is wanted for a request, or an errno of
 * log_open().
 */
int server_start(struct server *server, struct env *env, const struct config *config, uint64_t device_size);
/* A request of a client, whose message is copied. @done comes from any thread, without the lock. Wants the lock not held. */
void server_request(struct server *server, const struct message *message, void (*done)(void *arg, struct reply *reply), void *arg);
/* A message of a member of the domain. Wants the lock not held; waits. */
void server_message(struct server *server, const struct message *message, struct reply *reply);
void server_stop(struct server *server);
/* A message for the operator: of recoveries, and of sessions that are stuck */
void report(struct server *server, const char *cause, const char *outcome, uint64_t sessions, uint64_t requests, const char *why);
const struct method *find_method(const struct server *server, const char *name, uint32_t version);
/* Who has ended holds nothing any more */
void room_again(struct server *server);
/* There is no room for a request, or a session: @why is for people */
void no_room(struct server *server, enum waits who, const char *why);
void nap(struct server *server, uint64_t ns);
void thread_blocked(struct server *server, bool blocked);

/* domain.c */
/* What is durable is dropped from it. With UNKNOWN, @unknown says which. */
enum verdict judge(struct server *server, struct vector *v, struct state *unknown);
/* ALIVE or ORPHAN; waits. Of memory that nobody else changes. */
enum verdict judge_asking(struct server *server, struct vector *v);
bool learn(struct server *server, uint16_t member, struct cursor history);
void learn_endings(struct server *server, const struct bytes *endings);
void put_endings(struct server *server, struct bytes *endings, uint16_t member, uint32_t from);
/*
 * All that @v depends on, in parallel; waits. -ECANCELED: it is an orphan, or @session has become one. -EAGAIN, with @once: some member
 * does not do it now.
 */
int flush_others(struct server *server, struct vector *v, const struct session *session, bool once);
void announce(struct server *server);
const struct peer *find_member(const struct server *server, uint16_t member);

/* session.c */
struct session *session_new(struct server *server, uint64_t key);
/* If it has ended and nobody is at it. */
void session_put(struct server *server, struct session *s);
void session_free(struct server *server, struct session *s);
void session_reset(struct session *s);
void session_name(const struct session *s, char name[SESSION_NAME_LEN + 1]);
/* What a record says of who the session is */
void session_identity_put(struct bytes *b, const struct session *s);
void session_identity_get(struct server *server, struct cursor *c, struct session *s);
/* It has been used just now */
void session_used(struct server *server, struct session *s);
struct session *session_find(struct server *server, const char *name);
struct session *session_find_named(struct server *server, uint16_t client, const char *name);
uint32_t request_sum(const char *method, const struct bytes *body);
void session_queue(struct server *server, struct session *s);
void session_run(struct server *server, struct session *s);
void session_receive(struct server *server, struct session *s, const struct message *message,
		     void (*done)(void *arg, struct reply *reply), void *arg);
void session_refuse(struct server *server, struct session *s);
/* Waits. -ECANCELED: an orphan */
int session_flush(struct server *server, struct session *s);
/* A record of the session: its position is kept, its state number advances */
uint64_t session_append(struct server *server, struct session *s, enum record type, const struct bytes *payload);
__attribute__((format(printf, 3, 4)))
void session_stick(struct server *server, struct session *s, const char *format, ...);
unsigned int count_stuck(const struct server *server);
void position_push(struct server *server, struct session *s, uint64_t lsn);
uint64_t position_get(struct server *server, struct session *s, size_t index);	/* waits */
/* All of the stream at once, the caller's to free; waits */
uint64_t *positions_copy(struct server *server, struct session *s, size_t *count);
size_t position_count(const struct session *s);
void position_truncate(struct server *server, struct session *s, size_t count);	/* waits */
/* Without a log to write to: by the scan */
void position_add(struct session *s, uint64_t lsn);
void positions_clear(struct session *s);

/* execute.c: methods, run for the first time and again */
/* It is given up */
void session_lost(struct server *server, struct session *s);
void execute(struct server *server, struct session *s, const struct message *m);
void session_recover(struct server *server, struct session *s);
/* 0, or -ECANCELED: the method is to return */
int call_enter(struct replay_call *call);
/* The same, when there is room for what it is about to log: waits */
int call_room(struct replay_call *call);
/*
 * The next record of a session that replays: true if it is there and is of this @type, its payload after the key in @payload.
 * False: it goes on for the first time; or call_enter() says that it must not go on at all. Waits.
 */
bool call_replay(struct replay_call *call, enum record type, struct bytes *payload, struct cursor *c);
/* The record that call_replay() has just given is not what is asked for now */
void call_diverged(struct replay_call *call, const char *asked, const char *logged);
/* The record that call_replay() has just given depends on it. False: it is an orphan and has been skipped. Waits. */
bool call_depends(struct replay_call *call, struct vector *depends);

int call_get(struct replay_call *call, const char *name, struct bytes *value);
int call_set(struct replay_call *call, const char *name, const void *value, size_t len);
enum value_kind { V_TIME, V_RANDOM };
int call_value(struct replay_call *call, enum value_kind kind, void *value, size_t len);

/* variable.c */
struct variable *variable_get(struct server *server, const char *name);
void variable_free(struct server *server, struct variable *v);
int call_read(struct replay_call *call, const char *name, bool *present, struct bytes *value);
int call_write(struct replay_call *call, const char *name, bool present, const void *value, size_t len);
/* @update makes the new value of the old one; both may be absent. It runs with the lock held and calls nothing of ours. */
typedef void (*update_fn)(void *arg, bool *present, struct bytes *value);
int call_update(struct replay_call *call, const char *name, update_fn update, void *arg);
/* Waits */
void variable_checkpoint(struct server *server, const char *name);

/* outgoing.c */
int call_method(struct replay_call *call, const char *peer, const char *method, const void *body, size_t len,
		int32_t *status, struct bytes *reply);

/* checkpoint.c */
void session_checkpoint(struct server *server, struct session *s);	/* waits */
bool has_room(const struct server *server, size_t size);
bool checkpoint_has_room(const struct server *server, const struct session *s);
/* Its records are written again, further on in the log; for one that cannot have a checkpoint now. Waits. */
void session_carry(struct server *server, struct session *s);
void session_state_put(struct bytes *b, const struct session *s);
void session_state_get(struct server *server, struct cursor *c, struct session *s);
/* No recovery needs a record before */
uint64_t server_oldest(const struct server *server);
/* @forced: of sessions and variables that have not had one for long, too; waits */
void server_checkpoint(struct server *server, bool forced);

/* recovery.c */
int server_scan(struct server *server);

#endif
