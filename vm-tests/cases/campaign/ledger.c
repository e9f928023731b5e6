// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The service that the campaign makes fault: it adds requests up, and answers each with the sum so far.
 *
 * It has one state, of three counts that it compares: what the ledger says was taken in and given out, and what the
 * kernel says was released and written. Whatever is behind is done next. A new generation does nothing else, so there
 * is no recovery apart from the service itself.
 */
#include <perdure.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ledger.h"


struct ledger {
	uint64_t in;		/* bytes of the requests in the sum */
	uint64_t out;		/* bytes of their replies */
	uint64_t number;
	uint64_t sum;
	struct reply reply;	/* the last one */
};

extern char **environ;

static struct ledger_board *board;

static __attribute__((noreturn)) void wrong(int line)
{
	board->errors = line;
	_exit(99);
}

#define NEED(cond)	do { if (!(cond)) wrong(__LINE__); } while (0)

int main(int argc, char **argv)
{
	struct io_log in, out;
	struct reg_info info;
	struct request request;
	struct ledger *l, next;
	size_t have = 0;
	ssize_t n;

	(void)argc;
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED, LEDGER_BOARD, 0);
	if (board == MAP_FAILED)
		return 98;
	if (getreginfo(&info) < 1) {
		NEED(!reregist(argv[0], argv, environ, 0));
		NEED(getreginfo(&info) == 1);
	}
	board->generation = info.generation;
	l = perdure_state_open("ledger", sizeof(*l), 1, NULL, NULL);
	NEED(l);
	board->up = info.generation;

	for (;;) {
		NEED(!getiolog(LEDGER_IN, &in) && !getiolog(LEDGER_OUT, &out));
		NEED(out.written <= l->out && l->out - out.written <= sizeof(l->reply));
		if (out.written < l->out) {
			size_t left = l->out - out.written;

			n = lwrite(LEDGER_OUT, (char *)(&l->reply + 1) - left, left);
			NEED(n > 0);
			continue;
		}
		NEED(in.released <= l->in && l->in - in.released <= sizeof(request));
		if (in.released < l->in) {
			size_t left = l->in - in.released;

			/* Unread means: not by this generation. */
			n = in.unread ? hread(LEDGER_IN, &request, left, left) : hread(LEDGER_IN, NULL, 0, left);
			NEED(n == (in.unread ? (ssize_t)left : 0));
			have = 0;
			continue;
		}
		n = hread(LEDGER_IN, (char *)&request + have, sizeof(request) - have, 0);
		if (n == 0)
			return have ? 97 : 0;
		NEED(n > 0);
		have += n;
		if (have < sizeof(request))
			continue;
		next.in = l->in + sizeof(request);
		next.out = l->out + sizeof(next.reply);
		next.number = l->number + 1;
		ledger_reply(&next.reply, &request, next.number, l->sum);
		next.sum = next.reply.sum;
		NEED(!perdure_state_update(l, l, &next, sizeof(next)));
	}
}
