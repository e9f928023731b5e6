// SPDX-License-Identifier: GPL-2.0-or-later
/* Functions of several shapes, which fault when they are told to; a line of numbers for each that is called. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT	__attribute__((noinline, noipa, visibility("default")))

static volatile int zero;

EXPORT long plain(const char *how)
{
	/* It hangs */
	while (*how == 'h' && !zero)
		;
	return *how == 'f' ? 100 / zero : 1;
}

EXPORT long by_tail(const char *how)
{
	return plain(how);
}

/* A table of jumps */
EXPORT long by_switch(const char *how)
{
	switch (how[1]) {
	case 'a': return plain(how) + 10;
	case 'b': return plain(how) * 20;
	case 'c': return plain(how) - 30;
	case 'd': return plain(how) ^ 40;
	case 'e': return plain(how) | 50;
	case 'f': puts(how); return 3;
	case 'g': return plain(how) + plain(how);
	default: return 0;
	}
}

EXPORT long with_cold(const char *how)
{
	if (__builtin_expect(*how == 'f', 0)) {
		fprintf(stderr, "it faults now\n");
		abort();
	}
	return 2;
}

EXPORT void never(void)
{
	for (;;)
		__asm__ volatile("pause");
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const long a = plain(argv[i]), b = by_tail(argv[i]), c = by_switch(argv[i]), d = with_cold(argv[i]);

		printf("%ld %ld %ld %ld\n", a, b, c, d);
	}
	if (argc == 1)
		never();
	return 0;
}
