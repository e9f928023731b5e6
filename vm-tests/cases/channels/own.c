// SPDX-License-Identifier: GPL-2.0-or-later
/* Whose data it is, how much, for how long: processes, threads, limits, memory; and who is woken. */
#include "chan.h"
#include "../lib/cgroup.h"
#include "ring.h"

#include <pthread.h>
#include <sys/epoll.h>

/* ---- processes that share an open file ---- */

T(child_holds_nothing)
{
	for_each_kind(k, ~0) {
		int fd[2];

		k->open(fd);
		feed(fd[1], 20, 0);
		READABLE(fd[0], 1);
		GET(fd[0], 20, 0, 0);
		T_CHILD {
			T_ERR(x_hread(fd[0], NULL, 0, 1), EINVAL);
			EMPTY(fd[0]);
			T_IOLOG(fd[0], 20, 0, 0, 0);
			feed(fd[1], 10, 20);
			READABLE(fd[0], 1);
			GET(fd[0], 10, 20, 4);
			T_IOLOG(fd[0], 30, 4, 0, 0);
			T_ERR(x_hread(fd[0], NULL, 0, 7), EINVAL);
		}
		/* The child's is dropped with it, the parent's is not. */
		T_IOLOG(fd[0], 30, 10, 0, 0);
		T_ERR(x_hread(fd[0], NULL, 0, 21), EINVAL);
		T_EQ(x_hread(fd[0], NULL, 0, 20), 0);
		T_IOLOG(fd[0], 30, 30, 0, 0);
		EMPTY(fd[0]);
	}
}

ROLE(ends)
{
	T_EQ(t_generation(), 2);
	return 0;
}

enum { FAULT = 100 };

/* Reads 10 bytes whenever it is told to, and faults when it is told to do that. */
static pid_t reads_in_turn(int me)
{
	pid_t pid;

	t_word[me] = 0;
	pid = t_fork();
	if (!pid) {
		t_register("ends", NULL);
		for (uint64_t did = 0;; did = t_word[me]) {
			char buf[10];

			while (t_word[me] == did)
				t_sleep_ms(1);
			if (t_word[me] == FAULT)
				t_crash();
			T_EQ(x_hread(RD, buf, 10, 0), 10);
			t_word[me + 1]++;
		}
	}
	return pid;
}

/* Who reads what another process has put back holds it behind what comes later. It is put back before that. */
T(put_back_in_order)
{
	enum { A = 4, B = 8 };
	int reads[] = { B, A, B, A }, fd[2];
	char buf[64];
	pid_t a, b;

	T_OK(pipe(fd));
	put_at(fd[0], RD);
	feed(fd[1], 30, 0);
	t_word[A + 1] = t_word[B + 1] = 0;
	a = reads_in_turn(A);
	b = reads_in_turn(B);
	/* B holds 0..9 and 20..29, A 10..19; B puts back, and A reads 0..9, too. */
	for (size_t i = 0; i < ARRAY_LEN(reads); i++) {
		if (i == 3) {
			t_word[B] = FAULT;
			T_EXITED(t_wait(b), 0);
		}
		t_word[reads[i]]++;
		while (t_word[reads[i] + 1] < t_word[reads[i]])
			t_sleep_ms(1);
	}
	T_IOLOG(RD, 30, 0, 10, 0);
	t_word[A] = FAULT;
	T_EXITED(t_wait(a), 0);
	T_EQ(read(RD, buf, sizeof(buf)), 30);
	T_EQ(t_match(buf, 30, 0), 30);
}

/* 1 reads 0..19, the child 20..49, 1 again 50..59; then the child restarts and reads its own, and the rest of 1's. */
ROLE(child_restarts)
{
	kind_named(argv[0]);
	T_EQ(t_generation(), 2);
	T_IOLOG(RD, 60, 0, 30, 0);
	GET(RD, 30, 20, 30);
	EMPTY(RD);
	T_IOLOG(RD, 60, 30, 0, 0);
	return 0;
}

T(each_rewinds_its_own)
{
	for_each_kind(k, ~0) {
		T_CHILD {
			pid_t pid;

			open_at(k, RD, WR);
			feed(WR, 20, 0);
			READABLE(RD, 1);
			GET(RD, 20, 0, 0);
			t_word[0] = 0;
			pid = t_fork();
			if (!pid) {
				feed(WR, 30, 20);
				READABLE(RD, 1);
				GET(RD, 30, 20, 0);
				t_register("child_restarts", k->name, NULL);
				t_word[0] = 1;
				while (t_word[0] < 2)
					t_sleep_ms(1);
				t_crash();
			}
			while (!t_word[0])
				t_sleep_ms(1);
			feed(WR, 10, 50);
			READABLE(RD, 1);
			GET(RD, 10, 50, 0);
			EMPTY(RD);
			t_word[0] = 2;
			T_EXITED(t_wait(pid), 0);
			/* Now this process: its two pieces come back in order. */
			T_IOLOG(RD, 60, 30, 0, 0);
			t_register("pieces_in_order", k->name, NULL);
			t_crash();
		}
	}
}

ROLE(pieces_in_order)
{
	const struct kind *k = kind_named(argv[0]);
	unsigned char buf[64];

	T_IOLOG(RD, 60, 30, 30, 0);
	T_EQ(x_hread(RD, buf, 64, 0), k->flags & STREAM && !(k->flags & TTY) ? 30 : 20);
	T_EQ(t_match(buf, 20, 0), 20);
	if (!(k->flags & STREAM) || k->flags & TTY)
		T_EQ(x_hread(RD, buf + 20, 44, 0), 10);
	T_EQ(t_match(buf + 20, 10, 50), 10);
	T_EQ(x_hread(RD, NULL, 0, 30), 0);
	return 0;
}

/* What a restart made unread goes to whoever reads next. */
T(unread_is_for_anybody)
{
	for_each_kind(k, ~0) {
		pid_t pid;

		open_at(k, RD, WR);
		feed(WR, 20, 0);
		READABLE(RD, 1);
		pid = t_fork();
		if (!pid) {
			GET(RD, 20, 0, 0);
			t_register("waits", NULL);
			t_crash();
		}
		while (!t_word[0])
			t_sleep_ms(1);
		t_word[0] = 0;
		READABLE(RD, 1);
		T_IOLOG(RD, 20, 0, 20, 0);
		GET(RD, 20, 0, 0);
		T_IOLOG(RD, 20, 0, 0, 0);
		t_reap(pid);
		/* It is this process's now. */
		T_IOLOG(RD, 20, 0, 0, 0);
		T_EQ(x_hread(RD, NULL, 0, 20), 0);
	}
}

ROLE(waits)
{
	t_word[0] = 1;
	t_sleep_ms(1000000);
	return 0;
}

/* A holder that is killed takes its data along; one that restarts does not. */
T(exit_drops)
{
	for_each_kind(k, ~0) {
		int fd[2];

		k->open(fd);
		for (int sig = 0; sig < 2; sig++) {
			pid_t pid;

			feed(fd[1], 20, 0);
			READABLE(fd[0], 1);
			pid = t_fork();
			if (!pid) {
				GET(fd[0], 20, 0, 0);
				if (sig)
					raise(SIGKILL);
				_exit(0);
			}
			t_wait(pid);
			EMPTY(fd[0]);
			T_IOLOG(fd[0], 20 * sig + 20, 20 * sig + 20, 0, 0);
		}
	}
}

/* It is dropped as soon as the holder is dead, whether or not its parent has asked for its status. */
T(zombie_drops)
{
	for_each_kind(k, ~0) {
		siginfo_t info;
		int fd[2];
		pid_t pid;

		k->open(fd);
		feed(fd[1], 20, 0);
		READABLE(fd[0], 1);
		pid = t_fork();
		if (!pid) {
			GET(fd[0], 20, 0, 0);
			_exit(0);
		}
		T_OK(waitid(P_PID, pid, &info, WEXITED | WNOWAIT));
		T_IOLOG(fd[0], 20, 20, 0, 0);
		T_EXITED(t_wait(pid), 0);
	}
}

/* Also when the holder has closed the file before, and when it is another program by then. */
T(exit_drops_what_was_closed)
{
	for_each_kind(k, ~0) {
		for (int how = 0; how < 2; how++) {
			int fd[2];
			pid_t pid;

			k->open(fd);
			feed(fd[1], 20, 0);
			READABLE(fd[0], 1);
			pid = t_fork();
			if (!pid) {
				GET(fd[0], 20, 0, 0);
				if (how)
					execl("/bin/true", "true", NULL);
				close(fd[0]);
				_exit(0);
			}
			T_EXITED(t_wait(pid), 0);
			T_IOLOG(fd[0], 20, 20, 0, 0);
			EMPTY(fd[0]);
		}
	}
}

/* An ordinary execve() leaves it held: the new program can release it, and its restart rewinds the rest of it. */
ROLE(heir_restarted)
{
	int released = atoi(argv[1]);

	kind_named(argv[0]);
	T_EQ(t_generation(), 2);
	T_IOLOG(RD, 20, released, 20 - released, 0);
	GET(RD, 20 - released, released, 20 - released);
	EMPTY(RD);
	T_IOLOG(RD, 20, 20, 0, 0);
	return 0;
}

ROLE(heir)
{
	int released = atoi(argv[1]);

	kind_named(argv[0]);
	T_IOLOG(RD, 20, 0, 0, 0);
	if (released)
		T_EQ(x_hread(RD, NULL, 0, released), 0);
	t_register("heir_restarted", argv[0], argv[1], NULL);
	t_crash();
}

/* What a process holds, by its registration */
static long held_bytes(void)
{
	char text[4096], *line;

	T_ASSERT(t_get("/proc/self/restart", text, sizeof(text)) > 0);
	line = strstr(text, "held_bytes:");
	T_ASSERT(line);
	return atol(line + strlen("held_bytes:"));
}

ROLE(counted_restarted)
{
	T_EQ(t_generation(), 2);
	T_EQ(held_bytes(), 0);
	T_IOLOG(RD, 25, 3, 22, 0);
	GET(RD, 22, 3, 0);
	T_EQ(held_bytes(), 22);
	T_EQ(x_hread(RD, NULL, 0, 22), 0);
	T_EQ(held_bytes(), 0);
	return 0;
}

ROLE(counted)
{
	t_register("counted_restarted", NULL);
	/* The first call finds what the process held as another program. */
	feed(WR, 5, 20);
	READABLE(RD, 1);
	GET(RD, 5, 20, 0);
	T_EQ(held_bytes(), 25);
	T_EQ(x_hread(RD, NULL, 0, 3), 0);
	T_EQ(held_bytes(), 22);
	t_crash();
	return 0;
}

T(counted_over_execve)
{
	for_each_kind(k, STREAM) {
		if (k->flags & TTY)
			continue;
		T_CHILD {
			open_at(k, RD, WR);
			t_register("counted", NULL);
			feed(WR, 20, 0);
			READABLE(RD, 1);
			GET(RD, 20, 0, 0);
			T_EQ(held_bytes(), 20);
			execl(t_self, "prog", "@counted", NULL);
			T_ASSERT(!"execve");
		}
	}
}

static void send_fd(int sock, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 }, c = 'x';
	struct iovec iov = { &c, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
			      .msg_controllen = sizeof(control) };
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);

	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
	T_OK(sendmsg(sock, &msg, 0));
}

static int recv_fd(int sock)
{
	char control[CMSG_SPACE(sizeof(int))], c;
	struct iovec iov = { &c, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
			      .msg_controllen = sizeof(control) };
	int fd;

	T_OK(recvmsg(sock, &msg, 0));
	T_ASSERT(CMSG_FIRSTHDR(&msg));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(int));
	return fd;
}

/* The open file was on its way in a message during the execve(2): nobody found it among the descriptors. */
ROLE(counted_later)
{
	t_register("counted_restarted", NULL);
	T_EQ(held_bytes(), 0);
	put_at(recv_fd(atoi(argv[0])), RD);
	feed(WR, 5, 20);
	READABLE(RD, 1);
	GET(RD, 5, 20, 0);
	T_EQ(held_bytes(), 25);
	return 0;
}

T(counted_after_execve)
{
	for_each_kind(k, STREAM) {
		if (k->flags & TTY)
			continue;
		T_CHILD {
			char number[16];
			int way[2];

			open_at(k, RD, WR);
			T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, way));
			t_register("counted", NULL);
			feed(WR, 20, 0);
			READABLE(RD, 1);
			GET(RD, 20, 0, 0);
			send_fd(way[0], RD);
			close(RD);
			snprintf(number, sizeof(number), "%d", way[1]);
			execl(t_self, "prog", "@counted_later", number, NULL);
			T_ASSERT(!"execve");
		}
	}
}

T(held_over_execve)
{
	for_each_kind(k, STREAM)
		for (int released = 0; released < 2; released++)
			T_CHILD {
				open_at(k, RD, WR);
				feed(WR, 20, 0);
				READABLE(RD, 1);
				GET(RD, 20, 0, 0);
				execl(t_self, "prog", "@heir", k->name, released ? "5" : "0", NULL);
				T_ASSERT(!"execve");
			}
}

/* What is held is found by its new number, when it has another by then. */
ROLE(moved)
{
	kind_named(argv[0]);
	T_EQ(t_generation(), 2);
	T_IOLOG(FD1, 20, 5, 15, 0);
	GET(FD1, 15, 5, 15);
	return 0;
}

T(held_file_has_moved)
{
	for_each_kind(k, STREAM) {
		T_CHILD {
			open_at(k, RD, WR);
			feed(WR, 20, 0);
			READABLE(RD, 1);
			GET(RD, 20, 0, 5);
			put_at(RD, FD1);
			t_register("moved", k->name, NULL);
			t_crash();
		}
	}
}

ROLE(leader_gone)
{
	T_IOLOG(RD, 20, 0, 20, 0);
	GET(RD, 20, 0, 20);
	return 0;
}

static void *reads_and_faults(void *arg)
{
	t_sleep_ms(10);
	GET(RD, 20, 0, 0);
	t_crash();
	return arg;
}

T(main_thread_has_gone)
{
	T_CHILD {
		pthread_t t;

		open_at(&kinds[2], RD, WR);
		feed(WR, 20, 0);
		t_register("leader_gone", NULL);
		T_ASSERT(!pthread_create(&t, NULL, reads_and_faults, NULL));
		syscall(SYS_exit, 0);
	}
}

/* Every file there is, wherever its number. */
ROLE(far_files)
{
	for (int fd = 100; fd < 900; fd += 37)
		GET(fd, 20, 0, 20);
	GET(4000, 20, 0, 20);
	return 0;
}

T(many_files)
{
	T_CHILD {
		T_OK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 5000, 5000 }));
		for (int fd = 100; fd <= 4000; fd = fd == 4000 ? 4001 : fd + 37 < 900 ? fd + 37 : 4000) {
			open_at(&kinds[fd % 3], fd, fd == 4000 ? WR : fd + 1);
			feed(fd == 4000 ? WR : fd + 1, 20, 0);
			GET(fd, 20, 0, 0);
		}
		t_register("far_files", NULL);
		t_crash();
	}
}

T(passed_files)
{
	for_each_kind(k, ~0) {
		int way[2], fd[2];
		pid_t pid;

		T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, way));
		pid = t_fork();
		if (!pid) {
			k->open(fd);
			feed(fd[1], 30, 0);
			READABLE(fd[0], 1);
			GET(fd[0], 10, 0, 0);
			send_fd(way[1], fd[0]);
			send_fd(way[1], fd[1]);
			T_ASSERT(read(way[1], &fd, 1) == 1);
			_exit(0);
		}
		fd[0] = recv_fd(way[0]);
		fd[1] = recv_fd(way[0]);
		T_IOLOG(fd[0], 10, 0, 0, 0);
		T_ERR(x_hread(fd[0], NULL, 0, 1), EINVAL);
		if (k->flags & STREAM)
			GET(fd[0], 20, 10, 20);
		T_ASSERT(write(way[0], "x", 1) == 1);
		T_EXITED(t_wait(pid), 0);
		EMPTY(fd[0]);
	}
}

/* Files that were sent along are closed, as read(2) does it, when the data has gone at the latest. */
T(files_in_messages)
{
	for_each_kind(k, ~0) {
		int fd[2], p[2];
		char buf[8];

		if (strncmp(k->name, "unix", 4) && strcmp(k->name, "seqpacket"))
			continue;
		k->open(fd);
		T_OK(pipe(p));
		send_fd(fd[1], p[1]);
		close(p[1]);
		T_EQ(x_hread(fd[0], buf, 8, 0), 1);
		T_EQ(x_hread(fd[0], NULL, 0, 1), 0);
		T_EQ(read(p[0], buf, 1), 0);
	}
}

/* ---- another process that waits is woken by a rewind ---- */

ROLE(stays)
{
	t_word[0] = 2;
	t_sleep_ms(1000000);
	return 0;
}

T(waiters_are_woken)
{
	for (int how = 0; how < 4; how++) {
		for_each_kind(k, ~0) {
			struct epoll_event ev = { .events = EPOLLIN | (how == 1 ? EPOLLET : 0) };
			struct pollfd pfd = { .fd = RD, .events = POLLIN };
			int ep = T_OK(epoll_create1(0));
			uint64_t start;
			pid_t pid;

			open_at(k, RD, WR);
			T_OK(epoll_ctl(ep, EPOLL_CTL_ADD, RD, &ev));
			feed(WR, 20, 0);
			T_EQ(epoll_wait(ep, &ev, 1, 5000), 1);
			t_word[0] = 0;
			pid = t_fork();
			if (!pid) {
				GET(RD, 20, 0, 0);
				t_register("stays", NULL);
				t_word[1] = t_now_ns();
				t_word[0] = 1;
				t_sleep_ms(50);
				t_crash();
			}
			while (!t_word[0])
				t_sleep_ms(1);
			start = t_word[1];
			if (how == 2)
				T_EQ(poll(&pfd, 1, 5000), 1);
			else if (how == 3)
				GET(RD, 20, 0, 0);
			else
				T_EQ(epoll_wait(ep, &ev, 1, 5000), 1);
			T_EXPECT(t_now_ns() - start > 20000000);
			if (how == 3)
				T_EQ(x_hread(RD, NULL, 0, 20), 0);
			else
				GET(RD, 20, 0, 20);
			t_reap(pid);
			T_OK(epoll_ctl(ep, EPOLL_CTL_DEL, RD, NULL));
			close(ep);
		}
	}
}

/* Readers that were too late, and wait again, hold up neither a restart nor a look at the file. */
ROLE(not_held_up)
{
	struct io_log log;

	T_EQ(x_getiolog(RD, &log), 0);
	t_word[0] = 2;
	return 0;
}

T(late_readers)
{
	for_each_kind(k, ~0) {
		pid_t readers[3], holder;
		struct io_log log;
		char c;

		open_at(k, RD, WR);
		t_word[0] = 0;
		holder = t_fork();
		if (!holder) {
			T_EQ(x_hread(RD, &c, 1, 0), 1);
			t_register("not_held_up", NULL);
			t_word[0] = 1;
			for (;;)
				pause();
		}
		T_ASSERT(write(WR, "a", 1) == 1);
		while (!t_word[0])
			t_sleep_ms(1);
		for (int i = 0; i < 3; i++) {
			readers[i] = t_fork();
			if (!readers[i]) {
				while (x_hread(RD, &c, 1, 1) == 1)
					;
				_exit(1);
			}
		}
		for (int i = 0; i < 30; i++) {
			T_ASSERT(write(WR, "b", 1) == 1);
			t_sleep_ms(3);
		}
		T_EQ(x_getiolog(RD, &log), 0);
		/* Whoever reads the last one may not have run yet */
		for (int i = 0; i < 5000 && log.read < 31; i++) {
			t_sleep_ms(1);
			T_EQ(x_getiolog(RD, &log), 0);
		}
		T_EQ(log.read, 31);
		T_OK(kill(holder, SIGSEGV));
		T_EXITED(t_wait(holder), 0);
		T_EQ(t_word[0], 2);
		for (int i = 0; i < 3; i++)
			t_reap(readers[i]);
	}
}

/* ---- threads ---- */

enum { THREADS = 4, BYTES = 200000 };

static unsigned char seen[BYTES];
static int shared[2];
static atomic_int thread_reads;

static void *reads(void *arg)
{
	static const unsigned int sizes[] = { 1, 7, 100, 1000 };
	unsigned char buf[1000];
	ssize_t n;

	/* Each value is a 4-byte position: records that no reader may tear. */
	for (;;) {
		size_t want = sizes[(long)arg] * 4 < sizeof(buf) ? sizes[(long)arg] * 4 : sizeof(buf);

		n = x_hread(shared[0], buf, want, 0);
		if (n <= 0)
			break;
		atomic_fetch_add(&thread_reads, 1);
		for (ssize_t i = 0; i + 4 <= n; i += 4) {
			uint32_t v;

			memcpy(&v, buf + i, 4);
			if (v < BYTES)
				__atomic_fetch_add(&seen[v], 1, __ATOMIC_RELAXED);
		}
		if (n % 4)
			T_EQ(n % 4, 0);
	}
	return NULL;
}

/* Threads that read the same file get every byte once between them, in pieces that are whole. */
T_LIMIT(threads_share_a_file, 60)
{
	for_each_kind(k, STREAM | DGRAM) {
		uint32_t values[100];
		pthread_t t[THREADS];
		int count = 0, total = 20000 / t_slow();

		if (k->flags & TTY || strchr(k->name, '6') || k->flags & DGRAM)
			continue;
		k->open(shared);
		memset(seen, 0, sizeof(seen));
		thread_reads = 0;
		for (long i = 0; i < THREADS; i++)
			T_ASSERT(!pthread_create(&t[i], NULL, reads, (void *)i));
		while (count < total) {
			int n = 1 + count % 100;

			for (int i = 0; i < n; i++)
				values[i] = count + i;
			T_ASSERT(write(shared[1], values, 4 * n) == 4 * n);
			count += n;
			/* All of it would be too much to hold: release by halves. */
			if (count % 64 == 0)
				x_hread(shared[0], NULL, 0, 256);
		}
		if (k->flags & SOCK)
			shutdown(shared[1], SHUT_WR);
		close(shared[1]);
		for (int i = 0; i < THREADS; i++)
			pthread_join(t[i], NULL);
		for (int i = 0; i < count; i++) {
			if (seen[i] != 1) {
				t_note("value %d", i);
				T_EQ(seen[i], 1);
				break;
			}
		}
		T_EXPECT(thread_reads > THREADS);
		close(shared[0]);
	}
}

static pthread_barrier_t barrier;

static void *first_user(void *arg)
{
	char buf[8];

	for (;;) {
		pthread_barrier_wait(&barrier);
		if (shared[0] < 0)
			return arg;
		if (arg) {
			if (x_lwrite(shared[0], "x", 1) != 1)
				T_ERR(-1, 0);
		} else {
			/* Refused: unread. Then the plain way. */
			if (x_hread_nowait(shared[0], buf, 8, 6) != -1 || errno != EINVAL)
				T_ERR(-1, EINVAL);
			if (read(shared[0], buf, 8) != 5)
				T_EQ(errno, 0);
		}
		pthread_barrier_wait(&barrier);
	}
}

/* Two threads are the first ones to use a file, at the same time. */
T(first_users_race)
{
	uint64_t end = t_now_ns() + 1000000000ull;
	pthread_t t[2];
	long rounds = 0;

	pthread_barrier_init(&barrier, NULL, 3);
	for (long i = 0; i < 2; i++)
		T_ASSERT(!pthread_create(&t[i], NULL, first_user, (void *)i));
	for (; t_now_ns() < end; rounds++) {
		open_unix(shared);
		feed(shared[1], 5, 0);
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
		T_IOLOG(shared[0], 5, 5, 0, 1);
		close(shared[0]);
		close(shared[1]);
	}
	shared[0] = -1;
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	t_note("%ld rounds", rounds);
}

static void *faults_soon(void *arg)
{
	t_sleep_ms(20);
	t_crash();
	return arg;
}

ROLE(reads_it_all_again)
{
	static unsigned char buf[65536];
	const struct kind *k = kind_named(argv[0]);
	struct io_log log, sent;
	uint64_t got = 0;
	ssize_t n;

	/* What the threads held when one of them faulted comes again, then what was still to come: no gap. */
	T_EQ(x_getiolog(RD, &log), 0);
	T_EQ(log.held, log.unread);
	T_EQ(x_getiolog(WR, &sent), 0);
	T_EXPECT(sent.written > 0);
	if (k->flags & SOCK)
		shutdown(WR, SHUT_WR);
	close(WR);
	while ((n = x_hread(RD, buf, sizeof(buf), 0)) > 0) {
		T_EQ(t_match(buf, n, got), n);
		got += n;
	}
	T_EQ(n, 0);
	T_EQ(got, sent.written);
	return 0;
}

static void *reads_on(void *arg)
{
	char buf[700];

	while (x_hread(RD, buf, 100 + 150 * (long)arg, 0) > 0)
		;
	return NULL;
}

T(fault_while_threads_read)
{
	for (int round = 0; round < 3; round++) {
		for_each_kind(k, STREAM) {
			if (k->flags & TTY)
				continue;
			T_CHILD {
				pthread_t t;

				open_at(k, RD, WR);
				t_register("reads_it_all_again", k->name, NULL);
				for (long i = 0; i < 3; i++)
					T_ASSERT(!pthread_create(&t, NULL, reads_on, (void *)i));
				T_ASSERT(!pthread_create(&t, NULL, faults_soon, NULL));
				for (uint64_t sent = 0;;) {
					char buf[512];

					t_fill(buf, sizeof(buf), sent);
					sent += T_OK(x_lwrite(WR, buf, sizeof(buf)));
					t_sleep_ms(1);
				}
			}
		}
	}
}

/* ---- limits ---- */

T(held_bytes_max)
{
	T_OK(t_sysctl("held_bytes_max", 4096));
	for_each_kind(k, STREAM) {
		static char buf[8192];
		int fd[2];

		if (k->flags & TTY)
			continue;
		k->open(fd);
		feed(fd[1], 8000, 0);
		T_EQ(x_hread(fd[0], buf, 3000, 0), 3000);
		/* Shortened to the room that is left. */
		T_EQ(x_hread(fd[0], buf, 3000, 0), 1096);
		T_EQ(t_match(buf, 1096, 3000), 1096);
		T_ERR(x_hread(fd[0], buf, 3000, 0), ENOBUFS);
		T_ERR(x_hread_nowait(fd[0], buf, 1, 0), ENOBUFS);
		T_IOLOG(fd[0], 4096, 0, 0, 0);
		READABLE(fd[0], 1);
		T_EQ(x_hread(fd[0], NULL, 0, 96), 0);
		T_EQ(x_hread(fd[0], buf, 3000, 0), 96);
		T_EQ(t_match(buf, 96, 4096), 96);
		/* Plain reading holds nothing and needs no room. */
		T_EQ(read(fd[0], buf, 100), 100);
		T_EQ(t_match(buf, 100, 4192), 100);
		T_EQ(x_hread(fd[0], NULL, 0, 4096), 0);
		T_EQ(x_hread(fd[0], buf, 3000, 0), 3000);
		T_EQ(t_match(buf, 3000, 4292), 3000);
	}
	/* A datagram is not shortened: one that exceeds the limit by itself is taken. */
	for_each_kind(k, DGRAM) {
		static char buf[8192];
		int fd[2];

		k->open(fd);
		feed(fd[1], 6000, 0);
		feed(fd[1], 10, 6000);
		T_EQ(x_hread(fd[0], buf, sizeof(buf), 0), 6000);
		T_EQ(t_match(buf, 6000, 0), 6000);
		T_ERR(x_hread(fd[0], buf, sizeof(buf), 0), ENOBUFS);
		T_EQ(x_hread(fd[0], NULL, 0, 6000), 0);
		GET_ALL(fd[0], 10, 6000, 0);
	}
	/* Small ones count 256 bytes each, since that is what they cost at least. */
	for_each_kind(k, DGRAM) {
		char buf[8];
		int fd[2];

		k->open(fd);
		for (int i = 0; i < 16; i++) {
			feed(fd[1], 1, i);
			GET_ALL(fd[0], 1, i, 0);
		}
		feed(fd[1], 1, 16);
		T_ERR(x_hread_nowait(fd[0], buf, 8, 0), ENOBUFS);
		T_EQ(x_hread(fd[0], NULL, 0, 1), 0);
		GET_ALL(fd[0], 1, 16, 0);
		T_IOLOG(fd[0], 17, 1, 0, 0);
	}
	T_OK(t_sysctl("held_bytes_max", 1048576));
}

/* What somebody has held who is gone takes no room from who reads on. */
T(limit_without_the_dead)
{
	T_OK(t_sysctl("held_bytes_max", 4096));
	for_each_kind(k, STREAM) {
		static char buf[8192];
		int fd[2];

		if (k->flags & TTY)
			continue;
		k->open(fd);
		feed(fd[1], 8000, 0);
		T_EQ(x_hread(fd[0], buf, 100, 0), 100);
		T_CHILD
			T_EQ(x_hread(fd[0], buf, 8000, 0), 3996);
		T_EQ(x_hread(fd[0], buf, 3000, 0), 3000);
		T_EQ(t_match(buf, 3000, 4096), 3000);
	}
	T_OK(t_sysctl("held_bytes_max", 1048576));
}

T(limit_changes_while_holding)
{
	for_each_kind(k, STREAM) {
		static char buf[8192];
		int fd[2];

		if (k->flags & TTY)
			continue;
		k->open(fd);
		feed(fd[1], 8000, 0);
		GET(fd[0], 6000, 0, 0);
		T_OK(t_sysctl("held_bytes_max", 4096));
		T_ERR(x_hread(fd[0], buf, 100, 0), ENOBUFS);
		T_IOLOG(fd[0], 6000, 0, 0, 0);
		T_OK(t_sysctl("held_bytes_max", 7000));
		T_EQ(x_hread(fd[0], buf, 2000, 0), 1000);
		T_OK(t_sysctl("held_bytes_max", 4096));
		T_EQ(x_hread(fd[0], NULL, 0, 3000), 0);
		T_EQ(x_hread(fd[0], buf, 2000, 0), 96);
		T_EQ(t_match(buf, 96, 7000), 96);
		T_OK(t_sysctl("held_bytes_max", 1048576));
		T_EQ(x_hread(fd[0], buf, 2000, 0), 904);
		T_IOLOG(fd[0], 8000, 3000, 0, 0);
	}
}

/* ---- memory: charged to the holder's cgroup, given back at the last close ---- */

/* Holds 512 KiB of a stream, as 8 KiB pieces. */
static void hold_much(int fd[2])
{
	static char buf[8192];

	for (int i = 0; i < 64; i++) {
		feed(fd[1], 8192, 8192 * i);
		for (size_t got = 0; got < 8192;) {
			ssize_t n = T_OK(x_hread(fd[0], buf, 8192 - got, 0));

			T_EQ(t_match(buf, n, 8192 * i + got), n);
			got += n;
		}
	}
}

T_LIMIT(memory, 60)
{
	enum { FILES = 8, MUCH = FILES * 512 * 1024 };

	cg_open("max");
	T_CHILD {
		cg_enter();
		for_each_kind(k, STREAM) {
			int fd[FILES][2];
			long before, during, after;

			if (k->flags & TTY)
				continue;
			for (int i = 0; i < FILES; i++)
				k->open(fd[i]);
			before = cg_get("memory.current");
			for (int i = 0; i < FILES; i++)
				hold_much(fd[i]);
			during = cg_get("memory.current");
			T_RANGE(during - before, MUCH * 3 / 4, MUCH * 8);
			for (int i = 0; i < FILES; i++) {
				close(fd[i][1]);
				close(fd[i][0]);
			}
			/* Sockets are freed a little later, counters are batched. */
			for (int i = 0; i < 50 && cg_get("memory.current") > before + MUCH / 4; i++)
				t_sleep_ms(20);
			after = cg_get("memory.current");
			T_EXPECT(after < before + MUCH / 4);
			t_note("%s: %d KiB held cost %ld KiB, %ld KiB after the last close", k->name, MUCH / 1024,
			       (during - before) / 1024, (after - before) / 1024);
		}
	}
	cg_close();
}

/* Parts of a large buffer cost what they are, not the whole of it each. */
T_LIMIT(large_pieces, 60)
{
	enum { MUCH = 512 * 1024, PIECE = 2048, CHUNK = 64 * 1024 };

	cg_open("max");
	T_CHILD {
		cg_enter();
		for_each_kind(k, TCP) {
			static char buf[CHUNK];
			long before, cost;
			int fd[2];

			k->open(fd);
			before = cg_get("memory.current");
			for (int at = 0; at < MUCH; at += CHUNK) {
				t_fill(buf, CHUNK, at);
				T_EQ(write(fd[1], buf, CHUNK), CHUNK);
				for (size_t got = 0; got < CHUNK;) {
					ssize_t n = T_OK(x_hread(fd[0], buf, PIECE, 0));

					T_EQ(t_match(buf, n, at + got), n);
					got += n;
				}
			}
			T_IOLOG(fd[0], MUCH, 0, 0, 0);
			cost = cg_get("memory.current") - before;
			/* The debug kernel's allocations are larger */
			T_RANGE(cost, MUCH / 2, 5 * MUCH);
			t_note("%s: %d KiB held in pieces of %d bytes cost %ld KiB", k->name, MUCH / 1024, PIECE, cost / 1024);
			close(fd[0]);
			close(fd[1]);
		}
	}
	cg_close();
}

/* Bytes that come one by one cost little more than bytes that come together. */
T_LIMIT(small_pieces, 60)
{
	enum { BYTES_HELD = 20000 };

	cg_open("max");
	T_CHILD {
		cg_enter();
		for_each_kind(k, STREAM) {
			long before = cg_get("memory.current");
			uint64_t begin = t_now_ns();
			char buf[64];
			int fd[2];

			if (k->flags & TTY)
				continue;
			k->open(fd);
			for (int i = 0; i < BYTES_HELD / 2; i++) {
				T_ASSERT(write(fd[1], "ab", 2) == 2);
				if (x_hread(fd[0], buf, 1, 0) != 1 || x_hread(fd[0], buf, 64, 0) != 1)
					T_EQ(errno, 0);
			}
			T_IOLOG(fd[0], BYTES_HELD, 0, 0, 0);
			T_RANGE(cg_get("memory.current") - before, LONG_MIN, 10 * BYTES_HELD + (1 << 20));
			close(fd[0]);
			close(fd[1]);
			t_note("%s: %llu ms", k->name, (unsigned long long)(t_now_ns() - begin) / 1000000);
		}
	}
	cg_close();
}

/* What is held does not fill the socket's receive buffer. */
T(small_receive_buffer)
{
	for_each_kind(k, TCP) {
		int fd[2];

		k->open(fd);
		T_OK(setsockopt(fd[0], SOL_SOCKET, SO_RCVBUF, &(int){ 16384 }, sizeof(int)));
		hold_much(fd);
		T_IOLOG(fd[0], 512 * 1024, 0, 0, 0);
		T_EQ(x_hread(fd[0], NULL, 0, 512 * 1024), 0);
	}
}

/* A network namespace whose sockets hold data can go. (If it could not, the kernel would say so on the console.) */
T(network_namespace_goes)
{
	for (int restart = 0; restart < 2; restart++) {
		T_CHILD {
			struct ifreq_lo {
				char name[16];
				short flags;
				char pad[64];
			} ifr = { .name = "lo" };
			int s;

			T_OK(unshare(CLONE_NEWNET));
			s = T_OK(socket(AF_INET, SOCK_DGRAM, 0));
			T_OK(ioctl(s, 0x8913 /* SIOCGIFFLAGS */, &ifr));
			ifr.flags |= 1;		/* IFF_UP */
			T_OK(ioctl(s, 0x8914 /* SIOCSIFFLAGS */, &ifr));
			for_each_kind(k, INET) {
				int fd[2];

				k->open(fd);
				for (int i = 0; i < 5; i++) {
					feed(fd[1], 1000, 1000 * i);
					GET(fd[0], 1000, 1000 * i, 0);
				}
			}
			if (restart) {
				t_register("leaves", NULL);
				t_crash();
			}
		}
	}
	t_sleep_ms(200);
}

ROLE(leaves)
{
	T_EQ(t_generation(), 2);
	return 0;
}

/* One writes to each file, outside of the cgroup: 1 MiB, and what is read after an error at the end of that. Returns its process. */
static pid_t feeds(int fd[][2], int files)
{
	pid_t pid = t_fork();

	if (!pid) {
		for (int f = 0; f < files; f++)
			for (int at = 0; at < (1 << 20) + 2 * 8192; at += 8192)
				feed(fd[f][1], 8192, at);
		_exit(0);
	}
	return pid;
}

/* At the limit of a cgroup a page fault would end the process: what it needs from here on is in memory, its stack included. */
static void no_more_page_faults(void)
{
	volatile char stack[64 * 1024];

	for (size_t i = 0; i < sizeof(stack); i += 4096)
		stack[i] = 0;
	T_OK(mlockall(MCL_CURRENT));
}

/*
 * More than the cgroup may have: an error that loses nothing, after which everything goes on. Nobody is killed for it,
 * least of all a small process beside the one that reads.
 */
T_LIMIT(memory_limit, 90)
{
	enum { FILES = 12 };
	char events[256];

	cg_open("6M");
	for_each_kind(k, ~0) {
		int fd[FILES][2];
		pid_t reader, sibling, feeder;

		/* What nobody reads of a pty or of UDP is lost. */
		if (k->flags & TTY || (k->flags & (DGRAM | INET)) == (DGRAM | INET))
			continue;
		for (int f = 0; f < FILES; f++)
			k->open(fd[f]);
		sibling = t_fork();
		if (!sibling) {
			cg_enter();
			for (;;)
				pause();
		}
		feeder = feeds(fd, FILES);
		reader = t_fork();
		if (!reader) {
			static char buf[8192];
			ssize_t n, held = 0;

			memset(buf, 1, sizeof(buf));
			cg_enter();
			no_more_page_faults();
			for (int f = 0; f < FILES; f++) {
				uint64_t got = 0;

				while (got < 1 << 20) {
					n = x_hread(fd[f][0], buf, 8192, 0);
					if (n < 0)
						break;
					T_EQ(t_match(buf, n, got), n);
					got += n;
				}
				if (got == 1 << 20) {
					held += got;
					continue;
				}
				T_EQ(errno, ENOMEM);
				/* It is still there, and can be read at the limit. */
				n = read(fd[f][0], buf, 8192);
				T_RANGE(n, 1, 8192);
				T_EQ(t_match(buf, n, got), n);
				T_IOLOG(fd[f][0], got, 0, 0, 0);
				T_EQ(x_hread(fd[f][0], NULL, 0, got), 0);
				held += got;
				got += n;
				T_EQ(x_hread(fd[0][0], NULL, 0, f ? 1 << 20 : 0), 0);
				n = x_hread(fd[f][0], buf, 8192, 0);
				T_RANGE(n, 1, 8192);
				T_EQ(t_match(buf, n, got), n);
				t_note("%s: %zd KiB held of %d", k->name, held / 1024, 6 * 1024);
				_exit(7);
			}
			_exit(8);
		}
		T_EXITED(t_wait(reader), 7);
		if (T_EQ(waitpid(sibling, NULL, WNOHANG), 0))
			t_reap(sibling);
		T_OK(t_get(cg_path("memory.events"), events, sizeof(events)));
		T_EXPECT(strstr(events, "\noom_kill 0"));
		t_reap(feeder);
		for (int f = 0; f < FILES; f++) {
			close(fd[f][0]);
			close(fd[f][1]);
		}
	}
	cg_close();
}

/* ---- memory of TCP's ---- */

enum { AT_ONCE = 64 * 1024 };

static long available(void)
{
	char text[4096];

	T_OK(t_get("/proc/meminfo", text, sizeof(text)));
	return atol(strstr(text, "MemAvailable:") + 13) * 1024;
}

/* Writes 64 KiB, holds the first n bytes of it, and reads the rest plainly. */
static void hold_first(int rd, int wr, ssize_t n)
{
	static char buf[AT_ONCE];

	if (wr >= 0)
		T_EQ(write(wr, buf, AT_ONCE), AT_ONCE);
	for (ssize_t got = 0, len; got < AT_ONCE; got += len) {
		len = got < n ? x_hread(rd, buf, n - got, 0) : read(rd, buf, AT_ONCE - got);
		T_ASSERT(len > 0);
	}
}

/* Who holds little of a large buffer, the rest of which has been read, does not keep the whole of it for nothing. */
T_LIMIT(rest_is_read, 120)
{
	enum { FILES = 16, ROUNDS = 32 };
	static const int sizes[] = { 1025, 9000 };

	cg_open("max");
	T_CHILD {
		cg_enter();
		for_each_kind(k, TCP) {
			for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
				long charged, taken, held = (long)FILES * ROUNDS * sizes[s];
				int fd[FILES][2];

				for (int f = 0; f < FILES; f++) {
					k->open(fd[f]);
					hold_first(fd[f][0], fd[f][1], 1);
				}
				charged = cg_get("memory.current");
				taken = available();
				for (int i = 0; i < ROUNDS; i++)
					for (int f = 0; f < FILES; f++)
						hold_first(fd[f][0], fd[f][1], sizes[s]);
				charged = cg_get("memory.current") - charged;
				taken -= available();
				t_note("%s: %ld KiB held in pieces of %d bytes take %ld KiB, %ld KiB are charged", k->name,
				       held / 1024, sizes[s], taken / 1024, charged / 1024);
				T_RANGE(taken, LONG_MIN, 2 * charged + (8 << 20));
				T_RANGE(charged, held / 2, 5 * held + (1 << 20));
				for (int f = 0; f < FILES; f++) {
					close(fd[f][0]);
					close(fd[f][1]);
				}
			}
		}
	}
	cg_close();
}

/* The same of what a restart made unread: what is read plainly takes nothing of what is paid for the rest. */
enum { FIRST = 100, INHERITED = 16 };

ROLE(reads_of_inherited)
{
	long charged, taken;

	T_EQ(t_generation(), 2);
	snprintf(cg_dir, sizeof(cg_dir), "%s", argv[0]);
	charged = cg_get("memory.current");
	taken = available();
	for (int f = 0; f < INHERITED; f++)
		for (int i = 0; i < 15; i++)
			hold_first(FIRST + 2 * f, -1, 1025);
	charged -= cg_get("memory.current");
	taken = available() - taken;
	t_note("%ld KiB freed, %ld KiB paid less", taken / 1024, charged / 1024);
	T_RANGE(charged, LONG_MIN, taken + (4 << 20));
	return 0;
}

T_LIMIT(rest_of_inherited_is_read, 60)
{
	cg_open("max");
	for_each_kind(k, TCP) {
		T_CHILD {
			cg_enter();
			for (int f = 0; f < INHERITED; f++) {
				open_at(k, FIRST + 2 * f, FIRST + 2 * f + 1);
				for (int i = 0; i < 15; i++)
					hold_first(FIRST + 2 * f, FIRST + 2 * f + 1, AT_ONCE);
			}
			t_register("reads_of_inherited", cg_dir, NULL);
			t_crash();
		}
	}
	cg_close();
}

/* Pages that TCP counts, against net.ipv4.tcp_mem */
static long tcp_mem(void)
{
	char text[1024], *tcp;

	T_OK(t_get("/proc/net/sockstat", text, sizeof(text)));
	tcp = strstr(text, "TCP:");
	T_ASSERT(tcp && strstr(tcp, " mem "));
	return atol(strstr(tcp, " mem ") + 5);
}

/* Each processor may have up to 1 MiB of the count for itself. */
#define TCP_MEM_SLACK	(sysconf(_SC_NPROCESSORS_ONLN) * 2 * 256)

ROLE(reads_it_plainly)
{
	static char buf[AT_ONCE];
	long before = atol(argv[0]), much = 15l * INHERITED * AT_ONCE / t_page();

	T_EQ(t_generation(), 2);
	T_RANGE(tcp_mem() - before, much - TCP_MEM_SLACK, LONG_MAX);
	for (int f = 0; f < INHERITED; f++)
		for (ssize_t n, left = 15 * AT_ONCE; left; left -= n)
			T_ASSERT((n = read(FIRST + 2 * f, buf, AT_ONCE)) > 0);
	T_RANGE(tcp_mem() - before, LONG_MIN, TCP_MEM_SLACK);
	return 0;
}

/* What is held stays TCP's memory until it is released, read again, or the last file is closed. */
T_LIMIT(held_is_tcp_memory, 60)
{
	enum { MUCH = 15 * AT_ONCE };

	for_each_kind(k, TCP) {
		for (int end = 0; end < 3; end++) {
			T_CHILD {
				long before = tcp_mem(), much = (long)INHERITED * MUCH / t_page();
				char text[32];

				snprintf(text, sizeof(text), "%ld", before);
				for (int f = 0; f < INHERITED; f++) {
					open_at(k, FIRST + 2 * f, FIRST + 2 * f + 1);
					for (int i = 0; i < 15; i++)
						hold_first(FIRST + 2 * f, FIRST + 2 * f + 1, AT_ONCE);
				}
				T_RANGE(tcp_mem() - before, much - TCP_MEM_SLACK, 2 * much + TCP_MEM_SLACK);
				if (end == 2) {
					t_register("reads_it_plainly", text, NULL);
					t_crash();
				}
				for (int f = 0; f < INHERITED; f++) {
					if (end == 0) {
						T_EQ(x_hread(FIRST + 2 * f, NULL, 0, MUCH), 0);
					} else {
						close(FIRST + 2 * f);
						close(FIRST + 2 * f + 1);
					}
				}
				T_RANGE(tcp_mem() - before, LONG_MIN, TCP_MEM_SLACK);
			}
		}
	}
}

/* tcpi_segs_out, which the struct tcp_info of the C library does not have */
static uint32_t segs_out(int fd)
{
	uint32_t info[64] = {};
	socklen_t len = sizeof(info);

	T_OK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len));
	T_RANGE(len, 140, sizeof(info));
	return info[136 / 4];
}

/* Reading makes room, and the peer is told at once: it need not ask whether there is some. */
T(window_is_opened)
{
	for_each_kind(k, TCP) {
		static char buf[AT_ONCE];
		uint32_t sent;
		int fd[2];

		k->open(fd);
		T_OK(setsockopt(fd[0], SOL_SOCKET, SO_RCVBUF, &(int){ 32768 }, sizeof(int)));
		T_OK(fcntl(fd[1], F_SETFL, O_NONBLOCK));
		/* Until the window is shut and nothing moves any more. */
		for (int i = 0; i < 3; i++) {
			while (write(fd[1], buf, 4096) > 0)
				;
			T_EQ(errno, EAGAIN);
			t_sleep_ms(10);
		}
		sent = segs_out(fd[0]);
		T_RANGE(x_hread_nowait(fd[0], buf, sizeof(buf), 0), 16384, sizeof(buf));
		T_EXPECT(segs_out(fd[0]) != sent);
		close(fd[0]);
		close(fd[1]);
	}
}

/* What hread() takes moves SO_PEEK_OFF back, as what read() takes does. */
T(peek_offset)
{
	for_each_kind(k, TCP) {
		char buf[64];
		int fd[2];

		k->open(fd);
		if (setsockopt(fd[0], SOL_SOCKET, SO_PEEK_OFF, &(int){ 0 }, sizeof(int)))
			t_skip("no SO_PEEK_OFF on TCP");
		feed(fd[1], 40, 0);
		READABLE(fd[0], 1);
		T_EQ(recv(fd[0], buf, 20, MSG_PEEK), 20);
		T_EQ(t_match(buf, 20, 0), 20);
		GET(fd[0], 10, 0, 0);
		T_EQ(recv(fd[0], buf, 10, MSG_PEEK), 10);
		T_EQ(t_match(buf, 10, 20), 10);
		GET(fd[0], 30, 10, 0);
		close(fd[0]);
		close(fd[1]);
	}
}

/* ---- io_uring ---- */

ROLE(ring_reads)
{
	const struct kind *k = kind_named(argv[0]);
	char buf[64];
	struct ring r;

	ring_open(&r);
	T_EQ(t_generation(), 2);
	T_EQ(ring_do(&r, IORING_OP_READ, RD, buf, 10), 10);
	T_EQ(t_match(buf, 10, 0), 10);
	T_IOLOG(RD, 30, 10, 20, 0);
	if (k->flags & SOCK)
		T_EQ(ring_do(&r, IORING_OP_RECV, RD, buf, 64), k->flags & DGRAM ? 20 : 20 + 15);
	else
		T_RANGE(ring_do(&r, IORING_OP_READ, RD, buf, 64), 20, 35);
	T_EQ(t_match(buf, 20, 10), 20);
	T_IOLOG(RD, 30, 30, 0, 0);
	return 0;
}

T(io_uring)
{
	struct ring r;

	ring_open(&r);
	close(r.fd);
	for_each_kind(k, ~0) {
		if (k->flags & TTY)
			continue;
		T_CHILD {
			open_at(k, RD, WR);
			feed(WR, 10, 0);
			GET(RD, 10, 0, 0);
			feed(WR, 20, 10);
			GET(RD, 20, 10, 0);
			feed(WR, 15, 30);
			t_register("ring_reads", k->name, NULL);
			t_crash();
		}
	}
}

/* A request that waits in a ring of the old generation does not take data from the new one. */
ROLE(ring_gone)
{
	char buf[64];

	feed(WR, 10, 0);
	T_EQ(x_hread(RD, buf, 64, 0), 10);
	T_EQ(t_match(buf, 10, 0), 10);
	return 0;
}

T(io_uring_waiting)
{
	for_each_kind(k, STREAM) {
		T_CHILD {
			static char buf[64];
			struct ring r;
			unsigned int *tail;

			open_at(k, RD, WR);
			ring_open(&r);
			tail = (void *)(r.sq + r.p.sq_off.tail);
			r.sqes[0] = (struct io_uring_sqe){ .opcode = IORING_OP_READ, .fd = RD, .off = -1,
							   .addr = (uintptr_t)buf, .len = 64 };
			*(unsigned int *)(r.sq + r.p.sq_off.array) = 0;
			__atomic_store_n(tail, 1, __ATOMIC_RELEASE);
			T_EQ(syscall(SYS_io_uring_enter, r.fd, 1, 0, 0, NULL, 0), 1);
			t_register("ring_gone", NULL);
			t_crash();
		}
	}
}
