/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * CRC-32C of what is written, in pieces of any size. The library links with nothing but libc, so it has its own: the processor's
 * instruction, which is what a library of checksums would use, or eight bits at a time.
 */
#ifndef CRC32C_H
#define CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(uint32_t crc, const void *data, size_t len);

#endif
