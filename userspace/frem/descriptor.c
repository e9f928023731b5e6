// SPDX-License-Identifier: GPL-2.0-or-later
/* The file beside CRIU's images that says what frem knows of them: frem-descriptor(5). */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "frem.h"

#define NAME		"frem.descriptor"
#define MAGIC		"frem-descriptor"
#define VERSION		"2"

/* Its text without the first line, which is right */
static char *read_text(const struct descriptor *d)
{
	char *text, *body, sum[9];
	struct stat st;
	size_t done = 0;
	ssize_t n;
	int fd;

	fd = openat(d->dir, NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		die("%s/" NAME " is missing: not a checkpoint of frem, or one that was not finished", d->path);
	if (fd < 0 || fstat(fd, &st))
		die("%s/" NAME ": %m", d->path);
	trust_file(d->path, NAME, fd);
	text = grow(NULL, 0, st.st_size + 1);
	while ((n = read(fd, text + done, st.st_size - done)) > 0)
		done += n;
	if (n < 0)
		die("%s/" NAME ": %m", d->path);
	close(fd);
	text[done] = '\0';

	if (strncmp(text, MAGIC " ", strlen(MAGIC " ")))
		die("%s/" NAME " is not a descriptor of frem", d->path);
	body = strchr(text, '\n');
	if (!body)
		die("%s/" NAME " is damaged: it was cut", d->path);
	*body++ = '\0';
	if (strncmp(text + strlen(MAGIC " "), VERSION " ", strlen(VERSION " ")))
		die("%s/" NAME " has version %.*s; this frem knows " VERSION ": use the one that wrote it", d->path,
		    (int)strcspn(text + strlen(MAGIC " "), " "), text + strlen(MAGIC " "));
	snprintf(sum, sizeof(sum), "%08lx", crc32_z(0, (void *)body, text + done - body));
	if (strcmp(text + strlen(MAGIC " " VERSION " "), sum))
		die("%s/" NAME " is damaged: its checksum is wrong", d->path);
	return body;
}

/* The next number of a line. What the checksum covers was written by us. */
static uint64_t number(char **line, int base)
{
	uint64_t value = strtoull(*line, line, base);

	*line += **line == ' ' || **line == ',';
	return value;
}

static char *word(char **line)
{
	char *found = *line, *end = strchrnul(found, ' ');

	*line = end + (*end != '\0');
	*end = '\0';
	return found;
}

static void add_image(struct descriptor *d, char *line)
{
	struct image *image;

	d->images = grow(d->images, d->nr_images, sizeof(*d->images));
	image = &d->images[d->nr_images++];
	*image = (struct image){ .name = word(&line) };
	image->size = number(&line, 10);
	image->mtime_ns = number(&line, 10);
	while (*line) {
		image->sums = grow(image->sums, image->nr_sums, sizeof(*image->sums));
		image->sums[image->nr_sums++] = number(&line, 16);
	}
	image->checked = calloc(image->nr_sums + 1, sizeof(*image->checked));
	if (!image->checked)
		die("out of memory");
}

static void add_written(struct descriptor *d, char *line)
{
	struct written *file;

	d->written = grow(d->written, d->nr_written, sizeof(*d->written));
	file = &d->written[d->nr_written++];
	file->size = number(&line, 10);
	file->owner = number(&line, 10);
	file->path = line;
}

static void add_process(struct descriptor *d, char *line)
{
	struct process *process;

	d->processes = grow(d->processes, d->nr_processes, sizeof(*d->processes));
	process = &d->processes[d->nr_processes++];
	*process = (struct process){ .pid = number(&line, 10), .image = line, .uffd = -1 };
}

static void add_extent(struct uffdio_lazy_extent **extents, size_t *nr, char *line)
{
	struct uffdio_lazy_extent *extent;

	*extents = grow(*extents, *nr, sizeof(**extents));
	extent = &(*extents)[(*nr)++];
	extent->addr = number(&line, 16);
	extent->len = number(&line, 16);
	extent->offset = number(&line, 16);
}

static void add_eager(struct process *process, char *line)
{
	struct uffdio_range *range;

	process->eager = grow(process->eager, process->nr_eager, sizeof(*process->eager));
	range = &process->eager[process->nr_eager++];
	range->start = number(&line, 16);
	range->len = number(&line, 16);
}

void descriptor_load(struct descriptor *d, const char *dir)
{
	struct process *process;
	char *line, *next, *key;

	*d = (struct descriptor){ .path = realpath(dir, NULL) };
	if (!d->path)
		d->path = strdup(dir);
	d->dir = trust_directory(dir);
	for (line = read_text(d); *line; line = next) {
		next = strchrnul(line, '\n');
		if (*next)
			*next++ = '\0';
		key = word(&line);
		process = d->nr_processes ? &d->processes[d->nr_processes - 1] : NULL;
		if (process && !strcmp(key, "touched")) {
			add_extent(&process->touched, &process->nr_touched, line);
		} else if (process && !strcmp(key, "lazy")) {
			add_extent(&process->lazy, &process->nr_lazy, line);
		} else if (process && !strcmp(key, "eager")) {
			add_eager(process, line);
		} else if (!strcmp(key, "process")) {
			add_process(d, line);
		} else if (!strcmp(key, "image")) {
			add_image(d, line);
		} else if (!strcmp(key, "written")) {
			add_written(d, line);
		} else if (!strcmp(key, "criu_option")) {
			d->options = grow(d->options, d->nr_options, sizeof(*d->options));
			d->options[d->nr_options++] = line;
		} else if (!strcmp(key, "pid")) {
			d->pid = number(&line, 10);
		} else if (!strcmp(key, "bytes")) {
			d->bytes = number(&line, 10);
		} else if (!strcmp(key, "touched_bytes")) {
			d->touched_bytes = number(&line, 10);
		} else if (!strcmp(key, "rate")) {
			d->rate = number(&line, 10);
		} else if (!strcmp(key, "why_plain")) {
			d->why_plain = line;
		}
		/* The others are for frem stat */
	}
}

const struct image *descriptor_image(const struct descriptor *d, const char *name)
{
	for (size_t i = 0; i < d->nr_images; i++)
		if (!strcmp(d->images[i].name, name))
			return &d->images[i];
	die("%s/" NAME " is damaged: it says nothing of %s", d->path, name);
}

uint32_t image_sum(const void *piece, size_t len)
{
	return crc32_z(0, piece, len);
}

static void check_image(const struct descriptor *d, struct image *image, bool whole)
{
	static unsigned char piece[IMAGE_PIECE];
	struct stat st;
	size_t n = 0;
	FILE *file;
	int fd;

	fd = openat(d->dir, image->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		die("%s/%s is missing", d->path, image->name);
	if (fd < 0 || fstat(fd, &st))
		die("%s/%s: %m", d->path, image->name);
	trust_file(d->path, image->name, fd);
	if ((uint64_t)st.st_size != image->size)
		die("%s/%s has %jd bytes instead of %" PRIu64 ": it was truncated or changed", d->path, image->name,
		    (intmax_t)st.st_size, image->size);
	if (!strncmp(image->name, "pages-", 6) && !whole) {
		if (st.st_mtim.tv_sec * UINT64_C(1000000000) + st.st_mtim.tv_nsec == image->mtime_ns) {
			close(fd);
			return;
		}
		say("%s was copied or changed since it was written: reading it whole to check it", image->name);
	}
	file = fdopen(fd, "r");
	if (!file)
		die("%s/%s: %m", d->path, image->name);
	setvbuf(file, NULL, _IONBF, 0);
	for (size_t i = 0; i < image->nr_sums; i++) {
		n = fread(piece, 1, IMAGE_PIECE, file);
		if (ferror(file))
			die("%s/%s: %m", d->path, image->name);
		if (image_sum(piece, n) != image->sums[i])
			die("%s/%s was changed or damaged near byte %zu", d->path, image->name, i * IMAGE_PIECE);
	}
	image->whole = true;
	fclose(file);
}

/*
 * Sizes and the small images always. Page images when asked for, and when their time is not the one known: reading them is
 * what a restore wants to avoid.
 */
void descriptor_check(struct descriptor *d, bool whole)
{
	for (size_t i = 0; i < d->nr_images; i++)
		check_image(d, &d->images[i], whole);
}
