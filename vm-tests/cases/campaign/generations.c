// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * This test restarts a service many times, and finds everything as it was: files, memory, slab, threads, SysV ids. The
 * service has some of each: threads, sockets with held data, an epoll set, a state area, shared memory, a semaphore held
 * with SEM_UNDO, a message queue. CAMPAIGN_GENERATIONS says how many.
 */
#include "../restart/gen.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

enum { SOCKET = 30, PEER, EPOLL, WAKE_IN, WAKE_OUT };
enum { W_GENERATION, W_STOP_AT, W_GO, W_SHM, W_SEM, W_MSG, W_WRONG };
enum { THREADS = 3, SETTLE_S = 15 };

struct state {
	uint64_t generation;
	uint64_t sum;
};

/* ---- the service ---- */

static void *idle(void *arg)
{
	char c;

	(void)arg;
	/* Nothing ever comes: the next fault ends it. */
	if (read(WAKE_IN, &c, 1))
		t_word[W_WRONG]++;
	return NULL;
}

static void *falls(void *arg)
{
	(void)arg;
	t_crash();
}

ROLE(generation)
{
	struct epoll_event event;
	uint64_t gen = t_generation(), *shm;
	struct state *s, next;
	struct reg_info info;
	pthread_t t;
	char buf[16], *more;
	bool stop;

	t_word[W_WRONG] += x_getreginfo(&info) != 1 || gen != t_word[W_GENERATION] + 1;
	/* Its own memory, files and threads */
	more = malloc(1 << 16);
	memset(more, 1, 1 << 16);
	for (int i = 0; i < THREADS; i++)
		while (pthread_create(&t, NULL, idle, NULL) == EAGAIN)
			usleep(100);
	s = perdure_state_open("generations", sizeof(*s), 1, NULL, NULL);
	t_word[W_WRONG] += !s || (s->generation != gen - 1 && s->generation);
	next = (struct state){ gen, s->sum + gen };
	perdure_state_update(s, s, &next, sizeof(next));
	/* What outlives it: reads again what it holds, by which it is woken. */
	t_word[W_WRONG] += epoll_wait(EPOLL, &event, 1, 5000) != 1 || hread(SOCKET, buf, 8, 0) != 8 || memcmp(buf, "request", 8);
	t_word[W_WRONG] += lwrite(SOCKET, buf, 8) != 8;
	shm = shmat(t_word[W_SHM], NULL, 0);
	t_word[W_WRONG] += shm == (void *)-1 || (*shm != gen - 1 && *shm);
	*shm = gen;
	/* Held over the restart, by SEM_UNDO; given back, and taken again. */
	if (gen > 2)
		semop(t_word[W_SEM], &(struct sembuf){ 0, 1, SEM_UNDO }, 1);
	t_word[W_WRONG] += semop(t_word[W_SEM], &(struct sembuf){ 0, -1, SEM_UNDO | IPC_NOWAIT }, 1) != 0;
	t_word[W_WRONG] += msgsnd(t_word[W_MSG], &(struct { long type; char c[8]; }){ 1, "m" }, 8, IPC_NOWAIT) ||
			   msgrcv(t_word[W_MSG], &(struct { long type; char c[8]; }){ 0 }, 8, 0, IPC_NOWAIT) != 8;
	stop = gen == t_word[W_STOP_AT];
	t_word[W_GENERATION] = gen;
	while (stop && !t_word[W_GO])
		usleep(1000);
	t_word[W_GO] = 0;
	if (gen == t_word[W_STOP_AT])
		return 0;
	if (gen % 3 == 0)
		pthread_create(&t, NULL, falls, NULL);
	else if (gen % 3 == 1)
		abort();
	else
		t_crash();
	for (;;)
		pause();
}

/* ---- the books ---- */

struct figure {
	const char *name;
	long slack;		/* kB, or things: what it may grow by in all generations */
	long value;
};

static long entries(const char *path)
{
	DIR *dir = opendir(path);
	long n = 0;

	if (!dir)
		return -1;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* The number behind a key at the beginning of a line. */
static long key(const char *path, const char *name)
{
	static char buf[1 << 16];
	char *at = buf, line[64];
	long value = -1;

	if (t_get(path, buf, sizeof(buf) - 1) <= 0)
		return -1;
	snprintf(line, sizeof(line), "%s:", name);
	while (at && strncmp(at, line, strlen(line)))
		at = (at = strchr(at, '\n')) ? at + 1 : NULL;
	if (at)
		sscanf(at + strlen(line), "%ld", &value);
	return value;
}

static long lines(const char *path)
{
	static char buf[1 << 16];
	long n = 0;

	if (t_get(path, buf, sizeof(buf) - 1) <= 0)
		return -1;
	for (char *at = buf; (at = strchr(at, '\n')); at++)
		n++;
	return n;
}

static long tasks(void)
{
	char buf[128];
	long n = -1;

	t_get("/proc/loadavg", buf, sizeof(buf));
	sscanf(buf, "%*f %*f %*f %*d/%ld", &n);
	return n;
}

static long first_number(const char *path)
{
	char buf[128];

	return t_get(path, buf, sizeof(buf)) > 0 ? atol(buf) : -1;
}

enum { FIGURES = 18 };

static void measure(pid_t pid, struct figure *f)
{
	char path[64], status[64];
	int n = 0;

	t_put("/proc/sys/vm/drop_caches", "3");
	snprintf(status, sizeof(status), "/proc/%d/status", pid);
	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	f[n++] = (struct figure){ "files of the service", 0, entries(path) };
	f[n++] = (struct figure){ "its threads", 0, key(status, "Threads") };
	f[n++] = (struct figure){ "its memory, kB", 64, key(status, "VmRSS") };
	f[n++] = (struct figure){ "its address space, kB", 128, key(status, "VmSize") };
	f[n++] = (struct figure){ "open files, roughly", 256, first_number("/proc/sys/fs/file-nr") };
	f[n++] = (struct figure){ "tasks", 4, tasks() };
	f[n++] = (struct figure){ "shared memory ids", 0, lines("/proc/sysvipc/shm") };
	f[n++] = (struct figure){ "semaphore ids", 0, lines("/proc/sysvipc/sem") };
	f[n++] = (struct figure){ "message queue ids", 0, lines("/proc/sysvipc/msg") };
	f[n++] = (struct figure){ "slab, kB", 1024, key("/proc/meminfo", "Slab") };
	f[n++] = (struct figure){ "unreclaimable slab, kB", 512, key("/proc/meminfo", "SUnreclaim") };
	f[n++] = (struct figure){ "kernel stacks, kB", 128, key("/proc/meminfo", "KernelStack") };
	f[n++] = (struct figure){ "page tables, kB", 128, key("/proc/meminfo", "PageTables") };
	f[n++] = (struct figure){ "anonymous memory, kB", 512, key("/proc/meminfo", "AnonPages") };
	f[n++] = (struct figure){ "shared memory, kB", 256, key("/proc/meminfo", "Shmem") };
	f[n++] = (struct figure){ "vmalloc, kB", 256, key("/proc/meminfo", "VmallocUsed") };
	f[n++] = (struct figure){ "per-processor memory, kB", 128, key("/proc/meminfo", "Percpu") };
	/* The lack of it, so that as with the others less is better */
	f[n++] = (struct figure){ "memory in use, kB", 4096,
				  key("/proc/meminfo", "MemTotal") - key("/proc/meminfo", "MemFree") };
	T_EQ(n, FIGURES);
	for (int i = 0; i < n; i++)
		T_RANGE(f[i].value, 0, LONG_MAX);
}

static bool back(const struct figure *before, const struct figure *now)
{
	for (int i = 0; i < FIGURES; i++)
		if (now[i].value > before[i].value + before[i].slack)
			return false;
	return true;
}

static void until(uint64_t generation)
{
	uint64_t last = 0, end = 0;

	/* As long as it goes on */
	while (t_word[W_GENERATION] < generation) {
		if (t_word[W_GENERATION] != last) {
			last = t_word[W_GENERATION];
			end = t_now_ns() + 20000000000ull * t_slow();
		}
		T_ASSERT(!end || t_now_ns() < end);
		T_ASSERT(!t_word[W_WRONG]);
		t_sleep_ms(5);
	}
}

T_LIMIT(generations, 3000)
{
	uint64_t generations = atoi(getenv("CAMPAIGN_GENERATIONS") ?: "300"), warm = 50, begin;
	struct figure before[FIGURES], after[FIGURES];
	int pair[2], wake[2], tries = 0;
	pid_t pid;

	t_word[W_SHM] = T_OK(shmget(IPC_PRIVATE, 4096, 0600));
	t_word[W_SEM] = T_OK(semget(IPC_PRIVATE, 1, 0600));
	t_word[W_MSG] = T_OK(msgget(IPC_PRIVATE, 0600));
	T_OK(semctl(t_word[W_SEM], 0, SETVAL, 1));
	t_word[W_GENERATION] = 1;
	t_word[W_STOP_AT] = warm;
	T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	T_OK(pipe(wake));
	pid = t_fork();
	if (!pid) {
		struct epoll_event e = { .events = EPOLLIN };
		char buf[8];

		T_OK(dup2(pair[0], SOCKET));
		T_OK(dup2(pair[1], PEER));
		T_OK(dup2(wake[0], WAKE_IN));
		T_OK(dup2(wake[1], WAKE_OUT));
		T_OK(dup2(epoll_create1(0), EPOLL));
		T_OK(epoll_ctl(EPOLL, EPOLL_CTL_ADD, SOCKET, &e));
		T_ASSERT(write(PEER, "request", 8) == 8 && hread(SOCKET, buf, 8, 0) == 8);
		t_register("generation", NULL);
		t_crash();
	}
	until(warm);
	measure(pid, before);
	begin = t_now_ns();
	t_word[W_STOP_AT] = warm + generations;
	t_word[W_GO] = 1;
	/* Each generation has its answer: more would not fit into the socket. */
	while (t_word[W_GENERATION] < warm + generations) {
		char buf[4096];

		while (recv(pair[1], buf, sizeof(buf), MSG_DONTWAIT) > 0)
			;
		until(t_word[W_GENERATION] + 1);
	}
	t_note("%llu generations in %.1f s", (unsigned long long)generations, (t_now_ns() - begin) / 1e9);
	/* What is freed later is freed within seconds. */
	do
		measure(pid, after);
	while (!back(before, after) && ++tries < SETTLE_S && (t_sleep_ms(1000), 1));
	for (int i = 0; i < FIGURES; i++) {
		bool ok = after[i].value <= before[i].value + before[i].slack;

		t_note("%-28s %8ld %8ld%s", before[i].name, before[i].value, after[i].value, ok ? "" : "  <- grew");
		T_EXPECT(ok);
	}
	printf("generations\t%llu\t%d\n", (unsigned long long)generations, !back(before, after));
	fflush(stdout);
	T_EQ(t_word[W_WRONG], 0);
	t_word[W_GO] = 1;
	T_EXITED(t_wait(pid), 0);
	T_EQ(semctl(t_word[W_SEM], 0, GETVAL), 1);	/* undone, by the end for good */
	shmctl(t_word[W_SHM], IPC_RMID, NULL);
	semctl(t_word[W_SEM], 0, IPC_RMID);
	msgctl(t_word[W_MSG], IPC_RMID, NULL);
}
