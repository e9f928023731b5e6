// SPDX-License-Identifier: GPL-2.0-or-later
/* A server for the tests: each method is one thing that a method can do. service CONFIG */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <replay.h>

/* "NAME BY": a shared number. Says the sum, and how often this session has asked. */
static int add(struct replay_call *call, const void *body, size_t size, void *arg)
{
	char text[300], name[256];
	int64_t sum, asked = 0;
	long long by;

	(void)arg;
	snprintf(text, sizeof(text), "%.*s", (int)size, (const char *)body);
	if (sscanf(text, "%255s %lld", name, &by) != 2)
		return replay_reply_text(call, "NAME BY\n"), 400;
	if (replay_get_number(call, "asked", &asked) && errno != ENOENT)
		return 0;
	asked++;
	if (replay_set_number(call, "asked", asked) || replay_add(call, name, by, &sum))
		return errno == EINVAL ? 422 : 0;
	replay_reply_text(call, "%lld %lld\n", (long long)sum, (long long)asked);
	return 200;
}

/* The name of a shared number */
static int look(struct replay_call *call, const void *body, size_t size, void *arg)
{
	char name[256];
	int64_t n;

	(void)arg;
	snprintf(name, sizeof(name), "%.*s", (int)size, (const char *)body);
	if (!replay_read_number(call, name, &n)) {
		replay_reply_text(call, "%lld\n", (long long)n);
		return 200;
	}
	return errno == ENOENT ? 404 : errno == EINVAL ? 422 : 0;
}

/* "SERVICE METHOD BODY": says what it says */
static int forward(struct replay_call *call, const void *body, size_t size, void *arg)
{
	char text[1024], service[256], method[256];
	const void *reply;
	size_t reply_size;
	int status, at = 0;

	(void)arg;
	snprintf(text, sizeof(text), "%.*s", (int)size, (const char *)body);
	if (sscanf(text, "%255s %255s %n", service, method, &at) != 2)
		return replay_reply_text(call, "SERVICE METHOD BODY\n"), 400;
	if (replay_call_method(call, service, method, text + at, strlen(text + at), &status, &reply, &reply_size)) {
		if (errno == ECANCELED)
			return 0;
		replay_reply_text(call, "%s\n", strerrorname_np(errno));
		return 502;
	}
	replay_reply(call, "text/plain", reply, reply_size);
	return status;
}

/* Time, random numbers, a uuid */
static int values(struct replay_call *call, const void *body, size_t size, void *arg)
{
	unsigned int random;
	uint64_t ns;
	char uuid[37];

	(void)body;
	(void)size;
	(void)arg;
	if (replay_time(call, &ns) || replay_random(call, &random, sizeof(random)) || replay_uuid(call, uuid))
		return 0;
	replay_reply_text(call, "%llu %u %s\n", (unsigned long long)ns, random, uuid);
	return 200;
}

/* Gives back what it gets */
static int echo(struct replay_call *call, const void *body, size_t size, void *arg)
{
	(void)arg;
	return replay_reply(call, "application/x-echo", body, size) ? 413 : 200;
}

/* Milliseconds to sleep: first, then adds 1 to "slept" */
static int slow(struct replay_call *call, const void *body, size_t size, void *arg)
{
	struct timespec t = { 0 };
	char text[32];
	int64_t sum;
	long ms;

	(void)arg;
	snprintf(text, sizeof(text), "%.*s", (int)size, (const char *)body);
	ms = strtol(text, NULL, 10);
	t.tv_sec = ms / 1000;
	t.tv_nsec = ms % 1000 * 1000000;
	if (!replay_replaying(call))
		nanosleep(&t, NULL);
	if (replay_add(call, "slept", 1, &sum))
		return 0;
	replay_reply_text(call, "%lld\n", (long long)sum);
	return 200;
}

/* "NAME VALUE": a shared text, or a number if it is one */
static int put(struct replay_call *call, const void *body, size_t size, void *arg)
{
	char text[300], name[256];
	int at = 0;
	char *end;
	long long n;

	(void)arg;
	snprintf(text, sizeof(text), "%.*s", (int)size, (const char *)body);
	if (sscanf(text, "%255s %n", name, &at) != 1)
		return replay_reply_text(call, "NAME VALUE\n"), 400;
	n = strtoll(text + at, &end, 10);
	if (*end ? replay_write(call, name, text + at, strlen(text + at)) : replay_write_number(call, name, n))
		return 0;
	return 200;
}

/* Not the same twice: what a method must not be */
static int fickle(struct replay_call *call, const void *body, size_t size, void *arg)
{
	char name[40];

	(void)body;
	(void)size;
	(void)arg;
	snprintf(name, sizeof(name), "pid-%d", getpid());
	if (replay_add(call, name, 1, NULL))
		return 0;
	return 200;
}

/* "NAME SERVICE METHOD BODY": writes what the service says to the shared variable NAME, and says it */
static int keep(struct replay_call *call, const void *body, size_t size, void *arg)
{
	char text[1024], name[256], service[256], method[256];
	const void *reply;
	size_t reply_size;
	int status, at = 0;

	(void)arg;
	snprintf(text, sizeof(text), "%.*s", (int)size, (const char *)body);
	if (sscanf(text, "%255s %255s %255s %n", name, service, method, &at) != 3)
		return replay_reply_text(call, "NAME SERVICE METHOD BODY\n"), 400;
	if (replay_call_method(call, service, method, text + at, strlen(text + at), &status, &reply, &reply_size) ||
	    replay_write(call, name, reply, reply_size))
		return 0;
	replay_reply(call, "text/plain", reply, reply_size);
	return status;
}

/* The name of a shared variable: its bytes */
static int show(struct replay_call *call, const void *body, size_t size, void *arg)
{
	const void *value;
	char name[256];
	size_t len;

	(void)arg;
	snprintf(name, sizeof(name), "%.*s", (int)size, (const char *)body);
	if (!replay_read(call, name, &value, &len))
		return replay_reply(call, "text/plain", value, len) ? 0 : 200;
	return errno == ENOENT ? 404 : 0;
}

/* So often it logs 1000 random bytes, and sleeps a little: says their sum */
static int chatter(struct replay_call *call, const void *body, size_t size, void *arg)
{
	const struct timespec pause = { .tv_nsec = 2000000 };
	unsigned char bytes[1000];
	unsigned long sum = 0;
	char text[32];
	size_t i;
	int n;

	(void)arg;
	snprintf(text, sizeof(text), "%.*s", (int)size, (const char *)body);
	for (n = atoi(text); n > 0; n--) {
		if (replay_random(call, bytes, sizeof(bytes)))
			return 0;
		for (i = 0; i < sizeof(bytes); i++)
			sum += bytes[i];
		if (!replay_replaying(call))
			nanosleep(&pause, NULL);
	}
	replay_reply_text(call, "%lu\n", sum);
	return 200;
}

/* Microseconds of the processor that it takes, if it is replayed. Says what "add" does. */
static int burn(struct replay_call *call, const void *body, size_t size, void *arg)
{
	long long asked = 0, until;
	struct timespec t;
	const void *value;
	char text[32];
	int64_t sum;

	(void)arg;
	snprintf(text, sizeof(text), "%.*s", (int)size, (const char *)body);
	if (!replay_get(call, "asked", &value, NULL))
		memcpy(&asked, value, sizeof(asked));
	asked++;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	until = t.tv_sec * 1000000000ll + t.tv_nsec + atoll(text) * 1000;
	while (replay_replaying(call) && t.tv_sec * 1000000000ll + t.tv_nsec < until)
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	if (replay_set(call, "asked", &asked, sizeof(asked)) || replay_add(call, "burnt", 1, &sum))
		return 0;
	replay_reply_text(call, "%lld %lld\n", (long long)sum, asked);
	return 200;
}

int main(int argc, char **argv)
{
	struct replay_server *server;
	const char *version = getenv("ADD_VERSION");
	int status;

	if (argc != 2)
		return 2;
	server = replay_new();
	if (!server)
		return 2;
	if (replay_method(server, "add", version ? atoi(version) : 1, add, NULL) || replay_method(server, "look", 1, look, NULL) ||
	    replay_method(server, "forward", 1, forward, NULL) || replay_method(server, "values", 1, values, NULL) ||
	    replay_method(server, "echo", 1, echo, NULL) || replay_method(server, "slow", 1, slow, NULL) ||
	    replay_method(server, "put", 1, put, NULL) || replay_method(server, "fickle", 1, fickle, NULL) ||
	    replay_method(server, "keep", 1, keep, NULL) || replay_method(server, "show", 1, show, NULL) ||
	    replay_method(server, "burn", 1, burn, NULL) || replay_method(server, "chatter", 1, chatter, NULL)) {
		fprintf(stderr, "service: %s\n", replay_error(server));
		return 2;
	}
	status = replay_main(server, argv[1]);
	replay_free(server);
	return status;
}
