// SPDX-License-Identifier: GPL-2.0-or-later
/* reregist() and getreginfo(): every argument, flag, size and error. */
#include "../lib/cgroup.h"
#include "../lib/seccomp.h"

#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/mount.h>
#include <sys/un.h>

#define IMAGE_MAX	(128 * 1024)
#define LIST_MAX	4096

static char *args[] = { "prog", "arg", NULL };
static char *no_args[] = { NULL };

struct state {
	long reg, len;
	struct reg_info info;
	char path[PATH_MAX];
};

static void get_state(struct state *s)
{
	memset(s, 0, sizeof(*s));
	s->reg = x_getreginfo(&s->info);
	s->len = x_regpath(s->path, sizeof(s->path));
}

/* The call fails and the registration stays what it was. */
#define SAME_ERR(call, err) do { \
	struct state before, after; \
	get_state(&before); \
	T_ERR(call, err); \
	get_state(&after); \
	T_MEMEQ(&after, &before, sizeof(before)); \
} while (0)

static long raw_reregist(const void *path, const void *argv, const void *envp, int id, unsigned int flags)
{
	return syscall(NR_reregist, path, argv, envp, id, flags);
}

TV(not_registered)
{
	static const struct reg_info zero;
	struct reg_info info;
	char c = 'x';

	memset(&info, 0xa5, sizeof(info));
	T_EQ(x_getreginfo(&info), 0);
	T_MEMEQ(&info, &zero, sizeof(info));
	T_EQ(x_regpath(&c, 1), 0);
	T_EQ(c, 'x');
	SAME_ERR(x_unregister(), ENOENT);
}

TV(registered)
{
	static const int ids[] = { 7, 0, -1, INT_MIN, INT_MAX };
	struct reg_info info, want = { .generation = 1, .suspect_fd = -1 };
	char path[PATH_MAX];

	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		T_EQ(x_reregist(t_self, args, i & 1 ? environ : NULL, ids[i]), 0);
		memset(&info, 0xa5, sizeof(info));
		T_EQ(x_getreginfo(&info), 1);
		want.child_id = ids[i];
		T_MEMEQ(&info, &want, sizeof(info));
		T_EQ(x_regpath(path, sizeof(path)), strlen(t_self) + 1);
		T_STREQ(path, t_self);
	}
	T_EQ(x_reregist("/bin/sh", args, no_args, 3), 0);
	T_EQ(x_regpath(path, sizeof(path)), sizeof("/bin/sh"));
	T_STREQ(path, "/bin/sh");
	T_EQ(x_unregister(), 0);
	T_EQ(x_getreginfo(&info), 0);
	SAME_ERR(x_unregister(), ENOENT);
	T_EQ(x_reregist(t_self, args, NULL, 1), 0);
	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.generation, 1);
}

T(version)
{
	char buf[8];
	long v = syscall(NR_getreginfo, NULL, 0, GETREGINFO_VERSION);

	T_EXPECT(v >= 1);
	T_EQ(perdure_abi_version(), v);
	T_ERR(syscall(NR_getreginfo, buf, 0, GETREGINFO_VERSION), EINVAL);
	T_ERR(syscall(NR_getreginfo, NULL, 1, GETREGINFO_VERSION), EINVAL);
	T_ERR(syscall(NR_getreginfo, buf, sizeof(buf), GETREGINFO_VERSION), EINVAL);
}

T(reregist_flags)
{
	T_EQ(x_reregist(t_self, args, NULL, 5), 0);
	for (int bit = 1; bit < 32; bit++) {
		SAME_ERR(raw_reregist(NULL, NULL, NULL, 0, 1u << bit | REREGIST_CLEAR), EINVAL);
		if (1u << bit == REREGIST_EXEC)
			continue;
		SAME_ERR(raw_reregist(t_self, args, NULL, 0, 1u << bit), EINVAL);
		/* Flags come before pointers. */
		SAME_ERR(raw_reregist(T_KERNEL_PTR, T_KERNEL_PTR, NULL, 0, 1u << bit), EINVAL);
	}
}

T(clear)
{
	T_EQ(x_reregist(t_self, args, NULL, 5), 0);
	SAME_ERR(raw_reregist(t_self, NULL, NULL, 0, REREGIST_CLEAR), EINVAL);
	SAME_ERR(raw_reregist(NULL, args, NULL, 0, REREGIST_CLEAR), EINVAL);
	SAME_ERR(raw_reregist(NULL, NULL, args, 0, REREGIST_CLEAR), EINVAL);
	SAME_ERR(raw_reregist(NULL, NULL, NULL, 1, REREGIST_CLEAR), EINVAL);
	SAME_ERR(raw_reregist(T_KERNEL_PTR, NULL, NULL, 0, REREGIST_CLEAR), EINVAL);
	T_EQ(raw_reregist(NULL, NULL, NULL, 0, REREGIST_CLEAR), 0);
	SAME_ERR(raw_reregist(NULL, NULL, NULL, 0, REREGIST_CLEAR), ENOENT);
	SAME_ERR(raw_reregist(NULL, NULL, NULL, 1, REREGIST_CLEAR), EINVAL);
}

TV(path_pointer)
{
	void *bad[] = { NULL, T_KERNEL_PTR, T_NONCANON_PTR, t_gone(), t_none(), (void *)-1l };
	char *edge;

	T_EQ(x_reregist(t_self, args, NULL, 5), 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		SAME_ERR(x_reregist(bad[i], args, NULL, 0), EFAULT);
	edge = t_edge(4);
	memcpy(edge, "/bin", 4);
	SAME_ERR(x_reregist(edge, args, NULL, 0), EFAULT);
	edge = t_edge(sizeof("/bin/sh"));
	strcpy(edge, "/bin/sh");
	T_EQ(x_reregist(edge, args, NULL, 0), 0);
}

TV(list_pointers)
{
	char *bad[] = { T_KERNEL_PTR, T_NONCANON_PTR, t_gone(), t_none(), (void *)-1l };
	char **edge, *unterminated = t_edge(3), *string = t_edge(4);

	memcpy(unterminated, "abc", 3);
	strcpy(string, "abc");
	T_EQ(x_reregist(t_self, args, NULL, 5), 0);
	SAME_ERR(x_reregist(t_self, NULL, NULL, 0), EFAULT);
	for (int env = 0; env < 2; env++) {
#define LIST(p)	x_reregist(t_self, env ? args : (p), env ? (p) : NULL, 6)
		for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
			char *first[] = { bad[i], NULL }, *third[] = { "a", "b", bad[i], NULL };

			SAME_ERR(LIST((char **)bad[i]), EFAULT);
			SAME_ERR(LIST(first), EFAULT);
			SAME_ERR(LIST(third), EFAULT);
		}
		SAME_ERR(LIST(((char *[]){ "a", unterminated, NULL })), EFAULT);
		/* A list that ends with the page, without and with its NULL. */
		edge = t_edge(2 * sizeof(char *));
		edge[0] = edge[1] = "a";
		SAME_ERR(LIST(edge), EFAULT);
		edge[1] = NULL;
		T_EQ(LIST(edge), 0);
		T_EQ(LIST(((char *[]){ "", string, NULL })), 0);
		T_EQ(x_reregist(t_self, args, NULL, 5), 0);
#undef LIST
	}
	SAME_ERR(x_reregist(t_self, no_args, NULL, 0), EINVAL);
	SAME_ERR(x_reregist(t_self, no_args, args, 0), EINVAL);
}

TV(list_entries)
{
	char **list = calloc(2 * LIST_MAX + 2, sizeof(char *));

	T_EQ(x_reregist(t_self, args, NULL, 5), 0);
	for (int env = 0; env < 2; env++) {
		for (int i = 0; i < 2 * LIST_MAX; i++)
			list[i] = "x";
		SAME_ERR(x_reregist(t_self, env ? args : list, env ? list : NULL, 0), E2BIG);
		list[LIST_MAX + 1] = NULL;
		SAME_ERR(x_reregist(t_self, env ? args : list, env ? list : NULL, 0), E2BIG);
		list[LIST_MAX] = NULL;
		T_EQ(x_reregist(t_self, env ? args : list, env ? list : NULL, 5), 0);
	}
	/* Both lists full: 2 * 4096 * (8 + 2) bytes are within the limit. */
	T_EQ(x_reregist(t_self, list, list, 5), 0);
}

/* A string of `len` bytes with its NUL. */
static char *string(size_t len)
{
	char *s = malloc(len);

	T_ASSERT(s);
	memset(s, 'x', len - 1);
	s[len - 1] = 0;
	return s;
}

TV(total_size)
{
	/* Path, "a", and the pointers of both lists with their NULLs. */
	size_t fixed = strlen(t_self) + 1 + 2 + 4 * sizeof(char *);
	char *huge = string(64 << 20);

	T_EQ(x_reregist(t_self, args, NULL, 5), 0);
	for (int d = -2; d <= 2; d++) {
		char *s = string(IMAGE_MAX - fixed + d);

		if (d > 0)
			SAME_ERR(x_reregist(t_self, (char *[]){ "a", s, NULL }, no_args, 0), E2BIG);
		else
			T_EQ(x_reregist(t_self, (char *[]){ "a", s, NULL }, no_args, 5), 0);
		/* The same, with the string in the other list: one pointer moves, none is added. */
		if (d > 0)
			SAME_ERR(x_reregist(t_self, (char *[]){ "a", NULL }, (char *[]){ s, NULL }, 0), E2BIG);
		else
			T_EQ(x_reregist(t_self, (char *[]){ "a", NULL }, (char *[]){ s, NULL }, 5), 0);
		free(s);
	}
	SAME_ERR(x_reregist(t_self, (char *[]){ huge, NULL }, NULL, 0), E2BIG);
	SAME_ERR(x_reregist(t_self, args, (char *[]){ huge, huge, NULL }, 0), E2BIG);
}

TV(path_errors)
{
	char file[PATH_MAX], plain[PATH_MAX], loop[PATH_MAX], link[PATH_MAX], fifo[PATH_MAX], sock[PATH_MAX];
	char below[PATH_MAX + 8], noexec[PATH_MAX], prog[PATH_MAX + 8];
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	char *longest = string(PATH_MAX + 1), *longer = string(PATH_MAX), *name = string(300);
	int fd;

	T_EQ(x_reregist(t_self, args, NULL, 5), 0);
	SAME_ERR(x_reregist("", args, NULL, 0), ENOENT);
	SAME_ERR(x_reregist("/nowhere", args, NULL, 0), ENOENT);
	SAME_ERR(x_reregist("/nowhere/sh", args, NULL, 0), ENOENT);
	SAME_ERR(x_reregist("nowhere", args, NULL, 0), ENOENT);
	SAME_ERR(x_reregist(longest, args, NULL, 0), ENAMETOOLONG);
	SAME_ERR(x_reregist(longer, args, NULL, 0), ENAMETOOLONG);
	name[0] = '/';
	SAME_ERR(x_reregist(name, args, NULL, 0), ENAMETOOLONG);
	SAME_ERR(x_reregist("/", args, NULL, 0), EACCES);
	SAME_ERR(x_reregist("/tmp", args, NULL, 0), EACCES);
	SAME_ERR(x_reregist("/dev/null", args, NULL, 0), EACCES);

	t_copy("/bin/true", t_path(file, "prog"), 0755);
	snprintf(below, sizeof(below), "%s/x", file);
	SAME_ERR(x_reregist(below, args, NULL, 0), ENOTDIR);
	t_write_file(t_path(plain, "plain"), "#!/bin/sh\n", 10, 0644);
	SAME_ERR(x_reregist(plain, args, NULL, 0), EACCES);
	T_OK(symlink("loop", t_path(loop, "loop")));
	SAME_ERR(x_reregist(loop, args, NULL, 0), ELOOP);
	T_OK(mkfifo(t_path(fifo, "fifo"), 0777));
	SAME_ERR(x_reregist(fifo, args, NULL, 0), EACCES);
	fd = T_OK(socket(AF_UNIX, SOCK_STREAM, 0));
	strcpy(sun.sun_path, t_path(sock, "sock"));
	T_OK(bind(fd, (void *)&sun, sizeof(sun)));
	SAME_ERR(x_reregist(sock, args, NULL, 0), EACCES);

	T_OK(mkdir(t_path(noexec, "noexec"), 0755));
	T_OK(mount("none", noexec, "tmpfs", MS_NOEXEC, NULL));
	snprintf(prog, sizeof(prog), "%s/prog", noexec);
	t_copy("/bin/true", prog, 0755);
	SAME_ERR(x_reregist(prog, args, NULL, 0), EACCES);
	T_OK(umount(noexec));

	fd = T_OK(open(file, O_WRONLY));
	SAME_ERR(x_reregist(file, args, NULL, 0), ETXTBSY);
	close(fd);
	T_EQ(x_reregist(file, args, NULL, 0), 0);
	/* A registration does not keep the file from being written or replaced. */
	fd = T_OK(open(file, O_WRONLY));
	close(fd);
	T_OK(symlink("prog", t_path(link, "link")));
	T_EQ(x_reregist(link, args, NULL, 0), 0);
	T_OK(chdir(t_tmpdir()));
	T_EQ(x_reregist("prog", args, NULL, 0), 0);
	T_EQ(x_reregist("./link", args, NULL, 0), 0);
	T_EQ(x_regpath(plain, sizeof(plain)), sizeof("./link"));
	T_STREQ(plain, "./link");
}

TV(path_permissions)
{
	char file[PATH_MAX], dir[PATH_MAX], below[PATH_MAX + 8];

	t_copy("/bin/true", t_path(file, "prog"), 0744);
	T_OK(mkdir(t_path(dir, "dir"), 0700));
	snprintf(below, sizeof(below), "%s/prog", dir);
	t_copy("/bin/true", below, 0755);
	T_EQ(x_reregist(file, args, NULL, 0), 0);
	T_EQ(x_reregist(below, args, NULL, 0), 0);
	t_drop_root();
	SAME_ERR(x_reregist(file, args, NULL, 0), EACCES);
	SAME_ERR(x_reregist(below, args, NULL, 0), EACCES);
	T_EQ(x_reregist("/bin/true", args, NULL, 0), 0);
}

/* Who may not execute anything may not have it done by a fault either. */
TV(confined)
{
	static const unsigned int answers[] = {
		SECCOMP_RET_ERRNO | EACCES, SECCOMP_RET_TRAP, SECCOMP_RET_KILL_THREAD, SECCOMP_RET_KILL_PROCESS,
		SECCOMP_RET_TRACE, SECCOMP_RET_USER_NOTIF,
	};

	for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
		T_CHILD {
			answer_call(NATIVE, SYS_execve, answers[i]);
			SAME_ERR(x_reregist(t_self, args, NULL, 0), EPERM);
		}
		/* What was registered before may be registered again, and nothing else. */
		T_CHILD {
			T_EQ(x_reregist(t_self, args, NULL, 1), 0);
			answer_call(NATIVE, SYS_execve, answers[i]);
			T_EQ(x_reregist(t_self, args, NULL, 2), 0);
			SAME_ERR(x_reregist("/bin/sh", args, NULL, 3), EPERM);
			SAME_ERR(x_reregist(t_self, args + 1, NULL, 3), EPERM);
			SAME_ERR(x_reregist(t_self, (char *[]){ args[0], "other", NULL }, NULL, 3), EPERM);
			SAME_ERR(x_reregist(t_self, (char *[]){ args[0], NULL }, NULL, 3), EPERM);
			SAME_ERR(x_reregist(t_self, args, (char *[]){ "A=1", NULL }, 3), EPERM);
			T_EQ(x_unregister(), 0);
			SAME_ERR(x_reregist(t_self, args, NULL, 4), EPERM);
		}
	}
	T_CHILD {
		answer_call(NATIVE, SYS_execve, SECCOMP_RET_LOG);
		answer_call(NATIVE, SYS_execveat, SECCOMP_RET_ERRNO | EACCES);
		T_EQ(x_reregist(t_self, args, NULL, 5), 0);
		/* Of several filters, the one that forbids decides, whichever comes first. */
		answer_call(NATIVE, SYS_execve, SECCOMP_RET_ERRNO);
		answer_call(NATIVE, SYS_execve, SECCOMP_RET_ALLOW);
		SAME_ERR(x_reregist("/bin/sh", args, NULL, 6), EPERM);
	}
}

/* ---- lists that change while they are read ---- */

enum { CHANGE_LONGER, CHANGE_SHORTER, CHANGE_MORE, CHANGE_FEWER, CHANGE_BAD, CHANGES };

struct change {
	int uffd, how;
	char *late;			/* a page that is not there before the change */
	char *list[4], *first;
};

/* Everything is counted but what is on the late page; nothing has been copied yet. */
static void *changes(void *arg)
{
	static char page[4096], longer[8192];
	struct change *c = arg;
	struct uffd_msg msg;
	struct uffdio_copy copy = { .dst = (uintptr_t)c->late, .src = (uintptr_t)page, .len = sizeof(page) };

	T_EQ(read(c->uffd, &msg, sizeof(msg)), sizeof(msg));
	T_EQ(msg.event, UFFD_EVENT_PAGEFAULT);
	memset(longer, 'l', sizeof(longer) - 1);
	switch (c->how) {
	case CHANGE_LONGER:
		c->list[0] = longer;
		break;
	case CHANGE_SHORTER:
		strcpy(c->first, "s");
		break;
	case CHANGE_MORE:
		c->list[2] = longer;
		break;
	case CHANGE_FEWER:
		c->list[1] = NULL;
		break;
	case CHANGE_BAD:
		c->list[1] = T_KERNEL_PTR;
		break;
	}
	strcpy(page, "LATE=1");
	T_OK(ioctl(c->uffd, UFFDIO_COPY, &copy));
	return NULL;
}

TV(changed_between_count_and_copy)
{
	static const int errors[CHANGES] = { E2BIG, 0, 0, EFAULT, EFAULT };

	for (int how = 0; how < CHANGES; how++) {
		char first[] = "first";
		struct change c = { .how = how, .first = first, .list = { first, "second", NULL, NULL } };
		struct uffdio_api api = { .api = UFFD_API };
		struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING, .range.len = t_page() };
		pthread_t t;

		c.late = mmap(NULL, t_page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		T_ASSERT(c.late != MAP_FAILED);
		c.uffd = T_OK(syscall(SYS_userfaultfd, O_CLOEXEC));
		T_OK(ioctl(c.uffd, UFFDIO_API, &api));
		reg.range.start = (uintptr_t)c.late;
		T_OK(ioctl(c.uffd, UFFDIO_REGISTER, &reg));
		T_EQ(pthread_create(&t, NULL, changes, &c), 0);
		if (errors[how])
			SAME_ERR(x_reregist(t_self, c.list, (char *[]){ c.late, NULL }, how), errors[how]);
		else
			T_EQ(x_reregist(t_self, c.list, (char *[]){ c.late, NULL }, how), 0);
		T_EQ(pthread_join(t, NULL), 0);
		close(c.uffd);
		munmap(c.late, t_page());
	}
}

TV(info_pointers)
{
	struct reg_info info;
	void *bad[] = { NULL, T_KERNEL_PTR, T_NONCANON_PTR, t_gone(), t_none(), t_readonly(), (void *)-1l };

	T_EQ(x_reregist(t_self, args, NULL, 5), 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		SAME_ERR(x_getreginfo(bad[i]), EFAULT);
		SAME_ERR(x_regpath(bad[i], PATH_MAX), EFAULT);
	}
	for (size_t n = 0; n < sizeof(info); n++)
		T_ERR(x_getreginfo(t_edge(n)), EFAULT);
	T_EQ(x_getreginfo(t_edge(sizeof(info))), 1);
	T_ERR(perdure_getreginfo(t_edge(REG_INFO_SIZE_VER0), REG_INFO_SIZE_VER0 + 1), EFAULT);
}

T(info_sizes)
{
	size_t page = t_page();
	unsigned char *buf = malloc(page + 16), *zero = calloc(1, page), *guard = malloc(page + 16);

	T_ASSERT(buf && zero && guard);
	memset(guard, 0xa5, page + 16);
	T_EQ(sizeof(struct reg_info), REG_INFO_SIZE_VER0);
	T_EQ(x_reregist(t_self, args, NULL, 5), 0);
	for (size_t size = 0; size <= page + 1; size++) {
		/* All sizes near the limits, every 61st between them. */
		if (size > 300 && size + 2 < page && size % 61)
			continue;
		memcpy(buf, guard, page + 16);
		if (size < REG_INFO_SIZE_VER0 || size > page) {
			int err = size > page ? E2BIG : EINVAL;

			T_ERR(syscall(NR_getreginfo, buf, size, 0), err);
			T_ERR(syscall(NR_getreginfo, T_KERNEL_PTR, size, 0), err);
			T_ERR(perdure_getreginfo((void *)buf, size), err);
			T_MEMEQ(buf, guard, page + 16);
			continue;
		}
		T_EQ(syscall(NR_getreginfo, buf, size, 0), 1);
		T_EQ(((struct reg_info *)buf)->child_id, 5);
		T_MEMEQ(buf + REG_INFO_SIZE_VER0, zero, size - REG_INFO_SIZE_VER0);
		T_MEMEQ(buf + size, guard, page + 16 - size);
	}
	T_ERR(syscall(NR_getreginfo, buf, SIZE_MAX, 0), E2BIG);
	T_ERR(syscall(NR_getreginfo, buf, 1ul << 32, 0), E2BIG);
	T_ERR(syscall(NR_getreginfo, buf, (1ul << 32) + REG_INFO_SIZE_VER0, 0), E2BIG);
}

T(info_flags)
{
	struct reg_info info;

	for (int bit = 2; bit < 32; bit++) {
		T_ERR(syscall(NR_getreginfo, &info, sizeof(info), 1u << bit), EINVAL);
		T_ERR(syscall(NR_getreginfo, NULL, 0, 1u << bit | GETREGINFO_VERSION), EINVAL);
		T_ERR(syscall(NR_getreginfo, T_KERNEL_PTR, SIZE_MAX, 1u << bit), EINVAL);
	}
	T_ERR(syscall(NR_getreginfo, NULL, 0, GETREGINFO_VERSION | GETREGINFO_PATH), EINVAL);
	T_ERR(syscall(NR_getreginfo, &info, sizeof(info), GETREGINFO_VERSION | GETREGINFO_PATH), EINVAL);
}

TV(path_sizes)
{
	char buf[PATH_MAX], guard[PATH_MAX];
	size_t len = strlen(t_self) + 1;

	memset(guard, 0xa5, sizeof(guard));
	T_EQ(x_reregist(t_self, args, NULL, 5), 0);
	for (size_t size = 0; size < len; size++) {
		memcpy(buf, guard, sizeof(buf));
		T_ERR(x_regpath(buf, size), ERANGE);
		T_MEMEQ(buf, guard, sizeof(buf));
	}
	for (size_t size = len; size <= len + 2; size++) {
		memcpy(buf, guard, sizeof(buf));
		T_EQ(x_regpath(buf, size), len);
		T_STREQ(buf, t_self);
		T_MEMEQ(buf + len, guard, sizeof(buf) - len);
	}
	for (size_t n = 0; n < len; n++)
		T_ERR(x_regpath(t_edge(n), len), EFAULT);
	T_EQ(x_regpath(t_edge(len), len), len);
}

TV(fork_does_not_inherit)
{
	struct reg_info info;

	T_EQ(x_reregist(t_self, args, NULL, 5), 0);
	T_CHILD {
		T_EQ(x_getreginfo(&info), 0);
		SAME_ERR(x_unregister(), ENOENT);
		T_EQ(x_reregist(t_self, args, NULL, 6), 0);
		T_EQ(x_unregister(), 0);
	}
	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.child_id, 5);
	if (!vfork())
		_exit(syscall(NR_getreginfo, &info, sizeof(info), 0) ? 1 : 0);
	T_EXITED(t_wait(-1), 0);
	T_EQ(x_getreginfo(&info), 1);
}

ROLE(not_registered)
{
	struct reg_info info;

	T_EQ(x_getreginfo(&info), 0);
	T_ERR(x_unregister(), ENOENT);
	return 0;
}

TV(execve_drops)
{
	struct reg_info info;

	T_CHILD {
		T_EQ(x_reregist(t_self, args, NULL, 5), 0);
		T_ERR(execl("/nowhere", "x", NULL), ENOENT);
		T_ERR(execl("/dev/null", "x", NULL), EACCES);
		T_EQ(x_getreginfo(&info), 1);
		execl(t_self, "prog", "@not_registered", NULL);
		_exit(1);
	}
}

static void *thread_registers(void *arg)
{
	struct reg_info info;

	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.child_id, 5);
	T_EQ(x_reregist(t_self, args, NULL, 6), 0);
	return arg;
}

TV(threads_share)
{
	struct reg_info info;
	pthread_t t;

	T_EQ(x_reregist(t_self, args, NULL, 5), 0);
	T_ASSERT(!pthread_create(&t, NULL, thread_registers, NULL));
	pthread_join(t, NULL);
	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.child_id, 6);
}

static atomic_bool stop;

static void *thread_swaps(void *arg)
{
	static char big[32768];
	char *mine = arg ? "/bin/true" : t_self, *argv[] = { mine, arg ? big : "x", NULL };

	memset(big, 'x', sizeof(big) - 1);
	while (!stop && !t_shared->failed) {
		T_EQ(x_reregist(mine, argv, argv, arg ? 1 : 2), 0);
		if (x_unregister())
			T_EQ(errno, ENOENT);
	}
	return NULL;
}

/* Registrations are their process's memory, and go with it. */
T_LIMIT(charged, 60)
{
	enum { PROCESSES = 24, ARG = 100 * 1024 };
	char *argv[] = { "prog", calloc(1, ARG + 1), NULL };
	long before, during;
	int ready[2], go[2], end[2];
	char c;

	memset(argv[1], 'x', ARG);
	cg_open("max");
	T_OK(pipe(ready));
	T_OK(pipe(go));
	T_OK(pipe(end));
	T_CHILD {
		cg_enter();
		for (int i = 0; i < PROCESSES; i++) {
			if (fork())
				continue;
			T_EQ(write(ready[1], "", 1), 1);
			T_EQ(read(go[0], &c, 1), 1);
			T_EQ(x_reregist("/bin/true", argv, NULL, 0), 0);
			T_EQ(write(ready[1], "", 1), 1);
			T_EQ(read(end[0], &c, 1), 1);
			_exit(0);
		}
		for (int i = 0; i < PROCESSES; i++)
			T_EQ(read(ready[0], &c, 1), 1);
		before = cg_get("memory.current");
		for (int i = 0; i < PROCESSES; i++)
			T_EQ(write(go[1], "", 1), 1);
		for (int i = 0; i < PROCESSES; i++)
			T_EQ(read(ready[0], &c, 1), 1);
		during = cg_get("memory.current");
		T_RANGE(during - before, PROCESSES * ARG * 3 / 4, PROCESSES * ARG * 2);
		for (int i = 0; i < PROCESSES; i++)
			T_EQ(write(end[1], "", 1), 1);
		for (int i = 0; i < PROCESSES; i++)
			T_OK(wait(NULL));
		for (int i = 0; i < 50 && cg_get("memory.current") > before; i++)
			t_sleep_ms(20);
		T_EXPECT(cg_get("memory.current") <= before);
		t_note("%d registrations of %d KiB cost %ld KiB", PROCESSES, ARG / 1024, (during - before) / 1024);
	}
	cg_close();
}

T(threads_race)
{
	uint64_t end = t_now_ns() + 1500000000ull;
	struct reg_info info;
	char path[PATH_MAX];
	pthread_t t[2];
	long n;

	for (long i = 0; i < 2; i++)
		T_ASSERT(!pthread_create(&t[i], NULL, thread_swaps, (void *)i));
	while (t_now_ns() < end && !t_shared->failed) {
		n = x_getreginfo(&info);
		if (n != 0 && n != 1)
			T_EQ(n, 1);
		if (n && (info.child_id < 1 || info.child_id > 2 || info.generation != 1))
			T_RANGE(info.child_id, 1, 2);
		n = x_regpath(path, sizeof(path));
		if (n && strcmp(path, t_self) && strcmp(path, "/bin/true"))
			T_EQ(n, 0);
	}
	stop = true;
	pthread_join(t[0], NULL);
	pthread_join(t[1], NULL);
	T_EQ(x_reregist(t_self, args, NULL, 9), 0);
	T_EQ(x_getreginfo(&info), 1);
	T_EQ(info.child_id, 9);
}
