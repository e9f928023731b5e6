// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdlib.h>
#include <string.h>

#include "state.h"

void vector_free(struct vector *v)
{
	free(v->states);
	*v = (struct vector){ 0 };
}

void vector_copy(struct vector *to, const struct vector *from)
{
	struct vector copy = { .n = from->n };

	if (copy.n) {
		copy.states = must_alloc(copy.n * sizeof(*copy.states));
		memcpy(copy.states, from->states, copy.n * sizeof(*copy.states));
	}
	vector_free(to);
	*to = copy;
}

void vector_add(struct vector *v, struct state state)
{
	unsigned int i = 0;

	while (i < v->n && v->states[i].member < state.member)
		i++;
	if (i < v->n && v->states[i].member == state.member) {
		struct state *old = &v->states[i];

		if (old->epoch < state.epoch || (old->epoch == state.epoch && old->lsn < state.lsn))
			*old = state;
		return;
	}
	v->states = must_resize(v->states, (v->n + 1) * sizeof(*v->states));
	memmove(&v->states[i + 1], &v->states[i], (v->n - i) * sizeof(*v->states));
	v->states[i] = state;
	v->n++;
}

void vector_merge(struct vector *into, const struct vector *from)
{
	unsigned int i;

	for (i = 0; i < from->n; i++)
		vector_add(into, from->states[i]);
}

void vector_remove(struct vector *v, unsigned int index)
{
	v->n--;
	memmove(&v->states[index], &v->states[index + 1], (v->n - index) * sizeof(*v->states));
}

const struct state *vector_find(const struct vector *v, uint16_t member)
{
	unsigned int i;

	for (i = 0; i < v->n; i++)
		if (v->states[i].member == member)
			return &v->states[i];
	return NULL;
}

void put_vector(struct bytes *b, const struct vector *v)
{
	unsigned int i;

	put_u16(b, v->n);
	for (i = 0; i < v->n; i++) {
		put_u16(b, v->states[i].member);
		put_u32(b, v->states[i].epoch);
		put_u64(b, v->states[i].lsn);
	}
}

void get_vector(struct cursor *c, struct vector *v)
{
	unsigned int n = get_u16(c);

	vector_free(v);
	while (n-- && !c->bad) {
		struct state state = { .member = get_u16(c) };

		state.epoch = get_u32(c);
		state.lsn = get_u64(c);
		if (state.member >= MEMBERS_MAX)
			c->bad = true;
		if (!c->bad)
			vector_add(v, state);
	}
}

void history_free(struct history *h)
{
	free(h->endings);
	*h = (struct history){ 0 };
}

enum verdict history_judge(const struct history *h, const struct state *state)
{
	unsigned int i;

	if (!h->epoch || state->epoch > h->epoch)
		return UNKNOWN;
	if (state->epoch == h->epoch)
		return ALIVE;
	for (i = h->n; i--; )
		if (h->endings[i].first <= state->epoch && state->epoch <= h->endings[i].last)
			return state->lsn < h->endings[i].end ? DURABLE : ORPHAN;
	return UNKNOWN;
}

bool history_epoch(struct history *h, uint32_t epoch)
{
	if (epoch <= h->epoch)
		return false;
	h->epoch = epoch;
	return true;
}

bool history_learn(struct history *h, struct ending new)
{
	unsigned int i, kept = 0;

	for (i = 0; i < h->n; i++) {
		const struct ending *old = &h->endings[i];

		if (old->first <= new.first && new.last <= old->last)
			return false;
	}
	/* Those that it touches become one with it */
	for (i = 0; i < h->n; i++) {
		const struct ending old = h->endings[i];

		if (old.end != new.end || old.last + 1 < new.first || new.last + 1 < old.first) {
			h->endings[kept++] = old;
			continue;
		}
		new.first = old.first < new.first ? old.first : new.first;
		new.last = old.last > new.last ? old.last : new.last;
	}
	h->n = kept + 1;
	h->endings = must_resize(h->endings, h->n * sizeof(*h->endings));
	for (i = kept; i && h->endings[i - 1].first > new.first; i--)
		h->endings[i] = h->endings[i - 1];
	h->endings[i] = new;
	return true;
}

void history_prune(struct history *h, uint64_t lsn)
{
	unsigned int i, kept = 0;

	for (i = 0; i < h->n; i++)
		if (h->endings[i].learned >= lsn)
			h->endings[kept++] = h->endings[i];
	h->n = kept;
}

void put_history(struct bytes *b, const struct history *h, uint32_t from)
{
	unsigned int i, first = 0;

	while (first < h->n && h->endings[first].last < from)
		first++;
	put_u32(b, h->epoch);
	put_u32(b, h->n - first);
	for (i = first; i < h->n; i++) {
		put_u32(b, h->endings[i].first);
		put_u32(b, h->endings[i].last);
		put_u64(b, h->endings[i].end);
	}
}

bool get_history(struct cursor *c, struct history *h, uint64_t learned)
{
	uint32_t now = get_u32(c), n = get_u32(c);
	bool new = false;

	while (n-- && !c->bad) {
		struct ending ending = { .first = get_u32(c), .learned = learned };

		ending.last = get_u32(c);
		ending.end = get_u64(c);
		if (!c->bad && ending.first <= ending.last && ending.last < now && history_learn(h, ending))
			new = true;
	}
	/* Last: who is told of an epoch is told of the end of that before, too */
	if (!c->bad && history_epoch(h, now))
		new = true;
	return new;
}
