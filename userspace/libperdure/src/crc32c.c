// SPDX-License-Identifier: LGPL-2.1-or-later
#include "crc32c.h"

#include <string.h>

#define POLYNOMIAL 0x82f63b78u	/* of Castagnoli, bits reversed */

static uint32_t slowly(uint32_t crc, const unsigned char *p, size_t len)
{
	int bit;

	while (len--) {
		crc ^= *p++;
		for (bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
	}
	return crc;
}

#if defined(__x86_64__)
#define TARGET "sse4.2"
#define CRC8(crc, word) __builtin_ia32_crc32di(crc, word)
#define CRC1(crc, byte) __builtin_ia32_crc32qi(crc, byte)

static int has_instruction(void)
{
	return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

#define TARGET "+crc"
#define CRC8(crc, word) __builtin_aarch64_crc32cx(crc, word)
#define CRC1(crc, byte) __builtin_aarch64_crc32cb(crc, byte)

static int has_instruction(void)
{
	return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}
#endif

#ifdef TARGET
__attribute__((target(TARGET))) static uint32_t by_instruction(uint32_t crc, const unsigned char *p, size_t len)
{
	uint64_t word[4];

	for (; len >= sizeof(word); len -= sizeof(word), p += sizeof(word)) {
		memcpy(word, p, sizeof(word));
		crc = CRC8(crc, word[0]);
		crc = CRC8(crc, word[1]);
		crc = CRC8(crc, word[2]);
		crc = CRC8(crc, word[3]);
	}
	while (len--)
		crc = CRC1(crc, *p++);
	return crc;
}
#else
#define by_instruction slowly

static int has_instruction(void)
{
	return 0;
}
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t len)
{
	return ~(has_instruction() ? by_instruction : slowly)(~crc, data, len);
}
