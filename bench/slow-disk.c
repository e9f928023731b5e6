// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A disk whose flush takes as long as it is told: slow-disk DIRECTORY MIB FLUSH_US. Mounts a FUSE
 * file system with one file, "disk", to be put under a loop device. What is written is in memory. A
 * read takes what it does on a disk with 7200 rotations in a minute and 60 MB/s: half a rotation,
 * unless it goes on where the last one ended, and a second for each 60 MB. There is one head: one
 * flush or read after the other. Says "ready" when it is there, and ends when it is unmounted.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FILE_NODE	2
#define THREADS		8
#define WRITE_MAX	(128u << 10)
#define ROTATION_NS	(60000000000ull / 7200)
#define SECTOR_NS	(512 * 1000 / 60)

static int device;
static uint8_t *disk;
static uint64_t disk_size, flush_ns, read_end;
static pthread_mutex_t head = PTHREAD_MUTEX_INITIALIZER;

/* The head is held for as long as it takes, from now, or from when it is free */
static void work(const struct fuse_read_in *in)
{
	uint64_t ns = flush_ns;
	struct timespec t;

	pthread_mutex_lock(&head);
	if (in) {
		ns = in->size / 512 * SECTOR_NS + (in->offset == read_end ? 0 : ROTATION_NS / 2);
		read_end = in->offset + in->size;
	}
	clock_gettime(CLOCK_MONOTONIC, &t);
	ns += t.tv_nsec;
	t.tv_sec += ns / 1000000000;
	t.tv_nsec = ns % 1000000000;
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
	pthread_mutex_unlock(&head);
}

static void answer(const struct fuse_in_header *in, int error, const void *data, size_t size)
{
	struct fuse_out_header out = { .len = sizeof(out) + (error ? 0 : size), .error = error, .unique = in->unique };
	struct iovec parts[] = { { &out, sizeof(out) }, { (void *)data, size } };

	if (writev(device, parts, error || !size ? 1 : 2) < 0 && errno != ENOENT && errno != ENODEV)
		perror("slow-disk: answer");
}

static struct fuse_attr attributes(uint64_t node)
{
	bool file = node == FILE_NODE;

	return (struct fuse_attr){ .ino = node, .size = file ? disk_size : 0, .blocks = disk_size / 512, .blksize = 4096,
				   .mode = file ? S_IFREG | 0600 : S_IFDIR | 0700, .nlink = 1 };
}

static void handle(const struct fuse_in_header *in, const void *arg)
{
	struct fuse_attr_out attr = { .attr_valid = 3600, .attr = attributes(in->nodeid) };
	struct fuse_entry_out entry = { .nodeid = FILE_NODE, .entry_valid = 3600, .attr_valid = 3600,
					.attr = attributes(FILE_NODE) };
	struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION,
				      .max_readahead = WRITE_MAX, .flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ASYNC_DIO, .max_background = 64,
				      .congestion_threshold = 48, .max_write = WRITE_MAX, .time_gran = 1 };
	const struct fuse_read_in *read_in = arg;
	const struct fuse_write_in *write_in = arg;
	struct fuse_write_out written = { 0 };
	struct fuse_open_out opened = { 0 };
	struct fuse_statfs_out space = { .st.bsize = 4096, .st.frsize = 4096, .st.namelen = 255 };

	switch (in->opcode) {
	case FUSE_INIT:
		return answer(in, 0, &init, sizeof(init));
	case FUSE_LOOKUP:
		return answer(in, strcmp(arg, "disk") ? -ENOENT : 0, &entry, sizeof(entry));
	case FUSE_GETATTR:
	case FUSE_SETATTR:
		return answer(in, 0, &attr, sizeof(attr));
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		return answer(in, 0, &opened, sizeof(opened));
	case FUSE_STATFS:
		return answer(in, 0, &space, sizeof(space));
	case FUSE_READ:
		if (read_in->offset >= disk_size || read_in->size > disk_size - read_in->offset)
			return answer(in, 0, NULL, 0);
		if (flush_ns)
			work(read_in);
		return answer(in, 0, disk + read_in->offset, read_in->size);
	case FUSE_WRITE:
		if (write_in->offset >= disk_size || write_in->size > disk_size - write_in->offset)
			return answer(in, -ENOSPC, NULL, 0);
		memcpy(disk + write_in->offset, write_in + 1, write_in->size);
		written.size = write_in->size;
		return answer(in, 0, &written, sizeof(written));
	case FUSE_FSYNC:
		work(NULL);
		return answer(in, 0, NULL, 0);
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_ACCESS:
		return answer(in, 0, NULL, 0);
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	default:
		return answer(in, -ENOSYS, NULL, 0);
	}
}

static void *serve(void *arg)
{
	size_t size = WRITE_MAX + 8192;
	uint64_t *buffer = malloc(size);

	(void)arg;
	while (buffer) {
		ssize_t n = read(device, buffer, size);

		if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
			continue;
		if (n < (ssize_t)sizeof(struct fuse_in_header))
			break;
		handle((struct fuse_in_header *)buffer, (char *)buffer + sizeof(struct fuse_in_header));
	}
	free(buffer);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	char options[128];
	int i;

	if (argc != 4)
		return 2;
	disk_size = strtoull(argv[2], NULL, 10) << 20;
	flush_ns = strtoull(argv[3], NULL, 10) * 1000;
	disk = mmap(NULL, disk_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (disk == MAP_FAILED || device < 0) {
		perror("slow-disk");
		return 1;
	}
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	if (mount("slow-disk", argv[1], "fuse", MS_NOSUID | MS_NODEV, options)) {
		perror("slow-disk: mount");
		return 1;
	}
	for (i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, serve, NULL))
			return 1;
	puts("ready");
	fflush(stdout);
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
