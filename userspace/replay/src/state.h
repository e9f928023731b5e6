/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a state depends on (paper, 3.1): state identifiers, dependency vectors, and what is known of the others' recoveries. */
#ifndef REPLAY_STATE_H
#define REPLAY_STATE_H

#include "bytes.h"

#define MEMBERS_MAX	64	/* of a domain */

/*
 * A state identifier: the record at @lsn of @member's log, written in its @epoch. An epoch is a time between two crashes.
 */
struct state {
	uint16_t member;
	uint32_t epoch;
	uint64_t lsn;
};

/* A dependency vector: at most one state of each member, sorted by member. */
struct vector {
	unsigned int n;
	struct state *states;
};

/*
 * Epochs that have ended with the log's end at @end: records from there on were lost. Who crashes again before he has written
 * anything has ended several at one place. @learned is where in our own log this is written.
 */
struct ending {
	uint32_t first, last;
	uint64_t end;
	uint64_t learned;
};

/* What is known of a member: the epoch it is in, 0 if nothing is known, and the ends of those before, sorted, with gaps. */
struct history {
	uint32_t epoch;
	unsigned int n;
	struct ending *endings;
};

enum verdict {
	ALIVE,		/* may still be lost */
	DURABLE,	/* can never be lost */
	ORPHAN,		/* has been lost */
	UNKNOWN,	/* the member has to be asked */
};

void vector_free(struct vector *v);
void vector_copy(struct vector *to, const struct vector *from);
/* Item-wise maximum. All states must be of epochs that go on: judge them before. */
void vector_merge(struct vector *into, const struct vector *from);
void vector_add(struct vector *v, struct state state);
void vector_remove(struct vector *v, unsigned int index);
const struct state *vector_find(const struct vector *v, uint16_t member);
void put_vector(struct bytes *b, const struct vector *v);
void get_vector(struct cursor *c, struct vector *v);

void history_free(struct history *h);
enum verdict history_judge(const struct history *h, const struct state *state);
/* True if it was not known before. */
bool history_learn(struct history *h, struct ending ending);
bool history_epoch(struct history *h, uint32_t epoch);
/* Ends that were learned before @lsn are forgotten: no record that needs them is left. */
void history_prune(struct history *h, uint64_t lsn);
/* Endings of @from and later */
void put_history(struct bytes *b, const struct history *h, uint32_t from);
/* The new ones of it, each learned at @learned. True if one of it was new. */
bool get_history(struct cursor *c, struct history *h, uint64_t learned);

#endif
