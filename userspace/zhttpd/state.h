/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What zhttpd must know after a fault, beside the library's books of its connections: it lives in state areas,
 * everything else is computed from it.
 */
#ifndef ZHTTPD_STATE_H
#define ZHTTPD_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPNFILENAME_MAX 1024

/*
 * The states of a request (the paper's Figure 12), in the order in which it passes through them. A fault rolls it
 * back to CONNECTION_ACCEPTED: the request is read again. From EXPNFILENAME_RECORDED on the answer is decided, and only
 * its remaining bytes are sent. The file is opened before the record, not after it as in the paper, because the record
 * holds what the header says about the file.
 */
enum http_state {
	SLOT_FREE,
	CONNECTION_ACCEPTED,
	REQUEST_READ,
	REQUEST_PARSED,
	FILE_OPENED,			/* the paper maps it; sendfile needs no mapping */
	EXPNFILENAME_RECORDED,
	SOME_RESPONSE_SENT,
	RESPONSE_SENDING_COMPLETED,
	CONNECTION_CLOSING,		/* our side is shut down; theirs is read to its end */
	TLS_HANDSHAKE,			/* before CONNECTION_ACCEPTED, where there is TLS; what it knows is in memory */
};

enum http_method { METHOD_OTHER, METHOD_GET, METHOD_HEAD };

/*
 * The answer to a request (the paper's Figure 10), the tag of its connection. Of the paper's descriptor, stage and
 * bytes_sent the library has the books. Its header is computed from these alone.
 */
struct httpd_state_var {
	uint64_t number;		/* of the answers of the connection, from 1; if it is not the present one's, it means nothing */
	uint64_t request_length;	/* bytes of input that it answers */
	uint8_t method, keep_alive, http10;
	int32_t status;
	int32_t file_fd;		/* -1: no file is sent */
	uint64_t file_dev, file_ino;	/* which one it is */
	int64_t file_size, mtime_sec, mtime_nsec, date;
	int64_t first, length;		/* what of the file is the body */
	char expnfilename[EXPNFILENAME_MAX];
};

#define STATE_LAYOUT	2		/* to be changed with the structures of this file */

struct global_state_var {
	int32_t root_fd;
	int32_t serving_fd;		/* the connection being worked on, -1: none */
	uint32_t stopping;		/* how many SIGTERMs came: a fault must not make us forget */
};

/* Where the test build strikes; see fault.c. */
#ifdef ZHTTPD_FAULTS
void fault_at_stage(enum http_state stage);
void fault_at_input(uint64_t bytes);
void fault_at_path(const char *path);
size_t fault_at_sent(uint64_t sent, size_t count);
#else
static inline void fault_at_stage(enum http_state stage) { (void)stage; }
static inline void fault_at_input(uint64_t bytes) { (void)bytes; }
static inline void fault_at_path(const char *path) { (void)path; }
static inline size_t fault_at_sent(uint64_t sent, size_t count) { (void)sent; return count; }
#endif

#endif
