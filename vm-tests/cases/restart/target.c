// SPDX-License-Identifier: GPL-2.0-or-later
/* A program to be restarted into, linked in every way: its exit code says how it was started. */
#include <perdure/zlr.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct reg_info info;

	(void)argv;
	if (syscall(501, &info, sizeof(info), 0) != 1)
		return 40;
	return info.generation == 2 && info.is_restarted && argc == 3 ? 42 : 41;
}
