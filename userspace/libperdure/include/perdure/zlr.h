/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Zero-loss restart: user-space API
 */

#ifndef _LINUX_ZLR_H
#define _LINUX_ZLR_H

#include <linux/types.h>

/**
 * DOC: ABI version
 *
 * getreginfo() with %GETREGINFO_VERSION returns the version of the running
 * kernel, 1 or more.  %ZLR_ABI_VERSION is the one that this header describes.
 */
#define ZLR_ABI_VERSION		1

/**
 * DOC: reregist flags
 *
 * %REREGIST_CLEAR
 *     Drop the registration of the calling process.  The path, argument and
 *     environment pointers must be NULL and the child id 0.
 *
 * %REREGIST_EXEC
 *     The registration stays over one ordinary execve(), too, unless that one
 *     changes what the process may do (set-user-ID, file capabilities, ...).
 *     This is how a launcher registers a program that knows nothing of it.
 */
#define REREGIST_CLEAR		(1U << 0)
#define REREGIST_EXEC		(1U << 4)

/**
 * DOC: getreginfo flags
 *
 * %GETREGINFO_VERSION
 *     Return the ABI version.  The buffer must be NULL and its size 0.
 *
 * %GETREGINFO_PATH
 *     Copy the registered path with its terminating NUL to the buffer and
 *     return its length, the NUL included; 0 when not registered.
 */
#define GETREGINFO_VERSION	(1U << 0)
#define GETREGINFO_PATH		(1U << 1)

/**
 * DOC: restartctl operations
 *
 * %RESTARTCTL_SET_POLICY
 *     Replace the policy of the calling process by a &struct restart_policy.
 *
 * %RESTARTCTL_GET_POLICY
 *     Tell the policy.
 *
 * %RESTARTCTL_HEARTBEAT
 *     The process is well.  The argument must be NULL and its size 0.
 *
 * %RESTARTCTL_RESTART
 *     Restart a process on purpose, as a &struct restart_request says.
 */
#define RESTARTCTL_SET_POLICY	1
#define RESTARTCTL_GET_POLICY	2
#define RESTARTCTL_HEARTBEAT	3
#define RESTARTCTL_RESTART	4

/**
 * DOC: restart_policy flags
 *
 * %RESTART_LIMIT
 *     A fault is transient unless the last @interval_ms saw @burst restarts.
 *     Without it the sysctl kernel.restart.min_interval_ms rules.
 *
 * %RESTART_QUARANTINE
 *     A fault with the same suspect as the fault before is restarted even at
 *     the limit, once for each open file, and not counted.
 *
 * %RESTART_ON_EXIT
 *     exit_group(2) with a status other than 0 is a fault.
 *
 * %RESTART_CORE
 *     A restart leaves a core dump, written by a child process.
 */
#define RESTART_LIMIT		(1U << 0)
#define RESTART_QUARANTINE	(1U << 1)
#define RESTART_ON_EXIT		(1U << 2)
#define RESTART_CORE		(1U << 3)

/* Range of restart_policy.burst and, unless 0, restart_policy.heartbeat_ns */
#define RESTART_BURST_MAX	64
#define RESTART_HEARTBEAT_MIN	1000000ULL
#define RESTART_HEARTBEAT_MAX	86400000000000ULL

/**
 * struct restart_policy - When a process is restarted
 *
 * Argument of restartctl().  This structure can grow; the size argument tells
 * which one is meant, at least %RESTART_POLICY_SIZE_VER0.
 */
struct restart_policy {
	/**
	 * @flags: %RESTART_LIMIT and others.
	 */
	__u32 flags;
	/**
	 * @burst: With %RESTART_LIMIT: so many restarts, 1 to
	 * %RESTART_BURST_MAX; else 0.
	 */
	__u32 burst;
	/**
	 * @interval_ms: With %RESTART_LIMIT: in any so many milliseconds, 0
	 * for no limit; else 0.
	 */
	__u32 interval_ms;
	/**
	 * @reserved: 0.
	 */
	__u32 reserved;
	/**
	 * @heartbeat_ns: Deadline from one heartbeat to the next; 0: none.
	 */
	__u64 heartbeat_ns;
};

#define RESTART_POLICY_SIZE_VER0	24

/* The most of restart_request.trial_ms; the least between two requests */
#define RESTART_TRIAL_MAX_MS	3600000
#define RESTART_PACE_MS		100

/**
 * struct restart_request - A restart on purpose
 *
 * Argument of restartctl().  This structure can grow; the size argument tells
 * which one is meant, at least %RESTART_REQUEST_SIZE_VER0.
 */
struct restart_request {
	/**
	 * @flags: 0.
	 */
	__u32 flags;
	/**
	 * @pidfd: The process.
	 */
	__s32 pidfd;
	/**
	 * @path: Pointer to the absolute path of another program, which becomes
	 * the registered one; 0 for the one that is registered.
	 */
	__u64 path;
	/**
	 * @argv: With @path: pointer to its arguments, at least one, ended by
	 * NULL; else 0.  The environment stays as registered.
	 */
	__u64 argv;
	/**
	 * @trial_ms: With @path: for so long, 0 to %RESTART_TRIAL_MAX_MS, a
	 * fault, or an exit with a status other than 0, brings back the program
	 * before; else 0.
	 */
	__u32 trial_ms;
	/**
	 * @error: Set by the kernel: the error of executing the program, if it
	 * came so far; else 0.
	 */
	__u32 error;
	/**
	 * @generation: Set by the kernel: the generation that runs now; 0 when
	 * nothing was executed.
	 */
	__u64 generation;
};

#define RESTART_REQUEST_SIZE_VER0	40

/**
 * DOC: hread flags
 *
 * %HREAD_NOWAIT
 *     Do not wait for data, as if %O_NONBLOCK were set on the open file.
 */
#define HREAD_NOWAIT		(1U << 0)

/**
 * DOC: semop flags
 *
 * %SEM_RECOVER
 *     In sem_flg, together with %SEM_UNDO and a negative sem_op: take over
 *     what the process held of the semaphore when it was restarted.
 */
#define SEM_RECOVER		0x2000

/**
 * DOC: reg_info flags
 *
 * %REG_SUSPECT_TWICE
 *     This fault and the one before have the same suspect, the open file at
 *     @suspect_fd.
 *
 * %REG_HANG
 *     The heartbeat stopped.  The signal is %SIGABRT with %SI_KERNEL.
 *
 * %REG_EXIT
 *     The old generation exited: @signo is 0 and @code the exit status.
 *
 * %REG_ASKED
 *     No fault: the restart was asked for.  @signo is 0, @fault_tid the process
 *     that asked, 0 if it is in none of this one's PID namespaces, and @code
 *     its real user ID, in the user namespace of this process.
 *
 * %REG_REVERTED
 *     The new program of a request failed in its trial: this is the one before.
 */
#define REG_SUSPECT_TWICE	(1U << 0)
#define REG_HANG		(1U << 1)
#define REG_EXIT		(1U << 2)
#define REG_ASKED		(1U << 3)
#define REG_REVERTED		(1U << 4)

/**
 * struct reg_info - Registration and last restart of the calling process
 *
 * Argument of getreginfo().  While @generation is 1 there has been no restart:
 * all members about the fault and the phases are 0 and @suspect_fd is -1.
 * This structure can grow; the size argument tells which one is meant, at
 * least %REG_INFO_SIZE_VER0.
 */
struct reg_info {
	/**
	 * @is_restarted: 1 if this image was started by a restart, 0 if not.
	 */
	__u32 is_restarted;
	/**
	 * @child_id: The number given to reregist().
	 */
	__s32 child_id;
	/**
	 * @generation: 1 until the first restart; each restart adds one.
	 */
	__u64 generation;
	/**
	 * @signo: Signal of the fault that started this generation.
	 */
	__s32 signo;
	/**
	 * @code: si_code of that signal.
	 */
	__s32 code;
	/**
	 * @fault_addr: si_addr of that signal, 0 if it carries none.
	 */
	__u64 fault_addr;
	/**
	 * @fault_tid: Thread that took the signal, in the PID namespace of the
	 * process.
	 */
	__s32 fault_tid;
	/**
	 * @suspect_fd: File descriptor that the faulting thread passed to
	 * hread() last; if there is none, that any thread passed last; or -1.
	 */
	__s32 suspect_fd;
	/**
	 * @fault_time_ns: Time of the fault, on CLOCK_MONOTONIC.
	 */
	__u64 fault_time_ns;
	/**
	 * @retain_ns: Time for look-up and policy, up to the exec.
	 */
	__u64 retain_ns;
	/**
	 * @exec_ns: Time for executing the new image, including the end of the
	 * other threads.
	 */
	__u64 exec_ns;
	/**
	 * @restore_ns: Time for rewinding held data and restoring the signal
	 * mask.
	 */
	__u64 restore_ns;
	/**
	 * @restarts: Restarts since the process registered first, those that
	 * were asked for not counted.
	 */
	__u64 restarts;
	/**
	 * @flags: %REG_HANG and others: more about the fault.
	 */
	__u32 flags;
	/**
	 * @core_pid: Child that wrote the core dump, in the PID namespace of
	 * the process; 0 if there is none.
	 */
	__s32 core_pid;
};

#define REG_INFO_SIZE_VER0	88

/**
 * struct io_log - Progress of reading and writing on an open file
 *
 * Argument of getiolog().  The counts belong to the open file description and
 * start at its first hread(), lwrite() or lsendfile(); all are in bytes.  This
 * structure can grow; the size argument tells which one is meant, at least
 * %IO_LOG_SIZE_VER0.
 */
struct io_log {
	/**
	 * @read: Taken from the file by hread(), re-reading not counted.
	 */
	__u64 read;
	/**
	 * @released: Of these, no longer held.
	 */
	__u64 released;
	/**
	 * @held: Still held, i.e. @read - @released.
	 */
	__u64 held;
	/**
	 * @unread: Of the held ones, returned again by the next reads.
	 */
	__u64 unread;
	/**
	 * @written: Written by lwrite() and lsendfile().
	 */
	__u64 written;
};

#define IO_LOG_SIZE_VER0	40

#endif /* _LINUX_ZLR_H */
