/* SPDX-License-Identifier: GPL-2.0-or-later */
/* An io_uring, without a library. */
#ifndef RING_H
#define RING_H

#include "../lib/t.h"

#include <linux/io_uring.h>

struct ring {
	int fd;
	struct io_uring_params p;
	char *sq, *cq;
	struct io_uring_sqe *sqes;
};

static void ring_open(struct ring *r)
{
	memset(r, 0, sizeof(*r));
	r->fd = syscall(SYS_io_uring_setup, 8, &r->p);
	if (r->fd < 0 && (errno == ENOSYS || errno == EPERM))
		t_skip("no io_uring");
	T_OK(r->fd);
	r->sq = mmap(NULL, r->p.sq_off.array + r->p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd,
		     IORING_OFF_SQ_RING);
	r->cq = mmap(NULL, r->p.cq_off.cqes + r->p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE,
		     MAP_SHARED, r->fd, IORING_OFF_CQ_RING);
	r->sqes = mmap(NULL, r->p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED, r->fd,
		       IORING_OFF_SQES);
	T_ASSERT(r->sq != MAP_FAILED && r->cq != MAP_FAILED && r->sqes != MAP_FAILED);
}

/* Submits one request. */
static void ring_submit(struct ring *r, int op, int fd, void *buf, unsigned int len, unsigned int wait)
{
	unsigned int *tail = (void *)(r->sq + r->p.sq_off.tail), mask = *(unsigned int *)(r->sq + r->p.sq_off.ring_mask);
	unsigned int i = *tail & mask;

	memset(&r->sqes[i], 0, sizeof(r->sqes[i]));
	r->sqes[i].opcode = op;
	r->sqes[i].fd = fd;
	r->sqes[i].addr = (uintptr_t)buf;
	r->sqes[i].len = len;
	if (op == IORING_OP_READ)
		r->sqes[i].off = -1;
	((unsigned int *)(r->sq + r->p.sq_off.array))[i] = i;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	T_EQ(syscall(SYS_io_uring_enter, r->fd, 1, wait, IORING_ENTER_GETEVENTS, NULL, 0), 1);
}

/* Submits one request and waits for its result. */
static int ring_do(struct ring *r, int op, int fd, void *buf, unsigned int len)
{
	unsigned int *head = (void *)(r->cq + r->p.cq_off.head), mask = *(unsigned int *)(r->cq + r->p.cq_off.ring_mask);
	struct io_uring_cqe *cqes = (void *)(r->cq + r->p.cq_off.cqes);
	int res;

	ring_submit(r, op, fd, buf, len, 1);
	res = cqes[*head & mask].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return res;
}

#endif
