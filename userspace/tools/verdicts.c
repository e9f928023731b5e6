// SPDX-License-Identifier: GPL-2.0-or-later
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "verdicts.h"

#define PLACES		3
#define FILE_MAX	(1u << 20)	/* another one is begun long before */

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

/* Services write them, and who reads may be root: a file that is something else is left alone */
static void read_one(int dir, const char *name, uint64_t since, void (*see)(char *line))
{
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	char *line = NULL, *c;
	size_t room = 0;
	struct stat st;
	FILE *f;

	if (fd < 0)
		return;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > FILE_MAX) {
		close(fd);
		return;
	}
	f = fdopen(fd, "r");
	if (!f) {
		close(fd);
		return;
	}
	while (getline(&line, &room, f) > 0) {
		for (c = line; *c; c++)
			if (*c < ' ' || *c > '~')
				*c = *c == '\n' ? 0 : '?';
		if (verdict_time(line) > since)
			see(line);
	}
	free(line);
	fclose(f);
}

static int is_ours(const struct dirent *entry)
{
	const char *dot = strstr(entry->d_name, ".verdicts");

	return dot && (!strcmp(dot, ".verdicts") || !strcmp(dot, ".verdicts.old"));
}

static void read_place(const char *path, uint64_t since, void (*see)(char *line))
{
	int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), n, i;
	struct dirent **entries;

	if (dir < 0)
		return;
	n = scandir(path, &entries, is_ours, alphasort);
	for (i = 0; i < n; i++) {
		read_one(dir, entries[i]->d_name, since, see);
		free(entries[i]);
	}
	if (n >= 0)
		free(entries);
	close(dir);
}

void verdicts_read(uint64_t since, void (*see)(char *line))
{
	for (unsigned int i = 0; i < PLACES && place(i); i++)
		read_place(place(i), since, see);
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
