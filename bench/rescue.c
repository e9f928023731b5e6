// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * rescue [guest] ROUNDS
 *
 * What a rescue point costs, in a process of 16 MiB: a call of a function that writes to some pages, without a point and
 * with one; with the same pages each time, and with others; and a fault in it. Beside it what one can do without us: a
 * fork before each call, whose child could go on after a fault; and sigsetjmp() with a handler, which undoes nothing. And
 * breakpoints alone, as tracing has them: two uprobes that count, at the entry and at the return.
 */
#include <perdure/rescue.h>

#include <limits.h>
#include <linux/perf_event.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "bench.h"

#ifndef __NR_rescue
#define __NR_rescue	507
#endif

#define PAGE	4096
#define SIZE	(16ul << 20)
#define NAME	"bench-rescue"

static char *memory;
static unsigned long next;	/* page that is written to next, of those that are other ones each time */
static sigjmp_buf back;

/* Writes to so many pages; those from @memory + @first on. */
static __attribute__((__noinline__)) long work(long pages, unsigned long first, bool fault)
{
	for (long i = 0; i < pages; i++)
		((volatile char *)memory)[first + i * PAGE]++;
	if (fault)
		*(volatile int *)NULL = 1;
	return pages;
}

/* The same function three times: one gets a point, one two uprobes. */
#define FUNCTION(name)					\
	long name(long pages, unsigned long first, bool fault);	\
	__asm__(".text\n.globl " #name ", " #name "_return\n.type " #name ", @function\n" \
		#name ":\npush %rbx\ncall work_for_" #name "\npop %rbx\n" #name "_return:\nret\n"); \
	__attribute__((__used__)) long work_for_##name(long pages, unsigned long first, bool fault); \
	long work_for_##name(long pages, unsigned long first, bool fault) { return work(pages, first, fault); } \
	extern char name##_return[]

FUNCTION(plain);
FUNCTION(pointed);
FUNCTION(probed);

static uint64_t offset_of(const void *address)
{
	unsigned long start, end, offset, at = (unsigned long)address;
	uint64_t found = 0;
	char line[PATH_MAX + 100];
	FILE *maps = fopen("/proc/self/maps", "re");

	while (maps && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 && at >= start && at < end)
			found = at - start + offset;
	}
	if (maps)
		fclose(maps);
	return found;
}

static long add_point(void)
{
	uint64_t returns[] = { offset_of(pointed_return) };
	struct rescue_point point = {
		.fd = TRY(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), .nr_returns = 1, .entry = offset_of((const void *)pointed),
		.returns = (uintptr_t)returns, .value = -1, .burst = RESCUE_BURST_MAX, .interval_ms = 1, .name = NAME,
	};

	return syscall(__NR_rescue, RESCUE_ADD, &point, sizeof(point), 0);
}

static int add_uprobe(const void *at)
{
	struct perf_event_attr event = {
		.size = sizeof(event), .uprobe_path = (uintptr_t)"/proc/self/exe", .probe_offset = offset_of(at),
	};
	FILE *type = fopen("/sys/bus/event_source/devices/uprobe/type", "re");

	if (!type || fscanf(type, "%u", &event.type) != 1)
		die("uprobes of perf");
	fclose(type);
	return TRY(syscall(__NR_perf_event_open, &event, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

/* Of our point in /proc/rescue: what was counted since it is there */
static long count_of(const char *key)
{
	char line[4096], want[64], *found;
	FILE *file = fopen("/proc/rescue", "re");
	long n = 0;

	snprintf(want, sizeof(want), " %s=", key);
	while (file && fgets(line, sizeof(line), file)) {
		found = strstr(line, " name=" NAME " ") ? strstr(line, want) : NULL;
		if (found)
			n = atol(found + strlen(want));
	}
	if (file)
		fclose(file);
	return n;
}

static unsigned long others(long pages)
{
	if ((next + pages) * PAGE > SIZE / 2)
		next = 0;
	next += pages;
	return SIZE / 2 + (next - pages) * PAGE;
}

static long call_plain(long pages)
{
	return plain(pages, 0, false);
}

static long call_plain_others(long pages)
{
	return plain(pages, others(pages), false);
}

static long call_pointed(long pages)
{
	return pointed(pages, 0, false);
}

static long call_probed(long pages)
{
	return probed(pages, 0, false);
}

static long call_pointed_others(long pages)
{
	return pointed(pages, others(pages), false);
}

static long call_forked(long pages)
{
	pid_t pid = TRY(fork());
	long ret;

	if (!pid) {
		pause();
		_exit(0);
	}
	ret = plain(pages, 0, false);
	kill(pid, SIGKILL);
	TRY(waitpid(pid, NULL, 0));
	return ret;
}

static long call_jump(long pages)
{
	return sigsetjmp(back, 1) ? -1 : plain(pages, 0, false);
}

static long fault_pointed(long pages)
{
	return pointed(pages, 0, true);
}

static void handler(int signo)
{
	siglongjmp(back, signo);
}

static long fault_jump(long pages)
{
	struct sigaction action = { .sa_handler = handler }, before;
	long ret = 0;

	sigaction(SIGSEGV, &action, &before);
	ret = sigsetjmp(back, 1) ? -1 : plain(pages, 0, true);
	sigaction(SIGSEGV, &before, NULL);
	return ret;
}

/* The child has died of it; its parent, which has waited, goes on. */
static long fault_forked(long pages)
{
	pid_t pid = TRY(fork());
	int status;

	if (!pid)
		_exit(plain(pages, 0, true));
	TRY(waitpid(pid, &status, 0));
	return WIFSIGNALED(status) ? -1 : pages;
}

struct way {
	const char *side;
	long (*call)(long pages);
	struct samples samples;
};

/* Each way once in a round, so that whatever drifts does so for all */
static void measure(const char *what, long pages, struct way *ways, size_t nr, int rounds, long want)
{
	const uint64_t clock = clock_cost();
	char name[64];

	for (int i = 0; i < rounds + 10; i++) {
		for (struct way *way = ways; way < ways + nr; way++) {
			uint64_t start = now_ns(), took;
			long got = way->call(pages);

			took = now_ns() - start;
			if (got != want) {
				fprintf(stderr, "bench: %s, %ld pages, %s: %ld\n", what, pages, way->side, got);
				exit(1);
			}
			/* The first ones find memory that has never been written to */
			if (i >= 10)
				add_sample(&way->samples, (double)took - clock);
		}
	}
	snprintf(name, sizeof(name), "%s: %ld", what, pages);
	for (struct way *way = ways; way < ways + nr; way++)
		report(name, way->side, &way->samples);
}

#define MEASURE(what, pages, ways, want) measure(what, pages, ways, sizeof(ways) / sizeof((ways)[0]), rounds, want)

int main(int argc, char **argv)
{
	static const long pages[] = { 0, 1, 8, 64 };
	const int rounds = bench_rounds(argc, argv);
	uint64_t hits;
	int probes[2];
	long id;

	memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (memory == MAP_FAILED)
		die("16 MiB");
	/* Others each time, before a fork or a scope has made their first writes fault */
	for (int i = 0; i < 4; i++) {
		struct way ways[] = { { "plain", call_plain, {} }, { "plain, other pages", call_plain_others, {} } };

		MEASURE("before", pages[i], ways, pages[i]);
	}
	id = TRY(add_point());
	probes[0] = add_uprobe((const void *)probed);
	probes[1] = add_uprobe(probed_return);
	for (int i = 0; i < 4; i++) {
		/* What a fork, or a write to other pages, changes of what the point knows of memory, the next call would pay for. */
		struct way forked[] = { { "fork", call_forked, {} } };
		struct way ways[] = {
			{ "plain", call_plain, {} }, { "perdure", call_pointed, {} }, { "sigsetjmp", call_jump, {} },
			{ "two uprobes", call_probed, {} },
		};
		struct way pointed_others[] = { { "perdure, other pages", call_pointed_others, {} } };

		MEASURE("call", pages[i], forked, pages[i]);
		MEASURE("call", pages[i], ways, pages[i]);
		MEASURE("call", pages[i], pointed_others, pages[i]);
	}
	for (int i = 0; i < 4; i++) {
		struct way forked[] = { { "fork", fault_forked, {} } };
		struct way ways[] = { { "perdure", fault_pointed, {} }, { "sigsetjmp", fault_jump, {} } };

		MEASURE("fault", pages[i], forked, -1);
		MEASURE("fault", pages[i], ways, -1);
	}
	if (count_of("rescued") != 4 * (rounds + 10) || count_of("left") != 8 * (rounds + 10)) {
		fprintf(stderr, "bench: %ld calls and %ld faults had a scope\n", count_of("left"), count_of("rescued"));
		return 1;
	}
	for (int i = 0; i < 2; i++) {
		if (read(probes[i], &hits, sizeof(hits)) != sizeof(hits) || hits != (uint64_t)4 * (rounds + 10)) {
			fprintf(stderr, "bench: %ju calls were counted by uprobe %d\n", (uintmax_t)hits, i);
			return 1;
		}
		close(probes[i]);
	}
	TRY(syscall(__NR_rescue, RESCUE_REMOVE, id, 0, 0));
	/* A process that has had scopes: all else that it calls */
	for (int i = 0; i < 4; i++) {
		struct way ways[] = { { "plain", call_plain, {} } };

		MEASURE("after", pages[i], ways, pages[i]);
	}
	return 0;
}
