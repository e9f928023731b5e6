// SPDX-License-Identifier: LGPL-2.1-or-later
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* TCP_INFO with its counts of bytes */
#include <linux/tcp.h>

#include <perdure/zlr.h>

#include "kept.h"

#ifndef __NR_getreginfo
#define __NR_getreginfo	501
#endif

#define NAME		"replay-files"
#define FILES_MAX	65536

/* How many bytes the server has read from a connection, and written to it */
struct counts {
	uint64_t read, written;
};

struct entry {
	uint64_t inode;		/* the number may be another file's by now */
	struct counts counts;	/* when all was answered */
	uint32_t said;		/* bytes of the answer under way that are known */
	uint32_t more;		/* those that the HTTP library adds to each; 0: not known */
	uint8_t kind;		/* enum kept_kind; written last */
	uint8_t asked;
};

static struct entry *table;
static bool old[FILES_MAX];	/* of the generation before */
static int next_client;
static uint32_t usual_more;
static bool restarted;

static struct entry *entry_of(int fd)
{
	return table && fd >= 0 && fd < FILES_MAX ? &table[fd] : NULL;
}

static uint64_t inode_of(int fd)
{
	struct stat st;

	return fstat(fd, &st) ? 0 : st.st_ino;
}

static bool is_old(int fd)
{
	return table && old[fd] && table[fd].inode == inode_of(fd);
}

/*
 * Both pairs of counts move when the other side sends or acknowledges, but their sums do not: so they are taken again until they
 * have stood still.
 */
static bool count(int fd, struct counts *c)
{
	struct tcp_info before, after;
	socklen_t len = sizeof(before);
	int in, out, i;

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &before, &len))
		return false;
	for (i = 0; i < 100; i++) {
		len = sizeof(after);
		if (ioctl(fd, SIOCINQ, &in) || ioctl(fd, SIOCOUTQ, &out) || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &after, &len))
			return false;
		if (after.tcpi_bytes_received == before.tcpi_bytes_received && after.tcpi_bytes_acked == before.tcpi_bytes_acked) {
			*c = (struct counts){ .read = after.tcpi_bytes_received - in, .written = after.tcpi_bytes_acked + out };
			return true;
		}
		before = after;
	}
	return false;
}

/* What /proc/self/fd says of a descriptor */
static bool link_is(int fd, const char *begin)
{
	char path[64], text[64] = "";

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return readlink(path, text, sizeof(text) - 1) > 0 && !strncmp(text, begin, strlen(begin));
}

static bool table_map(int fd)
{
	void *at = mmap(NULL, FILES_MAX * sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at != MAP_FAILED)
		table = at;
	return table;
}

static void table_make(void)
{
	int fd = memfd_create(NAME, MFD_CLOEXEC);

	/* Without it connections are not taken over: nothing worse */
	if (fd >= 0 && (ftruncate(fd, FILES_MAX * sizeof(*table)) || !table_map(fd)))
		close(fd);
}

static void each_file(void (*visit)(int fd))
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *d;

	while (dir && (d = readdir(dir)))
		if (*d->d_name != '.' && atoi(d->d_name) != dirfd(dir))
			visit(atoi(d->d_name));
	if (dir)
		closedir(dir);
}

static void find_table(int fd)
{
	if (!table && link_is(fd, "/memfd:" NAME))
		table_map(fd);
}

static in_port_t port_of(int fd)
{
	union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} a = { 0 };
	socklen_t len = sizeof(a);

	if (getsockname(fd, &a.any, &len))
		return 0;
	return a.any.sa_family == AF_INET ? a.in.sin_port : a.any.sa_family == AF_INET6 ? a.in6.sin6_port : 0;
}

/* A connection that had been accepted, and not been noted yet: its client hears that it is gone */
static void close_stray(int fd)
{
	in_port_t port = fd < FILES_MAX && !is_old(fd) ? port_of(fd) : 0;
	int i;

	for (i = 0; port && i < FILES_MAX; i++)
		if (old[i] && table[i].kind == KEPT_LISTENER && is_old(i) && port_of(i) == port) {
			close(fd);
			return;
		}
}

static const char *log_path;

/* By what it is: a fault may have come before anything was noted of it */
static void close_log(int fd)
{
	struct stat st, log;

	if (fd > STDERR_FILENO && !fstat(fd, &st) && !stat(log_path, &log) && (st.st_mode & S_IFMT) == (log.st_mode & S_IFMT) &&
	    (S_ISBLK(st.st_mode) ? st.st_rdev == log.st_rdev : st.st_dev == log.st_dev && st.st_ino == log.st_ino))
		close(fd);
}

void kept_begin(const char *log)
{
	struct reg_info info;
	int fd;

	if (table || syscall(__NR_getreginfo, &info, sizeof(info), 0) != 1)
		return;
	restarted = info.is_restarted;
	log_path = log;
	if (restarted) {
		each_file(close_log);
		each_file(find_table);
	}
	if (!table) {
		table_make();
		return;
	}
	for (fd = 0; fd < FILES_MAX; fd++)
		old[fd] = table[fd].kind != KEPT_NONE;
	each_file(close_stray);
	for (fd = 0; fd < FILES_MAX; fd++) {
		if (!old[fd] || table[fd].kind == KEPT_LISTENER || (table[fd].kind == KEPT_CLIENT && is_old(fd)))
			continue;
		if (is_old(fd))
			close(fd);
		old[fd] = false;
		table[fd].kind = KEPT_NONE;
	}
}

static bool before[FILES_MAX];
static pthread_mutex_t watching = PTHREAD_MUTEX_INITIALIZER;

static void was_before(int fd)
{
	if (fd < FILES_MAX)
		before[fd] = true;
}

/* Without a name at both ends */
static bool is_socketpair(int fd)
{
	struct sockaddr_un a;
	socklen_t own = sizeof(a), other = sizeof(a);

	return !getsockname(fd, (struct sockaddr *)&a, &own) && a.sun_family == AF_UNIX && own == sizeof(a.sun_family) &&
	       !getpeername(fd, (struct sockaddr *)&a, &other) && other == sizeof(a.sun_family);
}

static void note_new(int fd)
{
	if (fd < FILES_MAX && !before[fd] && (link_is(fd, "anon_inode:") || link_is(fd, "pipe:") || is_socketpair(fd)))
		kept_note(fd, KEPT_FILE);
}

void kept_watch(void)
{
	if (!table)
		return;
	pthread_mutex_lock(&watching);
	memset(before, 0, sizeof(before));
	each_file(was_before);
}

void kept_watched(void)
{
	if (!table)
		return;
	each_file(note_new);
	pthread_mutex_unlock(&watching);
}

void kept_end(void)
{
	int fd;

	for (fd = 0; table && fd < FILES_MAX; fd++)
		kept_forget(fd);
}

/* At every instant a fault can end it: a connection that is half known is closed then */
static void counts_set(struct entry *e, int fd)
{
	struct counts now;

	e->counts.read = UINT64_MAX;
	e->asked = false;
	e->said = 0;
	if (!count(fd, &now))
		return;
	e->counts.written = now.written;
	__atomic_store_n(&e->counts.read, now.read, __ATOMIC_RELEASE);
}

void kept_note(int fd, enum kept_kind kind)
{
	struct entry *e = entry_of(fd);
	uint64_t inode = e ? inode_of(fd) : 0;

	if (!e)
		return;
	old[fd] = false;
	if (e->kind != kind || e->inode != inode) {
		kept_forget(fd);
		e->inode = inode;
	}
	e->more = usual_more;
	if (kind == KEPT_CLIENT)
		counts_set(e, fd);
	__atomic_store_n(&e->kind, kind, __ATOMIC_RELEASE);
}

void kept_forget(int fd)
{
	struct entry *e = entry_of(fd);

	if (e)
		__atomic_store_n(&e->kind, KEPT_NONE, __ATOMIC_RELEASE);
}

static const struct sockaddr *wanted;
static socklen_t wanted_len;
static int bound;

static void find_bound(int fd)
{
	struct sockaddr_storage a;
	socklen_t len = sizeof(a), one = sizeof(int);
	int listens = 0;

	if (!getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &one) && listens && !getsockname(fd, (struct sockaddr *)&a, &len) &&
	    len == wanted_len && !memcmp(&a, wanted, len))
		bound = fd;
}

int kept_listener(const struct sockaddr *address, socklen_t len)
{
	wanted = address;
	wanted_len = len;
	bound = -1;
	if (restarted)
		each_file(find_bound);
	return bound;
}

void kept_close_listeners(void)
{
	int fd;

	for (fd = 0; table && fd < FILES_MAX; fd++) {
		if (!old[fd] || table[fd].kind != KEPT_LISTENER)
			continue;
		if (is_old(fd))
			close(fd);
		old[fd] = false;
		kept_forget(fd);
	}
}

static enum kept_state state_of(const struct entry *e, int fd)
{
	uint64_t written;
	struct counts now;

	if (e->counts.read == UINT64_MAX || !count(fd, &now))
		return KEPT_BROKEN;
	written = now.written - e->counts.written;
	if (!written && now.read == e->counts.read)
		return KEPT_IDLE;
	if (!e->asked)
		return KEPT_BROKEN;
	if (!written)
		return KEPT_ASKED;
	/* The whole of the answer */
	return e->said && e->more && written == (uint64_t)e->said + e->more ? KEPT_IDLE : KEPT_BROKEN;
}

int kept_client(enum kept_state *state)
{
	for (; table && next_client < FILES_MAX; next_client++) {
		if (!old[next_client] || table[next_client].kind != KEPT_CLIENT)
			continue;
		*state = state_of(&table[next_client], next_client);
		old[next_client] = false;
		return next_client++;
	}
	return -1;
}

void kept_asked(int fd)
{
	struct entry *e = entry_of(fd);

	if (e)
		e->asked = true;
}

void kept_answer(int fd, size_t said)
{
	struct entry *e = entry_of(fd);

	if (e)
		e->said = said < UINT32_MAX ? said : 0;
}

/* What the library adds is learned from answers: it is always the same, or not known */
static void learn(struct entry *e, int fd)
{
	struct counts now;
	uint32_t more;

	if (!e->said || !count(fd, &now) || now.written - e->counts.written <= e->said)
		return;
	more = now.written - e->counts.written - e->said;
	e->more = !e->more || e->more == more ? more : 0;
	usual_more = more;
}

void kept_answered(int fd)
{
	struct entry *e = entry_of(fd);

	if (!e || e->kind != KEPT_CLIENT)
		return;
	learn(e, fd);
	counts_set(e, fd);
}
