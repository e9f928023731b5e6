// SPDX-License-Identifier: GPL-2.0-or-later
/* hread() and lwrite() on every kind of channel: waiting, signals, ends, errors, and what a restart gives back. */
#include "chan.h"

#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/timerfd.h>

/* ---- hold and rewind ---- */

ROLE(rewound)
{
	const struct kind *k = kind_named(argv[0]);

	/* Of 100 + 50 bytes, 30 were released; 70 more are in the file. */
	T_EQ(t_generation(), 2);
	T_IOLOG(RD, 150, 30, 120, 0);
	READABLE(RD, 1);
	if (k->flags & DGRAM) {
		GET_ALL(RD, 70, 30, 0);
		T_IOLOG(RD, 150, 30, 50, 0);
		GET_ALL(RD, 50, 100, 0);
		GET_ALL(RD, 70, 150, 190);
	} else if (k->flags & TTY) {
		GET(RD, 70, 30, 0);
		GET(RD, 50, 100, 0);
		GET(RD, 70, 150, 190);
	} else {
		GET_ALL(RD, 190, 30, 190);
	}
	T_IOLOG(RD, 220, 220, 0, 0);
	EMPTY(RD);
	return 0;
}

T(hold_and_rewind)
{
	for_each_kind(k, ~0) {
		T_CHILD {
			open_at(k, RD, WR);
			feed(WR, 100, 0);
			READABLE(RD, 1);
			GET(RD, 100, 0, 0);
			EMPTY(RD);
			T_IOLOG(RD, 100, 0, 0, 0);
			feed(WR, 50, 100);
			READABLE(RD, 1);
			GET(RD, 50, 100, 30);
			EMPTY(RD);
			T_IOLOG(RD, 150, 30, 0, 0);
			feed(WR, 70, 150);
			t_register("rewound", k->name, NULL);
			t_crash();
		}
	}
}

ROLE(nothing_left)
{
	kind_named(argv[0]);
	T_EQ(t_generation(), 2);
	T_IOLOG(RD, 100, 100, 0, 0);
	EMPTY(RD);
	feed(WR, 20, 100);
	READABLE(RD, 1);
	GET(RD, 20, 100, 0);
	return 0;
}

T(released_stays_released)
{
	for_each_kind(k, ~0) {
		T_CHILD {
			open_at(k, RD, WR);
			feed(WR, 100, 0);
			READABLE(RD, 1);
			GET(RD, 100, 0, 0);
			T_EQ(x_hread(RD, NULL, 0, 100), 0);
			T_IOLOG(RD, 100, 100, 0, 0);
			t_register("nothing_left", k->name, NULL);
			t_crash();
		}
	}
}

/* Again and again: what is read once more and not released comes once more. */
ROLE(once_more)
{
	int gen = t_generation();

	kind_named(argv[0]);
	READABLE(RD, 1);
	GET(RD, 40, 10 * (gen - 2), 10);
	if (gen < 5)
		t_crash();
	T_IOLOG(RD, 70, 40, 0, 0);
	return 0;
}

T(rewind_many_times)
{
	for_each_kind(k, STREAM) {
		if (k->flags & TTY)
			continue;
		T_CHILD {
			open_at(k, RD, WR);
			feed(WR, 70, 0);
			GET(RD, 70, 0, 0);
			t_register("once_more", k->name, NULL);
			t_crash();
		}
	}
}

/* ---- waiting ---- */

T(blocks_until_data)
{
	for_each_kind(k, ~0) {
		uint64_t start = t_now_ns();
		pid_t pid;
		int fd[2];

		k->open(fd);
		pid = t_fork();
		if (!pid) {
			t_sleep_ms(60);
			feed(fd[1], 10, 0);
			t_sleep_ms(100000);
		}
		GET(fd[0], 10, 0, 0);
		T_EXPECT(t_now_ns() - start > 50000000);
		t_reap(pid);
	}
}

T(does_not_block)
{
	for_each_kind(k, ~0) {
		char buf[8];
		int fd[2];

		k->open(fd);
		T_ERR(x_hread_nowait(fd[0], buf, 8, 0), EAGAIN);
		T_OK(fcntl(fd[0], F_SETFL, O_NONBLOCK));
		T_ERR(x_hread(fd[0], buf, 8, 0), EAGAIN);
		feed(fd[1], 5, 0);
		READABLE(fd[0], 1);
		GET(fd[0], 5, 0, 0);
		T_ERR(x_hread(fd[0], buf, 8, 2), EAGAIN);
		T_IOLOG(fd[0], 5, 0, 0, 0);
	}
}

T(receive_timeout)
{
	struct timeval tv = { 0, 60000 };

	for_each_kind(k, SOCK) {
		uint64_t start;
		char buf[8];
		int fd[2];

		k->open(fd);
		T_OK(setsockopt(fd[0], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
		start = t_now_ns();
		T_ERR(x_hread(fd[0], buf, 8, 0), EAGAIN);
		T_EXPECT(t_now_ns() - start > 50000000);
		feed(fd[1], 5, 0);
		GET(fd[0], 5, 0, 0);
	}
}

T(signals_interrupt)
{
	t_handle(SIGUSR1, t_on_signal, 0);
	for_each_kind(k, ~0) {
		pid_t pid = t_signaller(getpid(), SIGUSR1, 30);
		char buf[8];
		int fd[2];

		k->open(fd);
		T_ERR(x_hread(fd[0], buf, 8, 0), EINTR);
		t_reap(pid);
		T_IOLOG(fd[0], 0, 0, 0, 0);
		feed(fd[1], 5, 0);
		GET(fd[0], 5, 0, 0);
	}
}

T(signals_restart_the_call)
{
	t_handle(SIGUSR1, t_on_signal, SA_RESTART);
	for_each_kind(k, ~0) {
		pid_t pid = t_signaller(getpid(), SIGUSR1, 10), writer;
		int fd[2];

		k->open(fd);
		feed(fd[1], 5, 0);
		GET(fd[0], 5, 0, 0);
		writer = t_fork();
		if (!writer) {
			t_sleep_ms(100);
			feed(fd[1], 7, 5);
			t_sleep_ms(100000);
		}
		GET(fd[0], 7, 5, 5);
		T_IOLOG(fd[0], 12, 5, 0, 0);
		t_reap(pid);
		t_reap(writer);
	}
}

/* With bytes in hand there is no waiting, not even for SO_RCVLOWAT. */
T(low_water)
{
	for_each_kind(k, TCP) {
		pid_t pid;
		char buf[64];
		int fd[2];

		k->open(fd);
		T_OK(setsockopt(fd[0], SOL_SOCKET, SO_RCVLOWAT, &(int){ 10 }, sizeof(int)));
		feed(fd[1], 5, 0);
		t_sleep_ms(20);
		READABLE(fd[0], 0);
		pid = t_fork();
		if (!pid) {
			t_sleep_ms(60);
			feed(fd[1], 5, 5);
			t_sleep_ms(100000);
		}
		T_EQ(x_hread(fd[0], buf, sizeof(buf), 0), 10);
		t_reap(pid);
		feed(fd[1], 10, 10);
		READABLE(fd[0], 1);
		/* Unread again: 10 bytes are in hand. */
		T_ERR(x_hread(fd[0], buf, 12, 22), EINVAL);
		T_IOLOG(fd[0], 20, 0, 10, 0);
		READABLE(fd[0], 1);
		GET(fd[0], 4, 10, 0);
		READABLE(fd[0], 1);
		GET_ALL(fd[0], 6, 14, 0);
		READABLE(fd[0], 0);
	}
}

/* What a refused hread() made unread is an event too. */
T(refused_is_readable)
{
	for_each_kind(k, ~0) {
		struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
		int ep = T_OK(epoll_create1(0)), fd[2];
		char buf[64];

		k->open(fd);
		T_OK(epoll_ctl(ep, EPOLL_CTL_ADD, fd[0], &ev));
		feed(fd[1], 10, 0);
		T_EQ(epoll_wait(ep, &ev, 1, 5000), 1);
		T_EQ(epoll_wait(ep, &ev, 1, 0), 0);
		T_ERR(x_hread(fd[0], buf, sizeof(buf), 20), EINVAL);
		T_EQ(epoll_wait(ep, &ev, 1, 5000), 1);
		READABLE(fd[0], 1);
		GET(fd[0], 10, 0, 10);
		T_EQ(epoll_wait(ep, &ev, 1, 0), 0);
		close(ep);
	}
}

/* ---- ends and errors ---- */

ROLE(end_comes_last)
{
	char buf[64];

	kind_named(argv[0]);
	T_EQ(t_generation(), 2);
	READABLE(RD, 1);
	GET_ALL(RD, 50, 0, 0);
	T_EQ(x_hread(RD, buf, 64, 0), 0);
	T_EQ(x_hread(RD, buf, 64, 20), 0);
	T_ERR(x_hread(RD, buf, 64, 31), EINVAL);
	T_EQ(x_hread(RD, buf, 64, 30), 0);
	T_IOLOG(RD, 50, 50, 0, 0);
	T_EQ(read(RD, buf, 64), 0);
	return 0;
}

T(end_of_file)
{
	for_each_kind(k, STREAM) {
		if (k->flags & TTY)
			continue;
		T_CHILD {
			char buf[64];

			open_at(k, RD, WR);
			feed(WR, 50, 0);
			close(WR);
			GET(RD, 30, 0, 0);
			GET_ALL(RD, 20, 30, 0);
			T_EQ(x_hread(RD, buf, 64, 0), 0);
			T_EQ(x_hread(RD, buf, 64, 0), 0);
			T_IOLOG(RD, 50, 0, 0, 0);
			t_register("end_comes_last", k->name, NULL);
			t_crash();
		}
	}
}

/* A packet in a ring: poll() tells of it, a read does not give it. Whoever waits can be killed. */
T(packet_ring)
{
	struct tpacket_req ring = { .tp_block_size = 4096, .tp_block_nr = 1, .tp_frame_size = 2048, .tp_frame_nr = 2 };
	int fd = T_OK(socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL))), udp[2], status;
	pid_t pid;

	T_OK(setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof(ring)));
	open_udp4(udp);
	feed(udp[1], 10, 0);
	READABLE(fd, 1);
	pid = t_fork();
	if (!pid) {
		char buf[64];

		T_ERR(x_hread(fd, buf, sizeof(buf), 0), 0);
		_exit(1);
	}
	t_sleep_ms(200);
	T_EQ(waitpid(pid, &status, WNOHANG), 0);
	t_reap(pid);
}

ROLE(as_it_was)
{
	kind_named(argv[0]);
	T_EQ(t_generation(), 2);
	GET_ALL(RD, 4096, 0, 0);
	return 0;
}

/* What was read does not change with the file that it was sent from */
T(sent_from_a_file)
{
	for_each_kind(k, TCP) {
		T_CHILD {
			int file = T_OK(memfd_create("page", MFD_CLOEXEC));
			char page[4096];
			off_t off = 0;

			t_fill(page, sizeof(page), 0);
			T_EQ(pwrite(file, page, sizeof(page), 0), 4096);
			open_at(k, RD, WR);
			T_EQ(sendfile(WR, file, &off, sizeof(page)), 4096);
			READABLE(RD, 1);
			GET_ALL(RD, 4096, 0, 0);
			memset(page, 'x', sizeof(page));
			T_EQ(pwrite(file, page, sizeof(page), 0), 4096);
			t_register("as_it_was", k->name, NULL);
			t_crash();
		}
	}
}

static int leaves_after;

static void *says_and_leaves(void *fd)
{
	for (volatile int i = leaves_after; i > 0; i--)
		;
	feed((intptr_t)fd, 100, 0);
	close((intptr_t)fd);
	return NULL;
}

/* A sender that leaves at once: its data comes before the end, whenever a waiting hread() looks */
T_LIMIT(last_words, 60)
{
	for_each_kind(k, SOCK) {
		if (!(k->flags & STREAM))
			continue;
		for (int i = 0; i < 200; i++) {
			char buf[64];
			pthread_t t;
			int fd[2];

			k->open(fd);
			leaves_after = i * 50;
			T_ASSERT(!pthread_create(&t, NULL, says_and_leaves, (void *)(intptr_t)fd[1]));
			GET(fd[0], 100, 0, 0);
			T_EQ(x_hread(fd[0], buf, sizeof(buf), 100), 0);
			pthread_join(t, NULL);
			close(fd[0]);
		}
	}
}

T(reset_connection)
{
	for_each_kind(k, TCP) {
		struct linger linger = { 1, 0 };
		char buf[64];
		int fd[2];

		k->open(fd);
		feed(fd[1], 10, 0);
		T_ERR(x_hread(fd[0], buf, 20, 15), EINVAL);
		T_IOLOG(fd[0], 10, 0, 10, 0);
		T_OK(setsockopt(fd[1], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
		close(fd[1]);
		t_sleep_ms(20);
		/* Data first, then the error, once, then the end; what is held stays. */
		GET_ALL(fd[0], 10, 0, 0);
		T_ERR(x_hread(fd[0], buf, 20, 5), ECONNRESET);
		T_IOLOG(fd[0], 10, 0, 0, 0);
		T_EQ(x_hread(fd[0], buf, 20, 5), 0);
		T_IOLOG(fd[0], 10, 5, 0, 0);
	}
}

/* What is held has left the connection: closing is no reset, and the answer arrives. */
T(close_while_holding)
{
	for_each_kind(k, TCP) {
		char buf[64];
		int fd[2];

		k->open(fd);
		feed(fd[1], 10, 0);
		GET(fd[0], 10, 0, 0);
		T_EQ(x_lwrite(fd[0], "answer", 6), 6);
		close(fd[0]);
		t_sleep_ms(10);
		T_EQ(read(fd[1], buf, sizeof(buf)), 6);
		T_EQ(read(fd[1], buf, sizeof(buf)), 0);
	}
}

T(shut_down_for_reading)
{
	for_each_kind(k, STREAM) {
		char buf[64];
		int fd[2];

		if (!(k->flags & SOCK))
			continue;
		k->open(fd);
		feed(fd[1], 10, 0);
		GET(fd[0], 10, 0, 0);
		T_OK(shutdown(fd[0], SHUT_RD));
		T_EQ(x_hread(fd[0], buf, 20, 10), 0);
		T_IOLOG(fd[0], 10, 10, 0, 0);
	}
}

/* Unread data makes a file readable whose writer has gone; POLLHUP and the like stay. */
ROLE(hung_up)
{
	struct pollfd pfd = { .fd = RD, .events = POLLIN | POLLRDHUP };

	T_EQ(poll(&pfd, 1, 0), 1);
	T_EQ(pfd.revents, POLLIN | atoi(argv[0]));
	GET_ALL(RD, 10, 0, 10);
	return 0;
}

T(hangup_with_unread_data)
{
	for_each_kind(k, PIPE) {
		T_CHILD {
			open_at(k, RD, WR);
			feed(WR, 10, 0);
			GET(RD, 10, 0, 0);
			close(WR);
			t_register("hung_up", "16" /* POLLHUP */, NULL);
			t_crash();
		}
	}
}

/* Urgent data: beside read(2), on two connections that get the same. */
T(urgent_data)
{
	for (int in_line = 0; in_line < 2; in_line++) {
		for_each_kind(k, TCP) {
			char a[64], b[64], urgent[2] = "";
			int fd[2], other[2];

			k->open(fd);
			k->open(other);
			for (int i = 0; i < 2; i++) {
				int *f = i ? other : fd;

				T_OK(setsockopt(f[0], SOL_SOCKET, SO_OOBINLINE, &in_line, sizeof(int)));
				T_ASSERT(send(f[1], "ab", 2, 0) == 2);
				T_ASSERT(send(f[1], "X", 1, MSG_OOB) == 1);
				T_ASSERT(send(f[1], "cd", 2, 0) == 2);
			}
			t_sleep_ms(10);
			for (int i = 0; i < 4; i++) {
				ssize_t n, m;
				int err;

				if (i == 1 && !in_line) {
					n = recv(fd[0], urgent, 1, MSG_OOB | MSG_DONTWAIT);
					T_EQ(n, 1);
					T_EQ(urgent[0], 'X');
					T_EQ(recv(other[0], urgent + 1, 1, MSG_OOB | MSG_DONTWAIT), 1);
				}
				n = x_hread_nowait(fd[0], a, sizeof(a), 0);
				err = errno;
				m = recv(other[0], b, sizeof(b), MSG_DONTWAIT);
				T_EQ(n, m);
				if (n < 0 && m < 0)
					T_EQ(err, errno);
				else
					T_MEMEQ(a, b, n);
			}
		}
	}
}

/* ---- datagrams ---- */

ROLE(cut_for_good)
{
	char buf[64];

	T_IOLOG(RD, 30, 15, 15, 0);
	T_EQ(x_hread(RD, buf, 64, 0), 5);
	T_EQ(t_match(buf, 5, 0), 5);
	T_EQ(recv(RD, buf, 64, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC), 10);
	T_EQ(recv(RD, buf, 4, MSG_DONTWAIT), 4);
	T_EQ(t_match(buf, 4, 100), 4);
	EMPTY(RD);
	T_EQ(x_hread(RD, NULL, 0, 5), 0);
	T_ERR(x_hread(RD, NULL, 0, 1), EINVAL);
	T_IOLOG(RD, 30, 30, 0, 0);
	return 0;
}

ROLE(cut_stays_cut)
{
	char buf[64];

	kind_named(argv[0]);
	T_IOLOG(RD, 30, 0, 30, 0);
	/* The first was read in full, the second cut to 10: what did not fit has gone. Both are cut once more. */
	T_EQ(x_hread(RD, buf, 5, 0), 5);
	T_EQ(t_match(buf, 5, 0), 5);
	t_register("cut_for_good", NULL);
	t_crash();
	return 0;
}

T(datagrams_are_cut)
{
	for_each_kind(k, DGRAM) {
		T_CHILD {
			char buf[64];

			open_at(k, RD, WR);
			feed(WR, 20, 0);
			feed(WR, 50, 100);
			GET_ALL(RD, 20, 0, 0);
			T_EQ(x_hread(RD, buf, 10, 0), 10);
			EMPTY(RD);
			t_register("cut_stays_cut", k->name, NULL);
			t_crash();
		}
	}
}

T(empty_datagrams)
{
	for_each_kind(k, DGRAM) {
		char buf[64];
		int fd[2];

		k->open(fd);
		feed(fd[1], 5, 0);
		T_EQ(send(fd[1], "", 0, 0), 0);
		feed(fd[1], 6, 5);
		GET_ALL(fd[0], 5, 0, 0);
		READABLE(fd[0], 1);
		T_EQ(x_hread(fd[0], buf, 64, 5), 0);
		T_IOLOG(fd[0], 5, 5, 0, 0);
		GET_ALL(fd[0], 6, 5, 6);
	}
}

/* The sender's address comes with what is read again. */
static int bound_sender(int family, struct sockaddr_storage *addr, socklen_t *len, int nr)
{
	int fd = T_OK(socket(family, SOCK_DGRAM, 0));

	memset(addr, 0, sizeof(*addr));
	addr->ss_family = family;
	*len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	if (family == AF_INET)
		((struct sockaddr_in *)addr)->sin_addr.s_addr = htonl(INADDR_LOOPBACK + nr);
	else if (family == AF_INET6)
		((struct sockaddr_in6 *)addr)->sin6_addr = (struct in6_addr)IN6ADDR_LOOPBACK_INIT;
	else
		*len = sizeof(sa_family_t);	/* a name of the kernel's choice */
	T_OK(bind(fd, (void *)addr, *len));
	*len = sizeof(*addr);
	T_OK(getsockname(fd, (void *)addr, len));
	return fd;
}

struct senders {
	struct sockaddr_storage addr[3];
	socklen_t len[3];
};

ROLE(senders)
{
	struct senders *s = mmap(NULL, sizeof(*s), PROT_READ, MAP_SHARED, FD1, 0);

	T_ASSERT(s != MAP_FAILED);
	t_context = argv[0];
	for (int i = 0; i < 3; i++) {
		struct sockaddr_storage from = { 0 };
		char buf[64], control[64];
		struct iovec iov = { buf, sizeof(buf) };
		struct msghdr msg = { .msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &iov,
				      .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
		socklen_t len = sizeof(from);

		T_EQ(recvfrom(RD, buf, sizeof(buf), MSG_PEEK | MSG_DONTWAIT, (void *)&from, &len), 10 + i);
		T_EQ(len, s->len[i]);
		T_MEMEQ(&from, &s->addr[i], len);
		memset(&from, 0, sizeof(from));
		T_EQ(recvmsg(RD, &msg, MSG_DONTWAIT), 10 + i);
		T_EQ(t_match(buf, 10 + i, 100 * i), 10 + i);
		T_EQ(msg.msg_namelen, s->len[i]);
		T_EQ(msg.msg_flags, 0);
		T_MEMEQ(&from, &s->addr[i], msg.msg_namelen);
	}
	return 0;
}

T(sender_addresses)
{
	static const int families[] = { AF_INET, AF_INET6, AF_UNIX };
	static const char *const names[] = { "udp4", "udp6", "unix dgram" };

	for (size_t f = 0; f < ARRAY_LEN(families); f++) {
		t_context = names[f];
		T_CHILD {
			struct sockaddr_storage to;
			struct senders *s;
			socklen_t len;

			put_at(memfd_create("senders", 0), FD1);
			T_OK(ftruncate(FD1, sizeof(*s)));
			s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED, FD1, 0);
			T_ASSERT(s != MAP_FAILED);
			put_at(bound_sender(families[f], &to, &len, 0), RD);
			for (int i = 0; i < 3; i++) {
				int fd = bound_sender(families[f], &s->addr[i], &s->len[i], i);

				T_OK(connect(fd, (void *)&to, len));
				feed(fd, 10 + i, 100 * i);
				GET_ALL(RD, 10 + i, 100 * i, 0);
			}
			t_register("senders", names[f], NULL);
			t_crash();
		}
	}
}

/* ---- other files: one read's data is not joined with the next's ---- */

ROLE(event_again)
{
	uint64_t val[2];

	T_EQ(x_hread(RD, val, sizeof(val), 0), 8);
	T_EQ(val[0], 5);
	T_EQ(read(RD, val, sizeof(val)), 8);
	T_EQ(val[0], 9);
	READABLE(RD, 1);
	T_EQ(x_hread(RD, val, sizeof(val), 8), 8);
	T_EQ(val[0], 3);
	READABLE(RD, 0);
	T_IOLOG(RD, 24, 16, 0, 0);
	return 0;
}

T(event_counter)
{
	T_CHILD {
		uint64_t val[2];

		put_at(eventfd(5, EFD_NONBLOCK), RD);
		T_ERR(x_hread(RD, val, 7, 0), EINVAL);
		T_EQ(x_hread(RD, val, sizeof(val), 0), 8);
		T_EQ(val[0], 5);
		READABLE(RD, 0);
		T_ERR(x_hread(RD, val, sizeof(val), 8), EAGAIN);
		T_OK(eventfd_write(RD, 9));
		T_EQ(x_hread(RD, val, sizeof(val), 0), 8);
		T_OK(eventfd_write(RD, 3));
		t_register("event_again", NULL);
		t_crash();
	}
}

ROLE(packets_again)
{
	GET_ALL(RD, 20, 0, 0);
	GET_ALL(RD, 30, 20, 50);
	GET_ALL(RD, 40, 50, 40);
	return 0;
}

T(packet_pipe)
{
	T_CHILD {
		int fd[2];

		T_OK(pipe2(fd, O_DIRECT));
		put_at(fd[0], RD);
		put_at(fd[1], WR);
		feed(WR, 20, 0);
		feed(WR, 30, 20);
		feed(WR, 40, 50);
		GET_ALL(RD, 20, 0, 0);
		GET_ALL(RD, 30, 20, 0);
		t_register("packets_again", NULL);
		t_crash();
	}
}

ROLE(lines_again)
{
	char buf[64];

	T_EQ(x_hread(RD, buf, 64, 0), 6);
	T_MEMEQ(buf, "first\n", 6);
	T_EQ(x_hread(RD, buf, 3, 0), 3);
	T_MEMEQ(buf, "sec", 3);
	T_EQ(read(RD, buf, 64), 4);
	T_MEMEQ(buf, "ond\n", 4);
	T_EQ(x_hread(RD, buf, 64, 0), 6);
	T_MEMEQ(buf, "third\n", 6);
	return 0;
}

T(terminal_lines)
{
	T_CHILD {
		struct termios tio;
		char buf[64];

		open_at(kind_named("pty"), RD, WR);
		T_OK(tcgetattr(RD, &tio));
		tio.c_lflag |= ICANON;
		tio.c_lflag &= ~ECHO;
		T_OK(tcsetattr(RD, TCSANOW, &tio));
		T_ASSERT(write(WR, "first\nsecond\nthird\n", 19) == 19);
		T_EQ(x_hread(RD, buf, 64, 0), 6);
		T_EQ(x_hread(RD, buf, 64, 0), 7);
		t_register("lines_again", NULL);
		t_crash();
	}
}

ROLE(timer_again)
{
	uint64_t val = 0;

	READABLE(RD, 1);
	T_EQ(read(RD, &val, 8), 8);
	T_EQ(val, 1);
	READABLE(RD, 0);
	return 0;
}

T(timer)
{
	T_CHILD {
		uint64_t val;

		put_at(timerfd_create(CLOCK_MONOTONIC, 0), RD);
		T_OK(timerfd_settime(RD, 0, &(struct itimerspec){ .it_value.tv_nsec = 1 }, NULL));
		T_EQ(x_hread(RD, &val, 8, 0), 8);
		T_EQ(val, 1);
		t_register("timer_again", NULL);
		t_crash();
	}
}

/* ---- progress of what is written ---- */

enum { TOTAL = 1 << 20 };

/* Reads to the end of the file, and checks it; the first bytes at once, the rest when the writer is on its way. */
static uint64_t read_all(int fd)
{
	static char buf[65536];
	uint64_t got = 0;
	ssize_t n;

	while ((n = T_OK(read(fd, buf, sizeof(buf)))) > 0) {
		T_EQ(t_match(buf, n, got), n);
		got += n;
		t_sleep_ms(1);
	}
	return got;
}

/* The new generation sends what the old one had not. */
ROLE(sends_the_rest)
{
	static char buf[TOTAL];
	struct io_log log;
	size_t sent;

	T_EQ(x_getiolog(WR, &log), 0);
	T_RANGE(log.written, 1, TOTAL - 1);
	t_fill(buf, TOTAL, 0);
	for (sent = log.written; sent < TOTAL;)
		sent += T_OK(x_lwrite(WR, buf + sent, TOTAL - sent));
	T_IOLOG(WR, 0, 0, 0, TOTAL);
	return 0;
}

T(fault_in_the_middle_of_a_write)
{
	for (int sendfile = 0; sendfile < 2; sendfile++) {
		for_each_kind(k, STREAM) {
			char *buf = malloc(TOTAL);
			pid_t pid;

			if (k->flags & TTY)
				continue;
			open_at(k, RD, WR);
			t_fill(buf, TOTAL, 0);
			pid = t_fork();
			if (!pid) {
				int fd = T_OK(memfd_create("body", 0));
				off_t off = 0;

				close(RD);
				T_ASSERT(write(fd, buf, TOTAL) == TOTAL);
				t_register("sends_the_rest", NULL);
				T_OK(fcntl(WR, F_SETFL, 0));
				if (k->flags & (TCP | TLS))
					setsockopt(WR, SOL_SOCKET, SO_SNDBUF, &(int){ 65536 }, sizeof(int));
				while (off < TOTAL) {
					if (sendfile)
						T_OK(x_lsendfile(WR, fd, &off, TOTAL - off));
					else
						off += T_OK(x_lwrite(WR, buf + off, TOTAL - off));
				}
				_exit(9);
			}
			close(WR);
			/* It has begun, and comes to where there is no room */
			T_EQ(poll(&(struct pollfd){ .fd = RD, .events = POLLIN }, 1, 30000), 1);
			t_sleep_ms(30);
			T_OK(kill(pid, SIGSEGV));
			T_EQ(read_all(RD), TOTAL);
			T_EXITED(t_wait(pid), 0);
			close(RD);
			free(buf);
		}
	}
}

/* ---- reading the plain ways after a restart, where the model does not go ---- */

ROLE(many_messages)
{
	struct mmsghdr msgs[4] = { 0 };
	struct iovec iov[4];
	char buf[4][64];

	kind_named(argv[0]);
	for (int i = 0; i < 4; i++) {
		iov[i] = (struct iovec){ buf[i], 64 };
		msgs[i].msg_hdr = (struct msghdr){ .msg_iov = &iov[i], .msg_iovlen = 1 };
	}
	T_EQ(recvmmsg(RD, msgs, 4, MSG_DONTWAIT, NULL), 3);
	for (int i = 0; i < 3; i++) {
		T_EQ(msgs[i].msg_len, 10);
		T_EQ(t_match(buf[i], 10, 10 * i), 10);
	}
	EMPTY(RD);
	T_IOLOG(RD, 20, 20, 0, 0);
	return 0;
}

T(recvmmsg_after_restart)
{
	for_each_kind(k, DGRAM) {
		T_CHILD {
			open_at(k, RD, WR);
			for (int i = 0; i < 3; i++)
				feed(WR, 10, 10 * i);
			GET_ALL(RD, 10, 0, 0);
			GET_ALL(RD, 10, 10, 0);
			t_register("many_messages", k->name, NULL);
			t_crash();
		}
	}
}

/* The size of the next datagram, and away with it, in no buffer at all: for those that are unread as for those that come. */
ROLE(measures)
{
	char buf[64];

	kind_named(argv[0]);
	for (int i = 0; i < 2; i++)
		T_EQ(recv(RD, NULL, 0, MSG_PEEK | MSG_TRUNC), 10);
	T_EQ(recv(RD, NULL, 0, 0), 0);
	T_EQ(recv(RD, NULL, 0, MSG_PEEK | MSG_TRUNC), 20);
	T_EQ(recv(RD, buf, 5, MSG_TRUNC), 20);
	T_EQ(t_match(buf, 5, 10), 5);
	T_EQ(recv(RD, NULL, 0, MSG_PEEK | MSG_TRUNC), 30);
	T_EQ(recv(RD, buf, sizeof(buf), 0), 30);
	T_EQ(t_match(buf, 30, 30), 30);
	EMPTY(RD);
	T_IOLOG(RD, 30, 30, 0, 0);
	return 0;
}

T(sizes_after_restart)
{
	for_each_kind(k, DGRAM) {
		if (!(k->flags & SOCK))
			continue;
		T_CHILD {
			open_at(k, RD, WR);
			feed(WR, 10, 0);
			feed(WR, 20, 10);
			feed(WR, 30, 30);
			GET_ALL(RD, 10, 0, 0);
			GET_ALL(RD, 20, 10, 0);
			t_register("measures", k->name, NULL);
			t_crash();
		}
	}
}

/* A peek sees what is unread and what is behind it. */
ROLE(peeks)
{
	char buf[64];

	kind_named(argv[0]);
	T_EQ(recv(RD, buf, 2, MSG_PEEK), 2);
	T_EQ(recv(RD, buf, sizeof(buf), MSG_PEEK), 10);
	T_EQ(t_match(buf, 10, 0), 10);
	T_EQ(recv(RD, buf, 10, MSG_PEEK | MSG_WAITALL), 10);
	T_EQ(t_match(buf, 10, 0), 10);
	T_EQ(recv(RD, buf, 5, 0), 5);
	T_EQ(recv(RD, buf, sizeof(buf), MSG_PEEK), 5);
	T_EQ(t_match(buf, 5, 5), 5);
	T_EQ(recv(RD, buf, sizeof(buf), 0), 5);
	T_ERR(recv(RD, buf, 1, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
	return 0;
}

T(peek_after_restart)
{
	for_each_kind(k, SOCK) {
		if (!(k->flags & STREAM))
			continue;
		T_CHILD {
			open_at(k, RD, WR);
			feed(WR, 10, 0);
			READABLE(RD, 1);
			GET(RD, 3, 0, 0);
			t_register("peeks", k->name, NULL);
			t_crash();
		}
	}
}

/* A datagram that hread() cannot hold whole is left to read(2). */
T(large_datagrams)
{
	static char buf[1 << 20];
	const int types[] = { SOCK_DGRAM, SOCK_SEQPACKET };

	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		int fd[2];

		T_OK(socketpair(AF_UNIX, types[i], 0, fd));
		T_OK(setsockopt(fd[1], SOL_SOCKET, SO_SNDBUFFORCE, &(int){ 2 << 20 }, sizeof(int)));
		t_fill(buf, 600000, 0);
		T_EQ(write(fd[1], buf, 600000), 600000);
		T_EQ(write(fd[1], buf, 500000), 500000);
		memset(buf, 0, sizeof(buf));
		T_ERR(x_hread(fd[0], buf, sizeof(buf), 0), EMSGSIZE);
		T_IOLOG(fd[0], 0, 0, 0, 0);
		T_EQ(read(fd[0], buf, sizeof(buf)), 600000);
		T_EQ(t_match(buf, 600000, 0), 600000);
		memset(buf, 0, sizeof(buf));
		T_EQ(x_hread(fd[0], buf, sizeof(buf), 0), 500000);
		T_EQ(t_match(buf, 500000, 0), 500000);
		T_ERR(x_hread_nowait(fd[0], buf, sizeof(buf), 0), EAGAIN);
		close(fd[1]);
		close(fd[0]);
	}
}

/* ---- the last file that hread() was used on ---- */

ROLE(suspect)
{
	struct reg_info info;

	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.suspect_fd, atoi(argv[0]));
	/* Of the old generation only. */
	if (info.generation == 2)
		T_EQ(x_reregist(t_self, (char *[]){ "prog", "@suspect", "-1", NULL }, environ, 0), 0);
	if (info.generation == 2)
		t_crash();
	return 0;
}

static void *reads_one(void *unused)
{
	GET(RD, 1, 0, 0);
	return unused;
}

T(suspect_fd)
{
	T_CHILD {
		open_at(&kinds[0], RD, WR);
		open_at(&kinds[2], RD2, WR2);
		feed(WR, 10, 0);
		feed(WR2, 10, 0);
		GET(RD, 5, 0, 0);
		GET(RD2, 5, 0, 0);
		GET(RD, 5, 5, 0);
		t_register("suspect", "21", NULL);
		t_crash();
	}
	T_CHILD {
		char c;

		/* An hread() that fails is one too, when it got as far as the file. */
		open_at(&kinds[2], RD2, WR2);
		feed(WR2, 10, 0);
		GET(RD2, 5, 0, 0);
		T_ERR(x_hread(-1, &c, 1, 0), EBADF);
		t_register("suspect", "23", NULL);
		t_crash();
	}
	T_CHILD {
		/* By its new number, when it has another by then. */
		open_at(&kinds[0], RD, WR);
		open_at(&kinds[2], RD2, WR2);
		feed(WR, 10, 0);
		feed(WR2, 10, 0);
		GET(RD2, 5, 0, 0);
		GET(RD, 5, 0, 0);
		put_at(RD, FD1);
		t_register("suspect", "25", NULL);
		t_crash();
	}
	T_CHILD {
		int end[2];
		char c;

		/* Not what it has closed, though another process keeps it open. */
		open_at(&kinds[0], RD, WR);
		open_at(&kinds[2], RD2, WR2);
		feed(WR, 10, 0);
		feed(WR2, 10, 0);
		GET(RD, 5, 0, 0);
		GET(RD2, 5, 0, 0);
		T_OK(pipe(end));
		if (!t_fork()) {
			close(end[1]);
			_exit(read(end[0], &c, 1));
		}
		close(RD2);
		t_register("suspect", "21", NULL);
		t_crash();
	}
	T_CHILD {
		char c;

		/* Who has read nothing may have faulted over what he asked for, or what another thread got. */
		open_at(&kinds[0], RD, WR);
		T_ERR(x_hread_nowait(RD, &c, 1, 0), EAGAIN);
		t_register("suspect", "21", NULL);
		t_crash();
	}
	T_CHILD {
		pthread_t thread;

		open_at(&kinds[0], RD, WR);
		feed(WR, 10, 0);
		T_EQ(pthread_create(&thread, NULL, reads_one, NULL), 0);
		T_EQ(pthread_join(thread, NULL), 0);
		t_register("suspect", "21", NULL);
		t_crash();
	}
}

/* ---- the tracepoint of a rewind ---- */

#define TRACE	"/sys/kernel/tracing/"

ROLE(traced)
{
	T_EQ(t_generation(), 2);
	return 0;
}

T(rewind_is_traced)
{
	static char text[65536];
	char *line;

	if (access(TRACE "events", F_OK))
		t_skip("no tracepoints in this kernel");
	T_OK(t_put(TRACE "trace", "0"));
	T_OK(t_put(TRACE "events/zlr/hread_rewind/enable", "1"));
	T_CHILD {
		open_at(&kinds[2], RD, WR);
		open_at(&kinds[0], RD2, WR2);
		feed(WR, 40, 0);
		GET(RD, 40, 0, 15);
		feed(WR2, 10, 0);
		GET(RD2, 10, 0, 10);
		t_register("traced", NULL);
		t_crash();
	}
	T_OK(t_put(TRACE "events/zlr/hread_rewind/enable", "0"));
	T_EXPECT(t_get(TRACE "trace", text, sizeof(text)) > 0);
	line = strstr(text, "hread_rewind: ");
	T_ASSERT(line);
	T_EXPECT(!strncmp(line, "hread_rewind: fd=21 bytes=25 pieces=1\n", 38));
	/* Nothing is held on the other file. */
	T_EXPECT(!strstr(line + 1, "hread_rewind: "));
	T_OK(t_put(TRACE "trace", "0"));
}
