// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Reading and writing on any kernel: as hread(), lwrite() and lsendfile() where these are, as the plain calls
 * where they are not. See perdure_read(3).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <perdure.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "io.h"
#include "numbers.h"

extern char **environ;

/* Of a vector, what is joined for one call: more than any datagram that is sent in practice */
#define JOIN_MAX	(1 << 20)
#define JOIN_ON_STACK	4096

bool io_is_plain;
void (*io_on_plain)(void);

/*
 * What the file itself says by the same errno, and a
 * seccomp filter that knows none of them, are told apart by asking for the version.
 */
bool io_missing(void)
{
	int error = errno;
	bool none;

	if (error != ENOSYS && error != EOPNOTSUPP && error != EPERM)
		return false;
	none = error == ENOSYS || perdure_abi_version() < 0;
	if (none) {
		__atomic_store_n(&io_is_plain, true, __ATOMIC_RELAXED);
		if (io_on_plain)
			io_on_plain();
	}
	errno = error;
	return none;
}

int perdure_protected(void)
{
	struct reg_info info;

	if (io_plain()) {
		errno = perdure_abi_version() < 0 ? errno : EOPNOTSUPP;
		return 0;
	}
	switch (getreginfo(&info)) {
	case 1:
		break;
	case 0:
		errno = ENOENT;
		return 0;
	default:
		return 0;
	}
	/* A kernel can have the one without the other */
	if (hread(-1, NULL, 0, 0) < 0 && errno != EBADF)
		return 0;
	return 1;
}

int perdure_register(char *const argv[])
{
	char path[PATH_MAX];
	struct reg_info info;
	ssize_t n;

	if (getreginfo(&info) == 1 && info.is_restarted)
		return 1;
	n = readlink("/proc/self/exe", path, sizeof(path) - 1);
	if (n < 0)
		return -1;
	path[n] = '\0';
	return reregist(path, argv, environ, 0);
}

/* Regular files and block devices are read again by whoever needs them again: hread() refuses them. */
static bool is_storage(int fd)
{
	struct stat st;

	return !fstat(fd, &st) && (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode));
}

/* As HREAD_NOWAIT has it, without hread() */
static ssize_t read_nowait(int fd, const struct iovec *iov, int n)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	ssize_t got = preadv2(fd, iov, n, -1, RWF_NOWAIT);

	if (got >= 0 || errno != EOPNOTSUPP)
		return got;
	/* Terminals and their like */
	if (poll(&p, 1, 0) == 0) {
		errno = EAGAIN;
		return -1;
	}
	return readv(fd, iov, n);
}

static ssize_t plain_readv(int fd, const struct iovec *iov, int n, unsigned int flags)
{
	if (flags & ~HREAD_NOWAIT) {
		errno = EINVAL;
		return -1;
	}
	return flags & HREAD_NOWAIT ? read_nowait(fd, iov, n) : readv(fd, iov, n);
}

ssize_t perdure_read(int fd, void *buf, size_t len, size_t release, unsigned int flags)
{
	struct iovec iov = { buf, len };
	ssize_t n;

	if (!io_plain()) {
		n = syscall(__NR_hread, fd, buf, len, release, flags);
		if (n >= 0 || (!io_missing() && !(errno == EINVAL && !release && is_storage(fd))))
			return n;
	}
	/* Nothing is read then: only the descriptor is looked at */
	if (!len && !(flags & ~HREAD_NOWAIT))
		return fcntl(fd, F_GETFD) < 0 ? -1 : 0;
	return plain_readv(fd, &iov, 1, flags);
}

int perdure_release(int fd, size_t len)
{
	return perdure_read(fd, NULL, 0, len, 0);
}

ssize_t perdure_write(int fd, const void *buf, size_t len)
{
	ssize_t n;

	if (!io_plain()) {
		n = lwrite(fd, buf, len);
		if (n >= 0 || !io_missing())
			return n;
	}
	return write(fd, buf, len);
}

ssize_t perdure_sendfile(int out_fd, int in_fd, off_t *offset, size_t count)
{
	ssize_t n;

	if (!io_plain()) {
		n = lsendfile(out_fd, in_fd, offset, count);
		if (n >= 0 || !io_missing())
			return n;
	}
	return sendfile(out_fd, in_fd, offset, count);
}

/* The sum of a vector, or -1 with EINVAL as readv() has it. */
static ssize_t vector_length(const struct iovec *iov, int n)
{
	size_t sum = 0;
	int i;

	for (i = 0; i < n; i++) {
		if (__builtin_add_overflow(sum, iov[i].iov_len, &sum) || sum > SSIZE_MAX)
			goto invalid;
	}
	if (n >= 0 && n <= IOV_MAX)
		return sum;
invalid:
	errno = EINVAL;
	return -1;
}

/* What the kernel's calls take is one piece; a vector is joined to it, so that a datagram stays one. */
struct joined {
	char *p;
	char small[JOIN_ON_STACK];
};

static bool joined_get(struct joined *j, size_t len)
{
	j->p = len <= sizeof(j->small) ? j->small : malloc(len);
	return j->p;
}

static void joined_put(struct joined *j)
{
	int error = errno;

	if (j->p != j->small)
		free(j->p);
	errno = error;
}

static void scatter(const struct iovec *iov, int n, const char *from, size_t len)
{
	int i;

	for (i = 0; i < n && len; i++) {
		size_t part = len < iov[i].iov_len ? len : iov[i].iov_len;

		memcpy(iov[i].iov_base, from, part);
		from += part;
		len -= part;
	}
}

static size_t gather(const struct iovec *iov, int n, char *to, size_t max)
{
	size_t len = 0;
	int i;

	for (i = 0; i < n && len < max; i++) {
		size_t part = max - len < iov[i].iov_len ? max - len : iov[i].iov_len;

		memcpy(to + len, iov[i].iov_base, part);
		len += part;
	}
	return len;
}

ssize_t perdure_readv(int fd, const struct iovec *iov, int n, size_t release, unsigned int flags)
{
	ssize_t len = vector_length(iov, n), got;
	struct joined j;

	if (len < 0)
		return -1;
	if (n == 1)
		return perdure_read(fd, iov->iov_base, len, release, flags);
	if (io_plain())
		return len ? plain_readv(fd, iov, n, flags) : perdure_read(fd, NULL, 0, 0, flags);
	if (len > JOIN_MAX)
		len = JOIN_MAX;
	if (!joined_get(&j, len))
		return -1;
	got = perdure_read(fd, j.p, len, release, flags);
	if (got > 0)
		scatter(iov, n, j.p, got);
	joined_put(&j);
	return got;
}

ssize_t io_writev(const struct iovec *iov, int n, ssize_t (*put)(void *to, const void *buf, size_t len), void *to)
{
	ssize_t len = vector_length(iov, n), written;
	struct joined j;

	if (len < 0)
		return -1;
	if (n == 1)
		return put(to, iov->iov_base, len);
	if (!joined_get(&j, len < JOIN_MAX ? len : JOIN_MAX))
		return -1;
	written = put(to, j.p, gather(iov, n, j.p, JOIN_MAX));
	joined_put(&j);
	return written;
}

static ssize_t write_to(void *fd, const void *buf, size_t len)
{
	return perdure_write(*(int *)fd, buf, len);
}

ssize_t perdure_writev(int fd, const struct iovec *iov, int n)
{
	return io_plain() ? writev(fd, iov, n) : io_writev(iov, n, write_to, &fd);
}

ssize_t perdure_recvmsg(int fd, struct msghdr *msg, size_t release, unsigned int flags)
{
	int wait = flags & HREAD_NOWAIT ? MSG_DONTWAIT : 0, type;
	socklen_t size = sizeof(type);
	ssize_t peeked, got;
	struct joined j;

	if (flags & ~HREAD_NOWAIT) {
		errno = EINVAL;
		return -1;
	}
	if (io_plain())
		return recvmsg(fd, msg, wait);
	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size))
		return -1;
	if (type == SOCK_STREAM && !msg->msg_control) {
		got = perdure_readv(fd, msg->msg_iov, msg->msg_iovlen, release, flags);
		if (got >= 0)
			msg->msg_namelen = msg->msg_controllen = msg->msg_flags = 0;
		return got;
	}
	/* Who it is from is to be seen as long as it has not been taken; then it is taken, and held. */
	peeked = recvmsg(fd, msg, wait | MSG_PEEK);
	if (peeked < 0)
		return -1;
	if (!joined_get(&j, peeked ? peeked : 1))
		return -1;
	got = perdure_read(fd, j.p, peeked ? peeked : 1, release, HREAD_NOWAIT);
	joined_put(&j);
	return got < 0 ? got : peeked;
}
