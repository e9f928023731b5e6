// SPDX-License-Identifier: LGPL-2.1-or-later
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "record.h"
#include "log.h"
#include "world.h"

#define SECTOR_MAX	4096
#define FILL_SIZE	(1u << 20)

/* One that waits. Each has a condition of its own: others that share the bucket sleep on. */
struct sleeper {
	const void *what;
	pthread_cond_t woken;
	struct sleeper *prev, *next;
};

static struct world *to_world(struct env *env)
{
	return (struct world *)env;
}

static struct sleeper **bucket(struct world *w, const void *what)
{
	uintptr_t n = (uintptr_t)what;

	return &w->sleepers[(n >> 4 ^ n >> 12) % WAIT_BUCKETS];
}

static void world_lock(struct env *env)
{
	pthread_mutex_lock(&to_world(env)->lock);
}

static void world_unlock(struct env *env)
{
	pthread_mutex_unlock(&to_world(env)->lock);
}

static void world_wait(struct env *env, const void *what, uint64_t until)
{
	struct world *w = to_world(env);
	struct sleeper me = { .what = what, .woken = PTHREAD_COND_INITIALIZER };
	struct timespec at = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };

	DL_APPEND(*bucket(w, what), &me);
	if (until)
		pthread_cond_clockwait(&me.woken, &w->lock, CLOCK_MONOTONIC, &at);
	else
		pthread_cond_wait(&me.woken, &w->lock);
	/* Whoever woke it has taken it out */
	if (me.what)
		DL_DELETE(*bucket(w, what), &me);
	pthread_cond_destroy(&me.woken);
}

static void wake(struct world *w, const void *what, bool all)
{
	struct sleeper **first = bucket(w, what), *s, *next;

	DL_FOREACH_SAFE(*first, s, next) {
		if (s->what != what)
			continue;
		DL_DELETE(*first, s);
		s->what = NULL;
		pthread_cond_signal(&s->woken);
		if (!all)
			return;
	}
}

static void world_wake(struct env *env, const void *what)
{
	wake(to_world(env), what, true);
}

static void world_wake_one(struct env *env, const void *what)
{
	wake(to_world(env), what, false);
}

/* Direct I/O wants aligned memory, places and sizes; what is asked for is widened to that */
static __thread struct {
	uint8_t *data;
	size_t size;
} bounce;

static void bounce_free(void)
{
	free(bounce.data);
	bounce.data = NULL;
	bounce.size = 0;
}

static uint8_t *bounce_get(size_t size)
{
	if (bounce.size < size) {
		bounce_free();
		if (!posix_memalign((void **)&bounce.data, SECTOR_MAX, size))
			bounce.size = size;
		else
			bounce.data = NULL;
	}
	return bounce.data;
}

struct start {
	void (*run)(void *arg);
	void *arg;
};

static void *thread_main(void *arg)
{
	struct start start = *(struct start *)arg;
	sigset_t set;

	free(arg);
	/* A connection that breaks while it is written to is an error, not the end */
	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	start.run(start.arg);
	bounce_free();
	return NULL;
}

static int world_thread(struct env *env, void (*run)(void *arg), void *arg)
{
	struct start *start = must_alloc(sizeof(*start));
	pthread_attr_t attr;
	pthread_t thread;
	int err;

	(void)env;
	*start = (struct start){ .run = run, .arg = arg };
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	err = pthread_create(&thread, &attr, thread_main, start);
	pthread_attr_destroy(&attr);
	if (err)
		free(start);
	return -err;
}

static uint64_t ns_of(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint64_t world_clock(struct env *env)
{
	(void)env;
	return ns_of(CLOCK_MONOTONIC);
}

static uint64_t world_time(struct env *env)
{
	(void)env;
	return ns_of(CLOCK_REALTIME);
}

static void world_random(struct env *env, void *data, size_t len)
{
	uint8_t *at = data;

	while (len) {
		ssize_t n = getrandom(at, len, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			env->fail(env, "no random numbers are to be had");
		at += n;
		len -= n;
	}
}

static int all_io(struct world *w, uint64_t place, uint8_t *data, size_t len, bool write)
{
	while (len) {
		struct iovec v = { .iov_base = data, .iov_len = len };
		/* The kernel tells the disk to keep this write, and not all others with it */
		ssize_t n = write ? pwritev2(w->fd, &v, 1, place, RWF_DSYNC) : preadv(w->fd, &v, 1, place);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			return -EIO;
		place += n;
		data += n;
		len -= n;
	}
	return 0;
}

static int world_read(struct env *env, uint64_t place, void *data, size_t len)
{
	struct world *w = to_world(env);
	uint64_t from = place / w->sector * w->sector;
	size_t size = (place + len - from + w->sector - 1) / w->sector * w->sector;
	uint8_t *buffer = bounce_get(size);
	int err;

	if (!buffer)
		return -ENOMEM;
	err = all_io(w, from, buffer, size, false);
	if (!err)
		memcpy(data, buffer + (place - from), len);
	return err;
}

static int world_write(struct env *env, uint64_t place, const void *data, size_t len)
{
	struct world *w = to_world(env);
	uint8_t *buffer = bounce_get(len);

	if (!buffer)
		return -ENOMEM;
	memcpy(buffer, data, len);
	return all_io(w, place, buffer, len, true);
}

static void world_report(struct env *env, const struct verdict_record *r)
{
	const struct world *w = to_world(env);

	fprintf(stderr, "replay: %s: %s", w->name ? w->name : "", r->outcome);
	if (r->sessions)
		fprintf(stderr, ", %" PRIu64 " session%s", r->sessions, r->sessions == 1 ? "" : "s");
	if (r->requests)
		fprintf(stderr, ", %" PRIu64 " request%s", r->requests, r->requests == 1 ? "" : "s");
	if (r->took)
		fprintf(stderr, ", %.3f s after the start", r->took / 1e9);
	fprintf(stderr, ": %s\n", r->why);
	/* A record that cannot be kept is no reason to stop */
	if (w->verdicts &&
	    record_add(w->verdicts, "time_ns=%" PRIu64 " pid=%d comm=%.32s rung=replay cause=%s outcome=%s generation=%" PRIu64 " sessions=%" PRIu64
		       " requests=%" PRIu64 " took_ns=%" PRIu64 "\n", ns_of(CLOCK_REALTIME), getpid(), w->name, r->cause, r->outcome, r->epoch,
		       r->sessions, r->requests, r->took))
		fprintf(stderr, "replay: %s: %s\n", w->verdicts, strerror(errno));
}

static __attribute__((noreturn)) void world_fail(struct env *env, const char *why)
{
	const struct verdict_record record = { .cause = "log", .outcome = "ended", .why = why };

	world_report(env, &record);
	fprintf(stderr, "replay: the server ends here, and goes on from its log when it is started again\n");
	/* Others must not see it go on: not by handlers of exit, either */
	_exit(EXIT_FAILURE);
}

void world_init(struct world *w)
{
	*w = (struct world){
		.env = { .lock = world_lock, .unlock = world_unlock, .wait = world_wait, .wake = world_wake,
			 .wake_one = world_wake_one, .thread = world_thread, .clock = world_clock, .time = world_time,
			 .random = world_random, .read = world_read, .write = world_write, .report = world_report,
			 .fail = world_fail },
		.fd = -1,
		.lock = PTHREAD_MUTEX_INITIALIZER,
	};
}

/* The file or device */

int set_error(char error[ERROR_MAX], int err, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(error, ERROR_MAX, format, args);
	va_end(args);
	return err;
}

/* What a write has to be aligned to */
static uint32_t sector_of(int fd, const struct stat *st)
{
	int size = 0;

	if (S_ISBLK(st->st_mode) && !ioctl(fd, BLKSSZGET, &size) && size >= 512 && size <= SECTOR_MAX)
		return size;
#ifdef STATX_DIOALIGN
	struct statx x;

	if (!statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) && x.stx_mask & STATX_DIOALIGN && x.stx_dio_offset_align >= 512 &&
	    x.stx_dio_offset_align <= SECTOR_MAX)
		return x.stx_dio_offset_align;
#endif
	return SECTOR_MAX;
}

static int size_of(int fd, const struct stat *st, uint64_t *size)
{
	*size = st->st_size;
	return S_ISBLK(st->st_mode) && ioctl(fd, BLKGETSIZE64, size) ? -errno : 0;
}

int world_open(struct world *w, const char *path, bool read_only, char error[ERROR_MAX])
{
	int flags = (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC, err;
	struct stat st;

	if (stat(path, &st))
		return set_error(error, -errno, "%s: %s%s", path, strerror(errno),
			       errno == ENOENT ? ": make it with `replayctl format`" : "");
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		return set_error(error, -EMEDIUMTYPE, "%s is neither a file nor a block device", path);
	/* A device that is mounted, or of a volume, is refused */
	if (S_ISBLK(st.st_mode) && !read_only)
		flags |= O_EXCL;
	w->direct = true;
	w->fd = open(path, flags | O_DIRECT);
	if (w->fd < 0 && errno == EINVAL) {
		w->direct = false;
		w->fd = open(path, flags);
	}
	if (w->fd < 0)
		return set_error(error, -errno, "%s: %s%s", path, strerror(errno), errno == EBUSY ? ": somebody else uses it" : "");
	if (flock(w->fd, (read_only ? LOCK_SH : LOCK_EX) | LOCK_NB)) {
		err = -errno;
		world_close(w);
		return set_error(error, err == -EWOULDBLOCK ? -EBUSY : err, "%s: %s", path,
			       err == -EWOULDBLOCK ? "a server has this log open" : strerror(-err));
	}
	w->sector = sector_of(w->fd, &st);
	err = size_of(w->fd, &st, &w->size);
	if (err) {
		world_close(w);
		return set_error(error, err, "%s: its size cannot be told: %s", path, strerror(-err));
	}
	return 0;
}

void world_close(struct world *w)
{
	if (w->fd >= 0)
		close(w->fd);
	w->fd = -1;
	bounce_free();
}

/* -EALREADY: a log, whole or not; -EEXIST: something else than zeros, and it may be somebody's */
static int look(struct world *w)
{
	uint8_t data[ANCHOR_SIZE];
	struct log log = { 0 };
	size_t i;
	int err = log_open(&log, &w->env, UINT64_MAX);

	history_free(&log.ended);
	if (!err || err == -EILSEQ || err == -EPROTONOSUPPORT)
		return -EALREADY;
	if (err == -EMEDIUMTYPE)
		err = world_read(&w->env, 0, data, sizeof(data));
	for (i = 0; !err && i < sizeof(data); i++)
		if (data[i])
			err = -EEXIST;
	return err;
}

static int fill(struct world *w, void (*progress)(uint64_t done, uint64_t all))
{
	uint8_t *zeros = bounce_get(FILL_SIZE);
	uint64_t done = 0;
	int err;

	if (!zeros)
		return -ENOMEM;
	memset(zeros, 0, FILL_SIZE);
	while (done < w->size) {
		size_t n = w->size - done < FILL_SIZE ? w->size - done : FILL_SIZE;

		err = all_io(w, done, zeros, n, true);
		if (err)
			return err;
		done += n;
		if (progress)
			progress(done, w->size);
	}
	return 0;
}

/* A new file is there after a loss of power, too */
static int sync_directory(const char *path)
{
	char *copy = strdup(path);
	int fd = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1, err = fd < 0 || fsync(fd) ? -errno : 0;

	if (fd >= 0)
		close(fd);
	free(copy);
	return err;
}

int world_format(const char *path, uint64_t size, bool force, struct log *from, void (*progress)(uint64_t done, uint64_t all),
		 char error[ERROR_MAX])
{
	bool new = access(path, F_OK) && errno == ENOENT;
	struct world w;
	struct stat st;
	int err, fd;

	world_init(&w);
	if (new) {
		if (size < RING_PLACE + RING_MIN)
			return set_error(error, -EINVAL, "a log has at least %u bytes", RING_PLACE + RING_MIN);
		fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (fd < 0)
			return set_error(error, -errno, "%s: %s", path, strerror(errno));
		err = -posix_fallocate(fd, 0, size / SECTOR_MAX * SECTOR_MAX);
		close(fd);
		if (!err)
			err = sync_directory(path);
		if (err) {
			unlink(path);
			return set_error(error, err, "%s: %s", path, strerror(-err));
		}
	}
	err = world_open(&w, path, false, error);
	if (err)
		return err;
	fstat(w.fd, &st);
	if (!new && size && S_ISREG(st.st_mode) && size / SECTOR_MAX * SECTOR_MAX != w.size)
		err = set_error(error, -EEXIST, "%s is there, and has another size: remove it first", path);
	if (!new && !err && !force) {
		err = look(&w);
		if (err == -EALREADY)
			set_error(error, err, "%s holds a log: --force makes a new one, and forgets all that is in it", path);
		else if (err == -EEXIST)
			set_error(error, err, "%s holds something that is no log: --force overwrites it", path);
		else if (err)
			set_error(error, err, "%s: %s", path, strerror(-err));
	}
	/* An old file's contents must not be taken for a log's end: all of it */
	if (!err) {
		err = fill(&w, progress);
		if (!err)
			err = from ? log_copy(from, &w.env, w.size, w.sector) : log_format(&w.env, w.size, w.sector);
		if (err)
			set_error(error, err, "%s: %s", path, err == -ENOSPC ? "too small for the log, or the disk is full" :
				  err == -EINVAL ? "its sectors are larger than those of the log" : strerror(-err));
		if (err && new)
			unlink(path);
	}
	world_close(&w);
	return err;
}
