/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Functions that return an error when they fault:
 * Documentation/userspace-api/rescue.rst
 */
#ifndef _LINUX_RESCUE_H
#define _LINUX_RESCUE_H

#include <linux/types.h>

/**
 * enum rescue_op - what rescue() does
 * @RESCUE_ENTER: Begins a scope. It returns 0; and again, with the negative error number that is
 *	its argument, when a fault in the scope has been undone. Within a scope it only counts.
 *	Its size argument is a deadline in milliseconds, or 0; its flags are an &enum
 *	rescue_output.
 * @RESCUE_LEAVE: Ends the scope that began last: what was done in it stays.
 * @RESCUE_ADD: Adds a point: a function of a file, for all who run it; returns its number. Without
 *	CAP_SYS_ADMIN: of a file of one's own, for processes of one's own.
 * @RESCUE_REMOVE: Removes the point with that number.
 * @RESCUE_SOCKETS: TCP sockets that the process makes from now on, or its children, have
 *	%TCP_CASCADE (1) or not (0).
 */
enum rescue_op {
	RESCUE_ENTER,
	RESCUE_LEAVE,
	RESCUE_ADD,
	RESCUE_REMOVE,
	RESCUE_SOCKETS,
};

/**
 * enum rescue_output - what becomes of what a function sends
 * @RESCUE_GIVE_UP: It is sent, and a fault after that is not undone.
 * @RESCUE_CORK: On connected stream sockets and pipes it waits until the function has returned,
 *	1 MiB at most; after a fault it is not sent. All other output is sent, as with
 *	%RESCUE_GIVE_UP, after what waits.
 * @RESCUE_CASCADE: On TCP connections with %TCP_CASCADE it is sent, and marked: after a fault the
 *	peer goes back to where it received it. All other output is as with %RESCUE_CORK.
 */
enum rescue_output {
	RESCUE_GIVE_UP,
	RESCUE_CORK,
	RESCUE_CASCADE,
};

/*
 * TCP socket option, 1 or 0: what comes may be undone by the peer, which lets what is sent be
 * undone. Set before connect() or listen(); afterwards it tells whether both ends have agreed.
 */
#define TCP_CASCADE		501

#define RESCUE_NAME_MAX		128
#define RESCUE_RETURNS_MAX	256
#define RESCUE_BURST_MAX	1000000
#define RESCUE_OWN_MAX		64	/* points of a user without CAP_SYS_ADMIN */

/**
 * struct rescue_point - a function that returns an error when it faults
 *
 * Argument of %RESCUE_ADD. It can grow; the size argument tells which one is meant, at least
 * %RESCUE_POINT_SIZE_VER0.
 */
struct rescue_point {
	/** @fd: The file, open for reading. */
	__s32 fd;
	/** @nr_returns: How many instructions leave the function, 1 to %RESCUE_RETURNS_MAX. */
	__u32 nr_returns;
	/** @entry: Where its first instruction is in the file, in bytes. */
	__u64 entry;
	/** @returns: Pointer to where these are: as many __u64. */
	__u64 returns;
	/** @value: What the function returns after a fault. */
	__s64 value;
	/** @burst: So many faults of a user are undone in a time, 1 to %RESCUE_BURST_MAX; ... */
	__u32 burst;
	/** @interval_ms: ... this one, in milliseconds, 1 or more. */
	__u32 interval_ms;
	/** @output: What becomes of what it sends: &enum rescue_output. */
	__u32 output;
	/**
	 * @deadline_ms: A call that takes longer, in milliseconds, faults: with SIGABRT and the
	 * code SI_KERNEL. 0: as long as it likes.
	 */
	__u32 deadline_ms;
	/**
	 * @inject: Every so manieth return of it faults on purpose, to test what becomes of that.
	 * 0: none.
	 */
	__u32 inject;
	/**
	 * @error: What errno is after a fault, up to 4095. 0: it stays what it was before the call,
	 * and @error_fd and @error_at are 0.
	 */
	__u32 error;
	/** @error_fd: The C library, open for reading, which has ... */
	__s32 error_fd;
	/** @reserved: 0. */
	__u32 reserved;
	/**
	 * @error_at: ... here, in bytes, the word in which the loader of a program notes how far
	 * errno is from the thread pointer (R_X86_64_TPOFF64).
	 */
	__u64 error_at;
	/** @name: What it is called in /proc/rescue and in the log. */
	char name[RESCUE_NAME_MAX];
};

#define RESCUE_POINT_SIZE_VER0	200

#endif /* _LINUX_RESCUE_H */
