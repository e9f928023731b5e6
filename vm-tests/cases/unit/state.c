// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * This test checks state areas: where they are, who finds them, what is refused and what is full.
 * What a fault in the middle does to them is the crash test's business.
 */
#include "../lib/t.h"

#include <perdure.h>
#include <pthread.h>

#define SIZE	5000
#define LAYOUT	7
#define SEALS	(F_SEAL_SHRINK | F_SEAL_GROW)
#define LOG_MIN	65536	/* what is promised beside the area's own size */

static void *open_named(const char *name, int *inherited)
{
	return perdure_state_open(name, SIZE, LAYOUT, NULL, inherited);
}

static char *must_open(const char *name, bool inherits)
{
	int inherited = -1;
	char *p = open_named(name, &inherited);

	T_ASSERT(p);
	T_EQ(inherited, inherits);
	return p;
}

/* What an exec does to the mapping, for what needs no other process. */
static void unmap(void *area)
{
	T_OK(munmap((char *)area - t_page(), 64 << 20));
}

static int count_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* The call gives no area, and leaves no file open. */
#define REFUSED(call, err) do { \
	int _n = count_fds(); \
	errno = 0; \
	T_EXPECT(!(call)); \
	if (!T_EQ(errno, err)) \
		t_note("%s: %s", #call, strerror(errno)); \
	T_EQ(count_fds(), _n); \
} while (0)

T(new_area_is_zero_and_inherited_area_is_not)
{
	char *p = must_open("a", false), zero[SIZE] = { 0 }, bytes[SIZE];

	T_MEMEQ(p, zero, SIZE);
	t_fill(bytes, SIZE, 0);
	T_EQ(perdure_state_update(p, p, bytes, SIZE), 0);
	unmap(p);
	T_EXPECT(must_open("a", true) == p);
	T_MEMEQ(p, bytes, SIZE);
	/* Plain stores stay too. */
	p[4711]++;
	unmap(p);
	T_EXPECT(must_open("a", true) == p);
	T_EQ((unsigned char)p[4711], (unsigned char)(bytes[4711] + 1));
}

ROLE(heir)
{
	uint64_t *p = perdure_state_open("heir", SIZE, LAYOUT, NULL, NULL);

	/* It holds its own address. */
	return argc != 1 || !p || p[0] != (uintptr_t)p || p[1] != strtoull(argv[0], NULL, 0);
}

/* With another memory layout each time, as randomized as can be. */
T(address_outlives_exec)
{
	for (uint64_t i = 0; i < 8; i++) {
		T_CHILD {
			uint64_t *p = perdure_state_open("heir", SIZE, LAYOUT, NULL, NULL), next[2];
			char arg[32];

			T_ASSERT(p);
			next[0] = (uintptr_t)p;
			next[1] = i;
			T_EQ(perdure_state_update(p, p, next, sizeof(next)), 0);
			T_OK(fcntl(perdure_state_fd(p), F_SETFD, 0));
			snprintf(arg, sizeof(arg), "%d", (int)i);
			execl(t_self, t_self, "@heir", arg, NULL);
		}
	}
}

T(file_is_close_on_exec_and_sealed)
{
	char *p = must_open("fd", false);
	int fd = perdure_state_fd(p), seals;

	T_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
	seals = T_OK(fcntl(fd, F_GET_SEALS));
	T_EQ(seals & (SEALS | F_SEAL_SEAL), SEALS | F_SEAL_SEAL);
	T_ERR(ftruncate(fd, 0), EPERM);
	T_ERR(ftruncate(fd, 1 << 20), EPERM);
}

T(areas_are_apart)
{
	char *p[64], name[32];

	for (int i = 0; i < 64; i++) {
		snprintf(name, sizeof(name), "area %d", i);
		p[i] = must_open(name, false);
		memset(p[i], i, SIZE);
	}
	for (int i = 0; i < 64; i++)
		unmap(p[i]);
	for (int i = 63; i >= 0; i--) {
		snprintf(name, sizeof(name), "area %d", i);
		T_EXPECT(must_open(name, true) == p[i]);
		T_EQ(p[i][0], i);
		T_EQ(p[i][SIZE - 1], i);
	}
}

T(close_and_discard_destroy)
{
	char *p = must_open("x", false);
	int n = count_fds();

	memset(p, 1, SIZE);
	perdure_state_close(p);
	T_EQ(count_fds(), n - 1);
	p = must_open("x", false);
	T_EQ(p[0], 0);
	p[0] = 1;
	unmap(p);
	T_EQ(perdure_state_discard("x"), 0);
	T_EQ(count_fds(), n - 1);
	T_ERR(perdure_state_discard("x"), ENOENT);
	p = must_open("x", false);
	T_EQ(p[0], 0);
	/* A fault may have left two descriptors of it */
	T_OK(dup(perdure_state_fd(p)));
	unmap(p);
	T_EQ(perdure_state_discard("x"), 0);
	T_EQ(count_fds(), n - 1);
	must_open("x", false);
}

T(names)
{
	char name[66];

	memset(name, 'n', sizeof(name));
	name[64] = 0;
	REFUSED(open_named(name, NULL), ENAMETOOLONG);
	T_ERR(perdure_state_discard(name), ENAMETOOLONG);
	name[63] = 0;
	T_EXPECT(must_open(name, false));
	REFUSED(open_named("", NULL), EINVAL);
	REFUSED(open_named("a/b", NULL), EINVAL);
	T_ERR(perdure_state_discard(""), EINVAL);
	/* One that begins or ends like another is another. */
	T_EXPECT(must_open("n", false));
	T_EXPECT(must_open("nn (deleted)", false));
	T_EXPECT(must_open("nn", false));
}

T(sizes)
{
	char *p;

	REFUSED(perdure_state_open("s", 0, 0, NULL, NULL), EINVAL);
	REFUSED(perdure_state_open("s", SIZE_MAX, 0, NULL, NULL), ENOMEM);
	REFUSED(perdure_state_open("s", SIZE_MAX / 8, 0, NULL, NULL), ENOMEM);
	p = perdure_state_open("s", 1, 0, NULL, NULL);
	T_ASSERT(p);
	T_EQ(perdure_state_update(p, p, "!", 1), 0);
	T_EQ(*p, '!');
	/* Larger than the distance at which areas are laid out. */
	p = perdure_state_open("large", 6ull << 30, 0, NULL, NULL);
	T_ASSERT(p);
	p[(6ull << 30) - 1] = 1;
}

T(addresses)
{
	char *want = (char *)0x123400000000, *p, *other;

	REFUSED(perdure_state_open("at", SIZE, 0, want + 1, NULL), EINVAL);
	REFUSED(perdure_state_open("at", SIZE, 0, (void *)t_page(), NULL), EINVAL);
	p = perdure_state_open("at", SIZE, 0, want, NULL);
	T_EXPECT(p == want);
	memset(p, 1, SIZE);
	REFUSED(perdure_state_open("at 2", SIZE, 0, want, NULL), EEXIST);
	REFUSED(perdure_state_open("at 2", SIZE, 0, want + t_page(), NULL), EEXIST);
	unmap(p);

	/* Something is in its place: it is neither moved nor put over it. */
	other = mmap(want + t_page(), t_page(), PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	T_ASSERT(other == want + t_page());
	*other = 2;
	REFUSED(perdure_state_open("at", SIZE, 0, NULL, NULL), EEXIST);
	T_EQ(*other, 2);
	munmap(other, t_page());
	T_EXPECT(perdure_state_open("at", SIZE, 0, NULL, NULL) == want);
	T_EQ(want[SIZE - 1], 1);
}

T(second_open_is_refused)
{
	char *p = must_open("twice", false);

	p[0] = 1;
	REFUSED(open_named("twice", NULL), EEXIST);
	T_EQ(p[0], 1);
	T_EQ(perdure_state_update(p, p, "\2", 1), 0);
	T_EQ(p[0], 2);
}

static struct {
	pthread_barrier_t barrier;
	char name[32];
	_Atomic int got, refused;
} threads;

static void *opens(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&threads.barrier);
	if (open_named(threads.name, NULL))
		threads.got++;
	else if (errno == EEXIST)
		threads.refused++;
	return NULL;
}

/* One makes it, and the others find it open. */
T(threads_open_one_area)
{
	enum { THREADS = 4, ROUNDS = 200 };
	pthread_t t[THREADS];
	int n;

	T_EQ(pthread_barrier_init(&threads.barrier, NULL, THREADS), 0);
	n = count_fds();
	for (int round = 0; round < ROUNDS; round++) {
		snprintf(threads.name, sizeof(threads.name), "round %d", round);
		threads.got = threads.refused = 0;
		for (int i = 0; i < THREADS; i++)
			T_ASSERT(!pthread_create(&t[i], NULL, opens, NULL));
		for (int i = 0; i < THREADS; i++)
			pthread_join(t[i], NULL);
		T_EQ(threads.got, 1);
		T_EQ(threads.refused, THREADS - 1);
		T_EQ(count_fds(), n + 1);
		T_EQ(perdure_state_discard(threads.name), 0);
	}
}

T(fork_children_do_not_have_it)
{
	char *p = must_open("parent's", false);
	pid_t pid;

	p[0] = 1;
	T_CHILD
		REFUSED(open_named("parent's", NULL), EBUSY);
	pid = t_fork();
	if (!pid) {
		p[0] = 2;
		_exit(0);
	}
	T_KILLED(t_wait(pid), SIGSEGV);
	T_EQ(p[0], 1);
	/* A child that is over has taken nothing away. */
	unmap(p);
	T_EXPECT(must_open("parent's", true) == p);
}

/* Whoever passed it on may write to it; root is who this process may have been */
T(of_other_users)
{
	char *theirs, *p;

	if (geteuid())
		t_skip("needs root");
	T_OK(seteuid(T_NOBODY));
	theirs = must_open("other's", false);
	T_OK(seteuid(0));
	T_ERR(perdure_state_discard("other's"), ENOENT);
	p = must_open("other's", false);
	T_EXPECT(p != theirs);
	perdure_state_close(theirs);
	unmap(p);
	T_OK(seteuid(T_NOBODY));
	T_EXPECT(must_open("other's", true) == p);
	T_OK(seteuid(0));
}

T(overruns_end_at_the_area)
{
	for (int i = 0; i < 2; i++) {
		pid_t pid = t_fork();

		if (!pid) {
			volatile char *p = must_open("o", false);

			/* Up to the end of the page, and one more; or before the header. */
			p[i ? 2 * t_page() - 1 : 0] = 1;
			p[i ? (long)(2 * t_page()) : -(long)t_page() - 1] = 1;
			_exit(0);
		}
		T_KILLED(t_wait(pid), SIGSEGV);
	}
}

T(another_layout_or_size_is_stale)
{
	char *p = must_open("v1", false);

	p[0] = 1;
	unmap(p);
	REFUSED(perdure_state_open("v1", SIZE, LAYOUT + 1, NULL, NULL), ESTALE);
	REFUSED(perdure_state_open("v1", SIZE + 1, LAYOUT, NULL, NULL), ESTALE);
	REFUSED(perdure_state_open("v1", SIZE - 1, LAYOUT, NULL, NULL), ESTALE);
	/* And still there for who knows it. */
	T_EQ(must_open("v1", true)[0], 1);
}

/*
 * Whatever byte of the description is damaged, it is noticed: magic, address, size, layout, name.
 * The rest of the page means something only while an update is under way.
 */
T(damage_is_noticed)
{
	char *p = must_open("hurt", false);
	int fd = perdure_state_fd(p), described = 0;

	p[0] = 1;
	unmap(p);
	for (off_t i = 0; i < 256; i++) {
		char good, bad;

		T_ASSERT(pread(fd, &good, 1, i) == 1);
		bad = good ^ 0x10;
		T_ASSERT(pwrite(fd, &bad, 1, i) == 1);
		p = open_named("hurt", NULL);
		if (p) {
			T_EQ(p[0], 1);
			unmap(p);
		} else {
			T_EQ(errno, EBADMSG);
			described++;
		}
		T_ASSERT(pwrite(fd, &good, 1, i) == 1);
	}
	T_RANGE(described, 100, 128);
	T_EQ(must_open("hurt", true)[0], 1);
}

/* A committed log whose entries end beyond it, or beyond the file, is not applied. */
T(damaged_log_is_noticed)
{
	static const struct {
		uint64_t entries;		/* good ones before */
		uint64_t offset, len;
		uint64_t room;			/* in the log for the entry and its bytes */
	} logs[] = {
		{ 0, 0, 8, 8 }, { 0, 0, 8, 16 }, { 0, 0, 100, 24 }, { 0, 0, 9, 24 }, { 3, 7, SIZE - 7, 1000 },
		{ 14, 0, SIZE, 3504 }, { 0, 0, UINT64_MAX, 24 }, { 0, SIZE, UINT64_MAX - 7, 24 }, { 0, 8, UINT64_MAX - 15, 24 },
	};
	char *p = must_open("log", false);
	uint64_t entry[2] = { 0, SIZE }, commit, size = sizeof(entry) + SIZE, at;
	int fd = perdure_state_fd(p);
	off_t log = lseek(fd, 0, SEEK_END) - (SIZE + LOG_MIN + t_page() - 1) / t_page() * t_page();
	uint64_t *header = (uint64_t *)(p - t_page());

	/* In the header: the length of the log so far, and before that the committed length */
	T_EQ(perdure_state_stage(p, p, "x", 1), 0);
	for (at = 1; at < 64 && header[at] != 24; at++)
		;
	T_ASSERT(at < 64 && !header[at - 1]);
	at = (at - 1) * sizeof(*header);
	unmap(p);
	for (size_t i = 0; i < ARRAY_LEN(logs); i++) {
		for (uint64_t k = 0; k < logs[i].entries; k++)
			T_ASSERT(pwrite(fd, entry, sizeof(entry), log + k * size) == sizeof(entry));
		commit = logs[i].entries * size;
		T_ASSERT(pwrite(fd, &logs[i].offset, sizeof(entry), log + commit) == sizeof(entry));
		commit += logs[i].room;
		T_ASSERT(pwrite(fd, &commit, sizeof(commit), at) == sizeof(commit));
		REFUSED(open_named("log", NULL), EBADMSG);
	}
	/* And one that fills the log to its end is. */
	commit = 24;
	entry[1] = 8;
	T_ASSERT(pwrite(fd, entry, sizeof(entry), log) == sizeof(entry));
	T_ASSERT(pwrite(fd, "12345678", 8, log + sizeof(entry)) == 8);
	T_ASSERT(pwrite(fd, &commit, sizeof(commit), at) == sizeof(commit));
	T_MEMEQ(must_open("log", true), "12345678", 8);
}

T(a_header_wiped_out_is_not_a_new_area)
{
	char *p = must_open("wiped", false), zero[4096] = { 0 };
	int fd = perdure_state_fd(p);

	unmap(p);
	T_ASSERT(pwrite(fd, zero, sizeof(zero), 0) == sizeof(zero));
	REFUSED(open_named("wiped", NULL), EBADMSG);
	T_EQ(perdure_state_discard("wiped"), 0);
	must_open("wiped", false);
}

static int forge(const char *name, size_t size, int seals)
{
	int fd = T_OK(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));

	T_OK(ftruncate(fd, size));
	if (seals)
		T_OK(fcntl(fd, F_ADD_SEALS, seals));
	return fd;
}

/* What a fault in perdure_state_open() leaves is not sealed, and not an area. */
T(unfinished_files_are_passed_over)
{
	char *p = must_open("mine", false), *copy;
	int fd, size = lseek(perdure_state_fd(p), 0, SEEK_END);

	forge("perdure-half", 0, 0);
	forge("perdure-half", 1 << 20, 0);
	forge("perdure-half", 0, SEALS);
	must_open("half", false);

	/* Cut short: its header is right. */
	copy = malloc(size);
	T_ASSERT(copy && pread(perdure_state_fd(p), copy, size, 0) == size);
	perdure_state_close(p);
	fd = forge("perdure-mine", 0, 0);
	T_ASSERT(pwrite(fd, copy, size - 4096, 0) == size - 4096);
	T_OK(fcntl(fd, F_ADD_SEALS, SEALS));
	REFUSED(open_named("mine", NULL), EBADMSG);
	T_EQ(perdure_state_discard("mine"), 0);
	must_open("mine", false);
}

T(wrong_ranges)
{
	char *p = must_open("r", false), bytes[SIZE + 1];

	memset(bytes, 1, sizeof(bytes));
	T_ERR(perdure_state_update(p, p, bytes, SIZE + 1), EINVAL);
	T_ERR(perdure_state_update(p, p + 1, bytes, SIZE), EINVAL);
	T_ERR(perdure_state_update(p, p - 1, bytes, 1), EINVAL);
	T_ERR(perdure_state_update(p, p + SIZE, bytes, 1), EINVAL);
	T_ERR(perdure_state_update(p, p + SIZE + 1, bytes, 0), EINVAL);
	T_ERR(perdure_state_update(p, p + 1, bytes, SIZE_MAX), EINVAL);
	T_ERR(perdure_state_update(p, bytes, bytes, 1), EINVAL);
	T_ERR(perdure_state_stage(p, p + SIZE, bytes, 1), EINVAL);
	memset(bytes, 0, sizeof(bytes));
	T_MEMEQ(p, bytes, SIZE);
	/* Nothing of it was staged either. */
	perdure_state_commit(p);
	T_MEMEQ(p, bytes, SIZE);
	T_EQ(perdure_state_update(p, p + SIZE - 1, "x", 1), 0);
	T_EQ(perdure_state_update(p, p + SIZE, "x", 0), 0);
	T_EQ(p[SIZE - 1], 'x');
}

T(staged_is_not_current)
{
	char *p = must_open("st", false);

	T_EQ(perdure_state_stage(p, p, "abc", 3), 0);
	T_EQ(perdure_state_stage(p, p + 1, "xy", 2), 0);
	T_EQ(p[0], 0);
	perdure_state_commit(p);
	T_STREQ(p, "axy");
	perdure_state_commit(p);
	T_STREQ(p, "axy");
	/* An update takes along what is staged; a restart forgets it. */
	T_EQ(perdure_state_stage(p, p, "1", 1), 0);
	T_EQ(perdure_state_update(p, p + 1, "2", 1), 0);
	T_STREQ(p, "12y");
	T_EQ(perdure_state_stage(p, p, "?", 1), 0);
	unmap(p);
	p = must_open("st", true);
	perdure_state_commit(p);
	T_EQ(perdure_state_update(p, p + 2, "3", 1), 0);
	T_STREQ(p, "123");
}

T(full)
{
	char *p = must_open("full", false), all[SIZE];
	size_t n = 0;

	t_fill(all, SIZE, 1);
	while (!perdure_state_stage(p, p + n % SIZE, all + n % SIZE, 1))
		n++;
	T_EQ(errno, ENOSPC);
	T_RANGE(n, LOG_MIN / 24, 2 * LOG_MIN / 24);
	T_ERR(perdure_state_update(p, p, "!", 1), ENOSPC);
	T_EQ(p[0], 0);
	T_EQ(p[SIZE - 1], 0);
	/* None is lost, and then there is room again, for the whole area and more. */
	perdure_state_commit(p);
	T_MEMEQ(p, all, n < SIZE ? n : SIZE);
	T_EQ(perdure_state_stage(p, p, all, SIZE), 0);
	for (n = 0; n < 1000; n++)
		T_EQ(perdure_state_stage(p, p + n, "12345678", 8), 0);
	perdure_state_commit(p);
	T_EQ(p[0], '1');
	T_EQ(p[1006], '8');
	T_MEMEQ(p + 1007, all + 1007, SIZE - 1007);
}

T(no_room_for_files)
{
	struct rlimit lim = { 64, 64 };

	T_OK(setrlimit(RLIMIT_NOFILE, &lim));
	while (dup(0) >= 0)
		;
	REFUSED(open_named("nofile", NULL), EMFILE);
	close(63);
	T_EXPECT(open_named("nofile", NULL));
}

T(without_proc)
{
	char *p = must_open("jail", false);
	int fd = perdure_state_fd(p), high;
	struct rlimit limit;

	if (chroot(t_tmpdir()))
		t_skip("chroot needs root");
	T_OK(chdir("/"));
	p[0] = 1;
	unmap(p);
	T_EQ(must_open("jail", true)[0], 1);
	T_EXPECT(must_open("another", false));
	/* Wherever it is, and whatever the limit is by now. */
	unmap(p);
	T_OK(getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = limit.rlim_max;
	T_OK(setrlimit(RLIMIT_NOFILE, &limit));
	high = T_OK(dup2(fd, limit.rlim_max < 70001 ? limit.rlim_max - 1 : 70001));
	T_ASSERT(high > 64);
	close(fd);
	T_OK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 64, 64 }));
	T_EQ(must_open("jail", true)[0], 1);
	T_EQ(perdure_state_fd(p), high);
}

/* A limit of a million files or a thousand millions is not what takes the time. */
T(without_proc_and_almost_without_a_limit)
{
	const rlim_t many = 1 << 20;
	uint64_t start;

	if (setrlimit(RLIMIT_NOFILE, &(struct rlimit){ many, many }) || chroot(t_tmpdir()))
		t_skip("chroot and a limit of %d files need root", (int)many);
	T_OK(chdir("/"));
	must_open("here", false);
	start = t_now_ns();
	for (int i = 0; i < 300; i++)
		T_ERR(perdure_state_discard("no such area"), ENOENT);
	T_RANGE(t_now_ns() - start, 0, 5000000000);
}
