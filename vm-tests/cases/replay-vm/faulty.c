// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A server that faults. faulty CONFIG FLAG: the file FLAG says where, once: "early" or "late", before or behind the change that a
 * request makes; "recovery", while a request is replayed; "pool", in a thread of the HTTP library or another that is not a method's.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <replay.h>

static const char *flag;

static void fault_at(const char *place)
{
	char path[300];

	snprintf(path, sizeof(path), "%s.%s", flag, place);
	if (!unlink(path))
		*(volatile int *)NULL = 0;
}

/* As the other service's: a shared number, and how often this session has asked */
static int add(struct replay_call *call, const void *body, size_t size, void *arg)
{
	char text[300], name[256];
	const void *value;
	long long by, asked = 0;
	int64_t sum;

	(void)arg;
	snprintf(text, sizeof(text), "%.*s", (int)size, (const char *)body);
	if (sscanf(text, "%255s %lld", name, &by) != 2)
		return 400;
	fault_at(replay_replaying(call) ? "recovery" : "early");
	if (!replay_get(call, "asked", &value, NULL))
		memcpy(&asked, value, sizeof(asked));
	else if (errno != ENOENT)
		return 0;
	asked++;
	if (replay_set(call, "asked", &asked, sizeof(asked)) || replay_add(call, name, by, &sum))
		return 0;
	if (!replay_replaying(call))
		fault_at("late");
	replay_reply_text(call, "%lld %lld\n", (long long)sum, asked);
	return 200;
}

/* It has nothing to do with requests */
static void *idle(void *arg)
{
	for (;;) {
		usleep(2000);
		fault_at("idle");
	}
	return arg;
}

int main(int argc, char **argv)
{
	struct replay_server *server = replay_new();
	pthread_t thread;
	sigset_t set;
	int status;

	if (argc != 3 || !server)
		return 2;
	flag = argv[2];
	/* They are for replay_main() */
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	if (replay_method(server, "add", 1, add, NULL) || pthread_create(&thread, NULL, idle, NULL))
		return 2;
	status = replay_main(server, argv[1]);
	replay_free(server);
	return status;
}
