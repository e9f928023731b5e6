// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * This test checks a service of several processes: a master (child id 0), which spreads records over workers (1, 2, ...)
 * by a Unix socket, pipes and TCP and gathers the answers in order, and a board in shared memory. Each registers for
 * itself, and dies and comes back in any order, and at once with the others; the client gets every answer once, and no
 * process loses its parent or its children.
 *
 * None of them keeps state of its own: how far each is, is what was released and written on each channel.
 */
#include "../restart/gen.h"

#include <arpa/inet.h>
#include <netinet/in.h>

enum { WORKERS = 3, ROLES = WORKERS + 1, WINDOW = 8 };
/* File descriptors: of the board; of the master; of a worker. */
enum { BOARD = 20, CLIENT = 21, DOWN = 30, UP = 40, IN = 50, OUT = 51 };

struct record {
	uint64_t number;
	uint64_t value;
};

struct board {
	struct {
		_Atomic pid_t pid;
		_Atomic pid_t parent;
		_Atomic uint64_t generation;
		_Atomic uint64_t work;
	} role[ROLES];
};

static struct board *board;
static int client;			/* the test's end */
static uint64_t asked, answered;

static struct board *map_board(void)
{
	struct board *b = mmap(NULL, t_page(), PROT_READ | PROT_WRITE, MAP_SHARED, BOARD, 0);

	T_ASSERT(b != MAP_FAILED);
	return b;
}

static void log_of(int fd, uint64_t *released, uint64_t *written)
{
	struct io_log log;

	T_OK(x_getiolog(fd, &log));
	/* Everything moves by whole records, whatever happens in between. */
	T_ASSERT(log.released % sizeof(struct record) == 0 && log.written % sizeof(struct record) == 0);
	*released = log.released / sizeof(struct record);
	*written = log.written / sizeof(struct record);
}

static uint64_t released(int fd)
{
	uint64_t r, w;

	log_of(fd, &r, &w);
	return r;
}

static uint64_t written(int fd)
{
	uint64_t r, w;

	log_of(fd, &r, &w);
	return w;
}

/* False at end of file. */
static bool get(int fd, struct record *r)
{
	ssize_t n = T_OK(x_hread(fd, r, sizeof(*r), 0));

	T_ASSERT(n == 0 || n == sizeof(*r));
	return n;
}

static void put(int fd, const struct record *r)
{
	T_ASSERT(x_lwrite(fd, r, sizeof(*r)) == sizeof(*r));
}

static void release(int fd)
{
	T_ASSERT(!x_hread(fd, NULL, 0, sizeof(struct record)));
}

static uint64_t answer(uint64_t value, int worker)
{
	return value * 3 + worker + 1;
}

/* How many of the records before number i are worker w's. */
static uint64_t share(uint64_t i, int w)
{
	return i / WORKERS + ((uint64_t)w < i % WORKERS);
}

static int worker(int id)
{
	struct record r;

	while (get(IN, &r)) {
		if (written(OUT) == released(IN)) {
			r.value = answer(r.value, id - 1);
			put(OUT, &r);
		}
		board->role[id].work++;
		release(IN);
	}
	return 0;
}

static int master(void)
{
	struct record r;
	uint64_t next;
	int w;

	/* It has as many children as ever, and none of them is dead. */
	T_EQ(waitpid(-1, NULL, WNOHANG), 0);
	for (;;) {
		next = written(CLIENT);
		w = next % WORKERS;
		struct pollfd p[] = { { CLIENT, POLLIN, 0 }, { UP + w, POLLIN, 0 } };

		T_OK(poll(p, 2, -1));
		if (p[1].revents) {
			/* Given to the client by a generation that did not come to release it? */
			for (int i = 0; i < WORKERS; i++) {
				while (released(UP + i) < share(next, i)) {
					T_ASSERT(get(UP + i, &r));
					release(UP + i);
				}
			}
			T_OK(poll(p + 1, 1, 0));
			if (p[1].revents) {
				T_ASSERT(get(UP + w, &r));
				put(CLIENT, &r);
				release(UP + w);
				board->role[0].work++;
			}
		}
		if (p[0].revents) {
			uint64_t nr = released(CLIENT);

			if (!get(CLIENT, &r))
				break;
			w = nr % WORKERS;
			if (written(DOWN + w) == share(nr, w))
				put(DOWN + w, &r);
			release(CLIENT);
		}
	}
	for (w = 0; w < WORKERS; w++)
		close(DOWN + w), close(UP + w);
	for (w = 0; w < WORKERS; w++)
		T_EXITED(t_wait(board->role[w + 1].pid), 0);
	T_ERR(waitpid(-1, NULL, 0), ECHILD);
	return 0;
}

ROLE(member)
{
	struct reg_info info;
	int id;

	T_EQ(x_getreginfo(&info), 1);
	id = info.child_id;
	T_ASSERT(id >= 0 && id < ROLES);
	board = map_board();
	T_EQ(getpid(), board->role[id].pid);
	T_EQ(getppid(), board->role[id].parent);
	T_RANGE(info.generation, board->role[id].generation + 1, UINT32_MAX);
	board->role[id].generation = info.generation;
	return id ? worker(id) : master();
}

static void enlist(int id)
{
	char *argv[] = { t_self, (char *)"@member", NULL };

	board->role[id].pid = getpid();
	board->role[id].parent = getppid();
	board->role[id].generation = 1;
	T_OK(x_reregist(t_self, argv, environ, id));
}

static void tcp_pair(int fds[2])
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int l = T_OK(socket(AF_INET, SOCK_STREAM, 0));

	T_OK(bind(l, (struct sockaddr *)&a, sizeof(a)));
	T_OK(listen(l, 1));
	T_OK(getsockname(l, (struct sockaddr *)&a, &len));
	fds[0] = T_OK(socket(AF_INET, SOCK_STREAM, 0));
	T_OK(connect(fds[0], (struct sockaddr *)&a, sizeof(a)));
	fds[1] = T_OK(accept(l, NULL, NULL));
	close(l);
}

static void move(int from, int to)
{
	T_OK(dup2(from, to));
	close(from);
}

/* Forks the master, which forks the workers; pgrp is theirs alone. */
static pid_t start(void)
{
	int fd = T_OK(memfd_create("board", 0)), pair[2], down[2], up[2];
	pid_t pid;

	T_OK(ftruncate(fd, t_page()));
	move(fd, BOARD);
	board = map_board();
	T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	client = pair[0];
	asked = answered = 0;
	pid = t_fork();
	if (pid) {
		setpgid(pid, pid);
		close(pair[1]);
		return pid;
	}
	setpgid(0, 0);
	close(client);
	move(pair[1], CLIENT);
	for (int w = 0; w < WORKERS; w++) {
		if (w == 0) {
			T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
		} else if (w == 1) {
			T_OK(pipe(down));
			T_OK(pipe(up));
		} else {
			tcp_pair(pair);
		}
		if (w != 1) {
			/* One open file for both ways */
			down[1] = pair[0], up[0] = T_OK(dup(pair[0]));
			down[0] = pair[1], up[1] = T_OK(dup(pair[1]));
		}
		if (!t_fork()) {
			close(CLIENT);
			close(down[1]), close(up[0]);
			for (int i = 0; i < w; i++)
				close(DOWN + i), close(UP + i);
			move(down[0], IN);
			move(up[1], OUT);
			enlist(w + 1);
			_exit(worker(w + 1));
		}
		close(down[0]), close(up[1]);
		move(down[1], DOWN + w);
		move(up[0], UP + w);
	}
	enlist(0);
	_exit(master());
}

static void ask(void)
{
	struct record r = { asked, asked * 7 };

	T_ASSERT(write(client, &r, sizeof(r)) == sizeof(r));
	asked++;
}

static void check_answer(void)
{
	struct pollfd p = { client, POLLIN, 0 };
	struct record r;

	T_ASSERT(poll(&p, 1, 15000 * t_slow()) == 1);
	T_ASSERT(recv(client, &r, sizeof(r), MSG_WAITALL) == sizeof(r));
	T_EQ(r.number, answered);
	T_EQ(r.value, answer(answered * 7, answered % WORKERS));
	answered++;
}

/* Keeps WINDOW records under way while n answers come. */
static void traffic(int n)
{
	while (n--) {
		while (asked < answered + WINDOW)
			ask();
		check_answer();
	}
}

static void begin(void)
{
	for (int id = 0; id < ROLES; id++)
		while (!board->role[id].generation)
			t_sleep_ms(1);
	traffic(2 * WINDOW);
}

static void fault(int id, int sig)
{
	T_OK(kill(board->role[id].pid, sig));
}

static void await(int id, uint64_t generation)
{
	uint64_t end = t_now_ns() + 15000000000ull * t_slow();

	while (board->role[id].generation < generation && t_now_ns() < end)
		t_sleep_ms(1);
	T_EQ(board->role[id].generation, generation);
}

static void finish(pid_t pid)
{
	char c;

	while (answered < asked)
		check_answer();
	T_OK(shutdown(client, SHUT_WR));
	T_EQ(read(client, &c, 1), 0);
	T_EXITED(t_wait(pid), 0);
	for (int id = 1; id < ROLES; id++)
		T_RANGE(board->role[id].work, share(asked, id - 1), UINT32_MAX);
	T_RANGE(board->role[0].work, 1, asked);
}

T_LIMIT(one_after_the_other, 60)
{
	int step = t_slow() > 1 ? 5 : 1, rounds = 0;
	pid_t pid = start();

	begin();
	/* Every order of the four */
	for (int n = 0; n < 24; n += step, rounds++) {
		int left[ROLES] = { 0, 1, 2, 3 }, k = n;

		for (int i = ROLES; i > 0; i--) {
			int id = left[k % i];

			k /= i;
			for (int j = 0; j < i; j++)
				if (left[j] == id)
					memmove(left + j, left + j + 1, (i - 1 - j) * sizeof(*left));
			fault(id, SIGSEGV);
			traffic(1);
		}
		traffic(WINDOW);
		for (int id = 0; id < ROLES; id++)
			await(id, rounds + 2);
	}
	finish(pid);
}

T_LIMIT(all_at_once, 60)
{
	int rounds = t_rounds(30);
	pid_t pid = start();

	begin();
	for (int n = 0; n < rounds; n++) {
		while (asked < answered + WINDOW)
			ask();
		T_OK(kill(-pid, n % 2 ? SIGSEGV : SIGABRT));
		for (int id = 0; id < ROLES; id++)
			await(id, n + 2);
		traffic(WINDOW + 1);
	}
	finish(pid);
}

T_LIMIT(at_any_time, 60)
{
	static const int sigs[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP };
	uint64_t seed = t_seed(), sum = 0;
	int faults = t_rounds(200);
	pid_t pid = start();

	begin();
	for (int n = 0; n < faults; n++) {
		fault(t_rand(&seed) % ROLES, sigs[t_rand(&seed) % ARRAY_LEN(sigs)]);
		if (t_rand(&seed) % 2)
			traffic(t_rand(&seed) % 4);
		if (t_rand(&seed) % 4 == 0)
			usleep(t_rand(&seed) % 3000);
	}
	finish(pid);
	for (int id = 0; id < ROLES; id++)
		sum += board->role[id].generation - 1;
	/* Two may be one, when they come before the first is seen */
	T_RANGE(sum, faults / 4, faults);
	t_note("%d faults, %llu restarts, %llu answers", faults, (unsigned long long)sum, (unsigned long long)answered);
}

T(while_the_master_is_stopped)
{
	pid_t pid = start();

	begin();
	while (asked < answered + WINDOW)
		ask();
	T_OK(kill(pid, SIGSTOP));
	for (int n = 0; n < 3; n++) {
		for (int id = 1; id < ROLES; id++)
			fault(id, SIGSEGV);
		for (int id = 1; id < ROLES; id++)
			await(id, n + 2);
	}
	/* And a fault of its own for when it goes on */
	fault(0, SIGSEGV);
	T_OK(kill(pid, SIGCONT));
	traffic(2 * WINDOW);
	await(0, 2);
	finish(pid);
}
