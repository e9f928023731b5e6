/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A digest of what is written, in pieces of any size: it tells apart what differs by accident, at a fraction of what a write costs. A
 * round of AES for 16 bytes does that, in four lanes that do not wait for each other. Libraries of hashes take four times as many
 * instructions. Digests are compared on the machine that has made them only.
 */
#ifndef DIGEST_H
#define DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define DIGEST_STRIPE	64

/* At first all zeros */
struct digest {
	uint64_t lanes[DIGEST_STRIPE / 8];
	char rest[DIGEST_STRIPE];	/* of a stripe that is not complete; zeros follow */
	uint64_t len;
};

void digest_add(struct digest *d, const void *data, size_t len);
uint32_t digest_value(const struct digest *d);

#endif
