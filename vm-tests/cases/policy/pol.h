/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Shared by the programs of this suite. */
#ifndef POL_H
#define POL_H

#include "../lib/t.h"

#define MS	1000000ull

/* Slow machines get slow deadlines: a new generation has to start in one. */
#define BEAT_MS	(unsigned int)(800 * (t_slow() > 1 ? 3 : 1))

static T_UNUSED void policy(uint32_t flags, uint32_t burst, uint32_t interval_ms, uint64_t heartbeat_ns)
{
	struct restart_policy p = {
		.flags = flags, .burst = burst, .interval_ms = interval_ms, .heartbeat_ns = heartbeat_ns,
	};

	T_OK(x_setpolicy(&p));
}

static T_UNUSED struct reg_info reg_info(void)
{
	struct reg_info info;

	T_EQ(x_getreginfo(&info), 1);
	return info;
}

static T_UNUSED pid_t gettid_(void)
{
	return syscall(SYS_gettid);
}

/* The line "key:\tvalue" of /proc/PID/restart; NULL when it is not there. */
static T_UNUSED const char *proc_line(pid_t pid, const char *key)
{
	static char text[65536], value[8192];
	char path[64];
	size_t len = strlen(key);

	snprintf(path, sizeof(path), "/proc/%d/restart", pid);
	if (t_get(path, text, sizeof(text)) < 0)
		return NULL;
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		if (!strncmp(line, key, len) && line[len] == ':' && line[len + 1] == '\t') {
			snprintf(value, sizeof(value), "%s", line + len + 2);
			return value;
		}
	}
	return NULL;
}

static T_UNUSED long long proc_num(pid_t pid, const char *key)
{
	const char *value = proc_line(pid, key);

	T_ASSERT(value);
	return strtoll(value, NULL, 0);
}

/* ---- verdict records ---- */

/* Opens the log behind the newest record. */
static T_UNUSED int log_open(void)
{
	int fd = T_OK(open("/proc/restart_log", O_RDONLY | O_CLOEXEC));

	T_OK(lseek(fd, 0, SEEK_END));
	return fd;
}

/* The value of a key in a record. */
static T_UNUSED const char *log_value(const char *line, const char *key)
{
	static char value[8][20000];
	static int next;
	char *v = value[next++ % 8], word[64];
	const char *p;

	snprintf(word, sizeof(word), " %s=", key);
	p = strstr(line, word);
	if (!p)
		return "(none)";
	p += strlen(word);
	snprintf(v, sizeof(value[0]), "%.*s", (int)strcspn(p, " \n"), p);
	return v;
}

/* The next record of process `pid`, which is waited for. What has been read and not asked for stays. */
static T_UNUSED const char *log_next(int fd, pid_t pid)
{
	static char text[65536], line[20000];
	static int of = -1;
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char *end;
	ssize_t n;

	if (of != fd)
		text[0] = 0;
	of = fd;
	for (;;) {
		while ((end = strchr(text, '\n'))) {
			snprintf(line, sizeof(line), "%.*s", (int)(end - text), text);
			memmove(text, end + 1, strlen(end + 1) + 1);
			if (atoi(log_value(line, "pid")) == pid)
				return line;
		}
		T_EQ(poll(&p, 1, 5000 * t_slow()), 1);
		T_EQ(p.revents, POLLIN);
		n = T_OK(read(fd, text, sizeof(text) - 1));
		T_ASSERT(n > 0);
		text[n] = 0;
	}
}

static void pol_setup(void)
{
	t_sysctl("enabled", 1);
	t_sysctl("min_interval_ms", 60000);
	t_sysctl("cap_burst", RESTART_BURST_MAX);
	t_sysctl("cap_interval_ms", 0);
	/* What follows a restart is for those who ask for it. */
	t_sysctl("stable_ms", 0);
	t_put("/proc/sys/kernel/core_pattern", "/tmp/zlr-core");
	t_put("/proc/sys/kernel/core_uses_pid", "0");
	setrlimit(RLIMIT_CORE, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY });
}

static void __attribute__((constructor)) pol_use_setup(void)
{
	t_setup = pol_setup;
}

ROLE(must_not_run)
{
	t_check(false, __FILE__, __LINE__, "restarted, where it should not");
	return 0;
}

ROLE(gen2)
{
	T_EQ(t_generation(), 2);
	return 0;
}

#endif
