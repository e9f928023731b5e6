/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * libperdure: services that outlive their own faults. See perdure(7).
 *
 * Every function returns -1 (or NULL) and sets errno on error. On a kernel without zero-loss
 * restart the system calls fail with ENOSYS; where it is switched off, with EOPNOTSUPP.
 */
#ifndef PERDURE_H
#define PERDURE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <perdure/zlr.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PERDURE_API __attribute__((visibility("default")))

/*
 * The ABI version of the running kernel, 1 or more. -1 with ENOSYS: a kernel without zero-loss
 * restart; EOPNOTSUPP: it is built in, but kernel.restart.enabled is 0. Asks each time.
 */
PERDURE_API int perdure_abi_version(void);

/*
 * Register the calling process: when a fault is about to kill it, the kernel executes bin_path
 * with argv and envp (NULL: empty) in its place. Registering again replaces. Returns 0.
 */
PERDURE_API ssize_t reregist(const char *bin_path, char *const argv[], char *const envp[],
			     int child_id);

/* The same with flags: REREGIST_EXEC, by which the registration stays over one execve(2). */
PERDURE_API int perdure_reregist(const char *bin_path, char *const argv[], char *const envp[],
				 int child_id, unsigned int flags);

/* Drop the registration. -1 with ENOENT when there is none. */
PERDURE_API int perdure_unregister(void);

/* getreginfo() for a caller whose struct reg_info has size bytes. */
PERDURE_API int perdure_getreginfo(struct reg_info *info, size_t size);

/* 1 and the registration in *info when this process is registered; 0 and zeros when not. */
static inline int getreginfo(struct reg_info *info)
{
	/* Here, so that the size is the one that the caller was compiled with. */
	return perdure_getreginfo(info, sizeof(*info));
}

/*
 * Copy the registered path to buf. Returns its length with the NUL, 0 when not registered;
 * -1 with ERANGE when size is too small.
 */
PERDURE_API ssize_t perdure_regpath(char *buf, size_t size);

/*
 * Say when this process, which is registered, is restarted: how often, when it hangs, when it exits
 * with an error; and whether a restart leaves a core dump. size is sizeof(*policy). Returns 0.
 */
PERDURE_API int perdure_setpolicy(const struct restart_policy *policy, size_t size);
PERDURE_API int perdure_getpolicy(struct restart_policy *policy, size_t size);

/* The process is well. When it does not say so for policy.heartbeat_ns, that is a fault. */
PERDURE_API int perdure_heartbeat(void);

/* What these three call: RESTARTCTL_SET_POLICY and others. */
PERDURE_API int restartctl(unsigned int op, void *arg, size_t size);

/*
 * Begin a scope. When there is a fault before perdure_rescue_leave(), all that has been done since is undone, and this returns again:
 * -1, with errno set to error. Returns 0 at first. See perdure_rescue(2).
 */
PERDURE_API int perdure_rescue(int error);
/* So, too, when it is not over after so many milliseconds, for a function that may hang; 0: without a deadline */
PERDURE_API int perdure_rescue_deadline(int error, unsigned int deadline_ms);
/* So, and what is sent on connected stream sockets and pipes waits until the end, 1 MiB at most; after a fault it is not sent */
PERDURE_API int perdure_rescue_cork(int error);
PERDURE_API int perdure_rescue_leave(void);

/*
 * The same, and what is sent on TCP connections with the option TCP_CASCADE (perdure/rescue.h) is undone at their peers, too. For all
 * sockets that the process makes from now on, and its children: on is 1, or 0 for none.
 */
PERDURE_API int perdure_rescue_cascade(int error);
PERDURE_API int perdure_rescue_sockets(int on);

/*
 * Read up to rlen bytes and hold them in the kernel; release dlen bytes, from the oldest held one
 * on, those returned by this call included. After a restart, held bytes are read again.
 * Returns the number of bytes read, 0 at end of file.
 */
PERDURE_API ssize_t hread(int fd, void *buf, size_t rlen, size_t dlen);

/* write(2), counted: getiolog() tells how much has been written, whatever stopped the writer. */
PERDURE_API ssize_t lwrite(int fd, const void *buf, size_t len);

#if !defined(__SIZEOF_LONG__) || __SIZEOF_LONG__ == 8 || \
	(defined(_FILE_OFFSET_BITS) && _FILE_OFFSET_BITS == 64)
/* sendfile(2), counted as by lwrite(). (32-bit programs need _FILE_OFFSET_BITS=64.) */
PERDURE_API ssize_t lsendfile(int out_fd, int in_fd, off_t *offset, size_t count);
#endif

/* getiolog() for a caller whose struct io_log has size bytes. */
PERDURE_API int perdure_getiolog(int fd, struct io_log *log, size_t size);

/* What has been read, released, held and written on the open file. Returns 0. */
static inline int getiolog(int fd, struct io_log *log)
{
	return perdure_getiolog(fd, log, sizeof(*log));
}

/*
 * Register this program, by /proc/self/exe, with argv and its environment, unless it is a new generation of itself already. Returns 1 if
 * so, 0 if it has registered now; -1 with ENOSYS or EOPNOTSUPP where there are no restarts.
 */
PERDURE_API int perdure_register(char *const argv[]);

/*
 * 1: a fault of this process is restarted, and what the functions below do is held and counted. 0 and errno: they are the plain calls,
 * ENOSYS, EOPNOTSUPP or EPERM: because there are no others, ENOENT: and nobody has registered.
 */
PERDURE_API int perdure_protected(void);

/*
 * Reading and writing that works everywhere: hread(), lwrite() and lsendfile() where these are, read(2), write(2) and sendfile(2), which
 * hold and count nothing, where they are not, and for regular files. release: bytes to release, as in hread(). flags: HREAD_NOWAIT or 0.
 * See perdure_read(3).
 */
PERDURE_API ssize_t perdure_read(int fd, void *buf, size_t len, size_t release, unsigned int flags);
PERDURE_API ssize_t perdure_readv(int fd, const struct iovec *iov, int n, size_t release, unsigned int flags);
PERDURE_API ssize_t perdure_recvmsg(int fd, struct msghdr *msg, size_t release, unsigned int flags);
PERDURE_API int perdure_release(int fd, size_t len);
PERDURE_API ssize_t perdure_write(int fd, const void *buf, size_t len);
PERDURE_API ssize_t perdure_writev(int fd, const struct iovec *iov, int n);
#if !defined(__SIZEOF_LONG__) || __SIZEOF_LONG__ == 8 || \
	(defined(_FILE_OFFSET_BITS) && _FILE_OFFSET_BITS == 64)
PERDURE_API ssize_t perdure_sendfile(int out_fd, int in_fd, off_t *offset, size_t count);
#endif

/* What an inherited descriptor is */
enum perdure_kind {
	PERDURE_OTHER,		/* none of the below */
	PERDURE_LISTENING,	/* a socket that listens, or gets datagrams from anybody */
	PERDURE_ACCEPTED,	/* a connection, to the port or path of one that listens */
	PERDURE_OUTGOING,	/* another connection */
};

struct perdure_inherited {
	int fd;
	enum perdure_kind kind;
};

/*
 * All descriptors that are open, state areas and 0 to 2 left out unless these are sockets. Returns their number, and in *list, ascending,
 * to be given to free(), what each is. See perdure_inherited(3).
 */
PERDURE_API int perdure_inherited(struct perdure_inherited **list);

/* The descriptor that the thread which faulted had read last; -1: none, no restart, or somebody sent the signal by kill(2). */
PERDURE_API int perdure_suspect(void);

/*
 * TLS by the kernel (TCP_ULP "tls"): the keys are in the socket, and outlive a fault with it. See perdure_tls(3).
 */
/* by perdure_tls() */
#define PERDURE_TLS_TX		1	/* the kernel encrypts what is written */
#define PERDURE_TLS_RX		2	/* the kernel decrypts what is read */
#define PERDURE_TLS_UNTOUCHED	4	/* nothing has been read or written: a handshake can begin */
/* of perdure_tls_alert() */
#define PERDURE_TLS_CLOSE_NOTIFY	0
#define PERDURE_TLS_UNEXPECTED_MESSAGE	10
#define PERDURE_TLS_INTERNAL_ERROR	80

PERDURE_API int perdure_tls(int fd);
PERDURE_API int perdure_tls_alert(int fd, int alert);
PERDURE_API int perdure_tls_control(int fd);

/*
 * The books of connections, for servers that make an answer again after a fault (replay) and do not write what the client has of it
 * (skip). See perdure_conn(3).
 */
struct perdure_conns;
struct perdure_conn;

#define PERDURE_TAG_MAX		4096	/* bytes */

/* of perdure_conn_done() */
#define PERDURE_LAST		1	/* the connection ends with this answer */

/* by perdure_conn_flags() */
#define PERDURE_CONN_INHERITED	1	/* an old generation has used it */
#define PERDURE_CONN_ENDED	2	/* it has ended with PERDURE_LAST: close it */
#define PERDURE_CONN_SUSPECT	4	/* its request has brought two faults: do not execute it again */
#define PERDURE_CONN_TLS	8	/* the kernel encrypts and decrypts it */

PERDURE_API struct perdure_conns *perdure_conns_open(const char *name, int max, size_t tag_size);
PERDURE_API void perdure_conns_close(struct perdure_conns *conns);
PERDURE_API struct perdure_conn *perdure_conn_open(struct perdure_conns *conns, int fd);
PERDURE_API int perdure_conn_fd(const struct perdure_conn *conn);
PERDURE_API unsigned int perdure_conn_flags(const struct perdure_conn *conn);
PERDURE_API void *perdure_conn_tag(struct perdure_conn *conn);
PERDURE_API uint64_t perdure_conn_number(const struct perdure_conn *conn);
PERDURE_API size_t perdure_conn_skip(const struct perdure_conn *conn);
PERDURE_API ssize_t perdure_conn_read(struct perdure_conn *conn, void *buf, size_t len);
PERDURE_API ssize_t perdure_conn_write(struct perdure_conn *conn, const void *buf, size_t len);
PERDURE_API ssize_t perdure_conn_writev(struct perdure_conn *conn, const struct iovec *iov, int n);
#if !defined(__SIZEOF_LONG__) || __SIZEOF_LONG__ == 8 || \
	(defined(_FILE_OFFSET_BITS) && _FILE_OFFSET_BITS == 64)
PERDURE_API ssize_t perdure_conn_sendfile(struct perdure_conn *conn, int in_fd, off_t *offset,
					  size_t count);
#endif
PERDURE_API int perdure_conn_done(struct perdure_conn *conn, size_t len, unsigned int flags);
PERDURE_API int perdure_conn_consume(struct perdure_conn *conn, size_t len);
PERDURE_API int perdure_conn_close(struct perdure_conn *conn);

/*
 * Map the state area called name (1 to 63 characters, no '/'), size bytes that outlive restarts at
 * an address that never changes, and return that address. *inherited becomes 1 when an earlier
 * generation left the area, 0 when it is new: all zeros. inherited may be NULL.
 *
 * layout is the program's own number for the meaning of the bytes. An inherited area of another
 * layout or size is refused with ESTALE, one damaged by stray writes with EBADMSG:
 * perdure_state_discard() it and open again to start afresh.
 *
 * addr, a multiple of the page size, is where a new area goes; NULL lets the library choose. One
 * process has the area at a time; fork(2) children do not see it, so open it after daemonizing.
 * See perdure_state_open(3).
 */
PERDURE_API void *perdure_state_open(const char *name, size_t size, uint32_t layout, void *addr,
				     int *inherited);

/*
 * Copy len bytes from src to dst, which is in the area (else EINVAL), all or nothing: whatever
 * stops the process wherever, the next generation finds the old bytes or the new ones. Ranges that
 * perdure_state_stage() has recorded become current in the same step.
 *
 * A single aligned word needs no call: an ordinary store is never torn.
 * Threads that update the same area must take turns.
 */
PERDURE_API int perdure_state_update(void *area, void *dst, const void *src, size_t len);

/*
 * Record one range of an update of several, to become current, together, at the next
 * perdure_state_commit() or perdure_state_update(). Until then dst keeps the old bytes, and a
 * restart forgets the record. -1 with ENOSPC: too much recorded; nothing is lost, commit first.
 */
PERDURE_API int perdure_state_stage(void *area, void *dst, const void *src, size_t len);

/* Make all that is staged current. Cannot fail. */
PERDURE_API void perdure_state_commit(void *area);

/* The file descriptor that keeps the area: do not close it when closing those left over. */
PERDURE_API int perdure_state_fd(void *area);

/* Unmap the area and destroy it. */
PERDURE_API void perdure_state_close(void *area);

/*
 * The files that have something to read again: the requests that the old generation had not
 * finished. Returns their number, and in *fds their descriptors, ascending, to be given to free();
 * of several for the same file, the lowest.
 */
PERDURE_API int perdure_pending(int **fds);

/*
 * Start a thread for each of the n descriptors in fds, or, if fds is NULL, of those that
 * perdure_pending() tells: it runs start(fd, arg) and ends. All are started, or none is.
 * Returns the number of threads, which are detached. See perdure_recover_threads(3).
 */
PERDURE_API int perdure_recover_threads(void (*start)(int fd, void *arg), void *arg, const int *fds,
					int n);

/* Destroy the area called name, which is not open. -1 with ENOENT when there is none. */
PERDURE_API int perdure_state_discard(const char *name);

/*
 * Map the shared area called name (1 to 63 characters, no '/'), which all processes of this user can
 * open, at the same address in each, and return that address. It can be read there, and changes by
 * updates only. *existed becomes 0 when it is new: all zeros. layout: see perdure_state_open().
 * It stays until perdure_shared_remove(). See perdure_shared(3).
 */
PERDURE_API const void *perdure_shared_open(const char *name, size_t size, uint32_t layout,
					    int *existed);

/* What perdure_shared_begin() has done about an update that its process did not live to finish. */
#define PERDURE_SHARED_UNDONE		1	/* not committed: nothing of it is there */
#define PERDURE_SHARED_COMPLETED	2	/* committed: all of it is there */

/*
 * Begin an update: wait until no other process or thread is in one, timeout_ms at most (-1: for
 * ever; 0: not at all), then EAGAIN. Returns 0, or one of the above. A process that is restarted
 * during an update stays in it until it opens the area again; one that dies for good leaves it.
 */
PERDURE_API int perdure_shared_begin(const void *area, int timeout_ms);

/* Add the copying of len bytes from src to dst, which is in the area, to the update. */
PERDURE_API int perdure_shared_stage(const void *area, const void *dst, const void *src, size_t len);

/* Make all that is staged current, all or nothing, and end the update. */
PERDURE_API int perdure_shared_commit(const void *area);

/* End the update, and forget what is staged. */
PERDURE_API int perdure_shared_cancel(const void *area);

/* Unmap the area. It is there for others, and to be opened again. */
PERDURE_API void perdure_shared_close(const void *area);

/* Remove the area called name. Processes that have it open can read it on, but not update it. */
PERDURE_API int perdure_shared_remove(const char *name);

#ifdef __cplusplus
}
#endif

#endif
