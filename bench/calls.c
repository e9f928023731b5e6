// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * calls [guest] ROUNDS
 *
 * What the calls of a registered process cost that are made once, or all the time: registration, the heartbeat.
 * getppid(2) beside them is what entering the kernel costs by itself.
 */
#include "bench.h"

#ifndef __NR_restartctl
#define __NR_restartctl	506
#endif

static char *self[] = { "/proc/self/exe", "--a", "typical", "command", "--line", NULL };
static char *environment[] = {
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/var/lib/service", "LANG=C.UTF-8",
	"LOGNAME=service", "USER=service", "SHELL=/usr/sbin/nologin", "INVOCATION_ID=5b0a4e6b8d5b4a3c9d3c7a1f0c2d4e6f",
	"JOURNAL_STREAM=8:12345", "LISTEN_FDS=1", "LISTEN_PID=4711", NULL
};

static long null_call(void)
{
	return syscall(__NR_getppid);
}

static long reregist(void)
{
	return syscall(__NR_reregist, self[0], self, environment, 0, 0);
}

static long getreginfo(void)
{
	struct reg_info info;

	return syscall(__NR_getreginfo, &info, sizeof(info), 0);
}

static long heartbeat(void)
{
	return syscall(__NR_restartctl, RESTARTCTL_HEARTBEAT, NULL, 0ul, 0);
}

static const struct {
	const char *name;
	long (*op)(void);
} calls[] = {
	{ "getppid", null_call },
	{ "reregist", reregist },
	{ "getreginfo", getreginfo },
	{ "heartbeat", heartbeat },
};

int main(int argc, char **argv)
{
	int rounds = bench_rounds(argc, argv);

	if (!have_zlr())
		return 1;
	for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
		enum { BATCH = 16 };
		static struct samples s;
		uint64_t cost = clock_cost(), begin;

		s.n = 0;
		TRY(calls[c].op());
		for (int i = 0; i < rounds; i++) {
			begin = now_ns();
			for (int j = 0; j < BATCH; j++)
				TRY(calls[c].op());
			add_sample(&s, (now_ns() - begin - cost) / (double)BATCH);
		}
		report(calls[c].name, "perdure", &s);
	}
	return 0;
}
