// SPDX-License-Identifier: GPL-2.0-or-later
/* The disk works while CRIU gets the processes ready, and what it has read by then is checked. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frem.h"

#define PIECES_S	10		/* a second's reading is asked for in so many pieces before the processes run */
#define PIECE_MIN	(128 << 10)	/* bytes */
#define PIECE_MAX	(4 << 20)
#define ADVICE_MAX	(128 << 10)	/* bytes; what is over a device's window is not read */
#define SEEKS_S		500		/* what lies between two pieces is read, too, when that takes less than a seek */

static const struct descriptor *of;
static atomic_bool stopped;
static atomic_bool damaged;
static pthread_t checker;
static bool checking;
static char damage[256];		/* where; written before damaged is set */

/* On what CRIU needs, then on what they touch first, then on the rest */

struct window {
	int fd;
	off_t piece, gap;	/* bytes */
	off_t last;		/* one in the piece before; -1: none */
	off_t start, end;	/* what is to be read next */
	off_t asked;		/* of this piece */
};

static void advise(int fd, off_t start, off_t end)
{
	for (off_t to; start < end; start = to) {
		to = end - start < ADVICE_MAX ? end : start + ADVICE_MAX;
		posix_fadvise(fd, start, to - start, POSIX_FADV_WILLNEED);
	}
}

static void ask(struct window *w)
{
	advise(w->fd, w->start, w->end);
	w->asked += w->end - w->start;
}

/* Returns: whether it can be read. If not, who needs it finds out */
static bool want(struct window *w, off_t start, off_t end)
{
	char byte;

	if (start >= w->start && start <= w->end + w->gap && w->end - w->start < w->piece) {
		w->end = end;
		return true;
	}
	ask(w);
	/* Two pieces at a time: whoever needs something else is not to wait for long */
	if (w->asked >= w->piece) {
		if (w->last >= 0 && pread(w->fd, &byte, 1, w->last) < 0)
			return false;
		w->last = w->end - 1;
		w->asked = 0;
	}
	w->start = start;
	w->end = end;
	return true;
}

static void read_ahead(const struct process *process, bool rest)
{
	const struct uffdio_lazy_extent *t = rest ? process->lazy : process->touched;
	const struct uffdio_lazy_extent *end = t + (rest ? process->nr_lazy : process->nr_touched);
	struct window w = { .piece = of->rate / PIECES_S, .gap = of->rate / SEEKS_S, .last = -1 };
	off_t from, to;

	w.fd = openat(of->dir, process->image, O_RDONLY | O_CLOEXEC);
	if (w.fd < 0)
		return;
	w.piece = w.piece < PIECE_MIN ? PIECE_MIN : w.piece > PIECE_MAX ? PIECE_MAX : w.piece;
	for (size_t i = 0; !rest && i < process->nr_eager; i++)
		advise(w.fd, process->eager[i].start, process->eager[i].start + process->eager[i].len);
	for (; t < end; t++) {
		for (from = t->offset; from < (off_t)(t->offset + t->len); from = to) {
			to = from + w.piece;
			if (to > (off_t)(t->offset + t->len))
				to = t->offset + t->len;
			if (atomic_load(&stopped) || !want(&w, from, to))
				goto out;
		}
	}
	ask(&w);
out:
	close(w.fd);
}

static void *read_all_ahead(void *unused)
{
	for (int rest = 0; rest < 2; rest++)
		for (size_t i = 0; i < of->nr_processes; i++)
			read_ahead(&of->processes[i], rest);
	return unused;
}

/* Whether a range of a file is in memory. Nothing is read for the question, nor through the mapping, where an error is a signal. */
static bool is_cached(int fd, off_t start, size_t len)
{
	unsigned char there[IMAGE_PIECE / PAGE];
	size_t nr = (len + PAGE - 1) / PAGE;
	void *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, start);
	bool all;

	if (map == MAP_FAILED)
		return false;
	all = !mincore(map, len, there);
	for (size_t i = 0; all && i < nr; i++)
		all = there[i] & 1;
	munmap(map, len);
	return all;
}

/* Returns how many pieces are left: those that are not in memory, if only what is there is to be looked at. */
static size_t check_pieces(struct image *image, bool whole)
{
	static unsigned char piece[IMAGE_PIECE];
	size_t left = 0, len;
	ssize_t n;
	int fd;

	fd = openat(of->dir, image->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	for (size_t i = 0; i < image->nr_sums && !atomic_load(&damaged) && (whole || !atomic_load(&stopped)); i++) {
		if (image->checked[i] || i * IMAGE_PIECE >= image->size)
			continue;
		len = image->size - i * IMAGE_PIECE;
		len = len < IMAGE_PIECE ? len : IMAGE_PIECE;
		if (!whole && !is_cached(fd, i * IMAGE_PIECE, len)) {
			left++;
			continue;
		}
		n = pread(fd, piece, len, i * IMAGE_PIECE);
		image->checked[i] = n == (ssize_t)len && image_sum(piece, len) == image->sums[i];
		if (image->checked[i])
			continue;
		snprintf(damage, sizeof(damage), "%s %s near byte %zu", image->name,
			 n < 0 ? "cannot be read" : "was changed or damaged", i * IMAGE_PIECE);
		atomic_store(&damaged, true);
	}
	close(fd);
	return left;
}

static size_t check_all(bool whole)
{
	size_t left = 0;

	for (size_t i = 0; i < of->nr_images; i++)
		if (!of->images[i].whole)
			left += check_pieces(&of->images[i], whole);
	return left;
}

/* What is in memory anyway. Whoever else wants a processor comes first. */
static void *check_cached(void *unused)
{
	struct sched_param none = {};

	pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
	while (check_all(false) && !atomic_load(&damaged) && !atomic_load(&stopped))
		usleep(20000);
	return unused;
}

void ahead_start(struct descriptor *d)
{
	pthread_t reader;

	of = d;
	if (!pthread_create(&reader, NULL, read_all_ahead, NULL))
		pthread_detach(reader);
	checking = !pthread_create(&checker, NULL, check_cached, NULL);
}

/* Where an image is damaged, of what was looked at by now; NULL: nowhere. Nothing more is read ahead. */
const char *ahead_stop(void)
{
	/* Not waited for: it is the last one to get a processor */
	atomic_store(&stopped, true);
	return atomic_load(&damaged) ? damage : NULL;
}

/* The same, of everything */
const char *ahead_check_rest(struct descriptor *d)
{
	struct sched_param none = {};

	ahead_stop();
	if (checking) {
		/* In the midst of a piece, and now somebody waits for it */
		pthread_setschedparam(checker, SCHED_OTHER, &none);
		pthread_join(checker, NULL);
	}
	of = d;
	check_all(true);
	return atomic_load(&damaged) ? damage : NULL;
}
