// SPDX-License-Identifier: GPL-2.0-or-later
/* What every call that reads, peeks or counts makes of unread data, with newer data behind it. */
#include "chan.h"
#include "ring.h"
#include "stuck.h"

#include <pthread.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

/* Makes what there is to read unread, by a release that is refused. */
static void make_unread(int fd, int n)
{
	char buf[64];

	READABLE(fd, 1);
	T_ERR(x_hread_nowait(fd, buf, sizeof(buf), 60), EINVAL);
	T_IOLOG(fd, n, 0, n, 0);
}

/* A channel with 20 bytes unread and 10 more behind them */
static void open_unread(const struct kind *k, int fd[2])
{
	k->open(fd);
	feed(fd[1], 20, 0);
	make_unread(fd[0], 20);
	feed(fd[1], 10, 20);
}

/* Reads the rest, which is the stream's from byte @pos to 30. */
static void read_rest(const struct kind *k, int fd, int pos)
{
	char buf[64];

	while (pos < 30) {
		int n = k->flags & STREAM && !(k->flags & TTY) ? 30 - pos : pos < 20 ? 20 - pos : 10;

		READABLE(fd, 1);
		T_EQ(read(fd, buf, sizeof(buf)), n);
		T_EQ(t_match(buf, n, pos), n);
		pos += n;
	}
	T_IOLOG(fd, 20, 20, 0, 0);
}

T(fionread)
{
	for_each_kind(k, ~0) {
		bool next = k->flags & DGRAM && strcmp(k->name, "seqpacket");
		int fd[2], n, left = 1000;
		struct ring ring;

		open_unread(k, fd);
		/* Of datagrams, the size of the next */
		while (k->flags & (TTY | INET) && !ioctl(fd[0], FIONREAD, &n) && n < 30 && !next && left--)
			t_sleep_ms(5);
		n = -1;
		T_OK(ioctl(fd[0], FIONREAD, &n));
		/* Of TLS, what is not decrypted yet counts as it is. */
		if (k->flags & TLS)
			T_RANGE(n, 20 + 10 + 16, 20 + 10 + 40);
		else
			T_EQ(n, next ? 20 : 30);
		/* What io_uring calls SIOCINQ; Unix sockets do not know it. */
		if (k->flags & INET) {
			ring_open(&ring);
			T_EQ(ring_do(&ring, IORING_OP_URING_CMD, fd[0], NULL, 0), n);
			close(ring.fd);
		}
		read_rest(k, fd[0], 0);
		T_OK(ioctl(fd[0], FIONREAD, &n));
		T_EQ(n, 0);
	}
}

/* Pages of the pipe are what splice(), tee() and vmsplice() move: read(2) has to come first. */
T(splice_from_pipe)
{
	for_each_kind(k, PIPE) {
		char buf[64], path[PATH_MAX];
		struct iovec iov = { buf, sizeof(buf) };
		int fd[2], to[2], file;

		open_unread(k, fd);
		T_OK(pipe(to));
		file = T_OK(open(t_path(path, "out"), O_RDWR | O_CREAT | O_TRUNC, 0600));
		T_ERR(splice(fd[0], NULL, to[1], NULL, 64, 0), EINVAL);
		T_ERR(splice(fd[0], NULL, file, NULL, 64, 0), EINVAL);
		T_ERR(tee(fd[0], to[1], 64, 0), EINVAL);
		T_ERR(vmsplice(fd[0], &iov, 1, 0), EINVAL);
		T_EQ(read(fd[0], buf, 20), 20);
		T_EQ(t_match(buf, 20, 0), 20);
		T_EQ(tee(fd[0], to[1], 64, 0), 10);
		T_EQ(read(to[0], buf, 64), 10);
		T_EQ(splice(fd[0], NULL, to[1], NULL, 4, 0), 4);
		T_EQ(read(to[0], buf, 64), 4);
		T_EQ(t_match(buf, 4, 20), 4);
		T_EQ(vmsplice(fd[0], &iov, 1, 0), 6);
		T_EQ(t_match(buf, 6, 24), 6);
		T_IOLOG(fd[0], 20, 20, 0, 0);
	}
}

/* From everything else it gives unread data first. */
T(splice_and_sendfile)
{
	for_each_kind(k, SOCK | TTY) {
		int fd[2], to[2];
		char buf[64];

		open_unread(k, fd);
		T_OK(pipe(to));
		if (splice(fd[0], NULL, to[1], NULL, 8, 0) < 0) {
			/* Of Unix sockets, only streams know it. */
			T_EQ(errno, EINVAL);
			continue;
		}
		T_EQ(read(to[0], buf, 64), 8);
		T_EQ(t_match(buf, 8, 0), 8);
		if (k->flags & STREAM) {
			T_EQ(sendfile(to[1], fd[0], NULL, 12), 12);
			T_EQ(read(to[0], buf, 64), 12);
			T_EQ(t_match(buf, 12, 8), 12);
			read_rest(k, fd[0], 20);
		}
	}
}

/* Flags that a protocol ignores do not lead past what is unread. */
T(other_queues)
{
	for_each_kind(k, SOCK) {
		int fd[2];
		char buf[64];

		open_unread(k, fd);
		if (k->flags & INET) {
			T_ERR(recv(fd[0], buf, 64, MSG_ERRQUEUE | MSG_DONTWAIT), EAGAIN);
			T_IOLOG(fd[0], 20, 0, 20, 0);
		} else if (k->flags & TLS) {
			T_ERR(recv(fd[0], buf, 64, MSG_ERRQUEUE | MSG_DONTWAIT), EAGAIN);
			T_EQ(recv(fd[0], buf, 20, MSG_OOB | MSG_DONTWAIT), 20);
			T_EQ(t_match(buf, 20, 0), 20);
			read_rest(k, fd[0], 20);
			continue;
		} else {
			T_EQ(recv(fd[0], buf, 20, MSG_ERRQUEUE | MSG_DONTWAIT), 20);
			T_EQ(t_match(buf, 20, 0), 20);
			read_rest(k, fd[0], 20);
			continue;
		}
		if (k->flags & DGRAM) {
			T_EQ(recv(fd[0], buf, 64, MSG_OOB | MSG_DONTWAIT), 20);
			T_EQ(t_match(buf, 20, 0), 20);
			read_rest(k, fd[0], 20);
		} else {
			T_ERR(recv(fd[0], buf, 64, MSG_OOB | MSG_DONTWAIT), EINVAL);
			read_rest(k, fd[0], 0);
		}
	}
}

/* What is unread is not in pages that could be mapped: the call says how much is to be read first. */
T(zerocopy_receive)
{
	for_each_kind(k, TCP) {
		struct tcp_zerocopy_receive zc = { .length = 1 << 16 };
		socklen_t len = sizeof(zc);
		int fd[2];
		void *map;

		open_unread(k, fd);
		map = mmap(NULL, zc.length, PROT_READ, MAP_SHARED, fd[0], 0);
		T_ASSERT(map != MAP_FAILED);
		zc.address = (uintptr_t)map;
		T_OK(getsockopt(fd[0], IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &zc, &len));
		T_EQ(zc.length, 0);
		T_EQ(zc.recv_skip_hint, 20);
		T_IOLOG(fd[0], 20, 0, 20, 0);
		read_rest(k, fd[0], 0);
	}
}

T(peek_offset)
{
	for_each_kind(k, SOCK) {
		bool stream = k->flags & STREAM;
		char buf[64];
		int fd[2], off;
		socklen_t len = sizeof(off);

		/* Its own data TLS peeks at from the beginning. */
		if (k->flags & TLS)
			continue;
		open_unread(k, fd);
		if (setsockopt(fd[0], SOL_SOCKET, SO_PEEK_OFF, &(int){ 0 }, sizeof(int))) {
			T_EQ(errno, EOPNOTSUPP);
			continue;
		}
		for (int i = 0; i < 2; i++) {
			T_EQ(recv(fd[0], buf, 8, MSG_PEEK), 8);
			T_EQ(t_match(buf, 8, 8 * i), 8);
		}
		/* Over the border of a stream, to the end of a datagram */
		T_EQ(recv(fd[0], buf, 64, MSG_PEEK | MSG_DONTWAIT), stream ? 14 : 4);
		T_EQ(t_match(buf, stream ? 14 : 4, 16), stream ? 14 : 4);
		if (!stream) {
			T_EQ(recv(fd[0], buf, 64, MSG_PEEK | MSG_DONTWAIT), 10);
			T_EQ(t_match(buf, 10, 20), 10);
		}
		T_ERR(recv(fd[0], buf, 64, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
		T_OK(getsockopt(fd[0], SOL_SOCKET, SO_PEEK_OFF, &off, &len));
		T_EQ(off, 30);
		T_IOLOG(fd[0], 20, 0, 20, 0);

		/* What is read is no longer before it. */
		T_EQ(recv(fd[0], buf, stream ? 10 : 64, 0), stream ? 10 : 20);
		T_OK(getsockopt(fd[0], SOL_SOCKET, SO_PEEK_OFF, &off, &len));
		T_EQ(off, stream ? 20 : 10);
		feed(fd[1], 5, 30);
		READABLE(fd[0], 1);
		for (int left = 1000; left && recv(fd[0], buf, 64, MSG_PEEK | MSG_DONTWAIT) != 5; left--)
			t_sleep_ms(5);
		T_EQ(t_match(buf, 5, 30), 5);
		if (stream)
			GET_ALL(fd[0], 25, 10, 25);
	}
}

/* The control message says what is left, here and there. */
T(tcp_inq)
{
	for_each_kind(k, TCP) {
		int fd[2], left[] = { 22, 0 };

		open_unread(k, fd);
		T_OK(setsockopt(fd[0], IPPROTO_TCP, TCP_INQ, &(int){ 1 }, sizeof(int)));
		for (int n, i = 0; i < 1000 && !ioctl(fd[0], FIONREAD, &n) && n < 30; i++)
			t_sleep_ms(5);
		for (int i = 0; i < 2; i++) {
			char control[CMSG_SPACE(sizeof(int))], buf[64];
			struct iovec iov = { buf, i ? 64 : 8 };
			struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
					      .msg_controllen = sizeof(control) };
			struct cmsghdr *cmsg;
			int inq;

			T_EQ(recvmsg(fd[0], &msg, 0), i ? 22 : 8);
			cmsg = CMSG_FIRSTHDR(&msg);
			T_ASSERT(cmsg && cmsg->cmsg_level == SOL_TCP && cmsg->cmsg_type == TCP_CM_INQ);
			memcpy(&inq, CMSG_DATA(cmsg), sizeof(inq));
			T_EQ(inq, left[i]);
		}
	}
}

/* ---- order ---- */

ROLE(rewound)
{
	t_word[atoi(argv[0])] = 2;
	t_sleep_ms(1000000);
	return 0;
}

/* Reads every second ten bytes when it is told to, and faults when it is told to. */
static pid_t every_second(int me)
{
	pid_t pid = t_fork();

	if (!pid) {
		char name[2] = { '0' + me, 0 };

		t_register("rewound", name, NULL);
		for (int i = 0; i < 5; i++) {
			while (t_word[0] != (uint64_t)(2 * i + me))
				t_sleep_ms(1);
			READABLE(RD, 1);
			GET(RD, 10, 20 * i + 10 * (me - 1), 0);
			t_word[3] = 2 * i + me;
		}
		while (t_word[me] != 1)
			t_sleep_ms(1);
		t_crash();
	}
	return pid;
}

/* Two processes share a stream. Whoever restarts first, what they held comes back in the order of the stream. */
T_LIMIT(order_of_the_stream, 60)
{
	for (int first = 1; first <= 2; first++) {
		for_each_kind(k, ~0) {
			char buf[128];
			pid_t pid[2];
			int n = 0;

			open_at(k, RD, WR);
			t_word[0] = t_word[1] = t_word[2] = t_word[3] = 0;
			for (int i = 0; i < 2; i++)
				pid[i] = every_second(i + 1);
			for (int i = 0; i < 10; i++) {
				feed(WR, 10, 10 * i);
				t_word[0] = i + 1;
				while (t_word[3] != (uint64_t)i + 1)
					t_sleep_ms(1);
			}
			for (int i = 0; i < 2; i++) {
				int who = i ? 3 - first : first;

				t_word[who] = 1;
				while (t_word[who] != 2)
					t_sleep_ms(1);
				T_IOLOG(RD, 100, 0, 50 * i + 50, 0);
			}
			while (n < 100)
				n += T_OK(read(RD, buf + n, sizeof(buf) - n));
			T_EQ(t_match(buf, 100, 0), 100);
			for (int i = 0; i < 2; i++)
				t_reap(pid[i]);
		}
	}
}

/* ---- errors that are of one call only ---- */

/* The buffer's bad part was met behind unread data: the next call does not say so. */
T(bad_buffer_does_not_stick)
{
	for_each_kind(k, STREAM) {
		char *edge = t_edge(20);
		int fd[2];

		if (k->flags & TTY)
			continue;
		open_unread(k, fd);
		T_EQ(read(fd[0], edge, 64), 20);
		T_EQ(t_match(edge, 20, 0), 20);
		read_rest(k, fd[0], 20);
	}
	for_each_kind(k, ~0) {
		char *edge = t_edge(10);
		int fd[2];

		open_unread(k, fd);
		T_ERR(x_hread(fd[0], edge, 20, 0), EFAULT);
		read_rest(k, fd[0], 0);
	}
}

/* Nor is the want of room met behind unread data. */
T(full_does_not_stick)
{
	enum { MAX = 4096 };

	for_each_kind(k, STREAM) {
		char buf[2 * MAX];
		int fd[2];

		if (k->flags & TTY)
			continue;
		T_OK(t_sysctl("held_bytes_max", MAX));
		k->open(fd);
		feed(fd[1], MAX, 0);
		READABLE(fd[0], 1);
		for (int n = 0, left = 1000; n < MAX && left; left--)
			T_OK(ioctl(fd[0], FIONREAD, &n));
		T_ERR(x_hread_nowait(fd[0], buf, 2 * MAX, 2 * MAX), EINVAL);
		T_IOLOG(fd[0], MAX, 0, MAX, 0);
		feed(fd[1], 10, MAX);
		T_EQ(x_hread_nowait(fd[0], buf, 2 * MAX, 0), MAX);
		T_EQ(x_hread(fd[0], NULL, 0, MAX), 0);
		GET(fd[0], 10, MAX, 10);
		T_IOLOG(fd[0], MAX + 10, MAX + 10, 0, 0);
	}
	T_OK(t_sysctl("held_bytes_max", 1048576));
}

/* ---- messages that say who sent them ---- */

/* Receives up to 64 bytes, and tells the user who sent them: -1 when nothing is said. */
static ssize_t receive_from(int fd, char *buf, int *uid)
{
	char control[CMSG_SPACE(sizeof(struct ucred))];
	struct iovec iov = { buf, 64 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(fd, &msg, 0);
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	*uid = -1;
	if (n >= 0 && c) {
		T_EQ(c->cmsg_type, SCM_CREDENTIALS);
		*uid = ((struct ucred *)CMSG_DATA(c))->uid;
	}
	return n;
}

/* Who sent what was held is not held: neither root nor the next one is said to have. */
T(sender_is_nobody_else)
{
	for (int more = 0; more < 2; more++) {
		char buf[64];
		int fd[2], uid;

		T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
		T_OK(setsockopt(fd[0], SOL_SOCKET, SO_PASSCRED, &(int){ 1 }, sizeof(int)));
		feed(fd[1], 20, 0);
		make_unread(fd[0], 20);
		if (more)
			T_CHILD {
				t_drop_root();
				feed(fd[1], 10, 20);
			}
		T_EQ(receive_from(fd[0], buf, &uid), 20);
		T_EQ(t_match(buf, 20, 0), 20);
		T_EQ(uid, -1);
		if (more) {
			T_EQ(receive_from(fd[0], buf, &uid), 10);
			T_EQ(t_match(buf, 10, 20), 10);
			T_EQ(uid, T_NOBODY);
		}
	}
}

/* ---- one that reads is stopped on its way ---- */

static struct stuck stuck;

static void *hreads_into_what_is_missing(void *arg)
{
	T_EQ(x_hread(RD, stuck.page, 8, 0), 8);
	return arg;
}

/* The others wait for it, if they may wait, and can be killed. */
T(reader_is_stopped)
{
	pthread_t thread;
	int fd[2], status;
	char buf[64];
	struct iovec iov = { buf, sizeof(buf) };
	pid_t pid;

	T_OK(pipe(fd));
	T_OK(dup2(fd[0], RD));
	feed(fd[1], 20, 0);
	make_unread(RD, 20);
	stuck_open(&stuck);
	T_ASSERT(!pthread_create(&thread, NULL, hreads_into_what_is_missing, NULL));
	stuck_wait(&stuck);
	T_ERR(preadv2(RD, &iov, 1, -1, RWF_NOWAIT), EAGAIN);
	pid = t_fork();
	if (!pid) {
		read(RD, buf, sizeof(buf));
		_exit(1);
	}
	waits_for_good(pid);
	T_OK(kill(pid, SIGKILL));
	status = t_wait(pid);
	T_KILLED(status, SIGKILL);
	stuck_end(&stuck);
	T_ASSERT(!pthread_join(thread, NULL));
	T_EQ(preadv2(RD, &iov, 1, -1, RWF_NOWAIT), 12);
	T_EQ(t_match(buf, 12, 8), 12);
}
