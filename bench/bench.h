/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the measuring programs share: the clock, samples, and quiet surroundings. */
#ifndef BENCH_H
#define BENCH_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <perdure/zlr.h>

#ifndef __NR_reregist
#define __NR_reregist	500
#define __NR_getreginfo	501
#define __NR_hread	502
#define __NR_lwrite	503
#define __NR_getiolog	504
#define __NR_lsendfile	505
#endif

#define MAX_SAMPLES	4096

struct samples {
	unsigned int n;
	double v[MAX_SAMPLES];
};

/* Under -icount shift=0 one nanosecond is one instruction. */
static inline uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

/* What reading the clock twice costs by itself, to be left out of short intervals. */
static inline uint64_t clock_cost(void)
{
	uint64_t best = UINT64_MAX;

	for (int i = 0; i < 100; i++) {
		uint64_t t = now_ns(), d = now_ns() - t;

		if (d < best)
			best = d;
	}
	return best;
}

static inline void die(const char *what)
{
	fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
	exit(1);
}

#define TRY(expr) __extension__ ({				\
	__typeof__(expr) _r = (expr);				\
	if (_r < 0)						\
		die(#expr);					\
	_r;							\
})

static inline void add_sample(struct samples *s, double v)
{
	if (s->n < MAX_SAMPLES)
		s->v[s->n++] = v;
}

static inline int cmp_double(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* One line a series: what bench/run reads. Times in ns. */
static inline void report(const char *name, const char *side, struct samples *s)
{
	unsigned int n = s->n;

	if (!n)
		return;
	qsort(s->v, n, sizeof(s->v[0]), cmp_double);
	printf("bench\t%s\t%s\t%.3f\t%.3f\t%.3f\t%u\n", name, side, s->v[n / 2], s->v[n / 10],
	       s->v[n - 1 - n / 10], n);
	fflush(stdout);
}

static inline void put_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	if (write(fd, text, strlen(text)) < 0)
		fprintf(stderr, "bench: %s: %s\n", path, strerror(errno));
	close(fd);
}

/*
 * The same quiet surroundings for all sides. With "guest" also system-wide ones: no line on the serial console for
 * every fault (it is rate-limited, so it would hit some rounds only), and the same layout of every new image.
 */
static inline void bench_setup(int argc, char **argv)
{
	struct rlimit core = { 0, 0 }, files = { 8192, 8192 };
	cpu_set_t one;

	setrlimit(RLIMIT_CORE, &core);
	if (setrlimit(RLIMIT_NOFILE, &files))
		die("raising the limit of open files to 8192");
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	sched_setaffinity(0, sizeof(one), &one);
	if (argc > 1 && !strcmp(argv[1], "guest")) {
		/* Ourselves, too: what a fork copies depends on where things lie. */
		if (!(personality(0xffffffff) & ADDR_NO_RANDOMIZE)) {
			personality(ADDR_NO_RANDOMIZE);
			execv("/proc/self/exe", argv);
		}
		put_file("/proc/sys/debug/exception-trace", "0");
		put_file("/proc/sys/kernel/randomize_va_space", "0");
	}
}

/* Of a program whose only argument is the number of rounds: that number, in quiet surroundings. */
static inline int bench_rounds(int argc, char **argv)
{
	int arg = argc > 1 && !strcmp(argv[1], "guest") ? 2 : 1;

	if (argc - arg != 1) {
		fprintf(stderr, "usage: %s [guest] ROUNDS\n", argv[0]);
		exit(2);
	}
	bench_setup(argc, argv);
	return atoi(argv[arg]);
}

static inline int have_zlr(void)
{
	long abi = syscall(__NR_getreginfo, NULL, 0ul, GETREGINFO_VERSION);

	if (abi < 1)
		fprintf(stderr, "bench: this kernel has no zero-loss restart (%s): only the peers are measured\n",
			strerror(errno));
	return abi >= 1;
}

#endif
