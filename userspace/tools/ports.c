// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Preloaded by perdurectl run: bind(2) to the address of a listening socket of the last generation gives the program that
 * socket. So the port is never closed, and who connects meanwhile waits instead of being refused.
 *
 * Only those of TCP and its like over IP: servers look whether somebody listens at their Unix socket, or remove its file, before
 * they bind one. A new socket is bound as ever; perdurectl finds it when the generation has died (see ports.h).
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ports.h"

/* A port that the configuration no longer has is closed when others have been served for so long. */
enum { UNCLAIMED_S = 10, HIGH = 512 };

static int (*real_bind)(int fd, const struct sockaddr *addr, socklen_t len);
static int (*real_accept)(int fd, struct sockaddr *addr, socklen_t *len);
static int (*real_accept4)(int fd, struct sockaddr *addr, socklen_t *len, int flags);

static struct port_list *list;

static struct port {
	atomic_int fd;				/* -1: claimed, or closed */
	uint64_t inode;
	int domain, type, protocol, v6only;
	socklen_t len;
	union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
		struct sockaddr_storage room;
	} addr;
} ports[PORTS];
static int nr_ports;
static atomic_int unclaimed;
static time_t born;

static int option(int fd, int level, int name)
{
	int value = 0;
	socklen_t size = sizeof(value);

	return getsockopt(fd, level, name, &value, &size) ? -1 : value;
}

static time_t seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

static bool describe(int fd, struct port *p)
{
	struct stat st;

	if (fstat(fd, &st) || !S_ISSOCK(st.st_mode))
		return false;
	p->inode = st.st_ino;
	p->domain = option(fd, SOL_SOCKET, SO_DOMAIN);
	p->type = option(fd, SOL_SOCKET, SO_TYPE);
	p->protocol = option(fd, SOL_SOCKET, SO_PROTOCOL);
	p->v6only = p->domain == AF_INET6 ? option(fd, IPPROTO_IPV6, IPV6_V6ONLY) : 0;
	return true;
}

/* The environment is the program's, and its children's, without us. */
static void forget(const char *name, const char *self)
{
	char *value = getenv(name), *rest;

	if (!value)
		return;
	rest = strstr(value, self);
	if (rest == value && value[strlen(self)] == ':')
		memmove(value, value + strlen(self) + 1, strlen(value + strlen(self) + 1) + 1);
	else
		unsetenv(name);
}

static void note(uint64_t inode)
{
	uint64_t n;

	if (!list)
		return;
	n = __atomic_fetch_add(&list->count, 1, __ATOMIC_RELAXED);
	if (n < PORTS)
		list->inodes[n] = inode;
}

__attribute__((constructor)) static void begin(void)
{
	const char *text = getenv(PORTS_ENV);
	Dl_info self;
	int fd, high;

	real_bind = dlsym(RTLD_NEXT, "bind");
	real_accept = dlsym(RTLD_NEXT, "accept");
	real_accept4 = dlsym(RTLD_NEXT, "accept4");
	if (!text)
		return;
	born = seconds();
	while (*text && nr_ports < PORTS) {
		struct port *p = &ports[nr_ports];
		char *end;

		fd = strtol(text, &end, 10);
		text = *end ? end + 1 : end;
		p->len = sizeof(p->addr);
		if (!describe(fd, p) || getsockname(fd, &p->addr.any, &p->len))
			continue;
		fcntl(fd, F_SETFD, FD_CLOEXEC);
		p->fd = fd;
		nr_ports++;
		unclaimed++;
	}
	unsetenv(PORTS_ENV);
	if (dladdr(ports, &self))
		forget("LD_PRELOAD", self.dli_fname);
	fd = memfd_create(PORT_LIST, MFD_CLOEXEC);
	if (fd < 0)
		return;
	if (!ftruncate(fd, sizeof(*list)))
		list = mmap(NULL, sizeof(*list), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (list == MAP_FAILED)
		list = NULL;
	/* A generation that dies before it asks for them hands them on, too */
	for (int i = 0; i < nr_ports; i++)
		note(ports[i].inode);
	high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
	if (high < 0)
		high = fcntl(fd, F_DUPFD_CLOEXEC, 16);
	if (high >= 0)
		close(fd);
}

/* v6only: of the socket that is to be bound. One with a single address has that as soon as it is bound. */
static bool same_address(const struct port *p, const struct sockaddr *addr, socklen_t len, int v6only)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)addr;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;

	if (addr->sa_family != p->addr.any.sa_family)
		return false;
	switch (addr->sa_family) {
	case AF_INET:
		return len >= sizeof(*in) && in->sin_port == p->addr.in.sin_port &&
		       in->sin_addr.s_addr == p->addr.in.sin_addr.s_addr;
	case AF_INET6:
		return len >= sizeof(*in6) - sizeof(in6->sin6_scope_id) && in6->sin6_port == p->addr.in6.sin6_port &&
		       !memcmp(&in6->sin6_addr, &p->addr.in6.sin6_addr, sizeof(in6->sin6_addr)) &&
		       (!IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr) || p->v6only == v6only) &&
		       (len < sizeof(*in6) || !p->addr.in6.sin6_scope_id || in6->sin6_scope_id == p->addr.in6.sin6_scope_id);
	}
	return false;
}

/* Takes a port out of the list; its descriptor, unless the program has closed that, and perhaps used the number again. */
static int take(struct port *p)
{
	int fd = atomic_exchange(&p->fd, -1);
	struct stat st;

	if (fd < 0)
		return -1;
	unclaimed--;
	return !fstat(fd, &st) && st.st_ino == p->inode ? fd : -1;
}

static bool claim(int fd, const struct sockaddr *addr, socklen_t len)
{
	struct port want, *p;
	int kept, flags;
	bool done;

	if (!addr || len < sizeof(addr->sa_family) || !describe(fd, &want))
		return false;
	for (p = ports; p < ports + nr_ports; p++) {
		if (p->fd < 0 || p->domain != want.domain || p->type != want.type || p->protocol != want.protocol ||
		    !same_address(p, addr, len, want.v6only))
			continue;
		kept = take(p);
		if (kept < 0)
			continue;
		flags = fcntl(fd, F_GETFL);
		done = dup3(kept, fd, fcntl(fd, F_GETFD) & FD_CLOEXEC ? O_CLOEXEC : 0) >= 0;
		if (done && flags >= 0)
			fcntl(fd, F_SETFL, flags);
		close(kept);
		return done;
	}
	return false;
}

int bind(int fd, const struct sockaddr *addr, socklen_t len)
{
	int error = errno, result;
	struct stat st;
	int domain;

	if (unclaimed > 0 && claim(fd, addr, len)) {
		errno = error;
		return 0;
	}
	errno = error;
	result = real_bind(fd, addr, len);
	error = errno;
	if (!result && list) {
		domain = option(fd, SOL_SOCKET, SO_DOMAIN);
		if ((domain == AF_INET || domain == AF_INET6) && !fstat(fd, &st))
			note(st.st_ino);
	}
	errno = error;
	return result;
}

static void drop_unclaimed(void)
{
	int error = errno, fd;

	if (unclaimed <= 0 || seconds() - born < UNCLAIMED_S)
		return;
	for (struct port *p = ports; p < ports + nr_ports; p++) {
		fd = take(p);
		if (fd >= 0)
			close(fd);
	}
	errno = error;
}

int accept(int fd, struct sockaddr *addr, socklen_t *len)
{
	drop_unclaimed();
	return real_accept(fd, addr, len);
}

int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	drop_unclaimed();
	return real_accept4(fd, addr, len, flags);
}
