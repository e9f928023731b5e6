/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Messages as HTTP/1.1. What clients may say is in docs/design/replay.md; in the domain, on a listener of its own and with the domain's
 * key, there is more:
 *
 *	Replay-Domain-Key: the key		Replay-From: the member's number
 *	Replay-Depends: member/epoch/lsn, ...	Replay-Endings: hexadecimal
 *	POST /replay/flush, with Replay-State: member/epoch/lsn; POST /replay/history, likewise; POST /replay/recovered
 */
#ifndef REPLAY_HTTP_H
#define REPLAY_HTTP_H

#include "options.h"

struct http;

/* What the control socket answers */
struct page {
	int status;
	const char *type;
	struct bytes body;
};

/* @ready: the log has been read, and the server is there */
typedef void (*page_fn)(void *arg, bool ready, const char *method, const char *path, struct page *page);

/*
 * The listeners: open, and answering "ask again" until http_serve(). NULL: @error says why.
 */
struct http *http_listen(const struct options *o, page_fn page, void *arg, char error[ERROR_MAX]);
void http_serve(struct http *http, struct server *server);
/* Nothing comes any more; what is being answered is answered. */
void http_close(struct http *http);

/* The environment's way to other servers: peers are struct service */
/* Before the first exchange */
void http_exchange_init(void);
void http_exchange(struct env *env, struct exchange *exchanges, unsigned int n);

#endif
