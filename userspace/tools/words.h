/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Words as the kernel writes them, and paths */
#ifndef WORDS_H
#define WORDS_H

#include <sys/types.h>

/* The next byte, of which \ooo stands for what would be in the way; returns what is behind it. */
const char *unescape(const char *s, unsigned char *c);

/* A path that does not depend on the working directory, allocated; NULL with errno. */
char *absolute(const char *path);

/* All of a file or a pipe that does not end too late, with a 0 behind it. Its length, or -1. */
ssize_t read_all(int fd, char *buf, size_t size);
ssize_t read_file(const char *path, char *buf, size_t size);

#endif
