/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What zhttpd must know after a fault: all of it lives in libperdure's state area, everything else is computed
 * from it.
 */
#ifndef ZHTTPD_STATE_H
#define ZHTTPD_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPNFILENAME_MAX 1024

/*
 * The states of a request (the paper's Figure 12), in the order in which it passes through them. A fault before
 * EXPNFILENAME_RECORDED rolls it back to CONNECTION_ACCEPTED: the request is read again. From there on the answer
 * is decided, and only its remaining bytes are sent. The file is opened before the record, not after it as in
 * the paper, because the record holds what the header says about the file.
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
 * One connection (the paper's Figure 10). Of bytes_sent only the start is kept: the kernel counts what is written,
 * and written - response_start is exact where a variable of ours could be one write behind.
 */
struct httpd_state_var {
	uint32_t conn_stage;		/* enum http_state */
	int32_t conn_fd;
	uint64_t requests_end;		/* input up to here has been decided on: never parse it again */
	uint64_t suspected_at;		/* its bytes read and written when it was last suspected of a fault */

	/* The answer, from EXPNFILENAME_RECORDED on. Its header is computed from these alone. */
	uint64_t response_start;	/* the connection's count of bytes written when it began */
	uint8_t method, keep_alive, http10;
	int32_t status;
	int32_t file_fd;		/* -1: no file is sent */
	int64_t file_size, mtime_sec, mtime_nsec, date;
	int64_t first, length;		/* what of the file is the body */
	char expnfilename[EXPNFILENAME_MAX];
};

struct global_state_var {
	int32_t listen_fd;
	int32_t epoll_fd;
	int32_t root_fd;
	int32_t num_connects;
	int32_t max_connects;
	int32_t slots_used;		/* no connection is beyond this slot */
	int32_t serving_fd;		/* the connection being worked on, -1: none */
	uint32_t stopping;		/* how many SIGTERMs came: a fault must not make us forget */
	bool zero_loss;			/* the kernel's counts are true for every connection */
};

struct state_area {
	struct global_state_var global;
	struct httpd_state_var conn[];
};

#define STATE_LAYOUT	1		/* to be changed with the structures above */

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
