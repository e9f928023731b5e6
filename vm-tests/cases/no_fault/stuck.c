// SPDX-License-Identifier: GPL-2.0-or-later
/* The image's disk does not answer: who waits for it can be killed, and keeps nobody else from going on. */
#include "nf.h"
#include "nbd.h"

#include <linux/fs.h>
#include <sys/syscall.h>

#define N		256ul	/* pages of the image */
#define CACHESTAT	451	/* the C library of Debian 12 has no name for it */

static int image;

static void setup(unsigned int n)
{
	char path[128];

	nbd_start(n);
	snprintf(path, sizeof(path), "%s/image", nbd_mnt);
	image = nf_image_at(path, 1, N);
	T_OK(fsync(image));
	T_OK(posix_fadvise(image, 0, N * PG, POSIX_FADV_DONTNEED));
}

/* Memory that misses the image, of the calling process */
static char *missing(unsigned int chunk)
{
	char *p = nf_map(N);
	int uffd = nf_uffd();

	nf_register(uffd, p, N);
	nf_attach(uffd, image, p, N, 0, chunk, NO_START);
	return p;
}

/* struct cachestat_range and struct cachestat: the headers of Debian 12 lack them */
struct range {
	uint64_t off, len;
};

struct cached {
	uint64_t cache, dirty, writeback, evicted, recently_evicted;
};

/*
 * Nothing of the image stays in memory. What is still being read ahead cannot be dropped yet, and mincore() does not
 * show it: cachestat() does.
 */
static void drop(void)
{
	struct range all = { .len = N * PG };
	struct cached now = { 0 };

	for (int i = 0; i < 5000; i++) {
		T_OK(posix_fadvise(image, 0, N * PG, POSIX_FADV_DONTNEED));
		T_OK(syscall(CACHESTAT, image, &all, &now, 0));
		if (!now.cache)
			break;
		t_sleep_ms(1);
	}
	T_EQ(now.cache, 0);
}

/* Waits until a process, or its thread, waits for a disk */
static void await_blocked(pid_t pid)
{
	char path[64], text[512], *state = NULL;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	for (int i = 0; i < 10000; i++) {
		T_ASSERT(t_get(path, text, sizeof(text)) > 0);
		state = strrchr(text, ')');
		T_ASSERT(state);
		if (state[2] == 'D')
			return;
		t_sleep_ms(1);
	}
	t_check(false, __FILE__, __LINE__, "process %d does not wait for the disk: %s", pid, state);
}

/* Kills it; says whether it was gone soon */
static bool dies(pid_t pid)
{
	int status;

	T_OK(kill(pid, SIGKILL));
	for (int i = 0; i < 10000; i++) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
		t_sleep_ms(1);
	}
	return false;
}

static void sync_with(int fd)
{
	char c;

	T_ASSERT(read(fd, &c, 1) == 1);
}

/* Where somebody else reads the same page of the file already */
T_LIMIT(killed_while_another_reads, 60)
{
	static const char *const how[] = { "write", "touch", "mlock", "first" };
	int ready[2], go[2];
	char buf[PG];

	setup(0);
	for (unsigned int i = 0; i < ARRAY_LEN(how); i++) {
		pid_t reader = 0, victim;

		t_context = how[i];
		T_OK(pipe(ready));
		T_OK(pipe(go));
		victim = t_fork();
		if (!victim) {
			char *p = missing(i == 1 ? 100 : 1) + (10 + i) * PG;
			int fd = T_OK(memfd_create("m", 0));

			T_ASSERT(write(ready[1], "r", 1) == 1);
			sync_with(go[0]);
			if (i == 1)
				(void)*(volatile char *)p;
			else if (i == 2)
				mlock(p, PG);
			else if (write(fd, p, 10) < 0)
				_exit(1);
			_exit(0);
		}
		sync_with(ready[0]);
		drop();
		nbd_stop();
		if (i < 3) {
			reader = t_fork();
			if (!reader)
				_exit(pread(image, buf, PG, (10 + i) * PG) != (ssize_t)PG);
			await_blocked(reader);
		}
		T_ASSERT(write(go[1], "g", 1) == 1);
		await_blocked(victim);
		T_EXPECT(dies(victim));
		nbd_go();
		if (reader)
			T_EXITED(t_wait(reader), 0);
	}
	t_context = NULL;
	close(image);
	nbd_end();
}

/* Who reads another process's memory, as ps does its arguments, leaves it its address space */
T_LIMIT(onlooker_holds_nothing, 60)
{
	int ready[2], go[2], mem;
	char *p = NULL, buf[64];
	pid_t victim, looker;

	setup(1);
	T_OK(pipe(ready));
	T_OK(pipe(go));
	victim = t_fork();
	if (!victim) {
		p = missing(1);
		T_ASSERT(write(ready[1], &p, sizeof(p)) == sizeof(p));
		sync_with(go[0]);
		for (int i = 0; i < 100; i++)
			T_OK(munmap(nf_map(1), PG));
		T_ASSERT(write(ready[1], "d", 1) == 1);
		pause();
	}
	T_ASSERT(read(ready[0], &p, sizeof(p)) == sizeof(p));
	snprintf(buf, sizeof(buf), "/proc/%d/mem", victim);
	mem = T_OK(open(buf, O_RDONLY | O_CLOEXEC));
	nbd_stop();
	looker = t_fork();
	if (!looker)
		_exit(pread(mem, buf, 8, (off_t)(uintptr_t)p + 20 * PG) != 8);
	await_blocked(looker);
	T_ASSERT(write(go[1], "g", 1) == 1);
	T_EQ(poll(&(struct pollfd){ .fd = ready[0], .events = POLLIN }, 1, 10000), 1);
	T_EXPECT(dies(looker));
	nbd_go();
	T_EQ(pread(mem, buf, 8, (off_t)(uintptr_t)p + 20 * PG), 8);
	T_EQ(*(uint64_t *)buf, nf_word(1, 20, 0));
	T_EXPECT(dies(victim));
	close(mem);
	close(image);
	nbd_end();
}

static volatile pid_t toucher;

static void *touches(void *at)
{
	toucher = gettid();
	(void)*(volatile char *)at;
	return NULL;
}

/* What has been read for a page is not put there when something else has moved to its place meanwhile */
T_LIMIT(another_page_comes_while_read, 60)
{
	for (unsigned int chunk = 1; chunk <= 8; chunk += 7) {
		int ready[2], go[2];
		pid_t victim;

		setup(3 + chunk / 8);
		T_OK(pipe(ready));
		T_OK(pipe(go));
		victim = t_fork();
		if (!victim) {
			char *p = missing(chunk), *at = p + 40 * PG;
			pthread_t thread;

			T_ASSERT(write(ready[1], "r", 1) == 1);
			sync_with(go[0]);
			T_ASSERT(!pthread_create(&thread, NULL, touches, at));
			while (!toucher)
				t_sleep_ms(1);
			await_blocked(toucher);
			T_ASSERT(mremap(p + 80 * PG, PG, PG, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
			T_ASSERT(write(ready[1], "m", 1) == 1);
			pthread_join(thread, NULL);
			T_EXPECT(nf_is(at, 1, 80));
			T_EXPECT(nf_is(at + PG, 1, 41));
			_exit(0);
		}
		sync_with(ready[0]);
		drop();
		nbd_stop();
		T_ASSERT(write(go[1], "g", 1) == 1);
		sync_with(ready[0]);
		nbd_go();
		T_EXITED(t_wait(victim), 0);
		close(image);
		nbd_end();
	}
}

/* Nor where that is a huge page */
T_LIMIT(another_huge_page_comes_while_read, 60)
{
	const unsigned long huge = 512, n = 4 * huge;
	char path[128];
	int ready[2], go[2];
	pid_t victim;

	nbd_start(5);
	snprintf(path, sizeof(path), "%s/image", nbd_mnt);
	image = nf_image_at(path, 1, n);
	T_OK(fsync(image));
	T_OK(pipe(ready));
	T_OK(pipe(go));
	victim = t_fork();
	if (!victim) {
		char *p = nf_map(n + huge);
		int uffd = nf_uffd();

		p = (char *)(((uintptr_t)p + huge * PG - 1) & -(huge * PG));
		T_OK(madvise(p, n * PG, MADV_HUGEPAGE));
		nf_register(uffd, p, n);
		nf_attach(uffd, image, p, n, 0, 100, NO_START);
		T_ASSERT(write(ready[1], "r", 1) == 1);
		sync_with(go[0]);
		/* The worker reads what is first */
		nf_start(uffd);
		for (int i = 0; i < 5000 && !nbd_waits(); i++)
			t_sleep_ms(1);
		T_EXPECT(nbd_waits());
		T_ASSERT(mremap(p + 2 * huge * PG, huge * PG, huge * PG, MREMAP_MAYMOVE | MREMAP_FIXED, p) == p);
		T_ASSERT(write(ready[1], "m", 1) == 1);
		T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
		T_EQ(nf_count(p, 1, 2 * huge, huge), huge);
		T_EQ(nf_count(p + huge * PG, 1, huge, huge), huge);
		_exit(0);
	}
	sync_with(ready[0]);
	T_OK(posix_fadvise(image, 0, n * PG, POSIX_FADV_DONTNEED));
	nbd_stop();
	T_ASSERT(write(go[1], "g", 1) == 1);
	sync_with(ready[0]);
	nbd_go();
	T_EXITED(t_wait(victim), 0);
	close(image);
	nbd_end();
}

/* What gives the file other blocks waits for a read of the old ones. A change of its journal mode, for that reason, too */
static int journal(bool on)
{
	int flags;

	T_OK(ioctl(image, FS_IOC_GETFLAGS, &flags));
	flags = on ? flags | FS_JOURNAL_DATA_FL : flags & ~FS_JOURNAL_DATA_FL;
	return ioctl(image, FS_IOC_SETFLAGS, &flags);
}

T_LIMIT(file_stays_while_read, 60)
{
	char path[64], where[64] = "";
	pid_t victim, changer;
	int ready[2], go[2];

	setup(2);
	T_OK(pipe(ready));
	T_OK(pipe(go));
	/* What it needs of the disk it has by now */
	T_ASSERT(!journal(true) && !journal(false));
	T_OK(posix_fadvise(image, 0, N * PG, POSIX_FADV_DONTNEED));
	victim = t_fork();
	if (!victim) {
		char *p = missing(1);
		int fd = T_OK(memfd_create("m", 0));

		T_ASSERT(write(ready[1], "r", 1) == 1);
		sync_with(go[0]);
		_exit(write(fd, p + 30 * PG, 10) != 10);
	}
	sync_with(ready[0]);
	nbd_stop();
	T_ASSERT(write(go[1], "g", 1) == 1);
	await_blocked(victim);
	changer = t_fork();
	if (!changer)
		_exit(journal(true) ? 1 : 0);
	/* It has the disk to wait for as well, but later */
	snprintf(path, sizeof(path), "/proc/%d/wchan", changer);
	for (int i = 0; i < 5000 && strcmp(where, "ext4_change_inode_journal_flag"); i++) {
		t_sleep_ms(2);
		T_ASSERT(t_get(path, where, sizeof(where)) >= 0);
	}
	T_STREQ(where, "ext4_change_inode_journal_flag");
	nbd_go();
	T_EXITED(t_wait(victim), 0);
	T_EXITED(t_wait(changer), 0);
	close(image);
	nbd_end();
}
