// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Clients that never give up: load PORT SESSIONS REQUESTS METHOD BODY. Each sends its requests one after the other, and the same
 * again until it is answered. METHOD answers "SUM ASKED", where SUM grows by 1 with each request of all, ASKED with each of the
 * session: no number may be missing or come twice. Prints what was done as JSON; 1 if a number is wrong.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MAX	4096
#define GIVE_UP_S	300

static int port;
static unsigned long sessions, requests;
static const char *method, *body;
static unsigned char *seen;
static unsigned long seen_max;
static unsigned long *latencies;
static _Atomic unsigned long resent, wrong, answered;

static unsigned long now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000ul + t.tv_nsec / 1000;
}

static int connect_again(int fd)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timeval limit = { .tv_sec = 20 };
	int one = 1;

	if (fd >= 0)
		close(fd);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (!connect(fd, (struct sockaddr *)&a, sizeof(a)))
		return fd;
	close(fd);
	return -1;
}

/* One answer, whole, into @text: its status, or -1 */
static int exchange(int fd, const char *request, size_t len, char text[ANSWER_MAX])
{
	size_t got = 0, want = 0;
	char *end = NULL, *length;
	ssize_t n;

	if (send(fd, request, len, MSG_NOSIGNAL) != (ssize_t)len)
		return -1;
	while (!end || got < want) {
		n = recv(fd, text + got, ANSWER_MAX - 1 - got, 0);
		if (n <= 0)
			return -1;
		got += n;
		text[got] = 0;
		if (end)
			continue;
		end = strstr(text, "\r\n\r\n");
		if (!end)
			continue;
		length = strcasestr(text, "\r\nContent-Length:");
		want = end + 4 - text + (length && length < end ? strtoul(length + 17, NULL, 10) : 0);
	}
	return strncmp(text, "HTTP/1.1 ", 9) ? -1 : atoi(text + 9);
}

/* The same again until it is executed */
static bool ask(int *fd, const char *request, size_t len, char text[ANSWER_MAX], int expected)
{
	unsigned long end = now_us() + GIVE_UP_S * 1000000ul;

	while (now_us() < end) {
		int status = *fd >= 0 ? exchange(*fd, request, len, text) : -1;

		if (status == expected)
			return true;
		if (status > 0 && status != 503) {
			fprintf(stderr, "load: answered %.300s\n", text);
			return false;
		}
		resent++;
		usleep(status == 503 ? 20000 : 5000);
		if (status < 0)
			*fd = connect_again(*fd);
	}
	fprintf(stderr, "load: not answered in %u s\n", GIVE_UP_S);
	return false;
}

static void *client(void *arg)
{
	unsigned long number = (unsigned long)arg, i;
	char request[1024], text[ANSWER_MAX], session[128] = "", *at;
	int fd = connect_again(-1);
	int n = snprintf(request, sizeof(request), "POST /replay/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");

	if (!ask(&fd, request, n, text, 201) || !(at = strcasestr(text, "Replay-Session: ")) || sscanf(at + 16, "%127s", session) != 1) {
		wrong++;
		return NULL;
	}
	for (i = 0; i < requests; i++) {
		unsigned long begin = now_us(), sum, asked;

		n = snprintf(request, sizeof(request), "POST /%s HTTP/1.1\r\nHost: x\r\nReplay-Session: %s\r\nReplay-Sequence: %lu\r\n"
			     "Content-Length: %zu\r\n\r\n%s", method, session, i + 1, strlen(body), body);
		if (!ask(&fd, request, n, text, 200)) {
			wrong++;
			return NULL;
		}
		latencies[number * requests + i] = now_us() - begin;
		at = strstr(text, "\r\n\r\n");
		if (sscanf(at, "%lu %lu", &sum, &asked) != 2 || asked != i + 1 || !sum || sum > seen_max ||
		    __atomic_fetch_add(&seen[sum], 1, __ATOMIC_RELAXED)) {
			fprintf(stderr, "load: session %lu, request %lu: %s\n", number, i + 1, at + 4);
			wrong++;
		}
		answered++;
	}
	close(fd);
	return NULL;
}

static int compare(const void *a, const void *b)
{
	unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	unsigned long begin, end, all, i;
	pthread_t *threads;
	pthread_attr_t attr;

	if (argc != 6)
		return 2;
	port = atoi(argv[1]);
	sessions = strtoul(argv[2], NULL, 10);
	requests = strtoul(argv[3], NULL, 10);
	method = argv[4];
	body = argv[5];
	seen_max = all = sessions * requests;
	seen = calloc(all + 1, 1);
	latencies = calloc(all + 1, sizeof(*latencies));
	threads = calloc(sessions, sizeof(*threads));
	if (!all || !seen || !latencies || !threads)
		return 2;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 << 10);
	begin = now_us();
	for (i = 0; i < sessions; i++)
		if (pthread_create(&threads[i], &attr, client, (void *)i))
			return 2;
	for (i = 0; i < sessions; i++)
		pthread_join(threads[i], NULL);
	end = now_us();
	qsort(latencies, all, sizeof(*latencies), compare);
	printf("{\"requests\": %lu, \"sessions\": %lu, \"seconds\": %.3f, \"requests_s\": %.1f, \"p50_us\": %lu, \"p99_us\": %lu, "
	       "\"max_us\": %lu, \"resent\": %lu, \"wrong\": %lu}\n", answered, sessions, (end - begin) / 1e6,
	       answered * 1e6 / (end - begin), latencies[all / 2], latencies[all * 99 / 100], latencies[all - 1], resent, wrong);
	free(threads);
	free(latencies);
	free(seen);
	return wrong > 0 || answered != all;
}
