/* SPDX-License-Identifier: GPL-2.0-or-later */
/* HTTP/1.1 without any I/O on the connection: bytes to request, request to answer, answer to header. */
#ifndef ZHTTPD_HTTP_H
#define ZHTTPD_HTTP_H

#include "state.h"

#define REQUEST_MAX	8192		/* request line and headers: 431 beyond, 414 if the line alone is */
#define TARGET_MAX	2048		/* request target: 414 beyond, or where the path does not fit */
#define HEADER_MAX	(3 * EXPNFILENAME_MAX + 1024)	/* a Location of nothing but %xx fits */

struct slice {
	const char *p;			/* NULL: absent */
	size_t len;
};

struct request {
	size_t length;			/* bytes of input it takes */
	int status;			/* an error to answer with, 0: none found yet */
	enum http_method method;
	bool http10, keep_alive;
	char path[EXPNFILENAME_MAX];	/* decoded, relative to the root */
	struct slice range, if_range, if_none_match, if_modified_since;
};

/* Returns true when @rq is a whole request (or certainly not one: see status), false: more bytes are needed. */
bool http_parse(const char *buf, size_t len, struct request *rq);

/* Decides the answer; opens the file where one is sent. */
void http_answer(int root_fd, const struct request *rq, struct httpd_state_var *v);

/* Writes the header of the answer, and the text that follows it where no file is sent; returns their length. */
size_t http_header(const struct httpd_state_var *v, char out[HEADER_MAX]);

#endif
