/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The parts of takeoverd: one thread, one loop */
#ifndef TAKEOVERD_H
#define TAKEOVERD_H

#include <jansson.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"

#define TICK_NS		50000000ull
#define PAUSED_NS	500000000ull	/* a tick that is late by more: this host has stood still */
#define SECOND_NS	1000000000ull
#define ALIVE_NS	(3 * SECOND_NS)	/* who has said something in it is there */

/* A descriptor that the loop looks at */
struct watch {
	int fd;
	void (*ready)(struct watch *watch, uint32_t events);
};

int watch_add(struct watch *watch, uint32_t events);
void watch_change(struct watch *watch, uint32_t events);
void watch_remove(struct watch *watch);
/* The same, and closes the descriptor */
void watch_close(struct watch *watch);

/* accept4(2); without a descriptor left, it hangs up */
int accept_spared(int listener, int flags);

/* With the time that this host has slept */
uint64_t now_ns(void);
extern uint64_t ticked_at;
/* To standard error: the journal's levels */
void say(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *must_alloc(size_t size);

extern struct config config;
extern const char *verdicts;

/*
 * A service here.
 *
 *	WAITING		it is not protected yet: the peer is not there, or not ready
 *	PROTECTED	both hosts have each new connection
 *	ALONE		this host has been promoted
 *	ABANDONED	the peer has, or will be
 *
 * WAITING becomes PROTECTED by itself; ALONE only when it is asked to. What it is outlives this program, but not the host:
 * a host that was started anew knows nothing, and joins who knows more.
 */
enum state { WAITING, PROTECTED, ALONE, ABANDONED };

struct claim;
struct kernel_job;

struct service {
	struct service_config *c;
	enum state state;
	bool backup;			/* of PROTECTED: the muted one */
	bool protect;			/* of ALONE: it has been asked to find a peer again */
	bool known;			/* of ALONE: the peer knows it */
	bool leaving;			/* it is not in the file any more */
	bool off;			/* of one that is leaving: in the kernel it is no service any more */
	bool left;			/* and the peer knows all that it has to */
	uint64_t leave_after;		/* the kernel has not let it go just now */
	bool unsaved;			/* what it is, is not in its files */
	bool old;			/* it keeps a peer, or a key, that is not the file's */
	uint64_t epoch;			/* grows with each agreement and each promotion */
	uint64_t agreed;		/* a peer that is alone in a later one is right */
	union address peer, peer_log;
	/* What the peer last said */
	uint64_t alive_at;
	enum state peer_state;
	uint64_t peer_epoch;
	uint64_t asked_at;
	bool split;			/* both hosts are alone */
	bool had_address;		/* of ALONE: the address has been here */
	bool displaced;			/* of ALONE: it has gone again */
	bool differs;			/* settings do */
	int32_t clock_off;		/* ms: how much the peer's clock is ahead, at least */
	bool nobody_asks;		/* both hosts are the primary */
	unsigned int silent;		/* how often the peer has said that it does not go on, and nor does this host */
	bool stranger;			/* it has another key */
	bool misplaced;			/* its address is, or may be */
	atomic_bool joining;		/* a thread is at it */
	struct kernel_job *walk;	/* a promotion or abandonment that the kernel has not ended yet, or NULL */
	uint64_t protect_after;		/* it has failed here just now */
	unsigned int announcements;	/* of the address that are to come */
	uint64_t unreachable_until;	/* its log: so that not everybody waits for it */
	uint64_t unreachable_said;
	struct claim *claim;
	char *counts;			/* the kernel's, as it tells them */
	/* The reply log's */
	struct log *logs;
	uint64_t replies, executed, refused, lost, forgotten;
	struct service *next;
};

extern struct service *services;

struct service *service_at(const struct endpoint *at);
struct service *service_by_name(const char *name);

/* service.c: what becomes of a service */
int services_start(void);
void services_tick(uint64_t now);
void services_settle(void);
/* Of the packet filter, here */
extern struct rules {
	bool wrong;			/* they are not what they should be */
	uint64_t lost;			/* how often they have been found so */
} rules;
void services_stop(void);
extern uint64_t woken_at;		/* when this host last found that it had stood still */

/* @done is called once, with what takeoverctl prints and its exit status; maybe before this returns */
typedef void (*done_fn)(void *arg, int status, const char *text);
void service_promote(struct service *svc, done_fn done, void *arg);
bool service_abandon(struct service *svc);
/* A host that is alone asks as soon as the address is on it; for another one without the address there is nothing to ask */
enum protection { PROTECTION_ASKED, PROTECTION_LATER, PROTECTION_REFUSED, PROTECTION_LEAVING };
enum protection service_protect(struct service *svc);
int service_set_peer(struct service *svc, const union address *peer, const union address *log);
json_t *services_status(void);
/* What of this host's settings is not as it should be, a line each */
unsigned int host_check(void (*found)(void *arg, const char *text), void *arg);
const char *state_name(const struct service *svc);
/* The same, and whether the kernel is still at it */
const char *state_shown(const struct service *svc);

/* What the hosts tell each other about a service */
enum verb { VERB_ASK, VERB_CLAIM, VERB_PROTECT, VERB_ANSWER, VERB_YES, VERB_NO };
#define SETTINGS	6

struct peer_message {
	uint32_t verb;
	uint32_t state;
	uint64_t epoch;
	uint32_t backup;
	uint32_t lot;			/* of a claim; of a VERB_ANSWER, the sender's clock_ms(), or 0 of an older one */
	uint32_t settings[SETTINGS];
};

/* Its time of day, of which its timestamps are made; never 0 */
uint32_t clock_ms(void);
/* What the peer's was when it answered a question that we had begun when ours was @asked */
void service_clock(struct service *svc, uint32_t asked, uint32_t its);
/* The peer's question @m becomes our answer */
void service_asked(struct service *svc, struct peer_message *m);

/* announce.c: that the address is on @interface of this host now */
void announce(const struct endpoint *at, const char *interface);

/* peer.c: connections between the hosts */
int peer_listen(void);
void peer_tick(uint64_t now);
/* @error: 0 or an errno. @fd is the callee's. @answer: of a question */
typedef void (*dialled_fn)(void *arg, int error, int fd, const struct peer_message *answer);
struct dial;
/* A connection to the log of the service's peer, or a @question for it */
struct dial *peer_dial(struct service *svc, const union address *to, const struct peer_message *question, uint64_t limit_ns,
		       dialled_fn done, void *arg);
/* @done is not called any more */
void peer_forget(struct dial *dial);

/* store.c: the reply log */
int store_open(void);
void store_tick(uint64_t now);
void log_accept(struct service *svc, int fd);
void logs_close(struct service *svc);
struct wait;
struct client;
struct wait *wait_new(struct client *client, struct service *svc, uint64_t id, uint64_t number, bool alone);
void wait_alone(struct wait *wait);
void wait_cancel(struct wait *wait);
void waits_look(struct service *svc);
uint64_t store_used(void);
uint64_t store_entries(void);
/* Of these, those that are being written */
uint64_t store_open_entries(void);

/* local.c: the control socket, and what is read of figures */
int local_listen(void);
void local_tick(void);
/* The path of @name in the control socket's directory */
void control_beside(const char *name, char path[PATH_MAX]);
/* The answer to a wait, which is no more. @fd is closed. */
void client_answer(struct client *client, uint32_t type, int fd, uint64_t length);
void client_look(struct client *client);
/* For `takeoverctl watch` */
void local_event(const char *text);
/* Without it, all else goes on */
void metrics_start(void);
void metrics_tick(void);
void metrics_stop(void);

#endif
