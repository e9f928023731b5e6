// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Shared areas: state that several processes share, each of which may die at any instruction.
 *
 * The file /dev/shm/perdure-UID-NAME has
 *
 *	page 0		struct header
 *	data		the program's bytes; what the program calls the area
 *	one page	never accessible
 *	log		ranges of an update, see journal.h
 *
 * A process sees it twice. The area, at the address in the header, is read-only, so that nothing but an
 * update changes it. The whole file is mapped once more, anywhere, for the updates. The page before
 * the area is the process's own: struct handle.
 *
 * Who holds the semaphore may write to the file. It is taken with SEM_UNDO | SEM_RECOVER: a holder that
 * is restarted holds it still, and when one ends for good it is released. Whoever takes it next
 * finds in the header how far the holder got: a log that is committed is applied (again), one
 * that is not is forgotten. The semaphore orders memory between the processes; within a
 * process, only the compiler needs to be told, as in state.c.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/sem.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <perdure.h>

#include "journal.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE	0x100000
#endif

#define MAGIC		0x5045524453485231ULL	/* PERDSHR1: the format below */
#define NAME_SIZE	64
#define FILE_NAME	"/perdure-"		/* and the user's number, and the area's name */
#define FILE_NAME_SIZE	(sizeof(FILE_NAME) + sizeof("4294967295-") + NAME_SIZE)
#define SHM		"/dev/shm"		/* where shm_open(3) has it */

struct header {
	uint64_t magic;
	uint64_t base;			/* where every process maps the data */
	uint64_t size;			/* of the data, as the program said */
	uint32_t layout;
	uint32_t page;
	int32_t key;			/* of the semaphore, to tell it from a later one */
	int32_t sem;
	char name[NAME_SIZE];
	uint64_t check;			/* of all of the above */

	_Atomic uint64_t commit;	/* length of a log that must be applied; 0: none */
	uint64_t staged;		/* length of the log so far */
};

/* What does not change is not read from the header again: other processes can write to that. */
struct handle {
	struct header *h;
	uint64_t size;
	uint32_t page;
	int sem;
	_Atomic uint64_t holder;	/* the thread that has begun an update; 0: none */
	pid_t pid;			/* and its process: not a fork(2) child of it */
	int left;			/* what was done for the old generation of that process: for its first update */
};

/* Threads by number: their addresses are used again. */
static uint64_t self(void)
{
	static _Atomic uint64_t threads;
	static _Thread_local uint64_t number;

	if (!number)
		number = ++threads;
	return number;
}

static int in_update(const struct handle *me)
{
	return me->holder == self() && me->pid == getpid();
}

static struct journal log_of(const struct handle *me)
{
	return layout_journal(me->h, me->size, me->page);
}

static struct handle *handle_of(const void *area)
{
	return (struct handle *)((uintptr_t)area - sysconf(_SC_PAGESIZE));
}

static uint64_t header_check(const struct header *h)
{
	return hash(h, offsetof(struct header, check));
}

static int file_name(char *buf, size_t size, const char *name)
{
	size_t len = strlen(name);

	if (!len || strchr(name, '/')) {
		errno = EINVAL;
		return -1;
	}
	if (len >= NAME_SIZE) {
		errno = ENAMETOOLONG;
		return -1;
	}
	/* Users do not meet in one name by accident; who does so on purpose finds check_file(). */
	snprintf(buf, size, FILE_NAME "%u-%s", geteuid(), name);
	return 0;
}

static int take(int sem, int op, const struct timespec *timeout)
{
	struct sembuf sop = {
		.sem_op = op,
		.sem_flg = op < 0 ? SEM_UNDO | SEM_RECOVER : SEM_UNDO,
	};

	return semtimedop(sem, &sop, 1, timeout);
}

/* The semaphore that the header means, and not a later one with the same number. */
static int sem_ok(const struct header *h)
{
	if (semget(h->key, 1, 0) == h->sem)
		return 1;
	errno = EIDRM;
	return 0;
}

static int new_sem(struct header *h)
{
	do {
		if (getrandom(&h->key, sizeof(h->key), 0) != sizeof(h->key))
			return -1;
		if (h->key == IPC_PRIVATE)
			continue;
		h->sem = semget(h->key, 1, IPC_CREAT | IPC_EXCL | 0600);
	} while (h->key == IPC_PRIVATE || (h->sem < 0 && errno == EEXIST));
	return h->sem < 0 || semctl(h->sem, 0, SETVAL, 1) ? -1 : 0;
}

/* Threads make and remove areas one at a time; and processes, by a lock on the file. */
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

/* 0, or an errno: somebody else's, or open to others, is not to be trusted, nor ever to unlock it. */
static int check_file(int fd, struct stat *st)
{
	if (fstat(fd, st))
		return errno;
	return st->st_uid != geteuid() || (st->st_mode & 077) ? EPERM : 0;
}

/*
 * The predecessor was restarted in here: it left its file descriptor, and the lock, which keeps all other processes
 * out. Nobody else has such files open.
 */
static void close_left(void)
{
	char link[sizeof(SHM FILE_NAME)];
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *d;

	if (!dir)
		return;
	while ((d = readdir(dir)))
		if (readlinkat(dirfd(dir), d->d_name, link, sizeof(link)) == sizeof(link) &&
		    !memcmp(link, SHM FILE_NAME, sizeof(link) - 1))
			close(atoi(d->d_name));
	closedir(dir);
}

static void lock_one(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, close_left);
	pthread_mutex_lock(&one);
}

/*
 * Open the file and lock it. A record lock belongs to the process; a restart in here does not lock the new
 * generation out.
 */
static int open_file(const char *path, int flags, struct stat *st)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	for (;;) {
		int fd = shm_open(path, flags | O_RDWR | O_CLOEXEC, 0600), err;

		if (fd < 0)
			return -1;
		err = check_file(fd, st);
		while (!err && fcntl(fd, F_SETLKW, &lock))
			err = errno == EINTR ? 0 : errno;
		/* Once more: it may have been removed or have grown while we waited. */
		if (!err)
			err = check_file(fd, st);
		if (!err && st->st_nlink)
			return fd;
		close(fd);
		if (err) {
			errno = err;
			return -1;
		}
		/* Removed while we waited for the lock: look again. */
	}
}

/*
 * Where new areas go: beside the range of state.c, for the same reasons. The name chooses the page. Two processes that
 * make two areas do not ask each other: in so much room, names hardly ever overlap.
 */
static void *reserve(struct header *h)
{
	enum { TRIES = 64 };
	static const struct {
		uint64_t base, size;
	} range[] = {
#if UINTPTR_MAX > UINT32_MAX
		{ 0x480000000000, 1ULL << 43 },
		{ 0x4000000000, 96ULL << 30 },
#else
		{ 0x98000000, 1ULL << 28 },
#endif
	};
	size_t len = h->page + round_up(h->size, h->page);

	errno = ENOMEM;
	for (size_t r = 0; r < sizeof(range) / sizeof(range[0]); r++) {
		uint64_t first = hash(h->name, sizeof(h->name));
		uint64_t places = len < range[r].size ? (range[r].size - len) / h->page : 0;
		uint64_t tries = !places ? 0 : h->base ? 1 : TRIES;

		for (uint64_t i = 0; i < tries; i++) {
			uint64_t place = (first + i * (places / TRIES)) % places;
			uint64_t want = h->base ? h->base - h->page : range[r].base + place * h->page;
			/* Not of a program with more bits than this one */
			char *p = want != (uintptr_t)want ? MAP_FAILED :
				  mmap((void *)(uintptr_t)want, len, PROT_NONE,
				       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

			if (p == (char *)(uintptr_t)want)
				return p;
			if (p != MAP_FAILED) {	/* Linux before 4.17 */
				munmap(p, len);
				errno = EEXIST;
			}
			if (errno != EEXIST)
				break;
		}
		if (h->base)
			break;
	}
	return NULL;
}

/* Map the file at the place reserved for it. */
static void *map(int fd, const struct header *h, char *place)
{
	size_t data = round_up(h->size, h->page);
	char *rw = mmap(NULL, layout_total(h->size, h->page), PROT_READ | PROT_WRITE, MAP_SHARED,
			fd, 0);

	if (rw == MAP_FAILED)
		return NULL;
	if (mprotect(rw + layout_log(h->size, h->page) - h->page, h->page, PROT_NONE) ||
	    mprotect(place, h->page, PROT_READ | PROT_WRITE) ||
	    mmap(place + h->page, data, PROT_READ, MAP_SHARED | MAP_FIXED, fd, h->page) == MAP_FAILED) {
		int err = errno;

		munmap(rw, layout_total(h->size, h->page));
		errno = err;
		return NULL;
	}
	*(struct handle *)place = (struct handle){ .h = (struct header *)rw, .size = h->size, .page = h->page, .sem = h->sem };
	return place + h->page;
}

/* The order lets a death at any place in here be told from one before it. */
static void finish(struct header *h)
{
	h->staged = 0;
	atomic_signal_fence(memory_order_seq_cst);
	atomic_store_explicit(&h->commit, 0, memory_order_release);
	/* The next update must not write to the log before this one is over. */
	atomic_signal_fence(memory_order_seq_cst);
}

/*
 * Bring the area into order after who had the semaphore before us: what that was, or an errno. A log that cannot be
 * applied stays as it is: nobody gets past it.
 */
static int repair(const struct handle *me, int *what)
{
	struct header *h = me->h;
	struct journal j = log_of(me);

	*what = 0;
	if (h->commit) {
		if (journal_apply(&j, h->commit))
			return EBADMSG;
		*what = PERDURE_SHARED_COMPLETED;
	} else if (h->staged) {
		*what = PERDURE_SHARED_UNDONE;
	}
	finish(h);
	return 0;
}

/* This process was restarted within an update: end it here, so that the others need not wait for our next one. */
static void end_left(struct handle *me)
{
	int got;

	if (semctl(me->sem, 0, GETVAL))
		return;
	/* 1: taken over; 0: somebody else has released it just now */
	got = take(me->sem, -1, &(struct timespec){ 0 });
	if (got < 0)
		return;
	if (got) {
		me->pid = getpid();
		repair(me, &me->left);
	}
	take(me->sem, 1, NULL);
}

/* A process that dies in here leaves a file without the magic number, which the next one makes anew. */
static int create(int fd, struct header *h)
{
	if (ftruncate(fd, 0))
		return -1;
	/* With its memory: where there is none left, this is the place to say so, and not a SIGBUS in an update. */
	do
		errno = posix_fallocate(fd, 0, layout_total(h->size, h->page));
	while (errno == EINTR);
	if (errno)
		return -1;
	h->magic = MAGIC;
	h->check = header_check(h);
	return pwrite(fd, h, sizeof(*h), 0) == sizeof(*h) ? 0 : -1;
}

const void *perdure_shared_open(const char *name, size_t size, uint32_t layout, int *existed)
{
	char path[FILE_NAME_SIZE], *place = NULL;
	size_t page = sysconf(_SC_PAGESIZE), len = page + round_up(size, page);
	struct header want = { .size = size, .layout = layout, .page = page, .sem = -1 }, h;
	void *area = NULL;
	struct stat st;
	int fd, old, err;

	if (file_name(path, sizeof(path), name))
		return NULL;
	if (!size) {
		errno = EINVAL;
		return NULL;
	}
	if (size > SIZE_MAX / 8) {
		errno = ENOMEM;
		return NULL;
	}
	memcpy(want.name, name, strlen(name));
	lock_one();
	fd = open_file(path, O_CREAT, &st);
	if (fd < 0) {
		pthread_mutex_unlock(&one);
		return NULL;
	}
	old = pread(fd, &h, sizeof(h), 0) == sizeof(h) && h.magic;
	if (!old) {
		h = want;
		place = reserve(&h);
		if (!place)
			goto out;
		h.base = (uintptr_t)place + page;
		if (new_sem(&h) || create(fd, &h))
			goto out;
	} else {
		if (h.magic != MAGIC || h.check != header_check(&h) ||
		    memcmp(h.name, want.name, NAME_SIZE) || h.page != page) {
			errno = EBADMSG;
			goto out;
		}
		if (h.size != size || h.layout != layout) {
			errno = ESTALE;
			goto out;
		}
		if ((uint64_t)st.st_size != layout_total(h.size, h.page)) {
			errno = EBADMSG;
			goto out;
		}
		if (!sem_ok(&h))
			goto out;
		place = reserve(&h);
		if (!place)
			goto out;
	}
	area = map(fd, &h, place);
	if (area && old)
		end_left(handle_of(area));
out:
	err = errno;
	if (!area && place)
		munmap(place, len);
	if (!area && !old && h.sem >= 0) {
		semctl(h.sem, 0, IPC_RMID);
		/* To be made anew by who comes next; failing that, EIDRM tells of it */
		if (ftruncate(fd, 0))
			err = errno;
	}
	close(fd);
	pthread_mutex_unlock(&one);
	errno = err;
	if (area && existed)
		*existed = old;
	return area;
}

/* What is left of a millisecond timeout, for a call that a signal has interrupted. */
static struct timespec left(const struct timespec *end)
{
	struct timespec now, left = { 0 };
	long long ns;

	clock_gettime(CLOCK_MONOTONIC, &now);
	ns = (end->tv_sec - now.tv_sec) * 1000000000LL + end->tv_nsec - now.tv_nsec;
	if (ns > 0) {
		left.tv_sec = ns / 1000000000;
		left.tv_nsec = ns % 1000000000;
	}
	return left;
}

static int release(struct handle *me)
{
	me->holder = 0;
	return take(me->sem, 1, NULL);
}

int perdure_shared_begin(const void *area, int timeout_ms)
{
	struct handle *me = handle_of(area);
	struct header *h = me->h;
	struct timespec end, wait;
	int r, what;

	if (in_update(me)) {
		errno = EDEADLK;
		return -1;
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	if (timeout_ms > 0) {
		end.tv_sec += timeout_ms / 1000;
		end.tv_nsec += timeout_ms % 1000 * 1000000L;
		if (end.tv_nsec >= 1000000000) {
			end.tv_sec++;
			end.tv_nsec -= 1000000000;
		}
	}
	do {
		wait = left(&end);
		r = take(me->sem, -1, timeout_ms < 0 ? NULL : &wait);
	} while (r < 0 && errno == EINTR);
	if (r < 0)
		return -1;
	/* Removed: the magic number is the first of the header */
	if (!h->magic) {
		release(me);
		errno = EIDRM;
		return -1;
	}
	r = repair(me, &what);
	if (r) {
		release(me);
		errno = r;
		return -1;
	}
	if (!what && me->pid == getpid())
		what = me->left;
	me->left = 0;
	me->pid = getpid();
	me->holder = self();
	return what;
}

int perdure_shared_stage(const void *area, const void *dst, const void *src, size_t len)
{
	struct handle *me = handle_of(area);
	struct journal j = log_of(me);

	if (!in_update(me)) {
		errno = EPERM;
		return -1;
	}
	/* A dst before the area is an offset beyond any size. */
	return journal_stage(&j, &me->h->staged, (uintptr_t)dst - (uintptr_t)area, src, len);
}

int perdure_shared_commit(const void *area)
{
	struct handle *me = handle_of(area);
	struct header *h = me->h;
	struct journal j = log_of(me);

	if (!in_update(me)) {
		errno = EPERM;
		return -1;
	}
	atomic_signal_fence(memory_order_seq_cst);
	atomic_store_explicit(&h->commit, h->staged, memory_order_release);
	atomic_signal_fence(memory_order_seq_cst);
	/* It was checked when it was staged: a log that is wrong now has been overwritten. */
	if (journal_apply(&j, h->commit))
		abort();
	finish(h);
	return release(me);
}

int perdure_shared_cancel(const void *area)
{
	struct handle *me = handle_of(area);

	if (!in_update(me)) {
		errno = EPERM;
		return -1;
	}
	finish(me->h);
	return release(me);
}

void perdure_shared_close(const void *area)
{
	struct handle *me = handle_of(area);
	size_t page = me->page, data = round_up(me->size, page), total = layout_total(me->size, page);

	perdure_shared_cancel(area);	/* where this thread is in an update; nobody could end it any more */
	munmap(me->h, total);
	munmap(me, page + data);
}

int perdure_shared_remove(const char *name)
{
	char path[FILE_NAME_SIZE];
	struct header h;
	struct stat st;
	int fd, err;

	if (file_name(path, sizeof(path), name))
		return -1;
	lock_one();
	fd = open_file(path, 0, &st);
	if (fd < 0) {
		pthread_mutex_unlock(&one);
		return -1;
	}
	if (pread(fd, &h, sizeof(h), 0) == sizeof(h) && h.magic == MAGIC &&
	    h.check == header_check(&h) && sem_ok(&h))
		semctl(h.sem, 0, IPC_RMID);
	err = shm_unlink(path) ? errno : 0;
	/* Who has it open gets EIDRM, also where the semaphore could not be found. */
	if (!err && pwrite(fd, &(uint64_t){ 0 }, sizeof(uint64_t), 0) < 0)
		err = errno;
	close(fd);
	pthread_mutex_unlock(&one);
	errno = err;
	return err ? -1 : 0;
}
