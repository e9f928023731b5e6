// SPDX-License-Identifier: GPL-2.0-or-later
/* A kernel with the series applied and its options off is an ordinary kernel. */
#include "../lib/t.h"
#include <netinet/in.h>
#include <perdure/rescue.h>
#include <perdure/tcp_replica.h>

TV(no_such_calls)
{
	struct reg_info info;
	struct io_log log;
	char buf[8];
	int p[2];

	T_OK(pipe(p));
	T_ASSERT(write(p[1], "abc", 3) == 3);
	T_ERR(x_reregist(t_self, (char *[]){ "prog", NULL }, NULL, 0), ENOSYS);
	T_ERR(x_unregister(), ENOSYS);
	T_ERR(x_getreginfo(&info), ENOSYS);
	T_ERR(x_regpath(buf, sizeof(buf)), ENOSYS);
	T_ERR(x_hread(p[0], buf, 8, 0), ENOSYS);
	T_ERR(x_lwrite(p[1], buf, 8), ENOSYS);
	T_ERR(x_lsendfile(p[1], p[0], NULL, 8), ENOSYS);
	T_ERR(x_getiolog(p[0], &log), ENOSYS);
	T_ERR(perdure_abi_version(), ENOSYS);
	T_ERR(perdure_rescue(EPROTO), ENOSYS);
	T_ERR(perdure_rescue_deadline(EPROTO, 1000), ENOSYS);
	T_ERR(perdure_rescue_cork(EPROTO), ENOSYS);
	T_ERR(perdure_rescue_cascade(EPROTO), ENOSYS);
	T_ERR(perdure_rescue_sockets(1), ENOSYS);
	T_ERR(perdure_rescue_leave(), ENOSYS);
	T_EQ(read(p[0], buf, sizeof(buf)), 3);
	/* Numbers that are not assigned. */
	for (int nr = 506; nr < 510; nr++)
		T_ERR(syscall(nr, 0, 0, 0, 0, 0), ENOSYS);
}

T(no_traces_of_it)
{
	T_EXPECT(access("/proc/sys/kernel/restart", F_OK));
	T_EXPECT(access("/sys/kernel/tracing/events/zlr", F_OK));
	T_ERR(access("/proc/net/tcp_replica", F_OK), ENOENT);
	T_ERR(access("/proc/rescue", F_OK), ENOENT);
}

T(no_such_options)
{
	static const int options[] = { TCP_REPLICA, TCP_CASCADE };

	for (size_t i = 0; i < ARRAY_LEN(options); i++) {
		int s = T_OK(socket(AF_INET, SOCK_STREAM, 0));
		char value[256] = { 0 };
		socklen_t size = sizeof(value);

		T_ERR(setsockopt(s, IPPROTO_TCP, options[i], value, sizeof(value)), ENOPROTOOPT);
		T_ERR(setsockopt(s, IPPROTO_TCP, options[i], value, sizeof(int)), ENOPROTOOPT);
		T_ERR(getsockopt(s, IPPROTO_TCP, options[i], value, &size), ENOPROTOOPT);
		close(s);
	}
}

T(faults_kill)
{
	static const int sigs[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP };

	for (size_t i = 0; i < ARRAY_LEN(sigs); i++) {
		pid_t pid = t_fork();

		if (!pid) {
			syscall(NR_reregist, t_self, (char *[]){ "prog", NULL }, NULL, 0, 0);
			raise(sigs[i]);
			_exit(9);
		}
		T_KILLED(t_wait(pid), sigs[i]);
	}
}
