// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Memory runs out at every single allocation of every call, and of a restart: an error or an orderly death, nothing
 * lost, nothing leaked, and no complaint from the kernel. Needs fault injection, which the debug profile has.
 */
#include "gen.h"

enum { NTH_FD = 20 };

/* The file stays open: opening it would be among the allocations. */
static void open_nth(void)
{
	int fd = T_OK(open("/proc/thread-self/fail-nth", O_RDWR));

	T_OK(dup2(fd, NTH_FD));
	close(fd);
}

/* From now on the nth allocation of this thread fails; 0 switches that off. Gives what was left to come. */
static int fail_nth(int nth)
{
	static char left[16], text[16];
	ssize_t n = pread(NTH_FD, left, sizeof(left) - 1, 0);

	snprintf(text, sizeof(text), "%d", nth);
	if (n < 0 || pwrite(NTH_FD, text, strlen(text), 0) < 0)
		_exit(96);
	left[n] = 0;
	return atoi(left);
}

static void need_injection(void)
{
	static const char *const kinds[] = { "failslab", "fail_page_alloc" };
	char path[PATH_MAX];

	if (access("/proc/thread-self/fail-nth", F_OK))
		t_skip("no fault injection in this kernel");
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s/verbose", kinds[i]);
		T_OK(t_put(path, "0"));
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s/ignore-gfp-wait", kinds[i]);
		T_OK(t_put(path, "N"));
	}
	/* A program in memory: the file system of the host does not recover from all of that. */
	t_copy(t_self, t_path(path, "prog"), 0755);
	snprintf(t_self, sizeof(t_self), "%s", path);
	t_put("/sys/kernel/debug/fail_page_alloc/min-order", "0");
	t_put("/sys/kernel/debug/fail_page_alloc/ignore-gfp-highmem", "N");
	open_nth();
}

/* Calls with the first allocation failing, then the second, until one gets by with none failing. */
#define EACH_ALLOCATION(call, done) do { \
	int _left = 0; \
	for (int _nth = 1; !_left && _nth < 500; _nth++) { \
		long _ret; \
		int _err; \
		fail_nth(_nth); \
		_ret = call; \
		_err = errno; \
		_left = fail_nth(0); \
		done(_ret, _err, _nth); \
	} \
	T_EXPECT(_left > 0); \
} while (0)

static void no_memory(long ret, int err, int nth)
{
	if (ret < 0 && err != ENOMEM && err != ENFILE)
		t_check(false, __FILE__, __LINE__, "allocation %d: errno %s", nth, strerrorname_np(err));
}

T_LIMIT(registration, 60)
{
	static char *args[] = { "prog", "arg", NULL };
	struct reg_info info;
	struct io_log log;
	int p[2];

	need_injection();
	T_OK(pipe(p));
	EACH_ALLOCATION(x_reregist(t_self, args, environ, 5), no_memory);
	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.child_id, 5);
	EACH_ALLOCATION(x_reregist(t_self, args, environ, 6), no_memory);
	EACH_ALLOCATION(x_getreginfo(&info), no_memory);
	T_EQ(info.child_id, 6);
	EACH_ALLOCATION(x_getiolog(p[0], &log), no_memory);
	EACH_ALLOCATION(x_unregister() && errno == ENOENT ? 0 : 0, no_memory);
}

/* One socket or pipe: what hread() does not give for want of memory comes later. */
static void channel(int rd, int wr, bool datagram)
{
	static unsigned char out[3000], in[4000];
	uint64_t got = 0, sent = 0;

	for (int nth = 1, left = 0; !left && nth < 200; nth++) {
		ssize_t n;
		int err;

		t_fill(out, sizeof(out), sent);
		fail_nth(nth);
		n = x_lwrite(wr, out, sizeof(out));
		err = errno;
		left = fail_nth(0);
		if (n < 0)
			T_EXPECT(err == ENOMEM || err == ENOBUFS || err == EAGAIN || err == EFAULT);
		else
			sent += n;
		fail_nth(nth);
		n = x_hread_nowait(rd, in, sizeof(in), 0);
		err = errno;
		left = fail_nth(0) && left;
		if (n < 0) {
			T_EXPECT(err == ENOMEM || err == EAGAIN || err == EFAULT);
			continue;
		}
		T_EQ(t_match(in, n, got), n);
		got += n;
	}
	while (got < sent) {
		ssize_t n = T_OK(x_hread(rd, in, sizeof(in), 0));

		T_EQ(t_match(in, n, got), n);
		got += n;
	}
	T_EQ(got, sent);
	T_EXPECT(sent > sizeof(out) || datagram);
	T_IOLOG(rd, got, 0, 0, 0);
	T_IOLOG(wr, 0, 0, 0, sent);
	T_EQ(x_hread(rd, NULL, 0, got), 0);
}

T_LIMIT(channels, 60)
{
	static const int types[] = { SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET };
	int fd[2];

	need_injection();
	t_context = "pipe";
	T_OK(pipe2(fd, O_NONBLOCK));
	channel(fd[0], fd[1], false);
	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		t_context = i ? "datagram" : "stream";
		T_OK(socketpair(AF_UNIX, types[i] | SOCK_NONBLOCK, 0, fd));
		channel(fd[0], fd[1], i);
	}
}

/* How the process ends is the fault's business, or the dynamic linker's; that it ends, and alone, is ours. */
ROLE(survivor)
{
	int left = fail_nth(0);

	T_EQ(t_generation(), 2);
	if (left)
		t_word[0] = 1;
	return 0;
}

T_LIMIT(restart, 200)
{
	int nth, restarted = 0, died = 0;

	need_injection();
	for (nth = 1; !t_word[0] && nth < 1000; nth += nth < 100 ? 1 : 7) {
		pid_t pid = t_fork();
		int status;

		if (!pid) {
			t_register("survivor", NULL);
			open_nth();
			fail_nth(nth);
			t_crash();
		}
		status = t_wait(pid);
		if (WIFEXITED(status) && !WEXITSTATUS(status))
			restarted++;
		else
			died++;
		if (WIFSIGNALED(status) && WTERMSIG(status) != SIGSEGV && WTERMSIG(status) != SIGKILL &&
		    WTERMSIG(status) != SIGBUS)
			T_KILLED(status, SIGSEGV);
	}
	T_EXPECT(t_word[0]);
	T_EXPECT(died > 0);
	t_note("%d allocations: %d deaths, %d restarts", nth, died, restarted);
}
