/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the tests of the lazy loader share: images with a known content, memory registered with a userfaultfd. */
#ifndef NF_H
#define NF_H

#include "../lib/t.h"

#include <linux/userfaultfd.h>
#include <perdure/lazy_loader.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Since Linux 6.8 */
struct nf_move {
	uint64_t dst, src, len, mode;
	int64_t moved;
};

#define NF_MOVE		_IOWR(0xAA, 0x05, struct nf_move)
#define PG		4096ul
#define NO_START	0

/* The first word of page `index` of image `id`; the others follow from it. Never 0. */
static T_UNUSED uint64_t nf_word(unsigned int id, uint64_t index, unsigned int n)
{
	uint64_t z = (((uint64_t)id << 40) + index * 512 + n + 1) * 0x9e3779b97f4a7c15ull;

	return (z ^ (z >> 31)) | 1;
}

static T_UNUSED void nf_fill(void *page, unsigned int id, uint64_t index)
{
	uint64_t *p = page;

	for (unsigned int i = 0; i < PG / 8; i++)
		p[i] = nf_word(id, index, i);
}

static T_UNUSED bool nf_is(const volatile void *page, unsigned int id, uint64_t index)
{
	const volatile uint64_t *p = page;

	for (unsigned int i = 0; i < PG / 8; i++)
		if (p[i] != nf_word(id, index, i))
			return false;
	return true;
}

static T_UNUSED bool nf_zero(const volatile void *page)
{
	const volatile uint64_t *p = page;

	for (unsigned int i = 0; i < PG / 8; i++)
		if (p[i])
			return false;
	return true;
}

/* How many of `n` pages are those of the image from `index` on */
static T_UNUSED unsigned long nf_count(const char *addr, unsigned int id, uint64_t index, unsigned long n)
{
	unsigned long good = 0;

	for (unsigned long i = 0; i < n; i++)
		good += nf_is(addr + i * PG, id, index + i);
	return good;
}

static T_UNUSED unsigned long nf_count_zero(const char *addr, unsigned long n)
{
	unsigned long good = 0;

	for (unsigned long i = 0; i < n; i++)
		good += nf_zero(addr + i * PG);
	return good;
}

/* An image of `n` pages, open for reading */
static T_UNUSED int nf_image_at(const char *path, unsigned int id, unsigned long n)
{
	int fd = T_OK(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
	char page[PG];

	for (unsigned long i = 0; i < n; i++) {
		nf_fill(page, id, i);
		T_ASSERT(write(fd, page, PG) == (ssize_t)PG);
	}
	close(fd);
	return T_OK(open(path, O_RDONLY | O_CLOEXEC));
}

static T_UNUSED int nf_image(unsigned int id, unsigned long n)
{
	char path[PATH_MAX], name[32];

	snprintf(name, sizeof(name), "image%u", id);
	return nf_image_at(t_path(path, name), id, n);
}

/*
 * Between two pages that nobody may touch, so that it is an area of its own: next to other memory, khugepaged may join the
 * two in a huge page before it is registered, and that is refused then
 */
static T_UNUSED char *nf_map(unsigned long n)
{
	char *p = mmap(NULL, (n + 2) * PG, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	T_ASSERT(p != MAP_FAILED);
	T_OK(mprotect(p + PG, n * PG, PROT_READ | PROT_WRITE));
	return p + PG;
}

/* kB of huge pages in the area that `p` is in */
static T_UNUSED int nf_huge_kb(const char *p)
{
	unsigned long low, high;
	char line[256];
	int kb, sum = 0;
	bool in = false;
	FILE *f = fopen("/proc/self/smaps", "r");

	T_ASSERT(f);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &low, &high) == 2)
			in = (uintptr_t)p >= low && (uintptr_t)p < high;
		else if (in && sscanf(line, "AnonHugePages: %d", &kb) == 1)
			sum += kb;
	}
	fclose(f);
	return sum;
}

static T_UNUSED int nf_uffd_with(uint64_t features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	int fd = T_OK(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));

	T_OK(ioctl(fd, UFFDIO_API, &api));
	return fd;
}

static T_UNUSED int nf_uffd(void)
{
	/* All the events that CRIU asks for: none may be reported */
	return nf_uffd_with(UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE |
			    UFFD_FEATURE_EVENT_UNMAP);
}

static T_UNUSED void nf_register(int uffd, void *addr, unsigned long n)
{
	struct uffdio_register reg = {
		.range = { (uintptr_t)addr, n * PG },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	T_OK(ioctl(uffd, UFFDIO_REGISTER, &reg));
}

static T_UNUSED struct uffdio_lazy_extent nf_extent(void *addr, unsigned long n, uint64_t index)
{
	return (struct uffdio_lazy_extent){ (uintptr_t)addr, n * PG, index * PG };
}

static T_UNUSED struct uffdio_lazy_attach nf_args(int image, const struct uffdio_lazy_extent *extents, unsigned long nr,
						  unsigned int chunk)
{
	return (struct uffdio_lazy_attach){
		.size = sizeof(struct uffdio_lazy_attach),
		.image_fd = image,
		.event_fd = -1,
		.extents = (uintptr_t)extents,
		.nr_extents = nr,
		.chunk_pages = chunk,
	};
}

/* One extent: all of it */
static T_UNUSED void nf_attach(int uffd, int image, void *addr, unsigned long n, uint64_t index, unsigned int chunk,
			       unsigned int flags)
{
	struct uffdio_lazy_extent extent = nf_extent(addr, n, index);
	struct uffdio_lazy_attach a = nf_args(image, &extent, 1, chunk);

	a.flags = flags;
	T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
}

/* Memory of `n` pages that are missing; chunks of one page, so that nothing but what is touched gets loaded. */
static T_UNUSED char *nf_missing(int *uffd, unsigned int id, unsigned long n)
{
	char *p = nf_map(n);
	int image = nf_image(id, n);

	*uffd = nf_uffd();
	nf_register(*uffd, p, n);
	nf_attach(*uffd, image, p, n, 0, 1, NO_START);
	close(image);
	return p;
}

static T_UNUSED struct uffdio_lazy_stat nf_stat(int uffd)
{
	struct uffdio_lazy_stat st[2];

	/* All of it is written, and nothing behind it */
	memset(st, 0xa5, sizeof(st));
	st[0].size = sizeof(st[0]);
	T_OK(ioctl(uffd, UFFDIO_LAZY_STAT, &st));
	for (size_t i = 0; i + 8 <= sizeof(st[0]); i += 8)
		T_EXPECT(memcmp((char *)&st[0] + i, &st[1], 8));
	T_EXPECT(*(unsigned char *)&st[1] == 0xa5 && !memcmp(&st[1], (char *)&st[1] + 1, sizeof(st[1]) - 1));
	return st[0];
}

static T_UNUSED int nf_load(int uffd, void *addr, unsigned long n, unsigned int flags, uint64_t *loaded)
{
	struct uffdio_range range = { (uintptr_t)addr, n * PG };
	struct uffdio_lazy_load load = {
		.size = sizeof(load), .flags = flags, .ranges = (uintptr_t)&range, .nr_ranges = n ? 1 : 0,
	};
	int ret = ioctl(uffd, UFFDIO_LAZY_LOAD, &load);

	if (loaded)
		*loaded = load.loaded;
	return ret;
}

static T_UNUSED void nf_start(int uffd)
{
	T_OK(nf_load(uffd, NULL, 0, UFFD_LAZY_START, NULL));
}

/* Waits until the loader is done; gives its state. */
static T_UNUSED unsigned int nf_wait(int uffd)
{
	for (int i = 0; i < 15000; i++) {
		/* The state of afterwards: it may be done between two looks */
		if (nf_stat(uffd).end_ns)
			return nf_stat(uffd).state;
		t_sleep_ms(1);
	}
	t_check(false, __FILE__, __LINE__, "the loader is not done");
	return 0;
}

/* A line of /proc/PID/lazy_loader */
static T_UNUSED void nf_proc(pid_t pid, const char *name, char *value, size_t size)
{
	char path[64], text[1024], *line;

	snprintf(path, sizeof(path), "/proc/%d/lazy_loader", pid);
	T_ASSERT(t_get(path, text, sizeof(text)) > 0);
	line = strstr(text, name);
	T_ASSERT(line);
	line += strlen(name) + 2;
	snprintf(value, size, "%.*s", (int)strcspn(line, "\n"), line);
}

/* Whether touching a byte gives SIGBUS */
static sigjmp_buf nf_jump;

static T_UNUSED void nf_on_bus(int sig T_UNUSED)
{
	siglongjmp(nf_jump, 1);
}

static T_UNUSED bool nf_bus(volatile char *p)
{
	volatile bool bus = true;

	t_handle(SIGBUS, nf_on_bus, 0);
	if (!sigsetjmp(nf_jump, 1)) {
		(void)*p;
		bus = false;
	}
	t_handle(SIGBUS, SIG_DFL, 0);
	return bus;
}

#endif
