// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The fault-injection campaign: makes a service fault at every instant that it can be stopped at, and compares every
 * byte that its client gets.
 *
 *	request		stops it after each instruction, from the arrival of requests to the wait for the next
 *	recovery	stops it at each address that a new generation executes, from its exec to the wait, with a request
 *			half done
 *	load		at random instants, with many requests under way: in calls that wait, in the kernel, anywhere
 *
 * A fault is a signal from outside, or a jump to nowhere. Then one of these is true: "right": the next generation
 * answered, and the stream of answers is what it would have been without a fault; "died": the fault has killed
 * the service, its client has seen the end of a stream that was right so far; "wrong": anything else.
 *
 * CAMPAIGN_EVERY=N in the environment: at every Nth instant only; CAMPAIGN_COUNT=N: so many requests under load. Beside
 * KTAP it prints lines for programs: "campaign", case, faults, right, died, wrong, requests, with tabs between.
 */
#include "../restart/gen.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ptrace.h>
#include <sys/user.h>

#include "ledger.h"

enum channel { TCP, UNIX, PIPES, CHANNELS };

static const char *const channel_name[] = { "TCP", "Unix socket", "pipes" };

struct service {
	enum channel channel;
	pid_t pid;
	int to, from;			/* the client's ends */
	struct ledger_board *board;
	uint64_t generation;		/* that it must have */
	uint64_t sent, number, sum;	/* of requests; of the replies */
	struct request pending[16];	/* a ring: sent, not answered */
	uint64_t seed;
};

struct tally {
	uint64_t faults, right, died, wrong, requests;
};

static char ledger[PATH_MAX];
static uint64_t seed;

/* ---- the service ---- */

static void tcp_pair(int fds[2])
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int l = T_OK(socket(AF_INET, SOCK_STREAM, 0)), on = 1;

	T_OK(bind(l, (struct sockaddr *)&a, sizeof(a)));
	T_OK(listen(l, 1));
	T_OK(getsockname(l, (struct sockaddr *)&a, &len));
	fds[0] = T_OK(socket(AF_INET, SOCK_STREAM, 0));
	T_OK(connect(fds[0], (struct sockaddr *)&a, sizeof(a)));
	fds[1] = T_OK(accept(l, NULL, NULL));
	T_OK(setsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
	close(l);
}

static void start(struct service *s, enum channel channel)
{
	int in, out, board, pair[2], back[2];

	memset(s, 0, sizeof(*s));
	s->channel = channel;
	s->seed = t_rand(&seed);
	board = T_OK(memfd_create("board", MFD_CLOEXEC));
	T_OK(ftruncate(board, t_page()));
	s->board = mmap(NULL, t_page(), PROT_READ | PROT_WRITE, MAP_SHARED, board, 0);
	T_ASSERT(s->board != MAP_FAILED);
	if (channel == PIPES) {
		T_OK(pipe2(pair, O_CLOEXEC));
		T_OK(pipe2(back, O_CLOEXEC));
		in = pair[0], s->to = pair[1], s->from = back[0], out = back[1];
	} else {
		if (channel == TCP)
			tcp_pair(pair);
		else
			T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
		fcntl(pair[0], F_SETFD, FD_CLOEXEC);
		in = out = pair[1], s->to = s->from = pair[0];
	}
	s->pid = t_fork();
	if (!s->pid) {
		/* Out of the way first: these may have each other's numbers. */
		in = T_OK(fcntl(in, F_DUPFD, 50));
		out = T_OK(fcntl(out, F_DUPFD, 50));
		board = T_OK(fcntl(board, F_DUPFD, 50));
		T_OK(dup2(in, LEDGER_IN));
		T_OK(dup2(out, LEDGER_OUT));
		T_OK(dup2(board, LEDGER_BOARD));
		T_OK(syscall(SYS_close_range, LEDGER_BOARD + 1, ~0u, 0));
		execle(ledger, ledger, NULL, (char *[]){ NULL });
		_exit(96);
	}
	close(board);
	close(in);
	if (out != in)
		close(out);
	s->generation = 1;
}

static void clean(struct service *s)
{
	close(s->to);
	if (s->from != s->to)
		close(s->from);
	munmap(s->board, t_page());
}

/* False when the process is gone. */
static bool alive(struct service *s)
{
	siginfo_t info = { 0 };

	return !waitid(P_PID, s->pid, &info, WEXITED | WNOHANG | WNOWAIT) && !info.si_pid;
}

/* The number of the system call that the service waits in, or -1. */
static long waits_in(struct service *s, unsigned long *args)
{
	char path[64], text[256];
	long nr;

	snprintf(path, sizeof(path), "/proc/%d/syscall", s->pid);
	if (t_get(path, text, sizeof(text)) <= 0 || sscanf(text, "%ld %lx %lx %lx", &nr, args, args + 1, args + 2) != 4)
		return -1;
	return nr;
}

static uint64_t deadline(void)
{
	return t_now_ns() + 20000000000ull * t_slow();
}

/* Until it waits for a request; false when it died. */
static bool settle(struct service *s)
{
	uint64_t end = deadline();
	unsigned long args[3];

	while (t_now_ns() < end) {
		if (waits_in(s, args) == NR_hread && args[0] == LEDGER_IN && args[2])
			return s->board->up == s->generation;
		if (!alive(s))
			return false;
		usleep(100);
	}
	return false;
}

/* ---- its client ---- */

static void send_requests(struct service *s, int n)
{
	struct request r[16];

	for (int i = 0; i < n; i++) {
		for (int w = 0; w < WORDS; w++)
			r[i].word[w] = t_rand(&s->seed);
		s->pending[s->sent++ % 16] = r[i];
	}
	T_ASSERT(write(s->to, r, n * sizeof(*r)) == (ssize_t)(n * sizeof(*r)));
}

/* What has come, up to size bytes, until the deadline; short at the end of the stream. */
static size_t receive(struct service *s, void *buf, size_t size)
{
	struct pollfd p = { s->from, POLLIN, 0 };
	uint64_t end = deadline();
	size_t got = 0;
	ssize_t n;

	while (got < size && t_now_ns() < end) {
		if (poll(&p, 1, 100) < 1)
			continue;
		n = read(s->from, (char *)buf + got, size - got);
		if (n <= 0)
			break;
		got += n;
	}
	return got;
}

static bool check_reply(struct service *s, const struct reply *got, size_t len)
{
	struct reply want;

	ledger_reply(&want, &s->pending[s->number % 16], s->number + 1, s->sum);
	if (memcmp(got, &want, len))
		return false;
	if (len == sizeof(want)) {
		s->number++;
		s->sum = want.sum;
	}
	return true;
}

enum outcome { RIGHT, DIED, WRONG };

/* All replies to what was sent; and, where the service is dead, whether what there is of them is right. */
static enum outcome answers(struct service *s)
{
	struct reply r;
	size_t n;

	while (s->number < s->sent) {
		n = receive(s, &r, sizeof(r));
		if (!check_reply(s, &r, n))
			return WRONG;
		if (n < sizeof(r))
			return alive(s) ? WRONG : DIED;
	}
	return RIGHT;
}

/* Of fault(); the last is that of a jump to nowhere */
static const int fault_signal[] = { SIGSEGV, SIGABRT, SIGBUS, SIGSEGV };

static bool by_fault(int sig)
{
	for (size_t i = 0; i < ARRAY_LEN(fault_signal); i++)
		if (sig == fault_signal[i])
			return true;
	return false;
}

/* After a fault: the verdict. The service is what it was before, or new. */
static void judge(struct service *s, struct tally *t, int faults, const char *where)
{
	enum outcome outcome = answers(s);
	int status = 0, extra = 0;

	s->generation += faults;
	if (outcome == RIGHT && !settle(s))
		outcome = alive(s) ? WRONG : DIED;
	if (outcome == RIGHT && !ioctl(s->from, FIONREAD, &extra) && extra)
		outcome = WRONG;
	if (s->board->errors)
		outcome = WRONG;
	if (outcome == WRONG)
		kill(s->pid, SIGKILL);
	if (outcome != RIGHT)
		status = t_wait(s->pid);
	if (outcome == DIED && !(WIFSIGNALED(status) && by_fault(WTERMSIG(status))))
		outcome = WRONG;
	t->faults += faults;
	t->right += outcome == RIGHT ? faults : 0;
	t->died += outcome == DIED ? faults : 0;
	t->wrong += outcome == WRONG ? faults : 0;
	if (outcome == RIGHT)
		return;
	if (outcome == WRONG)
		t_note("wrong: %s: generation %llu of %llu, reply %llu of %llu, %d bytes too many, error %llu, status 0x%x", where,
		       (unsigned long long)s->board->up, (unsigned long long)s->generation,
		       (unsigned long long)s->number, (unsigned long long)s->sent, extra,
		       (unsigned long long)s->board->errors, status);
	else
		t_note("died: %s: status 0x%x", where, status);
	clean(s);
	start(s, s->channel);
	T_ASSERT(settle(s));
}

static void finish(struct service *s, struct tally *t)
{
	char c;

	t->requests += s->number;
	T_OK(s->channel == PIPES ? close(s->to) : shutdown(s->to, SHUT_WR));
	T_EQ(read(s->from, &c, 1), 0);
	T_EXITED(t_wait(s->pid), 0);
	s->to = s->from;
	clean(s);
}

/* ---- stopping it ---- */

static int wait_stop(struct service *s)
{
	int status;

	T_ASSERT(waitpid(s->pid, &status, __WALL) == s->pid);
	T_ASSERT(WIFSTOPPED(status));
	return status;
}

static void attach(struct service *s)
{
	T_OK(ptrace(PTRACE_SEIZE, s->pid, 0, PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL));
	T_OK(ptrace(PTRACE_INTERRUPT, s->pid, 0, 0));
	wait_stop(s);
}

static void step(struct service *s)
{
	int status;

	T_OK(ptrace(PTRACE_SINGLESTEP, s->pid, 0, 0));
	status = wait_stop(s);
	T_ASSERT(WSTOPSIG(status) == SIGTRAP);
}

static struct user_regs_struct registers(struct service *s)
{
	struct user_regs_struct r;

	T_OK(ptrace(PTRACE_GETREGS, s->pid, 0, &r));
	return r;
}

/* It is about to wait for the next request. */
static bool about_to_wait(struct service *s)
{
	struct user_regs_struct r = registers(s);
	int queued = 0;

	if (r.rax != NR_hread || r.rdi != LEDGER_IN || !r.rdx)
		return false;
	errno = 0;
	if ((ptrace(PTRACE_PEEKTEXT, s->pid, r.rip, 0) & 0xffff) != 0x050f || errno)
		return false;
	T_OK(ioctl(s->from, FIONREAD, &queued));
	return (size_t)queued == (s->sent - s->number) * sizeof(struct reply);
}

/* A fault where it stands. */
static void fault(struct service *s, unsigned int kind)
{
	struct user_regs_struct r;

	if (kind % 4 == 3) {
		r = registers(s);
		r.rip = 0x10;
		/* Not in a call that is to be started again */
		r.orig_rax = -1;
		T_OK(ptrace(PTRACE_SETREGS, s->pid, 0, &r));
	} else {
		T_OK(kill(s->pid, fault_signal[kind % 4]));
	}
}

static void resume(struct service *s)
{
	T_OK(ptrace(PTRACE_DETACH, s->pid, 0, 0));
}

/* ---- the campaign ---- */

static int every = 1, count;

/* A fault after n instructions, for each n. At the first one the service still waits for the request, in the kernel. */
static void request_path(enum channel channel, int requests, struct tally *t)
{
	struct service s;
	char where[64];
	bool end;

	start(&s, channel);
	T_ASSERT(settle(&s));
	for (int n = 0, done = 0; !done; n += every) {
		end = false;
		attach(&s);
		send_requests(&s, requests);
		for (int i = 0; i < n && !end; i++) {
			step(&s);
			end = about_to_wait(&s);
		}
		snprintf(where, sizeof(where), "%s, %d instructions after the request", channel_name[channel], n);
		fault(&s, n / every);
		resume(&s);
		judge(&s, t, 1, where);
		done = end;
		if (end)
			t_note("%s: a burst of %d requests takes %d instructions or less", channel_name[channel], requests, n);
	}
	finish(&s, t);
}

static int by_address(const void *a, const void *b)
{
	unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;

	return x < y ? -1 : x > y;
}

/* Lets a stopped service fault, n instructions after the request, and stops the next generation at its first one. */
static void to_next_generation(struct service *s, int n, unsigned int kind)
{
	int status;

	for (int i = 0; i < n; i++)
		step(s);
	fault(s, kind);
	/* The signal itself: let it have its way. */
	T_OK(ptrace(PTRACE_CONT, s->pid, 0, 0));
	status = wait_stop(s);
	T_OK(ptrace(PTRACE_CONT, s->pid, 0, WSTOPSIG(status)));
	status = wait_stop(s);
	T_ASSERT(status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8));
}

enum { HALF = 40 };		/* instructions: the request is read, and nothing else done */

/* Every address that a new generation executes once, in ascending order. */
static unsigned long *trace_recovery(struct service *s, int *n)
{
	unsigned long *a = NULL;
	size_t have = 0, room = 0, kept = 0;

	attach(s);
	send_requests(s, 1);
	to_next_generation(s, HALF, 0);
	while (!about_to_wait(s)) {
		if (have == room) {
			room = room ? 2 * room : 4096;
			a = realloc(a, room * sizeof(*a));
			T_ASSERT(a);
		}
		a[have++] = registers(s).rip;
		step(s);
	}
	resume(s);
	s->generation++;
	T_EQ(answers(s), RIGHT);
	T_ASSERT(settle(s));
	qsort(a, have, sizeof(*a), by_address);
	for (size_t i = 0; i < have; i++)
		if (!i || a[i] != a[kept - 1])
			a[kept++] = a[i];
	t_note("a recovery takes %zu instructions, at %zu addresses", have, kept);
	*n = kept;
	return a;
}

static void recovery_path(enum channel channel, struct tally *t)
{
	unsigned long *address;
	struct service s;
	char where[64];
	int n, missed = 0, first;

	start(&s, channel);
	T_ASSERT(settle(&s));
	address = trace_recovery(&s, &n);
	first = every > 1 ? t_rand(&seed) % every : 0;
	for (int i = first; i < n; i += every) {
		struct user_regs_struct r;
		long text;
		int status;

		attach(&s);
		send_requests(&s, 1);
		to_next_generation(&s, HALF, i);
		errno = 0;
		text = ptrace(PTRACE_PEEKTEXT, s.pid, address[i], 0);
		if (errno) {
			/* In the vdso, which is elsewhere in each generation */
			missed++;
			resume(&s);
			judge(&s, t, 1, "one fault");
			continue;
		}
		T_OK(ptrace(PTRACE_POKETEXT, s.pid, address[i], (text & ~0xfful) | 0xcc));
		T_OK(ptrace(PTRACE_CONT, s.pid, 0, 0));
		/* It comes by, or it is through already, and waits for the next request. */
		while (waitpid(s.pid, &status, __WALL | WNOHANG) == 0) {
			unsigned long args[3];

			if (s.board->up == s.generation + 1 && waits_in(&s, args) == NR_hread && args[2]) {
				T_OK(ptrace(PTRACE_INTERRUPT, s.pid, 0, 0));
				status = wait_stop(&s);
				break;
			}
			sched_yield();
		}
		T_ASSERT(WIFSTOPPED(status));
		snprintf(where, sizeof(where), "%s, second fault at %#lx", channel_name[channel], address[i]);
		r = registers(&s);
		if (status >> 8 == SIGTRAP && r.rip == address[i] + 1) {
			fault(&s, i);
			resume(&s);
			judge(&s, t, 2, where);
		} else {
			T_OK(ptrace(PTRACE_POKETEXT, s.pid, address[i], text));
			missed++;
			resume(&s);
			judge(&s, t, 1, where);
		}
	}
	t_note("%s: %d addresses were not met again", channel_name[channel], missed);
	T_RANGE(missed, 0, n / 10 + 1);
	free(address);
	finish(&s, t);
}

/* Many requests under way, faults at any time, in any of some services. */
static void under_load(struct tally *t)
{
	enum { SERVICES = 4, WINDOW = 8 };
	static const int sigs[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP };
	struct service s[SERVICES];
	struct pollfd p[SERVICES];
	uint64_t answered = 0, faults = 0, next = 0, restarts = 0, end = deadline();
	struct reply r;

	for (int i = 0; i < SERVICES; i++) {
		start(&s[i], i % CHANNELS);
		T_ASSERT(settle(&s[i]));
		p[i] = (struct pollfd){ s[i].from, POLLIN, 0 };
	}
	while (answered < (uint64_t)count) {
		for (int i = 0; i < SERVICES; i++)
			if (s[i].sent == s[i].number)
				send_requests(&s[i], 1 + t_rand(&seed) % WINDOW);
		if (t_now_ns() >= next) {
			int i = t_rand(&seed) % SERVICES;

			/* Not faster than it can follow, for then it would do nothing else */
			if (s[i].board->up == s[i].board->generation) {
				T_OK(kill(s[i].pid, sigs[t_rand(&seed) % ARRAY_LEN(sigs)]));
				faults++;
			}
			next = t_now_ns() + t_rand(&seed) % (20000000 * t_slow());
		}
		if (poll(p, SERVICES, 5) <= 0) {
			if (t_now_ns() > end)
				break;
			continue;
		}
		for (int i = 0; i < SERVICES; i++) {
			if (!p[i].revents)
				continue;
			if (receive(&s[i], &r, sizeof(r)) != sizeof(r) || !check_reply(&s[i], &r, sizeof(r))) {
				t->wrong++;
				t_note("wrong: %s: reply %llu", channel_name[s[i].channel], (unsigned long long)s[i].number);
				return;
			}
			answered++;
		}
		end = deadline();
	}
	for (int i = 0; i < SERVICES; i++) {
		T_EQ(answers(&s[i]), RIGHT);
		restarts += s[i].board->up - 1;
		finish(&s[i], t);
	}
	/* Two that come before the first is seen are one. */
	T_RANGE(restarts, faults / 2, faults);
	t->faults += restarts;
	t->right += restarts;
	T_RANGE(answered, count, UINT32_MAX);
}

/* ---- what the command line says ---- */

static const char *what = "request";

static void tell(const char *name, const struct tally *t)
{
	t_note("%-36s %8s %8s %8s %8s %8s", "", "faults", "right", "died", "wrong", "requests");
	t_note("%-36s %8llu %8llu %8llu %8llu %8llu", name, (unsigned long long)t->faults, (unsigned long long)t->right,
	       (unsigned long long)t->died, (unsigned long long)t->wrong, (unsigned long long)t->requests);
	printf("campaign\t%s\t%llu\t%llu\t%llu\t%llu\t%llu\n", name, (unsigned long long)t->faults,
	       (unsigned long long)t->right, (unsigned long long)t->died, (unsigned long long)t->wrong,
	       (unsigned long long)t->requests);
	fflush(stdout);
	T_RANGE(t->faults, 1, UINT32_MAX);
	T_EQ(t->wrong, 0);
	/* All of them are transient, by the sysctl. */
	T_RANGE(t->died, 0, t->faults * 3 / 100);
}

static void prepare(void)
{
	cpu_set_t one;

	seed = t_seed();
	snprintf(ledger, sizeof(ledger), "%.*s/campaign-ledger", (int)(strrchr(t_self, '/') - t_self), t_self);
	every = atoi(getenv("CAMPAIGN_EVERY") ?: "1");
	count = atoi(getenv("CAMPAIGN_COUNT") ?: "100000");
	if (strcmp(what, "load")) {
		/* Tracer and traced take turns: on one processor that is quicker. */
		CPU_ZERO(&one);
		CPU_SET(0, &one);
		sched_setaffinity(0, sizeof(one), &one);
	}
}

T_LIMIT(request, 3000)
{
	struct tally t[CHANNELS] = { 0 };

	prepare();
	for (int c = 0; c < CHANNELS; c++) {
		request_path(c, 1 + c, &t[c]);
		tell(c == TCP ? "request, TCP" : c == UNIX ? "request, Unix socket" : "request, pipes", &t[c]);
	}
}

T_LIMIT(recovery, 6000)
{
	static const char *const name[] = { "recovery, TCP", "recovery, Unix socket", "recovery, pipes" };

	prepare();
	for (int c = 0; c < CHANNELS; c++) {
		struct tally t = { 0 };

		recovery_path(c, &t);
		tell(name[c], &t);
	}
}

T_LIMIT(load, 3000)
{
	struct tally t = { 0 };

	what = "load";
	prepare();
	under_load(&t);
	tell("load", &t);
}
