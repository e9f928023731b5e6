// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Services that share a channel, and fault at random instants: each takes records from it with hread(), marks them
 * done in a shared page, and only then releases them, while other threads look at the file in every way. In the end
 * every record has been done, by whomever and however often, and nothing is held any more.
 * PERDURE_STRESS_S says for how long.
 */
#include "chan.h"

#include <pthread.h>
#include <sys/epoll.h>

enum { STATE_FD = 30, RECORDS = 1 << 16, SERVICES = 3, QUEUED = 128 };

struct state {
	_Atomic unsigned int registered;	/* services */
	_Atomic unsigned int sent;		/* records */
	_Atomic int quit, busy[SERVICES];
	_Atomic unsigned char done[RECORDS];
};

static struct state *s;
static const struct kind *kind;

static void map_state(void)
{
	s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED, STATE_FD, 0);
	T_ASSERT(s != MAP_FAILED);
}

static void *looks_on(void *arg)
{
	struct pollfd pfd = { .fd = RD, .events = POLLIN };
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	int ep = epoll_create1(0);
	struct io_log log;
	char buf[64];

	epoll_ctl(ep, EPOLL_CTL_ADD, RD, &ev);
	while (!s->quit) {
		poll(&pfd, 1, 1);
		epoll_wait(ep, &ev, 1, 0);
		if (kind->flags & SOCK)
			recv(RD, buf, sizeof(buf), MSG_PEEK | MSG_DONTWAIT);
		if (!x_getiolog(RD, &log) && (log.held != log.read - log.released || log.unread > log.held))
			T_EQ(log.held, log.read - log.released);
		usleep(500);
	}
	return arg;
}

/* A record is its number, 4 bytes. Streams are shared byte by byte, so that each read takes whole ones. */
ROLE(service)
{
	struct pollfd pfd = { .fd = RD, .events = POLLIN };
	int nr = atoi(argv[1]);
	uint32_t buf[64];
	pthread_t t;
	ssize_t n;

	kind = kind_named(argv[0]);
	map_state();
	T_ASSERT(!pthread_create(&t, NULL, looks_on, NULL));
	for (;;) {
		s->busy[nr] = 1;
		n = x_hread_nowait(RD, buf, sizeof(buf), 0);
		if (n < 0) {
			if (errno != EAGAIN && errno != EINTR)
				T_ERR(-1, EAGAIN);
			s->busy[nr] = 0;
			if (s->quit)
				break;
			poll(&pfd, 1, 5);
			continue;
		}
		if (n % 4)
			T_EQ(n % 4, 0);
		for (ssize_t i = 0; i < n / 4; i++) {
			if (buf[i] >= s->sent)
				T_RANGE(buf[i], 0, s->sent - 1);
			else
				s->done[buf[i]] = 1;
		}
		if (x_hread(RD, NULL, 0, n))
			T_ERR(x_hread(RD, NULL, 0, n), 0);
	}
	pthread_join(t, NULL);
	return 0;
}

static void play(const char *name)
{
	static const int sigs[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE };
	const char *seconds = getenv("PERDURE_STRESS_S");
	uint64_t seed = t_seed(), end, faults = 0;
	pid_t pids[SERVICES];
	struct io_log log;

	kind = kind_named(name);
	put_at(memfd_create("state", 0), STATE_FD);
	T_OK(ftruncate(STATE_FD, sizeof(*s)));
	map_state();
	open_at(kind, RD, WR);
	T_OK(fcntl(WR, F_SETFL, fcntl(WR, F_GETFL) | O_NONBLOCK));
	for (int i = 0; i < SERVICES; i++) {
		pids[i] = t_fork();
		if (!pids[i]) {
			char nr[4] = { '0' + i };

			t_register("service", name, nr, NULL);
			s->registered++;
			t_crash();
		}
	}
	/* Before that, a fault would kill. */
	while (s->registered < SERVICES && !t_shared->failed)
		t_sleep_ms(1);
	end = t_now_ns() + (seconds ? atof(seconds) : 2) * 1000000000ull;
	while (t_now_ns() < end && !t_shared->failed) {
		uint32_t records[16], first = s->sent, n = 1 + t_rand(&seed) % 16;

		for (uint32_t i = 0; i < n; i++)
			records[i] = first + i;
		/* Datagrams that the receive buffer has no room for are lost, as by any receiver that is too slow. */
		T_EQ(x_getiolog(RD, &log), 0);
		if (first + n < RECORDS && first + n - log.read / 4 <= QUEUED) {
			ssize_t ret;

			s->sent = first + n;
			ret = write(WR, records, 4 * n);
			/* A short write to a stream would tear a record: there is always room for so few bytes. */
			if (ret < 0)
				s->sent = first;
			else
				T_EQ(ret, 4 * n);
		}
		if (t_rand(&seed) % 4 == 0) {
			T_OK(kill(pids[t_rand(&seed) % SERVICES], sigs[t_rand(&seed) % ARRAY_LEN(sigs)]));
			faults++;
		}
		usleep(t_rand(&seed) % 6000);
	}
	/* All take what is left, then they leave. */
	t_sleep_ms(200 * t_slow());
	s->quit = 1;
	for (int i = 0; i < SERVICES; i++)
		T_EXITED(t_wait(pids[i]), 0);
	T_EQ(x_getiolog(RD, &log), 0);
	T_EQ(log.held, 0);
	EMPTY(RD);
	for (unsigned int i = 0; i < s->sent; i++) {
		if (!s->done[i]) {
			t_note("record %u of %u was lost", i, s->sent);
			T_EQ(s->done[i], 1);
			break;
		}
	}
	T_EXPECT(s->sent > 20);
	t_note("%s: %u records, %llu faults, %llu bytes read", name, s->sent, (unsigned long long)faults,
	       (unsigned long long)log.read);
}

T_LIMIT(pipe, 60) { play("pipe"); }
T_LIMIT(unix_stream, 60) { play("unix stream"); }
T_LIMIT(tcp4, 60) { play("tcp4"); }
T_LIMIT(unix_dgram, 60) { play("unix dgram"); }
T_LIMIT(udp6, 60) { play("udp6"); }
