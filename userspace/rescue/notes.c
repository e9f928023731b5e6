// SPDX-License-Identifier: GPL-2.0-or-later
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "library.h"
#include "notes.h"
#include "points.h"

#define ROOT_DIRECTORY	"/run/perdure"
#define LOCK_TRIES	50	/* each takes a tenth of a second */

/* false: there is no place for them */
static bool find_path(char path[PATH_MAX], const char *suffix)
{
	const char *directory = geteuid() ? getenv("XDG_RUNTIME_DIR") : ROOT_DIRECTORY;

	return directory && *directory == '/' && snprintf(path, PATH_MAX, "%s/rescue-points%s", directory, suffix) < PATH_MAX;
}

/* The points are there all the same */
static void say_unnoted(const char *path)
{
	fprintf(stderr, "rescuectl: %s: %s: which points are of files is not noted\n", path, strerror(errno));
}

static json_t *read_all(void)
{
	char path[PATH_MAX];
	const int fd = find_path(path, "") ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
	json_t *all = NULL;
	struct stat st;

	if (fd >= 0) {
		if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid())
			all = json_loadfd(fd, 0, NULL);
		close(fd);
	}
	if (json_is_array(all))
		return all;
	json_decref(all);
	return json_array();
}

void notes_read(struct notes *notes)
{
	*notes = (struct notes){ .all = read_all(), .lock = -1 };
}

/* Who has it may wait for a server, for ever */
static bool take_lock(int lock)
{
	const struct timespec moment = { .tv_nsec = 100000000 };

	for (int i = 0; flock(lock, LOCK_EX | LOCK_NB); i++) {
		if (errno != EWOULDBLOCK || i == LOCK_TRIES)
			return false;
		nanosleep(&moment, NULL);
	}
	return true;
}

bool notes_begin(struct notes *notes)
{
	char path[PATH_MAX];
	int lock = -1;

	if (!geteuid())
		mkdir(ROOT_DIRECTORY, 0755);
	if (find_path(path, ".lock")) {
		lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (lock < 0)
			say_unnoted(path);
		if (lock >= 0 && !take_lock(lock)) {
			fprintf(stderr, "rescuectl: %s: %s\n", path,
				errno == EWOULDBLOCK ? "another rescuectl has it: try again when that has ended" : strerror(errno));
			close(lock);
			return false;
		}
	}
	notes_read(notes);
	notes->lock = lock;
	return true;
}

static void drop_gone(struct notes *notes)
{
	json_t *points = points_read(), *note;

	for (size_t i = json_array_size(notes->all); points && i-- > 0;) {
		note = json_array_get(notes->all, i);
		if (!points_get(points, json_integer_value(json_object_get(note, "id"))))
			notes->changed |= !json_array_remove(notes->all, i);
	}
	json_decref(points);
}

/* Who reads them meanwhile has the old ones */
static void write_all(const struct notes *notes)
{
	char path[PATH_MAX], new[PATH_MAX];
	int fd;

	if (!find_path(path, "") || !find_path(new, ".new"))
		return;
	fd = open(new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0 || json_dumpfd(notes->all, fd, JSON_INDENT(1)) || rename(new, path))
		say_unnoted(path);
	if (fd >= 0)
		close(fd);
}

void notes_end(struct notes *notes)
{
	if (notes->lock >= 0) {
		drop_gone(notes);
		if (notes->changed)
			write_all(notes);
		close(notes->lock);
	}
	json_decref(notes->all);
}

const char *note_text(const json_t *note, const char *key)
{
	return json_string_value(json_object_get(note, key)) ?: "";
}

json_t *notes_of(const struct notes *notes, json_t *point)
{
	json_t *note;
	size_t i;

	json_array_foreach(notes->all, i, note) {
		/* Of an earlier kernel it would have another name */
		if (json_equal(json_object_get(note, "id"), json_object_get(point, "id")) && !strcmp(note_text(note, "name"), point_name(point)))
			return note;
	}
	return NULL;
}

/* The directory without symbolic links; what is in it may be gone, or a link itself. To be freed. */
static char *find_source(const char *path)
{
	const char *name = strrchr(path, '/');
	char *directory = name ? strndup(path, name - path + 1) : strdup("."), *real = directory ? realpath(directory, NULL) : NULL, *source = NULL;

	if (real && asprintf(&source, "%s/%s", strcmp(real, "/") ? real : "", name ? name + 1 : path) < 0)
		source = NULL;
	free(directory);
	free(real);
	return source;
}

void notes_put(struct notes *notes, long long id, const struct point *point, const char *file)
{
	const struct library *library = library_of(point);
	char *source = point->path ? find_source(point->path) : NULL, libc_file[FILE_NUMBER] = "";
	json_t *note, *old;
	size_t i;

	if (library)
		file_number(library->fd, libc_file);
	note = json_pack("{sI ss ss ss ss ss* ss* ss*}", "id", (json_int_t)id, "name", point->name, "binary", point->binary, "symbol", point->symbol,
			 "file", file, "source", source, "libc", library ? library->path : NULL, "libc_file", library ? libc_file : NULL);
	json_array_foreach(notes->all, i, old) {
		if (json_integer_value(json_object_get(old, "id")) == id) {
			json_array_remove(notes->all, i);
			break;
		}
	}
	/* JSON has no other paths */
	if (!note)
		fprintf(stderr, "rescuectl: %s: a path of it is not UTF-8: which file it is of is not noted\n", point->name);
	json_array_append_new(notes->all, note);
	notes->changed = true;
	free(source);
}

char *notes_place(const char *path)
{
	char *real = realpath(path, NULL), *copy, *place = NULL;
	size_t length = strlen(path);
	struct stat st;

	if (real && !stat(real, &st) && S_ISDIR(st.st_mode))
		return real;
	free(real);
	while (length > 1 && path[length - 1] == '/')
		length--;
	copy = strndup(path, length);
	if (copy)
		place = find_source(copy);
	free(copy);
	return place;
}

bool note_is_of(const json_t *note, const char *place)
{
	const char *source = note_text(note, "source");
	const size_t length = strlen(place);

	return !strncmp(source, place, length) && (!source[length] || (source[length] == '/' && !strchr(source + length + 1, '/')));
}

/* ---- What is mapped */

struct mapping {
	unsigned long start, end;
	char rights[5], number[FILE_NUMBER];
};

static bool next_mapping(FILE *maps, char **line, size_t *size, struct mapping *m)
{
	char device[32], inode[32];

	if (getline(line, size, maps) <= 0 || sscanf(*line, "%lx-%lx %4s %*s %31s %31s", &m->start, &m->end, m->rights, device, inode) != 5)
		return false;
	snprintf(m->number, FILE_NUMBER, "%s %s", device, inode);
	return true;
}

void file_number(int fd, char number[FILE_NUMBER])
{
	void *page = mmap(NULL, 1, PROT_READ, MAP_PRIVATE, fd, 0);
	FILE *maps = page == MAP_FAILED ? NULL : fopen("/proc/self/maps", "re");
	char *line = NULL;
	struct mapping m;
	size_t size = 0;

	*number = 0;
	while (maps && !*number && next_mapping(maps, &line, &size, &m)) {
		if ((unsigned long)page >= m.start && (unsigned long)page < m.end)
			strcpy(number, m.number);
	}
	free(line);
	if (maps)
		fclose(maps);
	if (page != MAP_FAILED)
		munmap(page, 1);
}

static bool executes(const char *pid, const char *number)
{
	char path[32 + NAME_MAX];
	char *line = NULL;
	bool does = false;
	struct mapping m;
	size_t size = 0;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	maps = fopen(path, "re");
	/* A user's points are for those that he can look at */
	if (!maps)
		return !geteuid() && (errno == EACCES || errno == EPERM);
	while (!does && next_mapping(maps, &line, &size, &m))
		does = m.rights[2] == 'x' && !strcmp(m.number, number);
	free(line);
	fclose(maps);
	return does;
}

bool file_is_executed(const char *number)
{
	DIR *processes = opendir("/proc");
	struct dirent *entry;
	bool is = !processes;

	while (!is && (entry = readdir(processes)))
		is = isdigit((unsigned char)*entry->d_name) && executes(entry->d_name, number);
	if (processes)
		closedir(processes);
	return is;
}
