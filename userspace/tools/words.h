/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Words as the kernel writes them, and paths */
#ifndef WORDS_H
#define WORDS_H

/* The next byte, of which \ooo stands for what would be in the way; returns what is behind it. */
const char *unescape(const char *s, unsigned char *c);

/* A path that does not depend on the working directory, allocated; NULL with errno. */
char *absolute(const char *path);

#endif
