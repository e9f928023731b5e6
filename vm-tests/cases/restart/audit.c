// SPDX-License-Identifier: GPL-2.0-or-later
/* What audit says of a restart: an execve(2) for the rules, a record of its own, and nothing in the event of the next call. */
#include "gen.h"

#include <linux/audit.h>
#include <linux/netlink.h>

#ifndef AUDIT_ANOM_RESTART
#define AUDIT_ANOM_RESTART	1750
#endif

#ifdef __aarch64__
#define ARCH	AUDIT_ARCH_AARCH64
#else
#define ARCH	AUDIT_ARCH_X86_64
#endif

enum { EVENTS = 32, RECORDS = 12 };

static struct event {
	unsigned long serial;
	int nr, type[RECORDS];
	char text[RECORDS][1024];
} events[EVENTS];
static int nr_events;

static int netlink;
static const int calls[] = { SYS_execve, SYS_chdir, SYS_exit_group };

/* Returns the kernel's answer: 0 or -errno. */
static int ask(int type, const void *data, size_t len)
{
	static int seq;
	struct {
		struct nlmsghdr h;
		char data[4096];
	} m = { .h = { .nlmsg_len = NLMSG_LENGTH(len), .nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK,
		       .nlmsg_seq = ++seq } };
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };

	T_ASSERT(len <= sizeof(m.data));
	memcpy(NLMSG_DATA(&m.h), data, len);
	T_ASSERT(sendto(netlink, &m, m.h.nlmsg_len, 0, (void *)&kernel, sizeof(kernel)) == (ssize_t)m.h.nlmsg_len);
	for (;;) {
		T_ASSERT(recv(netlink, &m, sizeof(m), 0) >= (ssize_t)sizeof(m.h));
		if (m.h.nlmsg_type == NLMSG_ERROR && m.h.nlmsg_seq == (unsigned int)seq)
			return ((struct nlmsgerr *)NLMSG_DATA(&m.h))->error;
	}
}

static int set_status(int on)
{
	struct audit_status s = { .mask = AUDIT_STATUS_ENABLED | AUDIT_STATUS_PID, .enabled = on, .pid = on ? getpid() : 0 };

	return ask(AUDIT_SET, &s, sizeof(s));
}

/* Every one of these calls, by whoever makes it */
static int rule(int type, int nr)
{
	struct audit_rule_data r = { .flags = AUDIT_FILTER_EXIT, .action = AUDIT_ALWAYS, .field_count = 1 };

	r.mask[AUDIT_WORD(nr)] |= AUDIT_BIT(nr);
	r.fields[0] = AUDIT_ARCH;
	r.values[0] = ARCH;
	r.fieldflags[0] = AUDIT_EQUAL;
	return ask(type, &r, sizeof(r));
}

static void listen_to_audit(void)
{
	netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_AUDIT);
	if (netlink < 0 && errno == EPROTONOSUPPORT)
		t_skip("no audit in this kernel");
	T_OK(netlink);
	T_EQ(set_status(1), 0);
	for (size_t i = 0; i < ARRAY_LEN(calls); i++)
		T_EQ(rule(AUDIT_ADD_RULE, calls[i]), 0);
}

static void stop_listening(void)
{
	for (size_t i = 0; i < ARRAY_LEN(calls); i++)
		T_EQ(rule(AUDIT_DEL_RULE, calls[i]), 0);
	T_EQ(set_status(0), 0);
	close(netlink);
}

static struct event *event_of(unsigned long serial)
{
	for (int i = 0; i < nr_events; i++) {
		if (events[i].serial == serial)
			return &events[i];
	}
	T_ASSERT(nr_events < EVENTS);
	events[nr_events].serial = serial;
	return &events[nr_events++];
}

static const char *record(const struct event *e, int type)
{
	for (int i = 0; i < e->nr; i++) {
		if (e->type[i] == type)
			return e->text[i];
	}
	return NULL;
}

static bool says(const char *text, const char *word)
{
	char want[128];

	snprintf(want, sizeof(want), " %s ", word);
	return text && strstr(text, want);
}

/* The event of a call that this process has made. */
static struct event *call_of(pid_t pid, int nr)
{
	char who[32], what[32];

	snprintf(who, sizeof(who), "pid=%d", pid);
	snprintf(what, sizeof(what), "syscall=%d", nr);
	for (int i = 0; i < nr_events; i++) {
		const char *text = record(&events[i], AUDIT_SYSCALL);

		if (says(text, who) && says(text, what))
			return &events[i];
	}
	return NULL;
}

/* Reads until the event of that call is there, whole. */
static struct event *wait_for(pid_t pid, int nr)
{
	struct {
		struct nlmsghdr h;
		char text[9000];
	} m;
	struct event *e;
	unsigned long serial;
	ssize_t n;

	for (;;) {
		e = call_of(pid, nr);
		if (e && record(e, AUDIT_EOE))
			return e;
		n = recv(netlink, &m, sizeof(m) - 1, 0);
		T_ASSERT(n >= (ssize_t)sizeof(m.h));
		((char *)&m)[n] = 0;
		if (m.h.nlmsg_type < AUDIT_SYSCALL || sscanf(m.text, "audit(%*u.%*u:%lu)", &serial) != 1)
			continue;
		e = event_of(serial);
		T_ASSERT(e->nr < RECORDS);
		e->type[e->nr] = m.h.nlmsg_type;
		snprintf(e->text[e->nr++], sizeof(e->text[0]), "%s ", m.text);
	}
}

/* What the new generation does first, besides what the C library does */
ROLE(changes_directory)
{
	T_OK(chdir("/"));
	return 0;
}

static pid_t fork_and(void (*end)(void), const char *role)
{
	struct restart_policy policy = { .flags = RESTART_ON_EXIT };
	pid_t pid = t_fork();

	if (!pid) {
		close(netlink);
		t_register(role, NULL);
		T_EQ(x_setpolicy(&policy), 0);
		end();
	}
	return pid;
}

static void exits(void)
{
	_exit(3);
}

static void waits(void)
{
	for (;;)
		pause();
}

static void loses_its_program(void)
{
	char path[PATH_MAX];

	t_write_file(t_path(path, "gone"), "#!/bin/true\n", 12, 0755);
	T_EQ(x_reregist(path, (char *[]){ "gone", NULL }, NULL, 0), 0);
	T_OK(unlink(path));
	t_crash();
}

static void check_restart(pid_t pid, const char *op, const char *sig, const char *code)
{
	struct event *e = wait_for(pid, SYS_execve);
	const char *text;
	char who[32];

	T_EXPECT(says(record(e, AUDIT_SYSCALL), "success=yes"));
	text = record(e, AUDIT_EXECVE);
	T_EXPECT(text && strstr(text, "@changes_directory"));
	T_EXPECT(record(e, AUDIT_PATH));
	text = record(e, AUDIT_ANOM_RESTART);
	snprintf(who, sizeof(who), "pid=%d", pid);
	T_EXPECT(says(text, who));
	T_EXPECT(says(text, op));
	T_EXPECT(says(text, sig));
	T_EXPECT(says(text, code));
	T_EXPECT(says(text, "generation=1"));
	T_EXPECT(says(text, "res=1"));
	T_EXPECT(text && strstr(text, t_self));
	/* And then the next call, in an event of its own. */
	e = wait_for(pid, SYS_chdir);
	T_EXPECT(!record(e, AUDIT_EXECVE));
	T_EXPECT(!record(e, AUDIT_ANOM_RESTART));
	T_EXPECT(says(record(e, AUDIT_SYSCALL), "success=yes"));
}

T(restart_is_audited)
{
	struct restart_request ask = { 0 };
	struct event *e;
	const char *text;
	char who[32];
	pid_t pid;

	listen_to_audit();

	t_context = "fault";
	pid = fork_and(t_crash, "changes_directory");
	T_EXITED(t_wait(pid), 0);
	check_restart(pid, "op=fault", "sig=11", "code=1");

	t_context = "exit";
	pid = fork_and(exits, "changes_directory");
	T_EXITED(t_wait(pid), 0);
	check_restart(pid, "op=exit", "sig=0", "code=3");
	/* What was in its course then, and the end */
	e = call_of(pid, SYS_exit_group);
	T_EXPECT(e && !record(e, AUDIT_EXECVE));

	t_context = "asked";
	pid = fork_and(waits, "changes_directory");
	ask.pidfd = T_OK(syscall(SYS_pidfd_open, pid, 0));
	while (syscall(NR_restartctl, RESTARTCTL_RESTART, &ask, sizeof(ask), 0))
		T_EQ(errno, ENOENT);	/* not registered yet */
	close(ask.pidfd);
	T_EXITED(t_wait(pid), 0);
	check_restart(pid, "op=asked", "sig=0", "code=0");
	snprintf(who, sizeof(who), "asked_pid=%d", getpid());
	e = call_of(pid, SYS_execve);
	T_EXPECT(e && says(record(e, AUDIT_ANOM_RESTART), who));
	T_EXPECT(e && says(record(e, AUDIT_ANOM_RESTART), "asked_uid=0"));

	t_context = "no program";
	pid = fork_and(loses_its_program, "must_not_run");
	T_KILLED(t_wait(pid), SIGSEGV);
	e = wait_for(pid, SYS_execve);
	T_EXPECT(says(record(e, AUDIT_SYSCALL), "success=no"));
	text = record(e, AUDIT_ANOM_RESTART);
	T_EXPECT(says(text, "res=0"));
	T_EXPECT(says(text, "sig=11"));

	stop_listening();
}
