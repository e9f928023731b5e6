// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * tracker [guest] ROUNDS
 *
 * How right the touched set is, and what finding it costs. A process touches a known part of its memory for a window:
 * pages drawn at random. The list of the kernel is compared with what was drawn. The same work is timed with and without a window; the clock runs through start and stop.
 */
#include <sys/mman.h>

#include "bench.h"

#define PAGES	16384ul		/* 64 MiB */
#define PAGE	4096ul
#define TOUCHED	4000
#define REPEATS	100		/* of the touches, in a window */

static char *area;
static unsigned char touched[PAGES], found[PAGES];
static uint64_t seed = 1;

static unsigned int draw(unsigned int n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % n;
}

static void setup(void)
{
	area = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED || madvise(area, PAGES * PAGE, MADV_NOHUGEPAGE))
		die("mmap");
	memset(area, 1, PAGES * PAGE);
}

/* Returns how long it took. */
static uint64_t work(const unsigned int *order, int track)
{
	uint64_t begin = now_ns();
	int fd = -1;
	char line[128];
	unsigned long low, high;
	FILE *list;

	if (track) {
		fd = TRY(open("/proc/self/touched_set", O_RDWR | O_CLOEXEC));
		TRY(write(fd, "start", 5));
	}
	for (int repeat = 0; repeat < REPEATS; repeat++) {
		for (int i = 0; i < TOUCHED; i++) {
			volatile char *p = area + order[i] * PAGE;

			for (int word = 0; word < 16; word++)
				p[word * 64] += 1;
		}
	}
	if (track)
		TRY(write(fd, "stop", 4));
	begin = now_ns() - begin;
	if (!track)
		return begin;

	memset(found, 0, sizeof(found));
	TRY(lseek(fd, 0, SEEK_SET));
	list = fdopen(fd, "r");
	while (fgets(line, sizeof(line), list)) {
		if (sscanf(line, "%lx-%lx", &low, &high) != 2)
			continue;
		for (; low < high; low += PAGE)
			if (low - (uintptr_t)area < PAGES * PAGE)
				found[(low - (uintptr_t)area) / PAGE] = 1;
	}
	fclose(list);
	return begin;
}

int main(int argc, char **argv)
{
	static struct samples extra, more, less;
	int rounds = bench_rounds(argc, argv);

	for (int round = 0; round < rounds; round++) {
		static unsigned int order[TOUCHED];
		unsigned int false_positive = 0, false_negative = 0, all = 0;
		double plain, tracked;

		memset(touched, 0, sizeof(touched));
		for (int i = 0; i < TOUCHED; i++)
			touched[order[i] = draw(PAGES)] = 1;
		setup();
		plain = work(order, 0);
		tracked = work(order, 1);
		for (unsigned int i = 0; i < PAGES; i++) {
			all += touched[i];
			false_positive += found[i] && !touched[i];
			false_negative += touched[i] && !found[i];
		}
		munmap(area, PAGES * PAGE);
		add_sample(&extra, tracked - plain);
		add_sample(&more, 100.0 * false_positive / all);
		add_sample(&less, 100.0 * false_negative / all);
	}
	report("cost", "perdure", &extra);
	report("false positives", "perdure", &more);
	report("false negatives", "perdure", &less);
	return 0;
}
