// SPDX-License-Identifier: GPL-2.0-or-later
/* Programs that can be executed and programs that cannot, the transient rule, long chains of generations. */
#include "gen.h"

#include <elf.h>
#include <sys/mount.h>

#define CORE	"/tmp/zlr-core"

/* The fault takes its normal course: this signal, and a core dump. */
static void expect_normal_death(pid_t pid, int sig)
{
	siginfo_t info = { 0 };
	struct stat st;

	T_OK(waitid(P_PID, pid, &info, WEXITED));
	T_EQ(info.si_code, CLD_DUMPED);
	T_EQ(info.si_status, sig);
	T_EQ(stat(CORE, &st), 0);
	T_EXPECT(st.st_size > 4096);
	unlink(CORE);
}

static void allow_core(void)
{
	T_OK(setrlimit(RLIMIT_CORE, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY }));
	/* Small: 9p is slow, and what is in it does not matter. */
	T_OK(t_put("/proc/self/coredump_filter", "0x10"));
}

static char *target(char *buf, const char *how)
{
	char *slash;

	snprintf(buf, PATH_MAX, "%s", t_self);
	slash = strrchr(buf, '/');
	snprintf(slash, PATH_MAX - (slash - buf), "/restart-target-%s", how);
	return buf;
}

/* Registers `path`, does something to it, and faults. */
static pid_t start(const char *path, void (*spoil)(const char *path), int sig)
{
	pid_t pid = t_fork();

	if (pid)
		return pid;
	allow_core();
	T_ASSERT(!x_reregist(path, (char *[]){ "target", "@must_not_run", "x", NULL }, environ, 0));
	if (spoil)
		spoil(path);
	if (sig == SIGSEGV)
		t_crash();
	if (sig == SIGABRT)
		abort();
	raise(sig);
	_exit(9);
}

T(linked_in_every_way)
{
	static const char *const how[] = { "pie", "nopie", "static", "staticpie" };
	char from[PATH_MAX], to[PATH_MAX];

	for (size_t i = 0; i < ARRAY_LEN(how); i++) {
		t_context = how[i];
		target(from, how[i]);
		T_EXITED(t_wait(start(from, NULL, SIGSEGV)), 42);
		t_copy(from, t_path(to, how[i]), 0755);
		T_EXITED(t_wait(start(to, NULL, SIGABRT)), 42);
	}
}

#ifdef __x86_64__
/* From 64 to 32 bits, within these, and back */
T(thirty_two_bits)
{
	static const char *const to[] = { "32", "static" };
	char path[PATH_MAX], next[PATH_MAX];
	pid_t pid;

	target(path, "32");
	T_EXITED(t_wait(start(path, NULL, SIGSEGV)), 42);
	for (size_t i = 0; i < ARRAY_LEN(to); i++) {
		t_context = to[i];
		pid = t_fork();
		if (!pid)
			execl(path, path, "first", target(next, to[i]), NULL);
		T_EXITED(t_wait(pid), 42);
	}
}
#endif

/* ---- what keeps a program from being executed ---- */

static void remove_it(const char *path)
{
	T_OK(unlink(path));
}

static void no_x(const char *path)
{
	T_OK(chmod(path, 0644));
}

static void make_directory(const char *path)
{
	T_OK(unlink(path));
	T_OK(mkdir(path, 0755));
}

static void rewrite(const char *path, const void *text, size_t n)
{
	T_OK(unlink(path));
	t_write_file(path, text, n, 0755);
}

static void make_empty(const char *path)
{
	rewrite(path, "", 0);
}

static void make_text(const char *path)
{
	rewrite(path, "hello, world\n", 13);
}

static void make_binary(const char *path)
{
	rewrite(path, "\0\1\2\3", 4);
}

static void make_script(const char *path)
{
	rewrite(path, "#!/nowhere\n", 11);
}

static void make_bad_script(const char *path)
{
	rewrite(path, "#!\n", 3);
}

static void make_script_of_itself(const char *path)
{
	char text[PATH_MAX + 8];

	snprintf(text, sizeof(text), "#!%s\n", path);
	rewrite(path, text, strlen(text));
}

static void keep_open(const char *path)
{
	T_OK(open(path, O_WRONLY));
}

static void loop(const char *path)
{
	T_OK(unlink(path));
	T_OK(symlink(path, path));
}

/* Changes the program's ELF header, or the path of its interpreter. */
static void patch(const char *path, int what)
{
	static char file[1 << 20];
	int n = t_get(path, file, sizeof(file));
	Elf64_Ehdr *head = (void *)file;
	Elf64_Phdr *seg = (void *)(file + head->e_phoff);

	T_ASSERT(n > 4096);
	switch (what) {
	case 0:
#ifdef __aarch64__
		head->e_machine = EM_X86_64;
#else
		head->e_machine = EM_AARCH64;
#endif
		break;
	case 1:
		head->e_type = ET_REL;
		break;
	case 2:
		head->e_phentsize = 1;
		break;
	default:
		for (int i = 0; i < head->e_phnum; i++) {
			if (seg[i].p_type == PT_INTERP)
				memcpy(file + seg[i].p_offset, what == 3 ? "/nowhere" : "/dev/zer", 8);
		}
	}
	rewrite(path, file, n);
}

static void other_machine(const char *path)
{
	patch(path, 0);
}

static void not_executable_type(const char *path)
{
	patch(path, 1);
}

static void bad_headers(const char *path)
{
	patch(path, 2);
}

static void no_interpreter(const char *path)
{
	patch(path, 3);
}

static void bad_interpreter(const char *path)
{
	patch(path, 4);
}

static const struct {
	const char *name;
	void (*spoil)(const char *path);
} spoilers[] = {
	{ "removed", remove_it },
	{ "no x bit", no_x },
	{ "a directory", make_directory },
	{ "empty", make_empty },
	{ "text", make_text },
	{ "no known format", make_binary },
	{ "script, no interpreter", make_script },
	{ "script, no name", make_bad_script },
	{ "script of itself", make_script_of_itself },
	{ "open for writing", keep_open },
	{ "symbolic link to itself", loop },
	{ "other machine", other_machine },
	{ "relocatable", not_executable_type },
	{ "bad headers", bad_headers },
	{ "no interpreter", no_interpreter },
	{ "bad interpreter", bad_interpreter },
};

T_LIMIT(cannot_be_executed, 60)
{
	static const int sigs[] = { SIGSEGV, SIGABRT, SIGTRAP };
	char from[PATH_MAX], path[PATH_MAX];

	target(from, "pie");
	for (size_t i = 0; i < ARRAY_LEN(spoilers); i++) {
		t_context = spoilers[i].name;
		t_copy(from, t_path(path, "program"), 0755);
		expect_normal_death(start(path, spoilers[i].spoil, sigs[i % 3]), sigs[i % 3]);
		if (rmdir(path))
			unlink(path);
	}
}

/* ---- what the process could execute when it registered, and no longer can ---- */

static void not_from_there(const char *path T_UNUSED)
{
	T_OK(mount("none", t_tmpdir(), NULL, MS_REMOUNT | MS_NOEXEC, "mode=755"));
}

static void leave_root(const char *path T_UNUSED)
{
	t_drop_root();
}

T(no_longer_allowed)
{
	static const struct {
		const char *name;
		mode_t mode;
		void (*spoil)(const char *path);
		bool lives;
	} cases[] = {
		{ "mounted noexec", 0755, not_from_there, false },
		{ "for root only", 0700, leave_root, false },
		{ "for all", 0755, leave_root, true },
	};
	char from[PATH_MAX], path[PATH_MAX];
	int status;

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		t_context = cases[i].name;
		T_OK(mount("none", t_tmpdir(), "tmpfs", 0, "mode=755"));
		t_copy(target(from, "static"), t_path(path, "program"), cases[i].mode);
		status = t_wait(start(path, cases[i].spoil, SIGSEGV));
		if (cases[i].lives)
			T_EXITED(status, 42);
		else
			T_KILLED(status, SIGSEGV);
		T_OK(umount(t_tmpdir()));
		unlink(CORE);
	}
}

/* Only the exec itself finds this out, when the old image has gone: it dies, and there is no loop. */
static void truncate_it(const char *path)
{
	static char file[1 << 20];
	int n = t_get(path, file, sizeof(file));

	T_ASSERT(n > 4096);
	rewrite(path, file, 1000);
}

T(breaks_while_executed)
{
	char from[PATH_MAX], path[PATH_MAX];
	int status;

	target(from, "static");
	t_copy(from, t_path(path, "program"), 0755);
	status = t_wait(start(path, truncate_it, SIGABRT));
	T_EXPECT(WIFSIGNALED(status));
	unlink(CORE);
}

static void go_down(const char *path T_UNUSED)
{
	T_OK(chdir("d"));
}

T(exec_of_the_moment)
{
	char one[PATH_MAX], two[PATH_MAX], here[PATH_MAX];

	/* A relative path is looked up from the working directory of the moment. */
	t_copy("/bin/false", t_path(here, "prog"), 0755);
	snprintf(one, sizeof(one), "%.4000s/d", t_tmpdir());
	T_OK(mkdir(one, 0755));
	snprintf(two, sizeof(two), "%.4000s/d/prog", t_tmpdir());
	t_copy(target((char[PATH_MAX]){ 0 }, "static"), two, 0755);
	T_OK(chdir(t_tmpdir()));
	T_EXITED(t_wait(start("./prog", NULL, SIGSEGV)), 1);
	T_EXITED(t_wait(start("prog", go_down, SIGSEGV)), 42);
}

/* ---- scripts ---- */

T(script)
{
	char path[PATH_MAX], out[PATH_MAX], text[2 * PATH_MAX], want[2 * PATH_MAX];
	pid_t pid;

	t_path(out, "out");
	snprintf(text, sizeof(text), "#!/bin/sh\necho \"$$ $0 $*\" > %s\nexit 7\n", out);
	t_write_file(t_path(path, "script"), text, strlen(text), 0755);
	pid = start(path, NULL, SIGSEGV);
	T_EXITED(t_wait(pid), 7);
	snprintf(want, sizeof(want), "%d %s @must_not_run x\n", pid, path);
	T_OK(t_get(out, text, sizeof(text)));
	T_STREQ(text, want);
}

/* ---- set-user-ID programs: what execve(2) does ---- */

ROLE(ids)
{
	t_word[atoi(argv[0])] = (uint64_t)getuid() << 32 | geteuid();
	t_word[2] += prctl(PR_GET_DUMPABLE) == 1;
	return 0;
}

T(set_user_id)
{
	char path[PATH_MAX];

	/* /tmp may be mounted nosuid. */
	T_OK(mount("none", t_tmpdir(), "tmpfs", 0, "mode=755"));
	t_copy_privileged(path, "suid", 06755);
	for (int restart = 0; restart < 2; restart++) {
		T_CHILD {
			t_drop_root();
			if (!restart)
				execl(path, "prog", "@ids", "0", NULL);
			T_EQ(x_reregist(path, (char *[]){ "prog", "@ids", "1", NULL }, environ, 0), 0);
			t_crash();
		}
	}
	T_EQ(t_word[0], (uint64_t)T_NOBODY << 32 | T_OTHER);
	T_EQ(t_word[1], t_word[0]);
	T_OK(umount(t_tmpdir()));
}

/* ---- the transient rule ---- */

ROLE(faults_again)
{
	uint64_t gen = t_generation();

	t_word[0] = gen;
	if ((int)gen == atoi(argv[0]))
		return 0;
	t_sleep_ms(atoi(argv[1]));
	t_crash();
}

static pid_t faults_until(const char *gen, const char *ms)
{
	pid_t pid = t_fork();

	if (!pid) {
		allow_core();
		t_register("faults_again", gen, ms, NULL);
		t_crash();
	}
	return pid;
}

T(soon_is_not_transient)
{
	T_OK(t_sysctl("min_interval_ms", 60000));
	expect_normal_death(faults_until("3", "0"), SIGSEGV);
	T_EQ(t_word[0], 2);
	T_OK(t_sysctl("min_interval_ms", INT_MAX));
	expect_normal_death(faults_until("3", "0"), SIGSEGV);
	T_EQ(t_word[0], 2);
	T_OK(t_sysctl("min_interval_ms", 10000));
	expect_normal_death(faults_until("3", "100"), SIGSEGV);
	T_EQ(t_word[0], 2);
	T_OK(t_sysctl("min_interval_ms", 200));
	T_EXITED(t_wait(faults_until("3", "250")), 0);
	T_EQ(t_word[0], 3);
	T_OK(t_sysctl("min_interval_ms", 0));
	T_EXITED(t_wait(faults_until("10", "0")), 0);
	T_EQ(t_word[0], 10);
}

ROLE(registers_again)
{
	struct reg_info info;

	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.generation, 2);
	if (argv[0][0] == 'c')
		T_EQ(x_unregister(), 0);
	t_register("must_not_run", NULL);
	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.generation, 2);
	T_EQ(info.is_restarted, 1);
	T_EQ(info.restarts, 1);
	t_crash();
}

T(registering_again_does_not_help)
{
	static const char *const how[] = { "replace", "clear" };

	T_OK(t_sysctl("min_interval_ms", 60000));
	for (int i = 0; i < 2; i++) {
		pid_t pid = t_fork();

		t_context = how[i];
		if (!pid) {
			t_register("registers_again", how[i], NULL);
			t_crash();
		}
		T_KILLED(t_wait(pid), SIGSEGV);
	}
	T_OK(t_sysctl("min_interval_ms", 0));
}

/* ---- 50 generations ---- */

ROLE(next)
{
	static const int sigs[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP };
	struct reg_info info;
	char path[PATH_MAX];

	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.generation, t_word[0] + 1);
	T_EQ(info.restarts, t_word[0]);
	T_EQ(info.child_id, 77 + t_word[0] / 10);
	T_EXPECT(info.fault_time_ns > t_word[1]);
	T_EQ(info.signo, t_word[2]);
	T_EQ(getpid(), t_word[3]);
	T_EQ(x_regpath(path, sizeof(path)), strlen(t_self) + 1);
	t_word[0] = info.generation;
	if (info.generation == 50)
		return 0;
	t_word[1] = t_now_ns();
	t_word[2] = sigs[info.generation % ARRAY_LEN(sigs)];
	/* Registered once more here and there: generation and restarts go on. */
	if (info.generation % 10 == 0)
		T_EQ(x_reregist(t_self, (char *[]){ "prog", "@next", NULL }, environ, info.child_id + 1), 0);
	raise(t_word[2]);
	return 9;
}

T_LIMIT(fifty_generations, 60)
{
	T_CHILD {
		t_word[0] = 1;
		t_word[2] = SIGSEGV;
		t_word[3] = getpid();
		T_EQ(x_reregist(t_self, (char *[]){ "prog", "@next", NULL }, environ, 77), 0);
		raise(SIGSEGV);
	}
	T_EQ(t_word[0], 50);
}
