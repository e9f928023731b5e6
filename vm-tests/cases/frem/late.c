// SPDX-License-Identifier: GPL-2.0-or-later
/* Preloaded into frem: its attach takes its time, while CRIU goes on, and fails. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <perdure/lazy_loader.h>

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (request != UFFDIO_LAZY_ATTACH)
		return syscall(SYS_ioctl, fd, request, arg);
	sleep(atoi(getenv("FREM_LATE")));
	errno = EMFILE;
	return -1;
}
