// SPDX-License-Identifier: GPL-2.0-or-later
/* Functions of SQL with mistakes, for MariaDB. Of its structures they need none, so its headers are not needed either. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic long long calls;

#define FUNCTION(name)								\
	char name##_init(void *init, void *args, char *message);		\
	char name##_init(__attribute__((unused)) void *init, __attribute__((unused)) void *args,	\
			 __attribute__((unused)) char *message) { return 0; }	\
	long long name(void *init, void *args, char *null, char *error);	\
	long long name(__attribute__((unused)) void *init, __attribute__((unused)) void *args,	\
		       __attribute__((unused)) char *null, __attribute__((unused)) char *error)

/* How often one of them has been called, without those that were undone */
FUNCTION(fault_none)
{
	return ++calls;
}

FUNCTION(fault_null)
{
	calls++;
	*(volatile char *)NULL = 1;
	return 0;
}

FUNCTION(fault_abort)
{
	calls++;
	abort();
}

static __attribute__((noinline)) int copy_in(const char *from, size_t n)
{
	char to[16];

	memcpy(to, from, n);
	__asm__ volatile("" : : "r"(to) : "memory");
	return to[0];
}

FUNCTION(fault_overflow)
{
	static const char text[200];

	calls++;
	return copy_in(text, sizeof(text));
}
