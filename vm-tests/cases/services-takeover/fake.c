// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A libtakeover for tests of the servers' modules: no kernel, no daemon. Both servers are on this host, and a client
 * connects to each from the same port, which names the connection. Replies are files of the directory FAKE_LOG, which
 * the test puts other files into:
 *   promoted    connections of FAKE_ROLE=backup are alone
 *   alone       those of a primary are
 *   no-log      the log cannot be reached
 *   full        it takes no more
 *   wait        an acknowledgement does not come
 *   no-room-ROLE  files without a name cannot be written to
 *   again       connections have got a new backup, and another name
 *   swapped-PORT  of the service at this port, this host is the other one
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <takeover.h>

struct takeover_reply {
	int fd;
	char name[64];
};

static bool there(const char *name)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/%s", getenv("FAKE_LOG"), name);
	return !access(path, F_OK);
}

/* Theirs for what they keep of a request or a reply */
static bool no_room(int fd)
{
	struct stat stat;
	char name[32];

	snprintf(name, sizeof(name), "no-room-%s", getenv("FAKE_ROLE"));
	if (!getenv("FAKE_LOG") || !there(name) || fstat(fd, &stat) || !S_ISREG(stat.st_mode) || stat.st_nlink)
		return false;
	errno = ENOSPC;
	return true;
}

ssize_t write(int fd, const void *data, size_t size)
{
	return no_room(fd) ? -1 : syscall(SYS_write, fd, data, size);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset)
{
	return no_room(fd) ? -1 : syscall(SYS_pwrite64, fd, data, size, offset);
}

ssize_t pwritev64(int fd, const struct iovec *data, int count, off_t offset)
{
	return no_room(fd) ? -1 : syscall(SYS_pwritev, fd, data, count, offset, 0);
}

static int make(const char *name, const char *end, int flags)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/%s%s", getenv("FAKE_LOG"), name, end);
	return open(path, O_CREAT | O_RDWR | O_CLOEXEC | flags, 0666);
}

static void become(const char *name, const char *old, const char *end)
{
	char from[4096], to[4096];

	snprintf(from, sizeof(from), "%s/%s%s", getenv("FAKE_LOG"), name, old);
	snprintf(to, sizeof(to), "%s/%s%s", getenv("FAKE_LOG"), name, end);
	rename(from, to);
}

static bool primary(int fd)
{
	struct sockaddr_in own = { 0 };
	socklen_t length = sizeof(own);
	char name[32];

	getsockname(fd, (struct sockaddr *)&own, &length);
	snprintf(name, sizeof(name), "swapped-%d", ntohs(own.sin_port));
	return !strcmp(getenv("FAKE_ROLE"), "primary") != there(name);
}

enum takeover_role takeover_role(int fd, uint64_t *id)
{
	struct sockaddr_in peer = { 0 };
	socklen_t length = sizeof(peer);

	if (id)
		*id = 0;
	/* Clients of 127.0.0.2 are ordinary ones */
	if (getpeername(fd, (struct sockaddr *)&peer, &length) < 0 ||
	    ntohl(peer.sin_addr.s_addr) == INADDR_LOOPBACK + 1)
		return TAKEOVER_OFF;
	if (id)
		*id = ntohs(peer.sin_port) + (there("again") ? 65536 : 0);
	if (there(primary(fd) ? "alone" : "promoted"))
		return TAKEOVER_ALONE;
	return primary(fd) ? TAKEOVER_PRIMARY : TAKEOVER_BACKUP;
}

int takeover_leave(int fd)
{
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	enum takeover_role role;
	char name[64];
	uint64_t id;

	role = takeover_role(fd, &id);
	snprintf(name, sizeof(name), "%lu", (unsigned long)id);
	/* Seen by the test's client, as the real one would not be */
	if (role == TAKEOVER_BACKUP)
		connect(fd, &none, sizeof(none));
	else if (role == TAKEOVER_PRIMARY)
		close(make(name, ".left", 0));
	return 0;
}

int takeover_gate(int fd, unsigned int flags)
{
	int file = make("gates", primary(fd) ? "" : ".backup", O_APPEND);

	dprintf(file, "%u", flags);
	close(file);
	return 0;
}

int takeover_reply_begin(int fd, uint64_t id, uint64_t number, struct takeover_reply **reply)
{
	char name[64];

	(void)fd;
	snprintf(name, sizeof(name), "%lu.%lu", (unsigned long)id, (unsigned long)number);
	if (there("no-log")) {
		close(make(name, ".refused", 0));
		errno = ECONNREFUSED;
		return -1;
	}
	*reply = malloc(sizeof(**reply));
	(*reply)->fd = make(name, ".part", O_TRUNC);
	strcpy((*reply)->name, name);
	return 0;
}

int takeover_reply_write(struct takeover_reply *reply, const void *data, size_t length)
{
	if (there("full")) {
		errno = ENOSPC;
		return -1;
	}
	return write(reply->fd, data, length) == (ssize_t)length ? 0 : -1;
}

int takeover_reply_sendfile(struct takeover_reply *reply, int in, off_t offset, size_t size)
{
	while (size) {
		ssize_t n = sendfile(reply->fd, in, &offset, size);

		if (n <= 0)
			return -1;
		size -= n;
	}
	return 0;
}

static void done(struct takeover_reply *reply, const char *end)
{
	become(reply->name, ".part", end);
	close(reply->fd);
	free(reply);
}

int takeover_reply_end(struct takeover_reply *reply, bool acknowledged)
{
	done(reply, ".whole");
	while (acknowledged && there("wait"))
		usleep(1000);
	return 0;
}

void takeover_reply_abort(struct takeover_reply *reply)
{
	done(reply, ".refused");
}

enum takeover_verdict takeover_reply_wait(int fd, uint64_t id, uint64_t number, struct takeover_result *result)
{
	char name[64], whole[80], refused[80], left[64];
	struct stat stat;

	snprintf(name, sizeof(name), "%lu.%lu", (unsigned long)id, (unsigned long)number);
	snprintf(whole, sizeof(whole), "%s.whole", name);
	snprintf(refused, sizeof(refused), "%s.refused", name);
	snprintf(left, sizeof(left), "%lu.left", (unsigned long)id);
	for (; ; usleep(1000)) {
		bool promoted = takeover_role(fd, NULL) != TAKEOVER_BACKUP;

		if (there(whole)) {
			result->fd = make(whole, "", 0);
			fstat(result->fd, &stat);
			result->length = stat.st_size;
			become(whole, "", ".given");
			return TAKEOVER_REPLY;
		}
		if (there(refused) || there(left)) {
			takeover_leave(fd);
			return TAKEOVER_REFUSED;
		}
		if (promoted)
			return TAKEOVER_EXECUTE;
	}
}
