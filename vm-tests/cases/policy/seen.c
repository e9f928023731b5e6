// SPDX-License-Identifier: GPL-2.0-or-later
/* What /proc/PID/restart and /proc/restart_log tell, and to whom. */
#include "pol.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/user.h>

enum { W_RUNS, W_READY, W_STOP, W_TIME, W_PID };

static char *args[] = { "prog", NULL };

/* ---- /proc/PID/restart ---- */

T(not_registered)
{
	char path[64], text[4096];

	snprintf(path, sizeof(path), "/proc/%d/restart", getpid());
	T_EQ(t_get(path, text, sizeof(text)), (int)strlen("registered:\t0\n"));
	T_STREQ(text, "registered:\t0\n");
	T_EQ(t_get("/proc/1/restart", text, sizeof(text)), (int)strlen("registered:\t0\n"));
	snprintf(path, sizeof(path), "/proc/self/task/%d/restart", getpid());
	T_ERR(open(path, O_RDONLY), ENOENT);
	/* A thing of the process: no longer there when it has exited. */
	T_EQ(x_reregist(t_self, args, NULL, 1), 0);
	T_EQ(proc_num(getpid(), "registered"), 1);
	T_EQ(x_unregister(), 0);
	T_STREQ(proc_line(getpid(), "registered"), "0");
	T_EXPECT(!proc_line(getpid(), "generation"));
}

T(registered)
{
	char *odd[] = { "a b", "", "new\nline", "back\\slash", "\xc3\xa4", NULL };

	T_EQ(x_reregist(t_self, odd, NULL, -7), 0);
	T_STREQ(proc_line(getpid(), "registered"), "1");
	T_STREQ(proc_line(getpid(), "child_id"), "-7");
	T_STREQ(proc_line(getpid(), "generation"), "1");
	T_STREQ(proc_line(getpid(), "restarts"), "0");
	T_STREQ(proc_line(getpid(), "cause"), "none");
	T_STREQ(proc_line(getpid(), "signo"), "0");
	T_STREQ(proc_line(getpid(), "suspect_fd"), "-1");
	T_STREQ(proc_line(getpid(), "policy"), "-");
	T_STREQ(proc_line(getpid(), "burst"), "1");
	T_STREQ(proc_line(getpid(), "interval_ms"), "60000");
	T_STREQ(proc_line(getpid(), "left"), "1");
	T_STREQ(proc_line(getpid(), "heartbeat_ns"), "0");
	T_STREQ(proc_line(getpid(), "heartbeat_left_ns"), "0");
	T_STREQ(proc_line(getpid(), "held_bytes"), "0");
	T_STREQ(proc_line(getpid(), "path"), t_self);
	T_STREQ(proc_line(getpid(), "argv"), "a\\040b  new\\012line back\\134slash \\303\\244");
	T_STREQ(proc_line(getpid(), "fault_addr"), "0x0");
	policy(RESTART_LIMIT | RESTART_QUARANTINE | RESTART_ON_EXIT | RESTART_CORE, 5, 7000, 0);
	T_STREQ(proc_line(getpid(), "policy"), "limit quarantine exit core");
	T_STREQ(proc_line(getpid(), "burst"), "5");
	T_STREQ(proc_line(getpid(), "interval_ms"), "7000");
	T_STREQ(proc_line(getpid(), "left"), "5");
	policy(RESTART_ON_EXIT, 0, 0, 0);
	T_STREQ(proc_line(getpid(), "policy"), "exit");
}

ROLE(stay)
{
	t_word[W_READY] = 1;
	while (!t_word[W_STOP])
		t_sleep_ms(5);
	return 0;
}

T(after_a_restart)
{
	pid_t pid = t_fork();

	if (!pid) {
		t_register("stay", NULL);
		t_crash();
	}
	while (!t_word[W_READY])
		t_sleep_ms(5);
	T_EQ(proc_num(pid, "generation"), 2);
	T_EQ(proc_num(pid, "restarts"), 1);
	T_STREQ(proc_line(pid, "cause"), "fault");
	T_EQ(proc_num(pid, "signo"), SIGSEGV);
	T_EQ(proc_num(pid, "code"), SEGV_MAPERR);
	T_EQ(proc_num(pid, "fault_tid"), pid);
	T_STREQ(proc_line(pid, "fault_addr"), "0x1230");
	T_EQ(proc_num(pid, "left"), 0);
	T_EXPECT(proc_num(pid, "exec_ns") > 0);
	T_EXPECT(proc_num(pid, "fault_time_ns") > 0);
	/* Counts for everyone, addresses for those who may look into the process. */
	T_CHILD {
		t_drop_root();
		T_EQ(proc_num(pid, "generation"), 2);
		T_EQ(proc_num(pid, "signo"), SIGSEGV);
		T_EXPECT(!proc_line(pid, "heartbeat_left_ns"));
		/* Nor how much its clients have sent lately */
		T_EXPECT(!proc_line(pid, "held_bytes"));
		T_EXPECT(!proc_line(pid, "fault_addr"));
		T_EXPECT(!proc_line(pid, "path"));
		T_EXPECT(!proc_line(pid, "argv"));
	}
	t_word[W_STOP] = 1;
	T_EXITED(t_wait(pid), 0);
}

/* As for every file, it is the identity for files that counts, not the one that sent the open file here. */
T(looked_into_by_whom)
{
	static const struct {
		uid_t real, files;
		bool may;
	} readers[] = {
		{ T_NOBODY, T_NOBODY, true }, { T_OTHER, T_NOBODY, true }, { T_NOBODY, T_OTHER, false },
	};
	pid_t pid = t_fork();

	if (!pid) {
		t_drop_root();
		T_OK(prctl(PR_SET_DUMPABLE, 1));
		T_EQ(x_reregist(t_self, args, NULL, 1), 0);
		t_word[W_READY] = 1;
		pause();
	}
	while (!t_word[W_READY])
		t_sleep_ms(5);
	for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
		T_CHILD {
			T_OK(setresgid(T_NOBODY, T_NOBODY, T_NOBODY));
			T_OK(setresuid(readers[i].real, readers[i].files, readers[i].files));
			T_EQ(proc_num(pid, "registered"), 1);
			T_EQ(!!proc_line(pid, "argv"), readers[i].may);
			T_EQ(!!proc_line(pid, "heartbeat_left_ns"), readers[i].may);
			T_EQ(!!proc_line(pid, "held_bytes"), readers[i].may);
		}
	}
	t_reap(pid);
}

T(held_bytes)
{
	char buf[8];
	int p[2], q[2];

	T_EQ(x_reregist(t_self, args, NULL, 0), 0);
	T_OK(pipe(p));
	T_OK(pipe(q));
	T_EQ(write(p[1], "abcdefgh", 8), 8);
	T_EQ(write(q[1], "abcdefgh", 8), 8);
	T_EQ(hread(p[0], buf, 5, 0), 5);
	T_EQ(hread(q[0], buf, 8, 1), 8);
	T_EQ(proc_num(getpid(), "held_bytes"), 12);
	T_CHILD {
		T_EQ(proc_num(getppid(), "held_bytes"), 12);
		T_EQ(x_reregist(t_self, args, NULL, 0), 0);
		T_EQ(proc_num(getpid(), "held_bytes"), 0);
	}
	close(q[0]);
	T_EQ(proc_num(getpid(), "held_bytes"), 5);
}

ROLE(holds_on)
{
	T_EQ(x_reregist(t_self, args, NULL, 0), 0);
	T_EQ(proc_num(getpid(), "held_bytes"), 5);
	T_EQ(x_hread(atoi(argv[0]), NULL, 0, 2), 0);
	T_EQ(proc_num(getpid(), "held_bytes"), 3);
	return 0;
}

/* Another program of the process holds what the one before it held. */
T(held_bytes_after_execve)
{
	T_CHILD {
		char buf[8], fd[12];
		int p[2];

		T_OK(pipe(p));
		T_EQ(write(p[1], "abcdefgh", 8), 8);
		T_EQ(hread(p[0], buf, 5, 0), 5);
		snprintf(fd, sizeof(fd), "%d", p[0]);
		execl(t_self, "prog", "@holds_on", fd, NULL);
		T_ASSERT(!"execve");
	}
}

/* ---- the log ---- */

T(log_file)
{
	char text[4096];
	struct stat st;
	int fd;

	T_OK(stat("/proc/restart_log", &st));
	T_EQ(st.st_mode, S_IFREG | 0444);
	fd = log_open();
	T_EQ(read(fd, text, sizeof(text)), 0);
	T_EQ(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 0), 0);
	T_ERR(lseek(fd, 1, SEEK_SET), EINVAL);
	T_ERR(lseek(fd, -1, SEEK_END), EINVAL);
	T_ERR(lseek(fd, 0, SEEK_CUR), EINVAL);
	T_OK(lseek(fd, 0, SEEK_SET));
	close(fd);
	t_drop_root();
	T_ERR(open("/proc/restart_log", O_WRONLY), EACCES);
}

ROLE(done)
{
	(void)argc;
	return t_generation() == 2 ? 0 : 1;
}

static pid_t crash(const char *role, uint32_t flags)
{
	pid_t pid = t_fork();

	if (!pid) {
		t_register(role, NULL);
		policy(flags, 0, 0, 0);
		t_word[W_TIME] = t_now_ns();
		t_crash();
	}
	T_EXITED(t_wait(pid), 0);
	return pid;
}

#define REC(key, want)	T_STREQ(log_value(rec, key), want)
#define REC_NUM(key)	strtoull(log_value(rec, key), NULL, 10)

T(record)
{
	char text[65536], self[PATH_MAX];
	struct timespec now;
	const char *rec;
	int fd = log_open();
	pid_t pid;
	ssize_t n;

	pid = crash("done", RESTART_CORE);
	rec = log_next(fd, pid);
	REC("rung", "restart");
	REC("cause", "fault");
	REC("outcome", "restarted");
	REC("error", "0");
	REC("generation", "2");
	REC("child_id", "0");
	REC("suspect_fd", "-1");
	REC("suspect_twice", "0");
	REC("uid", "0");
	REC("comm", "policy-seen");
	snprintf(self, sizeof(self), "%s", t_self);
	REC("path", self);
	T_EQ(REC_NUM("signo"), SIGSEGV);
	T_EQ(REC_NUM("code"), SEGV_MAPERR);
	T_EQ(REC_NUM("tid"), (uint64_t)pid);
	T_EXPECT(REC_NUM("core_pid") > 0);
	T_EXPECT(REC_NUM("retain_ns") && REC_NUM("exec_ns") && REC_NUM("restore_ns"));
	T_RANGE(REC_NUM("mono_ns"), t_word[W_TIME], t_now_ns());
	T_OK(clock_gettime(CLOCK_REALTIME, &now));
	T_RANGE(REC_NUM("time_ns"), (now.tv_sec - 100ull * t_slow()) * 1000000000, (now.tv_sec + 1ull) * 1000000000);

	/* Again from the start; whole records only */
	T_OK(lseek(fd, 0, SEEK_SET));
	T_ERR(read(fd, text, 20), EINVAL);
	T_ERR(read(fd, t_none(), 65536), EFAULT);
	n = T_OK(read(fd, text, 700));
	T_EXPECT(n > 20 && text[n - 1] == '\n');
	T_MEMEQ(text, "seq=", 4);
	close(fd);
}

T(outcomes)
{
	const char *rec;
	char path[128];
	int fd = log_open();
	pid_t pid;

	/* At the limit */
	pid = t_fork();
	if (!pid) {
		t_register("stay", NULL);
		T_OK(t_sysctl("min_interval_ms", 600000));
		t_word[W_STOP] = 1;
		policy(RESTART_LIMIT | RESTART_ON_EXIT, 1, 600000, 0);
		t_crash();
	}
	T_EXITED(t_wait(pid), 0);
	rec = log_next(fd, pid);
	REC("outcome", "restarted");
	pid = t_fork();
	if (!pid) {
		t_register("fault_on", NULL);
		t_crash();
	}
	T_KILLED(t_wait(pid), SIGBUS);
	rec = log_next(fd, pid);
	REC("outcome", "restarted");
	REC("signo", "11");
	rec = log_next(fd, pid);
	REC("outcome", "limit");
	REC("signo", "7");
	REC("generation", "2");
	REC("exec_ns", "0");

	/* The program is gone */
	t_copy("/bin/true", t_path(path, "a b"), 0755);
	pid = t_fork();
	if (!pid) {
		T_EQ(x_reregist(path, args, NULL, 5), 0);
		T_OK(unlink(path));
		t_crash();
	}
	T_KILLED(t_wait(pid), SIGSEGV);
	rec = log_next(fd, pid);
	REC("outcome", "failed");
	T_EQ(REC_NUM("error"), ENOENT);
	REC("generation", "1");
	REC("child_id", "5");
	T_EXPECT(strstr(log_value(rec, "path"), "/a\\040b"));

	/* An exit, a hang */
	pid = t_fork();
	if (!pid) {
		t_register("done", NULL);
		policy(RESTART_ON_EXIT, 0, 0, 0);
		_exit(9);
	}
	T_EXITED(t_wait(pid), 0);
	rec = log_next(fd, pid);
	REC("cause", "exit");
	REC("signo", "0");
	REC("code", "9");
	pid = t_fork();
	if (!pid) {
		t_register("done", NULL);
		policy(0, 0, 0, BEAT_MS * MS);
		for (;;)
			;
	}
	T_EXITED(t_wait(pid), 0);
	rec = log_next(fd, pid);
	REC("cause", "hang");
	T_EQ(REC_NUM("signo"), SIGABRT);
	T_OK(t_sysctl("min_interval_ms", 60000));
	close(fd);
}

ROLE(fault_on)
{
	raise(SIGBUS);
	return 0;
}

static void once_more(const char *how)
{
	static int in[2];
	char c;

	if (!strcmp(how, "exit"))
		_exit(9);
	if (!strcmp(how, "hang"))
		for (;;)
			;
	/* The file is what comes to be suspected. */
	if (t_generation() == 1) {
		T_OK(pipe2(in, 0));
		T_OK(dup2(in[0], 90));
		T_OK(dup2(in[1], 91));
		T_EQ(write(91, "x", 1), 1);
	}
	T_EQ(x_hread(90, &c, 1, 0), 1);
	raise(SIGBUS);
}

ROLE(once_more)
{
	if (t_generation() == 3)
		return 0;
	once_more(argv[0]);
	return 1;
}

/* What ends at its limit is told as what it is. */
T(limits)
{
	static const struct {
		const char *how;
		uint32_t flags;
		const char *outcome, *twice;
		int status;
	} cases[] = {
		{ "exit", RESTART_ON_EXIT, "limit", "0", 9 << 8 },
		{ "hang", 0, "limit", "0", SIGABRT },
		{ "fault", 0, "limit", "1", SIGBUS },
		{ "fault", RESTART_QUARANTINE, "restarted", "1", 0 },
	};
	int fd = log_open();
	const char *rec;
	pid_t pid;

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		t_context = cases[i].how;
		pid = t_fork();
		if (!pid) {
			t_register("once_more", cases[i].how, NULL);
			policy(RESTART_LIMIT | cases[i].flags, 1, 600000, strcmp(cases[i].how, "hang") ? 0 : BEAT_MS * MS);
			once_more(cases[i].how);
		}
		T_EQ(t_wait(pid) & ~WCOREFLAG, cases[i].status);
		rec = log_next(fd, pid);
		REC("outcome", "restarted");
		REC("cause", cases[i].how);
		REC("suspect_twice", "0");
		rec = log_next(fd, pid);
		REC("outcome", cases[i].outcome);
		REC("cause", cases[i].how);
		REC("suspect_twice", cases[i].twice);
		REC("generation", cases[i].flags & RESTART_QUARANTINE ? "3" : "2");
	}
	close(fd);
}

/* An image that the kernel takes, and that fails with the old one gone */
T(lost)
{
	const char *rec;
	int fd = log_open();
	char path[128];
	pid_t pid;

	/* It needs more address space than its limit allows. */
	t_copy(t_self, t_path(path, "prog"), 0755);
	pid = t_fork();
	if (!pid) {
		T_EQ(x_reregist(path, args, NULL, 0), 0);
		T_OK(setrlimit(RLIMIT_AS, &(struct rlimit){ 4 * t_page(), 4 * t_page() }));
		t_crash();
	}
	T_EXPECT(WIFSIGNALED(t_wait(pid)));
	rec = log_next(fd, pid);
	T_EXPECT(!strcmp(log_value(rec, "outcome"), "lost") || !strcmp(log_value(rec, "outcome"), "failed"));
	T_EXPECT(REC_NUM("error") > 0);
	close(fd);
}

T(polling)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int fd = log_open(), ep = T_OK(epoll_create1(0));
	char text[65536];
	pid_t pid;

	T_OK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev));
	T_EQ(epoll_wait(ep, &ev, 1, 0), 0);
	pid = t_fork();
	if (!pid) {
		t_sleep_ms(100);
		t_register("done", NULL);
		t_crash();
	}
	T_EQ(epoll_wait(ep, &ev, 1, 10000 * t_slow()), 1);
	T_EQ(ev.events, EPOLLIN);
	T_EXITED(t_wait(pid), 0);
	T_EXPECT(read(fd, text, sizeof(text)) > 0);
	T_EQ(read(fd, text, sizeof(text)), 0);
	T_EQ(epoll_wait(ep, &ev, 1, 0), 0);
	close(ep);
	close(fd);
}

/* Others' records are not there, and nobody is woken for them. */
T(other_users)
{
	int ready[2];
	char c;
	pid_t pid;

	T_OK(pipe(ready));
	pid = t_fork();
	if (!pid) {
		struct pollfd p = { .events = POLLIN };
		const char *rec;
		char text[65536];

		t_drop_root();
		p.fd = log_open();
		T_EQ(write(ready[1], "x", 1), 1);
		while (!t_word[W_STOP])
			t_sleep_ms(5);
		T_EQ(poll(&p, 1, 0), 0);
		T_EQ(read(p.fd, text, sizeof(text)), 0);
		/* One's own are. */
		pid = crash("done", 0);
		rec = log_next(p.fd, pid);
		T_EQ(REC_NUM("uid"), T_NOBODY);
		T_OK(lseek(p.fd, 0, SEEK_SET));
		T_EXPECT(read(p.fd, text, sizeof(text)) > 0);
		T_EXPECT(!strstr(text, " uid=0 "));
		_exit(0);
	}
	T_EQ(read(ready[0], &c, 1), 1);
	crash("done", 0);
	t_word[W_STOP] = 1;
	T_EXITED(t_wait(pid), 0);
}

/* The child is the first process of a PID namespace with a /proc of its own. */
static pid_t fork_into_namespace(void)
{
	pid_t pid;

	T_OK(unshare(CLONE_NEWPID | CLONE_NEWNS));
	T_OK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	pid = T_OK(fork());
	if (!pid)
		T_OK(mount("none", "/proc", "proc", 0, NULL));
	return pid;
}

T(namespaces)
{
	int fd = log_open();
	const char *rec;
	pid_t pid;

	T_CHILD {
		pid = fork_into_namespace();
		if (!pid) {
			int in;
			char text[65536];

			in = T_OK(open("/proc/restart_log", O_RDONLY));
			/* What has been before is not of this namespace. */
			T_EQ(read(in, text, sizeof(text)), 0);
			pid = crash("done", 0);
			T_EXPECT(pid < 100);
			rec = log_next(in, pid);
			REC("outcome", "restarted");
			T_EQ(REC_NUM("tid"), (uint64_t)pid);
			t_word[W_READY] = pid;
			_exit(0);
		}
		T_EXITED(t_wait(pid), 0);
	}
	/* From outside, the process has another number. */
	{
		struct pollfd p = { .fd = fd, .events = POLLIN };
		char text[65536];
		ssize_t n;

		T_EQ(poll(&p, 1, 5000), 1);
		n = T_OK(read(fd, text, sizeof(text) - 1));
		text[n] = 0;
		rec = text;
		T_EQ(REC_NUM("tid"), t_word[W_READY]);
		T_EXPECT(REC_NUM("pid") > REC_NUM("tid"));
	}
	close(fd);
}

/* Nor does it have those of a namespace beside it, whose processes have the same numbers. */
T(namespace_beside)
{
	T_CHILD {
		for (int i = 0; i < 2; i++) {
			pid_t pid = t_fork();

			if (!pid) {
				int in;
				char text[65536];

				pid = fork_into_namespace();
				if (pid)
					_exit(WEXITSTATUS(t_wait(pid)));
				in = T_OK(open("/proc/restart_log", O_RDONLY));
				T_EQ(read(in, text, sizeof(text)), 0);
				pid = crash("done", 0);
				log_next(in, pid);
				_exit(0);
			}
			T_EXITED(t_wait(pid), 0);
		}
	}
}

/* How many records has the log, and how many of them are of process `pid`? */
static int log_count(int fd, pid_t pid, int *of_pid)
{
	static char text[1 << 20];
	unsigned long long seq, last = 0;
	int count = 0;
	ssize_t n;

	*of_pid = 0;
	T_OK(lseek(fd, 0, SEEK_SET));
	while ((n = T_OK(read(fd, text, sizeof(text) - 1))) > 0) {
		text[n] = 0;
		for (char *next, *line = text; *line; line = next) {
			next = strchr(line, '\n') + 1;
			next[-1] = 0;
			T_ASSERT(sscanf(line, "seq=%llu ", &seq) == 1);
			T_EXPECT(!count || seq > last);
			last = seq;
			count++;
			*of_pid += atoi(log_value(line, "pid")) == pid;
		}
	}
	return count;
}

static bool log_has(int fd, pid_t pid)
{
	int of_pid;

	log_count(fd, pid, &of_pid);
	return of_pid;
}

/* Root of a namespace that anybody can make is not root. */
T(root_of_a_namespace)
{
	pid_t root = crash("done", 0), own;
	int fd;

	T_CHILD {
		t_drop_root();
		T_OK(prctl(PR_SET_DUMPABLE, 1));
		if (unshare(CLONE_NEWUSER))
			t_skip("no user namespaces for this user");
		T_OK(t_put("/proc/self/uid_map", "0 65534 1"));
		T_EQ(getuid(), 0);
		fd = T_OK(open("/proc/restart_log", O_RDONLY));
		T_EXPECT(!log_has(fd, root));
		own = crash("done", 0);
		T_EXPECT(log_has(fd, own));
		T_EXPECT(!log_has(fd, root));
	}
}

/* Who opened it is asked for, and not who reads. */
T(passed_on)
{
	pid_t root = crash("done", 0), nobody;
	int roots, nobodys;

	nobody = t_fork();
	if (!nobody) {
		t_drop_root();
		t_register("done", NULL);
		t_crash();
	}
	T_EXITED(t_wait(nobody), 0);
	roots = T_OK(open("/proc/restart_log", O_RDONLY));
	T_OK(seteuid(T_NOBODY));
	nobodys = T_OK(open("/proc/restart_log", O_RDONLY));
	T_OK(seteuid(0));
	T_EXPECT(log_has(nobodys, nobody));
	T_EXPECT(!log_has(nobodys, root));
	T_CHILD {
		t_drop_root();
		T_EXPECT(log_has(roots, root));
		T_EXPECT(log_has(roots, nobody));
	}
	close(roots);
	close(nobodys);
}

ROLE(until)
{
	if (t_generation() < 301)
		t_crash();
	return 0;
}

/*
 * Who restarts in a loop pushes out nobody's records but his own, whoever he is in a namespace that he has made: one
 * user of it 300 times, or each of 300 users.
 */
static void overrun(int users)
{
	int fd = T_OK(open("/proc/restart_log", O_RDONLY)), count;
	pid_t root = crash("done", 0), nobody, pid;
	char path[64];

	t_word[W_READY] = 0;
	t_word[W_STOP] = 0;
	nobody = t_fork();
	if (!nobody) {
		t_drop_root();
		t_register("done", NULL);
		t_crash();
	}
	T_EXITED(t_wait(nobody), 0);
	pid = t_fork();
	if (!pid) {
		T_OK(setresuid(T_OTHER, T_OTHER, T_OTHER));
		T_OK(unshare(CLONE_NEWUSER));
		t_word[W_READY] = 1;
		while (!t_word[W_STOP])
			t_sleep_ms(2);
		for (int i = 0; i < users; i++)
			T_CHILD {
				t_word[W_PID] = getpid();
				T_OK(setresuid(i, i, i));
				t_register(users > 1 ? "done" : "until", NULL);
				policy(RESTART_LIMIT, 1, 0, 0);
				t_crash();
			}
		_exit(0);
	}
	while (!t_word[W_READY])
		t_sleep_ms(2);
	/* It is root there, and that is 0 here, too. The others are somebody here. */
	snprintf(path, sizeof(path), "/proc/%d/uid_map", pid);
	T_OK(t_put(path, "0 0 1\n1 300000 400"));
	t_word[W_STOP] = 1;
	T_EXITED(t_wait(pid), 0);
	T_EQ(log_count(fd, t_word[W_PID], &count), 256);
	if (users == 1)
		T_RANGE(count, 60, 254);
	else
		T_EQ(count, 1);
	T_EXPECT(log_has(fd, root));
	T_EXPECT(log_has(fd, nobody));
	close(fd);
}

T_LIMIT(overrun, 120)
{
	overrun(1);
}

T_LIMIT(overrun_by_many, 120)
{
	overrun(300);
}

static int in_pid_namespace(void)
{
	pid_t pid = t_fork();

	if (pid)
		return t_wait(pid);
	if (unshare(CLONE_NEWPID))
		_exit(errno);
	pid = T_OK(fork());
	if (pid)
		_exit(WEXITSTATUS(t_wait(pid)));
	crash("done", 0);
	_exit(0);
}

/* A PID namespace that has ended is not kept for the sake of a record. */
T_LIMIT(namespaces_are_let_go, 60)
{
	T_CHILD {
		uint64_t end = t_now_ns() + 20000 * t_slow() * MS;

		T_OK(unshare(CLONE_NEWUSER));
		T_OK(t_put("/proc/self/uid_map", "0 0 1"));
		T_OK(t_put("/proc/sys/user/max_pid_namespaces", "1"));
		T_EXITED(in_pid_namespace(), 0);
		/* Its last process is reaped, and what it had is freed a little later. */
		for (;;) {
			int status = in_pid_namespace();

			if (!status)
				break;
			T_EXITED(status, ENOSPC);
			T_ASSERT(t_now_ns() < end);
			t_sleep_ms(20);
		}
	}
}

/* ---- somebody else ends the process meanwhile ---- */

ROLE(new_one)
{
	t_word[W_READY] = t_now_ns();
	while (pause())
		;
	return 0;
}

static void *pausing_thread(void *arg)
{
	for (;;)
		pause();
	return arg;
}

static void *exiting_thread(void *arg)
{
	uint64_t wait = *(uint64_t *)arg, begin;

	while (!(begin = t_word[W_TIME]))
		;
	while (t_now_ns() < begin + wait)
		;
	_exit(0);
}

/* A process of a few threads faults; `exit_ns` later one of them exits for all, unless it is 0. */
static pid_t fault_with_threads(uint64_t exit_ns)
{
	pid_t pid;

	t_word[W_TIME] = 0;
	t_word[W_READY] = 0;
	pid = t_fork();
	if (!pid) {
		pthread_t thread;

		for (int i = 0; i < 8; i++)
			T_EQ(pthread_create(&thread, NULL, pausing_thread, NULL), 0);
		if (exit_ns)
			T_EQ(pthread_create(&thread, NULL, exiting_thread, &exit_ns), 0);
		t_register("new_one", NULL);
		t_word[W_TIME] = t_now_ns();
		t_crash();
	}
	while (!t_word[W_TIME])
		sched_yield();
	return pid;
}

/* What the log says of a process that is dead: nothing, when its fault came too late. */
static const char *log_outcome(int fd, pid_t pid)
{
	static char text[1 << 16], outcome[32];
	ssize_t n;

	outcome[0] = 0;
	while ((n = T_OK(read(fd, text, sizeof(text) - 1))) > 0) {
		text[n] = 0;
		for (char *next, *line = text; *line; line = next) {
			next = strchr(line, '\n') + 1;
			next[-1] = 0;
			if (atoi(log_value(line, "pid")) != pid)
				continue;
			snprintf(outcome, sizeof(outcome), "%.30s", log_value(line, "outcome"));
			T_STREQ(log_value(line, "error"), "0");
		}
	}
	return outcome;
}

/* How long does a restart of it take? */
static uint64_t restart_ns(int fd)
{
	pid_t pid = fault_with_threads(0);

	while (!t_word[W_READY])
		t_sleep_ms(1);
	t_reap(pid);
	T_STREQ(log_outcome(fd, pid), "restarted");
	return t_word[W_READY] - t_word[W_TIME];
}

static int open_kmsg(void)
{
	int fd = T_OK(open("/dev/kmsg", O_RDONLY | O_NONBLOCK));

	T_OK(lseek(fd, 0, SEEK_END));
	return fd;
}

/* Nothing has failed, and the kernel's log does not say so. */
static void no_complaint(int fd)
{
	char text[8192];
	ssize_t n;

	while ((n = read(fd, text, sizeof(text) - 1)) > 0 || errno == EPIPE) {
		text[n > 0 ? n : 0] = 0;
		T_EXPECT(!strstr(text, "restart failed"));
	}
	close(fd);
}

T_LIMIT(killed_meanwhile, 90)
{
	int fd = log_open(), kmsg = open_kmsg(), seen = 0;
	uint64_t ns = restart_ns(fd), seed = t_seed(), end = t_now_ns() + 60000 * t_slow() * MS;

	while (seen < 5 && t_now_ns() < end) {
		uint64_t wait = t_rand(&seed) % ns;
		pid_t pid = fault_with_threads(0);
		const char *outcome;

		while (t_now_ns() < t_word[W_TIME] + wait)
			;
		T_OK(kill(pid, SIGKILL));
		T_KILLED(t_wait(pid), SIGKILL);
		outcome = log_outcome(fd, pid);
		T_EXPECT(!*outcome || !strcmp(outcome, "restarted") || !strcmp(outcome, "killed"));
		seen += !strcmp(outcome, "killed");
	}
	T_EQ(seen, 5);
	no_complaint(kmsg);
	close(fd);
}

T_LIMIT(exits_meanwhile, 90)
{
	int fd = log_open(), kmsg = open_kmsg(), seen = 0;
	uint64_t ns = restart_ns(fd), seed = t_seed(), end = t_now_ns() + 60000 * t_slow() * MS;

	while (seen < 5 && t_now_ns() < end) {
		pid_t pid = fault_with_threads(1 + t_rand(&seed) % ns), done;
		const char *outcome;
		int status;

		while (!(done = waitpid(pid, &status, WNOHANG)) && !t_word[W_READY])
			sched_yield();
		if (done)
			T_EXITED(status, 0);
		else
			t_reap(pid);
		outcome = log_outcome(fd, pid);
		T_EXPECT(!*outcome || !strcmp(outcome, done ? "ended" : "restarted"));
		seen += !strcmp(outcome, "ended");
	}
	T_EQ(seen, 5);
	no_complaint(kmsg);
	close(fd);
}
