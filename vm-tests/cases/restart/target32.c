// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A 32-bit program, without a library, which few systems have.
 *
 * target32 first PATH: holds what it has read, registers PATH and faults. target32 again: its next generation.
 * Anything else: only its exit status, 42, counts.
 */
#include <perdure/zlr.h>

typedef const char *string;

enum {
	NR_EXIT = 1, NR_WRITE = 4, NR_CLOSE = 6, NR_PIPE = 42, NR_DUP2 = 63,
	NR_REREGIST = 500, NR_GETREGINFO = 501, NR_HREAD = 502, FD = 90,
};

static long call(long nr, long a, long b, long c, long d, long e)
{
	long ret;

	__asm__ volatile("int $0x80" : "=a"(ret) : "a"(nr), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e) : "memory");
	return ret;
}

static void leave(int status)
{
	call(NR_EXIT, status, 0, 0, 0, 0);
	__builtin_unreachable();
}

static int same(string a, string b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* Exits with the number of the step that went wrong. */
static void check(int step, int ok)
{
	if (!ok)
		leave(step);
}

static void held(int step)
{
	char buf[8] = "";

	check(step, call(NR_HREAD, FD, (long)buf, sizeof(buf) - 1, 0, 0) == 4 && same(buf, "held"));
}

__attribute__((used)) static void program(long argc, string *argv)
{
	string next[] = { argv[0], "again", "32", 0 }, env[] = { "GIVEN=1", 0 };
	struct reg_info info;
	int fds[2];

	if (argc == 3 && same(argv[1], "first")) {
		check(1, !call(NR_PIPE, (long)fds, 0, 0, 0, 0));
		check(2, call(NR_WRITE, fds[1], (long)"held", 4, 0, 0) == 4);
		check(3, call(NR_DUP2, fds[0], FD, 0, 0, 0) == FD && !call(NR_CLOSE, fds[0], 0, 0, 0, 0));
		check(4, call(NR_GETREGINFO, (long)&info, sizeof(info), 0, 0, 0) == 0);
		check(5, call(NR_REREGIST, (long)argv[2], (long)next, (long)env, 32, 0) == 0);
		held(6);
		*(volatile int *)0 = 0;
	}
	if (argc == 3 && same(argv[1], "again")) {
		check(7, argv[argc + 1] && same(argv[argc + 1], "GIVEN=1") && !argv[argc + 2]);
		check(8, call(NR_GETREGINFO, (long)&info, sizeof(info), 0, 0, 0) == 1);
		check(9, info.is_restarted && info.generation == 2);
		check(10, info.child_id == 32);
		check(11, info.signo == 11 && info.fault_addr == 0);
		check(12, info.suspect_fd == FD);
		held(13);
	}
	leave(42);
}

/* The stack, as the kernel has made it, is the argument. */
__asm__(".globl _start\n_start:\n\tmov %esp, %eax\n\tlea 4(%eax), %edx\n\tpush %edx\n\tpush (%eax)\n\tcall program\n");
