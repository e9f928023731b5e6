/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BENCH_RESTART_H
#define BENCH_RESTART_H

#define SOCKET_BYTES	1000

/* Lives in a memfd, so it outlives every process of a round. */
struct page {
	volatile uint64_t fault_ns;	/* just before the faulting instruction */
	volatile uint64_t main_ns;	/* first line of main() of the new generation */
	struct reg_info info;
	uint64_t unread;		/* held by the old generation, to be read again by the new one */
};

#endif
