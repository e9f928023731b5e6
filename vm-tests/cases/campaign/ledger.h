/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the test service and its clients agree on. */
#ifndef LEDGER_H
#define LEDGER_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

/* File descriptors of the service. IN and OUT may be one socket. */
enum { LEDGER_IN = 3, LEDGER_OUT = 4, LEDGER_BOARD = 5 };

enum { WORDS = 8 };

struct request {
	uint64_t word[WORDS];
};

/* The sum depends on every request before: one that is lost, done twice or in another order shows for ever after. */
struct reply {
	uint64_t number;
	uint64_t sum;
	uint64_t word[WORDS - 2];
};

/* Shared with the test: what a generation says of itself. */
struct ledger_board {
	_Atomic uint64_t generation;	/* of the last one that has begun */
	_Atomic uint64_t up;		/* of the last one that serves */
	_Atomic uint64_t errors;	/* where a generation found something wrong: line of ledger.c */
};

static inline void ledger_reply(struct reply *reply, const struct request *request, uint64_t number, uint64_t sum)
{
	for (int i = 0; i < WORDS; i++)
		sum = (sum ^ request->word[i]) * 0x100000001b3ULL + (sum >> 29);
	reply->number = number;
	reply->sum = sum;
	for (int i = 0; i < WORDS - 2; i++)
		reply->word[i] = request->word[i] ^ sum;
}

#endif
