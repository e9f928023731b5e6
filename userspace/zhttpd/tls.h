/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TLS: the handshake is OpenSSL's, everything after it the kernel's. Only a handshake is lost by a fault. */
#ifndef ZHTTPD_TLS_H
#define ZHTTPD_TLS_H

#include <stdlib.h>

struct tls_handshake;

enum tls_result { TLS_DONE, TLS_READ, TLS_WRITE, TLS_FAILED };

void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define die(...) do { say(__VA_ARGS__); exit(1); } while (0)

/* The files that are read when they are needed first; ends the program where it cannot have TLS. */
void tls_files(const char *cert, const char *key);
/* Reads them, or ends the program. */
void tls_start(void);
/* A step of a handshake, the first if *@h is NULL. */
enum tls_result tls_handshake(struct tls_handshake **h, int fd);
void tls_drop(struct tls_handshake **h);

#endif
