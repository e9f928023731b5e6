// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * The system calls. Each takes flags as its last argument; the plain C functions pass 0.
 * syscall(2) turns errors into -1 and errno.
 */
#include <perdure.h>
#include <perdure/rescue.h>
#include <unistd.h>

#include "numbers.h"

_Static_assert(sizeof(off_t) == 8, "lsendfile() hands the kernel a 64-bit offset");

ssize_t reregist(const char *bin_path, char *const argv[], char *const envp[], int child_id)
{
	return syscall(__NR_reregist, bin_path, argv, envp, child_id, 0);
}

int perdure_reregist(const char *bin_path, char *const argv[], char *const envp[], int child_id, unsigned int flags)
{
	return syscall(__NR_reregist, bin_path, argv, envp, child_id, flags);
}

int perdure_unregister(void)
{
	return syscall(__NR_reregist, NULL, NULL, NULL, 0, REREGIST_CLEAR);
}

int perdure_getreginfo(struct reg_info *info, size_t size)
{
	return syscall(__NR_getreginfo, info, size, 0);
}

ssize_t perdure_regpath(char *buf, size_t size)
{
	return syscall(__NR_getreginfo, buf, size, GETREGINFO_PATH);
}

int perdure_abi_version(void)
{
	return syscall(__NR_getreginfo, NULL, (size_t)0, GETREGINFO_VERSION);
}

int restartctl(unsigned int op, void *arg, size_t size)
{
	return syscall(__NR_restartctl, op, arg, size, 0);
}

int perdure_setpolicy(const struct restart_policy *policy, size_t size)
{
	return restartctl(RESTARTCTL_SET_POLICY, (void *)policy, size);
}

int perdure_getpolicy(struct restart_policy *policy, size_t size)
{
	return restartctl(RESTARTCTL_GET_POLICY, policy, size);
}

int perdure_heartbeat(void)
{
	return restartctl(RESTARTCTL_HEARTBEAT, NULL, 0);
}

int perdure_rescue(int error)
{
	return syscall(__NR_rescue, RESCUE_ENTER, (long)error, (size_t)0, 0);
}

int perdure_rescue_deadline(int error, unsigned int deadline_ms)
{
	return syscall(__NR_rescue, RESCUE_ENTER, (long)error, (size_t)deadline_ms, 0);
}

int perdure_rescue_cork(int error)
{
	return syscall(__NR_rescue, RESCUE_ENTER, (long)error, (size_t)0, RESCUE_CORK);
}

int perdure_rescue_cascade(int error)
{
	return syscall(__NR_rescue, RESCUE_ENTER, (long)error, (size_t)0, RESCUE_CASCADE);
}

int perdure_rescue_sockets(int on)
{
	return syscall(__NR_rescue, RESCUE_SOCKETS, (long)on, (size_t)0, 0);
}

int perdure_rescue_leave(void)
{
	return syscall(__NR_rescue, RESCUE_LEAVE, 0L, (size_t)0, 0);
}

ssize_t hread(int fd, void *buf, size_t rlen, size_t dlen)
{
	return syscall(__NR_hread, fd, buf, rlen, dlen, 0);
}

ssize_t lwrite(int fd, const void *buf, size_t len)
{
	return syscall(__NR_lwrite, fd, buf, len, 0);
}

ssize_t lsendfile(int out_fd, int in_fd, off_t *offset, size_t count)
{
	return syscall(__NR_lsendfile, out_fd, in_fd, offset, count, 0);
}

int perdure_getiolog(int fd, struct io_log *log, size_t size)
{
	return syscall(__NR_getiolog, fd, log, size, 0);
}
