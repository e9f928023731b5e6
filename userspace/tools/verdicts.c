// SPDX-License-Identifier: GPL-2.0-or-later
#include <dirent.h>
#include <err.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "verdicts.h"

#define PLACES		3
#define FILES		1024
#define FILE_MAX	(1u << 20)	/* another one is begun long before */
#define RECORD_MAX	4096		/* far more than what programs of ours write */

/* Not times: a clock may be wrong, and a service may write any. */
static struct file {
	uint64_t dev, ino, seen;
	bool there;
} files[FILES];
static size_t nr_files;

/* NULL: none */
static const char *place(unsigned int number)
{
	static const char *const places[PLACES] = { "/run/replay", "/run/takeover", KEEPERS };
	const char *set = getenv("PERDURE_VERDICTS");

	return !set || !*set ? places[number] : number ? NULL : set;
}

uint64_t verdict_time(const char *line)
{
	const char *found = strstr(line, "time_ns=");

	return found ? strtoull(found + 8, NULL, 10) : 0;
}

/* NULL: there are too many */
static struct file *file_of(const struct stat *st)
{
	static bool said;
	struct file *f = files;

	while (f < files + nr_files && (f->ino != st->st_ino || f->dev != st->st_dev))
		f++;
	if (f == files + FILES) {
		if (!said)
			warnx("more than %d files of records: the others are not read", FILES);
		said = true;
		return NULL;
	}
	if (f == files + nr_files) {
		nr_files++;
		*f = (struct file){ .dev = st->st_dev, .ino = st->st_ino };
	}
	f->there = true;
	/* It was begun again */
	if (f->seen > (uint64_t)st->st_size)
		f->seen = 0;
	return f;
}

/* Services write them, and who reads may be root: a file that is something else is left alone, and so is a line */
static void read_one(int dir, const char *name, void (*see)(char *line, bool of_root))
{
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct file *file = NULL;
	char *line = NULL, *c;
	size_t room = 0;
	struct stat st;
	ssize_t n;
	FILE *f;

	if (fd < 0)
		return;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size <= FILE_MAX)
		file = file_of(&st);
	f = file && lseek(fd, file->seen, SEEK_SET) >= 0 ? fdopen(fd, "r") : NULL;
	if (!f) {
		close(fd);
		return;
	}
	/* What has no end yet is for the next time */
	while ((n = getline(&line, &room, f)) > 0 && line[n - 1] == '\n') {
		file->seen += n;
		if (n > RECORD_MAX)
			continue;
		for (c = line; *c; c++)
			if (*c < ' ' || *c > '~')
				*c = *c == '\n' ? 0 : '?';
		see(line, !st.st_uid);
	}
	free(line);
	fclose(f);
}

static int is_ours(const struct dirent *entry)
{
	const char *dot = strstr(entry->d_name, ".verdicts");

	return dot && (!strcmp(dot, ".verdicts") || !strcmp(dot, ".verdicts.old"));
}

static void read_place(const char *path, void (*see)(char *line, bool of_root))
{
	int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), n, i;
	struct dirent **entries;

	if (dir < 0)
		return;
	n = scandir(path, &entries, is_ours, alphasort);
	for (i = 0; i < n; i++) {
		read_one(dir, entries[i]->d_name, see);
		free(entries[i]);
	}
	if (n >= 0)
		free(entries);
	close(dir);
}

void verdicts_read(void (*see)(char *line, bool of_root))
{
	size_t left = 0;

	for (size_t i = 0; i < nr_files; i++)
		files[i].there = false;
	for (unsigned int i = 0; i < PLACES && place(i); i++)
		read_place(place(i), see);
	for (size_t i = 0; i < nr_files; i++)
		if (files[i].there)
			files[left++] = files[i];
	nr_files = left;
}

void verdicts_save(FILE *to)
{
	for (size_t i = 0; i < nr_files; i++)
		fprintf(to, "%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", files[i].dev, files[i].ino, files[i].seen);
}

void verdicts_load(FILE *from)
{
	struct file *f = files;

	while (f < files + FILES && fscanf(from, "%" SCNu64 " %" SCNu64 " %" SCNu64, &f->dev, &f->ino, &f->seen) == 3)
		f++;
	nr_files = f - files;
}

bool verdicts_watch_more(int fd)
{
	bool any = false;

	for (unsigned int i = 0; i < PLACES && place(i); i++)
		any |= inotify_add_watch(fd, place(i), IN_MODIFY | IN_CREATE | IN_MOVED_TO) >= 0;
	return any;
}

int verdicts_watch(bool wait)
{
	int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

	if (fd >= 0 && wait)
		inotify_add_watch(fd, "/run", IN_CREATE | IN_MOVED_TO);
	if (fd >= 0 && !verdicts_watch_more(fd) && !wait) {
		close(fd);
		fd = -1;
	}
	return fd;
}
