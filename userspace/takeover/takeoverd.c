// SPDX-License-Identifier: GPL-2.0-or-later
/* takeoverd: makes services those of two hosts, and keeps the replies that the primary logs. See takeoverd(8). */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "record.h"
#include "takeoverd.h"

#define CONFIG		"/etc/perdure/takeover.conf"
#define EVENTS		64

struct config config;
const char *verdicts;
uint64_t ticked_at;
static int loop = -1;
static struct epoll_event ready[EVENTS];
static int ready_count, ready_at;
static bool stopping;

void say(int level, const char *format, ...)
{
	static int journal = -1;
	char line[1024];
	va_list args;

	if (journal < 0)
		journal = getenv("JOURNAL_STREAM") != NULL;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	if (journal)
		fprintf(stderr, "<%d>%s\n", level, line);
	else
		fprintf(stderr, "takeoverd: %s\n", line);
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return t.tv_sec * SECOND_NS + t.tv_nsec;
}

void *must_alloc(size_t size)
{
	void *p = calloc(1, size);

	if (!p) {
		say(LOG_CRIT, "there is no memory");
		abort();	/* and starts anew: all that matters is in the kernel, and in files */
	}
	return p;
}

int watch_add(struct watch *watch, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = watch };

	return epoll_ctl(loop, EPOLL_CTL_ADD, watch->fd, &event);
}

int accept_spared(int listener, int flags)
{
	static int spare = -1;
	static bool said;
	int fd = accept4(listener, NULL, NULL, flags);

	if (fd < 0 && (errno == EMFILE || errno == ENFILE) && spare >= 0) {
		if (!said)
			say(LOG_ERR, "there are no descriptors left: who connects is hung up on");
		said = true;
		close(spare);
		fd = accept4(listener, NULL, NULL, flags);
		if (fd >= 0)
			close(fd);
		fd = -1;
		spare = -1;
	} else if (fd >= 0) {
		said = false;
	}
	if (spare < 0)
		spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return fd;
}

void watch_change(struct watch *watch, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = watch };

	epoll_ctl(loop, EPOLL_CTL_MOD, watch->fd, &event);
}

void watch_remove(struct watch *watch)
{
	/* What has been reported of it already is not its successor's */
	for (int i = ready_at; i < ready_count; i++)
		if (ready[i].data.ptr == watch)
			ready[i].data.ptr = NULL;
	epoll_ctl(loop, EPOLL_CTL_DEL, watch->fd, NULL);
}

void watch_close(struct watch *watch)
{
	watch_remove(watch);
	close(watch->fd);
}

/* sd_notify(3) */
static void notify(const char *text)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd;

	if (!path || (*path != '/' && *path != '@') || strlen(path) >= sizeof(at.sun_path))
		return;
	memcpy(at.sun_path, path, strlen(path));
	if (*path == '@')
		at.sun_path[0] = 0;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0) {
		sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&at, offsetof(struct sockaddr_un, sun_path) + strlen(path));
		close(fd);
	}
}

static void signal_ready(struct watch *watch, uint32_t events)
{
	struct signalfd_siginfo info;

	(void)events;
	if (read(watch->fd, &info, sizeof(info)) == sizeof(info))
		stopping = true;
}

static struct watch signals = { -1, signal_ready };

static int signals_start(void)
{
	sigset_t set;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signals.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return signals.fd < 0 || watch_add(&signals, EPOLLIN) ? -1 : 0;
}

static void tick(void)
{
	const uint64_t now = now_ns(), late = now - ticked_at;
	static uint64_t watched_at;
	struct service *svc;

	if (late < TICK_NS)
		return;
	ticked_at = now;
	if (late > TICK_NS + PAUSED_NS) {
		woken_at = now;
		say(LOG_WARNING, "this host has stood still for %llu ms", (unsigned long long)(late / 1000000));
		for (svc = services; svc; svc = svc->next)
			svc->asked_at = 0;
	}
	peer_tick(now);
	local_tick();
	services_tick(now);
	store_tick(now);
	if (now - watched_at >= SECOND_NS) {
		watched_at = now;
		metrics_tick();
		notify("WATCHDOG=1");
	}
}

static void run(void)
{
	ticked_at = now_ns();
	while (!stopping) {
		const uint64_t past = (now_ns() - ticked_at) / 1000000;

		ready_count = epoll_wait(loop, ready, EVENTS, past < TICK_NS / 1000000 ? TICK_NS / 1000000 - past : 0);
		for (ready_at = 0; ready_at < ready_count; ready_at++) {
			struct watch *watch;

			/* Before what has come: it is known to have come after this host stood still. It may end some. */
			tick();
			watch = ready[ready_at].data.ptr;
			if (watch)
				watch->ready(watch, ready[ready_at].events);
		}
		ready_count = 0;
		tick();
		services_settle();
	}
}

static void print_line(void *arg, const char *text)
{
	fprintf(arg, "%s\n", text);
}

static int usage(FILE *to, int status)
{
	fprintf(to, "usage: takeoverd [--config FILE] [--check]\n\n"
		"  -c, --config FILE  instead of " CONFIG "\n"
		"  -n, --check        reads it, looks at this host, and says what is wrong\n"
		"  -V, --version\n");
	return status;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "config", required_argument, NULL, 'c' }, { "check", no_argument, NULL, 'n' }, { "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' }, { NULL },
	};
	struct rlimit files;
	const char *path = CONFIG;
	char error[ERROR_MAX];
	bool check = false;
	int c;

	while ((c = getopt_long(argc, argv, "c:nhV", options, NULL)) != -1)
		switch (c) {
		case 'c':
			path = optarg;
			break;
		case 'n':
			check = true;
			break;
		case 'V':
			printf("takeoverd %s\n", PERDURE_VERSION);
			return 0;
		case 'h':
			return usage(stdout, 0);
		default:
			return usage(stderr, 2);
		}
	if (optind != argc)
		return usage(stderr, 2);
	if (config_read(&config, path, error)) {
		say(LOG_ERR, "%s", error);
		return 2;
	}
	if (check) {
		c = host_check(print_line, stdout) ? 1 : 0;
		config_free(&config);
		return c;
	}
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	srandom(now_ns() ^ getpid());
	umask(022);
	loop = epoll_create1(EPOLL_CLOEXEC);
	verdicts = record_beside(config.control);
	if (loop < 0 || !verdicts || signals_start()) {
		say(LOG_ERR, "%s", strerror(errno));
		return 1;
	}
	/* The control socket first: whose it is runs alone */
	/* What the peer asks meanwhile waits, and is not refused */
	if (local_listen() || peer_listen() || services_start() || store_open())
		return 1;
	metrics_start();
	notify("READY=1");
	say(LOG_NOTICE, "%s is there", config.name);
	run();
	notify("STOPPING=1");
	services_stop();
	metrics_stop();
	unlink(config.control);
	return 0;
}
