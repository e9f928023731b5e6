// SPDX-License-Identifier: GPL-2.0-or-later
/* A parser that believes its clients, for modules of three servers: what rescue points are to mend. */
#include <stdlib.h>
#include <string.h>

#include "parse.h"

struct request {
	struct request *next;
	long long nr;
	char text[256];
};

static struct request *requests;
static long long served;		/* so many of them */
static unsigned int slots[16];

static __attribute__((noinline)) int copy_in(const char *from, size_t n)
{
	char to[16];

	memcpy(to, from, n);
	__asm__ volatile("" : : "r"(to) : "memory");
	return to[0];
}

long long seeded_parse(const char *text, size_t size)
{
	struct request *r;
	char *argument;
	long n;

	/* One that was half done is in neither of them */
	if (size >= sizeof(r->text) || (requests ? requests->nr : 0) != served)
		return -1;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -1;
	/* What is half done when it faults */
	r->nr = ++served;
	r->next = requests;
	requests = r;
	memcpy(r->text, text, size);
	/* Nobody asks whether it is there, as in CVE-2009-4019: a NULL pointer */
	argument = strchr(r->text, '=');
	*argument++ = '\0';
	n = strtol(argument, &argument, 10);
	if (!strcmp(r->text, "copy"))
		/* A length from the client, as in CVE-2002-0392 */
		copy_in(argument, n);
	else if (!strcmp(r->text, "slot"))
		slots[n]++;
	else if (!n)
		abort();
	return served;
}
