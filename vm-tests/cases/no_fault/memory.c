// SPDX-License-Identifier: GPL-2.0-or-later
/* What becomes of missing pages when the process changes its memory, or somebody else looks at it. */
#include "nf.h"
#include "../lib/cgroup.h"
#include "../lib/swap.h"

#include <elf.h>
#include <linux/futex.h>
#include <sys/ptrace.h>
#include <sys/user.h>

/* The old pages must not turn up in new memory, not by a fault and not from the worker. */
T(munmap_then_mmap)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 64);

	T_OK(munmap(p + 10 * PG, 20 * PG));
	T_EQ(nf_stat(uffd).missing, 44);
	T_EQ(nf_stat(uffd).removed, 20);
	T_EXPECT(mmap(p + 10 * PG, 20 * PG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
		      -1, 0) == p + 10 * PG);
	p[15 * PG] = 5;
	T_EQ(nf_count_zero(p + 16 * PG, 14), 14);
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_EQ(nf_count_zero(p + 10 * PG, 5) + nf_count_zero(p + 16 * PG, 14), 19);
	T_EQ(p[15 * PG], 5);
	T_EQ(nf_count(p, 1, 0, 10) + nf_count(p + 30 * PG, 1, 30, 34), 44);
}

T(mmap_over)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 64);

	T_EXPECT(mmap(p + 10 * PG, 20 * PG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		      -1, 0) == p + 10 * PG);
	T_EQ(nf_stat(uffd).missing, 44);
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_EQ(nf_count_zero(p + 10 * PG, 20), 20);
	T_EQ(nf_count(p, 1, 0, 10) + nf_count(p + 30 * PG, 1, 30, 34), 44);
}

/* The heap: brk down and up again gives zeros; what lies below stays missing */
T(brk_shrinks)
{
	int uffd = nf_uffd(), image = nf_image(1, 64);
	char *end = (char *)(((uintptr_t)sbrk(0) + PG - 1) & ~(PG - 1));

	T_OK(brk(end + 64 * PG));
	nf_register(uffd, end, 64);
	nf_attach(uffd, image, end, 64, 0, 1, NO_START);
	T_OK(brk(end + 24 * PG));
	T_EQ(nf_stat(uffd).missing, 24);
	T_OK(brk(end + 64 * PG));
	T_EQ(nf_count_zero(end + 24 * PG, 40), 40);
	T_EQ(nf_count(end, 1, 0, 24), 24);
}

static void dropped_by(int advice)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 64);

	T_EXPECT(nf_is(p + 12 * PG, 1, 12));
	T_OK(madvise(p + 10 * PG, 20 * PG, advice));
	T_EQ(nf_stat(uffd).missing, 44);
	T_EQ(nf_count_zero(p + 13 * PG, 17), 17);
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_EQ(nf_count_zero(p + 13 * PG, 17), 17);
	if (advice == MADV_DONTNEED)
		T_EXPECT(nf_zero(p + 12 * PG));
	T_EQ(nf_count(p, 1, 0, 10) + nf_count(p + 30 * PG, 1, 30, 34), 44);
}

T(madvise_dontneed) { dropped_by(MADV_DONTNEED); }
T(madvise_free) { dropped_by(MADV_FREE); }

/* A page that has been loaded and dropped is zeros, not the image's again. */
T(dontneed_after_load)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 8);

	T_EQ(nf_count(p, 1, 0, 8), 8);
	T_OK(madvise(p, 8 * PG, MADV_DONTNEED));
	T_EQ(nf_count_zero(p, 8), 8);
	p[0] = 1;
	T_OK(madvise(p, 8 * PG, MADV_DONTNEED));
	T_EQ(nf_count_zero(p, 8), 8);
}

T(mremap_moves)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 64), *to = nf_map(100), *q;

	T_EXPECT(nf_is(p + 20 * PG, 1, 20));
	q = mremap(p + 10 * PG, 20 * PG, 20 * PG, MREMAP_MAYMOVE | MREMAP_FIXED, to + 40 * PG);
	T_ASSERT(q == to + 40 * PG);
	T_EQ(nf_stat(uffd).missing, 63);
	T_EQ(nf_count(q + 5 * PG, 1, 15, 10), 10);
	/* Where it was, something else can be */
	T_EXPECT(mmap(p + 10 * PG, 20 * PG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
		      -1, 0) == p + 10 * PG);
	T_EQ(nf_count_zero(p + 10 * PG, 20), 20);
	/* And again, and back */
	q = mremap(q, 20 * PG, 20 * PG, MREMAP_MAYMOVE | MREMAP_FIXED, p + 10 * PG);
	T_ASSERT(q == p + 10 * PG);
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_EQ(nf_count(p, 1, 0, 64), 64);
}

T(mremap_grows_and_shrinks)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 64), *q;

	q = mremap(p, 64 * PG, 32 * PG, 0);
	T_ASSERT(q == p);
	T_EQ(nf_stat(uffd).missing, 32);
	q = mremap(p, 32 * PG, 200 * PG, MREMAP_MAYMOVE);
	T_ASSERT(q != MAP_FAILED);
	T_EQ(nf_stat(uffd).missing, 32);
	T_EQ(nf_count_zero(q + 32 * PG, 168), 168);
	T_EQ(nf_count(q, 1, 0, 32), 32);
}

T(mremap_dontunmap)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 64), *q;

	T_EXPECT(nf_is(p + 1 * PG, 1, 1));
	q = mremap(p, 64 * PG, 64 * PG, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
	T_ASSERT(q != MAP_FAILED);
	T_EQ(nf_stat(uffd).missing, 63);
	T_EQ(nf_count_zero(p, 64), 64);
	T_EQ(nf_count(q, 1, 0, 64), 64);
}

/* Copied before a single page was there: neither sees what the other writes */
T(fork_inherits)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 400), state[32] = "", *zeros;
	pid_t pid;

	p[3 * PG] = 'p';
	pid = t_fork();
	if (!pid) {
		T_EQ(p[3 * PG], 'p');
		p[3 * PG] = 'c';
		T_EXPECT(nf_is(p + 5 * PG, 1, 5));
		memset(p + 7 * PG, 'c', PG);
		T_EQ(nf_count(p + 8 * PG, 1, 8, 292), 292);
		nf_proc(getpid(), "state", state, sizeof(state));
		T_STREQ(state, "inherited");
		/* Its own loader, with nobody to close it, ends by itself when all has been loaded or dropped */
		zeros = p + 300 * PG;
		T_OK(madvise(zeros, 50 * PG, MADV_DONTNEED));
		T_OK(munmap(zeros + 50 * PG, 50 * PG));
		T_EQ(nf_count(p + 8 * PG, 1, 8, 292), 292);
		for (int i = 0; i < 8; i++)
			(void)*(volatile char *)(p + i * PG);
		for (int i = 0; i < 5000 && strcmp(state, "none"); i++) {
			nf_proc(getpid(), "state", state, sizeof(state));
			t_sleep_ms(1);
		}
		T_STREQ(state, "none");
		T_EQ(nf_count_zero(zeros, 50), 50);
		_exit(0);
	}
	memset(p + 5 * PG, 'p', PG);
	T_EXITED(t_wait(pid), 0);
	T_EQ(p[3 * PG], 'p');
	T_EXPECT(nf_is(p + 7 * PG, 1, 7));
	T_EQ(p[5 * PG], 'p');
	/* The child's loading is not ours */
	T_EQ(nf_stat(uffd).missing, 397);
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_EQ(nf_count(p + 8 * PG, 1, 8, 392), 392);
}

/*
 * What a child does not touch is not loaded for it, however many there are; that it misses it keeps the image in use until
 * it has gone
 */
T_LIMIT(children_do_not_load, 60)
{
	unsigned long n = 16384; /* 64 MB; the limit is 1.3 of that, and something to run in */
	char *p, path[] = "/mnt/nf/imageXXXXXX", value[32] = "";
	int ready[2], uffd, image, fd;
	pid_t child[3];
	char c;

	close(T_OK(mkstemp(path)));
	image = nf_image_at(path, 1, n);
	T_OK(fsync(image));
	T_OK(posix_fadvise(image, 0, n * PG, POSIX_FADV_DONTNEED));
	cg_open("105M");
	cg_enter();
	p = nf_map(n);
	uffd = nf_uffd();
	nf_register(uffd, p, n);
	nf_attach(uffd, image, p, n, 0, 0, NO_START);
	T_OK(pipe(ready));
	for (int i = 0; i < 3; i++) {
		child[i] = t_fork();
		if (child[i])
			continue;
		c = nf_is(p + (5000 + i) * PG, 1, 5000 + i) ? 'y' : 'n';
		T_ASSERT(write(ready[1], &c, 1) == 1);
		pause();
	}
	for (int i = 0; i < 3; i++) {
		T_ASSERT(read(ready[0], &c, 1) == 1);
		T_EQ(c, 'y');
	}
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_EQ(nf_count(p, 1, 0, n), n);
	for (int i = 0; i < 3; i++) {
		nf_proc(child[i], "state", value, sizeof(value));
		T_STREQ(value, "inherited");
		nf_proc(child[i], "missing", value, sizeof(value));
		/* A chunk around the page that it touched, at most */
		T_RANGE(atol(value), n - 200, n - 1);
		T_ERR(open(path, O_WRONLY), ETXTBSY);
		kill(child[i], SIGKILL);
		T_KILLED(t_wait(child[i]), SIGKILL);
	}
	for (int i = 0; i < 10000 && (fd = open(path, O_WRONLY)) < 0; i++)
		t_sleep_ms(1);
	T_EXPECT(fd >= 0);
	T_OK(t_put(cg_path("../cgroup.procs"), "0"));
	cg_close();
	T_OK(unlink(path));
}

static long cg_anon(void)
{
	char text[8192];
	const char *line;

	T_ASSERT(t_get(cg_path("memory.stat"), text, sizeof(text)) > 0);
	line = strstr(text, "anon ");
	T_ASSERT(line);
	return atol(line + 5);
}

/* What is loaded is charged to the process's cgroup, as any memory */
T(charged)
{
	const unsigned long n = 2000;
	int image = nf_image(30, n);

	T_OK(fsync(image));
	cg_open("64M");
	for (unsigned int chunk = 1; chunk <= 100; chunk += 99) {
		T_OK(posix_fadvise(image, 0, n * PG, POSIX_FADV_DONTNEED));
		T_CHILD {
			char *p = nf_map(n);
			int uffd = nf_uffd();
			long before;

			cg_enter();
			nf_register(uffd, p, n);
			nf_attach(uffd, image, p, n, 0, chunk, NO_START);
			before = cg_anon();
			T_EQ(nf_count(p, 30, 0, n), n);
			T_RANGE(cg_anon() - before, (long)((n - 64) * PG), (long)((n + 256) * PG));
			T_OK(t_put(cg_path("../cgroup.procs"), "0"));
		}
	}
	cg_close();
}

/* What a plain checkpointer looks at before it reads: a page that is missing must not look like one that nobody has touched */
struct nf_region {
	uint64_t start, end, categories;
};

struct nf_scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, anyof, returned;
};

#define NF_SCAN		_IOWR('f', 16, struct nf_scan)
#define NF_PRESENT	(1 << 3)
#define NF_SWAPPED	(1 << 4)

/* A letter for each page: '.' nothing, 's' swapped, 'p' present */
static void pagemap(pid_t pid, const char *p, unsigned long n, char *seen)
{
	struct nf_region region[64];
	struct nf_scan scan = {
		.size = sizeof(scan), .start = (uintptr_t)p, .end = (uintptr_t)p + n * PG, .vec = (uintptr_t)region,
		.vec_len = ARRAY_LEN(region), .anyof = NF_PRESENT | NF_SWAPPED, .returned = NF_PRESENT | NF_SWAPPED,
	};
	uint64_t entry[2048];
	char path[64];
	int fd, got;

	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid);
	fd = T_OK(open(path, O_RDONLY | O_CLOEXEC));
	T_ASSERT(n <= ARRAY_LEN(entry));
	T_EQ(pread(fd, entry, n * 8, (uintptr_t)p / PG * 8), n * 8);
	seen[n] = 0;
	for (unsigned long i = 0; i < n; i++)
		seen[i] = entry[i] >> 63 ? 'p' : entry[i] >> 62 & 1 ? 's' : '.';
	/* The other way to ask says the same */
	got = T_OK(ioctl(fd, NF_SCAN, &scan));
	T_EQ(scan.walk_end, scan.end);
	for (unsigned long i = 0; i < n; i++) {
		char c = '.';

		for (int k = 0; k < got; k++)
			if ((uintptr_t)p + i * PG >= region[k].start && (uintptr_t)p + i * PG < region[k].end)
				c = region[k].categories & NF_PRESENT ? 'p' : 's';
		/* It may have come meanwhile */
		if ((c == '.') != (seen[i] == '.')) {
			t_note("page %lu: pagemap says %c, PAGEMAP_SCAN %c", i, seen[i], c);
			T_EXPECT(!"they say the same");
			break;
		}
	}
	close(fd);
}

static unsigned long letters(const char *seen, unsigned long from, unsigned long to, char c)
{
	unsigned long count = 0;

	for (; from < to; from++)
		count += seen[from] == c;
	return count;
}

T(seen_in_pagemap)
{
	unsigned long n = 1600, attached = 1500;
	char *p = nf_map(n), seen[2049];
	int uffd = nf_uffd(), image = nf_image(1, attached);
	unsigned char in[8];

	nf_register(uffd, p, n);
	/* All but every hundredth page, and the end */
	for (unsigned long i = 0; i < attached; i += 100)
		nf_attach(uffd, image, p + i * PG, 99, i, 1, NO_START);
	pagemap(getpid(), p, n, seen);
	for (unsigned long i = 0; i < attached; i += 100)
		T_EQ(letters(seen, i, i + 100, 's'), 99);
	T_EQ(letters(seen, 0, n, '.'), n - 99 * 15);
	/* In company of pages that are there */
	T_EQ(nf_count(p + 510 * PG, 1, 510, 10), 10);
	T_OK(munmap(p + 600 * PG, 100 * PG));
	T_OK(mincore(p + 505 * PG, 8 * PG, in));
	T_EQ(in[0], 0);
	T_EQ(in[7], 1);
	pagemap(getpid(), p, n, seen);
	T_EQ(letters(seen, 510, 520, 'p'), 10);
	T_EQ(letters(seen, 0, n, 'p'), 10);
	T_EQ(letters(seen, 600, 700, '.'), 100);
	T_EQ(letters(seen, 500, 600, 's'), 89);
	T_CHILD {
		pagemap(getpid(), p, n, seen);
		T_EQ(letters(seen, 500, 600, 's'), 89);
	}
	nf_start(uffd);
	/* Not one looks as if it were not there while it comes */
	for (int i = 0; i < 1000 && !nf_stat(uffd).end_ns; i++) {
		pagemap(getpid(), p + 700 * PG, 99, seen);
		if (letters(seen, 0, 99, '.'))
			break;
	}
	T_EQ(letters(seen, 0, 99, '.'), 0);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	pagemap(getpid(), p, n, seen);
	T_EQ(letters(seen, 0, n, 'p'), 99 * 14);
	T_EQ(letters(seen, 0, n, '.'), n - 99 * 14);
}

/* Three generations, the middle one gone; the parent's descriptor closed */
T(fork_of_fork)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 600);
	int pipefd[2];
	char c = 0;

	T_OK(pipe(pipefd));
	if (!t_fork()) {
		close(uffd);
		/* Not t_fork(): it outlives its parent */
		if (!fork()) {
			c = nf_count(p, 1, 0, 600) == 600 ? 'y' : 'n';
			T_ASSERT(write(pipefd[1], &c, 1) == 1);
		}
		_exit(0);
	}
	close(uffd);
	T_ASSERT(read(pipefd[0], &c, 1) == 1);
	T_EQ(c, 'y');
	T_EQ(nf_count(p, 1, 0, 600), 600);
}

T(fork_exceptions)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 64);

	T_OK(madvise(p, 16 * PG, MADV_WIPEONFORK));
	T_OK(madvise(p + 16 * PG, 16 * PG, MADV_DONTFORK));
	T_CHILD {
		T_EQ(nf_count_zero(p, 16), 16);
		T_EQ(nf_count(p + 32 * PG, 1, 32, 32), 32);
	}
	T_EQ(nf_count(p, 1, 0, 64), 64);
}

/* Leaving with most of it missing, in several ways: nobody hangs, nothing is left behind */
T(exit_exec_kill)
{
	for (int how = 0; how < 4; how++) {
		pid_t pid = t_fork();

		if (!pid) {
			int uffd;
			char *p = nf_missing(&uffd, 1, 2000);

			nf_load(uffd, NULL, 0, how & 1 ? UFFD_LAZY_START : 0, NULL);
			T_EXPECT(nf_is(p + 1000 * PG, 1, 1000));
			if (how & 2)
				execl("/bin/true", "true", NULL);
			_exit(0);
		}
		T_EXITED(t_wait(pid), 0);
	}
	/* The image is not held for ever */
	for (int i = 0; i < 5000; i++) {
		char path[PATH_MAX];
		int fd = open(t_path(path, "image1"), O_WRONLY);

		if (fd >= 0) {
			T_EXPECT(fd >= 0);
			return;
		}
		T_ASSERT(errno == ETXTBSY);
		t_sleep_ms(1);
	}
	T_EXPECT(!"the image is still in use");
}

T(mprotect_meanwhile)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 64);

	T_OK(mprotect(p, 16 * PG, PROT_READ));
	T_OK(mprotect(p + 16 * PG, 16 * PG, PROT_NONE));
	T_EQ(nf_count(p, 1, 0, 4), 4);
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_EQ(nf_stat(uffd).by_background, 60);
	T_OK(mprotect(p, 32 * PG, PROT_READ | PROT_WRITE));
	T_EQ(nf_count(p, 1, 0, 64), 64);
	p[0] = 3;
	p[20 * PG] = 3;
	T_EQ(p[0] + p[20 * PG], 6);
	T_EXPECT(nf_is(p + 21 * PG, 1, 21));
}

T(mlock_and_populate)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 64);

	T_OK(mlock(p, 16 * PG));
	T_EQ(nf_stat(uffd).missing, 48);
	T_OK(madvise(p + 16 * PG, 16 * PG, 22 /* POPULATE_READ */));
	T_OK(madvise(p + 32 * PG, 16 * PG, 23 /* POPULATE_WRITE */));
	T_EQ(nf_stat(uffd).missing, 16);
	T_EQ(nf_count(p, 1, 0, 64), 64);
}

/* The kernel as the one that touches: copies, pins, futexes */
T(system_calls)
{
	int uffd, fd[2], file;
	char *p = nf_missing(&uffd, 1, 64), path[PATH_MAX], *want = malloc(PG);
	struct iovec iov = { p + 10 * PG, PG };

	T_OK(pipe(fd));
	nf_fill(want, 1, 4);
	T_EQ(write(fd[1], p + 4 * PG, PG), PG);
	T_EQ(read(fd[0], p + 5 * PG + 100, 1000), 1000);
	T_MEMEQ(p + 5 * PG + 100, want, 1000);
	/* The rest of the page that was written to is the image's */
	nf_fill(want, 1, 5);
	T_MEMEQ(p + 5 * PG, want, 100);
	T_MEMEQ(p + 5 * PG + 1100, want + 1100, PG - 1100);
	T_EQ(read(fd[0], want, PG), PG - 1000);
	T_EQ(vmsplice(fd[1], &iov, 1, 0), PG);
	T_EQ(read(fd[0], want, PG), PG);
	T_EXPECT(nf_is(want, 1, 10));
	file = T_OK(open(t_path(path, "direct"), O_RDWR | O_CREAT | O_DIRECT, 0600));
	T_EQ(pwrite(file, p + 20 * PG, 4 * PG, 0), 4 * PG);
	T_EQ(pread(file, p + 30 * PG, 2 * PG, PG), 2 * PG);
	T_EQ(nf_count(p + 30 * PG, 1, 21, 2), 2);
	T_ERR(syscall(SYS_futex, p + 40 * PG, FUTEX_WAIT, 0, NULL, NULL, 0), EAGAIN);
	T_EXPECT(nf_is(p + 40 * PG, 1, 40));
	T_EXPECT(nf_is(p + 29 * PG, 1, 29));
}

/* Debuggers and checkpointers, of a process that is stopped and one that is not */
T(others_look)
{
	char *p = nf_map(64), *buf = malloc(8 * PG), path[64];
	int image = nf_image(1, 64), mem, sync[2];
	struct iovec to = { buf, 8 * PG }, from = { p + 8 * PG, 8 * PG };
	pid_t pid;
	char c;

	T_OK(pipe(sync));
	pid = t_fork();
	if (!pid) {
		int uffd = nf_uffd();

		nf_register(uffd, p, 64);
		nf_attach(uffd, image, p, 64, 0, 1, NO_START);
		T_ASSERT(write(sync[1], "1", 1) == 1);
		for (;;)
			pause();
	}
	T_ASSERT(read(sync[0], &c, 1) == 1);
	T_EQ(process_vm_readv(pid, &to, 1, &from, 1, 0), 8 * PG);
	T_EQ(nf_count(buf, 1, 8, 8), 8);
	from.iov_base = p + 20 * PG;
	to.iov_len = from.iov_len = 100;
	memset(buf, 'x', 100);
	T_EQ(process_vm_writev(pid, &to, 1, &from, 1, 0), 100);
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	mem = T_OK(open(path, O_RDWR));
	T_EQ(pread(mem, buf, 2 * PG, (off_t)(uintptr_t)p + 30 * PG), 2 * PG);
	T_EQ(nf_count(buf, 1, 30, 2), 2);
	T_EQ(pread(mem, buf, PG, (off_t)(uintptr_t)p + 20 * PG), PG);
	T_EQ(buf[99], 'x');
	T_EQ(*(uint64_t *)(buf + 104), nf_word(1, 20, 13));
	T_OK(ptrace(PTRACE_ATTACH, pid, 0, 0));
	T_ASSERT(WIFSTOPPED(t_wait(pid)) || 1);
	errno = 0;
	T_EQ((uint64_t)ptrace(PTRACE_PEEKDATA, pid, p + 40 * PG + 8, 0), nf_word(1, 40, 1));
	T_EQ(errno, 0);
	T_OK(ptrace(PTRACE_POKEDATA, pid, p + 41 * PG, 7));
	T_EQ((uint64_t)ptrace(PTRACE_PEEKDATA, pid, p + 41 * PG + 8, 0), nf_word(1, 41, 1));
	T_OK(ptrace(PTRACE_DETACH, pid, 0, 0));
	kill(pid, SIGKILL);
	T_KILLED(t_wait(pid), SIGKILL);
}

/* A core dump does not fault pages in: all must be there before */
T(coredump_is_whole)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	char path[PATH_MAX], old[256], pattern[PATH_MAX + 8];
	unsigned long good = 0;
	struct stat sb;
	char *core;
	pid_t pid;
	int fd;

	T_ASSERT(t_get("/proc/sys/kernel/core_pattern", old, sizeof(old)) >= 0);
	t_path(path, "core");
	snprintf(pattern, sizeof(pattern), "%s", path);
	T_OK(t_put("/proc/sys/kernel/core_pattern", pattern));
	T_OK(t_put("/proc/sys/kernel/core_uses_pid", "0"));
	pid = t_fork();
	if (!pid) {
		int uffd;
		char *p = nf_missing(&uffd, 1, 200);

		prctl(PR_SET_DUMPABLE, 1);
		T_OK(setrlimit(RLIMIT_CORE, &unlimited));
		T_EXPECT(nf_is(p, 1, 0));
		abort();
	}
	T_KILLED(t_wait(pid), SIGABRT);
	T_OK(t_put("/proc/sys/kernel/core_pattern", old));
	fd = T_OK(open(path, O_RDONLY));
	T_OK(fstat(fd, &sb));
	core = mmap(NULL, sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	T_ASSERT(core != MAP_FAILED);
	for (off_t off = 0; off + (off_t)PG <= sb.st_size; off += PG)
		if (*(uint64_t *)(core + off) == nf_word(1, good, 0))
			good += nf_is(core + off, 1, good);
	T_EQ(good, 200);
}

/* Where nothing is dumped, nothing is loaded for it */
T(no_core_no_load)
{
	struct rlimit none = { 0, 0 };
	int ready[2], uffd, pidfd;
	char number[16] = "";
	pid_t pid;

	T_OK(pipe(ready));
	pid = t_fork();
	if (!pid) {
		nf_missing(&uffd, 1, 200);
		prctl(PR_SET_DUMPABLE, 1);
		T_OK(setrlimit(RLIMIT_CORE, &none));
		T_ASSERT(dprintf(ready[1], "%d", uffd) > 0);
		pause();
		abort();
	}
	T_ASSERT(read(ready[0], number, sizeof(number) - 1) > 0);
	pidfd = T_OK(syscall(SYS_pidfd_open, pid, 0));
	uffd = T_OK(syscall(SYS_pidfd_getfd, pidfd, atoi(number), 0));
	T_OK(kill(pid, SIGABRT));
	T_KILLED(t_wait(pid), SIGABRT);
	T_EQ(nf_stat(uffd).by_load, 0);
}

/* A page that moves takes the hole that it fills along, or leaves it: refused */
T(userfaultfd_move)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 8), *other = nf_map(8);
	struct nf_move out = { (uintptr_t)other, (uintptr_t)p, PG, 0, 0 }, in = { (uintptr_t)p, (uintptr_t)other, PG, 0, 0 };
	int second = nf_uffd_with(0);

	memset(other, 1, 8 * PG);
	T_ERR(ioctl(uffd, NF_MOVE, &in), EBUSY);
	T_OK(madvise(other, 8 * PG, MADV_DONTNEED));
	nf_register(second, other, 8);
	T_EXPECT(nf_is(p, 1, 0));
	T_ERR(ioctl(second, NF_MOVE, &out), EBUSY);
	T_EQ(nf_count(p, 1, 0, 8), 8);
}

/* Private memory of /dev/zero is anonymous, although it has a file */
T(private_dev_zero)
{
	int uffd = nf_uffd(), image = nf_image(1, 64), zero = T_OK(open("/dev/zero", O_RDWR)), null = T_OK(open("/dev/null", O_WRONLY));
	char *p = mmap(NULL, 64 * PG, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero, 0);

	T_ASSERT(p != MAP_FAILED);
	nf_register(uffd, p, 64);
	nf_attach(uffd, image, p, 64, 0, 1, NO_START);
	T_EXPECT(nf_is(p, 1, 0));
	T_EQ(write(null, p + PG, PG), (ssize_t)PG);
	T_OK(nf_load(uffd, p + 10 * PG, 10, 0, NULL));
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_EQ(nf_count(p, 1, 0, 64), 64);
}

/* The same for who answers faults himself */
T(private_dev_zero_copy)
{
	int uffd = nf_uffd_with(0), zero = T_OK(open("/dev/zero", O_RDWR));
	char *p = mmap(NULL, 8 * PG, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero, 0), *mine = nf_map(1);
	struct uffdio_copy copy = { .dst = (uintptr_t)p, .src = (uintptr_t)mine, .len = PG };

	T_ASSERT(p != MAP_FAILED);
	nf_fill(mine, 2, 0);
	nf_register(uffd, p, 8);
	T_OK(ioctl(uffd, UFFDIO_COPY, &copy));
	T_EXPECT(nf_is(p, 2, 0));
}

/*
 * In the middle of a system call that has locked an inode, the image's must not be taken. lockdep sees it also where nobody
 * is in the way
 */
T(system_calls_with_locks)
{
	char path[] = "/mnt/nf/imageXXXXXX", to[] = "/mnt/nf/toXXXXXX", page[PG];
	int out = T_OK(mkstemp(to)), uffd, image;
	char *p;

	close(T_OK(mkstemp(path)));
	for (int direct = 0; direct < 2; direct++) {
		close(nf_image_at(path, 1, 256));
		image = T_OK(open(path, O_RDONLY | (direct ? O_DIRECT : 0)));
		p = nf_map(256);
		uffd = nf_uffd();
		nf_register(uffd, p, 256);
		nf_attach(uffd, image, p, 256, 0, 100, NO_START);
		T_OK(fsync(image));
		T_OK(posix_fadvise(image, 0, 256 * PG, POSIX_FADV_DONTNEED));
		/* Writes from what is missing, and reads of the image into it */
		T_EQ(pwrite(out, p + 3 * PG, PG, 0), (ssize_t)PG);
		T_EQ(pread(out, page, PG, 0), (ssize_t)PG);
		T_EXPECT(nf_is(page, 1, 3));
		T_EQ(pread(image, p + 128 * PG, PG, 129 * PG), (ssize_t)PG);
		T_EXPECT(nf_is(p + 128 * PG, 1, 129));
		T_EQ(nf_count(p, 1, 0, 128) + nf_count(p + 129 * PG, 1, 129, 127), 255);
		/* Until then, the image cannot be written */
		nf_start(uffd);
		T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
		close(uffd);
		close(image);
		T_OK(munmap(p, 256 * PG));
	}
	T_OK(unlink(path));
	T_OK(unlink(to));
}

/* How many of `n` pages of a file are in memory */
static unsigned long cached(int fd, unsigned long n)
{
	unsigned char in[2048];
	unsigned long count = 0;
	void *p = mmap(NULL, n * PG, PROT_READ, MAP_SHARED, fd, 0);

	T_ASSERT(p != MAP_FAILED && n <= sizeof(in));
	T_OK(mincore(p, n * PG, in));
	for (unsigned long i = 0; i < n; i++)
		count += in[i] & 1;
	T_OK(munmap(p, n * PG));
	return count;
}

/* A load has its whole range read ahead, however long. Of an image that seems changed nothing else is read */
T(reads_ahead)
{
	char path[] = "/mnt/nf/imageXXXXXX";
	unsigned long n = 2048;
	int image, uffd;
	char *p = nf_map(n);

	close(T_OK(mkstemp(path)));
	image = nf_image_at(path, 1, n);
	uffd = nf_uffd();
	nf_register(uffd, p, n);
	nf_attach(uffd, image, p, n, 0, 0, NO_START);
	T_OK(fsync(image));
	T_OK(posix_fadvise(image, 0, n * PG, POSIX_FADV_DONTNEED));
	T_EQ(cached(image, n), 0);
	T_OK(futimens(image, (struct timespec[2]){ { 1, 0 }, { 1, 0 } }));
	T_ERR(nf_load(uffd, p, n, 0, NULL), EIO);
	for (int i = 0; i < 5000 && cached(image, n) < n; i++)
		t_sleep_ms(1);
	T_EQ(cached(image, n), n);
	T_OK(unlink(path));
}

/* Pages that have been loaded and swapped out are not missing */
T_LIMIT(swapped_out, 40)
{
	int uffd;
	char *p;

	swap_on(2048);
	p = nf_missing(&uffd, 1, 512);
	T_EQ(nf_count(p, 1, 0, 256), 256);
	T_OK(madvise(p, 512 * PG, MADV_PAGEOUT));
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_OK(madvise(p, 512 * PG, MADV_PAGEOUT));
	T_EQ(nf_count(p, 1, 0, 512), 512);
	T_EQ(nf_stat(uffd).by_fault + nf_stat(uffd).by_background, 512);
	T_OK(swapoff(SWAP_FILE));
}

/* Where huge pages are wanted: no page of zeros covers what is missing; later it can be one */
T(huge_pages)
{
	unsigned long huge = 512;
	char *map = nf_map(3 * huge), *p = (char *)(((uintptr_t)map + huge * PG - 1) & ~(huge * PG - 1));
	int uffd = nf_uffd(), image = nf_image(1, 2 * huge);

	T_OK(madvise(p, 2 * huge * PG, MADV_HUGEPAGE));
	nf_register(uffd, p, 2 * huge);
	nf_attach(uffd, image, p, 2 * huge, 0, 1, NO_START);
	T_EXPECT(nf_is(p + 7 * PG, 1, 7));
	p[600 * PG] = 1;
	T_EQ(nf_stat(uffd).missing, 2 * huge - 2);
	T_ERR(madvise(p, huge * PG, MADV_COLLAPSE), EBUSY);
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_OK(madvise(p, huge * PG, MADV_COLLAPSE));
	T_EQ(nf_count(p, 1, 0, 600), 600);
	T_EQ(nf_count(p + 601 * PG, 1, 601, 2 * huge - 601), 2 * huge - 601);
}

/* Where a first touch would get a huge page, what is wholly missing comes as one, from the worker and from a load */
T(huge_pages_at_once)
{
	unsigned long huge = 512, n = 6 * huge;
	char *map = nf_map(n + 2 * huge), *p = (char *)(((uintptr_t)map + huge * PG - 1) & ~(huge * PG - 1));
	int uffd, image = nf_image(1, n);
	uint64_t loaded = 0;

	for (int wanted = 1; wanted >= 0; wanted--) {
		uffd = nf_uffd();
		T_OK(madvise(p, n * PG, wanted ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
		nf_register(uffd, p, n);
		/* The last one's pages are not all of one piece */
		nf_attach(uffd, image, p, 5 * huge, 0, 100, NO_START);
		nf_attach(uffd, image, p + 5 * huge * PG, 100, 0, 100, NO_START);
		nf_attach(uffd, image, p + (5 * huge + 100) * PG, huge - 100, 7, 100, NO_START);
		/* One has been touched, of one some has been dropped */
		p[(huge + 256) * PG] = 1;
		T_OK(madvise(p + (2 * huge + 5) * PG, PG, MADV_DONTNEED));
		T_OK(nf_load(uffd, p + 3 * huge * PG, huge, 0, &loaded));
		T_EQ(loaded, huge);
		T_EQ(nf_huge_kb(p), wanted ? 2048 : 0);
		/* Of what comes first, a part is no reason for all of it */
		T_OK(nf_load(uffd, p + (4 * huge + 10) * PG, 10, UFFD_LAZY_FIRST, NULL));
		nf_start(uffd);
		T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
		/* The first and the one that was loaded; of the fifth a part was there already */
		T_EQ(nf_huge_kb(p), wanted ? 4096 : 0);
		T_EQ(nf_stat(uffd).missing, 0);
		T_EQ(nf_count(p, 1, 0, huge + 256), huge + 256);
		T_EQ(nf_count(p + (huge + 257) * PG, 1, huge + 257, 260), 260);
		T_EXPECT(nf_zero(p + (2 * huge + 5) * PG));
		T_EQ(nf_count(p + (2 * huge + 6) * PG, 1, 2 * huge + 6, 3 * huge - 6), 3 * huge - 6);
		T_EQ(nf_count(p + 5 * huge * PG, 1, 0, 100) + nf_count(p + (5 * huge + 100) * PG, 1, 7, huge - 100), huge);
		/* It is ordinary memory */
		p[3 * huge * PG] = 2;
		T_CHILD {
			T_EQ(p[3 * huge * PG], 2);
			p[3 * huge * PG + 1] = 3;
		}
		T_EXPECT(p[3 * huge * PG + 1] != 3);
		close(uffd);
		T_OK(madvise(p, n * PG, MADV_DONTNEED));
	}
}

/* Two that fill the same page: the first wins, the loader counts it as gone */
T(populated_by_others)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 64), *mine = nf_map(64);
	struct uffdio_copy copy = { .dst = (uintptr_t)p + 4 * PG, .src = (uintptr_t)mine, .len = 4 * PG };

	memset(mine, 'm', 4 * PG);
	T_OK(ioctl(uffd, UFFDIO_COPY, &copy));
	T_EQ(p[4 * PG], 'm');
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_EQ(p[7 * PG], 'm');
	T_EQ(nf_stat(uffd).removed, 4);
	T_EQ(nf_count(p, 1, 0, 4) + nf_count(p + 8 * PG, 1, 8, 56), 60);
}

T(unregister_is_refused)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 64);
	struct uffdio_range range = { (uintptr_t)p + 8 * PG, 8 * PG };

	T_ERR(ioctl(uffd, UFFDIO_UNREGISTER, &range), EBUSY);
	T_EQ(nf_count(p + 8 * PG, 1, 8, 8), 8);
	T_OK(ioctl(uffd, UFFDIO_UNREGISTER, &range));
	T_EQ(nf_count(p, 1, 0, 64), 64);
}

/* Without a loader all is as ever: faults and events are reported, and wait for an answer */
static void *dontneed(void *p)
{
	return (void *)(uintptr_t)madvise(p, PG, MADV_DONTNEED);
}

T(stock_userfaultfd)
{
	int uffd = nf_uffd();
	char *p = nf_map(8), *mine = nf_map(1);
	struct uffdio_copy copy = { .dst = (uintptr_t)p, .src = (uintptr_t)mine, .len = PG };
	struct pollfd pfd = { .fd = uffd, .events = POLLIN };
	struct uffd_msg msg;
	pthread_t th;
	void *ret;

	nf_fill(mine, 2, 0);
	nf_register(uffd, p, 8);
	T_OK(ioctl(uffd, UFFDIO_COPY, &copy));
	T_EXPECT(nf_is(p, 2, 0));
	T_OK(-pthread_create(&th, NULL, dontneed, p));
	T_EQ(poll(&pfd, 1, 10000), 1);
	T_EQ(read(uffd, &msg, sizeof(msg)), sizeof(msg));
	T_EQ(msg.event, UFFD_EVENT_REMOVE);
	T_OK(-pthread_join(th, &ret));
	T_EXPECT(!ret);
	T_ERR(nf_load(uffd, p, 1, 0, NULL), ENXIO);
}
