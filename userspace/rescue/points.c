// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "library.h"
#include "notes.h"
#include "numbers.h"
#include "points.h"

static int say(const char *what, const char *hint)
{
	fprintf(stderr, "rescuectl: %s: %s%s\n", what, strerror(errno), hint);
	return 1;
}

int complain(const char *what)
{
	const char *hint = "";

	if (errno == ENOSYS) {
		hint = access(POINTS_FILE, F_OK) ? ": this kernel has no rescue points: boot one of Perdure's" :
		       ": a seccomp filter, as a container's, forbids system call 507";
		errno = ENOSYS;
	}
	return say(what, hint);
}

int complain_add(const char *name)
{
	if (errno == EPERM && !geteuid())
		return say(name, ": that needs CAP_SYS_ADMIN of the host, and no seccomp filter that forbids system call 507");
	if (errno == EPERM)
		return say(name, ": that is for root; without it you add points to files of your own, if you have no no_new_privs");
	if (errno == ETXTBSY)
		return say(name, ": somebody writes to it, or has it open for that: try again when it is written");
	if (errno == EDQUOT)
		return say(name, ": you have as many points as a user can: remove some");
	if (errno == EOPNOTSUPP)
		return say(name, ": without root, the file has to be on a local disk or in memory (tmpfs); set TMPDIR to such a place for a copy");
	if (errno == EINVAL)
		return say(name, ": the kernel cannot put a breakpoint at its beginning or where it is left");
	return complain(name);
}

long rescue(unsigned int op, unsigned long arg, size_t size)
{
	return syscall(__NR_rescue, op, arg, size, 0);
}

json_t *points_read(void)
{
	FILE *file = fopen(POINTS_FILE, "re");
	char *line = NULL, *save, *word;
	json_t *points;
	size_t size = 0;

	if (!file) {
		if (errno == ENOENT)
			errno = ENOSYS;
		return NULL;
	}
	points = json_array();
	while (getline(&line, &size, file) > 0) {
		json_t *point = json_object();

		for (word = strtok_r(line, " \n", &save); word; word = strtok_r(NULL, " \n", &save)) {
			char *value = strchr(word, '='), *end;
			long long number;

			if (!value)
				continue;
			*value++ = 0;
			number = strtoll(value, &end, 10);
			json_object_set_new(point, word, *value && !*end && strcmp(word, "name") ? json_integer(number) : json_string(value));
		}
		json_array_append_new(points, point);
	}
	free(line);
	fclose(file);
	return points;
}

long long point_number(const json_t *point, const char *key)
{
	return json_integer_value(json_object_get(point, key));
}

const char *point_name(const json_t *point)
{
	return json_string_value(json_object_get(point, "name"));
}

static bool is_of(const json_t *point, const char *name, long long uid)
{
	return point_number(point, "id") && point_number(point, "uid") == uid && !strcmp(point_name(point), name);
}

static bool is_own(const json_t *point, const char *name)
{
	return is_of(point, name, geteuid());
}

long long points_find(json_t *points, const char *name)
{
	long long id = 0;
	json_t *point;
	size_t i;

	json_array_foreach(points, i, point) {
		if (is_own(point, name))
			id = point_number(point, "id");
	}
	return id;
}

bool points_drop(json_t *points, size_t i, int *errors)
{
	json_t *point = json_array_get(points, i);
	const bool gone = !point_remove(point_number(point, "id"), point_name(point));

	*errors += !gone;
	json_array_remove(points, i);
	return gone;
}

unsigned int points_remove(json_t *points, const char *name, long long uid, int *errors)
{
	unsigned int removed = 0;

	for (size_t i = json_array_size(points); i-- > 0;) {
		if (is_of(json_array_get(points, i), name, uid))
			removed += points_drop(points, i, errors);
	}
	return removed;
}

json_t *points_get(json_t *points, long long id)
{
	json_t *point;
	size_t i;

	json_array_foreach(points, i, point) {
		if (id && point_number(point, "id") == id)
			return point;
	}
	return NULL;
}

long long point_sum(json_t *point, const char *prefix)
{
	long long sum = 0;
	const char *key;
	json_t *value;

	json_object_foreach(point, key, value) {
		if (!strncmp(key, prefix, strlen(prefix)))
			sum += json_integer_value(value);
	}
	return sum;
}

void point_reasons(FILE *to, json_t *point, const char *prefix)
{
	const char *key, *separator = "";
	json_t *value;

	json_object_foreach(point, key, value) {
		if (strncmp(key, prefix, strlen(prefix)))
			continue;
		fprintf(to, "%s%s %lld", separator, key + strlen(prefix), (long long)json_integer_value(value));
		separator = ", ";
	}
}

long long point_add(const struct point *point, int fd, const struct function *function)
{
	const struct library *library = library_of(point);
	struct rescue_point args = {
		.fd = fd,
		.nr_returns = function->nr_returns,
		.entry = function->entry,
		.returns = (uintptr_t)function->returns,
		.value = point->value,
		.burst = point->burst,
		.interval_ms = point->interval_ms,
		.output = point->output,
		.deadline_ms = point->deadline_ms,
		.inject = point->inject,
		.error = point->error,
		.error_fd = library ? library->fd : 0,
		.error_at = library ? library->errno_at : 0,
	};
	struct stat st;
	void *mapped;
	long long id;

	strcpy(args.name, point->name);
	/* The kernel looks at the instructions where somebody has mapped them: if it cannot be us, later */
	mapped = fstat(fd, &st) ? MAP_FAILED : mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	id = rescue(RESCUE_ADD, (unsigned long)&args, sizeof(args));
	if (mapped != MAP_FAILED)
		munmap(mapped, st.st_size);
	return id;
}

bool point_can_return(const char *symbol, const char *binary, enum returned_type type)
{
	if (type != RETURNS_ELSEWHERE)
		return true;
	fprintf(stderr, "rescuectl: %s: %s returns neither a pointer nor a number of 64 bits at most, and a point returns nothing else\n", binary, symbol);
	return false;
}

static void warn_encrypts(const struct point *point, int fd)
{
	char *library = point->output == RESCUE_CASCADE ? function_encrypts(fd) : NULL;

	if (library)
		fprintf(stderr, "rescuectl: %s: warning: it needs %s. What is sent again after a fault is encrypted with a key and a number that were "
			"used before, and who reads both can tell what they are: cork, not cascade, unless nothing of it is encrypted\n",
			point->binary, library);
	free(library);
}

int point_open(const struct point *point, struct function *function)
{
	int fd = function_open(point->binary);

	if (fd < 0)
		return -1;
	if ((!point->error || library_of(point)) && !function_find(fd, point->binary, point->symbol, function) &&
	    point_can_return(point->symbol, point->binary, returned_type_find(fd, point->binary, function))) {
		if (!point->build_id || !strncasecmp(point->build_id, function->build_id, FUNCTION_BUILD_ID)) {
			warn_encrypts(point, fd);
			return fd;
		}
		fprintf(stderr, "rescuectl: %s: its build ID is %s, not %s: look whether the point is right for it, and change build_id\n",
			point->binary, *function->build_id ? function->build_id : "missing", point->build_id);
	}
	close(fd);
	return -1;
}

/* As the kernel would say it. Of some file systems it has other numbers than stat(2). */
static json_t *expect(const struct point *point, int fd, const struct function *function)
{
	const struct library *library = library_of(point);
	char dev[32], entry[32];
	struct stat st;
	json_t *expected;

	if (fstat(fd, &st))
		return NULL;
	snprintf(dev, sizeof(dev), "%u:%u", major(st.st_dev), minor(st.st_dev));
	snprintf(entry, sizeof(entry), "0x%" PRIx64, function->entry);
	expected = json_pack("{ss sI ss sI sI sI sI sI sI ss}", "dev", dev, "inode", (json_int_t)st.st_ino, "entry", entry, "returns",
			 (json_int_t)function->nr_returns, "value", (json_int_t)point->value, "burst", (json_int_t)point->burst, "interval_ms",
			 (json_int_t)point->interval_ms, "deadline_ms", (json_int_t)point->deadline_ms, "inject", (json_int_t)point->inject, "output",
			 output_name(point->output));
	if (library && !fstat(library->fd, &st)) {
		snprintf(dev, sizeof(dev), "%u:%u", major(st.st_dev), minor(st.st_dev));
		json_object_set_new(expected, "errno", json_integer(point->error));
		json_object_set_new(expected, "errno_dev", json_string(dev));
		json_object_set_new(expected, "errno_inode", json_integer(st.st_ino));
		snprintf(entry, sizeof(entry), "0x%" PRIx64, library->errno_at);
		json_object_set_new(expected, "errno_at", json_string(entry));
	}
	return expected;
}

static bool is_same(const json_t *one, const json_t *other)
{
	static const char *const keys[] = {
		"dev", "inode", "entry", "returns", "value", "burst", "interval_ms", "deadline_ms", "inject", "output", "errno", "errno_dev", "errno_inode", "errno_at",
	};

	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
		const json_t *a = json_object_get(one, keys[i]), *b = json_object_get(other, keys[i]);

		/* Not all have an errno */
		if ((a || b) && !json_equal(a, b))
			return false;
	}
	return true;
}

/* The same function of the file that was at that path before: is it there for somebody? */
static bool is_needed(json_t *old, const struct point *point, const char *file, const struct notes *notes)
{
	const json_t *note = notes_of(notes, old);
	const char *number = note_text(note, "file");

	return !strcmp(note_text(note, "binary"), point->binary) && !strcmp(note_text(note, "symbol"), point->symbol) &&
	       *file && *number && strcmp(number, file) && file_is_executed(number);
}

/* Those of its name that were there before, without the one that stays; @is_new: the last one of them is replaced by that. */
static bool clear(const struct point *point, long long stays, bool is_new, const char *file, json_t *before, const struct notes *notes,
		  unsigned int *counts)
{
	const long long last = points_find(before, point->name);
	bool good = true;
	json_t *old;
	size_t i;

	json_array_foreach(before, i, old) {
		const long long id = point_number(old, "id");

		if (!is_own(old, point->name) || id == stays)
			continue;
		if (is_needed(old, point, file, notes))
			counts[POINT_KEPT]++;
		else if (point_remove(id, point->name))
			good = false;
		else if (!is_new || id != last)
			counts[POINT_REMOVED]++;
	}
	return good;
}

/* One of its name that is as it is to be; 0: none */
static long long find_same(const json_t *expected, const char *name, json_t *before)
{
	json_t *old;
	size_t i;

	json_array_foreach(before, i, old) {
		if (is_own(old, name) && is_same(expected, old))
			return point_number(old, "id");
	}
	return 0;
}

/* Its number, or -1: what is wrong has been said. The new one is there before the old one goes: if it cannot be added, the old one stays. */
static long long set(const struct point *point, int fd, const struct function *function, json_t *before)
{
	json_t *expected = expect(point, fd, function), *points;
	long long id, same = find_same(expected, point->name, before);

	json_decref(expected);
	if (same)
		return same;
	id = point_add(point, fd, function);
	if (id < 0) {
		complain_add(point->name);
		return -1;
	}
	points = points_read();
	same = find_same(points_get(points, id), point->name, before);
	json_decref(points);
	if (same && point_remove(id, point->name))
		return -1;
	return same ?: id;
}

void point_place(const struct point *point, json_t *before, struct notes *notes, unsigned int *counts)
{
	const bool old = points_find(before, point->name);
	enum point_placed placed = POINT_WRONG;
	char file[FILE_NUMBER];
	struct function function;
	const int fd = point_open(point, &function);
	const long long id = fd < 0 ? -1 : set(point, fd, &function, before);

	if (id > 0) {
		const bool is_new = !points_get(before, id);

		file_number(fd, file);
		if (clear(point, id, is_new, file, before, notes, counts))
			placed = !is_new ? POINT_THERE : old ? POINT_REPLACED : POINT_NEW;
		notes_put(notes, id, point, file);
	}
	counts[placed]++;
	if (fd >= 0)
		close(fd);
}

int point_remove(long long id, const char *name)
{
	return rescue(RESCUE_REMOVE, id, 0) ? complain(name) : 0;
}
