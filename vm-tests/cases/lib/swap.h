/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A swap file on the disk of disk.sh */
#ifndef SWAP_H
#define SWAP_H

#include <sys/swap.h>

#include "t.h"

#define SWAP_FILE	"/mnt/nf/swap"

static T_UNUSED void swap_on(unsigned int pages)
{
	size_t size = t_page();
	char *page = calloc(1, size);
	int fd = open(SWAP_FILE, O_RDWR | O_CREAT | O_TRUNC, 0600);

	T_ASSERT(page && fd >= 0); /* disk.sh */
	memcpy(page + size - 10, "SWAPSPACE2", 10);
	((uint32_t *)page)[256] = 1;
	((uint32_t *)page)[257] = pages - 1;
	T_EQ(pwrite(fd, page, size, 0), (ssize_t)size);
	memset(page, 0, size);
	for (unsigned int i = 1; i < pages; i++)
		T_EQ(pwrite(fd, page, size, i * size), (ssize_t)size);
	T_OK(fsync(fd));
	close(fd);
	free(page);
	T_OK(swapon(SWAP_FILE, 0));
}

#endif
