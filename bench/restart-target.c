// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The process that faults, and the one that takes its place. Built twice: dynamic and static.
 *
 *	restart-target old PAGE GO SOCKETS NSOCKETS REGISTER	waits on GO, reads from its sockets, faults
 *	restart-target new PAGE [SOCKETS NSOCKETS]	the new generation: notes when main() began
 */
#include <sys/mman.h>

#include "bench.h"
#include "restart.h"

extern char **environ;

static struct page *map_page(const char *fd)
{
	struct page *page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(fd), 0);

	if (page == MAP_FAILED)
		die("mapping the shared page");
	return page;
}

static void fault(struct page *page)
{
	volatile int *nowhere = NULL;

	page->fault_ns = now_ns();
	*nowhere = 0;
}

static void old(char **argv)
{
	struct page *page = map_page(argv[2]);
	int go = atoi(argv[3]), first = atoi(argv[4]), n = atoi(argv[5]);
	int registers = atoi(argv[6]);
	char *const argv_new[] = { argv[0], (char *)"new", argv[2], argv[4], argv[5], NULL };
	char buf[SOCKET_BYTES];

	TRY(read(go, buf, 1));
	if (registers)
		TRY(syscall(__NR_reregist, argv[0], argv_new, environ, 0, 0));
	for (int fd = first; fd < first + n; fd++) {
		long got = registers ? syscall(__NR_hread, fd, buf, sizeof(buf), 0ul, 0)
				     : syscall(__NR_read, fd, buf, sizeof(buf));

		if (got != sizeof(buf))
			die("reading a socket");
	}
	fault(page);
}

int main(int argc, char **argv)
{
	uint64_t start = now_ns();
	struct page *page;

	if (argc == 7 && !strcmp(argv[1], "old"))
		old(argv);
	if ((argc != 3 && argc != 5) || strcmp(argv[1], "new"))
		return 2;
	page = map_page(argv[2]);
	page->main_ns = start;
	syscall(__NR_getreginfo, &page->info, sizeof(page->info), 0);
	for (int i = 0; argc == 5 && i < atoi(argv[4]); i++) {
		struct io_log log;

		TRY(syscall(__NR_getiolog, atoi(argv[3]) + i, &log, sizeof(log), 0));
		page->unread += log.unread;
	}
	return 0;
}
