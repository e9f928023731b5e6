// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * restart [guest] ROUNDS TARGET NAME [TARGET NAME]...
 *
 * From the fault to the first line of main() of the new generation: the kernel's restart in place beside a supervisor
 * that sees the death with waitpid() and starts the same binary again. All ways alternate, round by round.
 */
#include <arpa/inet.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "bench.h"
#include "restart.h"

#define FIRST_FILE	100
#define FIRST_SOCKET	2000
#define FIRST_PEER	3000
#define WARM_UP		3

extern char **environ;

enum way {
	IN_PLACE,	/* ours */
	SPAWN,		/* waitpid + posix_spawn; the files die with the process */
	FORK,		/* waitpid + fork + exec; the same */
	FD_STORE,	/* waitpid + posix_spawn; the supervisor has kept a copy of every file, the child inherits them */
	NR_WAYS,
};

static const char *const way_name[NR_WAYS] = { "perdure", "posix_spawn", "fork+exec", "posix_spawn, fds kept" };

struct channels {
	const char *name;
	int files;
	int sockets;
};

static const struct channels channel_sets[] = {
	{ "3 fds", 0, 0 },
	{ "100 fds", 100, 0 },
	{ "1000 fds", 1000, 0 },
	{ "1000 fds, 100 sockets with data", 1000, 100 },
};

struct results {
	struct samples total[NR_WAYS];
	struct samples death, start;			/* SPAWN's parts */
	struct samples detect, retain, exec, restore, user;	/* IN_PLACE's */
};

static struct page *page;
static char page_fd[12];

static void move_fd(int from, int to)
{
	TRY(dup2(from, to));
	close(from);
}

/* The service's channels, opened here so that every way starts from the same ones. */
static void open_channels(const struct channels *ch)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	char data[SOCKET_BYTES] = "";
	int listener;

	for (int i = 0; i < ch->files; i++)
		move_fd(TRY(open("/dev/null", O_RDWR)), FIRST_FILE + i);
	if (!ch->sockets)
		return;
	listener = TRY(socket(AF_INET, SOCK_STREAM, 0));
	TRY(bind(listener, (struct sockaddr *)&addr, sizeof(addr)));
	TRY(listen(listener, 128));
	TRY(getsockname(listener, (struct sockaddr *)&addr, &len));
	for (int i = 0; i < ch->sockets; i++) {
		move_fd(TRY(socket(AF_INET, SOCK_STREAM, 0)), FIRST_PEER + i);
		TRY(fcntl(FIRST_PEER + i, F_SETFD, FD_CLOEXEC));
		TRY(connect(FIRST_PEER + i, (struct sockaddr *)&addr, sizeof(addr)));
		move_fd(TRY(accept(listener, NULL, NULL)), FIRST_SOCKET + i);
		TRY(write(FIRST_PEER + i, data, sizeof(data)));
	}
	close(listener);
}

static void close_channels(const struct channels *ch)
{
	for (int i = 0; i < ch->files; i++)
		close(FIRST_FILE + i);
	for (int i = 0; i < ch->sockets; i++)
		close(FIRST_SOCKET + i);
}

static pid_t start(enum way way, char *const argv[])
{
	pid_t pid;

	if (way == FORK) {
		pid = TRY(fork());
		if (!pid) {
			execve(argv[0], argv, environ);
			_exit(127);
		}
	} else {
		errno = posix_spawn(&pid, argv[0], NULL, NULL, argv, environ);
		if (errno)
			die(argv[0]);
	}
	return pid;
}

static void one_round(enum way way, char *target, const struct channels *ch, struct results *res)
{
	char go_fd[12], nsockets[12], first[12];
	char *const argv_old[] = { target, (char *)"old", page_fd, go_fd, first, nsockets,
				   way == IN_PLACE ? (char *)"1" : (char *)"0", NULL };
	char *const argv_new[] = { target, (char *)"new", page_fd, NULL };
	uint64_t seen;
	int go[2], status;
	pid_t pid;

	memset(page, 0, sizeof(*page));
	TRY(pipe2(go, O_CLOEXEC));
	TRY(fcntl(go[0], F_SETFD, 0));
	open_channels(ch);
	snprintf(go_fd, sizeof(go_fd), "%d", go[0]);
	snprintf(first, sizeof(first), "%d", FIRST_SOCKET);
	snprintf(nsockets, sizeof(nsockets), "%d", ch->sockets);

	pid = start(SPAWN, argv_old);
	if (way != FD_STORE)
		close_channels(ch);
	close(go[0]);
	TRY(write(go[1], "", 1));
	TRY(waitpid(pid, &status, 0));
	seen = now_ns();

	if (way == IN_PLACE) {
		if (status || page->info.generation != 2 || page->unread != (uint64_t)ch->sockets * SOCKET_BYTES) {
			fprintf(stderr, "bench: no restart: status %#x, generation %llu, %llu bytes to read again\n", status,
				(unsigned long long)page->info.generation, (unsigned long long)page->unread);
			exit(1);
		}
	} else {
		if (!WIFSIGNALED(status)) {
			fprintf(stderr, "bench: %s did not die of its fault: status %#x\n", target, status);
			exit(1);
		}
		pid = start(way, argv_new);
		TRY(waitpid(pid, &status, 0));
		if (status)
			die("the new generation failed");
	}
	close(go[1]);
	if (way == FD_STORE)
		close_channels(ch);
	for (int i = 0; i < ch->sockets; i++)
		close(FIRST_PEER + i);

	if (!res)
		return;
	add_sample(&res->total[way], page->main_ns - page->fault_ns);
	if (way == SPAWN) {
		add_sample(&res->death, seen - page->fault_ns);
		add_sample(&res->start, page->main_ns - seen);
	}
	if (way == IN_PLACE) {
		struct reg_info *r = &page->info;
		double kernel = r->retain_ns + r->exec_ns + r->restore_ns;

		add_sample(&res->detect, r->fault_time_ns - page->fault_ns);
		add_sample(&res->retain, r->retain_ns);
		add_sample(&res->exec, r->exec_ns);
		add_sample(&res->restore, r->restore_ns);
		add_sample(&res->user, page->main_ns - r->fault_time_ns - kernel);
	}
}

static void measure(char *target, const char *name, const struct channels *ch, int rounds, int first_way)
{
	struct results *res = calloc(1, sizeof(*res));
	char label[100];

	for (int i = -WARM_UP; i < rounds; i++)
		for (int way = first_way; way < NR_WAYS; way++)
			one_round(way, target, ch, i < 0 ? NULL : res);

	snprintf(label, sizeof(label), "%s, %s", name, ch->name);
	for (int way = first_way; way < NR_WAYS; way++)
		report(label, way_name[way], &res->total[way]);
	report(label, "death", &res->death);
	report(label, "start", &res->start);
	report(label, "detect", &res->detect);
	report(label, "retain", &res->retain);
	report(label, "exec", &res->exec);
	report(label, "restore", &res->restore);
	report(label, "user", &res->user);
	free(res);
}

int main(int argc, char **argv)
{
	int fd, rounds, arg = 1, first_way = have_zlr() ? IN_PLACE : SPAWN;

	bench_setup(argc, argv);
	if (arg < argc && !strcmp(argv[arg], "guest"))
		arg++;
	if (argc - arg < 3 || (argc - arg) % 2 == 0) {
		fprintf(stderr, "usage: %s [guest] ROUNDS TARGET NAME [TARGET NAME]...\n", argv[0]);
		return 2;
	}
	rounds = atoi(argv[arg++]);
	fd = TRY(memfd_create("bench", 0));
	TRY(ftruncate(fd, sizeof(*page)));
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		die("mapping the shared page");
	snprintf(page_fd, sizeof(page_fd), "%d", fd);

	for (; arg < argc; arg += 2)
		for (size_t i = 0; i < sizeof(channel_sets) / sizeof(channel_sets[0]); i++)
			measure(argv[arg], argv[arg + 1], &channel_sets[i], rounds, first_way);
	return 0;
}
