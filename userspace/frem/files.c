// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Files that the processes were writing. They have gone on after the checkpoint, and CRIU refuses a file that has another
 * size: what has been added can be cut off, and is kept.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "frem.h"

#define SUFFIX		".frem-%Y%m%d-%H%M%S"

/*
 * The directory may be of somebody who cannot write where root can: he must not have root cut another file in the place of
 * his. So no link leads there, it has no other name, and it has the owner that it had.
 */
static int open_own(const struct written *file, struct stat *st)
{
	struct open_how how = { .flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, .resolve = RESOLVE_NO_SYMLINKS };
	int fd = syscall(SYS_openat2, AT_FDCWD, file->path, &how, sizeof(how));

	if (fd < 0 || fstat(fd, st))
		die("%s: %m", file->path);
	if (!S_ISREG(st->st_mode) || st->st_nlink != 1 || st->st_uid != file->owner)
		die("%s is another file than at the checkpoint, or has another owner or another name: it is not set back", file->path);
	return fd;
}

static void keep_tail(const struct written *file, int fd, const struct stat *st, char *copy, size_t size)
{
	char suffix[32];
	time_t now = time(NULL);
	off_t from = file->size;
	int to;

	strftime(suffix, sizeof(suffix), SUFFIX, localtime(&now));
	if ((size_t)snprintf(copy, size, "%s%s", file->path, suffix) >= size)
		die("%s: %s", file->path, strerror(ENAMETOOLONG));
	to = open(copy, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (to < 0)
		die("%s: %m", copy);
	while (from < st->st_size)
		if (sendfile(to, fd, &from, st->st_size - from) <= 0)
			die("%s: %m", copy);
	if (fchown(to, st->st_uid, st->st_gid) || fchmod(to, st->st_mode & 0777) || fsync(to) || close(to))
		die("%s: %m", copy);
}

/* Those that have become shorter are CRIU's to refuse. */
void files_set_back(const struct descriptor *d)
{
	const struct written *file;
	char copy[4200];
	struct stat st;
	int fd;

	for (file = d->written; file < d->written + d->nr_written; file++) {
		if (!stat(file->path, &st) && (uint64_t)st.st_size <= file->size)
			continue;
		fd = open_own(file, &st);
		if ((uint64_t)st.st_size > file->size) {
			keep_tail(file, fd, &st, copy, sizeof(copy));
			if (ftruncate(fd, file->size))
				die("%s: %m", file->path);
			say("%s is set back to the %" PRIu64 " bytes that it had; the %" PRIu64 " that came later are in %s",
			    file->path, file->size, st.st_size - file->size, copy);
		}
		close(fd);
	}
}
