// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A process that knows its memory: target DIRECTORY MEGABYTES CHILDREN [aligned | locked]
 *
 * It, and each child, has its own megabytes of a pattern, of which a loop touches a sixteenth. Some pages all over
 * the memory hold the number of rounds. DIRECTORY/NUMBER says how far it got; when DIRECTORY/check appears, all of the
 * memory is compared, and DIRECTORY/NUMBER.checked says how many words were wrong. With "aligned", the process, but no
 * child, has a thread whose stack pointer is at the start of a page; with "locked", all its memory locked
 * but for some where no pages are.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE	4096
#define STEP	64	/* pages from one with the number of rounds to the next */

static const char *directory;
static uint64_t *memory;
static size_t size;
static int number;
static _Atomic uint64_t ticks;

static uint64_t word(size_t pos)
{
	uint64_t z = ((pos >> 3) + number) * 0x9e3779b97f4a7c15ull;

	return z ^ (z >> 29);
}

static void *tick(void *unused)
{
	(void)unused;
	for (;;) {
		ticks++;
		usleep(5000);
	}
}

/* Does nothing but pause() */
static void *aligned(void *unused)
{
	(void)unused;
#ifdef __x86_64__
	__asm__ volatile("and $-4096, %%rsp\n"
			 "1:	mov $34, %%eax\n"
			 "	syscall\n"
			 "	jmp 1b" ::: "rax", "rcx", "r11", "memory");
#endif
	return NULL;
}

static int lock_all(void)
{
	void *empty = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return empty == MAP_FAILED || mlockall(MCL_CURRENT | MCL_FUTURE) || munlock(empty, PAGE);
}

static void report(const char *suffix, const char *text)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/%d%s", directory, number, suffix);
	fd = open(path, O_WRONLY | O_CREAT, 0600);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		_exit(1);
	close(fd);
}

static size_t wrong(uint64_t rounds)
{
	size_t bad = 0;

	for (size_t pos = 0; pos < size; pos += PAGE) {
		bool counter = pos / PAGE % STEP == 0;

		if (counter && memory[pos / 8] != rounds)
			bad++;
		for (size_t i = pos + (counter ? 8 : 0); i < pos + PAGE; i += 8)
			bad += memory[i / 8] != word(i);
	}
	return bad;
}

int main(int argc, char **argv)
{
	char text[64], path[256];
	pthread_t thread;
	bool checked = false;

	if (argc != 4 && argc != 5)
		return 2;
	directory = argv[1];
	size = strtoul(argv[2], NULL, 0) << 20;
	for (int i = 1; i <= atoi(argv[3]); i++) {
		if (!fork()) {
			number = i;
			break;
		}
	}
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || madvise(memory, size, MADV_NOHUGEPAGE))
		return 1;
	for (size_t i = 0; i < size; i += 8)
		memory[i / 8] = word(i);
	if (pthread_create(&thread, NULL, tick, NULL))
		return 1;
	if (argc == 5 && !number && (!strcmp(argv[4], "aligned") ? pthread_create(&thread, NULL, aligned, NULL) : lock_all()))
		return 1;
	snprintf(path, sizeof(path), "%s/check", directory);

	for (uint64_t rounds = 1;; rounds++) {
		volatile uint64_t sum = 0;

		for (size_t pos = 0; pos < size; pos += PAGE * STEP)
			memory[pos / 8] = rounds;
		for (size_t pos = 0; pos < size / 16; pos += PAGE)
			sum += memory[pos / 8 + 10];
		snprintf(text, sizeof(text), "%20llu %20llu\n", (unsigned long long)rounds, (unsigned long long)ticks);
		report("", text);
		if (!checked && !access(path, F_OK)) {
			snprintf(text, sizeof(text), "%zu\n", wrong(rounds));
			report(".checked", text);
			checked = true;
		}
		usleep(20000);
	}
}
