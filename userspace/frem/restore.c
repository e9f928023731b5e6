// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Restores: CRIU makes the processes, the kernel loads their memory. To CRIU we are its lazy-pages daemon, but no fault
 * ever comes to us: each userfaultfd goes to the kernel together with the image.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "frem.h"

#define RANGES_MAX	1048576		/* that one UFFDIO_LAZY_LOAD takes */
#define FINISHED	0x52535446	/* from CRIU in place of a process's number: that was the last one */

enum lap { CHECKED, PREPARED, CRIU, TOUCHED, RESUMED, LAPS };
static const char *const lap_names[LAPS] = { "checked", "prepared", "criu", "touched", "resumed" };
static const char *const state_names[] = { "none", "attached", "loading", "complete", "failed" };

static struct daemon {
	struct descriptor *d;
	const struct restore_options *opt;
	char dir[32];			/* for CRIU and us; removed when we end */
	char log[40];
	int stages;			/* a FIFO: CRIU has come to the stage at which we hold it */
	int go;				/* another: it may go on */
	int listener, connection, event;
	pid_t criu;			/* 0: not running */
	bool complete;			/* CRIU has made all processes */
	char refused[256];		/* why nothing runs, and CRIU may do it alone */
	char broken[256];		/* nobody can */
	bool released;			/* CRIU was told to let them run */
	bool started;			/* the kernel to load them */
	double laps[LAPS], begin, last;
} run = { .stages = -1, .go = -1, .listener = -1, .connection = -1, .event = -1 };

static volatile sig_atomic_t interrupted;

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

static void lap(enum lap which)
{
	double t = now();

	run.laps[which] = t - run.last;
	run.last = t;
}

static void why(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void why(char *text, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(run.refused), format, args);
	va_end(args);
}

/* The files of our directory */

static const char *in_dir(const char *name)
{
	static char path[sizeof(run.dir) + 32];

	snprintf(path, sizeof(path), "%s/%s", run.dir, name);
	return path;
}

/* Has CRIU undo what it has done at its next stage. */
static void refuse(void)
{
	close(open(in_dir("no"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

static void release(void)
{
	if (write(run.go, "\n", 1) != 1)
		die("%s: %m", in_dir("go"));
	run.released = true;
}

static void remove_dir(void)
{
	DIR *dir = opendir(run.dir);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(run.dir);
}

/* CRIU, if it still runs, gets the time to end what it has begun: nobody will let it go on. */
static void clean_up(void)
{
	if (run.criu > 0) {
		refuse();
		close(run.go);
		close(run.connection);
		close(run.listener);
		for (int i = 0; i < 100 && !waitpid(run.criu, NULL, WNOHANG); i++)
			usleep(50000);
	}
	remove_dir();
}

static void make_dir(void)
{
	snprintf(run.dir, sizeof(run.dir), "%s/frem-XXXXXX", access("/run", W_OK) ? "/tmp" : "/run");
	if (!mkdtemp(run.dir))
		die("%s: %m", run.dir);
	atexit(clean_up);
	snprintf(run.log, sizeof(run.log), "/tmp/frem-restore-XXXXXX.log");
	close(mkostemps(run.log, 4, O_CLOEXEC));
}

/* For frem-hook, which holds CRIU before the processes go on */
static void make_fifos(void)
{
	if (mkfifo(in_dir("stopped"), 0600) || mkfifo(in_dir("go"), 0600))
		die("%s: %m", run.dir);
	/* For both: without a writer, poll() would return at once */
	run.stages = open(in_dir("stopped"), O_RDWR | O_NONBLOCK | O_CLOEXEC);
	run.go = open(in_dir("go"), O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (run.stages < 0 || run.go < 0)
		die("%s: %m", run.dir);
}

static void make_socket(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	strcpy(address.sun_path, in_dir("lazy-pages.socket"));
	run.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (run.listener < 0 || bind(run.listener, (void *)&address, sizeof(address)) || listen(run.listener, 1))
		die("%s: %m", address.sun_path);
}

/* CRIU */

static void spawn_criu(bool lazily)
{
	size_t nr = 0, n = 16 + run.d->nr_options;
	const char **argv;
	int null;

	for (char **one = run.opt->criu; *one; one++)
		n++;
	argv = calloc(n, sizeof(*argv));
	if (!argv)
		die("out of memory");
	argv[nr++] = "criu";
	argv[nr++] = "restore";
	argv[nr++] = "-d";
	argv[nr++] = "-D";
	argv[nr++] = run.d->path;
	argv[nr++] = "-W";
	argv[nr++] = run.dir;
	argv[nr++] = "-o";
	argv[nr++] = run.log;
	argv[nr++] = "--action-script";
	argv[nr++] = part("frem-hook");
	if (lazily)
		argv[nr++] = "--lazy-pages";
	nr += trusted_options(run.d->options, run.d->nr_options, argv + nr);
	for (char **one = run.opt->criu; *one; one++)
		argv[nr++] = *one;

	run.criu = fork();
	if (run.criu < 0)
		die("fork: %m");
	if (!run.criu) {
		null = open("/dev/null", O_RDONLY);
		dup2(null, STDIN_FILENO);
		close(null);
		setenv("FREM_DIR", run.dir, 1);
		setenv("FREM_STAGE", lazily ? "post-restore" : "", 1);
		execvp("criu", (char **)argv);
		_exit(127);
	}
	free(argv);
}

static void stop(void)
{
	unlink(run.log);
	exit(130);
}

/* How CRIU ended. At an interruption it undoes what it has done at its next stage; the second time nobody waits for that. */
static int wait_for_criu(void)
{
	struct pollfd ended = { .fd = syscall(SYS_pidfd_open, run.criu, 0), .events = POLLIN };
	bool refused = false;
	int status;

	/* A signal can come just before poll(): look now and then. */
	while (ended.fd >= 0 && poll(&ended, 1, 200) <= 0) {
		if (interrupted > 1)
			stop();
		if (!interrupted || refused)
			continue;
		refuse();
		refused = true;
		say("interrupted: CRIU undoes it at its next stage; again, and nobody waits for that");
	}
	close(ended.fd);
	if (TEMP_FAILURE_RETRY(waitpid(run.criu, &status, 0)) < 0)
		die("waitpid: %m");
	run.criu = 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		die("criu is missing: install the package criu");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* CRIU's own words, and what to do */
static void complain(int status)
{
	char number[12];
	char *argv[] = { "frem", "explain", run.log, number, NULL };

	snprintf(number, sizeof(number), "%d", status);
	remove_dir();
	exec_part(argv);
}

static struct process *find(pid_t pid)
{
	for (size_t i = 0; i < run.d->nr_processes; i++)
		if (run.d->processes[i].pid == pid)
			return &run.d->processes[i];
	return NULL;
}

/* What CRIU has killed is to be gone, for its numbers. In a PID namespace of their own they are not ours, and CRIU waits itself. */
static void wait_until_gone(void)
{
	if (!run.complete || find(1))
		return;
	for (size_t i = 0, n = 0; i < run.d->nr_processes && n < 100; i++)
		for (; !kill(run.d->processes[i].pid, 0) && n < 100; n++)
			usleep(50000);
}

static void restore_plain(void)
{
	int status;

	wait_until_gone();
	unlink(in_dir("no"));	/* of the attempt before, if there was one */
	spawn_criu(false);
	status = wait_for_criu();
	if (status && interrupted)
		stop();
	if (status)
		complain(status);
}

/* In place of CRIU's daemon */

static int receive_fd(int socket)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	char byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.buf,
		.msg_controllen = sizeof(control.buf),
	};
	struct cmsghdr *c;
	int fd;

	if (recvmsg(socket, &msg, MSG_CMSG_CLOEXEC) < 0)
		return -1;
	c = CMSG_FIRSTHDR(&msg);
	if (!c || c->cmsg_type != SCM_RIGHTS) {
		errno = EPROTO;
		return -1;
	}
	memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

static int attach(struct process *process)
{
	struct uffdio_lazy_attach a = {
		.size = sizeof(a),
		.event_fd = run.event,
		.extents = (uintptr_t)process->lazy,
		.nr_extents = process->nr_lazy,
	};
	int err;

	/* The kernel compares it */
	a.image_size = descriptor_image(run.d, process->image)->size;
	a.image_fd = openat(run.d->dir, process->image, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (a.image_fd < 0)
		return -1;
	err = ioctl(process->uffd, UFFDIO_LAZY_ATTACH, &a);
	close(a.image_fd);
	return err;
}

static void receive(void)
{
	struct process *process;
	int32_t pid;
	ssize_t n;

	if (run.connection < 0) {
		run.connection = accept4(run.listener, NULL, NULL, SOCK_CLOEXEC);
		return;
	}
	n = recv(run.connection, &pid, sizeof(pid), MSG_WAITALL);
	if (n < 0 && errno == EINTR)
		return;
	if (n != sizeof(pid) || pid == FINISHED) {
		close(run.connection);
		run.connection = -1;
		return;
	}
	if (pid < 0)	/* a zombie, which has no memory */
		return;
	process = find(pid);
	if (!process) {
		why(run.refused, "process %d is not in the descriptor", pid);
	} else {
		process->uffd = receive_fd(run.connection);
		if (process->uffd < 0 || (process->nr_lazy && attach(process)))
			why(run.refused, "process %d: %s", pid, strerror(errno));
		/* CRIU waits for its events to be read while it is open */
		if (process->uffd >= 0 && (!process->nr_lazy || *run.refused)) {
			close(process->uffd);
			process->uffd = -1;
		}
	}
	if (*run.refused)
		refuse();
}

static int load(struct process *process, const struct uffdio_range *ranges, size_t nr, int flags)
{
	struct uffdio_lazy_load l = {
		.size = sizeof(l),
		.flags = flags,
		.ranges = (uintptr_t)ranges,
		.nr_ranges = nr,
	};

	return ioctl(process->uffd, UFFDIO_LAZY_LOAD, &l);
}

static int load_touched(struct process *process, int flags)
{
	struct uffdio_range *ranges = calloc(process->nr_touched + 1, sizeof(*ranges));
	size_t nr, done = 0;
	int err;

	if (!ranges)
		die("out of memory");
	for (size_t i = 0; i < process->nr_touched; i++)
		ranges[i] = (struct uffdio_range){ process->touched[i].addr, process->touched[i].len };
	/* What does not come first comes later: only those who wait for it need all */
	do {
		nr = process->nr_touched - done < RANGES_MAX ? process->nr_touched - done : RANGES_MAX;
		err = load(process, ranges + done, nr, flags);
		done += nr;
	} while (!err && !(flags & UFFD_LAZY_FIRST) && done < process->nr_touched);
	free(ranges);
	return err;
}

static bool is_lazy(const struct process *process)
{
	return process->uffd >= 0;
}

static struct process *end_of_processes(void)
{
	return run.d->processes + run.d->nr_processes;
}

/* Of all processes what they touch first, before any runs. */
static void preload(void)
{
	int err = 0;

	for (struct process *p = run.d->processes; p < end_of_processes() && !err; p++)
		if (is_lazy(p))
			err = load_touched(p, 0);
	if (!err)
		return;
	if (interrupted)
		stop();
	why(run.broken, "%s", strerror(errno));
}

/*
 * Of all processes what they touch first, then the rest. Not before CRIU has taken its own memory out of them, or one would
 * be in the way of the other.
 */
static void start_loading(void)
{
	int err;

	run.started = true;
	for (struct process *p = run.d->processes; p < end_of_processes(); p++) {
		if (!is_lazy(p))
			continue;
		err = run.opt->preload ? load(p, NULL, 0, UFFD_LAZY_START) : load_touched(p, UFFD_LAZY_FIRST | UFFD_LAZY_START);
		/* It has ended, or takes no list. To let go of it starts it, too; an error of the image is told later */
		if (err && errno != EIO && errno != EBUSY) {
			close(p->uffd);
			p->uffd = -1;
		}
	}
}

/*
 * CRIU has made all processes, and none has run yet. This is the last stage at which CRIU ends them when we refuse, or have
 * died: all of them have to be the kernel's by now, for what it does not know of would be zeros.
 */
static void complete(void)
{
	const struct process *p;
	const char *damage;
	char text[16];

	run.complete = read(run.stages, text, sizeof(text)) > 0;
	lap(CRIU);
	for (p = run.d->processes; p < end_of_processes() && !*run.refused; p++)
		if (p->nr_lazy && !is_lazy(p))
			why(run.refused, "process %d: CRIU has not handed over its memory", p->pid);
	if (!*run.refused && run.opt->preload)
		preload();
	damage = ahead_stop();
	if (damage)
		why(run.broken, "%s", damage);
	if (*run.refused || *run.broken)
		refuse();
	lap(TOUCHED);
	release();
}

/* Until CRIU has ended. */
static int serve(void)
{
	enum { ENDED, STAGE, SOCKET };
	struct pollfd fds[] = {
		[ENDED] = { .fd = syscall(SYS_pidfd_open, run.criu, 0), .events = POLLIN },
		[STAGE] = { .fd = run.stages, .events = POLLIN },
		[SOCKET] = { .events = POLLIN },
	};

	if (fds[ENDED].fd < 0)
		die("pidfd_open: %m");
	for (;;) {
		fds[SOCKET].fd = run.connection >= 0 ? run.connection : run.listener;
		if (poll(fds, 3, -1) < 0 && errno != EINTR)
			die("poll: %m");
		/* Once released it cannot be undone, but is over soon */
		if (interrupted > run.released)
			stop();
		/* First: what CRIU has sent before it came to the stage */
		if (fds[SOCKET].revents) {
			receive();
		} else if (fds[STAGE].revents & POLLIN) {
			if (!run.released) {
				complete();
				continue;
			}
			/* They are about to run */
			fds[STAGE].fd = -1;
			if (!*run.refused && !*run.broken)
				start_loading();
		} else if (fds[ENDED].revents) {
			close(fds[ENDED].fd);
			return wait_for_criu();
		}
	}
}

/* Of all processes */
static void add_up(struct uffdio_lazy_stat *total)
{
	static const unsigned char order[] = { [UFFD_LAZY_COMPLETE] = 0, [UFFD_LAZY_ATTACHED] = 1, [UFFD_LAZY_LOADING] = 2,
					       [UFFD_LAZY_FAILED] = 3 };
	struct uffdio_lazy_stat one;
	struct process *p;

	*total = (struct uffdio_lazy_stat){ .state = UFFD_LAZY_COMPLETE };
	for (p = run.d->processes; p < end_of_processes(); p++) {
		one.size = sizeof(one);
		if (!is_lazy(p) || ioctl(p->uffd, UFFDIO_LAZY_STAT, &one))
			continue;
		/* It has ended, and misses nothing */
		if (one.error == ESRCH) {
			one.state = UFFD_LAZY_COMPLETE;
			one.error = 0;
		}
		if (order[one.state] > order[total->state])
			total->state = one.state;
		if (!total->error)
			total->error = one.error;
		total->total += one.total;
		total->missing += one.missing;
		total->removed += one.removed;
		total->by_fault += one.by_fault;
		total->by_around += one.by_around;
		total->by_load += one.by_load;
		total->by_background += one.by_background;
		total->faults += one.faults;
		total->faults_io += one.faults_io;
		total->faults_wait += one.faults_wait;
		total->fault_ns += one.fault_ns;
		if (one.fault_max_ns > total->fault_max_ns)
			total->fault_max_ns = one.fault_max_ns;
		total->reads += one.reads;
		if (!total->attach_ns || one.attach_ns < total->attach_ns)
			total->attach_ns = one.attach_ns;
		if (!total->start_ns || one.start_ns < total->start_ns)
			total->start_ns = one.start_ns;
		if (one.end_ns > total->end_ns)
			total->end_ns = one.end_ns;
	}
}

static void die_if_lost(const struct uffdio_lazy_stat *stat)
{
	if (stat->state != UFFD_LAZY_FAILED)
		return;
	unlink(run.log);
	die("loading failed (%s): the process is killed by what it misses; the kernel's log says why. frem verify checks the images",
	    strerror(stat->error));
}

/* Returns when the processes run, or why CRIU alone may run them: nothing does yet. */
static const char *restore_lazily(void)
{
	struct uffdio_lazy_stat stat;
	int status;

	if (run.opt->plain)
		return "asked for";
	if (access("/proc/self/lazy_loader", F_OK))
		return "this kernel has no lazy loader (CONFIG_LAZY_LOADER)";
	if (run.d->why_plain)
		return run.d->why_plain;
	ahead_start(run.d);
	make_fifos();
	make_socket();
	run.event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (run.event < 0)
		die("eventfd: %m");
	spawn_criu(true);
	lap(PREPARED);
	status = serve();
	lap(RESUMED);
	if (*run.refused)
		return run.refused;
	if (*run.broken) {
		unlink(run.log);
		die("the images cannot be read, and nothing runs: %s; the kernel's log and frem verify say more", run.broken);
	}
	/* Perhaps for a page that is there before its turn; what is wrong in any case it says once more */
	if (status && !run.released)
		return "CRIU failed to restore with pages to come later";
	if (status) {
		/* A process that misses something may have died of it before CRIU was through */
		add_up(&stat);
		die_if_lost(&stat);
		complain(status);
	}
	if (!run.started)
		start_loading();
	return NULL;
}

/* Afterwards */

/* Until everything is loaded. */
static void follow(struct uffdio_lazy_stat *stat)
{
	static const char bar[] = "########################################";
	bool show = isatty(STDERR_FILENO) && !run.opt->json;
	struct pollfd event = { .fd = run.event, .events = POLLIN };
	double done;
	uint64_t count;

	for (add_up(stat); stat->state == UFFD_LAZY_ATTACHED || stat->state == UFFD_LAZY_LOADING; add_up(stat)) {
		done = 1 - stat->missing / (stat->total ?: 1.0);
		if (show)
			fprintf(stderr, "\rfrem: [%-40.*s] %3.0f%% of %.1f MB, %" PRIu64 " faults, %.1f s", (int)(40 * done), bar,
				100 * done, stat->total * PAGE / 1e6, (uint64_t)stat->faults, now() - run.begin);
		if (poll(&event, 1, 200) > 0 && read(run.event, &count, sizeof(count)) < 0 && errno != EAGAIN)
			die("eventfd: %m");
		if (interrupted)
			exit(130);	/* the kernel goes on */
	}
	if (show)
		fputs("\r\033[K", stderr);
	die_if_lost(stat);
}

static void print_stat(const struct uffdio_lazy_stat *s)
{
	printf(", \"loader\": {\"state\": \"%s\", \"error\": %d, \"total\": %" PRIu64 ", \"missing\": %" PRIu64
	       ", \"removed\": %" PRIu64, state_names[s->state], s->error, (uint64_t)s->total, (uint64_t)s->missing,
	       (uint64_t)s->removed);
	printf(", \"by_fault\": %" PRIu64 ", \"by_around\": %" PRIu64 ", \"by_load\": %" PRIu64 ", \"by_background\": %" PRIu64,
	       (uint64_t)s->by_fault, (uint64_t)s->by_around, (uint64_t)s->by_load, (uint64_t)s->by_background);
	printf(", \"faults\": %" PRIu64 ", \"faults_io\": %" PRIu64 ", \"faults_wait\": %" PRIu64 ", \"fault_ns\": %" PRIu64
	       ", \"fault_max_ns\": %" PRIu64, (uint64_t)s->faults, (uint64_t)s->faults_io, (uint64_t)s->faults_wait,
	       (uint64_t)s->fault_ns, (uint64_t)s->fault_max_ns);
	printf(", \"reads\": %" PRIu64 ", \"attach_ns\": %" PRIu64 ", \"start_ns\": %" PRIu64 ", \"end_ns\": %" PRIu64 "}",
	       (uint64_t)s->reads, (uint64_t)s->attach_ns, (uint64_t)s->start_ns, (uint64_t)s->end_ns);
}

static void print_json(const char *reason, double running, double loaded, const struct uffdio_lazy_stat *stat)
{
	printf("{\"pid\": %ld, \"mode\": \"%s\", ", run.d->pid, reason ? "plain" : "lazy");
	if (reason) {
		print_string("why", reason);
		fputs(", ", stdout);
	}
	printf("\"bytes\": %" PRIu64 ", \"touched_bytes\": %" PRIu64 ", \"running_s\": %.3f, \"phases\": {", run.d->bytes,
	       run.d->touched_bytes, running);
	for (enum lap i = CHECKED; i < (reason ? PREPARED : LAPS); i++)
		printf("%s\"%s\": %.3f", i ? ", " : "", lap_names[i], run.laps[i]);
	putchar('}');
	if (loaded)
		printf(", \"loaded_s\": %.3f", loaded);
	if (loaded && !reason)
		print_stat(stat);
	puts("}");
}

static void interrupt(int sig)
{
	(void)sig;
	interrupted++;
}

int restore(const char *dir, const struct restore_options *opt)
{
	static struct descriptor d;
	struct sigaction sa = { .sa_handler = interrupt };
	struct uffdio_lazy_stat stat = {};
	double running, loaded = 0;
	const char *reason, *damage;
	char path[PATH_MAX];

	run.begin = run.last = now();
	run.d = &d;
	signal(SIGCHLD, SIG_DFL);	/* ignored, it would hide how CRIU ends */
	run.opt = opt;
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	/* Ignored, it is nohup's wish */
	if (signal(SIGHUP, SIG_IGN) != SIG_IGN)
		sigaction(SIGHUP, &sa, NULL);
	snprintf(path, sizeof(path), "%s:/usr/sbin:/usr/local/sbin", getenv("PATH") ?: "/usr/bin:/bin");
	setenv("PATH", path, 1);

	descriptor_load(&d, dir);
	descriptor_check(&d, opt->check);
	lap(CHECKED);
	make_dir();
	if (opt->set_back)
		files_set_back(&d);
	reason = restore_lazily();
	if (interrupted && reason)
		stop();
	if (reason) {
		say("CRIU's own restore, which reads everything first: %s", reason);
		restore_plain();
	}
	running = now() - run.begin;
	unlink(run.log);
	if (reason) {
		loaded = running;
	} else if (!opt->detach) {
		follow(&stat);
		loaded = now() - run.begin;
	}
	damage = opt->verify ? ahead_check_rest(&d) : ahead_stop();
	if (damage)
		die("%s/%s, and the process runs with that: end it; frem verify tells which checkpoints are whole", d.path, damage);
	if (opt->json) {
		print_json(reason, running, loaded, &stat);
		return EXIT_SUCCESS;
	}
	printf("process %ld runs after %.3f s", d.pid, running);
	if (loaded)
		printf(", loaded after %.3f s", loaded);
	if (loaded && !reason)
		printf("; %" PRIu64 " faults", (uint64_t)stat.faults);
	putchar('\n');
	return EXIT_SUCCESS;
}
