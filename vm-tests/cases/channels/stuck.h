/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Memory that stops whoever touches it, the kernel too, until it is filled. */
#ifndef STUCK_H
#define STUCK_H

#include "../lib/t.h"

#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

struct stuck {
	int fd;
	char *page;
	size_t size;
};

static void stuck_open(struct stuck *s)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };

	s->size = sysconf(_SC_PAGESIZE);
	s->fd = T_OK(syscall(SYS_userfaultfd, O_CLOEXEC));
	T_OK(ioctl(s->fd, UFFDIO_API, &api));
	s->page = mmap(NULL, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	T_ASSERT(s->page != MAP_FAILED);
	reg.range.start = (uintptr_t)s->page;
	reg.range.len = s->size;
	T_OK(ioctl(s->fd, UFFDIO_REGISTER, &reg));
}

/* Waits until somebody is stopped there. */
static void stuck_wait(struct stuck *s)
{
	struct uffd_msg msg;

	T_EQ(read(s->fd, &msg, sizeof(msg)), sizeof(msg));
	T_EQ(msg.event, UFFD_EVENT_PAGEFAULT);
}

/* Waits until the process waits, and no signal ends that, or only one that kills. */
static void waits_for_good(pid_t pid)
{
	char path[64], text[256], *end;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	for (;;) {
		T_ASSERT(t_get(path, text, sizeof(text)) > 0);
		end = strrchr(text, ')');
		if (end && end[2] == 'D')
			return;
		t_sleep_ms(1);
	}
}

static void stuck_end(struct stuck *s)
{
	struct uffdio_zeropage zero = { .range = { (uintptr_t)s->page, s->size } };

	T_OK(ioctl(s->fd, UFFDIO_ZEROPAGE, &zero));
}

#endif
