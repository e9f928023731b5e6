/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the kernel does not know of points: the paths of their programs, and the files of rescue.d that they are of. Noted until the system
 * ends: root's in /run/perdure, a user's in XDG_RUNTIME_DIR, if there is one.
 */
#ifndef RESCUE_NOTES_H
#define RESCUE_NOTES_H

#include <jansson.h>
#include <stdbool.h>

#include "config.h"

#define FILE_NUMBER	72	/* bytes */

struct notes {
	json_t *all;
	int lock;	/* -1: they are only read */
	bool changed;
};

/* To look at them */
void notes_read(struct notes *notes);
/* To change them: others who want to wait until notes_end(), some seconds. false: it has been said that it took longer. */
bool notes_begin(struct notes *notes);
/* Writes what has changed, without those whose points are gone */
void notes_end(struct notes *notes);

/* Of a point as points_read() has it; NULL: nothing is known */
json_t *notes_of(const struct notes *notes, json_t *point);
/* "": it has none */
const char *note_text(const json_t *note, const char *key);
/* Of the point with that number; @file: file_number() */
void notes_put(struct notes *notes, long long id, const struct point *point, const char *file);

/* A file of rescue.d or a directory as notes have it, which may be gone; to be freed. NULL: it cannot be one of theirs. */
char *notes_place(const char *path);
/* Is it of that file, or of one in that directory? */
bool note_is_of(const json_t *note, const char *place);

/* Which file it is, in the words of /proc/PID/maps: other calls have other numbers on some file systems. "": not known. */
void file_number(int fd, char number[FILE_NUMBER]);
/* Does a process execute that one? If it cannot be seen of all that a point of ours may be for: yes. */
bool file_is_executed(const char *number);

#endif
