/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A server's file of options */
#ifndef REPLAY_OPTIONS_H
#define REPLAY_OPTIONS_H

#include "core.h"
#include "world.h"

struct service {
	char *name;
	char *url;		/* without the last "/" */
	char *ca;		/* a file of the certificates that https may be signed by, NULL: the system's */
	uint16_t member;	/* OUTSIDE: of no domain, or another */
	bool inside;		/* a member of the domain */
	bool plain;		/* not one of ours: it knows Idempotency-Key */
	uint64_t timeout;	/* ns that a call may take, 0 for ever */
	const char *domain_key;	/* of a member */
	struct service *next;
};

struct options {
	char *name;
	char *log;
	char *listen;		/* for clients */
	char *control;		/* a socket's path, for replayctl */
	char *metrics;
	char *cors;		/* whose pages may call from a browser: an origin, or "*" */
	char *verdicts;		/* the file of verdict records, beside the control socket */
	char *domain_listen;	/* for the other members */
	struct bytes domain_key;
	struct service *services;
	uint64_t connections;
	struct config config;	/* without peers and methods */
};

/* 0, or a negative errno, and @error says what is wrong, and where */
int options_read(struct options *o, const char *path, char error[ERROR_MAX]);
void options_free(struct options *o);

#endif
