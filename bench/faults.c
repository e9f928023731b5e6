// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * faults [guest] ROUNDS
 *
 * What the first touch of a page of a restored process costs, when the page cache has it: filled by the kernel's lazy
 * loader; by a daemon that does nothing but read a userfaultfd and copy, from memory that is mapped already, on any
 * processor or on this one; and, as the limit, copied on write from a private mapping of the image.
 *
 * PAGES pages are touched one by one, in the same random order on each side, with nothing loaded around them.
 */
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <linux/userfaultfd.h>
#include <signal.h>

#include <perdure/lazy_loader.h>

#include "bench.h"

#define PAGES	1024
#define PAGE	4096ul

enum { PERDURE, DAEMON, NEAR_DAEMON, PRIVATE, SIDES };

static const char *const names[] = { "perdure", "daemon", "daemon on the same processor", "private mapping" };
static double *samples[SIDES];
static size_t count;
static unsigned int order[PAGES];
static int image;

static int new_uffd(char *area)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { { (uintptr_t)area, PAGES * PAGE }, UFFDIO_REGISTER_MODE_MISSING, 0 };
	int fd = TRY(syscall(SYS_userfaultfd, O_CLOEXEC));

	TRY(ioctl(fd, UFFDIO_API, &api));
	TRY(ioctl(fd, UFFDIO_REGISTER, &reg));
	return fd;
}

static void attach(int uffd, char *area)
{
	struct uffdio_lazy_extent extent = { (uintptr_t)area, PAGES * PAGE, 0 };
	struct uffdio_lazy_attach a = {
		.size = sizeof(a), .image_fd = image, .event_fd = -1, .extents = (uintptr_t)&extent, .nr_extents = 1,
		.chunk_pages = 1,
	};

	TRY(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
}

static void serve(int uffd, char *area)
{
	char *source = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_SHARED | MAP_POPULATE, image, 0);
	struct uffd_msg msg;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(uffd, &msg, sizeof(msg)) == sizeof(msg)) {
		uintptr_t at = msg.arg.pagefault.address & ~(PAGE - 1);
		struct uffdio_copy copy = { at, (uintptr_t)source + (at - (uintptr_t)area), PAGE, 0, 0 };

		if (ioctl(uffd, UFFDIO_COPY, &copy))
			break;
	}
	_exit(1);
}

static void measure(int side, uint64_t cost)
{
	char *area = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE,
			  side == PRIVATE ? MAP_PRIVATE : MAP_PRIVATE | MAP_ANONYMOUS, side == PRIVATE ? image : -1, 0);
	int uffd = -1;
	pid_t pid = 0;

	if (area == MAP_FAILED)
		die("mmap");
	madvise(area, PAGES * PAGE, MADV_NOHUGEPAGE);
	if (side != PRIVATE)
		uffd = new_uffd(area);
	if (side == PERDURE)
		attach(uffd, area);
	if (side == DAEMON || side == NEAR_DAEMON) {
		pid = TRY(fork());
		if (!pid) {
			cpu_set_t all;

			memset(&all, 0xff, sizeof(all));
			if (side == DAEMON)
				sched_setaffinity(0, sizeof(all), &all);
			serve(uffd, area);
		}
		usleep(20000);
	}
	for (int i = 0; i < PAGES; i++) {
		volatile unsigned int *p = (void *)(area + order[i] * PAGE);
		uint64_t begin = now_ns();

		p[1] = 1;
		samples[side][count + i] = (double)(now_ns() - begin) - cost;
		if (p[0] != order[i]) {
			fprintf(stderr, "bench: %s: page %u is not that of the image\n", names[side], order[i]);
			exit(1);
		}
	}
	if (side == PERDURE) {
		struct uffdio_lazy_stat st = { .size = sizeof(st) };

		TRY(ioctl(uffd, UFFDIO_LAZY_STAT, &st));
		if (st.by_fault != PAGES || st.faults_io) {
			fprintf(stderr, "bench: the loader served %llu faults of %d, %llu of them by reading\n",
				(unsigned long long)st.by_fault, PAGES, (unsigned long long)st.faults_io);
			exit(1);
		}
	}
	if (pid) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	if (uffd >= 0)
		close(uffd);
	munmap(area, PAGES * PAGE);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		double share;
	} points[] = { { "p50", 0.5 }, { "p99", 0.99 }, { "p99.9", 0.999 } };
	int rounds = bench_rounds(argc, argv);
	char page[PAGE] = {};
	uint64_t seed = 1;

	image = TRY(open("/tmp/bench-faults", O_RDWR | O_CREAT | O_TRUNC, 0600));
	for (unsigned int i = 0; i < PAGES; i++) {
		*(unsigned int *)page = i;
		TRY(write(image, page, PAGE));
		order[i] = i;
	}
	close(image);
	image = TRY(open("/tmp/bench-faults", O_RDONLY));
	unlink("/tmp/bench-faults");
	for (unsigned int i = PAGES - 1; i; i--) {
		unsigned int other, mine = order[i];

		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		other = (seed >> 33) % (i + 1);
		order[i] = order[other];
		order[other] = mine;
	}
	for (int side = 0; side < SIDES; side++) {
		samples[side] = calloc((size_t)rounds * PAGES, sizeof(double));
		if (!samples[side])
			die("calloc");
	}
	for (int round = 0; round < rounds; round++, count += PAGES)
		for (int i = 0; i < SIDES; i++)
			measure((round + i) % SIDES, clock_cost());
	for (int side = 0; side < SIDES; side++) {
		qsort(samples[side], count, sizeof(double), cmp_double);
		for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
			double v = samples[side][(size_t)(count * points[i].share)];

			printf("bench\t%s\t%s\t%.0f\t%.0f\t%.0f\t%zu\n", points[i].name, names[side], v, v, v, count);
		}
	}
	return 0;
}
