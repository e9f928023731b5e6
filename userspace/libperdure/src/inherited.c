// SPDX-License-Identifier: LGPL-2.1-or-later
/* After a restart: what kinds of files the old generation has left. See perdure_inherited(3). */
#include <errno.h>
#include <fcntl.h>
#include <perdure.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fds.h"

struct address {
	struct sockaddr_storage a;
	socklen_t len;
	int type;		/* of the socket */
};

struct found {
	struct perdure_inherited *list;
	struct address *local;		/* of each in the list */
	int n, room;
};

static bool is_area(int fd)
{
	/* Only these have been sealed so far */
	return fcntl(fd, F_GET_SEALS) > F_SEAL_SEAL;
}

static int option(int fd, int name)
{
	socklen_t size = sizeof(int);
	int value = -1;

	return getsockopt(fd, SOL_SOCKET, name, &value, &size) ? -1 : value;
}

static bool connected(int fd)
{
	struct address peer = { .len = sizeof(peer.a) };

	return !getpeername(fd, (struct sockaddr *)&peer.a, &peer.len);
}

static bool has_port(const struct address *local)
{
	static const uint16_t none;

	if (local->a.ss_family == AF_INET || local->a.ss_family == AF_INET6)
		return memcmp((const char *)&local->a + sizeof(sa_family_t), &none, sizeof(none));
	return local->len > sizeof(sa_family_t);
}

static enum perdure_kind kind(int fd, struct address *local)
{
	local->len = sizeof(local->a);
	if (getsockname(fd, (struct sockaddr *)&local->a, &local->len))
		return PERDURE_OTHER;
	local->type = option(fd, SO_TYPE);
	if (option(fd, SO_ACCEPTCONN) == 1)
		return PERDURE_LISTENING;
	if (connected(fd))
		return PERDURE_OUTGOING;
	if (local->type == SOCK_DGRAM && has_port(local))
		return PERDURE_LISTENING;
	return PERDURE_OTHER;
}

static int consider(int fd, void *arg)
{
	struct found *f = arg;
	struct perdure_inherited *list;
	struct address *local;

	if (fcntl(fd, F_GETFD) < 0 || is_area(fd))
		return 0;
	if (f->n == f->room) {
		f->room = f->room ? 2 * f->room : 64;
		list = realloc(f->list, f->room * sizeof(*list));
		f->list = list ? list : f->list;
		local = realloc(f->local, f->room * sizeof(*local));
		f->local = local ? local : f->local;
		if (!list || !local)
			return -1;
	}
	memset(&f->local[f->n], 0, sizeof(*f->local));
	f->list[f->n].fd = fd;
	f->list[f->n].kind = kind(fd, &f->local[f->n]);
	/* Standard input and output of those that talk on them are connections, otherwise they are nobody's business */
	if (fd > STDERR_FILENO || f->list[f->n].kind != PERDURE_OTHER)
		f->n++;
	return 0;
}

/* Does the listening socket a have the port, or the path, of b? */
static bool same_port(const struct address *a, const struct address *b)
{
	const size_t port = sizeof(sa_family_t) + sizeof(in_port_t);	/* in both kinds of addresses of the Internet */

	if (a->a.ss_family != b->a.ss_family || a->type != b->type || !has_port(a))
		return false;
	if (a->a.ss_family == AF_INET || a->a.ss_family == AF_INET6)
		return !memcmp(&a->a, &b->a, port);
	return a->len == b->len && !memcmp(&a->a, &b->a, a->len);
}

/* An accepted connection has the port, or the path, of a listening socket; so has one that the peer has reset. */
static void tell_accepted(struct found *f)
{
	int i, j;

	for (i = 0; i < f->n; i++) {
		if (f->list[i].kind != PERDURE_LISTENING)
			continue;
		for (j = 0; j < f->n; j++) {
			if (f->list[j].kind != PERDURE_LISTENING && same_port(&f->local[i], &f->local[j]))
				f->list[j].kind = PERDURE_ACCEPTED;
		}
	}
}

static int compare(const void *a, const void *b)
{
	return ((const struct perdure_inherited *)a)->fd - ((const struct perdure_inherited *)b)->fd;
}

int perdure_inherited(struct perdure_inherited **list)
{
	struct found f = { 0 };
	bool good = !fd_each(consider, &f);

	if (good) {
		tell_accepted(&f);
		if (f.n)
			qsort(f.list, f.n, sizeof(*f.list), compare);
		else if (!f.list)
			f.list = malloc(sizeof(*f.list));	/* for free() */
		good = f.list;
	}
	free(f.local);
	if (!good) {
		free(f.list);
		errno = ENOMEM;
		return -1;
	}
	*list = f.list;
	return f.n;
}
