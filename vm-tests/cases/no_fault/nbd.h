/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A disk that can be stopped: a network block device whose server is a process of the test's, with an ext4 file system on it. */
#ifndef NBD_H
#define NBD_H

#include "../lib/t.h"

#include <arpa/inet.h>
#include <endian.h>
#include <linux/nbd.h>
#include <sys/mount.h>

#define NBD_BYTES	(64ul << 20)

static char nbd_dev[32], nbd_mnt[64];
static pid_t nbd_server, nbd_client;

static void nbd_all(int fd, char *buf, size_t n, bool out)
{
	ssize_t done;

	for (; n; n -= done, buf += done) {
		done = out ? write(fd, buf, n) : read(fd, buf, n);
		if (done <= 0)
			_exit(0);
	}
}

static void __attribute__((noreturn)) nbd_serve(int fd, char *disk)
{
	struct nbd_reply reply = { .magic = htonl(NBD_REPLY_MAGIC) };
	struct nbd_request req;

	for (;;) {
		nbd_all(fd, (char *)&req, sizeof(req), false);
		memcpy(&reply.handle, &req.handle, sizeof(reply.handle));
		if (ntohl(req.type) == NBD_CMD_DISC)
			_exit(0);
		if (ntohl(req.type) == NBD_CMD_WRITE)
			nbd_all(fd, disk + be64toh(req.from), ntohl(req.len), false);
		nbd_all(fd, (char *)&reply, sizeof(reply), true);
		if (ntohl(req.type) == NBD_CMD_READ)
			nbd_all(fd, disk + be64toh(req.from), ntohl(req.len), true);
	}
}

/* Device number `n`, mounted on nbd_mnt */
static T_UNUSED void nbd_start(unsigned int n)
{
	char *disk = mmap(NULL, NBD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), path[64], text[192];
	int sk[2], dev;

	T_ASSERT(disk != MAP_FAILED);
	snprintf(nbd_dev, sizeof(nbd_dev), "/dev/nbd%u", n);
	snprintf(nbd_mnt, sizeof(nbd_mnt), "/mnt/nbd%u", n);
	/* Not for writing: it could not be mounted then */
	dev = open(nbd_dev, O_RDONLY | O_CLOEXEC);
	if (dev < 0 && errno == ENOENT)
		t_skip("no network block device in this kernel");
	T_ASSERT(dev >= 0);
	T_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sk));
	T_OK(ioctl(dev, NBD_SET_BLKSIZE, 4096));
	T_OK(ioctl(dev, NBD_SET_SIZE_BLOCKS, NBD_BYTES / 4096));
	T_OK(ioctl(dev, NBD_SET_SOCK, sk[0]));
	nbd_server = T_OK(fork());
	if (!nbd_server) {
		close(sk[0]);
		close(dev);
		nbd_serve(sk[1], disk);
	}
	close(sk[1]);
	nbd_client = T_OK(fork());
	if (!nbd_client) {
		ioctl(dev, NBD_DO_IT);
		ioctl(dev, NBD_CLEAR_SOCK);
		_exit(0);
	}
	/* The kernel says its size last */
	snprintf(path, sizeof(path), "/sys/block/nbd%u/size", n);
	for (int i = 0; i < 5000 && (t_get(path, text, sizeof(text)) <= 0 || !strtoull(text, NULL, 10)); i++)
		t_sleep_ms(2);
	T_ASSERT(strtoull(text, NULL, 10) == NBD_BYTES / 512);
	close(sk[0]);
	close(dev);
	T_OK(munmap(disk, NBD_BYTES));
	snprintf(text, sizeof(text), "mkfs.ext4 -q -F -E lazy_itable_init=0 %s && mkdir -p %s", nbd_dev, nbd_mnt);
	T_ASSERT(!system(text));
	T_OK(mount(nbd_dev, nbd_mnt, "ext4", 0, NULL));
}

/* From now on, reads wait */
static T_UNUSED void nbd_stop(void)
{
	T_OK(kill(nbd_server, SIGSTOP));
}

static T_UNUSED void nbd_go(void)
{
	T_OK(kill(nbd_server, SIGCONT));
}

/* Does a read of the disk wait? */
static T_UNUSED bool nbd_waits(void)
{
	char path[64], text[64];

	snprintf(path, sizeof(path), "/sys/block/%s/inflight", nbd_dev + strlen("/dev/"));
	T_ASSERT(t_get(path, text, sizeof(text)) > 0);
	return strtoul(text, NULL, 10);
}

static T_UNUSED void nbd_end(void)
{
	int dev;

	T_OK(umount2(nbd_mnt, MNT_DETACH));
	dev = T_OK(open(nbd_dev, O_RDONLY | O_CLOEXEC));
	ioctl(dev, NBD_DISCONNECT);
	close(dev);
	t_wait(nbd_client);
	t_wait(nbd_server);
}

#endif
