// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * This test checks services with threads: many that fault at once, a fault in each of them, in signal handlers that
 * interrupted a system call, and perdure_recover_threads(), which gives each pending request a thread again.
 */
#include "../restart/gen.h"

#include <pthread.h>
#include <sys/mount.h>
#include <sys/sem.h>
#include <sys/time.h>

enum { THREADS = 16, FIRST = 50 };	/* threads, and the first connection's descriptor */

/* t_word: what the service tells the test. */
enum { W_STARTED, W_WRONG, W_LAST, W_TID, W_MAIN, W_FD };

static pthread_barrier_t barrier;
static int clients[THREADS];

static void request(int i, char *buf)
{
	snprintf(buf, 32, "request number %016d", i);
}

/* Connections, with a request each. */
static void connect_all(void)
{
	char buf[32];
	int pair[2];

	for (int i = 0; i < THREADS; i++) {
		T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
		T_OK(dup2(pair[1], FIRST + i));
		close(pair[1]);
		clients[i] = T_OK(fcntl(pair[0], F_DUPFD, 200));
		close(pair[0]);
		request(i, buf);
		T_ASSERT(write(clients[i], buf, sizeof(buf)) == sizeof(buf));
	}
}

static void check_answers(void)
{
	char buf[33], want[32];

	for (int i = 0; i < THREADS; i++) {
		request(i, want);
		want[0] = 'R';
		close(FIRST + i);	/* the test's copy of the service's end */
		T_EQ(recv(clients[i], buf, sizeof(buf), MSG_WAITALL), sizeof(want));
		T_MEMEQ(buf, want, sizeof(want));
		close(clients[i]);
	}
}

/* A thread of the old generation: reads a request, and comes to grief. */
static void *doomed(void *arg)
{
	int fd = (intptr_t)arg;
	char buf[32];

	T_EQ(hread(fd, buf, sizeof(buf), 0), sizeof(buf));
	/* Half of the answer is sent already. */
	buf[0] = 'R';
	T_EQ(lwrite(fd, buf, fd % 32), fd % 32);
	if (t_word[W_FD] == (uint64_t)fd)
		t_word[W_TID] = syscall(SYS_gettid);
	pthread_barrier_wait(&barrier);
	if (!t_word[W_FD] || t_word[W_FD] == (uint64_t)fd)
		t_crash();
	for (;;)
		pause();
	return NULL;
}

/* One of the new generation. */
static void serve(int fd, void *arg)
{
	struct io_log log;
	char buf[32];

	if (arg != &barrier || getiolog(fd, &log) || log.written != (uint64_t)fd % 32 ||
	    hread(fd, buf, sizeof(buf), 0) != sizeof(buf))
		t_word[W_WRONG]++;
	buf[0] = 'R';
	if (lwrite(fd, buf + log.written, sizeof(buf) - log.written) != (ssize_t)(sizeof(buf) - log.written) ||
	    hread(fd, NULL, 0, sizeof(buf)))
		t_word[W_WRONG]++;
	t_word[W_STARTED]++;
	pthread_barrier_wait(&barrier);		/* all of them are there at the same time */
}

ROLE(recover)
{
	struct reg_info info;

	T_EQ(getreginfo(&info), 1);
	T_EQ(info.generation, 2);
	if (t_word[W_FD])
		T_EQ(info.fault_tid, t_word[W_TID]);
	pthread_barrier_init(&barrier, NULL, THREADS + 1);
	T_EQ(perdure_recover_threads(serve, &barrier, NULL, 0), THREADS);
	pthread_barrier_wait(&barrier);
	T_EQ(t_word[W_STARTED], THREADS);
	T_EQ(t_word[W_WRONG], 0);
	T_EQ(perdure_recover_threads(serve, &barrier, NULL, 0), 0);
	return 0;
}

/* A service of THREADS threads. fd: whose thread faults; 0: all of them. */
static void service(int fd, bool main_gone)
{
	pthread_t t;

	t_word[W_FD] = fd;
	t_word[W_STARTED] = 0;
	t_word[W_WRONG] = 0;
	connect_all();
	if (!t_fork()) {
		for (int i = 0; i < THREADS; i++)
			close(clients[i]);
		t_register("recover", NULL);
		pthread_barrier_init(&barrier, NULL, THREADS);
		for (int i = main_gone ? 0 : 1; i < THREADS; i++)
			T_ASSERT(!pthread_create(&t, NULL, doomed, (void *)(intptr_t)(FIRST + i)));
		if (main_gone)
			pthread_exit(NULL);
		doomed((void *)(intptr_t)FIRST);
	}
	T_EXITED(t_wait(-1), 0);
	check_answers();
}

T_LIMIT(all_threads_fault_at_once, 60)
{
	for (int i = t_rounds(20); i > 0; i--)
		service(0, i % 2);
}

T_LIMIT(each_thread_faults, 60)
{
	for (int i = 0; i < THREADS; i += t_slow() > 1 ? 5 : 1) {
		service(FIRST + i, false);
		service(FIRST + i, true);
	}
}

/* One file, several descriptors: one thread. */
static void count_one(int fd, void *arg)
{
	(void)arg;
	t_word[W_LAST] = fd;
	t_word[W_STARTED]++;
}

ROLE(duplicates)
{
	int *fds = NULL;

	T_EQ(perdure_pending(&fds), 2);
	T_EQ(fds[0], 7);
	T_EQ(fds[1], FIRST);
	T_EQ(perdure_recover_threads(count_one, NULL, fds + 1, 1), 1);
	while (!t_word[W_STARTED])
		usleep(1000);
	T_EQ(t_word[W_LAST], FIRST);
	return 0;
}

T(pending_counts_files)
{
	int p[2], first;
	char c;

	T_CHILD {
		T_OK(pipe(p));
		first = p[0];
		T_OK(dup2(p[0], FIRST));
		T_OK(dup2(p[0], FIRST + 3));
		T_ASSERT(write(p[1], "ab", 2) == 2 && hread(p[0], &c, 1, 0) == 1);
		T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, p));
		T_OK(dup2(p[0], 7));
		close(p[0]);
		T_ASSERT(write(p[1], "ab", 2) == 2 && hread(7, &c, 1, 0) == 1);
		/* Data that nobody has read is nobody's request yet; that which is released is none any more. */
		T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, p));
		T_ASSERT(write(p[1], "ab", 2) == 2);
		T_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, p));
		T_ASSERT(write(p[1], "ab", 2) == 2 && hread(p[0], &c, 1, 1) == 1);
		close(first);		/* FIRST stands for it now */
		t_register("duplicates", NULL);
		t_crash();
	}
}

/* Two files of two file systems that have the same number there, one of them with two descriptors; no /proc */
ROLE(two_devices)
{
	struct stat st[2];
	int *fds = NULL;

	T_OK(fstat(FIRST, &st[0]));
	T_OK(fstat(FIRST + 1, &st[1]));
	T_EQ(st[0].st_ino, st[1].st_ino);
	T_EXPECT(st[0].st_dev != st[1].st_dev);
	for (int i = 0; i < 2; i++) {
		T_EQ(perdure_pending(&fds), 2);
		T_EQ(fds[0], FIRST);
		T_EQ(fds[1], FIRST + 1);
		free(fds);
		if (i)
			break;
		/* A limit of a million files does not make a long search of it. */
		T_OK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 1 << 20, 1 << 20 }));
		T_OK(chroot(t_tmpdir()));
		T_OK(chdir("/"));
	}
	return 0;
}

T(pending_on_two_devices)
{
	char path[2][PATH_MAX], c;

	T_CHILD {
		T_OK(unshare(CLONE_NEWNS));
		T_OK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
		for (int i = 0; i < 2; i++) {
			int fd;

			T_OK(mkdir(t_path(path[i], i ? "b" : "a"), 0700));
			T_OK(mount("here", path[i], "tmpfs", 0, NULL));
			T_OK(mkfifo(strcat(path[i], "/fifo"), 0600));
			fd = T_OK(open(path[i], O_RDWR));
			T_OK(dup2(fd, FIRST + i));
			close(fd);
			T_ASSERT(write(FIRST + i, "ab", 2) == 2 && hread(FIRST + i, &c, 1, 0) == 1);
		}
		T_OK(dup2(FIRST, FIRST + 2));
		t_register("two_devices", NULL);
		t_crash();
	}
}

/* That there is nothing to read again is another answer than that nobody knows. */
T(pending_switched_off)
{
	int *fds = NULL;

	T_EQ(perdure_pending(&fds), 0);
	free(fds);
	T_OK(t_sysctl("enabled", 0));
	T_ERR(perdure_pending(&fds), EOPNOTSUPP);
	T_OK(t_sysctl("enabled", 1));
}

/* Where not all threads can be had, there are none. */
T(all_or_none)
{
	int fds[THREADS];

	T_CHILD {
		t_drop_root();
		T_OK(setrlimit(RLIMIT_NPROC, &(struct rlimit){ 5, 5 }));
		T_ERR(perdure_recover_threads(count_one, NULL, fds, THREADS), EAGAIN);
		usleep(50000);
		T_EQ(t_word[W_STARTED], 0);
		T_EQ(perdure_recover_threads(count_one, NULL, fds, 0), 0);
		T_EQ(perdure_recover_threads(count_one, NULL, fds, 2), 2);
		while (t_word[W_STARTED] < 2)
			usleep(1000);
	}
}

/* ---- a fault in a handler that interrupted a call ---- */

static int in[2], out[2];

static char big[1 << 18];
static void (*handler)(int);
static const struct itimerval soon = { .it_value.tv_usec = 5000 };

/* lwrite() is to have written something, and wait. */
static void not_too_soon(int sig)
{
	int n = 1;

	if (t_word[W_LAST] == 1)
		T_OK(ioctl(out[0], FIONREAD, &n));
	if (n)
		handler(sig);
	else
		T_OK(setitimer(ITIMER_REAL, &soon, NULL));
}

static void faults(int sig)
{
	(void)sig;
	t_crash();
}

static void aborts(int sig)
{
	(void)sig;
	abort();
}

/* The signal is blocked here: it is there when the handler is over. */
static void is_killed(int sig)
{
	(void)sig;
	kill(getpid(), SIGSEGV);
}

/* In the handler of the handler */
static void nests(int sig)
{
	(void)sig;
	t_handle(SIGUSR2, faults, 0);
	raise(SIGUSR2);
}

static void in_hread(void)
{
	char buf[10];

	hread(in[0], buf, sizeof(buf), 0);
}

static void in_lwrite(void)
{
	lwrite(out[1], big, sizeof(big));
}

static void in_poll(void)
{
	poll(&(struct pollfd){ in[0], POLLIN, 0 }, 1, -1);
}

static void in_semop(void)
{
	int id = semget(IPC_PRIVATE, 1, 0600);

	/* Gone when the process is: nobody waits for a semaphore that is no more. */
	semop(id, &(struct sembuf){ 0, -1, 0 }, 1);
}

static void in_sleep(void)
{
	nanosleep(&(struct timespec){ 60, 0 }, NULL);
}

static void in_sigsuspend(void)
{
	sigset_t none;

	sigemptyset(&none);
	sigsuspend(&none);
}

ROLE(after_handler)
{
	unsigned int call = atoi(argv[0]);
	struct io_log log;
	sigset_t now, want;
	char buf[10];

	in[0] = atoi(argv[1]), out[0] = atoi(argv[2]), out[1] = atoi(argv[3]);
	T_EQ(t_generation(), 2);
	/* The mask of the registration; that of the handler and of sigsuspend() are gone */
	sigprocmask(SIG_BLOCK, NULL, &now);
	sigemptyset(&want);
	sigaddset(&want, SIGHUP);
	for (int sig = 1; sig < 32; sig++)
		if (sigismember(&now, sig) != sigismember(&want, sig))
			t_check(false, __FILE__, __LINE__, "signal %d is %sblocked", sig, sigismember(&now, sig) ? "" : "not ");
	T_EQ(hread(in[0], buf, sizeof(buf), 3), 3);
	T_MEMEQ(buf, "abc", 3);
	T_EQ(getiolog(out[1], &log), 0);
	if (call == 1) {
		size_t n = 0;

		/* What is counted is what is there */
		T_RANGE(log.written, 1, sizeof(big) - 1);
		while (n < log.written)
			n += T_OK(read(out[0], big + n, log.written - n));
		T_EQ(t_match(big, n, 0), n);
	} else {
		T_EQ(log.written, 0);
	}
	T_OK(fcntl(out[0], F_SETFL, O_NONBLOCK));
	T_ERR(read(out[0], buf, 1), EAGAIN);
	return 0;
}

T_LIMIT(faults_in_handlers, 60)
{
	static void (*const handlers[])(int) = { faults, aborts, is_killed, nests };
	static void (*const calls[])(void) = { in_hread, in_lwrite, in_poll, in_semop, in_sleep, in_sigsuspend };
	static const int flags[] = { 0, SA_RESTART, SA_ONSTACK | SA_NODEFER };
	unsigned int n = 0;

	for (unsigned int h = 0; h < ARRAY_LEN(handlers); h++) {
		for (unsigned int c = 0; c < ARRAY_LEN(calls); c++) {
			char number[8], fd[3][8], buf[3];
			struct sigaction sa = { .sa_handler = not_too_soon, .sa_flags = flags[n++ % ARRAY_LEN(flags)] };

			T_CHILD {
				sigset_t hup;

				handler = handlers[h];
				t_word[W_LAST] = c;
				t_fill(big, sizeof(big), 0);
				T_OK(pipe(in));
				T_OK(pipe(out));
				T_ASSERT(write(in[1], "abc", 3) == 3 && hread(in[0], buf, 3, 0) == 3);
				sigemptyset(&hup);
				sigaddset(&hup, SIGHUP);
				sigprocmask(SIG_SETMASK, &hup, NULL);
				snprintf(number, sizeof(number), "%u", c);
				snprintf(fd[0], sizeof(*fd), "%d", in[0]);
				snprintf(fd[1], sizeof(*fd), "%d", out[0]);
				snprintf(fd[2], sizeof(*fd), "%d", out[1]);
				t_register("after_handler", number, fd[0], fd[1], fd[2], NULL);
				T_OK(sigaltstack(&(stack_t){ .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 }, NULL));
				if (n % 2)
					sigfillset(&sa.sa_mask);
				T_OK(sigaction(SIGALRM, &sa, NULL));
				T_OK(setitimer(ITIMER_REAL, &soon, NULL));
				for (;;)
					calls[c]();
			}
		}
	}
}
