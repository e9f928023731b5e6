// SPDX-License-Identifier: GPL-2.0-or-later
/* What is refused, and what happens when the image cannot be read. */
#include "../lib/apparmor.h"
#include "nf.h"

#include <linux/fs.h>
#include <sys/fsuid.h>
#include <sys/klog.h>
#include <sys/mount.h>

/* kB */
static unsigned long available(void)
{
	char text[4096], *line;

	T_ASSERT(t_get("/proc/meminfo", text, sizeof(text)) > 0);
	line = strstr(text, "MemAvailable:");
	T_ASSERT(line);
	return strtoul(line + 13, NULL, 10);
}

T(attach_errors)
{
	char *p = nf_map(64), path[PATH_MAX];
	int image = nf_image(1, 64), uffd = nf_uffd(), raw = T_OK(syscall(SYS_userfaultfd, 0)), fd;
	struct uffdio_lazy_extent e[2] = { nf_extent(p, 8, 0), nf_extent(p + 8 * PG, 8, 8) };
	struct uffdio_lazy_attach good = nf_args(image, e, 2, 0), a;
	struct {
		struct uffdio_lazy_attach a;
		uint64_t more;
	} big;

	nf_register(uffd, p, 64);
#define REFUSED(err, change) do { \
	a = good; \
	change; \
	T_ERR(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a), err); \
} while (0)
	T_ERR(ioctl(raw, UFFDIO_LAZY_ATTACH, &good), EINVAL);
	T_ERR(ioctl(uffd, UFFDIO_LAZY_ATTACH, NULL), EFAULT);
	T_ERR(ioctl(uffd, UFFDIO_LAZY_ATTACH, t_edge(8)), EINVAL);
	REFUSED(EINVAL, a.size = 47);
	REFUSED(EINVAL, a.flags = 2);
	REFUSED(EINVAL, a.reserved = 1);
	REFUSED(EINVAL, a.nr_extents = 0);
	REFUSED(EINVAL, a.nr_extents = (1 << 20) + 1);
	REFUSED(EINVAL, a.chunk_pages = 513);
	REFUSED(EFAULT, a.extents = (uintptr_t)t_gone());
	REFUSED(EBADF, a.image_fd = -1);
	REFUSED(EBADF, a.image_fd = 800);
	REFUSED(EBADF, a.event_fd = 800);
	REFUSED(EINVAL, a.event_fd = image);
	REFUSED(EINVAL, a.image_fd = T_OK(open("/tmp", O_RDONLY | O_DIRECTORY)));
	REFUSED(EINVAL, a.image_fd = T_OK(open("/dev/zero", O_RDONLY)));
	REFUSED(EBADF, a.image_fd = T_OK(open(t_path(path, "image1"), O_PATH)));
	REFUSED(EBADF, a.image_fd = T_OK(open(path, O_WRONLY)));
	close(a.image_fd);
	REFUSED(ESTALE, a.image_size = 63 * PG);
	memset(&big, 0, sizeof(big));
	big.a = good;
	big.a.size = sizeof(big);
	big.more = 1;
	T_ERR(ioctl(uffd, UFFDIO_LAZY_ATTACH, &big), E2BIG);
#define BAD_EXTENT(err, change) do { \
	struct uffdio_lazy_extent saved = e[1]; \
	change; \
	T_ERR(ioctl(uffd, UFFDIO_LAZY_ATTACH, &good), err); \
	e[1] = saved; \
} while (0)
	BAD_EXTENT(EINVAL, e[1].addr += 8);
	BAD_EXTENT(EINVAL, e[1].len += 8);
	BAD_EXTENT(EINVAL, e[1].len = 0);
	BAD_EXTENT(EINVAL, e[1].offset += 512);
	BAD_EXTENT(EINVAL, e[1].offset = 57 * PG);
	BAD_EXTENT(EINVAL, e[1].offset = -PG);
	BAD_EXTENT(EINVAL, e[1].addr = -PG);
	BAD_EXTENT(EINVAL, e[1].len = -PG);
	BAD_EXTENT(EEXIST, e[1].addr -= PG);
	/* Nothing of what was refused is left: no loader, no hole, no hold on the image */
	T_ERR(ioctl(uffd, UFFDIO_LAZY_STAT, &(struct uffdio_lazy_stat){ .size = 144 }), ENXIO);
	fd = T_OK(open(t_path(path, "image1"), O_RDWR));
	T_ERR(ioctl(uffd, UFFDIO_LAZY_ATTACH, &good), ETXTBSY);
	close(fd);
	big.more = 0;
	big.a.image_size = 64 * PG;
	T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &big));
	T_EQ(nf_stat(uffd).total, 16);
	T_ERR(open(path, O_RDWR), ETXTBSY);
	T_ERR(truncate(path, 0), ETXTBSY);
	T_EQ(nf_count(p, 1, 0, 16), 16);
}

/* An attach is all or nothing, also beside another one, and leaves no memory behind */
T(attach_is_undone)
{
	char *p = nf_map(100), path[PATH_MAX];
	int first = nf_image(1, 100), second = nf_image(2, 100), huge, uffd = nf_uffd();
	struct uffdio_lazy_extent e[3] = {
		nf_extent(p + 20 * PG, 10, 20), nf_extent(p, 10, 0), nf_extent(p + 59 * PG, 10, 59),
	};
	struct uffdio_lazy_attach a = nf_args(second, e, 3, 0);
	unsigned long slab;

	nf_register(uffd, p, 100);
	nf_attach(uffd, first, p + 50 * PG, 10, 50, 1, NO_START);
	/* The last of three overlaps by a page */
	T_ERR(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a), EEXIST);
	T_EQ(nf_stat(uffd).missing, 10);
	T_EQ(nf_stat(uffd).total, 10);
	T_OK(close(T_OK(open(t_path(path, "image2"), O_RDWR))));
	T_EQ(nf_count_zero(p, 50) + nf_count_zero(p + 60 * PG, 40), 90);
	T_EQ(nf_count(p + 50 * PG, 1, 50, 10), 10);
	T_OK(madvise(p, 100 * PG, MADV_DONTNEED));
	T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
	T_EQ(nf_stat(uffd).missing, 30);
	T_EQ(nf_count(p, 2, 0, 10) + nf_count(p + 20 * PG, 2, 20, 10) + nf_count(p + 59 * PG, 2, 59, 10), 30);
	/* 32 GB of image, a list of a megabyte, for nothing, 200 times */
	huge = T_OK(open(t_path(path, "huge"), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	T_OK(ftruncate(huge, 32ll << 30));
	close(huge);
	huge = T_OK(open(path, O_RDONLY | O_CLOEXEC));
	T_OK(nf_load(uffd, p, 100, 0, NULL));
	nf_attach(uffd, first, p + 90 * PG, 1, 0, 1, NO_START);
	e[0] = (struct uffdio_lazy_extent){ 1ull << 40, 32ull << 30, 0 };
	e[1] = nf_extent(p + 90 * PG, 1, 0);
	a = nf_args(huge, e, 2, 0);
	slab = available();
	for (int i = 0; i < 200; i++)
		T_ERR(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a), EEXIST);
	T_RANGE((long)(slab - available()), LONG_MIN, 100 << 10);
	/* Nor do moves there and back */
	slab = available();
	e[0].addr = (uintptr_t)mmap(NULL, 32ll << 30, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	nf_register(uffd, (void *)(uintptr_t)e[0].addr, (32ul << 30) / PG);
	a.nr_extents = 1;
	T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
	for (int i = 0; i < 200; i++) {
		void *to = mremap((void *)(uintptr_t)e[0].addr, 32ul << 30, 32ul << 30, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);

		T_ASSERT(to != MAP_FAILED);
		T_OK(munmap((void *)(uintptr_t)e[0].addr, 32ul << 30));
		e[0].addr = (uintptr_t)to;
	}
	T_RANGE((long)(slab - available()), LONG_MIN, 100 << 10);
}

static int attach_one(int uffd, int image, void *addr)
{
	struct uffdio_lazy_extent e = nf_extent(addr, 1, 0);
	struct uffdio_lazy_attach a = nf_args(image, &e, 1, 0);

	return ioctl(uffd, UFFDIO_LAZY_ATTACH, &a);
}

/* The kernel's own faults are served, and nobody can write the image: neither is for everybody. Nor is every file an image */
T(permission)
{
	struct uffdio_api api = { .api = UFFD_API };
	int uffd = nf_uffd(), user = T_OK(syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY)), image = nf_image(1, 8);
	char *p = nf_map(8), path[PATH_MAX];

	T_OK(ioctl(user, UFFDIO_API, &api));
	T_ERR(attach_one(user, image, p), EPERM);
	T_ERR(attach_one(uffd, T_OK(open("/sys/kernel/uevent_seqnum", O_RDONLY)), p), EINVAL);
	nf_register(uffd, p, 8);
	T_OK(chmod(t_path(path, "image1"), 0644));
	setfsuid(65534);
	T_ERR(attach_one(uffd, image, p), EPERM);
	setfsuid(0);
	T_OK(chmod(path, 0666));
	setfsuid(65534);
	T_OK(attach_one(uffd, image, p));
	setfsuid(0);
	T_EQ(nf_count(p, 1, 0, 1), 1);
}

/* The image is read as by who opened it: who has the fault need not be allowed to, by a security module either */
T(confined)
{
	char *p = nf_map(64);
	int uffd = nf_uffd(), image = nf_image(1, 64);

	aa_load("abi <kernel>,\nprofile perdure-no-files flags=(attach_disconnected) { signal, }\n");
	nf_register(uffd, p, 64);
	nf_attach(uffd, image, p, 64, 0, 8, NO_START);
	T_OK(fsync(image));
	T_OK(posix_fadvise(image, 0, 64 * PG, POSIX_FADV_DONTNEED));
	T_CHILD {
		aa_confine("perdure-no-files");
		T_ERR(open("/proc/self/maps", O_RDONLY), EACCES);
		T_EQ(nf_count(p, 1, 0, 64), 64);
	}
	T_EQ(nf_count(p, 1, 0, 64), 64);
}

/* When all is loaded everything is unregistered: nothing may be that somebody else fills */
T(other_kinds_of_memory)
{
	char *p = nf_map(8), *shared = mmap(NULL, 8 * PG, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register reg = { .range = { (uintptr_t)shared, 8 * PG }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	int uffd = nf_uffd(), image = nf_image(1, 8);

	T_ASSERT(shared != MAP_FAILED);
	nf_register(uffd, p, 8);
	T_OK(ioctl(uffd, UFFDIO_REGISTER, &reg));
	T_ERR(attach_one(uffd, image, p), EINVAL);
	T_OK(ioctl(uffd, UFFDIO_UNREGISTER, &reg.range));
	T_OK(attach_one(uffd, image, p));
	T_ERR(ioctl(uffd, UFFDIO_REGISTER, &reg), EINVAL);
	T_EQ(nf_count(p, 1, 0, 1), 1);
}

/*
 * A page of an extent is there already: refused, whichever comes last. A huge page is what khugepaged may make of memory
 * that nobody has touched
 */
T(present_before)
{
	unsigned long huge = 512;
	char *map = nf_map(2 * huge), *p = (char *)(((uintptr_t)map + huge * PG - 1) & ~(huge * PG - 1));
	struct uffdio_register reg = { .range = { (uintptr_t)p, huge * PG }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	int image = nf_image(1, huge), uffd;

	for (int kind = 0; kind < 3; kind++) {
		/* Its first page is there, or is read only, or all of them are */
		struct uffdio_lazy_extent e = nf_extent(p + (kind == 2 ? 9 : 0) * PG, 10, 0), other = nf_extent(p + 20 * PG, 10, 20);
		struct uffdio_lazy_attach a = nf_args(image, &e, 1, 0), b = nf_args(image, &other, 1, 0);

		T_OK(madvise(p, huge * PG, MADV_DONTNEED));
		if (kind == 0)
			T_EQ(*(volatile char *)p, 0);
		else
			*p = 'x';
		if (kind == 2 && madvise(p, huge * PG, MADV_COLLAPSE))
			t_skip("no huge page was to be had");
		/* Where nothing is registered, nothing is looked at until it is */
		uffd = nf_uffd_with(0);
		T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
		T_ERR(ioctl(uffd, UFFDIO_REGISTER, &reg), EEXIST);
		close(uffd);
		uffd = nf_uffd_with(0);
		T_OK(ioctl(uffd, UFFDIO_REGISTER, &reg));
		T_ERR(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a), EEXIST);
		/* Nothing is left of it, nor of one that comes to another */
		T_ERR(ioctl(uffd, UFFDIO_LAZY_STAT, &(struct uffdio_lazy_stat){ .size = 144 }), ENXIO);
		T_OK(madvise(p + 20 * PG, 10 * PG, MADV_DONTNEED));
		T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &b));
		T_ERR(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a), EEXIST);
		T_EQ(nf_stat(uffd).missing, 10);
		T_EQ(nf_stat(uffd).total, 10);
		T_OK(madvise(p, 20 * PG, MADV_DONTNEED));
		T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
		/* What the loader has put there is not in its way */
		T_EQ(nf_count(p + 20 * PG, 1, 20, 10), 10);
		T_OK(ioctl(uffd, UFFDIO_REGISTER, &reg));
		T_EQ(nf_count((char *)(uintptr_t)e.addr, 1, 0, 10), 10);
		nf_start(uffd);
		T_EQ(nf_wait(uffd), UFFD_LAZY_COMPLETE);
		close(uffd);
	}
}

/* Nobody would report the writes: refused in either order */
T(write_protection)
{
	char *p = nf_map(16);
	struct uffdio_register reg = {
		.range = { (uintptr_t)p + 8 * PG, 8 * PG },
		.mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP,
	};
	struct uffdio_lazy_extent e = nf_extent(p, 8, 0);
	int uffd = nf_uffd(), image = nf_image(1, 8);
	struct uffdio_lazy_attach a = nf_args(image, &e, 1, 0);

	nf_register(uffd, p, 8);
	T_OK(ioctl(uffd, UFFDIO_REGISTER, &reg));
	T_ERR(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a), EINVAL);
	T_OK(ioctl(uffd, UFFDIO_UNREGISTER, &reg.range));
	T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
	T_ERR(ioctl(uffd, UFFDIO_REGISTER, &reg), EINVAL);
	nf_register(uffd, p + 8 * PG, 8);
	T_EQ(nf_count(p, 1, 0, 8), 8);
	T_EQ(nf_count_zero(p + 8 * PG, 8), 8);
}

T(load_and_stat_errors)
{
	int uffd;
	char *p = nf_missing(&uffd, 1, 8);
	struct uffdio_range r = { (uintptr_t)p, 8 * PG };
	struct uffdio_lazy_load good = { .size = sizeof(good), .ranges = (uintptr_t)&r, .nr_ranges = 1 }, l;
	struct uffdio_lazy_stat st = { .size = 143 };

#define LOAD_REFUSED(err, change) do { \
	l = good; \
	change; \
	T_ERR(ioctl(uffd, UFFDIO_LAZY_LOAD, &l), err); \
} while (0)
	LOAD_REFUSED(EINVAL, l.size = 31);
	LOAD_REFUSED(EINVAL, l.flags = 4);
	LOAD_REFUSED(EINVAL, l.nr_ranges = (1 << 20) + 1);
	LOAD_REFUSED(EFAULT, l.ranges = (uintptr_t)t_gone());
	r.len = 0;
	LOAD_REFUSED(EINVAL, (void)0);
	r.len = 100;
	LOAD_REFUSED(EINVAL, (void)0);
	LOAD_REFUSED(EINVAL, l.flags = UFFD_LAZY_FIRST | UFFD_LAZY_START);
	r.len = -PG;
	LOAD_REFUSED(EINVAL, (void)0);
	T_ERR(ioctl(uffd, UFFDIO_LAZY_STAT, &st), EINVAL);
	T_ERR(ioctl(uffd, UFFDIO_LAZY_STAT, NULL), EFAULT);
	T_EQ(nf_stat(uffd).missing, 8);
	T_ERR(ioctl(nf_uffd(), UFFDIO_LAZY_LOAD, &good), ENXIO);
}

/* All of a loader that has failed: for the process, for its children, in the log */
static void failed(int uffd, char *p, unsigned long n, int error, const char *name, bool once)
{
	static char log[1 << 16];
	char *line;
	int len;

	T_EQ(nf_wait(uffd), UFFD_LAZY_FAILED);
	T_EQ(nf_stat(uffd).error, error);
	T_EXPECT(nf_bus(p + (n - 1) * PG));
	T_EXPECT(nf_bus(p + (n - 2) * PG));
	T_ERR(write(T_OK(memfd_create("m", 0)), p + (n - 3) * PG, 10), EFAULT);
	T_CHILD {
		T_EXPECT(nf_bus(p + (n - 4) * PG));
	}
	T_ERR(nf_load(uffd, p, 1, 0, NULL), EIO);
	close(uffd);
	T_EXPECT(nf_bus(p + (n - 5) * PG));
	/* New memory is new */
	T_OK(madvise(p + (n - 5) * PG, PG, MADV_DONTNEED));
	T_EXPECT(nf_zero(p + (n - 5) * PG));
	T_EXPECT(mmap(p + (n - 6) * PG, PG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
	T_EXPECT(nf_zero(p + (n - 6) * PG));
	len = klogctl(3, log, sizeof(log) - 1);
	T_ASSERT(len > 0);
	log[len] = 0;
	line = strstr(log, "lazy_loader: ");
	T_ASSERT(line);
	line[strcspn(line, "\n")] = 0;
	t_note("%s", line);
	T_EXPECT(strstr(line, name));
	T_EXPECT(strstr(line, "SIGBUS"));
	if (once)
		T_EXPECT(!strstr(line + strlen(line) + 1, "lazy_loader: "));
	klogctl(5, NULL, 0);
}

/* Somebody has touched the image: found by a fault in the page cache, by the worker, by a debugger */
T(image_changed)
{
	struct timespec times[2] = { { 1000, 0 }, { 1000, 0 } };
	char path[PATH_MAX];

	klogctl(5, NULL, 0);
	for (int how = 0; how < 3; how++) {
		int uffd, mem;
		char *p = nf_missing(&uffd, 1, 64), buf[8];

		T_EXPECT(nf_is(p, 1, 0));
		T_OK(utimensat(AT_FDCWD, t_path(path, "image1"), times, 0));
		if (how == 0) {
			T_EXPECT(nf_bus(p + PG));
		} else if (how == 1) {
			nf_start(uffd);
		} else {
			mem = T_OK(open("/proc/self/mem", O_RDONLY));
			T_ERR(pread(mem, buf, 8, (off_t)(uintptr_t)p + 2 * PG), EIO);
		}
		failed(uffd, p, 64, ESTALE, "image1", true);
		T_EXPECT(nf_is(p, 1, 0));
		times[1].tv_sec++;
	}
}

/* Others have filled the memory, and it is a huge page by now: there is nothing to lose, and no end to wait for */
T(image_changed_behind_a_huge_page)
{
	unsigned long huge = 512;
	char *map = nf_map(3 * huge), *p = (char *)(((uintptr_t)map + huge * PG - 1) & ~(huge * PG - 1)), *mine = nf_map(huge);
	struct uffdio_copy copy = { .dst = (uintptr_t)p, .src = (uintptr_t)mine, .len = huge * PG };
	int uffd = nf_uffd(), image = nf_image(1, huge + 1);
	char path[PATH_MAX];

	memset(mine, 'm', huge * PG);
	nf_register(uffd, p, huge + 1);
	nf_attach(uffd, image, p, huge + 1, 0, 1, NO_START);
	T_OK(ioctl(uffd, UFFDIO_COPY, &copy));
	if (madvise(p, huge * PG, MADV_COLLAPSE))
		t_skip("no huge page was to be had");
	T_OK(utimensat(AT_FDCWD, t_path(path, "image1"), (struct timespec[2]){ { 1000, 0 }, { 1000, 0 } }, 0));
	nf_start(uffd);
	T_EQ(nf_wait(uffd), UFFD_LAZY_FAILED);
	T_EQ(p[100 * PG], 'm');
	T_EXPECT(nf_bus(p + huge * PG));
	klogctl(5, NULL, 0);
}

/* A file system on a file that is then cut off: reading it fails, after some of it has been read */
static void *touch(void *p)
{
	int fd = memfd_create("m", 0);
	long ret = write(fd, p, 1);

	close(fd);
	return (void *)(uintptr_t)(ret == -1 ? errno : 0);
}

/*
 * An image on a disk whose own image, /mnt/bad.img, can be cut, so that it cannot be read: nothing of it is in memory.
 * A page's number becomes that of its block.
 */
static int open_bad_image(unsigned long pages, int *block)
{
	int image;

	T_ASSERT(!access("/mnt/nf", F_OK)); /* disk.sh */
	T_ASSERT(!system("rm -rf /mnt/bad && mkdir -p /mnt/bad && truncate -s 16M /mnt/bad.img && "
			 "mkfs.ext4 -q -F -b 4096 -O ^has_journal /mnt/bad.img && "
			 "mount $(losetup -f --show /mnt/bad.img) /mnt/bad"));
	image = nf_image_at("/mnt/bad/image", 1, pages);
	T_ASSERT(!system("sync"));
	if (block)
		T_OK(ioctl(image, FIBMAP, block));
	T_OK(t_put("/proc/sys/vm/drop_caches", "3"));
	klogctl(5, NULL, 0);
	return image;
}

T_LIMIT(image_unreadable, 40)
{
	int uffd, image, ev = T_OK(eventfd(0, 0));
	struct uffdio_lazy_extent e;
	struct uffdio_lazy_attach a;
	pthread_t th[4];
	uint64_t told;
	void *err;
	char *p;

	image = open_bad_image(1000, NULL);
	p = nf_map(1000);
	uffd = nf_uffd();
	nf_register(uffd, p, 1000);
	e = nf_extent(p, 1000, 0);
	a = nf_args(image, &e, 1, 10);
	a.event_fd = ev;
	T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
	T_EXPECT(nf_is(p, 1, 0));
	T_RANGE(nf_stat(uffd).faults_io, 1, 2);
	T_OK(truncate("/mnt/bad.img", 512 * 1024));
	for (int i = 0; i < 4; i++)
		T_OK(-pthread_create(&th[i], NULL, touch, p + (900 + i) * PG));
	for (int i = 0; i < 4; i++) {
		T_OK(-pthread_join(th[i], &err));
		T_EQ((uintptr_t)err, EFAULT);
	}
	/* Four are lost; that all the others are, too, is found in the background */
	T_EQ(nf_stat(uffd).state, UFFD_LAZY_ATTACHED);
	nf_start(uffd);
	T_EQ(read(ev, &told, sizeof(told)), 8);
	failed(uffd, p, 1000, EIO, "image", false);
	close(image);
	umount2("/mnt/bad", MNT_DETACH);
}

/* Ten pages that cannot be read, of a thousand: the others come, before and after */
T_LIMIT(pages_unreadable, 40)
{
	unsigned long n = 1000, good = 990;
	int uffd, image, block = good, ev = T_OK(eventfd(0, 0));
	struct uffdio_lazy_extent e[2];
	struct uffdio_lazy_attach a;
	uint64_t told;
	char *p;

	image = open_bad_image(n, &block);
	p = nf_map(n);
	uffd = nf_uffd();
	nf_register(uffd, p, n);
	/* The end of the image comes first in memory */
	e[0] = nf_extent(p, n - 500, 500);
	e[1] = nf_extent(p + (n - 500) * PG, 500, 0);
	a = nf_args(image, e, 2, 100);
	a.event_fd = ev;
	T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
	T_OK(truncate("/mnt/bad.img", block * PG));
	T_ERR(nf_load(uffd, p + 480 * PG, 17, 0, NULL), EIO);
	T_EXPECT(nf_bus(p + 495 * PG));
	T_EXPECT(nf_bus(p + 498 * PG));
	T_OK(nf_load(uffd, p + 480 * PG, 10, 0, NULL));
	T_EQ(nf_stat(uffd).state, UFFD_LAZY_ATTACHED);
	nf_start(uffd);
	T_EQ(read(ev, &told, sizeof(told)), 8);
	T_EQ(nf_stat(uffd).state, UFFD_LAZY_FAILED);
	T_EQ(nf_stat(uffd).error, EIO);
	T_EQ(nf_stat(uffd).missing, n - good);
	T_EQ(nf_count(p, 1, 500, 490), 490);
	T_EQ(nf_count(p + 500 * PG, 1, 0, 500), 500);
	for (int i = 490; i < 500; i++)
		T_EXPECT(nf_bus(p + i * PG));
	klogctl(5, NULL, 0);
	close(image);
	umount2("/mnt/bad", MNT_DETACH);
}

/* What it died of is told, also when there was more to load */
T_LIMIT(dies_of_a_lost_page, 40)
{
	enum { W_UFFD, W_GO };
	unsigned long n = 2000, good = n - 10;
	int image, uffd, pidfd, block = good;
	struct uffdio_lazy_extent e;
	struct uffdio_lazy_attach a;
	pid_t pid;
	char *p;

	image = open_bad_image(n, &block);
	pid = t_fork();
	if (!pid) {
		p = nf_map(n);
		uffd = nf_uffd();
		nf_register(uffd, p, n);
		e = nf_extent(p, n, 0);
		a = nf_args(image, &e, 1, 1);
		T_OK(ioctl(uffd, UFFDIO_LAZY_ATTACH, &a));
		t_word[W_UFFD] = uffd;
		while (!t_word[W_GO])
			t_sleep_ms(5);
		nf_start(uffd);
		_exit(*(volatile char *)(p + good * PG));
	}
	while (!t_word[W_UFFD])
		t_sleep_ms(5);
	pidfd = T_OK(syscall(SYS_pidfd_open, pid, 0));
	uffd = T_OK(syscall(SYS_pidfd_getfd, pidfd, t_word[W_UFFD], 0));
	T_OK(truncate("/mnt/bad.img", block * PG));
	t_word[W_GO] = 1;
	T_KILLED(t_wait(pid), SIGBUS);
	T_EQ(nf_wait(uffd), UFFD_LAZY_FAILED);
	T_EQ(nf_stat(uffd).error, EIO);
	T_EXPECT(nf_stat(uffd).missing > 10);
	klogctl(5, NULL, 0);
	close(image);
	umount2("/mnt/bad", MNT_DETACH);
}
