// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * State areas: memory that outlives restarts, because the file descriptor of its memfd does.
 *
 *	page 0		struct header
 *	data		the program's bytes; what the program calls the area
 *	one page	never accessible, so that an overrun of the data cannot reach the log
 *	log		ranges of an update: struct entry, bytes, padding, and so on
 *
 * An update writes the new bytes to the log, sets header.commit to the log's length, copies log to
 * data, and clears header.commit. A process that dies before commit is set leaves the old bytes;
 * one that dies later leaves a log that the next open applies (again). So at any instruction it
 * is all or nothing. Processors retire stores in program order as far as the process itself and
 * its successor can tell, so only the compiler needs to be told about the order.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <perdure.h>

#include "fds.h"
#include "journal.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE	0x100000
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL		0x0008U
#endif

#define MAGIC		0x5045524455524531ULL	/* PERDURE1: the format below */
#define NAME_SIZE	64
#define FD_NAME		"perdure-"		/* and the area's name: what /proc/PID/fd shows */
#define SEALS		(F_SEAL_SHRINK | F_SEAL_GROW)

struct header {
	uint64_t magic;
	uint64_t base;			/* where every generation maps the file */
	uint64_t size;			/* of the data, as the program said */
	uint32_t layout;
	uint32_t page;
	char name[NAME_SIZE];
	uint64_t check;			/* of all of the above */

	_Atomic uint64_t commit;	/* length of a log that must be applied; 0: none */
	uint64_t staged;		/* length of the log so far, in this generation */
	int32_t fd;			/* in this generation */
};

static struct header *header_of(void *area)
{
	/* The page size is a constant of the machine: the area is always one page further on. */
	return (struct header *)((char *)area - sysconf(_SC_PAGESIZE));
}

static char *data_of(struct header *h)
{
	return (char *)h + h->page;
}

static uint64_t header_check(const struct header *h)
{
	return hash(h, offsetof(struct header, check));
}

static int apply(struct header *h, uint64_t commit)
{
	struct journal j = layout_journal(h, h->size, h->page);

	return journal_apply(&j, commit);
}

static void finish(struct header *h)
{
	atomic_store_explicit(&h->commit, 0, memory_order_release);
	/* The next update must not write to the log before this one is over. */
	atomic_signal_fence(memory_order_seq_cst);
	h->staged = 0;
}

/*
 * Reads the header of an area. Sealing is the last step of making one; only memfds have seals. What another user has
 * made, and handed over, is none of ours; root may have made it before it became another user.
 */
static int read_header(int fd, struct header *h)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (seals < 0 || (seals & SEALS) != SEALS)
		return -1;
	if (fstat(fd, &st) || (st.st_uid && st.st_uid != geteuid()))
		return -1;
	return pread(fd, h, sizeof(*h), 0) == sizeof(*h) ? 0 : -1;
}

/*
 * The file descriptor of the area called name, or -1 with ENOENT. What the kernel calls the file
 * is not subject to stray writes as the header is: a damaged area is found all the same.
 */
static int find(const char *name, struct header *h)
{
	char want[sizeof("/memfd:" FD_NAME " (deleted)") + NAME_SIZE], link[sizeof(want)];
	DIR *dir;
	struct dirent *d;
	int fd = -1, n;

	/* Who has started a program that gains privileges may have left it one, and write to it. */
	if (getauxval(AT_SECURE)) {
		errno = ENOENT;
		return -1;
	}
	n = snprintf(want, sizeof(want), "/memfd:" FD_NAME "%s (deleted)", name);
	dir = opendir("/proc/self/fd");
	if (dir) {
		while ((d = readdir(dir))) {
			if (readlinkat(dirfd(dir), d->d_name, link, sizeof(link)) == n &&
			    !memcmp(link, want, n) && !read_header(atoi(d->d_name), h)) {
				fd = atoi(d->d_name);
				break;
			}
		}
		closedir(dir);
	} else {
		/* No /proc, in a chroot perhaps: the headers must do. */
		for (int i = 0, end = fd_end(); i < end && fd < 0; i++)
			if (!read_header(i, h) && h->magic == MAGIC &&
			    !strncmp(h->name, name, NAME_SIZE))
				fd = i;
	}
	if (fd < 0)
		errno = ENOENT;
	return fd;
}

/* Map the file at addr, and nowhere else. */
static struct header *map_at(int fd, const struct header *h, uint64_t addr)
{
	uint64_t len = layout_total(h->size, h->page);
	void *want = (void *)(uintptr_t)addr;
	char *p;

	/* Of a program with more bits than this one */
	if (addr != (uintptr_t)addr || len > SIZE_MAX) {
		errno = ENOMEM;
		return NULL;
	}
	p = mmap(want, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
	if (p == MAP_FAILED)
		return NULL;
	if (p != want) {	/* Linux before 4.17 */
		munmap(p, len);
		errno = EEXIST;
		return NULL;
	}
	/* A child must not change its parent's state by accident. */
	if (mprotect(p + layout_log(h->size, h->page) - h->page, h->page, PROT_NONE) ||
	    madvise(p, len, MADV_DONTFORK)) {
		munmap(p, len);
		return NULL;
	}
	return (struct header *)p;
}

/*
 * Where new areas go: far from what Linux randomizes (program, heap and libraries) and from the
 * sanitizers' shadow memory, on x86-64 (47 bits) and arm64 (48 bits); the second row is for arm64
 * with 39 bits, and the last for programs of 32 bits. The name chooses the slot, so that areas
 * opened in another order, or for the first time, do not take the place of an inherited one; in 32
 * bits there is no room to be sure of that.
 */
static struct header *map_new(int fd, const struct header *h)
{
	static const struct {
		uint64_t base, slot, slots;
	} range[] = {
#if UINTPTR_MAX > UINT32_MAX
		{ 0x400000000000, 1ULL << 32, 2048 },
		{ 0x2000000000, 1ULL << 30, 128 },
#else
		{ 0x80000000, 1ULL << 24, 24 },
#endif
	};
	struct header *m = NULL;

	for (size_t r = 0; r < sizeof(range) / sizeof(range[0]); r++) {
		uint64_t first = hash(h->name, sizeof(h->name)) % range[r].slots;

		for (uint64_t i = 0; i < range[r].slots; i++) {
			uint64_t slot = (first + i) % range[r].slots;

			m = map_at(fd, h, range[r].base + slot * range[r].slot);
			if (m || errno != EEXIST)
				break;
		}
		if (m)
			break;
	}
	return m;
}

/* A process that dies in here leaves at worst an unsealed memfd, which is never found again. */
static void *create(struct header *h, void *addr)
{
	char fdname[sizeof(FD_NAME) + NAME_SIZE] = FD_NAME;
	unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	struct header *m;
	int fd, err;

	strcat(fdname, h->name);
	/* Close-on-exec: a restart keeps it all the same, programs that we start do not get it. */
	fd = memfd_create(fdname, flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)	/* Linux before 6.3 */
		fd = memfd_create(fdname, flags);
	if (fd < 0)
		return NULL;
	if (ftruncate(fd, layout_total(h->size, h->page)) || fcntl(fd, F_SETLK, &lock))
		goto fail;
	m = addr ? map_at(fd, h, (uintptr_t)addr - h->page) : map_new(fd, h);
	if (!m)
		goto fail;
	h->base = (uintptr_t)m;
	h->check = header_check(h);
	h->fd = fd;
	*m = *h;
	if (!fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL))
		return data_of(m);
	err = errno;
	munmap(m, layout_total(h->size, h->page));
	errno = err;
fail:
	err = errno;
	close(fd);
	errno = err;
	return NULL;
}

static void *inherit(int fd, const struct header *h, size_t size, uint32_t layout)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	struct header *m;
	struct stat st;

	if (h->magic != MAGIC || h->check != header_check(h) || fstat(fd, &st) ||
	    (uint64_t)st.st_size != layout_total(h->size, h->page)) {
		errno = EBADMSG;
		return NULL;
	}
	if (h->layout != layout || h->size != size) {
		errno = ESTALE;
		return NULL;
	}
	/* Record locks belong to the process: a restart keeps them, fork children do not have them. */
	if (fcntl(fd, F_SETLK, &lock)) {
		if (errno == EACCES || errno == EAGAIN)
			errno = EBUSY;
		return NULL;
	}
	m = map_at(fd, h, h->base);
	if (!m)
		return NULL;
	if (apply(m, m->commit)) {
		munmap(m, layout_total(h->size, h->page));
		errno = EBADMSG;
		return NULL;
	}
	finish(m);
	m->fd = fd;
	return data_of(m);
}

static int name_ok(const char *name)
{
	size_t len = strlen(name);

	if (!len || strchr(name, '/')) {
		errno = EINVAL;
		return 0;
	}
	if (len >= NAME_SIZE) {
		errno = ENAMETOOLONG;
		return 0;
	}
	return 1;
}

/* Threads make, find and destroy areas one at a time. */
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

void *perdure_state_open(const char *name, size_t size, uint32_t layout, void *addr, int *inherited)
{
	size_t page = sysconf(_SC_PAGESIZE);
	struct header h;
	void *area;
	int fd, err;

	if (!name_ok(name))
		return NULL;
	/* The header goes before addr, and never to page 0. */
	if (!size || (addr && ((uintptr_t)addr % page || (uintptr_t)addr < 2 * page))) {
		errno = EINVAL;
		return NULL;
	}
	if (size > SIZE_MAX / 8) {
		errno = ENOMEM;
		return NULL;
	}

	pthread_mutex_lock(&one);
	fd = find(name, &h);
	if (fd >= 0) {
		area = inherit(fd, &h, size, layout);
	} else {
		memset(&h, 0, sizeof(h));
		h.magic = MAGIC;
		h.size = size;
		h.layout = layout;
		h.page = page;
		memcpy(h.name, name, strlen(name));
		area = create(&h, addr);
	}
	err = errno;
	pthread_mutex_unlock(&one);
	errno = err;
	if (area && inherited)
		*inherited = fd >= 0;
	return area;
}

int perdure_state_stage(void *area, void *dst, const void *src, size_t len)
{
	struct header *h = header_of(area);
	struct journal j = layout_journal(h, h->size, h->page);

	/* A dst before the area is an offset beyond any size. */
	return journal_stage(&j, &h->staged, (uintptr_t)dst - (uintptr_t)area, src, len);
}

void perdure_state_commit(void *area)
{
	struct header *h = header_of(area);
	uint64_t commit = h->staged;

	atomic_store_explicit(&h->commit, commit, memory_order_release);
	atomic_signal_fence(memory_order_seq_cst);
	/* It was checked when it was staged: a log that is wrong now has been overwritten. */
	if (apply(h, commit))
		abort();
	finish(h);
}

int perdure_state_update(void *area, void *dst, const void *src, size_t len)
{
	if (perdure_state_stage(area, dst, src, len))
		return -1;
	perdure_state_commit(area);
	return 0;
}

int perdure_state_fd(void *area)
{
	return header_of(area)->fd;
}

void perdure_state_close(void *area)
{
	struct header *h = header_of(area);
	int fd = h->fd;

	pthread_mutex_lock(&one);
	munmap(h, layout_total(h->size, h->page));
	close(fd);
	pthread_mutex_unlock(&one);
}

int perdure_state_discard(const char *name)
{
	struct header h;
	int fd, r = -1;

	if (!name_ok(name))
		return -1;
	pthread_mutex_lock(&one);
	/* A fault may have left it twice */
	while ((fd = find(name, &h)) >= 0)
		r = close(fd);
	pthread_mutex_unlock(&one);
	return r;
}
