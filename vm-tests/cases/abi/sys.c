// SPDX-License-Identifier: GPL-2.0-or-later
/* What surrounds the calls: sysctls, the switch, seccomp filters, other users, 32-bit callers. */
#include "../lib/seccomp.h"
#include "../lib/t.h"

#include <elf.h>

static char *args[] = { "prog", NULL };

T(sysctl_defaults)
{
	T_EQ(t_sysctl_get("enabled"), 1);
	T_EQ(t_sysctl_get("min_interval_ms"), 60000);
	T_EQ(t_sysctl_get("held_bytes_max"), 1048576);
}

T(sysctl_bounds)
{
	static const struct {
		const char *name, *good[5], *bad[10];
	} ctl[] = {
		{ "enabled", { "0", "1", "1\n", "0" }, { "2", "-1", "65536", "4294967297", "x", "1x", "0.5" } },
		{ "min_interval_ms", { "0", "1", "60000", "2147483647" },
		  { "-1", "-2147483648", "99999999999999999999", "x", "5s", "1.5" } },
		{ "held_bytes_max", { "4096", "4097", "1048576", "1073741824" },
		  { "4095", "0", "-1", "1073741825", "4294971392", "18446744073709555712", "x", "1M" } },
	};
	char path[64], before[32], after[32];

	for (size_t c = 0; c < ARRAY_LEN(ctl); c++) {
		snprintf(path, sizeof(path), T_SYSCTL "%s", ctl[c].name);
		for (const char *const *good = ctl[c].good; *good; good++) {
			t_context = *good;
			T_EQ(t_put(path, *good), 0);
			T_EQ(t_sysctl_get(ctl[c].name), atol(*good));
			T_OK(t_get(path, before, sizeof(before)));
			for (const char *const *bad = ctl[c].bad; *bad; bad++) {
				t_context = *bad;
				T_ERR(t_put(path, *bad), EINVAL);
				T_OK(t_get(path, after, sizeof(after)));
				T_STREQ(after, before);
			}
		}
		t_context = NULL;
	}
	t_sysctl("enabled", 1);
	t_sysctl("min_interval_ms", 60000);
	t_sysctl("held_bytes_max", 1048576);
}

T(sysctl_permissions)
{
	static const char *const names[] = { "enabled", "min_interval_ms", "held_bytes_max", "cap_burst", "cap_interval_ms" };
	struct stat st;
	char path[64];

	t_drop_root();
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		snprintf(path, sizeof(path), T_SYSCTL "%s", names[i]);
		T_OK(stat(path, &st));
		T_EQ(st.st_mode & 07777, 0644);
		T_ERR(t_put(path, "4096"), EACCES);
		T_EXPECT(t_sysctl_get(names[i]) >= 0);
	}
}

/* Every call of the interface, arguments good. */
static void all_calls(int err)
{
	struct reg_info info;
	struct restart_policy policy = {};
	struct io_log log;
	char buf[8] = "";
	int p[2], fd;

	T_OK(pipe(p));
	fd = T_OK(open(t_self, O_RDONLY));
	T_ASSERT(write(p[1], "abc", 3) == 3);
#define CALL(c, val) do { \
	if (err) \
		T_ERR(c, err); \
	else \
		T_EQ(c, val); \
} while (0)
	CALL(x_reregist(t_self, args, NULL, 1), 0);
	CALL(x_getreginfo(&info), 1);
	CALL(x_regpath(t_edge(PATH_MAX), PATH_MAX), strlen(t_self) + 1);
	CALL(x_setpolicy(&policy), 0);
	CALL(x_getpolicy(&policy), 0);
	CALL(x_heartbeat(), 0);
	CALL(x_unregister(), 0);
	CALL(x_getreginfo(&info), 0);
	CALL(x_hread(p[0], buf, 2, 1), 2);
	CALL(x_hread_nowait(p[0], buf, 2, 1), 1);
	CALL(x_lwrite(p[1], "d", 1), 1);
	CALL(x_lwrite(p[1], "d", 0), 0);
	CALL(x_lsendfile(p[1], fd, NULL, 1), 1);
	CALL(x_getiolog(p[0], &log), 0);
	CALL(perdure_abi_version() >= 1 ? 1 : perdure_abi_version(), 1);
#undef CALL
	close(p[0]);
	close(p[1]);
	close(fd);
}

TV(switched_off)
{
	struct reg_info info;

	T_EQ(x_reregist(t_self, args, NULL, 5), 0);
	T_OK(t_sysctl("enabled", 0));
	all_calls(EOPNOTSUPP);
	/* Ahead of every other check. */
	T_ERR(syscall(NR_reregist, NULL, NULL, NULL, 0, ~0u), EOPNOTSUPP);
	T_ERR(syscall(NR_getreginfo, NULL, 0, ~0u), EOPNOTSUPP);
	T_ERR(syscall(NR_getreginfo, NULL, 0, GETREGINFO_VERSION), EOPNOTSUPP);
	T_ERR(syscall(NR_hread, -1, NULL, 0, 0, ~0u), EOPNOTSUPP);
	T_ERR(syscall(NR_hread, -1, NULL, 0, 0, 0), EOPNOTSUPP);
	T_ERR(syscall(NR_lwrite, -1, NULL, 0, ~0u), EOPNOTSUPP);
	T_ERR(syscall(NR_lsendfile, -1, -1, NULL, 0, ~0u), EOPNOTSUPP);
	T_ERR(syscall(NR_getiolog, -1, NULL, 0, ~0u), EOPNOTSUPP);
	T_ERR(syscall(NR_restartctl, ~0u, NULL, 0, ~0u), EOPNOTSUPP);
	T_OK(t_sysctl("enabled", 1));
	/* The registration stays. */
	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.child_id, 5);
	all_calls(0);
}

ROLE(must_not_run)
{
	t_check(false, __FILE__, __LINE__, "restarted");
	return 0;
}

T(switched_off_faults_kill)
{
	pid_t pid = t_fork();

	if (!pid) {
		t_register("must_not_run", NULL);
		T_OK(t_sysctl("enabled", 0));
		t_crash();
	}
	T_KILLED(t_wait(pid), SIGSEGV);
	T_OK(t_sysctl("enabled", 1));
}

TV(seccomp)
{
	T_CHILD {
		answer_calls(EPERM);
		all_calls(EPERM);
	}
	T_CHILD {
		answer_calls(ENOSYS);
		all_calls(ENOSYS);
	}
	all_calls(0);
}

TV(any_user)
{
	T_CHILD {
		t_drop_root();
		all_calls(0);
	}
	T_CHILD {
		T_OK(unshare(CLONE_NEWUSER));
		all_calls(0);
	}
}

ROLE(compat_new)
{
	T_EQ(t_generation(), 2);
	T_STREQ(environ[0], "A=1");
	T_EXPECT(!environ[1]);
	return 0;
}

/* ---- 32-bit calls ---- */

#ifdef __x86_64__

/* Made by 64-bit code: pointers must lie below 4 GiB. */

static long int80(long nr, long a, long b, long c, long d, long e)
{
	long ret = nr;

	__asm__ volatile("int $0x80" : "+a"(ret) : "b"(a), "c"(b), "d"(c), "S"(d), "D"(e)
		     : "memory", "cc", "r8", "r9", "r10", "r11");
	if ((int)ret < 0 && (int)ret > -4096) {
		errno = -(int)ret;
		return -1;
	}
	return (int)ret;
}

#define P32(p)	((long)(p))

static char *low;	/* 8 pages below 4 GiB, and one behind them that is not there */

static void need_ia32(void)
{
	/* Without 32-bit support int 0x80 is a general protection fault: find out in a child. */
	pid_t pid = t_fork();
	int status;

	if (!pid)
		_exit(int80(20, 0, 0, 0, 0, 0) == getpid() ? 0 : 1);
	status = t_wait(pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		t_skip("no 32-bit system calls in this kernel");
	low = mmap(NULL, 9 * t_page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	T_ASSERT(low != MAP_FAILED);
	T_OK(mprotect(low + 8 * t_page(), t_page(), PROT_NONE));
}

T(compat_registration)
{
	struct reg_info *info;
	uint32_t *list, *edge;
	char *path, *strings;
	char out[PATH_MAX];

	need_ia32();
	path = low;
	strcpy(path, t_self);
	strings = low + t_page();
	strcpy(strings, "prog");
	strcpy(strings + 8, "@compat_new");
	strcpy(strings + 24, "A=1");
	list = (uint32_t *)(low + 2 * t_page());
	list[0] = P32(strings);
	list[1] = P32(strings + 8);
	list[2] = 0;
	list[4] = P32(strings + 24);
	list[5] = 0;
	T_EQ(int80(NR_reregist, P32(path), P32(list), P32(list + 4), -5, 0), 0);
	info = (void *)(low + 3 * t_page());
	T_EQ(int80(NR_getreginfo, P32(info), sizeof(*info), 0, 0, 0), 1);
	T_EQ(info->child_id, -5);
	T_EQ(info->generation, 1);
	T_EQ(x_regpath(out, sizeof(out)), strlen(t_self) + 1);
	T_EQ(int80(NR_getreginfo, 0, 0, GETREGINFO_VERSION, 0, 0), perdure_abi_version());

	T_ERR(int80(NR_reregist, 0, P32(list), 0, 0, 0), EFAULT);
	T_ERR(int80(NR_reregist, P32(path), 0, 0, 0, 0), EFAULT);
	T_ERR(int80(NR_reregist, P32(path), P32(low + 8 * t_page()), 0, 0, 0), EFAULT);
	T_ERR(int80(NR_reregist, P32(path), P32(list), P32(low + 8 * t_page()), 0, 0), EFAULT);
	T_ERR(int80(NR_reregist, P32(path), P32(list + 2), 0, 0, 0), EINVAL);
	T_ERR(int80(NR_reregist, P32(path), P32(list), 0, 0, 2), EINVAL);
	T_ERR(int80(NR_getreginfo, P32(info), 87, 0, 0, 0), EINVAL);
	T_ERR(int80(NR_getreginfo, P32(info), -1, 0, 0, 0), E2BIG);
	T_ERR(int80(NR_getreginfo, P32(low + 8 * t_page()), 88, 0, 0, 0), EFAULT);
	/* Pointers are 4 bytes: a list that ends with its page. */
	edge = (uint32_t *)(low + 8 * t_page()) - 2;
	edge[0] = P32(strings);
	edge[1] = P32(strings);
	T_ERR(int80(NR_reregist, P32(path), P32(edge), 0, 0, 0), EFAULT);
	edge[1] = 0xffffffff;
	T_ERR(int80(NR_reregist, P32(path), P32(edge), 0, 0, 0), EFAULT);
	edge[1] = 0;
	T_EQ(int80(NR_reregist, P32(path), P32(edge), 0, 0, 0), 0);
	T_EQ(int80(NR_reregist, 0, 0, 0, 0, REREGIST_CLEAR), 0);
	T_ERR(int80(NR_reregist, 0, 0, 0, 0, REREGIST_CLEAR), ENOENT);
}

/* Of the filters, those for 32-bit calls count. */
T(compat_confined)
{
	uint32_t *list;

	need_ia32();
	strcpy(low, t_self);
	list = (uint32_t *)(low + t_page());
	list[0] = P32(low);
	list[1] = 0;
	T_CHILD {
		answer_call(NATIVE, SYS_execve, SECCOMP_RET_ERRNO | EACCES);
		T_EQ(int80(NR_reregist, P32(low), P32(list), 0, 0, 0), 0);
	}
	T_CHILD {
		answer_call(AUDIT_ARCH_I386, 11, SECCOMP_RET_ERRNO | EACCES);
		T_ERR(int80(NR_reregist, P32(low), P32(list), 0, 0, 0), EPERM);
	}
}

T(compat_restart)
{
	uint32_t *list;

	need_ia32();
	T_OK(t_sysctl("min_interval_ms", 0));
	strcpy(low, t_self);
	strcpy(low + t_page(), "@compat_new");
	strcpy(low + t_page() + 16, "A=1");
	list = (uint32_t *)(low + 2 * t_page());
	list[0] = P32(low);
	list[1] = P32(low + t_page());
	list[2] = 0;
	list[4] = P32(low + t_page() + 16);
	list[5] = 0;
	T_CHILD {
		T_EQ(int80(NR_reregist, P32(low), P32(list), P32(list + 4), 0, 0), 0);
		t_crash();
	}
	T_OK(t_sysctl("min_interval_ms", 60000));
}

T(compat_io)
{
	struct io_log *log;
	int64_t *off;
	int p[2], fd, nowhere;

	need_ia32();
	nowhere = P32(low + 8 * t_page());
	T_OK(pipe(p));
	fd = T_OK(open(t_self, O_RDONLY));
	log = (void *)(low + t_page());
	off = (void *)(low + 2 * t_page());
	strcpy(low, "abcdef");
	T_EQ(int80(NR_lwrite, p[1], P32(low), 6, 0, 0), 6);
	memset(low, 0, 16);
	T_EQ(int80(NR_hread, p[0], P32(low), 4, 1, 0), 4);
	T_MEMEQ(low, "abcd", 5);
	T_EQ(int80(NR_hread, p[0], P32(low), 8, 0, HREAD_NOWAIT), 2);
	T_MEMEQ(low, "efcd", 5);
	T_EQ(int80(NR_getiolog, p[0], P32(log), sizeof(*log), 0, 0), 0);
	T_EQ(log->read, 6);
	T_EQ(log->held, 5);
	T_ERR(int80(NR_hread, p[0], P32(low), 8, -1, 0), EINVAL);
	T_ERR(int80(NR_hread, p[0], P32(low), 8, 0, 2), EINVAL);
	T_ERR(int80(NR_hread, -1, P32(low), 8, 0, 0), EBADF);
	T_EQ(int80(NR_lwrite, p[1], P32(low), 2, 0, 0), 2);
	T_ERR(int80(NR_hread, p[0], nowhere, 8, 0, 0), EFAULT);
	T_EQ(int80(NR_hread, p[0], P32(low), 8, 7, 0), 2);
	T_ERR(int80(NR_lwrite, p[1], nowhere, 2, 0, 0), EFAULT);
	T_ERR(int80(NR_getiolog, p[1], nowhere, sizeof(*log), 0, 0), EFAULT);
	T_ERR(int80(NR_getiolog, p[1], P32(log), 39, 0, 0), EINVAL);

	/* The offset has 64 bits for 32-bit programs too. */
	*off = 1;
	T_EQ(int80(NR_lsendfile, p[1], fd, P32(off), 3, 0), 3);
	T_EQ(*off, 4);
	T_EQ(read(p[0], low, 8), 3);
	T_MEMEQ(low, "ELF", 3);
	*off = 1ll << 32;
	T_EQ(int80(NR_lsendfile, p[1], fd, P32(off), 3, 0), 0);
	T_EQ(*off, 1ll << 32);
	T_ERR(int80(NR_lsendfile, p[1], fd, nowhere, 3, 0), EFAULT);
	T_EQ(int80(NR_lsendfile, p[1], fd, 0, 4, 0), 4);
	T_EQ(int80(NR_getiolog, p[1], P32(log), sizeof(*log), 0, 0), 0);
	T_EQ(log->written, 6 + 2 + 3 + 4);
}

#else /* arm64 */

/*
 * No 64-bit code can make a 32-bit call there, so a program is written that does: A32 instructions that leave with
 * the number of the first call whose result is wrong.
 */
#define PROG_AT		0x8000		/* MOVW loads any address of it */

static struct prog {
	Elf32_Ehdr ehdr;
	Elf32_Phdr phdr;
	uint32_t code[512];
	uint32_t argv[3], envp[2], fds[2];
	int64_t off;
	char info[88], buf[16], log[64], path[PATH_MAX], arg[16], env[8], text[16];
} prog;

static int code_len;

static uint32_t at(const void *p)
{
	return PROG_AT + (uint32_t)((const char *)p - (const char *)&prog);
}

static void emit(uint32_t insn)
{
	T_ASSERT(code_len < (int)ARRAY_LEN(prog.code));
	prog.code[code_len++] = insn;
}

static void movw(int reg, uint32_t val)
{
	T_ASSERT(val <= 0xffff);
	emit(0xe3000000 | (val >> 12) << 16 | reg << 12 | (val & 0xfff));
}

static void result(int want)
{
	static int count;

	emit((want < 0 ? 0xe3700000 : 0xe3500000) | abs(want));	/* cmn or cmp r0, want */
	emit(0x13a00000 | ++count);				/* movne r0, count */
	emit(0x13a07001);					/* movne r7, exit */
	emit(0x1f000000);					/* svcne 0 */
}

/* With this an argument is what is in memory there. */
#define FROM(p)		(0x80000000 | at(p))

static void call(int nr, int want, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t e)
{
	uint32_t arg[] = { a, b, c, d, e };

	for (int i = 0; i < 5; i++) {
		movw(i, arg[i] & 0x7fffffff);
		if (arg[i] & 0x80000000)
			emit(0xe5900000 | i << 16 | i << 12);	/* ldr ri, [ri] */
	}
	movw(7, nr);
	emit(0xef000000);					/* svc 0 */
	result(want);
}

static void byte(const void *p, int want)
{
	movw(0, at(p));
	emit(0xe5d00000);					/* ldrb r0, [r0] */
	result(want);
}

T(compat_calls)
{
	enum { ARM_PIPE = 42, ELF_FD = T_FD + 1 };
	char path[PATH_MAX];
	int status, fd;
	pid_t pid;

	prog.ehdr = (Elf32_Ehdr){
		.e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS32, ELFDATA2LSB, EV_CURRENT },
		.e_type = ET_EXEC, .e_machine = EM_ARM, .e_version = EV_CURRENT, .e_entry = at(prog.code),
		.e_phoff = offsetof(struct prog, phdr), .e_flags = EF_ARM_EABI_VER5, .e_ehsize = sizeof(Elf32_Ehdr),
		.e_phentsize = sizeof(Elf32_Phdr), .e_phnum = 1,
	};
	prog.phdr = (Elf32_Phdr){ .p_type = PT_LOAD, .p_vaddr = PROG_AT, .p_filesz = sizeof(prog),
				  .p_memsz = sizeof(prog), .p_flags = PF_R | PF_W | PF_X, .p_align = 4096 };
	strcpy(prog.path, t_self);
	strcpy(prog.arg, "@compat_new");
	strcpy(prog.env, "A=1");
	strcpy(prog.text, "abcdef");
	prog.argv[0] = at(prog.path);
	prog.argv[1] = at(prog.arg);
	prog.envp[0] = at(prog.env);
	prog.off = 1;

	call(NR_getreginfo, perdure_abi_version(), 0, 0, GETREGINFO_VERSION, 0, 0);
	call(NR_getreginfo, -EINVAL, at(prog.info), 87, 0, 0, 0);
	call(NR_getreginfo, 0, at(prog.info), 88, 0, 0, 0);
	call(NR_reregist, -EFAULT, 0, at(prog.argv), at(prog.envp), 0, 0);
	call(NR_reregist, -EFAULT, at(prog.path), 0, at(prog.envp), 0, 0);
	call(NR_reregist, -EINVAL, at(prog.path), at(prog.argv + 2), at(prog.envp), 0, 0);
	call(NR_reregist, -EINVAL, at(prog.path), at(prog.argv), at(prog.envp), 0, 2);
	call(NR_reregist, -ENOENT, 0, 0, 0, 0, REREGIST_CLEAR);
	call(ARM_PIPE, 0, at(prog.fds), 0, 0, 0, 0);
	call(NR_lwrite, 6, FROM(&prog.fds[1]), at(prog.text), 6, 0, 0);
	call(NR_hread, 4, FROM(&prog.fds[0]), at(prog.buf), 4, 1, 0);
	byte(prog.buf + 3, 'd');
	call(NR_hread, 2, FROM(&prog.fds[0]), at(prog.buf), 8, 0, HREAD_NOWAIT);
	byte(prog.buf + 1, 'f');
	call(NR_lsendfile, 3, FROM(&prog.fds[1]), ELF_FD, at(&prog.off), 3, 0);
	byte(&prog.off, 4);
	call(NR_hread, -EFAULT, FROM(&prog.fds[0]), 1, 8, 0, 0);
	call(NR_hread, 3, FROM(&prog.fds[0]), at(prog.buf), 8, 5, 0);
	byte(prog.buf + 2, 'F');
	call(NR_getiolog, 0, FROM(&prog.fds[0]), at(prog.log), sizeof(struct io_log), 0, 0);
	byte(prog.log + offsetof(struct io_log, read), 9);
	byte(prog.log + offsetof(struct io_log, held), 3);
	call(NR_getiolog, -EINVAL, FROM(&prog.fds[0]), at(prog.log), 39, 0, 0);
	call(NR_restartctl, -EINVAL, 999, 0, 0, 0, 0);
	call(NR_reregist, 0, at(prog.path), at(prog.argv), at(prog.envp), 5, 0);
	call(NR_getreginfo, 1, at(prog.info), 88, 0, 0, 0);
	byte(prog.info + offsetof(struct reg_info, child_id), 5);
	movw(0, 0);
	emit(0xe5800000);					/* str r0, [r0] */
	emit(0xeafffffe);					/* b . */

	t_write_file(t_path(path, "prog32"), &prog, sizeof(prog), 0755);
	fd = T_OK(open(t_self, O_RDONLY));
	T_OK(dup2(fd, ELF_FD));
	close(fd);
	T_OK(t_sysctl("min_interval_ms", 0));
	pid = t_fork();
	if (!pid) {
		execl(path, "prog32", NULL);
		_exit(errno == ENOEXEC ? 255 : 254);
	}
	status = t_wait(pid);
	T_OK(t_sysctl("min_interval_ms", 60000));
	if (WIFEXITED(status) && WEXITSTATUS(status) == 255)
		t_skip("no 32-bit programs in this kernel");
	/* The number of the call that went wrong */
	T_EXITED(status, 0);
}

#endif
