/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Words as the kernel writes them, and paths */
#ifndef WORDS_H
#define WORDS_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

/* The next byte, of which \ooo stands for what would be in the way; returns what is behind it. */
const char *unescape(const char *s, unsigned char *c);

/* A path that does not depend on the working directory, allocated; NULL with errno. */
char *absolute(const char *path);

/* All of a file or a pipe that does not end too late, with a 0 behind it. Its length, or -1. */
ssize_t read_all(int fd, char *buf, size_t size);
ssize_t read_file(const char *path, char *buf, size_t size);

/*
 * A file with what print() writes, in place of the one that is there; with .new at its end while it is written. @durable: over a loss of
 * power, too. False with errno: it is as it was.
 */
bool replace_file(const char *path, bool durable, void (*print)(FILE *to));

#endif
