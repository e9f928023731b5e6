// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * loading [guest] DISK=DIRECTORY...
 *
 * How the lazy loader had best read an image: through the page cache, where it has the file system read ahead, or past
 * it (O_DIRECT); and how much at a time. On each disk an image is loaded, in the background, while a thread touches a
 * page that is missing now and then and waits for it, as a program would.
 */
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <perdure/lazy_loader.h>

#include "bench.h"

#define PAGE		4096ul
#define PAGES		8192ul		/* of an image */
#define BETWEEN_US	50000		/* one touch and the next */

static const struct {
	const char *name;
	int flags;
} sides[] = { { "page cache", 0 }, { "direct", O_DIRECT } };
static const unsigned int chunks[] = { 10, 50, 100, 200, 500 };	/* pages, as in Table 8 of the paper */

static char *area;
static int event;
static struct samples waits;
static volatile int loaded;

/* Processors' time in ns, of all that was not idle. */
static double busy_ns(void)
{
	unsigned long user, nice, system, idle, iowait, irq, softirq;
	FILE *f = fopen("/proc/stat", "r");

	if (!f || fscanf(f, "cpu %lu %lu %lu %lu %lu %lu %lu", &user, &nice, &system, &idle, &iowait, &irq, &softirq) != 7)
		die("/proc/stat");
	fclose(f);
	return (user + nice + system + irq + softirq) * (1e9 / sysconf(_SC_CLK_TCK));
}

static double cached_bytes(int image)
{
	unsigned char *in = malloc(PAGES);
	void *map = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_SHARED, image, 0);
	size_t n = 0;

	if (!in || map == MAP_FAILED)
		die("mmap");
	TRY(mincore(map, PAGES * PAGE, in));
	for (size_t i = 0; i < PAGES; i++)
		n += in[i] & 1;
	munmap(map, PAGES * PAGE);
	free(in);
	return n * PAGE;
}

static void *touch(void *arg)
{
	uint64_t seed = 1, begin;
	unsigned long page;
	unsigned char in;

	waits.n = 0;
	while (!loaded) {
		usleep(BETWEEN_US);
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		page = (seed >> 33) % PAGES;
		/* One that is there already would say nothing about reading. */
		TRY(mincore(area + page * PAGE, PAGE, &in));
		if (in & 1)
			continue;
		begin = now_ns();
		if (*(volatile uint64_t *)(area + page * PAGE) != page + 1) {
			fprintf(stderr, "bench: page %lu is not that of the image\n", page);
			exit(1);
		}
		add_sample(&waits, (double)(now_ns() - begin));
	}
	return arg;
}

static int load(int image, unsigned int chunk)
{
	struct uffdio_lazy_extent extent = { (uintptr_t)area, PAGES * PAGE, 0 };
	struct uffdio_lazy_attach a = {
		.size = sizeof(a), .flags = UFFD_LAZY_START, .image_fd = image, .event_fd = event,
		.extents = (uintptr_t)&extent, .nr_extents = 1, .chunk_pages = chunk,
	};
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { { (uintptr_t)area, PAGES * PAGE }, UFFDIO_REGISTER_MODE_MISSING, 0 };
	int uffd = TRY(syscall(SYS_userfaultfd, O_CLOEXEC));

	TRY(ioctl(uffd, UFFDIO_API, &api));
	TRY(ioctl(uffd, UFFDIO_REGISTER, &reg));
	TRY(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
	return uffd;
}

static void report_as(const char *what, const char *disk, unsigned int chunk, size_t side, struct samples *s)
{
	char name[96];

	snprintf(name, sizeof(name), "%s: %s, %lu KiB at a time", what, disk, chunk * PAGE / 1024);
	report(name, sides[side].name, s);
}

static void one(const char *disk, const char *path, size_t side, unsigned int chunk)
{
	struct uffdio_lazy_stat st = { .size = sizeof(st) };
	struct samples whole = {}, busy = {}, cached = {};
	int image = TRY(open(path, O_RDONLY | O_CLOEXEC | sides[side].flags)), uffd;
	double cpu = busy_ns();
	pthread_t thread;
	uint64_t count;

	put_file("/proc/sys/vm/drop_caches", "3");
	loaded = 0;
	area = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED)
		die("mmap");
	uffd = load(image, chunk);
	if (pthread_create(&thread, NULL, touch, NULL))
		die("pthread_create");
	TRY(read(event, &count, sizeof(count)));
	loaded = 1;
	pthread_join(thread, NULL);
	TRY(ioctl(uffd, UFFDIO_LAZY_STAT, &st));
	if (st.state != UFFD_LAZY_COMPLETE || st.missing) {
		fprintf(stderr, "bench: state %u, %llu pages are missing\n", st.state, (unsigned long long)st.missing);
		exit(1);
	}
	add_sample(&whole, (double)(st.end_ns - st.start_ns));
	add_sample(&busy, busy_ns() - cpu);
	add_sample(&cached, cached_bytes(image));
	report_as("loaded", disk, chunk, side, &whole);
	report_as("a fault", disk, chunk, side, &waits);
	report_as("processors", disk, chunk, side, &busy);
	report_as("cached", disk, chunk, side, &cached);
	close(uffd);
	close(image);
	munmap(area, PAGES * PAGE);
}

static void make_image(const char *path)
{
	uint64_t page[PAGE / 8] = {};
	int fd = TRY(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));

	for (size_t i = 0; i < PAGES; i++) {
		page[0] = i + 1;
		TRY(write(fd, page, PAGE));
	}
	TRY(fsync(fd));
	close(fd);
}

int main(int argc, char **argv)
{
	int arg = argc > 1 && !strcmp(argv[1], "guest") ? 2 : 1;

	if (argc == arg) {
		fprintf(stderr, "usage: %s [guest] DISK=DIRECTORY...\n", argv[0]);
		return 2;
	}
	bench_setup(argc, argv);
	event = TRY(eventfd(0, EFD_CLOEXEC));
	for (; arg < argc; arg++) {
		char *disk = argv[arg], *dir = strchr(disk, '='), path[256];

		if (!dir) {
			fprintf(stderr, "%s: %s: not DISK=DIRECTORY\n", argv[0], disk);
			return 2;
		}
		*dir++ = 0;
		snprintf(path, sizeof(path), "%s/bench-loading", dir);
		make_image(path);
		for (size_t side = 0; side < sizeof(sides) / sizeof(sides[0]); side++)
			for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++)
				one(disk, path, side, chunks[i]);
		unlink(path);
	}
	return 0;
}
