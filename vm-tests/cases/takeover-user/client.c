// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A server's module: does what it reads, a line each, and says what came of it. argv: address and port of the service. Its connection has
 * no client; what it is, the preloaded kernel says.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <takeover.h>

#define REPLY_MAX	100000

static const char *address;
static int port;
static int fd, other;

/* A connection one of whose ends has the service's name */
static void connection(void)
{
	const int one = 1, v6 = strchr(address, ':') != NULL;
	struct sockaddr_in6 at6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) }, there = { 0 };
	struct sockaddr_in at4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr *at = v6 ? (struct sockaddr *)&at6 : (struct sockaddr *)&at4;
	socklen_t len = sizeof(there);
	int listener = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	inet_pton(at->sa_family, address, v6 ? (void *)&at6.sin6_addr : (void *)&at4.sin_addr);
	fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	there.sin6_family = at->sa_family;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)) ||
	    bind(fd, at, v6 ? sizeof(at6) : sizeof(at4)) || listen(listener, 1) || getsockname(listener, (struct sockaddr *)&there, &len) ||
	    connect(fd, (struct sockaddr *)&there, len) || (other = accept(listener, NULL, NULL)) < 0) {
		perror("connection");
		exit(1);
	}
	close(listener);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void fill(char *data, size_t size, uint64_t id, uint64_t number)
{
	for (size_t i = 0; i < size; i++)
		data[i] = 'a' + (i / 7 + id * 5 + number) % 26;
}

static void say(int result, double since)
{
	printf("%s %.3f\n", result ? strerrorname_np(errno) : "OK", now() - since);
}

static void wait_for(uint64_t id, uint64_t number, double since)
{
	static const char *const names[] = { [TAKEOVER_REFUSED] = "REFUSED", [TAKEOVER_REPLY] = "REPLY", [TAKEOVER_EXECUTE] = "EXECUTE" };
	struct takeover_result result;
	enum takeover_verdict verdict = takeover_reply_wait(fd, id, number, &result);
	char text[65] = "";

	if (verdict == TAKEOVER_REPLY) {
		ssize_t n = read(result.fd, text, sizeof(text) - 1);

		text[n > 0 ? n : 0] = 0;
		if (write(result.fd, "x", 1) >= 0)
			strcpy(text, "it can be written to");
		close(result.fd);
	}
	printf("%s %.3f %" PRIu64 " %s\n", names[verdict], now() - since, result.length, text);
}

/* Many at once: thread T's connection is T, its requests are 1, 2, 3 ... */
static struct {
	int count;
	bool backup, acknowledged;
	_Atomic int wrong;
} storm;

static void *storm_thread(void *arg)
{
	char *data = malloc(REPLY_MAX), *got = malloc(REPLY_MAX + 1);
	const uint64_t id = (uintptr_t)arg;
	uint64_t *kernel_id = dlsym(RTLD_DEFAULT, "replica_id");

	*kernel_id = id;

	for (int number = 1; number <= storm.count; number++) {
		const size_t size = (number * 7919 + id * 104729) % (number % 10 ? 3000 : REPLY_MAX);
		struct takeover_reply *reply;
		struct takeover_result result;

		fill(data, size, id, number);
		if (!storm.backup) {
			if (takeover_reply_begin(fd, id, number, &reply) || takeover_reply_write(reply, data, size / 2) ||
			    takeover_reply_write(reply, data + size / 2, size - size / 2) || takeover_reply_end(reply, storm.acknowledged)) {
				storm.wrong++;
				fprintf(stderr, "# reply %d of %d: %m\n", number, (int)id);
			}
		} else if (takeover_reply_wait(fd, id, number, &result) != TAKEOVER_REPLY || result.length != size ||
			   pread(result.fd, got, REPLY_MAX + 1, 0) != (ssize_t)size || memcmp(got, data, size) || close(result.fd)) {
			storm.wrong++;
		}
	}
	free(data);
	free(got);
	return NULL;
}

static void storm_run(int threads)
{
	pthread_t all[64];
	double since = now();

	storm.wrong = 0;
	for (int i = 0; i < threads; i++)
		pthread_create(&all[i], NULL, storm_thread, (void *)(uintptr_t)(i + 1));
	for (int i = 0; i < threads; i++)
		pthread_join(all[i], NULL);
	printf("%d %.3f\n", storm.wrong, now() - since);
}

int main(int argc, char **argv)
{
	struct takeover_reply *reply = NULL;
	char line[256], verb[32], text[128];
	uint64_t a, b;

	if (argc != 3)
		return 2;
	address = argv[1];
	port = atoi(argv[2]);
	connection();
	while (fgets(line, sizeof(line), stdin)) {
		double since = now();

		a = b = 0;
		*text = 0;
		sscanf(line, "%31s %" SCNu64 " %" SCNu64 " %127s", verb, &a, &b, text);
		if (!strcmp(verb, "role")) {
			enum takeover_role role = takeover_role(fd, &a);

			printf("%d %" PRIu64 "\n", role, a);
		} else if (!strcmp(verb, "begin")) {
			say(takeover_reply_begin(fd, a, b, &reply), since);
		} else if (!strcmp(verb, "text")) {
			say(takeover_reply_write(reply, text, strlen(text)), since);
		} else if (!strcmp(verb, "write")) {
			char *data = malloc(a);

			fill(data, a, 0, b);
			say(takeover_reply_write(reply, data, a), since);
			free(data);
		} else if (!strcmp(verb, "sendfile")) {
			int in = memfd_create("in", MFD_CLOEXEC);
			char data[4096];

			fill(data, sizeof(data), 0, 0);
			for (uint64_t at = 0; at < b; at += sizeof(data))
				if (write(in, data, b - at < sizeof(data) ? b - at : sizeof(data)) < 0)
					return 1;
			say(takeover_reply_sendfile(reply, in, 0, a), since);
			close(in);
		} else if (!strcmp(verb, "end")) {
			say(takeover_reply_end(reply, a), since);
		} else if (!strcmp(verb, "abort")) {
			takeover_reply_abort(reply);
			printf("OK\n");
		} else if (!strcmp(verb, "wait")) {
			wait_for(a, b, since);
		} else if (!strcmp(verb, "gate")) {
			say(takeover_gate(fd, a), since);
		} else if (!strcmp(verb, "hang-up")) {
			/* A reset */
			struct linger linger = { 1, 0 };

			setsockopt(other, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
			close(other);
			printf("OK\n");
		} else if (!strcmp(verb, "storm")) {
			sscanf(text, "%d", &storm.count);
			storm.backup = b == 2;
			storm.acknowledged = b == 1;
			storm_run(a);
		} else if (!strcmp(verb, "fork")) {
			/* The parent's connections stay the parent's */
			pid_t child;

			fflush(stdout);
			child = fork();
			for (uint64_t i = 0; i < 100; i++) {
				const uint64_t number = b + 2 * i + !child;

				if (takeover_reply_begin(fd, a, number, &reply) || takeover_reply_write(reply, child ? "parent" : "child", 6) ||
				    takeover_reply_end(reply, true))
					break;
				if (i == 99)
					printf("OK\n");
			}
			if (!child) {
				fflush(stdout);
				_exit(0);
			}
			waitpid(child, NULL, 0);
		} else {
			printf("?\n");
		}
		fflush(stdout);
	}
	return 0;
}
