/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Test programs in C: named tests, one process and one time limit each, KTAP out.
 *
 *	T(name) { ... }		a test
 *	TV(name) { ... }	a test run twice: through syscall(2) and through libperdure
 *	ROLE(name) { ... }	what the program does when it is executed as "prog @name ARG..."
 *
 * A test fails when a check fails, when it checks nothing, when it dies and when it is late.
 */
#ifndef T_H
#define T_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <perdure.h>

#define NR_reregist	500
#define NR_getreginfo	501
#define NR_hread	502
#define NR_lwrite	503
#define NR_getiolog	504
#define NR_lsendfile	505
#define NR_restartctl	506
#define NR_rescue	507

#define T_UNUSED	__attribute__((unused))
#define ARRAY_LEN(a)	(sizeof(a) / sizeof((a)[0]))

enum { T_RAW, T_LIB };

struct t_test {
	const char *name;
	void (*fn)(void);
	bool both;
	int limit_s;
	struct t_test *next;
};

struct t_role {
	const char *name;
	int (*fn)(int argc, char **argv);
	struct t_role *next;
};

/* Shared by the runner, a test, its children and what they execute (which find it as file descriptor T_FD). */
struct t_shared {
	_Atomic int checks;
	_Atomic int failed;
	_Atomic uint64_t word[64];	/* for the test's own use; 0 at its start */
	int variant;
	char dir[64];
	char skip[256];
};

#define T_FD		1000

static struct t_test *t_tests, **t_tests_end = &t_tests;
static struct t_role *t_roles;
static struct t_shared *t_shared;
static char t_self[PATH_MAX];
static const char *t_context;	/* what a failed check says first: the case of a table */

#define t_variant	(t_shared->variant)
#define t_word		(t_shared->word)

#define T_ADD(id, two, limit) \
	static void test_##id(void); \
	static struct t_test t_##id = { #id, test_##id, two, limit, NULL }; \
	static void __attribute__((constructor)) t_add_##id(void) \
	{ \
		*t_tests_end = &t_##id; \
		t_tests_end = &t_##id.next; \
	} \
	static void test_##id(void)

#define T(id)		T_ADD(id, false, 20)
#define TV(id)		T_ADD(id, true, 20)
#define T_LIMIT(id, s)	T_ADD(id, false, s)

#define ROLE(id) \
	static int role_##id(int argc T_UNUSED, char **argv T_UNUSED); \
	static struct t_role r_##id = { #id, role_##id, NULL }; \
	static void __attribute__((constructor)) t_role_##id(void) \
	{ \
		r_##id.next = t_roles; \
		t_roles = &r_##id; \
	} \
	static int role_##id(int argc T_UNUSED, char **argv T_UNUSED)

/* One write per line, so that lines of several processes do not mix. */
static T_UNUSED __attribute__((format(printf, 1, 2))) void t_note(const char *fmt, ...)
{
	char line[1024] = "# ";
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line + 2, sizeof(line) - 3, fmt, ap);
	va_end(ap);
	n = n < (int)sizeof(line) - 3 ? n + 2 : (int)sizeof(line) - 2;
	line[n++] = '\n';
	if (write(STDOUT_FILENO, line, n) < 0)
		_exit(98);
}

static T_UNUSED bool t_check(bool ok, const char *file, int line, const char *fmt, ...)
{
	char what[768];
	int err = errno;
	va_list ap;

	atomic_fetch_add(&t_shared->checks, 1);
	if (ok)
		return true;
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (atomic_fetch_add(&t_shared->failed, 1) < 40)
		t_note("%s:%d: %s%s%s", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, line,
		       t_context ? t_context : "", t_context ? ": " : "", what);
	errno = err;
	return false;
}

/* A check that fails goes on; an assertion that fails ends the test. */
#define T_EXPECT(cond)	t_check(cond, __FILE__, __LINE__, "expected: %s", #cond)

#define T_EQ(a, b) ({ \
	long long _a = (long long)(a), _b = (long long)(b); \
	t_check(_a == _b, __FILE__, __LINE__, "%s is %lld (0x%llx), expected %lld (%s)", \
		#a, _a, _a, _b, #b); })

#define T_RANGE(a, lo, hi) ({ \
	long long _a = (long long)(a), _l = (long long)(lo), _h = (long long)(hi); \
	t_check(_a >= _l && _a <= _h, __FILE__, __LINE__, "%s is %lld, expected %lld to %lld", \
		#a, _a, _l, _h); })

#define T_STREQ(a, b) ({ \
	const char *_a = (a), *_b = (b); \
	t_check(!strcmp(_a, _b), __FILE__, __LINE__, "%s is \"%s\", expected \"%s\"", #a, _a, _b); })

#define T_MEMEQ(a, b, n) ({ \
	const unsigned char *_a = (const void *)(a), *_b = (const void *)(b); \
	size_t _n = (n), _i = 0; \
	while (_i < _n && _a[_i] == _b[_i]) \
		_i++; \
	t_check(_i == _n, __FILE__, __LINE__, "%s differs from %s at byte %zu of %zu: 0x%02x, expected 0x%02x", \
		#a, #b, _i, _n, _i < _n ? _a[_i] : 0, _i < _n ? _b[_i] : 0); })

/* The call must fail with this errno. */
#define T_ERR(call, err) ({ \
	errno = 0; \
	long long _r = (long long)(call); \
	int _e = errno; \
	t_check(_r == -1 && _e == (err), __FILE__, __LINE__, "%s gave %lld (errno %s), expected -1 (%s)", \
		#call, _r, _r == -1 ? strerrorname_np(_e) : "-", strerrorname_np(err)); })

#define T_ASSERT(cond) do { \
	if (!t_check(cond, __FILE__, __LINE__, "needed: %s (errno %s)", #cond, strerrorname_np(errno))) \
		_exit(1); \
} while (0)

/* A call of the test's own that must not fail: gives its value. */
#define T_OK(call) ({ \
	long long _r = (long long)(call); \
	if (_r < 0) { \
		t_check(false, __FILE__, __LINE__, "needed: %s (errno %s)", #call, strerrorname_np(errno)); \
		_exit(1); \
	} \
	_r; })

static T_UNUSED __attribute__((noreturn, format(printf, 1, 2))) void t_skip(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(t_shared->skip, sizeof(t_shared->skip), fmt, ap);
	va_end(ap);
	_exit(77);
}

/* ---- time ---- */

static T_UNUSED uint64_t t_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static T_UNUSED void t_sleep_ms(unsigned int ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000l };

	while (nanosleep(&ts, &ts) && errno == EINTR)
		;
}

/* How much slower than the plain VM the debugging kernels may be. */
static T_UNUSED int t_slow(void)
{
	const char *profile = getenv("PERDURE_PROFILE");

	if (!profile)
		return 1;
	return !strcmp(profile, "kcsan") ? 12 : !strcmp(profile, "debug") ? 6 : 1;
}

/* Random tests do `base` rounds, or as many times that as PERDURE_ROUNDS says. */
static T_UNUSED int t_rounds(int base)
{
	const char *s = getenv("PERDURE_ROUNDS");
	double f = s ? atof(s) : 1;
	int n = base * (f > 0 ? f : 1);

	if (t_slow() > 1)
		n /= 4;
	return n > 0 ? n : 1;
}

/* ---- random numbers that repeat (splitmix64) ---- */

static T_UNUSED uint64_t t_rand(uint64_t *s)
{
	uint64_t z = (*s += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static T_UNUSED uint64_t t_seed(void)
{
	const char *s = getenv("PERDURE_SEED");
	uint64_t seed = s ? strtoull(s, NULL, 0) : t_now_ns() ^ ((uint64_t)getpid() << 32);

	t_note("PERDURE_SEED=%llu", (unsigned long long)seed);
	return seed;
}

/* Byte number `pos` of the stream that tests send: no short period, so that a gap or a repeat shows. */
static T_UNUSED unsigned char t_byte(uint64_t pos)
{
	uint64_t z = (pos >> 3) * 0x9e3779b97f4a7c15ull;

	return (z ^ (z >> 29)) >> (8 * (pos & 7));
}

static T_UNUSED void t_fill(void *buf, size_t n, uint64_t pos)
{
	unsigned char *p = buf;

	for (size_t i = 0; i < n; i++)
		p[i] = t_byte(pos + i);
}

/* Index of the first byte that is not the stream's, or n. */
static T_UNUSED size_t t_match(const void *buf, size_t n, uint64_t pos)
{
	const unsigned char *p = buf;
	size_t i = 0;

	while (i < n && p[i] == t_byte(pos + i))
		i++;
	return i;
}

/* ---- files ---- */

static T_UNUSED int t_put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC), err = 0;

	if (fd < 0)
		return -1;
	if (write(fd, text, strlen(text)) < 0)
		err = errno;
	close(fd);
	errno = err;
	return err ? -1 : 0;
}

static T_UNUSED int t_get(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n, got = 0;

	if (fd < 0)
		return -1;
	while ((n = read(fd, buf + got, size - 1 - got)) > 0)
		got += n;
	close(fd);
	buf[got] = 0;
	return got;
}

#define T_SYSCTL	"/proc/sys/kernel/restart/"

static T_UNUSED int t_sysctl(const char *name, long val)
{
	char path[128], text[32];

	snprintf(path, sizeof(path), T_SYSCTL "%s", name);
	snprintf(text, sizeof(text), "%ld", val);
	return t_put(path, text);
}

static T_UNUSED long t_sysctl_get(const char *name)
{
	char path[128], text[32];

	snprintf(path, sizeof(path), T_SYSCTL "%s", name);
	return t_get(path, text, sizeof(text)) > 0 ? atol(text) : -1;
}

/* A directory of the test's own below /tmp, which unprivileged users may enter; the runner removes it. */
static T_UNUSED const char *t_tmpdir(void)
{
	T_ASSERT(!mkdir(t_shared->dir, 0755) || errno == EEXIST);
	return t_shared->dir;
}

static T_UNUSED char *t_path(char *buf, const char *name)
{
	snprintf(buf, PATH_MAX, "%s/%s", t_tmpdir(), name);
	return buf;
}

static T_UNUSED void t_copy(const char *from, const char *to, mode_t mode)
{
	static char buf[1 << 16];
	int in = T_OK(open(from, O_RDONLY | O_CLOEXEC));
	int out = T_OK(open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700));
	ssize_t n;

	while ((n = T_OK(read(in, buf, sizeof(buf)))) > 0)
		T_ASSERT(write(out, buf, n) == n);
	T_OK(fchmod(out, mode));
	close(in);
	close(out);
}

enum { T_OTHER = 2002 };	/* a user, and a group, that nobody else has */

/* A copy of this program for t_tmpdir() that is T_OTHER's, set-user-ID or set-group-ID as @mode says. */
static T_UNUSED void t_copy_privileged(char *buf, const char *name, mode_t mode)
{
	t_copy(t_self, t_path(buf, name), 0755);
	T_OK(chown(buf, T_OTHER, T_OTHER));
	T_OK(chmod(buf, mode));
}

static T_UNUSED void t_write_file(const char *path, const void *buf, size_t n, mode_t mode)
{
	int fd = T_OK(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700));

	T_ASSERT(write(fd, buf, n) == (ssize_t)n);
	T_OK(fchmod(fd, mode));
	close(fd);
}

/* ---- memory that is bad in known ways ---- */

#define T_KERNEL_PTR	((void *)0xffffffff81000000ul)
#define T_NONCANON_PTR	((void *)0x8000000000000000ul)

static T_UNUSED size_t t_page(void)
{
	return sysconf(_SC_PAGESIZE);
}

/* A page that may not be touched. */
static T_UNUSED void *t_none(void)
{
	void *p = mmap(NULL, t_page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	T_ASSERT(p != MAP_FAILED);
	return p;
}

/* A page that is not there. */
static T_UNUSED void *t_gone(void)
{
	void *p = t_none();

	munmap(p, t_page());
	return p;
}

static T_UNUSED void *t_readonly(void)
{
	void *p = mmap(NULL, t_page(), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	T_ASSERT(p != MAP_FAILED);
	return p;
}

/* `n` good bytes, and then nothing. */
static T_UNUSED void *t_edge(size_t n)
{
	size_t len = (n + t_page() - 1) / t_page() * t_page();
	char *p = mmap(NULL, len + t_page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	T_ASSERT(p != MAP_FAILED);
	T_OK(mprotect(p + len, t_page(), PROT_NONE));
	return p + len - n;
}

/* ---- the calls, by variant ---- */

static T_UNUSED long x_reregist(const char *path, char *const argv[], char *const envp[], int id)
{
	return t_variant == T_LIB ? reregist(path, argv, envp, id) :
	       syscall(NR_reregist, path, argv, envp, id, 0);
}

static T_UNUSED long x_unregister(void)
{
	return t_variant == T_LIB ? perdure_unregister() :
	       syscall(NR_reregist, NULL, NULL, NULL, 0, REREGIST_CLEAR);
}

static T_UNUSED long x_getreginfo(struct reg_info *info)
{
	return t_variant == T_LIB ? getreginfo(info) :
	       syscall(NR_getreginfo, info, sizeof(*info), 0);
}

static T_UNUSED long x_regpath(char *buf, size_t size)
{
	return t_variant == T_LIB ? perdure_regpath(buf, size) :
	       syscall(NR_getreginfo, buf, size, GETREGINFO_PATH);
}

static T_UNUSED long x_hread(int fd, void *buf, size_t rlen, size_t dlen)
{
	return t_variant == T_LIB ? hread(fd, buf, rlen, dlen) :
	       syscall(NR_hread, fd, buf, rlen, dlen, 0);
}

static T_UNUSED long x_hread_nowait(int fd, void *buf, size_t rlen, size_t dlen)
{
	return syscall(NR_hread, fd, buf, rlen, dlen, HREAD_NOWAIT);
}

static T_UNUSED long x_lwrite(int fd, const void *buf, size_t len)
{
	return t_variant == T_LIB ? lwrite(fd, buf, len) :
	       syscall(NR_lwrite, fd, buf, len, 0);
}

static T_UNUSED long x_lsendfile(int out, int in, off_t *off, size_t count)
{
	return t_variant == T_LIB ? lsendfile(out, in, off, count) :
	       syscall(NR_lsendfile, out, in, off, count, 0);
}

static T_UNUSED long x_getiolog(int fd, struct io_log *log)
{
	return t_variant == T_LIB ? getiolog(fd, log) :
	       syscall(NR_getiolog, fd, log, sizeof(*log), 0);
}

static T_UNUSED long x_setpolicy(const struct restart_policy *policy)
{
	return t_variant == T_LIB ? perdure_setpolicy(policy, sizeof(*policy)) :
	       syscall(NR_restartctl, RESTARTCTL_SET_POLICY, policy, sizeof(*policy), 0);
}

static T_UNUSED long x_getpolicy(struct restart_policy *policy)
{
	return t_variant == T_LIB ? perdure_getpolicy(policy, sizeof(*policy)) :
	       syscall(NR_restartctl, RESTARTCTL_GET_POLICY, policy, sizeof(*policy), 0);
}

static T_UNUSED long x_heartbeat(void)
{
	return t_variant == T_LIB ? perdure_heartbeat() :
	       syscall(NR_restartctl, RESTARTCTL_HEARTBEAT, NULL, 0, 0);
}

/* The counters of a file must be exactly these. */
#define T_IOLOG(fd, rd, rel, unr, wr) do { \
	struct io_log _l; \
	T_EQ(x_getiolog(fd, &_l), 0); \
	t_check(_l.read == (uint64_t)(rd) && _l.released == (uint64_t)(rel) && \
		_l.held == (uint64_t)(rd) - (uint64_t)(rel) && \
		_l.unread == (uint64_t)(unr) && _l.written == (uint64_t)(wr), __FILE__, __LINE__, \
		"io_log: read %llu released %llu held %llu unread %llu written %llu, expected %llu %llu %llu %llu %llu", \
		(unsigned long long)_l.read, (unsigned long long)_l.released, (unsigned long long)_l.held, \
		(unsigned long long)_l.unread, (unsigned long long)_l.written, \
		(unsigned long long)(rd), (unsigned long long)(rel), (unsigned long long)((rd) - (rel)), \
		(unsigned long long)(unr), (unsigned long long)(wr)); \
} while (0)

/* ---- children ---- */

/* The exit status of a child, waited for. */
static T_UNUSED int t_wait(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		T_ASSERT(errno == EINTR);
	return status;
}

#define T_EXITED(status, code) ({ \
	int _s = (status); \
	t_check(WIFEXITED(_s) && WEXITSTATUS(_s) == (code), __FILE__, __LINE__, \
		"status is 0x%x (%s %d), expected exit %d", _s, WIFSIGNALED(_s) ? "signal" : "exit", \
		WIFSIGNALED(_s) ? WTERMSIG(_s) : WEXITSTATUS(_s), code); })

#define T_KILLED(status, sig) ({ \
	int _s = (status); \
	t_check(WIFSIGNALED(_s) && WTERMSIG(_s) == (sig), __FILE__, __LINE__, \
		"status is 0x%x (%s %d), expected signal %d", _s, WIFSIGNALED(_s) ? "signal" : "exit", \
		WIFSIGNALED(_s) ? WTERMSIG(_s) : WEXITSTATUS(_s), sig); })

/* Runs the block in a child process and waits; its checks count for the test. */
#define T_CHILD \
	for (pid_t _pid = t_fork(); !_pid || (T_EXITED(t_wait(_pid), 0), 0); _exit(0))

static T_UNUSED pid_t t_fork(void)
{
	pid_t pid = T_OK(fork());

	if (!pid)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

/* Runs on in the calling process after its next fault: "prog @role ARG...", generation 2 and later. */
static T_UNUSED __attribute__((sentinel)) void t_register(const char *role, ...)
{
	char name[64], *argv[16] = { t_self, name };
	va_list ap;
	int n = 1;

	snprintf(name, sizeof(name), "@%s", role);
	va_start(ap, role);
	do
		argv[++n] = va_arg(ap, char *);
	while (argv[n]);
	va_end(ap);
	T_ASSERT(!syscall(NR_reregist, t_self, argv, environ, 0, 0));
}

/* A fault that nothing survives but a registration. */
static T_UNUSED __attribute__((noreturn)) void t_crash(void)
{
	*(volatile int *)0x1230 = 1;
	t_check(false, __FILE__, __LINE__, "survived a fault");
	_exit(1);
}

static T_UNUSED uint64_t t_generation(void)
{
	struct reg_info info;

	return syscall(NR_getreginfo, &info, sizeof(info), 0) == 1 ? info.generation : 0;
}

/* A signal handler that does nothing but interrupt. */
static T_UNUSED void t_on_signal(int sig T_UNUSED)
{
}

static T_UNUSED void t_handle(int sig, void (*fn)(int), int flags)
{
	struct sigaction sa = { .sa_handler = fn, .sa_flags = flags };

	T_OK(sigaction(sig, &sa, NULL));
}

/* Signals `pid` every few milliseconds, so that a race with the call to be interrupted does not matter. */
static T_UNUSED pid_t t_signaller(pid_t pid, int sig, int first_ms)
{
	pid_t child = t_fork();

	if (child)
		return child;
	t_sleep_ms(first_ms);
	for (;;) {
		kill(pid, sig);
		t_sleep_ms(30);
	}
}

static T_UNUSED void t_reap(pid_t pid)
{
	kill(pid, SIGKILL);
	t_wait(pid);
}

#define T_NOBODY 65534

static T_UNUSED void t_drop_root(void)
{
	T_OK(setgid(T_NOBODY));
	T_OK(setuid(T_NOBODY));
}

/* Root of a user namespace of one's own, as in a container: all capabilities there, none outside. */
static T_UNUSED void t_contained_root(void)
{
	t_drop_root();
	/* Who has changed his user ID owns nothing of his own in /proc, unless he says so. */
	T_OK(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0));
	T_OK(unshare(CLONE_NEWUSER));
	T_OK(t_put("/proc/self/setgroups", "deny"));
	T_OK(t_put("/proc/self/uid_map", "0 65534 1"));
	T_OK(t_put("/proc/self/gid_map", "0 65534 1"));
	T_EQ(getuid(), 0);
}

/* ---- runner ---- */

static void t_rmtmp(void)
{
	char cmd[96];

	snprintf(cmd, sizeof(cmd), "rm -rf %s", t_shared->dir);
	if (!access(t_shared->dir, F_OK) && system(cmd))
		t_note("cannot remove %s", t_shared->dir);
}

static void t_run(struct t_test *t, int variant, int *num)
{
	char name[128], why[320] = "";
	sigset_t chld, old;
	struct timespec left;
	uint64_t end;
	int status, rc;
	pid_t pid;

	snprintf(name, sizeof(name), "%s%s", t->name, t->both ? variant == T_LIB ? ".lib" : ".raw" : "");
	t_shared->checks = 0;
	t_shared->failed = 0;
	for (size_t i = 0; i < ARRAY_LEN(t_word); i++)
		t_word[i] = 0;
	t_variant = variant;
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, &old);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		setpgid(0, 0);
		sigprocmask(SIG_SETMASK, &old, NULL);
		t->fn();
		_exit(t_shared->failed ? 1 : 0);
	}
	setpgid(pid, pid);

	end = t_now_ns() + t->limit_s * t_slow() * 1000000000ull;
	for (;;) {
		uint64_t now = t_now_ns();

		rc = waitpid(pid, &status, WNOHANG);
		if (rc == pid || now >= end)
			break;
		left.tv_sec = (end - now) / 1000000000;
		left.tv_nsec = (end - now) % 1000000000;
		sigtimedwait(&chld, NULL, &left);
	}
	kill(-pid, SIGKILL);
	if (rc != pid) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		snprintf(why, sizeof(why), "not done after %d s", t->limit_s * t_slow());
	} else if (WIFSIGNALED(status)) {
		snprintf(why, sizeof(why), "killed by signal %d", WTERMSIG(status));
	} else if (t_shared->failed) {
		snprintf(why, sizeof(why), "%d of %d checks failed", t_shared->failed, t_shared->checks);
	} else if (WEXITSTATUS(status) == 77) {
		;
	} else if (WEXITSTATUS(status)) {
		snprintf(why, sizeof(why), "exit code %d", WEXITSTATUS(status));
	} else if (!t_shared->checks) {
		snprintf(why, sizeof(why), "checked nothing");
	}
	/* Orphans of the test come to us. */
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	sigprocmask(SIG_SETMASK, &old, NULL);
	t_rmtmp();

	++*num;
	if (why[0])
		printf("not ok %d %s # %s\n", *num, name, why);
	else if (WEXITSTATUS(status) == 77)
		printf("ok %d %s # SKIP %s\n", *num, name, t_shared->skip);
	else
		printf("ok %d %s\n", *num, name);
	fflush(stdout);
}

static void t_map_shared(void)
{
	t_shared = mmap(NULL, sizeof(*t_shared), PROT_READ | PROT_WRITE, MAP_SHARED, T_FD, 0);
	if (t_shared == MAP_FAILED)
		_exit(98);
}

/* Programs set this to what all their tests need: a sysctl, a limit. */
static void (*t_setup)(void);

int main(int argc, char **argv)
{
	const char *pattern = NULL, *only = NULL;
	int opt, count = 0, num = 0;
	ssize_t n;

	n = readlink("/proc/self/exe", t_self, sizeof(t_self) - 1);
	t_self[n > 0 ? n : 0] = 0;

	if (argc > 1 && argv[1][0] == '@') {
		t_map_shared();
		for (struct t_role *r = t_roles; r; r = r->next) {
			if (!strcmp(argv[1] + 1, r->name))
				return r->fn(argc - 2, argv + 2);
		}
		return 99;
	}
	while ((opt = getopt(argc, argv, "lt:v:")) != -1) {
		switch (opt) {
		case 'l':
			for (struct t_test *t = t_tests; t; t = t->next)
				puts(t->name);
			return 0;
		case 't':
			pattern = optarg;
			break;
		case 'v':
			only = optarg;
			break;
		default:
			fprintf(stderr, "usage: %s [-l] [-t PATTERN] [-v raw|lib]\n", argv[0]);
			return 2;
		}
	}

	opt = memfd_create("t", 0);
	if (ftruncate(opt, sizeof(*t_shared)) || dup2(opt, T_FD) < 0)
		return 98;
	close(opt);
	t_map_shared();
	snprintf(t_shared->dir, sizeof(t_shared->dir), "/tmp/zlr-test-%d", getpid());
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	signal(SIGPIPE, SIG_DFL);

	for (int pass = 0; pass < 2; pass++) {
		for (struct t_test *t = t_tests; t; t = t->next) {
			if (pattern && fnmatch(pattern, t->name, FNM_EXTMATCH))
				continue;
			for (int v = T_RAW; v <= (t->both ? T_LIB : T_RAW); v++) {
				if (only && t->both && strcmp(only, v == T_LIB ? "lib" : "raw"))
					continue;
				if (!pass)
					count++;
				else
					t_run(t, v, &num);
			}
		}
		if (!pass) {
			printf("KTAP version 1\n1..%d\n", count);
			if (t_setup)
				t_setup();
		}
	}
	return 0;
}

#endif
