// SPDX-License-Identifier: GPL-2.0-or-later
/* /proc/PID/touched_set: exactly what was touched, whatever happened to it meanwhile. */
#include <sys/uio.h>

#include "../lib/apparmor.h"
#include "../lib/swap.h"
#include "../no_fault/nf.h"

#define PAGES	64

static char *area;		/* PAGES pages, all of them there */
static char found[PAGES + 1];	/* what was touched: 'x' */
static unsigned long tracked_ns, removals, removal_ns;	/* what tracking cost */

static int start_of(pid_t pid)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/touched_set", pid);
	fd = T_OK(open(path, O_RDWR | O_CLOEXEC));
	T_EQ(write(fd, "start", 5), 5);
	return fd;
}

/* Where the area's pages, now or once, are in the list */
static void look(int fd)
{
	unsigned long low, high;
	char line[128], state[16];
	FILE *f;

	memset(found, '.', PAGES);
	T_OK(lseek(fd, 0, SEEK_SET));
	f = fdopen(fd, "r");
	T_ASSERT(f && fgets(line, sizeof(line), f));
	T_EQ(sscanf(line, "# %15s %lu %lu %lu", state, &tracked_ns, &removals, &removal_ns), 4);
	T_STREQ(state, "stopped");
	while (fgets(line, sizeof(line), f)) {
		T_EQ(sscanf(line, "%lx-%lx", &low, &high), 2);
		for (int i = 0; i < PAGES; i++) {
			unsigned long addr = (unsigned long)area + i * t_page();

			if (addr >= low && addr < high)
				found[i] = 'x';
		}
	}
	fclose(f);
}

static void stop(int fd)
{
	T_EQ(write(fd, "stop", 4), 4);
	look(fd);
}

static void expect(const char *pages)
{
	char want[PAGES + 1] = {};

	memset(want, '.', PAGES);
	memcpy(want, pages, strlen(pages));
	T_STREQ(found, want);
}

static void touch(int page)
{
	(void)*(volatile char *)(area + page * t_page());
}

static void store(int page)
{
	area[page * t_page()]++;
}

static void setup(void)
{
	area = mmap(NULL, PAGES * t_page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	T_ASSERT(area != MAP_FAILED);
	T_OK(madvise(area, PAGES * t_page(), MADV_NOHUGEPAGE));
	memset(area, 1, PAGES * t_page());
}

static unsigned long khugepaged_scans(void)
{
	char text[32];

	T_ASSERT(t_get("/sys/kernel/mm/transparent_hugepage/khugepaged/full_scans", text, sizeof(text)) > 0);
	return strtoul(text, NULL, 10);
}

T(reads_and_writes)
{
	int fd;

	setup();
	fd = start_of(getpid());
	touch(1);
	store(3);
	touch(62);
	stop(fd);
	expect(".x.x..........................................................x.");
}

T(nothing_before_the_start)
{
	int fd;

	setup();
	fd = start_of(getpid());
	stop(fd);
	expect("");
	T_ASSERT(tracked_ns);
	T_EQ(removals, 0UL);
	T_EQ(removal_ns, 0UL);
}

/* What was in the TLB at the start must be seen, too */
T(twice)
{
	setup();
	for (int i = 0; i < 20; i++) {
		int fd;

		touch(5);
		fd = start_of(getpid());
		touch(5);
		stop(fd);
		expect(".....x");
	}
}

T(other_threads_processor)
{
	pid_t pid;
	int fd;

	setup();
	pid = t_fork();
	if (!pid) {
		for (;;) {
			touch(7);
			if (t_word[0])
				store(9);
		}
	}
	t_sleep_ms(50);
	fd = start_of(pid);
	t_word[0] = 1;
	t_sleep_ms(100);
	stop(fd);
	t_reap(pid);
	expect(".......x.x");
}

T(unmapped)
{
	int fd;

	setup();
	fd = start_of(getpid());
	touch(2);
	T_OK(munmap(area, 4 * t_page()));
	stop(fd);
	expect("..x");
	T_EQ(removals, 1UL);
	T_RANGE(removal_ns, 1UL, tracked_ns);
}

/* What is mapped there later is not in the checkpoint */
T(unmapped_and_mapped_again)
{
	int fd;

	setup();
	fd = start_of(getpid());
	touch(2);
	T_ASSERT(mmap(area, 8 * t_page(), PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS,
		      -1, 0) == area);
	for (int i = 0; i < 10; i++)
		store(i);
	stop(fd);
	expect("..x.....xx");
}

T(heap)
{
	char *heap = sbrk(PAGES * t_page());
	int fd;

	T_ASSERT(heap != (void *)-1);
	area = (char *)(((uintptr_t)heap + t_page() - 1) & ~(t_page() - 1));
	memset(heap, 1, PAGES * t_page());
	fd = start_of(getpid());
	touch(40);
	T_ASSERT(sbrk(-32 * (long)t_page()) != (void *)-1);
	T_ASSERT(sbrk(32 * t_page()) != (void *)-1);
	store(41);
	stop(fd);
	T_EQ(found[40], 'x');
	T_EQ(found[41], '.');
}

T(dontneed)
{
	int fd;

	setup();
	fd = start_of(getpid());
	touch(4);
	T_OK(madvise(area, 16 * t_page(), MADV_DONTNEED));
	store(5);
	touch(20);
	stop(fd);
	expect("....x...............x");
}

T(freed)
{
	int fd;

	setup();
	fd = start_of(getpid());
	touch(4);
	T_OK(madvise(area, 16 * t_page(), MADV_FREE));
	store(5);
	touch(20);
	stop(fd);
	expect("....x...............x");
}

T(moved)
{
	int fd;

	setup();
	fd = start_of(getpid());
	touch(6);
	T_ASSERT(mremap(area, PAGES * t_page(), 4 * PAGES * t_page(), MREMAP_MAYMOVE) != MAP_FAILED);
	stop(fd);
	expect("......x");
}

T(moved_by_userfaultfd)
{
	struct nf_move move = { .len = 4 * t_page() };
	int fd, uffd = nf_uffd_with(0);
	char *to = nf_map(PAGES);

	nf_register(uffd, to, PAGES);
	setup();
	fd = start_of(getpid());
	touch(6);
	touch(9);
	move.dst = (uintptr_t)to;
	move.src = (uintptr_t)area + 4 * t_page();
	T_OK(ioctl(uffd, NF_MOVE, &move));
	T_EQ(move.moved, 4 * (int64_t)t_page());
	/* Another page by now */
	store(5);
	stop(fd);
	expect("......x..x");
	close(uffd);
}

T(protected)
{
	int fd;

	setup();
	fd = start_of(getpid());
	touch(6);
	T_OK(mprotect(area, PAGES * t_page(), PROT_READ));
	touch(7);
	T_OK(mprotect(area, PAGES * t_page(), PROT_NONE));
	stop(fd);
	expect("......xx");
}

/* Reclaim and its kin clear accessed bits */
T(cold)
{
	int fd;

	setup();
	fd = start_of(getpid());
	touch(3);
	T_OK(madvise(area, PAGES * t_page(), MADV_COLD));
	touch(8);
	T_OK(t_put("/proc/self/clear_refs", "1"));
	touch(9);
	stop(fd);
	expect("...x....xx");
}

T_LIMIT(reclaim, 60)
{
	char path[64];
	int fd, gone = 0;

	swap_on(2048);
	setup();
	fd = start_of(getpid());
	touch(3);
	touch(60);
	/* All of it, by the code that kswapd runs */
	snprintf(path, sizeof(path), "/sys/fs/cgroup/t%d", getpid());
	T_OK(mkdir(path, 0755));
	strcat(path, "/cgroup.procs");
	T_OK(t_put(path, "0"));
	*strrchr(path, '/') = 0;
	strcat(path, "/memory.reclaim");
	for (int i = 0; i < 8; i++)
		t_put(path, "1M");
	T_OK(madvise(area, PAGES * t_page(), MADV_PAGEOUT));
	{
		uint64_t bits;
		int map = T_OK(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));

		for (int i = 0; i < PAGES; i++) {
			T_EQ(pread(map, &bits, 8, ((uintptr_t)area / t_page() + i) * 8), 8);
			gone += bits >> 62 & 1;
		}
		close(map);
	}
	/* Nearly all have been through the hooks of reclaim; what comes back is touched, too */
	T_ASSERT(gone > PAGES / 2);
	touch(40);
	stop(fd);
	expect("...x....................................x...................x");
	T_OK(t_put("/sys/fs/cgroup/cgroup.procs", "0"));
	*strrchr(path, '/') = 0;
	rmdir(path);
	T_OK(swapoff(SWAP_FILE));
}

/* A device, or another process, reads it by way of GUP: no accessed bit is set */
T(device)
{
	struct iovec iov;
	int fd, p[2];

	setup();
	T_OK(pipe(p));
	iov = (struct iovec){ area + 11 * t_page(), 2 * t_page() };
	fd = start_of(getpid());
	T_EQ(vmsplice(p[1], &iov, 1, 0), 2 * t_page());
	stop(fd);
	expect("...........xx");
}

T(system_call)
{
	int fd, p[2];

	setup();
	T_OK(pipe(p));
	fd = start_of(getpid());
	T_EQ(write(p[1], area + 12 * t_page(), 100), 100);
	T_EQ(read(p[0], area + 14 * t_page(), 100), 100);
	stop(fd);
	expect("............x.x");
}

T(forked)
{
	int fd;

	setup();
	fd = start_of(getpid());
	touch(1);
	T_CHILD {
		store(2);
		touch(3);
	}
	store(4);
	stop(fd);
	expect(".x..x");
}

T(process_that_died)
{
	pid_t pid;
	int fd, p[2];
	char c;

	setup();
	T_OK(pipe(p));
	pid = t_fork();
	if (!pid) {
		T_EQ(read(p[0], &c, 1), 1);
		store(21);
		_exit(0);
	}
	fd = start_of(pid);
	T_EQ(write(p[1], "x", 1), 1);
	T_EXITED(t_wait(pid), 0);
	stop(fd);
	expect(".....................x");
}

T(huge)
{
	size_t size = 2 << 20;
	char *p = mmap(NULL, 3 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t bits;
	int fd, map;

	T_ASSERT(p != MAP_FAILED);
	p = (char *)(((uintptr_t)p + size - 1) & ~(size - 1));
	if (madvise(p, 2 * size, MADV_HUGEPAGE))
		t_skip("no transparent huge pages");
	memset(p, 1, 2 * size);
	map = T_OK(open("/proc/kpageflags", O_RDONLY | O_CLOEXEC));
	fd = T_OK(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
	T_EQ(pread(fd, &bits, 8, (uintptr_t)p / t_page() * 8), 8);
	T_EQ(pread(map, &bits, 8, (bits & ((1ull << 55) - 1)) * 8), 8);
	close(fd);
	close(map);
	if (!(bits >> 22 & 1))
		t_skip("no huge page was to be had");

	/* One is tracked as a whole, and ends where it ends */
	area = p + size - PAGES / 2 * t_page();
	fd = start_of(getpid());
	(void)*(volatile char *)(p + 100 * t_page());
	T_OK(madvise(p, 2 * size, MADV_COLD));
	stop(fd);
	expect("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");

	/* Unmapped in part, it is split */
	fd = start_of(getpid());
	(void)*(volatile char *)(p + size);
	T_OK(munmap(area + 48 * t_page(), 4 * t_page()));
	stop(fd);
	expect("................................xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
}

T(zeros_and_shared)
{
	int fd;

	area = mmap(NULL, PAGES * t_page(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	T_ASSERT(area != MAP_FAILED);
	memset(area, 1, PAGES * t_page());
	fd = start_of(getpid());
	touch(1);
	stop(fd);
	expect("");
	/* Never written: the checkpoint has no such page */
	area = mmap(NULL, PAGES * t_page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	T_ASSERT(area != MAP_FAILED);
	touch(1);
	fd = start_of(getpid());
	touch(1);
	store(2);
	stop(fd);
	expect("");
}

T(errors)
{
	int a, b;

	setup();
	a = start_of(getpid());
	b = T_OK(open("/proc/self/touched_set", O_RDWR | O_CLOEXEC));
	T_ERR(write(b, "start", 5), EBUSY);
	T_ERR(write(b, "stop", 4), EINVAL);
	T_ERR(write(a, "start", 5), EINVAL);
	T_ERR(write(a, "other", 5), EINVAL);
	T_ERR(write(a, "stop and more", 13), EINVAL);
	T_ERR(write(a, "stop\0\0\0\0", 8), EINVAL);
	T_ERR(write(a, t_none(), 4), EFAULT);
	/* The end of the first makes place */
	close(a);
	T_EQ(write(b, "start\n", 6), 6);
	touch(3);
	T_EQ(write(b, "stop\n", 5), 5);
	T_ERR(write(b, "stop", 4), EINVAL);
	T_ERR(write(b, "start", 5), EINVAL);
	look(b);
	expect("...x");
}

T(permission)
{
	pid_t pid = t_fork();

	if (!pid)
		for (;;)
			pause();
	T_CHILD {
		char path[64];

		t_drop_root();
		snprintf(path, sizeof(path), "/proc/%d/touched_set", pid);
		T_ERR(open(path, O_RDWR | O_CLOEXEC), EACCES);
	}
	t_reap(pid);
}

/* Tracking slows the process down: who may only look at it may not */
T(permission_to_look)
{
	pid_t pid;

	aa_load("abi <kernel>,\nprofile perdure-looks flags=(attach_disconnected) { file, capability, signal, ptrace (read), }\n");
	pid = t_fork();
	if (!pid)
		for (;;)
			pause();
	T_CHILD {
		char path[64];

		aa_confine("perdure-looks");
		snprintf(path, sizeof(path), "/proc/%d/maps", pid);
		T_OK(close(T_OK(open(path, O_RDONLY | O_CLOEXEC))));
		snprintf(path, sizeof(path), "/proc/%d/touched_set", pid);
		T_ERR(open(path, O_RDWR | O_CLOEXEC), EACCES);
	}
	t_reap(pid);
}

/* Pages of files are not in the set: they are not in a checkpoint's images either */
T(files)
{
	char path[PATH_MAX];
	int fd, image = T_OK(open(t_path(path, "file"), O_RDWR | O_CREAT | O_CLOEXEC, 0600));

	T_OK(ftruncate(image, PAGES * t_page()));
	area = mmap(NULL, PAGES * t_page(), PROT_READ | PROT_WRITE, MAP_PRIVATE, image, 0);
	T_ASSERT(area != MAP_FAILED);
	for (int i = 0; i < PAGES; i++)
		touch(i);
	store(4);
	fd = start_of(getpid());
	touch(2);
	touch(4);
	stop(fd);
	expect("....x");
}

/* khugepaged would join what was touched with what was not: it leaves who is tracked alone */
T_LIMIT(not_collapsed, 60)
{
	const char *const sleep_ms = "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs";
	const char *const alloc_ms = "/sys/kernel/mm/transparent_hugepage/khugepaged/alloc_sleep_millisecs";
	const size_t huge = 2 << 20;
	bool collapsed = false;
	char *p, was_sleep[32], was_alloc[32];
	unsigned long full;
	int fd;

	if (t_get(sleep_ms, was_sleep, sizeof(was_sleep)) <= 0 || t_get(alloc_ms, was_alloc, sizeof(was_alloc)) <= 0)
		t_skip("no huge pages in this kernel");
	T_OK(t_put(sleep_ms, "1"));
	T_OK(t_put(alloc_ms, "1"));
	p = mmap(NULL, 2 * huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	T_ASSERT(p != MAP_FAILED);
	area = (char *)(((uintptr_t)p + huge - 1) & -huge);
	T_OK(madvise(area, huge, MADV_NOHUGEPAGE));
	for (size_t i = 0; i < huge; i += t_page())
		area[i] = 1;
	fd = start_of(getpid());
	full = khugepaged_scans();
	T_OK(madvise(area, huge, MADV_HUGEPAGE));
	for (int i = 0; i < 20000 && khugepaged_scans() < full + 3; i++) {
		area[0]++;
		t_sleep_ms(1);
	}
	T_EXPECT(khugepaged_scans() >= full + 3);
	T_EQ(nf_huge_kb(area), 0);
	T_EQ(write(fd, "stop", 4), 4);
	close(fd);
	/* It would have */
	for (int i = 0; i < 20000 && !collapsed; i++) {
		area[0]++;
		t_sleep_ms(1);
		collapsed = nf_huge_kb(area);
	}
	T_EXPECT(collapsed);
	T_OK(t_put(sleep_ms, was_sleep));
	T_OK(t_put(alloc_ms, was_alloc));
}

/* Unmapping, faulting and reclaim at random while tracking starts and ends */
T_LIMIT(stress, 30)
{
	pid_t pid[2];

	for (int n = 0; n < 2; n++) {
		pid[n] = t_fork();
		if (pid[n])
			continue;
		uint64_t seed = n;

		for (;;) {
			setup();
			for (int i = 0; i < 40; i++) {
				int page = t_rand(&seed) % PAGES;

				store(page);
				if (t_rand(&seed) % 8 == 0)
					madvise(area + page * t_page(), t_page(), MADV_DONTNEED);
				if (t_rand(&seed) % 16 == 0)
					madvise(area, PAGES * t_page(), MADV_COLD);
			}
			T_CHILD
				store(1);
			area = mremap(area, PAGES * t_page(), 2 * PAGES * t_page(), MREMAP_MAYMOVE);
			munmap(area, 2 * PAGES * t_page());
		}
	}
	for (int i = 0; i < t_rounds(60); i++) {
		int fd = start_of(pid[i % 2]);

		t_sleep_ms(i % 10);
		if (i % 3) {
			T_EQ(write(fd, "stop", 4), 4);
			area = NULL;
			look(fd);
		} else {
			close(fd);
		}
	}
	t_reap(pid[0]);
	t_reap(pid[1]);
}
