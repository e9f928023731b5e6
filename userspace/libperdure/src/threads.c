// SPDX-License-Identifier: LGPL-2.1-or-later
/* After a restart: a thread for each request that the old generation had not finished. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <perdure.h>

#include "fds.h"

struct found {
	int fd;
	dev_t dev;
	ino_t ino;
};

/* Threads wait at the gate until all of them are there: all run, or none does. */
struct gate {
	pthread_mutex_t lock;
	pthread_cond_t change;
	int open;		/* 1: go, -1: go home */
	int inside;		/* threads that still look at the gate */
	void (*start)(int fd, void *arg);
	void *arg;
};

struct job {
	struct gate *gate;
	pthread_t thread;
	int fd;
};

static int compare(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	if (x->dev != y->dev)
		return x->dev < y->dev ? -1 : 1;
	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return x->fd - y->fd;
}

static int compare_fd(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

struct list {
	struct found *found;
	int n;
};

/* Adds fd to the list if there is something to read again on it. */
static int consider(int fd, void *arg)
{
	struct list *list = arg;
	struct io_log log;
	struct found *more;
	struct stat st;

	if (getiolog(fd, &log)) {
		/* Switched off, or not our kernel: then that is the answer. */
		return errno == ENOSYS || errno == EOPNOTSUPP || errno == EPERM ? -1 : 0;
	}
	if (!log.unread || fstat(fd, &st))
		return 0;
	if ((list->n & (list->n - 1)) == 0) {
		more = realloc(list->found, (list->n ? 2 * list->n : 1) * sizeof(*more));
		if (!more)
			return -1;
		list->found = more;
	}
	list->found[list->n++] = (struct found){ fd, st.st_dev, st.st_ino };
	return 0;
}

int perdure_pending(int **fds)
{
	struct list list = { 0 };
	int kept = 0, err = fd_each(consider, &list);
	struct found *found = list.found;

	*fds = err ? NULL : malloc((list.n ? list.n : 1) * sizeof(**fds));
	if (*fds && list.n) {
		/* Duplicates are the same request: the lowest descriptor stands for them. */
		qsort(found, list.n, sizeof(*found), compare);
		for (int i = 0; i < list.n; i++)
			if (!i || found[i].dev != found[i - 1].dev || found[i].ino != found[i - 1].ino)
				(*fds)[kept++] = found[i].fd;
		qsort(*fds, kept, sizeof(**fds), compare_fd);
	}
	err = errno;
	free(found);
	errno = err;
	return *fds ? kept : -1;
}

static void *run(void *p)
{
	struct job job = *(struct job *)p;
	struct gate *gate = job.gate;
	void (*start)(int fd, void *arg) = gate->start;
	void *arg = gate->arg;
	int open;

	pthread_mutex_lock(&gate->lock);
	while (!gate->open)
		pthread_cond_wait(&gate->change, &gate->lock);
	open = gate->open;
	if (!--gate->inside)
		pthread_cond_broadcast(&gate->change);
	pthread_mutex_unlock(&gate->lock);
	if (open > 0)
		start(job.fd, arg);
	return NULL;
}

int perdure_recover_threads(void (*start)(int fd, void *arg), void *arg, const int *fds, int n)
{
	struct gate gate = {
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.change = PTHREAD_COND_INITIALIZER,
		.start = start,
		.arg = arg,
	};
	struct job *jobs;
	int *own = NULL, made, err = 0;

	if (!fds) {
		n = perdure_pending(&own);
		if (n < 0)
			return -1;
		fds = own;
	}
	jobs = calloc(n ? n : 1, sizeof(*jobs));
	if (!jobs) {
		free(own);
		errno = ENOMEM;
		return -1;
	}
	for (made = 0; made < n; made++) {
		jobs[made].gate = &gate;
		jobs[made].fd = fds[made];
		err = pthread_create(&jobs[made].thread, NULL, run, &jobs[made]);
		if (err)
			break;
	}

	pthread_mutex_lock(&gate.lock);
	gate.inside = made;
	gate.open = err ? -1 : 1;
	pthread_cond_broadcast(&gate.change);
	while (gate.inside)
		pthread_cond_wait(&gate.change, &gate.lock);
	pthread_mutex_unlock(&gate.lock);

	for (int i = 0; i < made; i++) {
		if (err)
			pthread_join(jobs[i].thread, NULL);
		else
			pthread_detach(jobs[i].thread);
	}
	free(jobs);
	free(own);
	if (!err)
		return made;
	errno = err;
	return -1;
}
