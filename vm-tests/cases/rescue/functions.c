// SPDX-License-Identifier: GPL-2.0-or-later
/* Functions of several shapes, which fault when they are told to; a line of numbers for each that is called. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT	__attribute__((noinline, noipa, visibility("default")))

static volatile int zero;

/* In one of the programs errno is farther from the thread pointer */
#ifdef OWN
static __thread volatile char own[OWN];
#endif

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

/* A table of jumps with the stack as at the entry, and a fault behind it: the function is not left by that jump */
EXPORT long leaf(const char *how, long *done)
{
	switch (how[1]) {
	case 'a': done[0] = 1; break;
	case 'b': done[1] = 20; break;
	case 'c': done[2] += 300; break;
	case 'd': done[0] -= done[1]; break;
	case 'e': done[1] ^= 5; break;
	case 'f': done[2] = done[0]; break;
	case 'g': done[0] = done[2] * 3; break;
	}
	return *how == 'f' ? 100 / zero : done[0] + done[1] + done[2];
}

/* It returns in a part of it that is elsewhere, and whose symbol is never exported */
long aside(long n);
__asm__(".text\n"
	".globl aside\n"
	".type aside, @function; .type aside.cold, @function\n"
	"aside: test %rdi, %rdi; js aside.cold; mov $1, %eax; ret\n"
	".size aside, . - aside\n"
	".section .text.unlikely, \"ax\", @progbits\n"
	"aside.cold: mov $2, %eax; ret\n"
	".size aside.cold, . - aside.cold\n"
	".text\n");

/* Loops: to its first instruction, to the one behind a mark, which then faults, and to the mark; and one that begins with a breakpoint */
long loop(long n), marked(long n), to_mark(long n), trap(long n);
__asm__(".text\n"
	".globl loop, marked, to_mark, trap\n"
	".type loop, @function; .type marked, @function; .type to_mark, @function; .type trap, @function\n"
	"loop: sub $1, %rdi; jg loop; ret\n"
	".size loop, . - loop\n"
	"marked: endbr64\n"
	"1: sub $1, %rdi; jg 1b; xor %ecx, %ecx; div %ecx; ret\n"
	".size marked, . - marked\n"
	"to_mark: endbr64; sub $1, %rdi; jg to_mark; ret\n"
	".size to_mark, . - to_mark\n"
	"trap: int3; ret\n"
	".size trap, . - trap\n");

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
	(void)zero;	/* else it may begin with what aligns the loop, on which there can be no breakpoint */
	for (;;)
		__asm__ volatile("pause");
}

/* ---- For rescuectl suggest: these return an error on some path */

EXPORT int number(const char *how)
{
	return how[1] < '0' || how[1] > '9' ? -7 : how[1] - '0';
}

EXPORT char *second(const char *how)
{
	if (!*how || !how[1])
		return NULL;
	return strdup(how + 1);
}

/* What it has printed is not undone */
EXPORT int prints(const char *how)
{
	const int n = number(how);

	if (n < 0 || puts(how) < 0 || fflush(stdout))
		return -8;
	return n + second(how)[0];
}

/* What it returns is no error */
EXPORT double half(const char *how)
{
	return *how == 's' ? -1 : number(how) / 2;
}

/* Results that are not in a register for numbers, or are wider, and another name of one */
EXPORT struct wide { long parts[3]; } wide(const char *how)
{
	return (struct wide){ { *how } };
}

EXPORT __int128 doubled(const char *how)
{
	return (__int128)*how << 64;
}

EXPORT double halved(const char *how) __attribute__((alias("half")));

/* Those that are there, though they are no errors */
EXPORT void nothing(void)
{
	zero = 0;
}

EXPORT _Bool is_told(const char *how)
{
	return *how;
}

EXPORT char first(const char *how)
{
	return *how;
}

int main(int argc, char **argv)
{
#ifdef OWN
	own[1] = 1;
#endif
	for (int i = 1; i < argc; i++) {
		/* Until there is a line */
		if (*argv[i] == 'w') {
			fflush(stdout);
			getchar();
			continue;
		}
		if (*argv[i] == 'e') {
			errno = EAGAIN;
			printf("%ld ", plain(argv[i] + 1));
			printf("%d\n", errno);
			continue;
		}
		if (*argv[i] == 's') {
			printf("# %d %s %d %f\n", number(argv[i]), second(argv[i]), prints(argv[i]), half(argv[i]));
			continue;
		}
		if (*argv[i] == 'l') {
			long done[3] = { 5, 6, 7 }, returned = leaf(argv[i] + 1, done);

			printf("%ld %ld %ld %ld\n", returned, done[0], done[1], done[2]);
			continue;
		}
		if (*argv[i] == 'c') {
			printf("%ld %ld\n", aside(1), aside(-1));
			continue;
		}
		if (*argv[i] == 'm') {
			printf("%ld\n", marked(3));
			continue;
		}
		const long a = plain(argv[i]), b = by_tail(argv[i]), c = by_switch(argv[i]), d = with_cold(argv[i]);

		printf("%ld %ld %ld %ld\n", a, b, c, d);
	}
	if (argc == 1)
		never();
	return 0;
}
