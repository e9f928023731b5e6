// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * counter: counts to ten and faults at five. Its next generation, the same process, counts on.
 *
 * The smallest restartable program: register, keep what matters in a state area, go on from it.
 */
#include <perdure.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

struct state {
	int count;
};

int main(int argc, char **argv)
{
	struct reg_info info = { 0 };
	struct state *s;

	(void)argc;
	if (getreginfo(&info) == 1 && info.is_restarted)
		printf("generation %d: %s at address %#llx\n", (int)info.generation,
		       strsignal(info.signo), (unsigned long long)info.fault_addr);
	else if (reregist(realpath("/proc/self/exe", NULL), argv, environ, 0))
		perror("counter: a fault will be the end: reregist");

	s = perdure_state_open("counter", sizeof(*s), 1, NULL, NULL);
	if (!s) {
		perror("counter: state area");
		return 1;
	}

	while (s->count < 10) {
		s->count++;	/* one aligned word: never torn, no update call needed */
		printf("pid %d counts %d\n", (int)getpid(), s->count);
		fflush(stdout);
		if (s->count == 5)
			*(volatile int *)0 = 0;
	}
	return 0;
}
