// SPDX-License-Identifier: GPL-2.0-or-later
/* What becomes of a restart: stable, ended, or faulted again. And what a record says of the life of the process. */
#include "pol.h"
#include "../lib/cgroup.h"

#include <pthread.h>
#include <sys/prctl.h>

enum { W_READY, W_STOP, W_PID };

/* Long enough for a new generation to come and go before, on a slow machine, too */
#define LONG_MS		60000
#define SHORT_MS	(unsigned int)(300 * t_slow())

#define REC(key, want)	T_STREQ(log_value(rec, key), want)
#define REC_NUM(key)	strtoull(log_value(rec, key), NULL, 10)

/* No more of the process, by now */
static void nothing_more(int fd, pid_t pid)
{
	char text[65536], key[32];
	ssize_t n;

	snprintf(key, sizeof(key), " pid=%d ", pid);
	while ((n = T_OK(read(fd, text, sizeof(text) - 1))) > 0) {
		text[n] = 0;
		T_EXPECT(!strstr(text, key));
	}
}

ROLE(stay)
{
	t_word[W_READY] = 1;
	while (!t_word[W_STOP])
		t_sleep_ms(5);
	return 0;
}

ROLE(ends)
{
	const char *how = argv[0];

	if (!strcmp(how, "exited"))
		return 7;
	if (!strcmp(how, "killed"))
		raise(SIGKILL);
	if (!strcmp(how, "cleared")) {
		x_unregister();
		pause();
	}
	if (!strcmp(how, "executed"))
		execl("/bin/true", "true", NULL);
	if (!strcmp(how, "limit") || t_generation() == 2)
		t_crash();
	return 0;
}

static pid_t crash(const char *role, const char *how, uint32_t burst)
{
	pid_t pid = t_fork();

	if (!pid) {
		t_register(role, how, NULL);
		policy(RESTART_LIMIT, burst, 600000, 0);
		t_crash();
	}
	return pid;
}

T(stable)
{
	int fd = log_open();
	const char *rec;
	uint64_t first;
	pid_t pid;

	T_OK(t_sysctl("stable_ms", SHORT_MS));
	pid = crash("stay", NULL, 1);
	rec = log_next(fd, pid);
	REC("outcome", "restarted");
	first = REC_NUM("mono_ns");
	rec = log_next(fd, pid);
	REC("outcome", "stable");
	REC("cause", "fault");
	REC("rung", "restart");
	REC("generation", "2");
	REC("signo", "0");
	REC("suspect_fd", "-1");
	REC("comm", "policy-after");
	REC("path", t_self);
	T_RANGE(REC_NUM("age_ns"), (SHORT_MS - 20) * MS, 100 * SHORT_MS * MS);
	T_EXPECT(REC_NUM("mono_ns") > first + (SHORT_MS - 20) * MS);
	/* Whatever comes now is told as ever: a stable process is one like others. */
	t_word[W_STOP] = 1;
	T_EXITED(t_wait(pid), 0);
	nothing_more(fd, pid);
	close(fd);
}

T(ended)
{
	static const struct {
		const char *how, *signo, *code;
	} ways[] = { { "exited", "0", "7" }, { "killed", "9", "0" }, { "executed", "0", "0" }, { "cleared", "0", "0" } };
	int fd = log_open();
	const char *rec;
	pid_t pid;

	T_OK(t_sysctl("stable_ms", LONG_MS));
	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		t_context = ways[i].how;
		pid = crash("ends", ways[i].how, 1);
		rec = log_next(fd, pid);
		REC("outcome", "restarted");
		rec = log_next(fd, pid);
		REC("outcome", "ended");
		REC("cause", ways[i].how);
		REC("signo", ways[i].signo);
		REC("code", ways[i].code);
		REC("generation", "2");
		REC("error", "0");
		T_RANGE(REC_NUM("age_ns"), 1, (LONG_MS - 1) * MS);
		if (!strcmp(ways[i].how, "cleared"))
			t_reap(pid);
		else
			t_wait(pid);
		nothing_more(fd, pid);
	}
	close(fd);
}

/* The next fault says itself what became of the generation before. */
T(faulted_again)
{
	int fd = log_open();
	const char *rec;
	uint64_t downtime, born;
	pid_t pid;

	T_OK(t_sysctl("stable_ms", LONG_MS));
	pid = crash("ends", "again", 2);
	rec = log_next(fd, pid);
	REC("outcome", "restarted");
	downtime = REC_NUM("retain_ns") + REC_NUM("exec_ns") + REC_NUM("restore_ns");
	T_EQ(REC_NUM("downtime_ns"), downtime);
	born = REC_NUM("mono_ns") + downtime;
	rec = log_next(fd, pid);
	REC("outcome", "restarted");
	REC("generation", "3");
	T_EQ(REC_NUM("age_ns"), REC_NUM("mono_ns") - born);
	downtime += REC_NUM("retain_ns") + REC_NUM("exec_ns") + REC_NUM("restore_ns");
	T_EQ(REC_NUM("downtime_ns"), downtime);
	rec = log_next(fd, pid);
	REC("outcome", "ended");
	REC("generation", "3");
	REC("code", "0");
	T_EQ(REC_NUM("downtime_ns"), downtime);
	T_EXITED(t_wait(pid), 0);
	nothing_more(fd, pid);

	pid = crash("ends", "limit", 1);
	T_EXPECT(WIFSIGNALED(t_wait(pid)));
	rec = log_next(fd, pid);
	REC("outcome", "restarted");
	rec = log_next(fd, pid);
	REC("outcome", "limit");
	nothing_more(fd, pid);
	close(fd);
}

/* The timer of a generation that is no more says nothing of the next one. */
T(each_has_its_time)
{
	int fd = log_open();
	const char *rec;
	pid_t pid;

	T_OK(t_sysctl("stable_ms", 4 * SHORT_MS));
	pid = crash("stay", NULL, 2);
	while (!t_word[W_READY])
		t_sleep_ms(5);
	t_sleep_ms(2 * SHORT_MS);
	T_OK(kill(pid, SIGSEGV));
	rec = log_next(fd, pid);
	REC("outcome", "restarted");
	rec = log_next(fd, pid);
	REC("outcome", "restarted");
	REC("generation", "3");
	T_RANGE(REC_NUM("age_ns"), 2 * SHORT_MS * MS - 1000 * MS, 100 * SHORT_MS * MS);
	rec = log_next(fd, pid);
	REC("outcome", "stable");
	REC("generation", "3");
	T_EXPECT(REC_NUM("age_ns") > (4 * SHORT_MS - 20) * MS);
	t_word[W_STOP] = 1;
	T_EXITED(t_wait(pid), 0);
	nothing_more(fd, pid);
	close(fd);
}

T(not_asked_for)
{
	int fd = log_open();
	const char *rec;
	pid_t pid;

	T_OK(t_sysctl("stable_ms", 0));
	pid = crash("ends", "exited", 1);
	rec = log_next(fd, pid);
	REC("outcome", "restarted");
	T_EXITED(t_wait(pid), 7);
	nothing_more(fd, pid);

	/* Nor of who was never restarted */
	T_OK(t_sysctl("stable_ms", LONG_MS));
	pid = t_fork();
	if (!pid) {
		t_register("stay", NULL);
		_exit(3);
	}
	T_EXITED(t_wait(pid), 3);
	nothing_more(fd, pid);

	T_ERR(t_sysctl("stable_ms", 3600001), EINVAL);
	T_ERR(t_sysctl("stable_ms", -1), EINVAL);
	T_OK(t_sysctl("stable_ms", 3600000));
	close(fd);
}

/* One that goes before its time is up leaves nothing that comes too late. */
T(gone_before)
{
	int fd = log_open();
	const char *rec;
	pid_t pid;

	T_OK(t_sysctl("stable_ms", 4 * SHORT_MS));
	pid = crash("ends", "exited", 1);
	T_EXITED(t_wait(pid), 7);
	rec = log_next(fd, pid);
	REC("outcome", "restarted");
	rec = log_next(fd, pid);
	REC("outcome", "ended");
	t_sleep_ms(5 * SHORT_MS);
	nothing_more(fd, pid);
	close(fd);
}

static void *fault(void *arg)
{
	prctl(PR_SET_NAME, "worker");
	t_crash();
	return arg;
}

/* Of the process: its name, and how long it has lived, since its start or since a restart */
T(life)
{
	int fd = log_open();
	pthread_t thread;
	const char *rec;
	pid_t pid;

	pid = t_fork();
	if (!pid) {
		t_register("stay", NULL);
		prctl(PR_SET_NAME, "service");
		t_sleep_ms(200);
		pthread_create(&thread, NULL, fault, NULL);
		pthread_join(thread, NULL);
	}
	rec = log_next(fd, pid);
	REC("comm", "service");
	T_EXPECT(REC_NUM("tid") != (uint64_t)pid);
	T_RANGE(REC_NUM("age_ns"), 200 * MS, 100000 * MS);
	T_STREQ(log_value(rec, "fault_addr"), "0x1230");
	while (!t_word[W_READY])
		t_sleep_ms(5);
	t_sleep_ms(50);
	T_RANGE((uint64_t)proc_num(pid, "age_ns"), 50 * MS, 100000 * MS);
	T_EQ((uint64_t)proc_num(pid, "downtime_ns"), REC_NUM("downtime_ns"));
	T_EXPECT(REC_NUM("downtime_ns") > 0);
	t_word[W_STOP] = 1;
	T_EXITED(t_wait(pid), 0);
	close(fd);
}

/* Addresses are for who may read them elsewhere: in the kernel log, or in the process. */
T(addresses)
{
	for (int dumpable = 0; dumpable < 2; dumpable++) {
		int roots = log_open();
		const char *rec;
		pid_t pid;

		T_CHILD {
			int fd;

			t_drop_root();
			fd = log_open();
			pid = t_fork();
			if (!pid) {
				T_OK(prctl(PR_SET_DUMPABLE, dumpable));
				t_register("ends", "exited", NULL);
				t_crash();
			}
			t_word[W_PID] = pid;
			T_EXITED(t_wait(pid), 7);
			rec = log_next(fd, pid);
			REC("fault_addr", dumpable ? "0x1230" : "-");
		}
		rec = log_next(roots, t_word[W_PID]);
		REC("fault_addr", "0x1230");
		close(roots);
	}
}

/* Nor for who may read the kernel log in a namespace of his own only. */
T(addresses_in_a_container)
{
	T_CHILD {
		const char *rec;
		pid_t pid;
		int fd;

		t_contained_root();
		T_OK(unshare(CLONE_NEWPID | CLONE_NEWNS));
		/* The first process of its namespace */
		pid = t_fork();
		if (pid) {
			T_EXITED(t_wait(pid), 0);
			_exit(0);
		}
		T_OK(mount("proc", "/proc", "proc", 0, NULL));
		fd = log_open();
		pid = t_fork();
		if (!pid) {
			T_OK(prctl(PR_SET_DUMPABLE, 0));
			t_register("ends", "exited", NULL);
			t_crash();
		}
		T_EXITED(t_wait(pid), 7);
		rec = log_next(fd, pid);
		REC("fault_addr", "-");
		_exit(0);
	}
}

/* As the reader's namespace of control groups has it; who is somewhere else sees none. */
T(control_group)
{
	char want[128];
	const char *rec;
	pid_t pid;
	int fd;

	cg_open("max");
	fd = log_open();
	pid = t_fork();
	if (!pid) {
		cg_enter();
		t_register("ends", "exited", NULL);
		t_crash();
	}
	T_EXITED(t_wait(pid), 7);
	rec = log_next(fd, pid);
	snprintf(want, sizeof(want), "%s", cg_dir + strlen(cg_mnt));
	REC("cgroup", want);
	T_CHILD {
		cg_enter();
		T_OK(unshare(CLONE_NEWCGROUP));
		fd = T_OK(open("/proc/restart_log", O_RDONLY));
		rec = log_next(fd, pid);
		REC("cgroup", "/");
		pid = t_fork();
		if (!pid) {
			T_OK(t_put(cg_path("../cgroup.procs"), "0"));
			t_register("ends", "exited", NULL);
			t_crash();
		}
		T_EXITED(t_wait(pid), 7);
		rec = log_next(fd, pid);
		REC("cgroup", "-");
		_exit(0);
	}
	cg_close();
	close(fd);
}
