// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * This test checks shared areas: who finds them, what is refused, that updates exclude each other, and what
 * the next process finds when one is killed at any instruction of an update. Restarts in the
 * middle are the business of the suite sem.
 */
#include "../lib/t.h"

#include <perdure.h>
#include <pthread.h>
#include <sys/ptrace.h>
#include <sys/sem.h>

#define SIZE	6000
#define LAYOUT	3
#define MARK	SIGWINCH	/* between two of these a process is watched */

static char name[32];
static const char zeros[SIZE];

static const char *must_open(int existed)
{
	int e = -1;
	const char *p;

	if (!name[0])
		snprintf(name, sizeof(name), "test-%d", getpid());
	p = perdure_shared_open(name, SIZE, LAYOUT, &e);
	if (!p && errno == ENOSYS)
		t_skip("no System V semaphores here");
	T_ASSERT(p);
	T_EQ(e, existed);
	return p;
}

static void must_remove(void)
{
	T_EQ(perdure_shared_remove(name), 0);
}

static char *file(void)
{
	static char path[64];

	snprintf(path, sizeof(path), "/dev/shm/perdure-%u-%s", geteuid(), name);
	return path;
}

static void put(const char *p, size_t at, const void *src, size_t len)
{
	T_EQ(perdure_shared_begin(p, 1000), 0);
	T_EQ(perdure_shared_stage(p, p + at, src, len), 0);
	T_EQ(perdure_shared_commit(p), 0);
}

T(shared_at_one_address)
{
	const char *p = must_open(0);

	T_MEMEQ(p, zeros, SIZE);
	put(p, 10, "first", 6);
	T_CHILD {
		T_STREQ(p + 10, "first");
		put(p, 10, "forked", 7);
	}
	T_STREQ(p + 10, "forked");
	/* One that has nothing but the name. */
	T_CHILD {
		perdure_shared_close(p);
		T_EXPECT(must_open(1) == p);
		put(p, SIZE - 7, "second", 7);
	}
	T_STREQ(p + SIZE - 7, "second");
	T_STREQ(p + 10, "forked");
	/* It stays when nobody has it open. */
	perdure_shared_close(p);
	T_EXPECT(must_open(1) == p);
	T_STREQ(p + 10, "forked");
	must_remove();
	T_EXPECT(access(file(), F_OK));
}

T(only_updates_change_it)
{
	static const size_t at[] = { 0, SIZE - 1 };
	const char *p = must_open(0);
	long bytes;

	for (size_t i = 0; i < ARRAY_LEN(at); i++) {
		pid_t pid = t_fork();

		if (!pid) {
			*(volatile char *)(uintptr_t)(p + at[i]) = 1;
			_exit(0);
		}
		T_KILLED(t_wait(pid), SIGSEGV);
	}
	T_MEMEQ(p, zeros, SIZE);
	/* Staged is not current; cancelled is nothing. */
	bytes = 0x1122334455667788;
	T_EQ(perdure_shared_begin(p, 0), 0);
	T_EQ(perdure_shared_stage(p, p + 3, &bytes, 8), 0);
	T_MEMEQ(p, zeros, SIZE);
	T_EQ(perdure_shared_cancel(p), 0);
	T_EQ(perdure_shared_begin(p, 0), 0);
	T_EQ(perdure_shared_commit(p), 0);
	T_MEMEQ(p, zeros, SIZE);
	must_remove();
}

static void *other_thread(void *area)
{
	T_ERR(perdure_shared_begin(area, 0), EAGAIN);
	T_ERR(perdure_shared_stage(area, area, "x", 1), EPERM);
	T_ERR(perdure_shared_commit(area), EPERM);
	T_ERR(perdure_shared_cancel(area), EPERM);
	return NULL;
}

T(one_at_a_time)
{
	const char *p = must_open(0);
	pthread_t t;
	uint64_t start;
	pid_t pid;

	T_EQ(perdure_shared_begin(p, -1), 0);
	T_ERR(perdure_shared_begin(p, -1), EDEADLK);
	T_EQ(pthread_create(&t, NULL, other_thread, (void *)(uintptr_t)p), 0);
	pthread_join(t, NULL);
	T_CHILD {
		perdure_shared_close(p);
		T_EXPECT(must_open(1) == p);
		T_ERR(perdure_shared_begin(p, 0), EAGAIN);
		start = t_now_ns();
		t_handle(SIGUSR1, t_on_signal, 0);
		pid = t_signaller(getpid(), SIGUSR1, 5);
		T_ERR(perdure_shared_begin(p, 200), EAGAIN);
		T_RANGE(t_now_ns() - start, 190000000, 5000000000);
		t_reap(pid);
	}
	T_EQ(perdure_shared_commit(p), 0);
	T_EQ(perdure_shared_begin(p, -1), 0);
	T_EQ(perdure_shared_commit(p), 0);
	T_ERR(perdure_shared_commit(p), EPERM);
	must_remove();
}

T(refused)
{
	static char big[SIZE];
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	const char *p = must_open(0);
	int fd, n = 0;

	T_EXPECT(!perdure_shared_open("", 1, 0, NULL) && errno == EINVAL);
	T_EXPECT(!perdure_shared_open("a/b", 1, 0, NULL) && errno == EINVAL);
	T_EXPECT(!perdure_shared_open(name, 0, 0, NULL) && errno == EINVAL);
	T_EXPECT(!perdure_shared_open("x123456789012345678901234567890123456789012345678901234567890123", 1, 0,
				      NULL) && errno == ENAMETOOLONG);
	T_EXPECT(!perdure_shared_open("huge", SIZE_MAX / 2, 0, NULL) && errno == ENOMEM);
	T_EXPECT(!perdure_shared_open(name, SIZE, LAYOUT + 1, NULL) && errno == ESTALE);
	T_EXPECT(!perdure_shared_open(name, SIZE + 1, LAYOUT, NULL) && errno == ESTALE);
	T_EXPECT(!perdure_shared_open(name, SIZE, LAYOUT, NULL) && errno == EEXIST);	/* open already */
	T_ERR(perdure_shared_remove("no such area"), ENOENT);

	T_EQ(perdure_shared_begin(p, 0), 0);
	T_ERR(perdure_shared_stage(p, p - 1, "x", 1), EINVAL);
	T_ERR(perdure_shared_stage(p, p + SIZE, "x", 1), EINVAL);
	T_ERR(perdure_shared_stage(p, p + 1, big, SIZE), EINVAL);
	while (!perdure_shared_stage(p, p, big, SIZE))
		n++;
	T_EQ(errno, ENOSPC);
	T_RANGE(n, 11, 14);
	T_EQ(perdure_shared_commit(p), 0);

	perdure_shared_close(p);
	T_OK(chmod(file(), 0644));
	T_EXPECT(!perdure_shared_open(name, SIZE, LAYOUT, NULL) && errno == EPERM);
	/* At once, whoever holds the lock. */
	fd = T_OK(open(file(), O_RDWR));
	T_OK(fcntl(fd, F_SETLK, &lock));
	T_CHILD {
		T_EXPECT(!perdure_shared_open(name, SIZE, LAYOUT, NULL) && errno == EPERM);
		T_ERR(perdure_shared_remove(name), EPERM);
	}
	close(fd);
	T_OK(chmod(file(), 0600));
	fd = T_OK(open(file(), O_RDWR));
	T_ASSERT(pread(fd, big, 1, 20) == 1);
	T_ASSERT(pwrite(fd, "x", 1, 20) == 1);
	T_EXPECT(!perdure_shared_open(name, SIZE, LAYOUT, NULL) && errno == EBADMSG);
	T_ASSERT(pwrite(fd, big, 1, 20) == 1);
	close(fd);
	must_remove();
	/* What a death left half made is made anew. */
	fd = T_OK(open(file(), O_RDWR | O_CREAT, 0600));
	T_OK(ftruncate(fd, 100000));
	close(fd);
	perdure_shared_close(must_open(0));
	must_remove();
}

T(removed_while_open)
{
	const char *p = must_open(0);

	put(p, 0, "still here", 11);
	must_remove();
	T_ERR(perdure_shared_begin(p, 0), errno == EIDRM ? EIDRM : EINVAL);
	T_STREQ(p, "still here");
	perdure_shared_close(p);
	p = must_open(0);
	T_MEMEQ(p, zeros, SIZE);
	must_remove();
}

/* Whoever waits for one that is being removed gets the next one, and not what is left of the old one. */
T(removed_while_one_waits)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	char waiting[64], locks[1 << 16];
	const char *p = must_open(0);
	pid_t pid;
	int fd;

	perdure_shared_close(p);
	fd = T_OK(open(file(), O_RDWR | O_CLOEXEC));
	T_OK(fcntl(fd, F_SETLK, &lock));
	pid = t_fork();
	if (!pid) {
		put(must_open(0), 0, "new", 4);
		t_word[0] = 1;
		pause();
	}
	snprintf(waiting, sizeof(waiting), "-> POSIX  ADVISORY  WRITE %d ", pid);
	do {
		t_sleep_ms(1);
		T_ASSERT(t_get("/proc/locks", locks, sizeof(locks)) > 0);
	} while (!strstr(locks, waiting));
	must_remove();		/* with the lock, which goes with it */
	while (!t_word[0])
		t_sleep_ms(1);
	p = must_open(1);
	T_STREQ(p, "new");
	t_reap(pid);
	must_remove();
}

/* What is committed and cannot be applied is said to everybody, at each attempt; nobody is locked out for good. */
T(damaged_log)
{
	const uint64_t entry[] = { 0, UINT64_MAX }, commit = 24, zero = 0;
	const char *p = must_open(0);
	uint64_t header[64];
	off_t at, log;
	int fd = T_OK(open(file(), O_RDWR));

	/* In the header, the length of the log so far comes after that which is committed. */
	T_EQ(perdure_shared_begin(p, 0), 0);
	T_EQ(perdure_shared_stage(p, p, "x", 1), 0);
	T_ASSERT(pread(fd, header, sizeof(header), 0) == sizeof(header));
	for (at = 1; at < 64 && header[at] != 24; at++)
		;
	T_ASSERT(at < 64 && !header[at - 1]);
	at = (at - 1) * sizeof(*header);
	T_EQ(perdure_shared_cancel(p), 0);
	log = lseek(fd, 0, SEEK_END) - (SIZE + 65536 + t_page() - 1) / t_page() * t_page();
	T_ASSERT(pwrite(fd, entry, sizeof(entry), log) == sizeof(entry));
	T_ASSERT(pwrite(fd, &commit, sizeof(commit), at) == sizeof(commit));
	for (int i = 0; i < 2; i++) {
		T_ERR(perdure_shared_begin(p, 1000), EBADMSG);
		T_CHILD {
			perdure_shared_close(p);
			T_EXPECT(must_open(1) == p);
			T_ERR(perdure_shared_begin(p, 1000), EBADMSG);
		}
	}
	T_ASSERT(pwrite(fd, &zero, sizeof(zero), at) == sizeof(zero));
	put(p, 0, "well", 5);
	T_STREQ(p, "well");
	close(fd);
	must_remove();
}

/* One name, and an area for each user; what somebody else has put there is not used. */
T(of_other_users)
{
	const char *p, *theirs;
	char path[64];

	if (geteuid())
		t_skip("needs root");
	p = must_open(0);
	put(p, 0, "root's", 7);
	T_CHILD {
		perdure_shared_close(p);
		t_drop_root();
		theirs = must_open(0);
		T_STREQ(theirs, "");
		put(theirs, 0, "nobody's", 9);
		perdure_shared_close(theirs);
		theirs = must_open(1);
		T_STREQ(theirs, "nobody's");
		must_remove();
	}
	T_STREQ(p, "root's");
	must_remove();
	perdure_shared_close(p);
	T_CHILD {
		snprintf(path, sizeof(path), "%s", file());
		t_drop_root();
		T_OK(open(path, O_RDWR | O_CREAT | O_EXCL, 0666));
	}
	T_ASSERT(!perdure_shared_open(name, SIZE, LAYOUT, NULL));
	T_EXPECT(errno == EPERM || errno == EACCES);	/* fs.protected_regular */
	T_OK(unlink(file()));
}

/* A header that cannot be trusted does not say which semaphore: the magic number does */
T(removed_when_damaged)
{
	const char *p = must_open(0);
	int fd = T_OK(open(file(), O_RDWR));

	T_ASSERT(pwrite(fd, "x", 1, 30) == 1);
	must_remove();
	T_ERR(perdure_shared_begin(p, 0), EIDRM);
	T_ERR(perdure_shared_begin(p, 0), EIDRM);
	perdure_shared_close(p);
	close(fd);
}

/* Each of the processes that make them knows of its own only, and some need all of them */
T(many_names)
{
	enum { MANY = 300 };
	const char *area[MANY];
	char many[MANY][32];

	for (int i = 0; i < MANY; i++) {
		snprintf(many[i], sizeof(many[i]), "test-%d-%d", getpid(), i);
		area[i] = perdure_shared_open(many[i], SIZE, LAYOUT, NULL);
		if (!area[i] && errno == ENOSYS)
			t_skip("no System V semaphores here");
		T_ASSERT(area[i]);
		perdure_shared_close(area[i]);
	}
	for (int i = 0; i < MANY; i++)
		T_EXPECT(perdure_shared_open(many[i], SIZE, LAYOUT, NULL) == area[i]);
	for (int i = 0; i < MANY; i++)
		T_EQ(perdure_shared_remove(many[i]), 0);
}

/* A predecessor that was restarted while it opened an area left file and lock */
T(left_locked)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd, other = T_OK(open("/dev/shm", O_RDONLY | O_DIRECTORY));

	snprintf(name, sizeof(name), "test-%d", getpid());
	T_CHILD
		perdure_shared_close(must_open(0));
	fd = T_OK(open(file(), O_RDWR));
	T_OK(fcntl(fd, F_SETLK, &lock));
	T_ERR(perdure_shared_remove("no such area"), ENOENT);
	T_ERR(fcntl(fd, F_GETFD), EBADF);
	T_OK(fcntl(other, F_GETFD));
	T_CHILD {
		alarm(20);
		perdure_shared_close(must_open(1));
	}
	must_remove();
}

static void *begins(void *area)
{
	T_EQ(perdure_shared_begin(area, 0), 0);
	return NULL;
}

static void *stages(void *area)
{
	T_ERR(perdure_shared_stage(area, area, "x", 1), EPERM);
	T_ERR(perdure_shared_commit(area), EPERM);
	return NULL;
}

/* The next thread has the stack of the last */
T(a_thread_that_is_gone)
{
	const char *p = must_open(0);
	pthread_t thread;

	T_EQ(pthread_create(&thread, NULL, begins, (void *)p), 0);
	T_EQ(pthread_join(thread, NULL), 0);
	T_EQ(pthread_create(&thread, NULL, stages, (void *)p), 0);
	T_EQ(pthread_join(thread, NULL), 0);
	T_ERR(perdure_shared_begin(p, 0), EAGAIN);
	must_remove();
}

static struct {
	const char *area;
	uint64_t sum;
} race;

static void *adds(void *arg)
{
	(void)arg;
	for (int i = 0; i < 300; i++) {
		uint64_t sum;

		T_EQ(perdure_shared_begin(race.area, -1), 0);
		memcpy(&sum, race.area, 8);
		sum++;
		T_EQ(perdure_shared_stage(race.area, race.area, &sum, 8), 0);
		T_EQ(perdure_shared_commit(race.area), 0);
	}
	return NULL;
}

T(processes_and_threads_add_up)
{
	pid_t pid[3];

	race.area = must_open(0);
	for (int i = 0; i < 3; i++) {
		pid[i] = t_fork();
		if (!pid[i]) {
			pthread_t t[2];

			for (int k = 0; k < 2; k++)
				T_EQ(pthread_create(&t[k], NULL, adds, NULL), 0);
			for (int k = 0; k < 2; k++)
				pthread_join(t[k], NULL);
			_exit(0);
		}
	}
	for (int i = 0; i < 3; i++)
		T_EXITED(t_wait(pid[i]), 0);
	memcpy(&race.sum, race.area, 8);
	T_EQ(race.sum, 1800);
	must_remove();
}

/* ---- death at every instruction ---- */

static const struct {
	size_t at, len;
} ranges[] = { { 3, 41 }, { 4090, 20 } };

static void fill(char *image, uint64_t version)
{
	for (size_t i = 0; i < ARRAY_LEN(ranges); i++)
		t_fill(image + ranges[i].at, ranges[i].len, version * 10000 + ranges[i].at);
}

static void change(const char *p, const char *image)
{
	perdure_shared_begin(p, 0);
	for (size_t i = 0; i < ARRAY_LEN(ranges); i++)
		perdure_shared_stage(p, p + ranges[i].at, image + ranges[i].at, ranges[i].len);
	perdure_shared_commit(p);
}

/* A child that is killed after so many instructions of an update; false when it was done by then. */
static bool killed_after(const char *p, const char *image, long n)
{
	pid_t pid = t_fork();
	bool alive = true;
	int status;

	if (!pid) {
		if (ptrace(PTRACE_TRACEME))
			_exit(77);
		kill(getpid(), MARK);
		change(p, image);
		kill(getpid(), MARK);
		_exit(0);
	}
	status = t_wait(pid);
	if (WIFEXITED(status))
		t_skip("ptrace is not allowed here");
	T_ASSERT(WIFSTOPPED(status) && WSTOPSIG(status) == MARK);
	for (; n && alive; n--) {
		T_OK(ptrace(PTRACE_SINGLESTEP, pid, 0, 0));
		status = t_wait(pid);
		T_ASSERT(WIFSTOPPED(status));
		alive = WSTOPSIG(status) != MARK;
	}
	kill(pid, SIGKILL);
	t_wait(pid);
	return alive;
}

T_LIMIT(death_at_every_instruction, 90)
{
	const char *p = must_open(0);
	char old[SIZE] = { 0 }, new[SIZE] = { 0 };
	uint64_t version = 1;
	long n, count[3] = { 0 };

	/* Once before, for the dynamic linker. */
	change(p, new);
	for (n = 0; ; n++) {
		int what;

		fill(new, version);
		if (!killed_after(p, new, n))
			break;
		what = perdure_shared_begin(p, 0);
		T_ASSERT(what >= 0);
		count[what]++;
		if (what == PERDURE_SHARED_UNDONE)
			T_MEMEQ(p, old, SIZE);
		else if (what == PERDURE_SHARED_COMPLETED)
			T_MEMEQ(p, new, SIZE);
		else
			T_EXPECT(!memcmp(p, old, SIZE) || !memcmp(p, new, SIZE));
		if (!memcmp(p, new, SIZE)) {
			memcpy(old, new, SIZE);
			version++;
		}
		T_EQ(perdure_shared_commit(p), 0);
	}
	t_note("%ld instructions: %ld undone, %ld completed, %ld neither", n, count[PERDURE_SHARED_UNDONE],
	       count[PERDURE_SHARED_COMPLETED], count[0]);
	T_EXPECT(count[PERDURE_SHARED_UNDONE] > 20);
	T_EXPECT(count[PERDURE_SHARED_COMPLETED] > 20);
	T_MEMEQ(p, new, SIZE);
	must_remove();
}
