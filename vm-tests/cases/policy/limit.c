// SPDX-License-Identifier: GPL-2.0-or-later
/* restartctl() itself, the limit, and restarts of a process that exits. */
#include "pol.h"

#include <pthread.h>
#include <sys/mount.h>

enum { W_RUNS, W_TIME };

static char *args[] = { "prog", NULL };

/* ---- the call ---- */

static long ctl(unsigned int op, const void *arg, size_t size, unsigned int flags)
{
	return syscall(NR_restartctl, op, arg, size, flags);
}

T(call_errors)
{
	struct restart_policy p = {}, got;
	struct { struct restart_policy p; char more[40]; } big = {};
	char *page = mmap(NULL, 2 * t_page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	/* In this order: flags, op, size, pointer, values, meaning */
	T_ERR(ctl(RESTARTCTL_SET_POLICY, &p, sizeof(p), 0), ENOENT);
	T_ERR(ctl(RESTARTCTL_GET_POLICY, &p, sizeof(p), 0), ENOENT);
	T_ERR(ctl(RESTARTCTL_HEARTBEAT, NULL, 0, 0), ENOENT);
	T_ERR(ctl(RESTARTCTL_SET_POLICY, t_none(), sizeof(p), 0), EFAULT);
	p.reserved = 1;
	T_ERR(ctl(RESTARTCTL_SET_POLICY, &p, sizeof(p), 0), EINVAL);
	p.reserved = 0;

	T_EQ(x_reregist(t_self, args, NULL, 1), 0);
	for (unsigned int op = 1; op <= 3; op++) {
		for (unsigned int bit = 0; bit < 32; bit++)
			T_ERR(ctl(op, op == 3 ? NULL : &p, op == 3 ? 0 : sizeof(p), 1u << bit), EINVAL);
	}
	T_ERR(ctl(0, &p, sizeof(p), 0), EINVAL);
	T_ERR(ctl(4, &p, sizeof(p), 0), EINVAL);
	T_ERR(ctl(~0u, &p, sizeof(p), 0), EINVAL);
	T_ERR(ctl(RESTARTCTL_HEARTBEAT, &p, 0, 0), EINVAL);
	T_ERR(ctl(RESTARTCTL_HEARTBEAT, NULL, 1, 0), EINVAL);
	for (unsigned int op = 1; op <= 2; op++) {
		T_ERR(ctl(op, &p, 0, 0), EINVAL);
		T_ERR(ctl(op, &p, 23, 0), EINVAL);
		T_ERR(ctl(op, page, t_page() + 1, 0), E2BIG);
		T_ERR(ctl(op, page, -1, 0), E2BIG);
		T_EQ(ctl(op, page, t_page(), 0), 0);
		T_ERR(ctl(op, NULL, sizeof(p), 0), EFAULT);
		T_ERR(ctl(op, t_none(), sizeof(p), 0), EFAULT);
		T_ERR(ctl(op, (char *)t_edge(23), sizeof(p), 0), EFAULT);
		T_ERR(ctl(op, T_KERNEL_PTR, sizeof(p), 0), EFAULT);
	}
	T_ERR(ctl(RESTARTCTL_GET_POLICY, t_readonly(), sizeof(p), 0), EFAULT);
	big.more[39] = 1;
	T_ERR(ctl(RESTARTCTL_SET_POLICY, &big, sizeof(big), 0), E2BIG);
	big.more[39] = 0;
	big.p.flags = RESTART_ON_EXIT;
	T_EQ(ctl(RESTARTCTL_SET_POLICY, &big, sizeof(big), 0), 0);
	memset(&big, 0xff, sizeof(big));
	T_EQ(ctl(RESTARTCTL_GET_POLICY, &big, sizeof(big), 0), 0);
	T_EQ(big.p.flags, RESTART_ON_EXIT);
	for (size_t i = 0; i < sizeof(big.more); i++)
		T_EQ(big.more[i], 0);
	/* Nothing of that has changed it. */
	T_EQ(ctl(RESTARTCTL_GET_POLICY, &got, sizeof(got), 0), 0);
	T_EQ(got.flags, RESTART_ON_EXIT);
}

TV(policy_values)
{
	static const struct {
		struct restart_policy p;
		bool good;
	} rows[] = {
		{ { .flags = 0 }, true },
		{ { .flags = RESTART_LIMIT, .burst = 1 }, true },
		{ { .flags = RESTART_LIMIT, .burst = 64, .interval_ms = UINT32_MAX }, true },
		{ { .flags = RESTART_LIMIT | RESTART_QUARANTINE | RESTART_ON_EXIT | RESTART_CORE, .burst = 3,
		    .interval_ms = 1, .heartbeat_ns = RESTART_HEARTBEAT_MAX }, true },
		{ { .heartbeat_ns = 3600000 * MS }, true },
		{ { .flags = RESTART_LIMIT }, false },
		{ { .flags = RESTART_LIMIT, .burst = 65 }, false },
		{ { .flags = RESTART_LIMIT, .burst = UINT32_MAX }, false },
		{ { .burst = 1 }, false },
		{ { .interval_ms = 1 }, false },
		{ { .flags = 1 << 4 }, false },
		{ { .flags = 1u << 31 }, false },
		{ { .reserved = 1 }, false },
		{ { .heartbeat_ns = 1 }, false },
		{ { .heartbeat_ns = RESTART_HEARTBEAT_MIN - 1 }, false },
		{ { .heartbeat_ns = RESTART_HEARTBEAT_MAX + 1 }, false },
		{ { .heartbeat_ns = UINT64_MAX }, false },
	};
	struct restart_policy last = {}, got;

	T_EQ(x_reregist(t_self, args, NULL, 1), 0);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (rows[i].good) {
			T_EQ(x_setpolicy(&rows[i].p), 0);
			last = rows[i].p;
		} else {
			T_ERR(x_setpolicy(&rows[i].p), EINVAL);
		}
		T_EQ(x_getpolicy(&got), 0);
		T_MEMEQ(&got, &last, sizeof(got));
		T_EQ(x_heartbeat(), 0);
	}
}

ROLE(policy_after_exec)
{
	struct restart_policy p;

	T_ERR(x_getpolicy(&p), ENOENT);
	T_ERR(x_heartbeat(), ENOENT);
	return 0;
}

ROLE(policy_kept)
{
	struct restart_policy p;

	T_EQ(t_generation(), 2);
	T_EQ(x_getpolicy(&p), 0);
	T_EQ(p.flags, RESTART_LIMIT | RESTART_CORE);
	T_EQ(p.burst, 7);
	T_EQ(p.interval_ms, 8);
	return 0;
}

TV(policy_lifetime)
{
	static const struct restart_policy want = { .flags = RESTART_LIMIT | RESTART_CORE, .burst = 7, .interval_ms = 8 };
	struct restart_policy p;

	T_EQ(x_reregist(t_self, args, NULL, 1), 0);
	T_EQ(x_setpolicy(&want), 0);
	/* Kept by another registration, */
	T_EQ(x_reregist(t_self, args, NULL, 2), 0);
	T_EQ(x_getpolicy(&p), 0);
	T_MEMEQ(&p, &want, sizeof(p));
	/* not inherited, */
	T_CHILD {
		T_ERR(x_getpolicy(&p), ENOENT);
		T_ERR(x_setpolicy(&want), ENOENT);
		T_EQ(x_reregist(t_self, args, NULL, 1), 0);
		T_EQ(x_getpolicy(&p), 0);
		T_EQ(p.flags, 0);
	}
	/* dropped with the registration, */
	T_EQ(x_unregister(), 0);
	T_ERR(x_getpolicy(&p), ENOENT);
	T_ERR(x_heartbeat(), ENOENT);
	T_EQ(x_reregist(t_self, args, NULL, 2), 0);
	T_EQ(x_getpolicy(&p), 0);
	T_EQ(p.flags, 0);
	T_EQ(p.burst, 0);
	/* kept by a restart, */
	T_CHILD {
		t_register("policy_kept", NULL);
		T_EQ(x_setpolicy(&want), 0);
		t_crash();
	}
	/* dropped by an execve(). */
	T_EQ(x_setpolicy(&want), 0);
	T_OK(execl(t_self, t_self, "@policy_after_exec", NULL));
}

/* ---- the limit ---- */

/* Faults at once, in every generation up to the one given. */
ROLE(fault_again)
{
	t_word[W_RUNS]++;
	T_EQ(t_generation(), t_word[W_RUNS] + 1);
	T_EQ(proc_num(getpid(), "left"), atoll(argv[1]) ? atoll(argv[1]) - (long long)t_word[W_RUNS] : atoll(argv[2]));
	if (t_word[W_RUNS] == (uint64_t)atoll(argv[0]))
		return 0;
	t_crash();
}

static int faults(const char *until, const char *burst, uint32_t interval_ms)
{
	pid_t pid;

	t_word[W_RUNS] = 0;
	pid = t_fork();
	if (!pid) {
		t_register("fault_again", until, interval_ms ? burst : "0", burst, NULL);
		policy(RESTART_LIMIT, atoi(burst), interval_ms, 0);
		t_crash();
	}
	return t_wait(pid);
}

T(burst)
{
	int status;

	status = faults("9999", "1", 600000);
	T_KILLED(status, SIGSEGV);
	T_EXPECT(WCOREDUMP(status));
	T_EQ(t_word[W_RUNS], 1);
	T_KILLED(faults("9999", "3", 600000), SIGSEGV);
	T_EQ(t_word[W_RUNS], 3);
	T_EXITED(faults("3", "3", 600000), 0);
}

T_LIMIT(burst_most, 60)
{
	T_KILLED(faults("9999", "64", UINT32_MAX), SIGSEGV);
	T_EQ(t_word[W_RUNS], 64);
}

T_LIMIT(no_limit, 60)
{
	T_EXITED(faults("70", "1", 0), 0);
	T_EQ(t_word[W_RUNS], 70);
}

/* Two restarts in any 2 s: the third fault comes when the first restart is no longer one of them. */
ROLE(window)
{
	uint64_t runs = ++t_word[W_RUNS];

	if (runs == 1) {
		t_word[W_TIME] = t_now_ns();
		t_crash();
	}
	if (runs == 2) {
		T_EQ(proc_num(getpid(), "left"), 0);
		while (t_now_ns() < t_word[W_TIME] + 2000ull * t_slow() * MS)
			t_sleep_ms(20);
		t_word[W_TIME] = t_now_ns();
		T_EXPECT(proc_num(getpid(), "left") >= 1);
		t_crash();
	}
	return 0;
}

T_LIMIT(window_slides, 40)
{
	T_CHILD {
		t_register("window", NULL);
		policy(RESTART_LIMIT, 2, 2000 * t_slow(), 0);
		t_crash();
	}
	T_EQ(t_word[W_RUNS], 3);
}

/* The policy's rule instead of the sysctl's, in both directions, and the sysctl's again without it. */
T(limit_and_sysctl)
{
	pid_t pid;

	T_OK(t_sysctl("min_interval_ms", 0));
	T_KILLED(faults("9999", "2", 600000), SIGSEGV);
	T_EQ(t_word[W_RUNS], 2);
	T_OK(t_sysctl("min_interval_ms", 600000));
	T_EXITED(faults("5", "5", 600000), 0);
	t_word[W_RUNS] = 0;
	pid = t_fork();
	if (!pid) {
		t_register("fault_again", "9999", "1", "1", NULL);
		policy(RESTART_LIMIT, 9, 0, 0);
		policy(0, 0, 0, 0);
		t_crash();
	}
	T_KILLED(t_wait(pid), SIGSEGV);
	T_EQ(t_word[W_RUNS], 1);
	T_OK(t_sysctl("min_interval_ms", 60000));
}

ROLE(fault_on_and_on)
{
	t_word[W_RUNS]++;
	t_crash();
}

/* Whatever a policy asks for, the administrator has the last word, at any time. */
T(cap)
{
	T_EQ(t_sysctl_get("cap_burst"), 64);
	T_EQ(t_sysctl_get("cap_interval_ms"), 0);
	T_ERR(t_sysctl("cap_burst", 0), EINVAL);
	T_ERR(t_sysctl("cap_burst", 65), EINVAL);
	T_OK(t_sysctl("cap_burst", 3));
	T_OK(t_sysctl("cap_interval_ms", 600000));
	/* With no limit of its own, with one that is wider, with one that is narrower */
	t_word[W_RUNS] = 0;
	T_CHILD {
		pid_t pid = t_fork();

		if (!pid) {
			t_register("fault_again", "9999", "3", "3", NULL);
			policy(RESTART_LIMIT, 64, 0, 0);
			t_crash();
		}
		T_KILLED(t_wait(pid), SIGSEGV);
	}
	T_EQ(t_word[W_RUNS], 3);
	t_word[W_RUNS] = 0;
	T_CHILD {
		pid_t pid = t_fork();

		if (!pid) {
			t_register("fault_again", "9999", "3", "3", NULL);
			policy(RESTART_LIMIT, 64, 1000, 0);
			t_crash();
		}
		T_KILLED(t_wait(pid), SIGSEGV);
	}
	T_EQ(t_word[W_RUNS], 3);
	T_KILLED(faults("9999", "2", 600000), SIGSEGV);
	T_EQ(t_word[W_RUNS], 2);
	/* And without a policy */
	T_OK(t_sysctl("min_interval_ms", 0));
	t_word[W_RUNS] = 0;
	T_CHILD {
		pid_t pid = t_fork();

		if (!pid) {
			t_register("fault_on_and_on", NULL);
			t_crash();
		}
		T_KILLED(t_wait(pid), SIGSEGV);
	}
	T_EQ(t_word[W_RUNS], 3);
	T_OK(t_sysctl("min_interval_ms", 60000));
	T_OK(t_sysctl("cap_interval_ms", 0));
	T_EXITED(faults("7", "1", 0), 0);
	T_OK(t_sysctl("cap_burst", 64));
	/* It is root's. */
	T_CHILD {
		t_drop_root();
		T_ERR(t_sysctl("cap_burst", 64), EACCES);
		T_ERR(t_sysctl("cap_interval_ms", 0), EACCES);
	}
}

/* A new generation may ask for less. */
ROLE(lower)
{
	policy(RESTART_LIMIT, 1, 600000, 0);
	T_EQ(proc_num(getpid(), "left"), 0);
	t_crash();
}

T(limit_lowered)
{
	pid_t pid = t_fork();

	if (!pid) {
		t_register("lower", NULL);
		policy(RESTART_LIMIT, 9, 0, 0);
		t_crash();
	}
	T_KILLED(t_wait(pid), SIGSEGV);
}

/* Registering anew does not forget the restarts. */
ROLE(again)
{
	T_EQ(x_unregister(), 0);
	t_register("must_not_run", NULL);
	T_EQ(proc_num(getpid(), "left"), 0);
	t_crash();
}

T(limit_outlives_registration)
{
	pid_t pid = t_fork();

	if (!pid) {
		t_register("again", NULL);
		t_crash();
	}
	T_KILLED(t_wait(pid), SIGSEGV);
}

/* ---- exit ---- */

ROLE(after_exit)
{
	struct reg_info info = reg_info();

	T_EQ(info.generation, 2);
	T_EQ(info.restarts, 1);
	T_EQ(info.flags, REG_EXIT);
	T_EQ(info.signo, 0);
	T_EQ(info.code, atoi(argv[0]));
	T_EQ(info.fault_addr, 0);
	T_EXPECT(info.fault_tid > 0);
	T_EXPECT(info.fault_time_ns && info.exec_ns);
	T_STREQ(proc_line(getpid(), "cause"), "exit");
	t_word[W_RUNS]++;
	return 0;
}

static void *exiting_thread(void *status)
{
	exit((intptr_t)status);
}

T(exit_status)
{
	static const int statuses[] = { 1, 3, 255, -1, 0x100 + 7 };
	pthread_t thread;
	char text[16];
	pid_t pid;

	for (size_t i = 0; i < ARRAY_LEN(statuses); i++) {
		snprintf(text, sizeof(text), "%d", statuses[i] & 0xff);
		T_CHILD {
			t_register("after_exit", text, NULL);
			policy(RESTART_ON_EXIT, 0, 0, 0);
			exit(statuses[i]);
		}
	}
	T_EQ(t_word[W_RUNS], ARRAY_LEN(statuses));
	/* From a thread, while others wait */
	T_CHILD {
		t_register("after_exit", "9", NULL);
		policy(RESTART_ON_EXIT, 0, 0, 0);
		T_EQ(pthread_create(&thread, NULL, exiting_thread, (void *)9), 0);
		for (;;)
			pause();
	}
	T_EQ(t_word[W_RUNS], ARRAY_LEN(statuses) + 1);
	/* Not on status 0, */
	pid = t_fork();
	if (!pid) {
		t_register("must_not_run", NULL);
		policy(RESTART_ON_EXIT, 0, 0, 0);
		exit(0x100);
	}
	T_EXITED(t_wait(pid), 0);
	/* without the flag, */
	pid = t_fork();
	if (!pid) {
		t_register("must_not_run", NULL);
		exit(4);
	}
	T_EXITED(t_wait(pid), 4);
	/* after the registration, */
	pid = t_fork();
	if (!pid) {
		t_register("must_not_run", NULL);
		policy(RESTART_ON_EXIT, 0, 0, 0);
		T_EQ(x_unregister(), 0);
		exit(5);
	}
	T_EXITED(t_wait(pid), 5);
	/* by the end of the last thread, */
	pid = t_fork();
	if (!pid) {
		t_register("must_not_run", NULL);
		policy(RESTART_ON_EXIT, 0, 0, 0);
		syscall(SYS_exit, 6);
	}
	T_EXITED(t_wait(pid), 6);
	/* nor by a signal that is no fault. */
	pid = t_fork();
	if (!pid) {
		t_register("must_not_run", NULL);
		policy(RESTART_ON_EXIT, 0, 0, 0);
		raise(SIGTERM);
	}
	T_KILLED(t_wait(pid), SIGTERM);
}

ROLE(exit_again)
{
	t_word[W_RUNS]++;
	return 11;
}

T(exit_at_the_limit)
{
	pid_t pid = t_fork();

	if (!pid) {
		t_register("exit_again", NULL);
		policy(RESTART_ON_EXIT | RESTART_LIMIT, 2, 600000, 0);
		exit(10);
	}
	T_EXITED(t_wait(pid), 11);
	T_EQ(t_word[W_RUNS], 2);
}

T(exit_switched_off_or_without_program)
{
	char path[128];
	pid_t pid;

	pid = t_fork();
	if (!pid) {
		t_register("must_not_run", NULL);
		policy(RESTART_ON_EXIT, 0, 0, 0);
		T_OK(t_sysctl("enabled", 0));
		exit(12);
	}
	T_EXITED(t_wait(pid), 12);
	T_OK(t_sysctl("enabled", 1));

	t_copy("/bin/true", t_path(path, "prog"), 0755);
	pid = t_fork();
	if (!pid) {
		T_EQ(x_reregist(path, args, NULL, 0), 0);
		policy(RESTART_ON_EXIT, 0, 0, 0);
		T_OK(unlink(path));
		exit(13);
	}
	T_EXITED(t_wait(pid), 13);
}

/* ---- privileges ---- */

/* A program that gained privileges is not restarted as its user wishes. */
ROLE(privileged)
{
	struct restart_policy p;
	struct reg_info info;

	T_EQ(geteuid(), atoi(argv[0]));
	T_EQ(x_getreginfo(&info), geteuid() == getuid());
	if (geteuid() != getuid())
		T_ERR(x_getpolicy(&p), ENOENT);
	t_word[W_RUNS]++;
	t_crash();
}

T(set_user_id)
{
	static const mode_t modes[] = { 04755, 02755, 06755, 0755 };
	char path[PATH_MAX];
	pid_t pid;

	/* /tmp may be mounted nosuid. */
	T_OK(mount("none", t_tmpdir(), "tmpfs", 0, "mode=755"));
	for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
		t_copy_privileged(path, "prog", modes[i]);
		t_word[W_RUNS] = 0;
		pid = t_fork();
		if (!pid) {
			char *argv[] = { "prog", modes[i] & 02000 ? "@privileged_group" : "@privileged",
					 modes[i] & 04000 ? "2002" : "65534", NULL };

			t_drop_root();
			T_EQ(x_reregist(path, argv, environ, 0), 0);
			policy(RESTART_LIMIT | RESTART_ON_EXIT, 3, 0, BEAT_MS * 100 * MS);
			if (!(modes[i] & 06000))
				policy(RESTART_LIMIT, 3, 600000, 0);
			t_crash();
		}
		T_KILLED(t_wait(pid), SIGSEGV);
		T_EQ(t_word[W_RUNS], modes[i] & 06000 ? 1 : 3);
		T_OK(unlink(path));
	}
	T_OK(umount(t_tmpdir()));
}

ROLE(privileged_group)
{
	struct reg_info info;

	T_EQ(getegid(), T_OTHER);
	T_EQ(x_getreginfo(&info), 0);
	t_word[W_RUNS]++;
	t_crash();
}

/* ---- poison requests ---- */

enum { W_RUN = 8, W_FLAGS, W_FD };

/*
 * Reads as the plan for this generation says, one letter each, and faults:
 * a, b: from that file; c: from a, by another thread, then b; n: nothing; e: the end
 */
static int pipes[2];

static void *read_first(void *arg)
{
	char c;

	T_EQ(hread(pipes[0], &c, 1, 0), 1);
	return arg;
}

ROLE(poisoned)
{
	struct reg_info info = reg_info();
	char step = argv[2][info.generation - 2], c;
	pthread_t thread;

	pipes[0] = atoi(argv[0]);
	pipes[1] = atoi(argv[1]);
	t_word[W_RUN] = info.generation;
	t_word[W_FLAGS] |= (uint64_t)(info.flags & REG_SUSPECT_TWICE) << info.generation;
	T_EQ(proc_num(getpid(), "suspect_twice"), !!(info.flags & REG_SUSPECT_TWICE));
	if (info.flags & REG_SUSPECT_TWICE)
		t_word[W_FD] = info.suspect_fd;
	switch (step) {
	case 'c':
		T_EQ(pthread_create(&thread, NULL, read_first, NULL), 0);
		T_EQ(pthread_join(thread, NULL), 0);
		/* fall through */
	case 'b':
		T_EQ(hread(pipes[1], &c, 1, 0), 1);
		break;
	case 'a':
		T_EQ(hread(pipes[0], &c, 1, 0), 1);
		break;
	case 't':
		/* What another thread does later does not matter. */
		T_EQ(hread(pipes[1], &c, 1, 0), 1);
		T_EQ(pthread_create(&thread, NULL, read_first, NULL), 0);
		T_EQ(pthread_join(thread, NULL), 0);
		break;
	case 'e':
		return 0;
	}
	t_crash();
}

/* The plan's first letter is for the first generation; returns the status. */
static int poison(const char *plan, uint32_t flags, uint32_t burst, uint32_t interval_ms)
{
	char a[8], b[8], c;
	int p[2], q[2], status;
	pid_t pid;

	T_OK(pipe(p));
	T_OK(pipe(q));
	T_EQ(write(p[1], "xxxx", 4), 4);
	T_EQ(write(q[1], "xxxx", 4), 4);
	t_word[W_RUN] = 1;
	t_word[W_FLAGS] = 0;
	t_word[W_FD] = 0;
	pid = t_fork();
	if (!pid) {
		snprintf(a, sizeof(a), "%d", p[0]);
		snprintf(b, sizeof(b), "%d", q[0]);
		t_register("poisoned", a, b, plan + 1, NULL);
		policy(flags, burst, interval_ms, 0);
		if (*plan != 'n')
			T_EQ(hread(*plan == 'a' ? p[0] : q[0], &c, 1, 0), 1);
		t_crash();
	}
	status = t_wait(pid);
	if (t_word[W_FD])
		T_EQ(t_word[W_FD], (uint64_t)q[0]);
	close(p[0]);
	close(p[1]);
	close(q[0]);
	close(q[1]);
	return status;
}

#define Q	(RESTART_QUARANTINE)
#define L	(RESTART_LIMIT)

T_LIMIT(quarantine, 60)
{
	/* Told of without the flag, but not helped */
	T_KILLED(poison("bbe", 0, 0, 0), SIGSEGV);
	T_EQ(t_word[W_RUN], 2);
	T_EXITED(poison("bbe", L, 2, 600000), 0);
	T_EQ(t_word[W_FLAGS], 1 << 3);
	/* One start more, which is told why */
	T_EXITED(poison("bbe", Q, 0, 0), 0);
	T_EQ(t_word[W_RUN], 3);
	T_EQ(t_word[W_FLAGS], 1 << 3);
	T_EQ(t_word[W_FD] != 0, 1);
	/* once for a file, */
	T_KILLED(poison("bbbe", Q, 0, 0), SIGSEGV);
	T_EQ(t_word[W_RUN], 3);
	/* and not when it is another one. */
	T_KILLED(poison("bae", Q, 0, 0), SIGSEGV);
	T_EQ(t_word[W_RUN], 2);
	T_KILLED(poison("nne", Q, 0, 0), SIGSEGV);
	T_EQ(t_word[W_RUN], 2);
	/* It does not count: two restarts are left for others. */
	T_EXITED(poison("bbne", Q | L, 2, 600000), 0);
	T_EQ(t_word[W_RUN], 4);
	T_KILLED(poison("bbnne", Q | L, 2, 600000), SIGSEGV);
	T_EQ(t_word[W_RUN], 4);
	/* Not in a row */
	T_EXITED(poison("bnbe", L, 1, 0), 0);
	T_EQ(t_word[W_FLAGS], 0);
	T_EXITED(poison("bnbbe", L, 1, 0), 0);
	T_EQ(t_word[W_FLAGS], 1 << 5);
}

/* Who read last in the thread that faults, not in the process */
T(quarantine_threads)
{
	T_EXITED(poison("bte", Q, 0, 0), 0);
	T_EQ(t_word[W_FLAGS], 1 << 3);
	T_EXITED(poison("bce", Q, 0, 0), 0);
	T_EQ(t_word[W_FLAGS], 1 << 3);
}

/* The same number, another file */
ROLE(other_file)
{
	int fd = atoi(argv[0]), p[2];
	char c;

	T_EQ(reg_info().suspect_fd, fd);
	T_EQ(reg_info().flags, 0);
	if (t_generation() == 3)
		return 0;
	T_OK(pipe(p));
	T_EQ(write(p[1], "x", 1), 1);
	T_OK(dup2(p[0], fd));
	T_EQ(hread(fd, &c, 1, 0), 1);
	t_crash();
}

T(quarantine_knows_files)
{
	T_CHILD {
		char text[8], c;
		int p[2];

		T_OK(pipe(p));
		T_EQ(write(p[1], "x", 1), 1);
		snprintf(text, sizeof(text), "%d", p[0]);
		t_register("other_file", text, NULL);
		policy(L, 9, 0, 0);
		T_EQ(hread(p[0], &c, 1, 0), 1);
		t_crash();
	}
}
