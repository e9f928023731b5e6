// SPDX-License-Identifier: GPL-2.0-or-later
/* hread(), lwrite(), lsendfile() and getiolog(): every argument, flag, size and error. */
#include "../lib/t.h"

#include <linux/io_uring.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

#define BAD_PTRS { NULL, T_KERNEL_PTR, T_NONCANON_PTR, t_gone(), t_none(), (void *)-1l }

/* A pipe with the first n bytes of the stream in it: p[0] reads. */
static void filled_pipe(int p[2], size_t n)
{
	char buf[100];

	T_OK(pipe(p));
	T_ASSERT(n <= sizeof(buf));
	t_fill(buf, n, 0);
	T_ASSERT(write(p[1], buf, n) == (ssize_t)n);
}

/* The next n bytes that hread() gives are those of the stream from pos on; releases `release`. */
static void expect_data(int fd, size_t n, uint64_t pos, size_t release)
{
	unsigned char buf[10000];

	T_ASSERT(n < sizeof(buf));
	memset(buf, 0xa5, n + 1);
	T_EQ(x_hread(fd, buf, n, release), n);
	T_EQ(t_match(buf, n, pos), n);
	T_EQ(buf[n], 0xa5);
}

TV(hread_basic)
{
	unsigned char buf[100];
	int p[2];

	filled_pipe(p, 50);
	T_IOLOG(p[0], 0, 0, 0, 0);
	expect_data(p[0], 10, 0, 0);
	T_IOLOG(p[0], 10, 0, 0, 0);
	expect_data(p[0], 10, 10, 5);
	T_IOLOG(p[0], 20, 5, 0, 0);
	expect_data(p[0], 10, 20, 25);
	T_IOLOG(p[0], 30, 30, 0, 0);
	T_EQ(x_hread(p[0], buf, sizeof(buf), 20), 20);
	T_EQ(t_match(buf, 20, 30), 20);
	T_IOLOG(p[0], 50, 50, 0, 0);
	T_IOLOG(p[1], 0, 0, 0, 0);
}

TV(hread_zero_length)
{
	int p[2];

	filled_pipe(p, 20);
	T_EQ(x_hread(p[0], NULL, 0, 0), 0);
	T_IOLOG(p[0], 0, 0, 0, 0);
	expect_data(p[0], 10, 0, 0);
	T_ERR(x_hread(p[0], NULL, 0, 11), EINVAL);
	T_IOLOG(p[0], 10, 0, 0, 0);
	T_EQ(x_hread(p[0], NULL, 0, 4), 0);
	T_IOLOG(p[0], 10, 4, 0, 0);
	T_EQ(x_hread(p[0], NULL, 0, 6), 0);
	T_IOLOG(p[0], 10, 10, 0, 0);
	/* Releasing needs no data to come, on an empty pipe either. */
	expect_data(p[0], 10, 10, 0);
	T_EQ(x_hread(p[0], NULL, 0, 10), 0);
	T_IOLOG(p[0], 20, 20, 0, 0);
}

T(hread_flags)
{
	char buf[8];
	int p[2];

	filled_pipe(p, 20);
	for (int bit = 1; bit < 32; bit++) {
		T_ERR(syscall(NR_hread, p[0], buf, 8, 0, 1u << bit), EINVAL);
		T_ERR(syscall(NR_hread, p[0], buf, 8, 0, 1u << bit | HREAD_NOWAIT), EINVAL);
		T_ERR(syscall(NR_hread, -1, T_KERNEL_PTR, 8, 0, 1u << bit), EINVAL);
	}
	T_IOLOG(p[0], 0, 0, 0, 0);
	T_EQ(syscall(NR_hread, p[0], buf, 8, 0, HREAD_NOWAIT), 8);
	expect_data(p[0], 12, 8, 0);
	T_ERR(syscall(NR_hread, p[0], buf, 8, 0, HREAD_NOWAIT), EAGAIN);
	T_ERR(syscall(NR_hread, p[0], buf, 8, 1, HREAD_NOWAIT), EAGAIN);
	T_IOLOG(p[0], 20, 0, 0, 0);
}

TV(hread_pointers)
{
	void *bad[] = { NULL, T_KERNEL_PTR, T_NONCANON_PTR, t_gone(), t_none(), t_readonly(), (void *)-1l };
	int p[2];

	filled_pipe(p, 20);
	expect_data(p[0], 5, 0, 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct io_log log;

		T_ERR(x_hread(p[0], bad[i], 10, 3), EFAULT);
		T_EQ(x_getiolog(p[0], &log), 0);
		T_EQ(log.released, 0);
		T_EXPECT(log.read == 5 + log.unread);
	}
	expect_data(p[0], 15, 5, 0);
	T_IOLOG(p[0], 20, 0, 0, 0);
}

/* With only the first k of n bytes writable, nothing is lost, whatever the call says. */
static void half_mapped(int rd, int wr, size_t n, bool datagram)
{
	char data[10000];

	for (size_t k = 0; k < n; k += 1 + k / 8) {
		uint64_t pos = k * n;
		char *buf = t_edge(k);
		struct io_log log;
		long got;

		t_fill(data, n, pos);
		T_ASSERT(write(wr, data, n) == (ssize_t)n);
		got = x_hread(rd, buf, n, 0);
		if (got < 0) {
			T_EQ(errno, EFAULT);
			got = 0;
		} else {
			T_RANGE(got, 1, datagram ? 0 : k);
			T_EQ(t_match(buf, got, pos), got);
		}
		/* All the rest is still there. */
		expect_data(rd, n - got, pos + got, n);
		T_EQ(x_getiolog(rd, &log), 0);
		T_EQ(log.held, 0);
		T_ERR(x_hread_nowait(rd, data, n, 0), EAGAIN);
	}
}

TV(hread_half_mapped)
{
	int p[2];

	T_OK(pipe(p));
	t_context = "pipe";
	half_mapped(p[0], p[1], 300, false);
	half_mapped(p[0], p[1], 9000, false);
	T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, p));
	t_context = "stream";
	half_mapped(p[0], p[1], 300, false);
	half_mapped(p[0], p[1], 9000, false);
	T_OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, p));
	t_context = "datagram";
	half_mapped(p[0], p[1], 300, true);
	T_OK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, p));
	t_context = "seqpacket";
	half_mapped(p[0], p[1], 300, true);
}

TV(hread_dlen)
{
	static const size_t far[] = { 31, 1000, SIZE_MAX / 2, SIZE_MAX - 30, SIZE_MAX - 20, SIZE_MAX };
	unsigned char buf[64], zero[64] = { 0 };
	int p[2];

	filled_pipe(p, 50);
	expect_data(p[0], 10, 0, 0);
	/* What no reading could make valid is refused at once. */
	for (size_t i = 0; i < ARRAY_LEN(far); i++) {
		memset(buf, 0xa5, sizeof(buf));
		T_ERR(x_hread(p[0], buf, 20, far[i]), EINVAL);
		T_MEMEQ(buf, zero, 20);
		T_EQ(buf[20], 0xa5);
		T_IOLOG(p[0], 10, 0, 0, 0);
	}
	expect_data(p[0], 40, 10, 0);
	T_ERR(x_hread(p[0], buf, 0, 51), EINVAL);
	/* Empty and blocking: at once too. */
	T_ERR(x_hread(p[0], buf, 10, 61), EINVAL);
	T_IOLOG(p[0], 50, 0, 0, 0);

	/* Read, found too short for dlen: cleared, unread, nothing released. */
	T_ASSERT(write(p[1], "abcde", 5) == 5);
	memset(buf, 0xa5, sizeof(buf));
	T_ERR(x_hread(p[0], buf, 20, 56), EINVAL);
	T_MEMEQ(buf, zero, 20);
	T_EQ(buf[20], 0xa5);
	T_IOLOG(p[0], 55, 0, 5, 0);
	memset(buf, 0xa5, sizeof(buf));
	T_ERR(x_hread(p[0], buf, 2, 53), EINVAL);
	T_MEMEQ(buf, zero, 2);
	T_EQ(buf[2], 0xa5);
	T_IOLOG(p[0], 55, 0, 5, 0);
	T_EQ(x_hread(p[0], buf, 2, 52), 2);
	T_MEMEQ(buf, "ab", 2);
	T_IOLOG(p[0], 55, 52, 3, 0);
	T_EQ(x_hread(p[0], buf, 20, 0), 3);
	T_MEMEQ(buf, "cde", 3);
	T_IOLOG(p[0], 55, 52, 0, 0);
}

T(hread_huge_length)
{
	char *buf = t_edge(4096);
	int p[2];
	long n;

	filled_pipe(p, 20);
	T_EQ(syscall(NR_hread, p[0], buf, 4096, 0, 0), 20);
	T_EQ(t_match(buf, 20, 0), 20);
	T_ASSERT(write(p[1], "abcde", 5) == 5);
	/* As read(2): one that no address space has is an error, and nothing is lost. */
	T_ERR(read(p[0], buf, SIZE_MAX), EFAULT);
	T_ERR(syscall(NR_hread, p[0], buf, SIZE_MAX, 0, 0), EFAULT);
	T_ERR(syscall(NR_hread, p[0], buf, SIZE_MAX, SIZE_MAX, 0), EFAULT);
	for (int shift = 31; shift < 64; shift++) {
		n = syscall(NR_hread, p[0], buf, 1ul << shift, 21, HREAD_NOWAIT);
		if (n == -1) {
			T_EXPECT(errno == EINVAL || errno == EFAULT);
			continue;
		}
		/* What is within it, but more than a call reads at once, is cut. */
		T_EQ(n, 5);
		T_MEMEQ(buf, "abcde", 5);
		T_IOLOG(p[0], 25, 21, 0, 0);
		return;
	}
	T_EQ(syscall(NR_hread, p[0], buf, 5, 0, 0), 5);
	T_MEMEQ(buf, "abcde", 5);
	T_IOLOG(p[0], 25, 0, 0, 0);
}

/* ---- errors, of a process with threads: there, a call takes a reference and the lock of the file position ---- */

static void *reads_on(void *arg)
{
	int fd = *(int *)arg;
	char c;

	T_EQ(read(fd, &c, 1), 1);
	T_EQ(lseek(fd, 0, SEEK_CUR), 1);
	T_EQ(lseek(fd, 0, SEEK_SET), 0);
	return NULL;
}

static void *stays(void *arg)
{
	while (!t_word[0])
		t_sleep_ms(1);
	return arg;
}

/* Each of these calls fails. */
static void all_fail(int fd, int other)
{
	struct io_log log;
	char c = 'x';

	T_ERR(syscall(NR_lwrite, fd, &c, 1, 1), EINVAL);
	T_ERR(syscall(NR_hread, fd, &c, 1, 0, ~0u), EINVAL);
	T_ERR(syscall(NR_lsendfile, other, fd, NULL, 1, 1), EINVAL);
	T_ERR(syscall(NR_getiolog, fd, &log, sizeof(log), 1), EINVAL);
	T_ERR(syscall(NR_getiolog, fd, NULL, sizeof(log), 0), EFAULT);
	T_ERR(syscall(NR_getiolog, fd, &log, 1, 0), EINVAL);
	T_ERR(syscall(NR_lsendfile, other, fd, T_KERNEL_PTR, 1, 0), EFAULT);
	T_ERR(syscall(NR_lsendfile, fd, -1, NULL, 1, 0), EBADF);
	T_ERR(syscall(NR_lsendfile, -1, fd, NULL, 1, 0), EBADF);
}

T(errors_beside_a_thread)
{
	int p[2], q[2], file;
	pthread_t other, t;
	char path[PATH_MAX];

	signal(SIGPIPE, SIG_IGN);
	T_ASSERT(!pthread_create(&other, NULL, stays, NULL));
	t_write_file(t_path(path, "file"), "abc", 3, 0600);
	file = T_OK(open(path, O_RDONLY));
	T_OK(pipe(p));
	T_OK(pipe(q));
	for (int i = 0; i < 3; i++) {
		T_ERR(x_lwrite(file, "x", 1), EBADF);
		T_ERR(x_lwrite(file, "x", 0), EBADF);
		T_ERR(x_hread(file, path, 1, 0), EINVAL);
		T_ERR(x_lsendfile(file, file, NULL, 1), EBADF);
		all_fail(file, q[1]);
		/* Another thread can read, and move the position. */
		T_ASSERT(!pthread_create(&t, NULL, reads_on, &file));
		T_ASSERT(!pthread_join(t, NULL));
	}
	T_ASSERT(write(p[1], "abc", 3) == 3);
	T_ERR(x_lwrite(p[0], "x", 1), EBADF);
	T_ERR(x_hread(p[1], path, 1, 0), EBADF);
	T_ERR(x_hread(p[0], T_KERNEL_PTR, 1, 0), EFAULT);
	T_ERR(x_hread(p[0], t_none(), 1, 0), EFAULT);
	T_ERR(x_hread(p[0], path, 1, 9), EINVAL);
	T_ERR(x_hread_nowait(p[0], path, 9, 9), EINVAL);
	T_ERR(x_lwrite(p[1], t_none(), 1), EFAULT);
	all_fail(p[0], q[1]);
	/* No reference is left: the last close is one. */
	close(p[0]);
	T_ERR(write(p[1], "x", 1), EPIPE);
	t_word[0] = 1;
	T_ASSERT(!pthread_join(other, NULL));
}

static int uring(void)
{
	struct io_uring_params params = { 0 };
	int fd = syscall(SYS_io_uring_setup, 4, &params);

	return fd;
}

static int pty(bool slave)
{
	int m = T_OK(posix_openpt(O_RDWR | O_NOCTTY)), s;

	T_OK(grantpt(m));
	T_OK(unlockpt(m));
	s = T_OK(open(ptsname(m), O_RDWR | O_NOCTTY | O_NONBLOCK));
	T_OK(fcntl(m, F_SETFL, O_RDWR | O_NONBLOCK));
	return slave ? s : m;
}

static int file(int flags)
{
	static int nr;
	char path[PATH_MAX], name[16];

	snprintf(name, sizeof(name), "file%d", nr++);
	t_write_file(t_path(path, name), "0123456789", 10, 0600);
	return T_OK(open(path, flags));
}

static int closed(void)
{
	int fd = dup(0);

	close(fd);
	return fd;
}

static int one_of(int (*make)(int *), int nr)
{
	int p[2];

	T_OK(make(p));
	return p[nr];
}

static int unix_listener(void)
{
	int fd = T_OK(socket(AF_UNIX, SOCK_STREAM, 0));

	T_OK(bind(fd, &(struct sockaddr){ .sa_family = AF_UNIX }, sizeof(sa_family_t)));
	T_OK(listen(fd, 1));
	return fd;
}

static int signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	return signalfd(-1, &set, SFD_NONBLOCK);
}

/* Files of every kind, with what hread() and lwrite() answer: 0 for "as read(2), write(2)". */
static struct kind {
	const char *name;
	int fd, hread, lwrite, iolog;
} kinds[40];

static int make_kinds(void)
{
	int n = 0;

#define KIND(what, make, rd, wr, lg) do { \
	kinds[n] = (struct kind){ what, make, rd, wr, lg }; \
	n += kinds[n].fd >= 0 || rd == EBADF; \
} while (0)
	KIND("-1", -1, EBADF, EBADF, EBADF);
	KIND("INT_MIN", INT_MIN, EBADF, EBADF, EBADF);
	KIND("INT_MAX", INT_MAX, EBADF, EBADF, EBADF);
	KIND("closed", closed(), EBADF, EBADF, EBADF);
	KIND("O_PATH", file(O_PATH), EBADF, EBADF, EBADF);
	KIND("O_PATH of a directory", open("/", O_PATH), EBADF, EBADF, EBADF);
	KIND("write end", one_of(pipe, 1), EBADF, 0, 0);
	KIND("read end", one_of(pipe, 0), 0, EBADF, 0);
	KIND("file, O_WRONLY", file(O_WRONLY), EBADF, 0, 0);
	KIND("file, O_RDONLY", file(O_RDONLY), EINVAL, EBADF, 0);
	KIND("file", file(O_RDWR), EINVAL, 0, 0);
	KIND("memfd", memfd_create("x", 0), EINVAL, 0, 0);
	KIND("directory", open("/", O_RDONLY), EISDIR, EBADF, 0);
	KIND("proc file", open("/proc/self/stat", O_RDONLY), EINVAL, EBADF, 0);
	KIND("epoll", epoll_create1(0), EINVAL, EINVAL, 0);
	KIND("pidfd", syscall(SYS_pidfd_open, getpid(), 0), EINVAL, EINVAL, 0);
	KIND("io_uring", uring(), EINVAL, EINVAL, 0);
	KIND("timerfd", timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), 0, EINVAL, 0);
	KIND("eventfd", eventfd(0, EFD_NONBLOCK), 0, 0, 0);
	KIND("signalfd", signals(), 0, EINVAL, 0);
	KIND("inotify", inotify_init1(IN_NONBLOCK), EINVAL, EBADF, 0);
	KIND("pty master", pty(false), 0, 0, 0);
	KIND("pty slave", pty(true), 0, 0, 0);
	KIND("listening socket", unix_listener(), 0, 0, 0);
	KIND("TCP socket, not connected", socket(AF_INET, SOCK_STREAM, 0), 0, 0, 0);
	KIND("datagram socket, not bound", socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0), 0, 0, 0);
	KIND("/dev/null", open("/dev/null", O_RDWR), EINVAL, 0, 0);
	KIND("/dev/full", open("/dev/full", O_WRONLY), EBADF, 0, 0);
#undef KIND
	return n;
}

TV(kinds_of_file)
{
	int n = make_kinds();
	struct io_log log, zero = { 0 };
	char buf[16] = "", want[16] = "";

	signal(SIGPIPE, SIG_IGN);
	T_OK(fcntl(kinds[7].fd, F_SETFL, O_NONBLOCK));
	for (struct kind *k = kinds; k < kinds + n; k++) {
		long got = -1, other;
		int err;

		t_context = k->name;
		if (k->iolog) {
			T_ERR(x_getiolog(k->fd, &log), k->iolog);
		} else {
			memset(&log, 0xa5, sizeof(log));
			T_EQ(x_getiolog(k->fd, &log), 0);
			T_MEMEQ(&log, &zero, sizeof(log));
		}
		if (k->hread) {
			T_ERR(x_hread(k->fd, buf, 8, 0), k->hread);
			T_ERR(x_hread_nowait(k->fd, buf, 8, 0), k->hread);
			/* The file is looked at before the pointers. */
			T_ERR(x_hread(k->fd, T_KERNEL_PTR, 8, 100), k->hread);
		} else {
			errno = 0;
			got = x_hread(k->fd, buf, 8, 0);
			err = errno;
			errno = 0;
			other = read(k->fd, want, 8);
			t_check(got == other && err == errno, __FILE__, __LINE__,
				"hread() gave %ld (errno %s), read() %ld (%s)", got, strerrorname_np(err),
				other, strerrorname_np(errno));
		}
		if (k->lwrite) {
			T_ERR(x_lwrite(k->fd, "12345678", 8), k->lwrite);
		} else {
			errno = 0;
			got = x_lwrite(k->fd, "\0\0\0\0\0\0\0\1", 8);
			err = errno;
			errno = 0;
			other = write(k->fd, "\0\0\0\0\0\0\0\1", 8);
			t_check(got == other && (got >= 0 || err == errno), __FILE__, __LINE__,
				"lwrite() gave %ld (errno %s), write() %ld (%s)", got,
				strerrorname_np(err), other, strerrorname_np(errno));
		}
		if (!k->iolog) {
			T_EQ(x_getiolog(k->fd, &log), 0);
			T_EQ(log.held, 0);
			T_EQ(log.written, k->lwrite || got < 0 ? 0 : got);
		}
	}
	/* A regular file's offset does not move. */
	T_EQ(lseek(kinds[9].fd, 0, SEEK_CUR), 0);
}

T(lwrite_flags)
{
	int p[2];

	T_OK(pipe(p));
	for (int bit = 0; bit < 32; bit++) {
		T_ERR(syscall(NR_lwrite, p[1], "x", 1, 1u << bit), EINVAL);
		T_ERR(syscall(NR_lwrite, -1, T_KERNEL_PTR, 1, 1u << bit), EINVAL);
		T_ERR(syscall(NR_lsendfile, p[1], -1, NULL, 1, 1u << bit), EINVAL);
	}
	T_IOLOG(p[1], 0, 0, 0, 0);
}

TV(lwrite_basic)
{
	char buf[8192], back[8192];
	int p[2];

	T_OK(pipe2(p, O_NONBLOCK));
	t_fill(buf, sizeof(buf), 0);
	T_EQ(x_lwrite(p[1], buf, 1), 1);
	T_EQ(x_lwrite(p[1], buf + 1, 4999), 4999);
	T_IOLOG(p[1], 0, 0, 0, 5000);
	T_EQ(write(p[1], buf + 5000, 1000), 1000);
	T_IOLOG(p[1], 0, 0, 0, 5000);
	T_EQ(read(p[0], back, sizeof(back)), 6000);
	T_EQ(t_match(back, 6000, 0), 6000);
	T_IOLOG(p[0], 0, 0, 0, 0);
	/* Nothing written, on whatever file and from wherever. */
	T_EQ(x_lwrite(p[1], NULL, 0), 0);
	T_EQ(x_lwrite(p[1], T_KERNEL_PTR, 0), 0);
	T_EQ(x_lwrite(epoll_create1(0), NULL, 0), 0);
	T_EQ(x_lwrite(open("/dev/full", O_WRONLY), NULL, 0), 0);
	T_ERR(x_lwrite(-1, NULL, 0), EBADF);
	T_ERR(x_lwrite(p[0], NULL, 0), EBADF);
	T_ERR(read(p[0], back, 1), EAGAIN);
}

TV(lwrite_pointers)
{
	void *bad[] = BAD_PTRS;
	char back[65536];
	uint64_t sent = 0;
	int p[2];

	T_OK(pipe2(p, O_NONBLOCK));
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		T_ERR(x_lwrite(p[1], bad[i], 10), EFAULT);
	T_IOLOG(p[1], 0, 0, 0, 0);
	for (size_t k = 0; k < 6000; k += 1 + k / 4) {
		char *buf = t_edge(k);
		long n;

		t_fill(buf, k, sent);
		n = x_lwrite(p[1], buf, 9000);
		if (n < 0)
			T_EQ(errno, EFAULT);
		else
			T_RANGE(n, 1, k);
		n = n < 0 ? 0 : n;
		T_EQ(n ? read(p[0], back, sizeof(back)) : 0, n);
		T_EQ(t_match(back, n, sent), n);
		sent += n;
		T_IOLOG(p[1], 0, 0, 0, sent);
		T_ERR(read(p[0], back, 1), EAGAIN);
	}
}

TV(lwrite_errors)
{
	char buf[65536] = "", path[PATH_MAX];
	struct rlimit limit = { 5000, RLIM_INFINITY };
	long n, sent = 0;
	int p[2], fd;

	signal(SIGPIPE, SIG_IGN);
	T_OK(pipe2(p, O_NONBLOCK));
	while ((n = x_lwrite(p[1], buf, 5000)) > 0)
		sent += n;
	T_EQ(errno, EAGAIN);
	T_IOLOG(p[1], 0, 0, 0, sent);
	T_EXPECT(sent > 0);
	close(p[0]);
	T_ERR(x_lwrite(p[1], buf, 1), EPIPE);
	T_IOLOG(p[1], 0, 0, 0, sent);

	fd = T_OK(open("/dev/full", O_WRONLY));
	T_ERR(x_lwrite(fd, buf, 10), ENOSPC);
	T_IOLOG(fd, 0, 0, 0, 0);

	/* Regular files: positions, O_APPEND and limits are those of write(2). */
	signal(SIGXFSZ, SIG_IGN);
	fd = T_OK(open(t_path(path, "f"), O_RDWR | O_CREAT | O_APPEND, 0600));
	T_EQ(x_lwrite(fd, buf, 4000), 4000);
	T_OK(lseek(fd, 0, SEEK_SET));
	T_OK(setrlimit(RLIMIT_FSIZE, &limit));
	T_EQ(x_lwrite(fd, buf, 4000), 1000);
	T_ERR(x_lwrite(fd, buf, 4000), EFBIG);
	T_EQ(lseek(fd, 0, SEEK_CUR), 5000);
	T_IOLOG(fd, 0, 0, 0, 5000);

	T_CHILD {
		T_OK(pipe(p));
		close(p[0]);
		signal(SIGPIPE, SIG_DFL);
		T_KILLED(({ pid_t pid = t_fork(); if (!pid) { x_lwrite(p[1], buf, 1); _exit(0); } t_wait(pid); }),
			 SIGPIPE);
	}
}

static int drain[2];	/* [1] is where the tests of lsendfile() find what [0] was sent */

/* lsendfile() answers what sendfile(2) answers, moves what it moves, and counts. */
static void both(int out, int in, const off_t *offset, size_t count)
{
	struct io_log before = { 0 }, after = { 0 };
	off_t mine = offset ? *offset : 0, theirs = mine, pos = lseek(in, 0, SEEK_CUR), moved;
	long got, other;
	char buf[64];
	int err;

	x_getiolog(out, &before);
	errno = 0;
	got = x_lsendfile(out, in, offset ? &mine : NULL, count);
	err = errno;
	x_getiolog(out, &after);
	moved = lseek(in, 0, SEEK_CUR);
	if (pos >= 0)
		lseek(in, pos, SEEK_SET);
	errno = 0;
	other = sendfile(out, in, offset ? &theirs : NULL, count);
	t_check(got == other && err == errno, __FILE__, __LINE__,
		"offset %ld, count %zu: lsendfile() gave %ld (%s), sendfile() %ld (%s)", offset ? *offset : -1,
		count, got, strerrorname_np(err), other, strerrorname_np(errno));
	T_EQ(mine, theirs);
	T_EQ(moved, lseek(in, 0, SEEK_CUR));
	T_EQ(after.written - before.written, got > 0 ? got : 0);
	if (pos >= 0)
		lseek(in, pos, SEEK_SET);
	while (recv(drain[1], buf, sizeof(buf), MSG_DONTWAIT) > 0)
		;
}

TV(lsendfile_as_sendfile)
{
	static const off_t offsets[] = { 0, 1, 9, 10, 11, 1l << 31, 1l << 32, INT64_MAX, -1 };
	static const size_t counts[] = { 0, 1, 9, 10, 11, 1ul << 31, SIZE_MAX / 2, SIZE_MAX };
	int n = make_kinds(), in = file(O_RDONLY), *s = drain;
	off_t *bad[] = { T_KERNEL_PTR, T_NONCANON_PTR, t_gone(), t_none(), (void *)-1l };
	char buf[64];

	signal(SIGPIPE, SIG_IGN);
	T_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, s));
	T_OK(fcntl(kinds[7].fd, F_SETFL, O_NONBLOCK));
	for (struct kind *k = kinds; k < kinds + n; k++) {
		off_t zero = 0;

		t_context = k->name;
		both(k->fd, in, NULL, 4);
		both(k->fd, in, &zero, 4);
		both(s[0], k->fd, NULL, 4);
		both(s[0], k->fd, &zero, 4);
	}
	t_context = NULL;
	for (size_t o = 0; o < ARRAY_LEN(offsets); o++) {
		for (size_t c = 0; c < ARRAY_LEN(counts); c++)
			both(s[0], in, &offsets[o], counts[c]);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		T_ERR(x_lsendfile(s[0], in, bad[i], 4), EFAULT);
	T_ERR(recv(s[1], buf, sizeof(buf), 0), EAGAIN);
	T_EQ(lseek(in, 0, SEEK_CUR), 0);

	/* The offset cannot be written back: the bytes are out, and counted. */
	{
		off_t *ro = t_readonly();
		struct io_log log;
		long got;

		T_EQ(x_getiolog(s[0], &log), 0);
		T_ERR(x_lsendfile(s[0], in, ro, 4), EFAULT);
		got = recv(s[1], buf, sizeof(buf), 0);
		T_IOLOG(s[0], 0, 0, 0, log.written + (got > 0 ? got : 0));
	}
	/* From where the file is, and on to its end. */
	T_EQ(x_lsendfile(s[0], in, NULL, 4), 4);
	T_EQ(x_lsendfile(s[0], in, NULL, 40), 6);
	T_EQ(x_lsendfile(s[0], in, NULL, 40), 0);
	T_EQ(recv(s[1], buf, sizeof(buf), 0), 10);
	T_MEMEQ(buf, "0123456789", 10);
}

TV(getiolog_pointers)
{
	void *bad[] = { NULL, T_KERNEL_PTR, T_NONCANON_PTR, t_gone(), t_none(), t_readonly(), (void *)-1l };
	int p[2];

	filled_pipe(p, 10);
	for (int touched = 0; touched < 2; touched++) {
		for (size_t i = 0; i < ARRAY_LEN(bad); i++)
			T_ERR(x_getiolog(p[0], bad[i]), EFAULT);
		for (size_t n = 0; n < IO_LOG_SIZE_VER0; n++)
			T_ERR(x_getiolog(p[0], t_edge(n)), EFAULT);
		T_EQ(x_getiolog(p[0], t_edge(IO_LOG_SIZE_VER0)), 0);
		T_ERR(perdure_getiolog(p[0], t_edge(IO_LOG_SIZE_VER0), IO_LOG_SIZE_VER0 + 1), EFAULT);
		expect_data(p[0], 5, 5 * touched, 0);
	}
}

T(getiolog_sizes)
{
	size_t page = t_page();
	unsigned char *buf = malloc(page + 16), *zero = calloc(1, page), *guard = malloc(page + 16);
	int p[2];

	T_ASSERT(buf && zero && guard);
	filled_pipe(p, 10);
	expect_data(p[0], 7, 0, 3);
	memset(guard, 0xa5, page + 16);
	T_EQ(sizeof(struct io_log), IO_LOG_SIZE_VER0);
	for (size_t size = 0; size <= page + 1; size++) {
		if (size > 200 && size + 2 < page && size % 61)
			continue;
		memcpy(buf, guard, page + 16);
		if (size < IO_LOG_SIZE_VER0 || size > page) {
			int err = size > page ? E2BIG : EINVAL;

			T_ERR(syscall(NR_getiolog, p[0], buf, size, 0), err);
			T_ERR(syscall(NR_getiolog, -1, T_KERNEL_PTR, size, 0), err);
			T_ERR(perdure_getiolog(p[0], (void *)buf, size), err);
			T_MEMEQ(buf, guard, page + 16);
			continue;
		}
		T_EQ(syscall(NR_getiolog, p[0], buf, size, 0), 0);
		T_EQ(((struct io_log *)buf)->read, 7);
		T_EQ(((struct io_log *)buf)->held, 4);
		T_MEMEQ(buf + IO_LOG_SIZE_VER0, zero, size - IO_LOG_SIZE_VER0);
		T_MEMEQ(buf + size, guard, page + 16 - size);
		T_ERR(syscall(NR_getiolog, -1, T_KERNEL_PTR, size, 0), EBADF);
	}
	T_ERR(syscall(NR_getiolog, p[0], buf, SIZE_MAX, 0), E2BIG);
	T_ERR(syscall(NR_getiolog, p[0], buf, 1ul << 32, 0), E2BIG);
	for (int bit = 0; bit < 32; bit++) {
		T_ERR(syscall(NR_getiolog, p[0], buf, IO_LOG_SIZE_VER0, 1u << bit), EINVAL);
		T_ERR(syscall(NR_getiolog, -1, T_KERNEL_PTR, SIZE_MAX, 1u << bit), EINVAL);
	}
}

TV(getiolog_follows_the_open_file)
{
	int p[2], copy, s[2];

	filled_pipe(p, 30);
	expect_data(p[0], 10, 0, 2);
	copy = T_OK(dup(p[0]));
	T_IOLOG(copy, 10, 2, 0, 0);
	T_CHILD {
		T_IOLOG(copy, 10, 2, 0, 0);
		T_IOLOG(p[0], 10, 2, 0, 0);
		close(p[0]);
		close(copy);
	}
	T_IOLOG(p[0], 10, 2, 0, 0);
	close(p[0]);
	expect_data(copy, 5, 10, 0);
	T_IOLOG(copy, 15, 2, 0, 0);
	/* Opened again it is another open file. */
	{
		char path[64];

		snprintf(path, sizeof(path), "/proc/self/fd/%d", copy);
		T_IOLOG(T_OK(open(path, O_RDONLY)), 0, 0, 0, 0);
	}
	/* Both directions of one socket. */
	T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
	T_EQ(x_lwrite(s[0], "abc", 3), 3);
	T_EQ(x_lwrite(s[1], "defgh", 5), 5);
	T_EQ(x_hread(s[0], (char[8]){ 0 }, 8, 1), 5);
	T_IOLOG(s[0], 5, 1, 0, 3);
	T_IOLOG(s[1], 0, 0, 0, 5);
}
