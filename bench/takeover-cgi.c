// SPDX-License-Identifier: GPL-2.0-or-later
/* A program of a web server that answers so many random bytes as its query says, each of them drawn, as WebStone's does. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(void)
{
	const char *query = getenv("QUERY_STRING");
	const long bytes = query ? atol(query) : 0;

	srand(time(NULL) ^ getpid());
	printf("Content-Type: text/plain\r\nContent-Length: %ld\r\n\r\n", bytes);
	for (long i = 0; i < bytes; i++)
		putchar('a' + rand() % 26);
	return 0;
}
