// SPDX-License-Identifier: GPL-2.0-or-later
/* What surrounds a restart: tracers, PID namespaces, memory limits, tracepoints, many processes at once. */
#include "gen.h"
#include "../lib/cgroup.h"

#include <sys/ptrace.h>

/* ---- a tracer ---- */

static pid_t traced(const char *role)
{
	pid_t pid = t_fork();
	int status;

	if (!pid) {
		t_register(role, NULL);
		raise(SIGSTOP);
		t_crash();
	}
	T_OK(waitpid(pid, &status, WUNTRACED));
	T_OK(ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_TRACEEXEC | PTRACE_O_TRACEEXIT));
	T_OK(kill(pid, SIGCONT));
	return pid;
}

/* Lets the tracee go on until it is gone; returns its status, and counts the stops of each kind. */
static int trace(pid_t pid, int deliver, int *signals, int *execs)
{
	int status;

	for (;;) {
		T_OK(waitpid(pid, &status, 0));
		if (!WIFSTOPPED(status))
			return status;
		if (status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8)) {
			++*execs;
			T_OK(ptrace(PTRACE_CONT, pid, NULL, 0));
		} else if (WSTOPSIG(status) == SIGSEGV && !(status >> 16)) {
			++*signals;
			T_OK(ptrace(PTRACE_CONT, pid, NULL, deliver));
			if (!deliver)
				kill(pid, SIGKILL);
		} else {
			T_OK(ptrace(PTRACE_CONT, pid, NULL, 0));
		}
	}
}

T(traced)
{
	int signals = 0, execs = 0;

	T_EXITED(trace(traced("gen2"), SIGSEGV, &signals, &execs), 0);
	T_EQ(signals, 1);
	T_EQ(execs, 1);
	/* A tracer that takes the signal away: no fault, no restart. */
	T_KILLED(trace(traced("must_not_run"), 0, &signals, &execs), SIGKILL);
	T_EXPECT(signals >= 2);
	T_EQ(execs, 1);
	/* One that turns it into another. */
	signals = 0;
	T_KILLED(trace(traced("must_not_run"), SIGTERM, &signals, &execs), SIGTERM);
	T_EQ(signals, 1);
	T_EQ(execs, 1);
}

/* ---- PID namespaces ---- */

ROLE(in_namespace)
{
	struct reg_info info;

	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.generation, 2);
	T_EQ(info.fault_tid, atoi(argv[0]));
	T_EQ(getpid(), atoi(argv[0]));
	if (getpid() != 1)
		return 0;
	/* The new generation is as immortal for its own namespace as the old one was. */
	signal(SIGTERM, SIG_DFL);
	T_OK(kill(1, SIGTERM));
	T_OK(kill(1, SIGSEGV));
	T_EQ(t_generation(), 2);
	return 7;
}

T(pid_namespace)
{
	T_CHILD {
		pid_t pid;

		T_OK(unshare(CLONE_NEWPID));
		pid = T_OK(fork());
		if (!pid) {
			/* Of init, only what the processor or its parent's side raises is a fault. */
			T_EQ(getpid(), 1);
			pid = t_fork();
			if (!pid) {
				t_register("in_namespace", "2", NULL);
				t_crash();
			}
			T_EXITED(t_wait(pid), 0);
			t_register("in_namespace", "1", NULL);
			T_OK(kill(1, SIGSEGV));
			T_EQ(t_generation(), 1);
			t_crash();
		}
		T_EXITED(t_wait(pid), 7);
	}
}

/* ---- memory cgroup ---- */

ROLE(limited)
{
	size_t size = 20 << 20;
	char *p = malloc(size);

	memset(p, 1, size);
	T_EXPECT(!memcmp(p, p + 1, size - 1));
	if (t_generation() < 11)
		t_crash();
	T_EQ(t_generation(), 11);
	return 0;
}

T(memory_limit)
{
	char text[256];

	/* 20 MB in each of 11 generations, of 40: the old image goes before the new one grows, and leaks nothing. */
	cg_open("40M");
	T_CHILD {
		cg_enter();
		t_register("limited", NULL);
		t_crash();
	}
	T_OK(t_get(cg_path("memory.events"), text, sizeof(text)));
	T_EXPECT(strstr(text, "oom_kill 0\n"));
	T_RANGE(cg_get("memory.peak"), 20 << 20, 40 << 20);
	cg_close();
}

/* ---- tracepoints ---- */

#define TRACE	"/sys/kernel/tracing/"

static bool trace_has(const char *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool trace_has(const char *text, const char *fmt, ...)
{
	char want[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(want, sizeof(want), fmt, ap);
	va_end(ap);
	if (!strstr(text, want))
		t_note("no \"%s\" in: %.600s", want, text);
	return strstr(text, want);
}

T(tracepoints)
{
	static char text[65536];
	char *begin, *end;
	pid_t pid;

	if (access(TRACE "events", F_OK))
		t_skip("no tracepoints in this kernel");
	T_OK(t_put(TRACE "trace", "0"));
	T_OK(t_put(TRACE "events/zlr/enable", "1"));
	pid = t_fork();
	if (!pid) {
		T_ASSERT(!x_reregist(t_self, (char *[]){ "prog", "@gen2", NULL }, environ, -3));
		t_crash();
	}
	T_EXITED(t_wait(pid), 0);
	T_OK(t_put(TRACE "events/zlr/enable", "0"));
	T_EXPECT(t_get(TRACE "trace", text, sizeof(text)) > 0);
	begin = strstr(text, "restart_begin: ");
	end = strstr(text, "restart_end: ");
	if (!T_EXPECT(begin && end && begin < end))
		t_note("trace: %.900s", text);
	T_EXPECT(trace_has(begin, "path=%s generation=1 child_id=-3 signo=11 flags=0x0 addr=0x1230", t_self));
	T_EXPECT(trace_has(end, "err=0 generation=2 suspect_fd=-1 retain_ns="));
	T_EXPECT(trace_has(text, "-%d ", pid));

	/* One that fails is traced too, with its error. */
	T_OK(t_put(TRACE "trace", "0"));
	T_OK(t_put(TRACE "events/zlr/enable", "1"));
	pid = t_fork();
	if (!pid) {
		char path[PATH_MAX];

		t_copy("/bin/true", t_path(path, "gone"), 0755);
		T_ASSERT(!x_reregist(path, (char *[]){ "prog", NULL }, environ, 4));
		T_OK(unlink(path));
		t_crash();
	}
	T_KILLED(t_wait(pid), SIGSEGV);
	T_OK(t_put(TRACE "events/zlr/enable", "0"));
	T_EXPECT(t_get(TRACE "trace", text, sizeof(text)) > 0);
	T_EXPECT(trace_has(text, "restart_end: err=-2 generation=1"));
	T_OK(t_put(TRACE "trace", "0"));
}

/* ---- many at once ---- */

ROLE(one_of_many)
{
	T_EQ(t_generation(), 2);
	atomic_fetch_add(&t_word[1], 1);
	return 0;
}

T_LIMIT(crowd, 60)
{
	enum { N = 64 };
	pid_t pids[N];

	for (int i = 0; i < N; i++) {
		pids[i] = t_fork();
		if (!pids[i]) {
			t_register("one_of_many", NULL);
			atomic_fetch_add(&t_word[0], 1);
			for (;;)
				pause();
		}
	}
	while (t_word[0] < N)
		t_sleep_ms(5);
	for (int i = 0; i < N; i++)
		T_OK(kill(pids[i], SIGSEGV));
	for (int i = 0; i < N; i++)
		T_EXITED(t_wait(pids[i]), 0);
	T_EQ(t_word[1], N);
}
