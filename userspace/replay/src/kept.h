/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A kernel with Perdure restarts a registered process in place after a fault: a new program begins, with all files of the old one
 * open (perdure(7)). libreplay writes down which of them are its own, in a file in memory, and the new generation takes listeners and
 * clients' connections over and closes the rest. On another kernel, or when the process is not registered, nothing here does anything.
 */
#ifndef REPLAY_KEPT_H
#define REPLAY_KEPT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

enum kept_kind {
	KEPT_NONE,
	KEPT_FILE,		/* to be closed */
	KEPT_LISTENER,
	KEPT_CLIENT,
};

/* What a client's connection of the old generation is good for */
enum kept_state {
	KEPT_IDLE,		/* all that came has been answered; a request may wait in the socket */
	KEPT_ASKED,		/* a whole request has been read, and nothing of an answer been sent */
	KEPT_BROKEN,		/* half a request read, or half an answer sent */
};

/* Before anything is opened; closes what was open and is to be closed, above all the log, which is locked by it */
void kept_begin(const char *log);
/* Of a connection: all that has come so far is answered */
void kept_note(int fd, enum kept_kind kind);
void kept_forget(int fd);
/* What another library opens for itself in between: events, pipes */
void kept_watch(void);
void kept_watched(void);
/* All is closed */
void kept_end(void);

/* The old generation's listener of this address, or -1 */
int kept_listener(const struct sockaddr *address, socklen_t len);
/* The listeners that nobody wants any more */
void kept_close_listeners(void);
/* Each of the old generation's connections with clients, once: or -1 */
int kept_client(enum kept_state *state);

/*
 * Of a connection: a request has been read; an answer of which @said bytes are known, the others being the same in each, is given to
 * the HTTP library; it has been sent.
 */
void kept_asked(int fd);
void kept_answer(int fd, size_t said);
void kept_answered(int fd);

#endif
