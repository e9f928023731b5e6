/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The parts of a message that are not a body, as text */
#ifndef REPLAY_WIRE_H
#define REPLAY_WIRE_H

#include "env.h"

#define H_SESSION	"Replay-Session"
#define H_SEQUENCE	"Replay-Sequence"
#define H_ANSWER	"Replay-Answer"
#define H_KEY		"Idempotency-Key"
#define H_FROM		"Replay-From"
#define H_DOMAIN_KEY	"Replay-Domain-Key"
#define H_DEPENDS	"Replay-Depends"
#define H_ENDINGS	"Replay-Endings"
#define H_STATE		"Replay-State"

/* The text in memory of its own */
char *vector_text(const struct vector *v);
bool vector_parse(const char *text, struct vector *v);
bool state_parse(const char *text, struct state *state);
char *hex_text(const struct bytes *b);
bool hex_parse(const char *text, struct bytes *b);
bool number_parse(const char *text, uint64_t max, uint64_t *value);
const char *answer_text(enum answer answer);
bool answer_parse(const char *text, enum answer *answer);

#endif
