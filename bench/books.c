// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * books [guest] ROUNDS
 *
 * An exchange of a client and a server over TCP: a request of 100 bytes, and an answer. The server reads and writes plainly, by the calls
 * that hold and count, and by the books of connections, which look at each byte of the answer, too. Each side has its own connection, and
 * they alternate.
 */
#include <perdure.h>
#include <sys/wait.h>

#include "bench.h"
#include "tcp.h"

#define REQUEST		100
#define WARM_UP		16

enum { PLAIN, CALLS, BOOKS, NR_SIDES };

static const char *const side_name[NR_SIDES] = { "plain", "calls", "books" };
static const size_t sizes[] = { 1024, 65536 };
static char buf[65536];

static void serve(int fd, int side, size_t size)
{
	struct perdure_conns *conns = side == BOOKS ? perdure_conns_open("books", 0, 0) : NULL;
	struct perdure_conn *c = conns ? perdure_conn_open(conns, fd) : NULL;
	size_t held = 0, at;
	ssize_t n, w = 0;

	if (side == BOOKS && !c)
		die("the books");
	for (;;) {
		n = side == PLAIN ? read(fd, buf, sizeof(buf)) :
		    side == CALLS ? perdure_read(fd, buf, sizeof(buf), held, 0) : perdure_conn_read(c, buf, sizeof(buf));
		if (n == 0)
			_exit(0);
		if (n != REQUEST)
			die("reading a request");
		held = n;
		for (at = 0; at < size; at += w) {
			w = side == PLAIN ? write(fd, buf + at, size - at) :
			    side == CALLS ? perdure_write(fd, buf + at, size - at) : perdure_conn_write(c, buf + at, size - at);
			if (w <= 0)
				die("writing an answer");
		}
		if (side == BOOKS)
			TRY(perdure_conn_done(c, n, 0));
	}
}

int main(int argc, char **argv)
{
	int rounds = bench_rounds(argc, argv);

	if (!have_zlr())
		return 1;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		static struct samples samples[NR_SIDES];
		int fds[NR_SIDES][2];
		char name[32];

		memset(samples, 0, sizeof(samples));
		for (int side = 0; side < NR_SIDES; side++) {
			tcp_pair(fds[side], 4 * sizeof(buf));
			if (!TRY(fork())) {
				for (int other = 0; other <= side; other++)
					close(fds[other][0]);
				serve(fds[side][1], side, sizes[s]);
			}
			close(fds[side][1]);
		}
		for (int i = 0; i < rounds + WARM_UP; i++) {
			for (int n = 0; n < NR_SIDES; n++) {
				int side = (i + n) % NR_SIDES;
				uint64_t start = now_ns();
				ssize_t got;

				if (write(fds[side][0], buf, REQUEST) != REQUEST)
					die("asking");
				for (size_t at = 0; at < sizes[s]; at += got) {
					got = read(fds[side][0], buf, sizeof(buf));
					if (got <= 0)
						die("an answer");
				}
				if (i >= WARM_UP)
					add_sample(&samples[side], now_ns() - start);
			}
		}
		for (int side = 0; side < NR_SIDES; side++) {
			close(fds[side][0]);
			snprintf(name, sizeof(name), "%zu KiB", sizes[s] / 1024);
			report(name, side_name[side], &samples[side]);
		}
		while (wait(NULL) > 0)
			;
	}
	return 0;
}
