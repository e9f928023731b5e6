// SPDX-License-Identifier: LGPL-2.1-or-later
#include "digest.h"

#include <string.h>

/* Fractional digits of pi, so that zeros do not stay zeros */
static const uint64_t key[] = { 0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89,
				0x452821e638d01377, 0xbe5466cf34e90c6c, 0xc0ac29b7c97c50dd, 0x3f84d5b5b5470917 };

/* Whole stripes, by multiplication */
static void slowly(uint64_t *lanes, const char *p, size_t n)
{
	uint64_t word;
	int i;

	for (; n--; p += DIGEST_STRIPE) {
		for (i = 0; i < DIGEST_STRIPE / 8; i++) {
			memcpy(&word, p + 8 * i, sizeof(word));
			lanes[i] = (lanes[i] ^ word ^ key[i]) * 0x9e3779b97f4a7c15;
			lanes[i] ^= lanes[i] >> 32;
		}
	}
}

#ifdef __x86_64__
#include <immintrin.h>

__attribute__((target("aes,avx"))) static void by_aes(uint64_t *lanes, const char *p, size_t n)
{
	__m128i *state = (__m128i *)lanes, lane[4];
	const __m128i *from = (const __m128i *)p;
	int i;

	for (i = 0; i < 4; i++)
		lane[i] = _mm_loadu_si128(state + i);
#pragma GCC unroll 16
	for (; n; n--, from += 4) {
		lane[0] = _mm_aesenc_si128(lane[0], _mm_loadu_si128(from));
		lane[1] = _mm_aesenc_si128(lane[1], _mm_loadu_si128(from + 1));
		lane[2] = _mm_aesenc_si128(lane[2], _mm_loadu_si128(from + 2));
		lane[3] = _mm_aesenc_si128(lane[3], _mm_loadu_si128(from + 3));
	}
	for (i = 0; i < 4; i++)
		_mm_storeu_si128(state + i, lane[i]);
}

static void stripes(uint64_t *lanes, const char *p, size_t n)
{
	if (__builtin_cpu_supports("aes") && __builtin_cpu_supports("avx"))
		by_aes(lanes, p, n);
	else
		slowly(lanes, p, n);
}
#else
#define stripes slowly
#endif

void digest_add(struct digest *d, const void *data, size_t len)
{
	size_t have = d->len % DIGEST_STRIPE, part;
	const char *p = data;

	d->len += len;
	if (have) {
		part = DIGEST_STRIPE - have < len ? DIGEST_STRIPE - have : len;
		memcpy(d->rest + have, p, part);
		if (have + part < DIGEST_STRIPE)
			return;
		stripes(d->lanes, d->rest, 1);
		memset(d->rest, 0, sizeof(d->rest));
		p += part;
		len -= part;
	}
	stripes(d->lanes, p, len / DIGEST_STRIPE);
	if (len % DIGEST_STRIPE)
		memcpy(d->rest, p + len / DIGEST_STRIPE * DIGEST_STRIPE, len % DIGEST_STRIPE);
}

uint32_t digest_value(const struct digest *d)
{
	const int words = d->len % DIGEST_STRIPE ? DIGEST_STRIPE / 8 : 0;
	uint64_t sum = d->len, word;
	int i;

	for (i = 0; i < DIGEST_STRIPE / 8; i++) {
		sum = (sum ^ d->lanes[i]) * 0x9e3779b97f4a7c15;
		sum ^= sum >> 32;
	}
	for (i = 0; i < words; i++) {
		memcpy(&word, d->rest + 8 * i, sizeof(word));
		sum = (sum ^ word) * 0xbf58476d1ce4e5b9;
		sum ^= sum >> 32;
	}
	return (sum * 0x9e3779b97f4a7c15) >> 32;
}
