// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A process that checks itself: torture LOG SEED
 *
 * It maps, fills, moves, shrinks, discards, protects and unmaps memory at random, and forks children that do the same
 * with their copies for a while. What each page has to hold is known; a page that holds something else is reported to
 * LOG as "WRONG". A line "ok N" is appended after so many steps.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE	4096ul
#define WORDS	(PAGE / sizeof(uint64_t))
#define AREAS	24
#define MAX	128	/* pages of an area */
#define STEPS	50	/* from one line to the next */

static struct area {
	uint64_t *at;
	unsigned int pages;
	uint32_t version[MAX];	/* of each page; 0: zeros */
} areas[AREAS];

static int logfile;
static uint64_t seed;
static uint32_t versions;
static unsigned int children;
static volatile uint64_t ticks;

static unsigned int draw(unsigned int n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % n;
}

static void __attribute__((format(printf, 1, 2))) say(const char *format, ...)
{
	char text[200];
	va_list ap;
	int n;

	va_start(ap, format);
	n = vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	if (write(logfile, text, n) != n)
		_exit(3);
}

static uint64_t word(uint32_t version, unsigned int i)
{
	uint64_t z = ((uint64_t)version << 10 | i) * 0x9e3779b97f4a7c15ull;

	return version ? z ^ z >> 31 : 0;
}

static void fill(struct area *a, unsigned int page)
{
	a->version[page] = ++versions;
	for (unsigned int i = 0; i < WORDS; i++)
		a->at[page * WORDS + i] = word(versions, i);
}

static void check(const struct area *a, unsigned int page)
{
	for (unsigned int i = 0; i < WORDS; i++) {
		uint64_t found = a->at[page * WORDS + i], wanted = word(a->version[page], i);

		if (found == wanted)
			continue;
		say("WRONG process %d area %td page %u of %u word %u: %llx instead of %llx\n", getpid(), a - areas, page,
		    a->pages, i, (unsigned long long)found, (unsigned long long)wanted);
		_exit(2);
	}
}

static void check_all(void)
{
	for (struct area *a = areas; a < areas + AREAS; a++)
		for (unsigned int page = 0; page < a->pages; page++)
			check(a, page);
}

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	say("WRONG process %d: %s: %m\n", getpid(), what);
	_exit(2);
}

static void map(struct area *a)
{
	unsigned int pages = 1 + draw(MAX);

	a->at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(a->at != MAP_FAILED, "mmap");
	memset(a->version, 0, sizeof(a->version));
	a->pages = pages;
}

static void resize(struct area *a, unsigned int pages)
{
	void *to = mremap(a->at, a->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);

	must(to != MAP_FAILED, "mremap");
	a->at = to;
	for (unsigned int page = a->pages; page < pages; page++)
		a->version[page] = 0;
	a->pages = pages;
}

static void move(struct area *a)
{
	void *to = mmap(NULL, a->pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(to != MAP_FAILED, "mmap");
	to = mremap(a->at, a->pages * PAGE, a->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	must(to != MAP_FAILED, "mremap to a place");
	a->at = to;
}

static void step(void)
{
	struct area *a = &areas[draw(AREAS)];
	unsigned int first, last;

	if (!a->pages) {
		map(a);
		return;
	}
	first = draw(a->pages);
	last = first + draw(a->pages - first) + 1;
	switch (draw(12)) {
	case 0 ... 3:
		for (; first < last; first++)
			fill(a, first);
		break;
	case 4 ... 6:
		for (; first < last; first++)
			check(a, first);
		break;
	case 7:
		must(!madvise(a->at + first * WORDS, (last - first) * PAGE, MADV_DONTNEED), "madvise");
		for (; first < last; first++)
			a->version[first] = 0;
		break;
	case 8:
		resize(a, 1 + draw(MAX));
		break;
	case 9:
		move(a);
		break;
	case 10:
		must(!mprotect(a->at, a->pages * PAGE, PROT_READ), "mprotect");
		check(a, first);
		must(!mprotect(a->at, a->pages * PAGE, PROT_READ | PROT_WRITE), "mprotect");
		break;
	case 11:
		if (draw(3))
			break;
		must(!munmap(a->at, a->pages * PAGE), "munmap");
		a->pages = 0;
	}
}

static void *tick(void *unused)
{
	for (;; usleep(3000))
		ticks++;
	return unused;
}

static void breed(void)
{
	int status;
	pid_t pid;

	while (children && (pid = waitpid(-1, &status, children < 3 ? WNOHANG : 0)) != 0) {
		must(pid > 0, "waitpid");
		must(!status, "a child");
		children--;
	}
	pid = fork();
	must(pid >= 0, "fork");
	if (pid) {
		children++;
		return;
	}
	seed ^= getpid();
	for (unsigned int n = draw(200); n; n--) {
		step();
		if (!draw(10))
			usleep(1000);
	}
	check_all();
	_exit(0);
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc != 3)
		return 2;
	logfile = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
	seed = strtoull(argv[2], NULL, 0);
	if (logfile < 0 || pthread_create(&thread, NULL, tick, NULL))
		return 2;
	for (uint64_t steps = 1;; steps++) {
		step();
		if (steps % STEPS)
			continue;
		breed();
		check_all();
		say("ok %llu\n", (unsigned long long)steps);
	}
}
