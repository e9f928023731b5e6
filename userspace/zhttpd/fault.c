// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The faults of zhttpd-faults, the test build: a NULL dereference at the points that ZHTTPD_FAULT lists.
 *
 *	sent:N		after byte N of an answer
 *	input:N		after byte N of a request
 *	STATE:N		when a request enters STATE for the Nth time since the first start
 *	path:PATH	whenever a request for PATH (without its first slash) has been parsed
 *
 * separated by commas. All but path strike once: what has struck is remembered in a state area.
 * ZHTTPD_FAULT_DELAY: milliseconds to wait before.
 */
#include <perdure.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

#define POINTS 32

static const char *const stage_names[] = {
	[SLOT_FREE] = "slot_free",
	[CONNECTION_ACCEPTED] = "connection_accepted",
	[REQUEST_READ] = "request_read",
	[REQUEST_PARSED] = "request_parsed",
	[FILE_OPENED] = "file_opened",
	[EXPNFILENAME_RECORDED] = "expnfilename_recorded",
	[SOME_RESPONSE_SENT] = "some_response_sent",
	[RESPONSE_SENDING_COMPLETED] = "response_sending_completed",
	[CONNECTION_CLOSING] = "connection_closing",
	[TLS_HANDSHAKE] = "tls_handshake",
};

static struct {
	bool struck[POINTS];
	uint64_t entered[sizeof(stage_names) / sizeof(stage_names[0])];
} *memory;

static struct point {
	char kind[32], path[256];
	uint64_t at;
} points[POINTS];

static int num_points = -1;

static void read_points(void)
{
	const char *value = getenv("ZHTTPD_FAULT");
	char *spec = strdup(value ? value : "");

	num_points = 0;
	for (char *s = strtok(spec, ","); s; s = strtok(NULL, ",")) {
		struct point *p = &points[num_points];
		bool known = false;

		if (num_points == POINTS || sscanf(s, "%31[^:]:%255s", p->kind, p->path) != 2)
			goto bad;
		p->at = strtoull(p->path, NULL, 10);
		for (size_t i = 0; i < sizeof(stage_names) / sizeof(stage_names[0]); i++)
			known |= !strcmp(p->kind, stage_names[i]);
		if (!strcmp(p->kind, "path") || ((known || !strcmp(p->kind, "sent") || !strcmp(p->kind, "input")) && p->at)) {
			num_points++;
			continue;
		}
bad:
		fprintf(stderr, "ZHTTPD_FAULT: %s: no such point\n", s);
		exit(2);
	}
	free(spec);
	memory = perdure_state_open("zhttpd-faults", sizeof(*memory), sizeof(*memory), NULL, NULL);
	if (!memory) {
		perror("ZHTTPD_FAULT: state area");
		exit(1);
	}
}

static void crash(int point)
{
	memory->struck[point] = strcmp(points[point].kind, "path");
	if (getenv("ZHTTPD_FAULT_DELAY"))
		usleep(1000 * atoi(getenv("ZHTTPD_FAULT_DELAY")));
	*(volatile int *)NULL = 0;
}

static struct point *armed(int i, const char *kind)
{
	if (num_points < 0)
		read_points();
	return i < num_points && !memory->struck[i] && !strcmp(points[i].kind, kind) ? &points[i] : NULL;
}

void fault_at_stage(enum http_state stage)
{
	if (num_points < 0)
		read_points();
	memory->entered[stage]++;
	for (int i = 0; i < num_points; i++)
		if (armed(i, stage_names[stage]) && points[i].at == memory->entered[stage])
			crash(i);
}

void fault_at_input(uint64_t bytes)
{
	for (int i = 0; i < POINTS; i++)
		if (armed(i, "input") && points[i].at <= bytes)
			crash(i);
}

void fault_at_path(const char *path)
{
	for (int i = 0; i < POINTS; i++)
		if (armed(i, "path") && !strcmp(points[i].path, path))
			crash(i);
}

/* Shortens what is about to be sent so that it ends where a fault is to strike. */
size_t fault_at_sent(uint64_t sent, size_t count)
{
	for (int i = 0; i < POINTS; i++) {
		struct point *p = armed(i, "sent");

		if (p && p->at == sent)
			crash(i);
		if (p && p->at > sent && p->at - sent < count)
			count = p->at - sent;
	}
	return count;
}
