// SPDX-License-Identifier: GPL-2.0-or-later
/* What the three calls do: attach, load, stat; who serves which page, and when it is over. */
#include "nf.h"

#include <sys/pidfd.h>

T(read_and_write)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 64);
	struct uffdio_lazy_stat st;

	T_EQ(nf_stat(uffd).state, UFFD_LAZY_ATTACHED);
	T_EQ(nf_stat(uffd).missing, 64);
	T_EXPECT(nf_is(p + 7 * PG, 1, 7));
	p[9 * PG + 5] = 1;
	T_EQ(p[9 * PG + 5], 1);
	p[9 * PG + 5] = nf_word(1, 9, 0) >> 40;
	T_EXPECT(nf_is(p + 9 * PG, 1, 9));
	st = nf_stat(uffd);
	T_EQ(st.total, 64);
	T_EQ(st.missing, 62);
	T_EQ(st.by_fault, 2);
	T_EQ(st.faults, 2);
	T_EQ(st.by_around + st.by_load + st.by_background + st.removed, 0);
	T_RANGE(st.fault_ns, 1, 1000000000ll);
	T_RANGE(st.fault_max_ns, st.fault_ns / 2, st.fault_ns);
	/* What was written stays */
	p[9 * PG] = 77;
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_EQ(p[9 * PG], 77);
	T_EQ(nf_count(p, 1, 0, 9), 9);
	T_EQ(nf_count(p + 10 * PG, 1, 10, 54), 54);
}

/* Registered, but in no extent: zeros, to readers and to writers; also between extents and beyond the last */
T(gaps_are_zeros)
{
	char *p = nf_map(40);
	struct uffdio_lazy_extent e[2] = { nf_extent(p + 10 * PG, 5, 0), nf_extent(p + 20 * PG, 5, 5) };
	struct uffdio_lazy_attach a;
	int uffd = nf_uffd(), image = nf_image(1, 10);

	nf_register(uffd, p, 40);
	a = nf_args(image, e, 2, 0);
	T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
	T_EXPECT(nf_zero(p));
	p[16 * PG] = 1;
	T_EQ(p[16 * PG], 1);
	T_EXPECT(nf_zero(p + 17 * PG));
	T_EXPECT(nf_zero(p + 39 * PG));
	T_EQ(nf_count(p + 10 * PG, 1, 0, 5), 5);
	T_EQ(nf_count(p + 20 * PG, 1, 5, 5), 5);
	T_EXPECT(nf_zero(p + 25 * PG));
	T_EQ(nf_stat(uffd).missing, 0);
}

/* A fault has the worker load what is around it: CHUNK_SIZE pages in all */
T(chunk_around)
{
	char *p = nf_map(1000);
	int uffd = nf_uffd(), image = nf_image(1, 1000);
	struct uffdio_lazy_stat st;

	nf_register(uffd, p, 1000);
	nf_attach(uffd, image, p, 1000, 0, 0, NO_START);
	T_EXPECT(nf_is(p + 500 * PG, 1, 500));
	for (int i = 0; i < 5000 && nf_stat(uffd).missing > 900; i++)
		t_sleep_ms(1);
	t_sleep_ms(20);
	st = nf_stat(uffd);
	T_EQ(st.missing, 900);
	T_EQ(st.by_around, 99);
	T_EQ(st.by_fault, 1);
	T_EQ(st.faults, 1);
	T_EQ(st.state, UFFD_LAZY_ATTACHED);
	T_EQ(nf_count(p + 450 * PG, 1, 450, 100), 100);
	T_EQ(nf_stat(uffd).faults, 1);
	T_EXPECT(nf_is(p + 449 * PG, 1, 449));
	T_EQ(nf_stat(uffd).faults, 2);
}

T(load_touched_set)
{
	int uffd, ev = T_OK(eventfd(0, 0));
	char *p = nf_missing(&uffd, 1, 300);
	struct uffdio_range r[3] = {
		{ (uintptr_t)p + 250 * PG, 20 * PG },
		{ (uintptr_t)p + 3 * PG, 1 * PG },
		{ (uintptr_t)p + 260 * PG, 20 * PG },	/* half of it is loaded by then */
	};
	struct uffdio_lazy_load load = { .size = sizeof(load), .ranges = (uintptr_t)r, .nr_ranges = 3 };

	close(ev);
	T_OK(ioctl(uffd, UFFDIO_LAZY_LOAD, &load));
	T_EQ(load.loaded, 31);
	T_EQ(nf_stat(uffd).by_load, 31);
	T_EQ(nf_stat(uffd).missing, 269);
	T_EQ(nf_count(p + 250 * PG, 1, 250, 30), 30);
	T_EQ(nf_stat(uffd).faults, 0);
	T_OK(ioctl(uffd, UFFDIO_LAZY_LOAD, &load));
	T_EQ(load.loaded, 0);
}

/* The same ranges in the background: nothing waits, and they come before everything else */
T(touched_set_first)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 300);
	struct uffdio_range r[4] = {
		{ (uintptr_t)p + 250 * PG, 20 * PG },
		{ (uintptr_t)p + 3 * PG, 1 * PG },
		{ (uintptr_t)p + 260 * PG, 20 * PG },
		{ (uintptr_t)p + 400 * PG, 10 * PG },	/* nothing is missing there */
	};
	struct uffdio_lazy_load load = { .size = sizeof(load), .flags = UFFD_LAZY_FIRST, .ranges = (uintptr_t)r, .nr_ranges = 4,
					 .loaded = 9 };

	T_OK(nf_load(uffd, NULL, 0, UFFD_LAZY_FIRST, NULL));
	T_OK(ioctl(uffd, UFFDIO_LAZY_LOAD, &load));
	T_EQ(load.loaded, 0);
	T_EQ(nf_stat(uffd).missing, 300);
	T_EQ(nf_stat(uffd).state, UFFD_LAZY_ATTACHED);
	T_ERR(ioctl(uffd, UFFDIO_LAZY_LOAD, &load), EBUSY);
	T_EQ(nf_stat(uffd).missing, 300);
	/* One of them is touched before, another one unmapped */
	T_EXPECT(nf_is(p + 255 * PG, 1, 255));
	T_OK(munmap(p + 275 * PG, PG));
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_EQ(nf_stat(uffd).by_load, 29);
	T_EQ(nf_stat(uffd).by_fault, 1);
	T_EQ(nf_stat(uffd).by_background, 269);
	T_EQ(nf_stat(uffd).removed, 1);
	T_EQ(nf_count(p, 1, 0, 275), 275);
	T_EQ(nf_count(p + 276 * PG, 1, 276, 24), 24);
	T_ERR(ioctl(uffd, UFFDIO_LAZY_LOAD, &load), EBUSY);
}

/* With the start, and the descriptor closed at once, just after another loader has ended */
T(first_and_closed)
{
	unsigned long good = 0, zero = 0;
	int uffd, before;
	char *p;

	nf_missing(&before, 1, 300);
	nf_start(before);
	T_EQ(nf_wait(before), UFFD_LAZY_COMPLETE);
	p = nf_missing(&uffd, 2, 300);
	T_OK(nf_load(uffd, p + 200 * PG, 100, UFFD_LAZY_FIRST | UFFD_LAZY_START, NULL));
	close(uffd);
	for (unsigned long i = 0; i < 300; i++) {
		good += nf_is(p + i * PG, 2, i);
		zero += nf_zero(p + i * PG);
	}
	T_EQ(good, 300);
	T_EQ(zero, 0);
}

/* Completion: the event, what is unregistered, the sums; what the descriptor can do afterwards */
T(background_completes)
{
	char *p = nf_map(1000), state[32];
	struct uffdio_lazy_extent e = nf_extent(p, 1000, 0);
	int uffd = nf_uffd(), image = nf_image(1, 1000), ev = T_OK(eventfd(0, 0));
	struct uffdio_register reg = { .range = { (uintptr_t)p, PG }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_lazy_attach a = nf_args(image, &e, 1, 0);
	struct uffdio_lazy_stat st;
	uint64_t told;

	T_OK(madvise(p, 1000 * PG, MADV_NOHUGEPAGE));
	nf_register(uffd, p, 1000);
	nf_proc(getpid(), "state", state, sizeof(state));
	T_STREQ(state, "none");
	a.event_fd = ev;
	T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
	nf_proc(getpid(), "state", state, sizeof(state));
	T_STREQ(state, "attached");
	nf_proc(getpid(), "missing", state, sizeof(state));
	T_STREQ(state, "1000");
	close(image);
	nf_start(uffd);
	T_EQ(read(ev, &told, sizeof(told)), 8);
	st = nf_stat(uffd);
	T_EQ(st.state, UFFD_LAZY_COMPLETE);
	T_EQ(st.missing, 0);
	T_EQ(st.error, 0);
	T_EQ(st.by_fault + st.by_around + st.by_load + st.by_background + st.removed, st.total);
	T_EQ(st.by_background, 1000);
	T_EQ(st.reads, 10);
	T_EXPECT(st.attach_ns <= st.start_ns && st.start_ns <= st.end_ns);
	T_EQ(nf_count(p, 1, 0, 1000), 1000);
	T_EQ(nf_stat(uffd).faults, 0);
	/* Ordinary memory from now on */
	nf_proc(getpid(), "state", state, sizeof(state));
	T_STREQ(state, "none");
	T_OK(madvise(p, 10 * PG, MADV_DONTNEED));
	T_EQ(nf_count_zero(p, 10), 10);
	T_ERR(ioctl(uffd, UFFDIO_REGISTER, &reg), EINVAL);
	T_ERR(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a), EINVAL);
	T_OK(nf_load(uffd, p, 1000, UFFD_LAZY_START, NULL));
	/* The image may be written again */
	T_OK(close(T_OK(open(t_path(state, "image1"), O_WRONLY))));
	/* Another userfaultfd may have the memory */
	close(uffd);
	uffd = nf_uffd();
	nf_register(uffd, p, 10);
}

/* START with the attach, and the descriptor closed at once */
T(closed_at_once)
{
	char *p = nf_map(600), state[32] = "";
	int uffd = nf_uffd(), image = nf_image(2, 600);

	nf_register(uffd, p, 600);
	nf_attach(uffd, image, p, 600, 0, 0, UFFD_LAZY_START);
	close(image);
	close(uffd);
	T_EQ(nf_count(p, 2, 0, 600), 600);
	for (int i = 0; i < 5000 && strcmp(state, "none"); i++) {
		nf_proc(getpid(), "state", state, sizeof(state));
		t_sleep_ms(1);
	}
	T_STREQ(state, "none");
}

/* A daemon that dies before it has started anything leaves no memory of zeros */
T(closed_before_start)
{
	int uffd;
	char *p = nf_missing(&uffd, 3, 500), state[32] = "";

	close(uffd);
	for (int i = 0; i < 5000 && strcmp(state, "none"); i++) {
		nf_proc(getpid(), "state", state, sizeof(state));
		t_sleep_ms(1);
	}
	T_STREQ(state, "none");
	T_EQ(nf_count(p, 3, 0, 500), 500);
}

/* How many address spaces there are, with those that nobody has any more */
static long address_spaces(void)
{
	static char text[65536];
	const char *line;

	T_ASSERT(t_get("/proc/slabinfo", text, sizeof(text)) > 0);
	line = strstr(text, "\nmm_struct ");
	T_ASSERT(line);
	return atol(line + 11);
}

/* A loader that is started, closed and without its process all at once is freed once */
T_LIMIT(ended_at_once, 60)
{
	long before = address_spaces(), now = LONG_MAX;
	int image = nf_image(4, 8);

	for (int i = 0; i < 300; i++)
		T_CHILD {
			char *p = nf_map(8);
			int uffd = nf_uffd();

			nf_register(uffd, p, 8);
			nf_attach(uffd, image, p, 8, 0, 1, NO_START);
			nf_start(uffd);
			close(uffd);
		}
	for (int i = 0; i < 5000 && now > before + 60; i++) {
		now = address_spaces();
		t_sleep_ms(1);
	}
	T_RANGE(now - before, LONG_MIN, 60);
}

/* As CRIU does it: the descriptor belongs to another process, which attaches before anything is registered */
T(attached_by_another_process)
{
	char *p = nf_map(400);
	int image = nf_image(4, 400), ready[2], go[2];
	struct uffdio_lazy_extent e = nf_extent(p, 400, 0);
	struct uffdio_lazy_attach a = nf_args(image, &e, 1, 0);
	pid_t pid;
	char c;
	int uffd;

	T_OK(pipe(ready));
	T_OK(pipe(go));
	pid = t_fork();
	if (!pid) {
		uffd = nf_uffd();
		T_OK(dup2(uffd, 900));
		T_ASSERT(write(ready[1], "1", 1) == 1);
		T_ASSERT(read(go[0], &c, 1) == 1);
		nf_register(uffd, p, 400);
		T_ASSERT(write(ready[1], "1", 1) == 1);
		T_ASSERT(read(go[0], &c, 1) == 1);
		T_EQ(nf_count(p, 4, 0, 400), 400);
		_exit(0);
	}
	T_ASSERT(read(ready[0], &c, 1) == 1);
	uffd = T_OK(pidfd_getfd(T_OK(pidfd_open(pid, 0)), 900, 0));
	T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
	/* Too early: the worker would take it for unmapped */
	T_ERR(nf_load(uffd, NULL, 0, UFFD_LAZY_START, NULL), ENOENT);
	T_ERR(nf_load(uffd, p, 10, 0, NULL), ENOENT);
	T_EQ(nf_stat(uffd).missing, 400);
	T_ASSERT(write(go[1], "1", 1) == 1);
	T_ASSERT(read(ready[0], &c, 1) == 1);
	T_OK(nf_load(uffd, p + 100 * PG, 50, UFFD_LAZY_START, NULL));
	T_EQ(nf_stat(uffd).by_load, 50);
	T_ASSERT(write(go[1], "1", 1) == 1);
	T_EXITED(t_wait(pid), 0);
	/* It may have gone before all was loaded; the loader must see that, too */
	nf_wait(uffd);
	/* Our own memory is nobody's business */
	T_EQ(nf_count_zero(p, 400), 400);
}

/* Threads that already wait when the loader comes */
static void *touch(void *p)
{
	return (void *)(uintptr_t)nf_is(p, 5, 2);
}

T(waiting_thread_is_served)
{
	char *p = nf_map(4);
	int uffd = nf_uffd(), image = nf_image(5, 4);
	struct pollfd pfd = { .fd = uffd, .events = POLLIN };
	struct uffd_msg msg;
	pthread_t th[2];
	void *ok;

	nf_register(uffd, p, 4);
	for (int i = 0; i < 2; i++) {
		T_OK(-pthread_create(&th[i], NULL, touch, p + 2 * PG));
		/* One has been reported, one has not */
		T_EQ(poll(&pfd, 1, 10000), 1);
		if (!i)
			T_EQ(read(uffd, &msg, sizeof(msg)), sizeof(msg));
	}
	nf_attach(uffd, image, p, 4, 0, 1, NO_START);
	for (int i = 0; i < 2; i++) {
		T_OK(-pthread_join(th[i], &ok));
		T_EXPECT(ok);
	}
	/* Nothing is reported any more */
	T_EXPECT(nf_is(p, 5, 0));
	T_EQ(poll(&pfd, 1, 0), 0);
}

/* One that waits for its event to be read, which nobody is going to do once the loader is there */
static void *unmap(void *p)
{
	return (void *)(uintptr_t)!munmap(p, PG);
}

T(waiting_event_is_dropped)
{
	char *p = nf_map(4);
	int uffd = nf_uffd(), image = nf_image(5, 4);
	struct pollfd pfd = { .fd = uffd, .events = POLLIN };
	pthread_t th;
	void *ok;

	nf_register(uffd, p, 4);
	T_OK(-pthread_create(&th, NULL, unmap, p + 3 * PG));
	T_EQ(poll(&pfd, 1, 10000), 1);
	nf_attach(uffd, image, p, 3, 0, 1, NO_START);
	T_OK(-pthread_join(th, &ok));
	T_EXPECT(ok);
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_EQ(nf_count(p, 5, 0, 3), 3);
}

T(two_images)
{
	char *p = nf_map(200);
	int uffd = nf_uffd(), a = nf_image(6, 100), b = nf_image(7, 100);
	struct uffdio_lazy_extent e = nf_extent(p + 50 * PG, 100, 0);
	struct uffdio_lazy_attach again = nf_args(b, &e, 1, 0);

	nf_register(uffd, p, 200);
	nf_attach(uffd, a, p, 100, 0, 1, NO_START);
	T_EXPECT(nf_is(p, 6, 0));
	T_ERR(ioctl(uffd, UFFDIO_LAZY_ATTACH, &again), EEXIST);
	T_EQ(nf_stat(uffd).total, 100);
	nf_attach(uffd, b, p + 100 * PG, 100, 0, 1, NO_START);
	T_EQ(nf_stat(uffd).total, 200);
	T_EXPECT(nf_is(p + 199 * PG, 7, 99));
	nf_start(uffd);
	T_EQ(nf_count(p, 6, 0, 100), 100);
	T_EQ(nf_count(p + 100 * PG, 7, 0, 100), 100);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
}

/* A second image, attached about when the first has been loaded: refused, or none of its pages is lost */
T(image_at_the_end)
{
	int a = nf_image(20, 8), b = nf_image(21, 8), rounds = t_rounds(2000), early = 0, late = 0, lost = 0;

	/* How long the first takes depends on the machine: as many rounds as it takes to see both */
	for (int i = 0; i < rounds || !early || !late; i++) {
		char *p = nf_map(16);
		int uffd = nf_uffd();
		struct uffdio_lazy_extent e = nf_extent(p + 8 * PG, 8, 0);
		struct uffdio_lazy_attach more = nf_args(b, &e, 1, 0);

		nf_register(uffd, p, 16);
		nf_attach(uffd, a, p, 8, 0, 8, UFFD_LAZY_START);
		for (volatile int wait = i % 500 * (100 + i / 10); wait > 0; wait--)
			;
		if (ioctl(uffd, UFFDIO_LAZY_ATTACH, &more)) {
			T_EQ(errno, EINVAL);
			late++;
		} else {
			lost += 8 - nf_count(p + 8 * PG, 21, 0, 8);
			early++;
		}
		lost += 8 - nf_count(p, 20, 0, 8);
		close(uffd);
		T_OK(munmap(p, 16 * PG));
	}
	t_note("%d early, %d late", early, late);
	T_EQ(lost, 0);
}

/* Extents in no order of the image's, the same page of it twice */
T(scattered_extents)
{
	struct uffdio_lazy_extent e[512];
	struct uffdio_lazy_attach a;
	char *p = nf_map(1024);
	int uffd = nf_uffd(), image = nf_image(8, 1024);
	unsigned long good = 0;

	for (int i = 0; i < 512; i++)
		e[i] = nf_extent(p + 2 * i * PG, 1, i * 37 % 256);
	nf_register(uffd, p, 1024);
	a = nf_args(image, e, 512, 0);
	a.flags = UFFD_LAZY_START;
	T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
	for (int i = 511; i >= 0; i--)
		good += nf_is(p + 2 * i * PG, 8, i * 37 % 256) + nf_zero(p + (2 * i + 1) * PG);
	T_EQ(good, 1024);
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	T_EQ(nf_stat(uffd).total, 512);
}

/* Many threads, the same pages, while the worker loads them, too */
static char *storm_at;

static void *storm(void *arg)
{
	uint64_t seed = (uintptr_t)arg;
	unsigned long good = 0;

	for (int i = 0; i < 400; i++) {
		unsigned long n = t_rand(&seed) % 2000;

		good += nf_is(storm_at + n * PG, 9, n);
	}
	return (void *)good;
}

T(threads_fault_together)
{
	int uffd = nf_uffd(), image = nf_image(9, 2000);
	struct uffdio_lazy_stat st;
	pthread_t th[8];
	void *good;

	storm_at = nf_map(2000);
	nf_register(uffd, storm_at, 2000);
	nf_attach(uffd, image, storm_at, 2000, 0, 8, NO_START);
	for (int i = 0; i < 8; i++)
		T_OK(-pthread_create(&th[i], NULL, storm, (void *)(uintptr_t)(i + 1)));
	nf_start(uffd);
	for (int i = 0; i < 8; i++) {
		T_OK(-pthread_join(th[i], &good));
		T_EQ((uintptr_t)good, 400);
	}
	T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
	st = nf_stat(uffd);
	T_EQ(st.by_fault + st.by_around + st.by_background + st.removed, 2000);
	T_EQ(nf_count(storm_at, 9, 0, 2000), 2000);
}

/* A file below an overlay, over the network: its page cache is not that of the file that was opened */
T(image_below_overlay)
{
	static const char *const paths[] = { "/usr/bin/python3", "/bin/bash" };
	struct stat sb;
	unsigned long n, good = 0;
	char *p, *want;
	int uffd, image = -1;

	for (size_t i = 0; i < ARRAY_LEN(paths) && image < 0; i++)
		image = open(paths[i], O_RDONLY | O_CLOEXEC);
	T_OK(image);
	T_OK(fstat(image, &sb));
	n = sb.st_size / PG < 250 ? sb.st_size / PG : 250;
	want = malloc(n * PG);
	T_ASSERT(pread(image, want, n * PG, 0) == (ssize_t)(n * PG));
	uffd = nf_uffd();
	p = nf_map(n);
	nf_register(uffd, p, n);
	nf_attach(uffd, image, p, n, 0, 16, NO_START);
	for (unsigned long i = n; i--;)
		good += !memcmp(p + i * PG, want + i * PG, PG);
	T_EQ(good, n);
	T_EQ(nf_stat(uffd).missing, 0);
}
