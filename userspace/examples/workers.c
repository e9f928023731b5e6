// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * workers [PORT]: a master and three workers. Each byte of a client is a request, the answer is its number
 * among the requests of all clients: none is left out or given twice, whoever faults in between. On "c" the
 * worker faults at the worst instant, on "x" it exits for good. The master can be faulted, too: kill -SEGV.
 *
 * The child_id of its registration tells a new generation which of them it is. What they agree on is in a
 * shared area, and changes all at once or not at all.
 */
#include <arpa/inet.h>
#include <perdure.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LISTENER = 3, MASTER = 0, WORKERS = 3 };	/* the first socket that we make is 3 */

struct worker {
	pid_t pid;			/* 0: there is none */
	uint64_t number;		/* of the request in hand */
	uint64_t released, written;	/* where it begins, and its answer, on the connection */
};

struct shared {
	uint64_t requests;
	struct worker worker[WORKERS + 1];
};

extern char **environ;
static const struct shared *s;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int listen_on(int port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	return fd != LISTENER || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) || listen(fd, 64);
}

static void enroll(char **argv, int id)
{
	if (reregist(realpath("/proc/self/exe", NULL), argv, environ, id))
		fail("workers: reregist");
}

/* Writes down what worker @id is about, and how many requests there have been. Ends the update. */
static void note(int id, const struct worker *w, uint64_t requests)
{
	if (perdure_shared_stage(s, &s->worker[id], w, sizeof(*w)) ||
	    perdure_shared_stage(s, &s->requests, &requests, sizeof(requests)) || perdure_shared_commit(s))
		fail("workers: update");
}

static void begin(void)
{
	if (perdure_shared_begin(s, -1) < 0)
		fail("workers: update");
}

static void serve(int fd, int id, int restarted)
{
	const struct worker *me = &s->worker[id];
	struct worker idle = { .pid = getpid() };
	struct io_log log;
	ssize_t n, done, w;
	char c, buf[32];

	while (hread(fd, &c, 1, 0) == 1 && !getiolog(fd, &log)) {
		if (c == 'x')
			exit(1);
		begin();
		if (me->number && me->released == log.released)	/* it had its number before the fault */
			perdure_shared_cancel(s);
		else
			note(id, &(struct worker){ idle.pid, s->requests + 1, log.released, log.written },
			     s->requests + 1);
		n = snprintf(buf, sizeof(buf), "%llu\n", (unsigned long long)me->number);
		for (done = log.written - me->written; done < n; done += w)
			if ((w = lwrite(fd, buf + done, n - done)) < 0)
				break;
		if (c == 'c' && !restarted)
			raise(SIGSEGV);
		if (done < n || hread(fd, NULL, 0, 1))
			break;
	}
	begin();	/* the next connection begins at 0 again */
	note(id, &idle, s->requests);
	close(fd);
}

static void work(int id, int restarted)
{
	struct worker idle = { .pid = getpid() };
	int fd;

	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	begin();
	if (s->worker[id].pid && s->worker[id].pid != idle.pid)
		exit(0);	/* a master that faulted had started one already */
	if (s->worker[id].pid)
		perdure_shared_cancel(s);
	else
		note(id, &idle, s->requests);
	if (restarted)		/* if there was a connection in hand, it is this */
		serve(LISTENER + 1, id, restarted);
	while ((fd = accept(LISTENER, NULL, NULL)) >= 0)
		serve(fd, id, restarted);
	fail("workers: accept");
}

static int is_child(pid_t pid)
{
	siginfo_t info;

	return pid && !waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT);
}

/* A worker for each place that no child of ours has. */
static void fill(char **argv)
{
	for (int id = 1; id <= WORKERS; id++) {
		begin();
		if (is_child(s->worker[id].pid)) {
			perdure_shared_cancel(s);
			continue;
		}
		note(id, &(struct worker){ 0 }, s->requests);
		if (!fork()) {
			enroll(argv, id);
			work(id, 0);
		}
	}
}

int main(int argc, char **argv)
{
	struct reg_info info = { 0 };
	int restarted = getreginfo(&info) == 1 && info.is_restarted;

	if (!restarted) {
		perdure_shared_remove("workers");
		enroll(argv, MASTER);
		if (listen_on(argc > 1 ? atoi(argv[1]) : 7009))
			fail("workers");
	}
	s = perdure_shared_open("workers", sizeof(*s), 1, NULL);
	if (!s)
		fail("workers: shared area");
	if (restarted && info.child_id != MASTER)
		work(info.child_id, restarted);
	do
		fill(argv);
	while (waitpid(-1, NULL, 0) > 0);
	fail("workers");
}
