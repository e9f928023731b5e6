/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Missing pages from an image file: three ioctls on a userfaultfd.
 */
#ifndef _LINUX_LAZY_LOADER_H
#define _LINUX_LAZY_LOADER_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Load everything that is missing, in the background */
#define UFFD_LAZY_START		(1 << 0)
/* UFFDIO_LAZY_LOAD: do not load the ranges now; they come first when loading starts */
#define UFFD_LAZY_FIRST		(1 << 1)

/* A run of pages that the image holds; all in bytes, whole pages */
struct uffdio_lazy_extent {
	__u64 addr;
	__u64 len;
	__u64 offset;		/* in the image */
};

struct uffdio_lazy_attach {
	__u32 size;		/* of this structure */
	__u32 flags;
	__s32 image_fd;
	__s32 event_fd;		/* eventfd, told at the end; -1: none */
	__u64 extents;		/* pointer to struct uffdio_lazy_extent[] */
	__u64 nr_extents;
	__u64 image_size;	/* that the image must have; 0: any */
	__u32 chunk_pages;	/* to read at a time; 0: 100 */
	__u32 reserved;
};

struct uffdio_lazy_load {
	__u32 size;		/* of this structure */
	__u32 flags;
	__u64 ranges;		/* pointer to struct uffdio_range[] */
	__u64 nr_ranges;
	__u64 loaded;		/* out: pages */
};

#define UFFD_LAZY_ATTACHED	1
#define UFFD_LAZY_LOADING	2
#define UFFD_LAZY_COMPLETE	3
#define UFFD_LAZY_FAILED	4

struct uffdio_lazy_stat {
	__u32 size;		/* of this structure */
	__u32 state;
	__s32 error;		/* of the failure, positive */
	__u32 reserved;
	__u64 total;		/* pages; those below, too */
	__u64 missing;
	__u64 removed;		/* unmapped, or populated by others */
	__u64 by_fault;
	__u64 by_around;	/* because a fault was near */
	__u64 by_load;
	__u64 by_background;
	__u64 faults;
	__u64 faults_io;	/* of them, had to read */
	__u64 faults_wait;	/* of them, waited for somebody else's read */
	__u64 fault_ns;
	__u64 fault_max_ns;
	__u64 reads;
	__u64 attach_ns;	/* CLOCK_MONOTONIC, and those below */
	__u64 start_ns;
	__u64 end_ns;
};

#define UFFDIO_LAZY_ATTACH	_IOW(0xAA, 0x30, struct uffdio_lazy_attach)
#define UFFDIO_LAZY_LOAD	_IOWR(0xAA, 0x31, struct uffdio_lazy_load)
#define UFFDIO_LAZY_STAT	_IOWR(0xAA, 0x32, struct uffdio_lazy_stat)

#endif /* _LINUX_LAZY_LOADER_H */
