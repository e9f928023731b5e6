// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * This test faults a process that does nothing but update its state area, again and again and at
 * random instants, and looks in each generation whether all that belongs together is there.
 */
#include <perdure.h>
#include <sys/mount.h>

#include "../lib/t.h"

#define FAULTS		60
#define WITNESS_FD	100

struct state {
	uint64_t first;
	char between[5000];	/* to another page */
	uint64_t last[8];
};

/* Shared with the tester: what was updated, and which generation does it. */
struct witness {
	volatile uint64_t updates, generation;
};

static struct witness *witness(void)
{
	struct witness *w = mmap(NULL, t_page(), PROT_READ | PROT_WRITE, MAP_SHARED, WITNESS_FD, 0);

	return w == MAP_FAILED ? NULL : w;
}

/* @updater: never ends by itself, unless something is wrong. */
ROLE(updater)
{
	struct state *s = perdure_state_open("updater", sizeof(*s), 1, NULL, NULL);
	struct witness *w = witness();
	uint64_t n, last[8];
	struct reg_info info;

	if (!s || !w || getreginfo(&info) != 1)
		return 2;
	n = s->first;
	for (int i = 0; i < 8; i++)
		if (s->last[i] != n)
			return 3;	/* torn */
	if (n != w->updates && n != w->updates + 1)
		return 4;		/* lost */
	w->updates = n;
	w->generation = info.generation;
	for (;;) {
		n++;
		for (int i = 0; i < 8; i++)
			last[i] = n;
		if (perdure_state_stage(s, &s->first, &n, sizeof(n)) ||
		    perdure_state_update(s, s->last, last, sizeof(last)))
			return 5;
		w->updates = n;
	}
}

T_LIMIT(updates_across_restarts, 60)
{
	char *argv[] = { t_self, (char *)"@updater", NULL };
	uint64_t seed = t_seed(), updates;
	struct witness *w;
	int status;
	pid_t pid;

	T_OK(t_sysctl("min_interval_ms", 0));
	T_OK(dup2(memfd_create("witness", 0), WITNESS_FD));
	T_OK(ftruncate(WITNESS_FD, t_page()));
	w = witness();
	T_ASSERT(w);
	pid = t_fork();
	if (!pid) {
		T_OK(reregist(t_self, argv, environ, 0));
		raise(SIGSEGV);		/* into generation 2 */
	}
	for (uint64_t g = 2; g < 2 + FAULTS; g++) {
		updates = w->updates;
		while (w->generation < g || w->updates < updates + 2) {
			if (!T_EQ(waitpid(pid, &status, WNOHANG), 0)) {
				t_note("generation %d ended with status 0x%x", (int)g, status);
				_exit(1);
			}
			usleep(500);
		}
		usleep(t_rand(&seed) % 1000);
		T_OK(kill(pid, SIGSEGV));
		updates = w->updates;
	}
	t_note("%d faults, %llu updates", FAULTS, (unsigned long long)updates);
	kill(pid, SIGKILL);
	T_KILLED(t_wait(pid), SIGKILL);
}

ROLE(planted)
{
	int inherited = -1;

	T_EXPECT(perdure_state_open("planted", 100, 1, NULL, &inherited));
	T_EQ(inherited, atoi(argv[0]));
	return 0;
}

/* An area that is left to a program that gains privileges can be written by who left it */
T(privileged_programs_inherit_nothing)
{
	static const mode_t mode[] = { 0755, 02755, 04755 };
	char path[PATH_MAX];

	/* /tmp may be mounted nosuid. */
	T_OK(mount("none", t_tmpdir(), "tmpfs", 0, "mode=755"));
	for (int i = 0; i < 3; i++) {
		t_copy_privileged(path, "prog", mode[i]);
		T_CHILD {
			void *area;

			t_drop_root();
			area = perdure_state_open("planted", 100, 1, NULL, NULL);
			T_ASSERT(area);
			T_OK(fcntl(perdure_state_fd(area), F_SETFD, 0));
			execl(path, "prog", "@planted", i ? "0" : "1", NULL);
			T_EXPECT(!"execl");
		}
		T_OK(unlink(path));
	}
	T_OK(umount(t_tmpdir()));
}
