/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Verdict records of programs, which `perdurectl log` reads */
#ifndef COMMON_RECORD_H
#define COMMON_RECORD_H

/* /run/replay/cart.sock has /run/replay/cart.verdicts beside it; NULL: no memory */
char *record_beside(const char *socket);

/*
 * Adds a line, the keys of which are those of /proc/restart_log where they mean the same. Another file is begun when it is long. 0, or -1 and
 * errno.
 */
int record_add(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
