// SPDX-License-Identifier: GPL-2.0-or-later
/* Core dumps by a child, while the service goes on. */
#include "pol.h"

#include <elf.h>
#include <glob.h>
#include <pthread.h>
#include <sys/procfs.h>
#include <sys/ptrace.h>
#include <sys/user.h>

enum { W_RUNS, W_CORE, W_TIME, W_PID };

#define PATTERN	"/proc/sys/kernel/core_pattern"
#define MAGIC	0x5ca1ab1e0ddba11ull

static char cookie[32] = "the quick brown fox";

/* Writes to address 0x1230 with a number of ours in a register. */
static void __attribute__((noreturn)) crash_with_magic(void)
{
	strcpy(cookie, "jumps over the dog");
	__asm__ volatile("movl %1, (%0)" : : "r"(0x1230ul), "r"(1), "a"(MAGIC) : "memory");
	__builtin_unreachable();
}

/* A note of a core dump. */
static const void *note(const char *core, unsigned int type)
{
	const Elf64_Ehdr *e = (const void *)core;
	const Elf64_Phdr *ph = (const void *)(core + e->e_phoff);

	for (int i = 0; i < e->e_phnum; i++) {
		const char *p = core + ph[i].p_offset, *end = p + ph[i].p_filesz;

		if (ph[i].p_type != PT_NOTE)
			continue;
		while (p < end) {
			const Elf64_Nhdr *n = (const void *)p;
			const char *desc = p + sizeof(*n) + (n->n_namesz + 3) / 4 * 4;

			if (n->n_type == type)
				return desc;
			p = desc + (n->n_descsz + 3) / 4 * 4;
		}
	}
	return NULL;
}

/* What the core dump has at an address. */
static const void *memory(const char *core, const void *addr, size_t len)
{
	const Elf64_Ehdr *e = (const void *)core;
	const Elf64_Phdr *ph = (const void *)(core + e->e_phoff);
	uintptr_t a = (uintptr_t)addr;

	for (int i = 0; i < e->e_phnum; i++) {
		if (ph[i].p_type == PT_LOAD && a >= ph[i].p_vaddr && a + len <= ph[i].p_vaddr + ph[i].p_filesz)
			return core + ph[i].p_offset + (a - ph[i].p_vaddr);
	}
	return NULL;
}

/* A core dump of crash_with_magic(). */
static void check_core(const char *path, uintptr_t cookie_addr)
{
	const struct elf_prstatus *pr;
	const siginfo_t *si;
	struct stat st;
	char *core;
	int fd;

	fd = T_OK(open(path, O_RDONLY));
	T_OK(fstat(fd, &st));
	core = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	T_ASSERT(core != MAP_FAILED);
	T_MEMEQ(core, ELFMAG, SELFMAG);
	T_EQ(((Elf64_Ehdr *)core)->e_type, ET_CORE);
	pr = note(core, NT_PRSTATUS);
	si = note(core, NT_SIGINFO);
	T_ASSERT(pr && si);
	T_EQ(pr->pr_cursig, SIGSEGV);
	T_EQ(pr->pr_pid, (pid_t)t_word[W_CORE]);
	T_EQ(pr->pr_ppid, (pid_t)t_word[W_PID]);
	T_EQ(((const struct user_regs_struct *)pr->pr_reg)->rax, MAGIC);
	T_EQ(si->si_signo, SIGSEGV);
	T_EQ(si->si_code, SEGV_MAPERR);
	T_EQ((uintptr_t)si->si_addr, 0x1230);
	T_ASSERT(memory(core, (void *)cookie_addr, sizeof(cookie)));
	T_STREQ((const char *)memory(core, (void *)cookie_addr, sizeof(cookie)), "jumps over the dog");
	munmap(core, st.st_size);
	close(fd);
}

static void gone(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d", pid);
	for (int i = 0; !access(path, F_OK); i++) {
		T_ASSERT(i < 1000 * t_slow());
		t_sleep_ms(10);
	}
}

/* No signal, no child, no zombie. */
static void check_no_child(pid_t core)
{
	sigset_t pending;

	T_EXPECT(core > 0);
	gone(core);
	T_ERR(waitpid(-1, NULL, WNOHANG), ECHILD);
	T_ERR(waitpid(-1, NULL, __WALL), ECHILD);
	T_ERR(waitpid(core, NULL, __WALL), ECHILD);
	T_OK(sigpending(&pending));
	T_EXPECT(!sigismember(&pending, SIGCHLD));
}

ROLE(after_core)
{
	struct reg_info info = reg_info();

	T_EQ(info.generation, 2);
	T_EQ(info.signo, SIGSEGV);
	t_word[W_CORE] = info.core_pid;
	t_word[W_PID] = getpid();
	T_EQ(proc_num(getpid(), "core_pid"), info.core_pid);
	check_no_child(info.core_pid);
	t_word[W_RUNS]++;
	return 0;
}

static void block_sigchld(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

T(core_file)
{
	char path[128], pattern[160];
	uintptr_t addr = (uintptr_t)cookie;

	snprintf(pattern, sizeof(pattern), "%s", t_path(path, "core.%p"));
	T_EQ(t_put(PATTERN, pattern), 0);
	T_CHILD {
		block_sigchld();
		t_register("after_core", NULL);
		policy(RESTART_CORE, 0, 0, 0);
		crash_with_magic();
	}
	T_EQ(t_word[W_RUNS], 1);
	snprintf(pattern, sizeof(pattern), "core.%d", (int)t_word[W_CORE]);
	check_core(t_path(path, pattern), addr);
	T_EQ(t_put(PATTERN, "/tmp/zlr-core"), 0);
}

ROLE(after_no_core)
{
	T_EQ(reg_info().generation, 2);
	t_word[W_CORE] = reg_info().core_pid;
	t_word[W_RUNS]++;
	return 0;
}

T(core_of_no_size)
{
	char path[128], pattern[160];

	snprintf(pattern, sizeof(pattern), "%s", t_path(path, "none.%p"));
	T_EQ(t_put(PATTERN, pattern), 0);
	T_CHILD {
		T_OK(setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 }));
		t_register("after_no_core", NULL);
		policy(RESTART_CORE, 0, 0, 0);
		t_crash();
	}
	T_EQ(t_word[W_RUNS], 1);
	gone(t_word[W_CORE]);
	snprintf(pattern, sizeof(pattern), "none.%d", (int)t_word[W_CORE]);
	T_ERR(access(t_path(path, pattern), F_OK), ENOENT);
	T_EQ(t_put(PATTERN, "/tmp/zlr-core"), 0);
}

T(core_pipe)
{
	char path[128], pattern[200];
	uintptr_t addr = (uintptr_t)cookie;
	struct stat st;
	off_t size = -1;

	snprintf(pattern, sizeof(pattern), "|/bin/dd of=%s bs=64k status=none", t_path(path, "pipe"));
	T_EQ(t_put(PATTERN, pattern), 0);
	T_CHILD {
		block_sigchld();
		t_register("after_core", NULL);
		policy(RESTART_CORE, 0, 0, 0);
		crash_with_magic();
	}
	T_EQ(t_word[W_RUNS], 1);
	/* The handler may still be writing. */
	for (int i = 0; i < 500; i++) {
		if (!stat(path, &st) && st.st_size == size && size)
			break;
		size = stat(path, &st) ? -1 : st.st_size;
		t_sleep_ms(50);
	}
	check_core(path, addr);
	T_EQ(t_put(PATTERN, "/tmp/zlr-core"), 0);
}

/* A handler looks at the process that dumps: it is the one that has faulted, but for files, and its number. */
T(what_a_handler_sees)
{
	static const char script[] = "#!/bin/sh\n"
		"d=/proc/$1\n"
		"{ readlink $d/exe; cat $d/comm; tr '\\0' ' ' <$d/cmdline; echo; readlink $d/cwd; ls $d/fd | wc -l\n"
		"cmp $d/environ $2.environ && echo same environ; awk '/^Uid/ { print $2 }' $d/status; cat $d/cgroup; } >$2.new 2>&1\n"
		"mv $2.new $2\n"
		"exec cat >/dev/null\n";
	char path[128], out[160], pattern[300], text[4096] = "", want[4096], env[8192], cgroup[256] = "", comm[32], cmd[2048];
	int n;

	t_write_file(t_path(path, "handler"), script, strlen(script), 0755);
	snprintf(out, sizeof(out), "%s.out", path);
	snprintf(pattern, sizeof(pattern), "|%s %%P %s", path, out);
	T_EQ(t_put(PATTERN, pattern), 0);
	T_CHILD {
		T_OK(chdir(t_tmpdir()));
		n = T_OK(t_get("/proc/self/environ", env, sizeof(env)));
		snprintf(cmd, sizeof(cmd), "%s.environ", out);
		t_write_file(cmd, env, n, 0644);
		t_register("done", NULL);
		policy(RESTART_CORE, 0, 0, 0);
		t_crash();
	}
	for (int i = 0; i < 500 && t_get(out, text, sizeof(text)) <= 0; i++)
		t_sleep_ms(20);
	T_OK(t_get("/proc/self/comm", comm, sizeof(comm)));
	T_OK(t_get("/proc/self/cgroup", cgroup, sizeof(cgroup)));
	n = T_OK(t_get("/proc/self/cmdline", cmd, sizeof(cmd) - 1));
	for (int i = 0; i < n; i++)
		cmd[i] = cmd[i] ?: ' ';
	snprintf(want, sizeof(want), "%s\n%s%s\n%s\n0\nsame environ\n0\n%s", t_self, comm, cmd, t_tmpdir(), cgroup);
	T_STREQ(text, want);
	T_EQ(t_put(PATTERN, "/tmp/zlr-core"), 0);
}

ROLE(done)
{
	return 0;
}

/* ---- the service goes on while the handler takes its time ---- */

ROLE(while_dumping)
{
	struct reg_info info = reg_info();
	int fd = atoi(argv[0]);

	t_word[W_TIME] = t_now_ns();
	t_word[W_CORE] = info.core_pid;
	T_EXPECT(info.core_pid > 0);
	/* It is there, with no files, and nothing to wait for. */
	T_OK(kill(info.core_pid, 0));
	T_ERR(waitpid(-1, NULL, WNOHANG), ECHILD);
	T_EQ(waitpid(-1, NULL, WNOHANG | __WALL), 0);
	/* Closing is seen by the other end at once. */
	t_word[W_RUNS]++;
	close(fd);
	while (t_word[W_RUNS] < 2)
		t_sleep_ms(5);
	return 0;
}

T(no_waiting)
{
	char fifo[128], pattern[200], c, text[16];
	struct pollfd pfd;
	int p[2], in;
	pid_t pid;

	/* A handler that reads nothing until it is told to */
	T_OK(mkfifo(t_path(fifo, "go"), 0600));
	t_write_file(t_path(pattern, "handler"), "#!/bin/sh\nread x <$1\nexec cat >/dev/null\n", 42, 0755);
	in = T_OK(open(fifo, O_RDWR));
	snprintf(text, sizeof(text), "%s", "");
	{
		char line[400];

		snprintf(line, sizeof(line), "|%s %s", pattern, fifo);
		T_EQ(t_put(PATTERN, line), 0);
	}
	T_OK(pipe(p));
	pid = t_fork();
	if (!pid) {
		char *big = malloc(4 << 20);

		memset(big, 1, 4 << 20);
		close(p[0]);
		close(in);
		snprintf(text, sizeof(text), "%d", p[1]);
		t_register("while_dumping", text, NULL);
		policy(RESTART_CORE, 0, 0, 0);
		crash_with_magic();
	}
	close(p[1]);
	pfd = (struct pollfd){ .fd = p[0] };
	T_EQ(poll(&pfd, 1, 10000 * t_slow()), 1);
	T_EXPECT(pfd.revents & POLLHUP);
	T_EQ(read(p[0], &c, 1), 0);
	T_EQ(t_word[W_RUNS], 1);
	/* The dump is not done: the process is still there. It outlives the service, and leaves nothing. */
	T_OK(kill((pid_t)t_word[W_CORE], 0));
	/* Nobody makes a program of it. */
	T_ERR(ptrace(PTRACE_SEIZE, (pid_t)t_word[W_CORE], NULL, NULL), EPERM);
	T_ERR(ptrace(PTRACE_ATTACH, (pid_t)t_word[W_CORE], NULL, NULL), EPERM);
	t_word[W_RUNS]++;
	T_EXITED(t_wait(pid), 0);
	T_OK(kill((pid_t)t_word[W_CORE], 0));
	T_EQ(write(in, "\n", 1), 1);
	gone(t_word[W_CORE]);
	T_EQ(t_put(PATTERN, "/tmp/zlr-core"), 0);
	close(in);
}

/* ---- the next child is to be the first of another PID namespace: that is not to be the dumper ---- */

ROLE(forks)
{
	T_EQ(reg_info().core_pid, 0);
	T_CHILD
		T_EQ(getpid(), 1);
	return 0;
}

T(namespace_of_children)
{
	T_CHILD {
		t_register("forks", NULL);
		policy(RESTART_CORE, 0, 0, 0);
		T_OK(unshare(CLONE_NEWPID));
		crash_with_magic();
	}
}

/* ---- other faults ---- */

ROLE(after_abort)
{
	struct reg_info info = reg_info();

	T_EQ(info.signo, SIGABRT);
	check_no_child(info.core_pid);
	t_word[W_CORE] = info.core_pid;
	t_word[W_RUNS]++;
	return 0;
}

static void check_signal(const char *path, int sig)
{
	int fd = T_OK(open(path, O_RDONLY));
	struct stat st;
	char *core;

	T_OK(fstat(fd, &st));
	core = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	T_ASSERT(core != MAP_FAILED);
	T_EQ(((const struct elf_prstatus *)note(core, NT_PRSTATUS))->pr_cursig, sig);
	munmap(core, st.st_size);
	close(fd);
}

static void *abort_thread(void *arg)
{
	(void)arg;
	abort();
}

static void handler(int sig)
{
	t_check(false, __FILE__, __LINE__, "handler for signal %d ran in a dumper", sig);
}

T(core_of_abort_thread_and_hang)
{
	char path[128];
	pthread_t thread;

	T_EQ(t_put(PATTERN, t_path(path, "core")), 0);
	T_CHILD {
		t_register("after_abort", NULL);
		policy(RESTART_CORE, 0, 0, 0);
		abort();
	}
	check_signal(path, SIGABRT);
	T_OK(unlink(path));
	/* By a thread, with handlers and signals that keep coming to the process group */
	T_CHILD {
		pid_t other;

		T_OK(setpgid(0, 0));
		signal(SIGCHLD, SIG_DFL);
		t_handle(SIGUSR1, handler, 0);
		other = t_fork();
		if (!other) {
			signal(SIGUSR1, SIG_IGN);
			t_sleep_ms(50);
			_exit(0);
		}
		T_EQ(t_wait(other), 0);
		t_register("after_abort", NULL);
		policy(RESTART_CORE, 0, 0, 0);
		T_EQ(pthread_create(&thread, NULL, abort_thread, NULL), 0);
		for (;;)
			pause();
	}
	check_signal(path, SIGABRT);
	T_OK(unlink(path));
	T_CHILD {
		t_register("after_abort", NULL);
		/* The new generation has the same deadline, from its execution to its end */
		policy(RESTART_CORE, 0, 0, 5 * BEAT_MS * MS);
		for (;;)
			;
	}
	check_signal(path, SIGABRT);
	T_EQ(t_word[W_RUNS], 3);
	T_EQ(t_put(PATTERN, "/tmp/zlr-core"), 0);
}

/* ---- no core dump is no reason to die ---- */

ROLE(without_core)
{
	T_EQ(reg_info().generation, 2);
	T_EQ(reg_info().core_pid, 0);
	t_word[W_RUNS]++;
	return 0;
}

T(no_child)
{
	/* The policy does not ask for one. */
	T_CHILD {
		t_register("without_core", NULL);
		t_crash();
	}
	/* The process may not be dumped. */
	T_CHILD {
		t_register("without_core", NULL);
		policy(RESTART_CORE, 0, 0, 0);
		T_OK(prctl(PR_SET_DUMPABLE, 0));
		t_crash();
	}
	/* Its user has too many processes. */
	T_CHILD {
		T_OK(setrlimit(RLIMIT_NPROC, &(struct rlimit){ 1, 1 }));
		t_drop_root();
		t_register("without_core", NULL);
		policy(RESTART_CORE, 0, 0, 0);
		t_crash();
	}
	/* An exit is no signal. */
	T_CHILD {
		t_register("without_core", NULL);
		policy(RESTART_CORE | RESTART_ON_EXIT, 0, 0, 0);
		_exit(1);
	}
	T_EQ(t_word[W_RUNS], 4);
}

/* The last one, at the limit, is the process's own, with its own pid. */
ROLE(core_again)
{
	t_word[W_CORE] = reg_info().core_pid;
	gone(t_word[W_CORE]);
	t_crash();
}

T(core_at_the_limit)
{
	char path[128], name[32];
	int status;
	pid_t pid;

	T_EQ(t_put(PATTERN, t_path(path, "core.%p")), 0);
	pid = t_fork();
	if (!pid) {
		t_register("core_again", NULL);
		policy(RESTART_CORE | RESTART_LIMIT, 1, 600000, 0);
		t_crash();
	}
	status = t_wait(pid);
	T_KILLED(status, SIGSEGV);
	T_EXPECT(WCOREDUMP(status));
	snprintf(name, sizeof(name), "core.%d", pid);
	check_signal(t_path(path, name), SIGSEGV);
	snprintf(name, sizeof(name), "core.%d", (int)t_word[W_CORE]);
	check_signal(t_path(path, name), SIGSEGV);
	T_EQ(t_put(PATTERN, "/tmp/zlr-core"), 0);
}

ROLE(core_in_namespace)
{
	struct reg_info info = reg_info();

	T_EQ(getpid(), 1);
	T_EXPECT(info.core_pid > 1 && info.core_pid < 100);
	gone(1000000 + info.core_pid);	/* not in this /proc */
	while (waitpid(-1, NULL, __WALL) > 0)
		;
	T_EQ(errno, ECHILD);
	t_word[W_RUNS]++;
	return 0;
}

T(core_of_init)
{
	char path[128];

	T_EQ(t_put(PATTERN, t_path(path, "core")), 0);
	T_CHILD {
		pid_t pid;

		T_OK(unshare(CLONE_NEWPID));
		pid = T_OK(fork());
		if (!pid) {
			t_register("core_in_namespace", NULL);
			policy(RESTART_CORE, 0, 0, 0);
			t_crash();
		}
		T_EXITED(t_wait(pid), 0);
	}
	T_EQ(t_word[W_RUNS], 1);
	check_signal(path, SIGSEGV);
	T_EQ(t_put(PATTERN, "/tmp/zlr-core"), 0);
}

ROLE(restarted_once)
{
	struct reg_info info = reg_info();

	T_EQ(info.generation, 2);
	T_EQ(info.restarts, 1);
	gone(info.core_pid);
	t_word[W_RUNS]++;
	return 0;
}

static pthread_barrier_t all_there;

static void *crashes_with_others(void *unused)
{
	pthread_barrier_wait(&all_there);
	t_crash();
	return unused;
}

/* Threads that fault while another one's memory is dumped have one restart together, and one core dump. */
T_LIMIT(threads_at_once, 60)
{
	const int rounds = 10;
	char path[128];
	glob_t cores;

	T_EQ(t_put(PATTERN, t_path(path, "core.%p")), 0);
	for (int i = 1; i <= rounds; i++) {
		T_CHILD {
			pthread_t thread[4];

			t_register("restarted_once", NULL);
			policy(RESTART_CORE | RESTART_LIMIT, 1, 600000, 0);
			pthread_barrier_init(&all_there, NULL, ARRAY_LEN(thread));
			for (size_t k = 0; k < ARRAY_LEN(thread); k++)
				T_ASSERT(!pthread_create(&thread[k], NULL, crashes_with_others, NULL));
			for (;;)
				pause();
		}
		T_EQ(glob(t_path(path, "core.*"), 0, NULL, &cores), 0);
		T_EQ(cores.gl_pathc, (size_t)i);
		globfree(&cores);
	}
	T_EQ(t_word[W_RUNS], rounds);
	T_EQ(t_put(PATTERN, "/tmp/zlr-core"), 0);
}
