/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef FREM_H
#define FREM_H

#include <linux/userfaultfd.h>
#include <perdure/lazy_loader.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PAGE		4096
#define IMAGE_PIECE	(1 << 20)	/* for one checksum */

/* One file of CRIU's */
struct image {
	char *name;
	uint64_t size;
	uint64_t mtime_ns;
	uint32_t *sums;			/* CRC-32 of each piece */
	bool *checked;			/* those that are right */
	bool whole;			/* all are */
	size_t nr_sums;
};

/* A process, and what of its memory is where in its page image */
struct process {
	pid_t pid;			/* in the images */
	char *image;
	struct uffdio_lazy_extent *lazy;	/* what a lazy restore leaves to the kernel */
	size_t nr_lazy;
	struct uffdio_lazy_extent *touched;	/* of it, what comes first */
	size_t nr_touched;
	struct uffdio_range *eager;	/* what CRIU reads itself, by offset */
	size_t nr_eager;
	int uffd;			/* -1: CRIU has not handed it over */
};

/* A file that the processes were writing */
struct written {
	char *path;
	uint64_t size;
	uid_t owner;
};

/* frem-descriptor(5) */
struct descriptor {
	int dir;
	char *path;			/* of the directory */
	char *text;
	long pid;
	uint64_t bytes;
	uint64_t touched_bytes;
	uint64_t rate;			/* bytes a second; 0: unknown */
	char *why_plain;		/* only CRIU's own restore can use the images; NULL: ours can */
	char **options;
	size_t nr_options;
	struct image *images;
	size_t nr_images;
	struct process *processes;
	size_t nr_processes;
	struct written *written;
	size_t nr_written;
};

struct restore_options {
	bool plain, check, detach, preload, set_back, verify, json;
	char **criu;			/* up to a NULL */
};

/* descriptor.c; what is wrong ends the program */
void descriptor_load(struct descriptor *d, const char *dir);
const struct image *descriptor_image(const struct descriptor *d, const char *name);
void descriptor_check(struct descriptor *d, bool whole);
uint32_t image_sum(const void *piece, size_t len);

/* trust.c; who cannot be trusted ends the program */
int trust_directory(const char *dir);
void trust_file(const char *dir, const char *name, int fd);
size_t trusted_options(char **options, size_t nr, const char **trusted);

/* ahead.c */
void ahead_start(struct descriptor *d);
const char *ahead_stop(void);
const char *ahead_check_rest(struct descriptor *d);

/* files.c */
void files_set_back(const struct descriptor *d);

/* restore.c */
int restore(const char *dir, const struct restore_options *opt);

/* frem.c */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void *grow(void *array, size_t nr, size_t size);
void print_string(const char *key, const char *value);
/* Of the programs that lie beside this one, or are installed for it; valid until the next call */
const char *part(const char *name);
void exec_part(char *const argv[]) __attribute__((noreturn));

#endif
