/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef PORTS_H
#define PORTS_H

#include <stdint.h>

/*
 * Between perdurectl run and the library that it has preloaded (ports.c). A file in memory of this name, close-on-exec, has
 * the inodes of the sockets that this image has bound by the library: those can be handed to the next generation, which
 * will ask for them in the same way. Who calls the kernel directly, as Go does, has none in the list.
 */
#define PORT_LIST	"perdure-ports"
#define PORTS_ENV	"PERDURE_PORTS"		/* "700,701": sockets of the last generation */

enum { PORTS = 511 };

struct port_list {
	uint64_t count;			/* may be more than there is room for */
	uint64_t inodes[PORTS];
};

#endif
