// SPDX-License-Identifier: LGPL-2.1-or-later
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire.h"

static const char *const answers[] = {
	[A_OK] = "ok", [A_RETRY] = "retry", [A_GONE] = "gone", [A_SEQUENCE] = "sequence", [A_CHANGED] = "changed",
	[A_STUCK] = "stuck", [A_ORPHAN] = "orphan", [A_REFUSED] = "refused",
};

const char *answer_text(enum answer answer)
{
	return answers[answer];
}

bool answer_parse(const char *text, enum answer *answer)
{
	unsigned int i;

	for (i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		if (!strcmp(text, answers[i])) {
			*answer = i;
			return true;
		}
	}
	return false;
}

/* strtoull() takes white space and signs */
static bool digits(const char **text, uint64_t max, uint64_t *value)
{
	char *end;

	if (**text < '0' || **text > '9')
		return false;
	errno = 0;
	*value = strtoull(*text, &end, 10);
	*text = end;
	return !errno && *value <= max;
}

bool number_parse(const char *text, uint64_t max, uint64_t *value)
{
	return text && digits(&text, max, value) && !*text;
}

char *vector_text(const struct vector *v)
{
	/* A state is at most 5 + 10 + 20 digits, two slashes and a comma */
	char *text = must_alloc(v->n * 40 + 1), *at = text;
	unsigned int i;

	for (i = 0; i < v->n; i++)
		at += sprintf(at, "%s%u/%u/%" PRIu64, i ? "," : "", v->states[i].member, v->states[i].epoch, v->states[i].lsn);
	return text;
}

static bool one_state(const char **text, struct state *state)
{
	uint64_t member, epoch;

	if (!digits(text, MEMBERS_MAX - 1, &member) || *(*text)++ != '/' || !digits(text, UINT32_MAX, &epoch) || *(*text)++ != '/' ||
	    !digits(text, UINT64_MAX, &state->lsn))
		return false;
	state->member = member;
	state->epoch = epoch;
	return true;
}

bool state_parse(const char *text, struct state *state)
{
	return text && one_state(&text, state) && !*text;
}

bool vector_parse(const char *text, struct vector *v)
{
	vector_free(v);
	while (text && *text) {
		struct state state;

		if (!one_state(&text, &state) || (*text && (*text++ != ',' || !*text)))
			return false;
		vector_add(v, state);
	}
	return true;
}

char *hex_text(const struct bytes *b)
{
	char *text = must_alloc(b->len * 2 + 1);
	size_t i;

	for (i = 0; i < b->len; i++)
		sprintf(text + 2 * i, "%02x", b->data[i]);
	return text;
}

static int nibble(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool hex_parse(const char *text, struct bytes *b)
{
	b->len = 0;
	for (; text && *text; text += 2) {
		int high = nibble(text[0]), low = high < 0 ? -1 : nibble(text[1]);
		uint8_t byte = high << 4 | low;

		if (low < 0)
			return false;
		bytes_add(b, &byte, 1);
	}
	return true;
}
