/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef PARSE_H
#define PARSE_H

#include <stddef.h>

#define PARSE_ERROR "it cannot be parsed"

/* What a client sends, NAME=ARGUMENT. How many there have been, or -1 */
long long seeded_parse(const char *text, size_t size);

#endif
