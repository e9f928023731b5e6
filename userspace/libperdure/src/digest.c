// SPDX-License-Identifier: LGPL-2.1-or-later
#include "digest.h"

#include <stdbool.h>
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

static uint32_t value_slowly(const struct digest *d)
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

#ifdef __x86_64__
#include <immintrin.h>

#define AES	__attribute__((target("aes,avx")))

AES static void by_aes(uint64_t *lanes, const char *p, size_t n)
{
	__m128i *state = (__m128i *)lanes, a = _mm_loadu_si128(state), b = _mm_loadu_si128(state + 1),
		c = _mm_loadu_si128(state + 2), d = _mm_loadu_si128(state + 3);
	const __m128i *from = (const __m128i *)p;
	size_t i, part;

	for (; n; n -= part) {
		part = n % 16 ? 1 : 16;
#pragma GCC unroll 16
		for (i = 0; i < part; i++, from += 4) {
			a = _mm_aesenc_si128(a, _mm_loadu_si128(from));
			b = _mm_aesenc_si128(b, _mm_loadu_si128(from + 1));
			c = _mm_aesenc_si128(c, _mm_loadu_si128(from + 2));
			d = _mm_aesenc_si128(d, _mm_loadu_si128(from + 3));
		}
	}
	_mm_storeu_si128(state, a);
	_mm_storeu_si128(state + 1, b);
	_mm_storeu_si128(state + 2, c);
	_mm_storeu_si128(state + 3, d);
}

AES static uint32_t value_by_aes(const struct digest *d)
{
	__m128i sum = _mm_set_epi64x(key[0], d->len);
	int i;

	for (i = 0; i < 4; i++)
		sum = _mm_aesenc_si128(sum, _mm_loadu_si128((const __m128i *)d->lanes + i));
	if (d->len % DIGEST_STRIPE)
		for (i = 0; i < 4; i++)
			sum = _mm_aesenc_si128(sum, _mm_loadu_si128((const __m128i *)d->rest + i));
	/* Until each byte depends on all of what came last */
	for (i = 0; i < 3; i++)
		sum = _mm_aesenc_si128(sum, _mm_set_epi64x(key[1], key[2]));
	return _mm_cvtsi128_si32(sum);
}

static bool has_aes(void)
{
	return __builtin_cpu_supports("aes") && __builtin_cpu_supports("avx");
}
#else
#define by_aes		slowly
#define value_by_aes	value_slowly

static bool has_aes(void)
{
	return false;
}
#endif

static void stripes(uint64_t *lanes, const char *p, size_t n)
{
	if (has_aes())
		by_aes(lanes, p, n);
	else
		slowly(lanes, p, n);
}

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
	return has_aes() ? value_by_aes(d) : value_slowly(d);
}
