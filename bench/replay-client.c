// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Clients of a service, each with a session of its own that it asks without a pause:
 * replay-client KIND PORT CLIENTS SECONDS PATH. KIND: "replay", our sessions; "key", each request
 * has an Idempotency-Key, and %s in PATH is the session's name. The first fifth of SECONDS is not
 * counted. Each request is sent again until it is answered. Answers are "SUM ASKED ...": SUM grows
 * by 1 with each request of all, ASKED with each of the session; none may be missing or come twice.
 * Prints what was done as JSON, with the longest time in which nobody was answered, of those that
 * ended after AFTER_NS on the monotonic clock; 1 if a number is wrong, 3 if nobody was answered in
 * the time that counts.
 *
 * replay-client disk FILE SECTORS TIMES: how long such a write takes, past the page cache and to the
 * disk: the median.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MAX	4096
#define BODY		100
#define GIVE_UP_NS	60000000000ull
#define FILLING		"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

struct asked {
	uint64_t begin, end;
	unsigned long sum;
};

struct client {
	pthread_t thread;
	struct asked *asked;
	unsigned long n, room, resent;
	char session[128];
	int number, fd;
	bool wrong;
};

static bool replay;
static int port;
static const char *path;
static uint64_t start, finish;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int connect_again(int fd)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timeval limit = { .tv_sec = 30 };
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

/* One answer, whole, into @text; its status, or -1. @answer: its body, of which the first piece is enough */
static int exchange(int fd, const char *request, size_t len, char text[ANSWER_MAX], char **answer)
{
	size_t got = 0, want = 0;
	char *end = NULL, *length;
	bool pieces = false;
	ssize_t n;

	if (send(fd, request, len, MSG_NOSIGNAL) != (ssize_t)len)
		return -1;
	while (!end || (pieces ? !strstr(*answer, "\r\n0\r\n\r\n") : got < want)) {
		n = got < ANSWER_MAX - 1 ? recv(fd, text + got, ANSWER_MAX - 1 - got, 0) : -1;
		if (n <= 0)
			return -1;
		got += n;
		text[got] = 0;
		if (end)
			continue;
		end = strstr(text, "\r\n\r\n");
		if (!end)
			continue;
		*answer = end + 4;
		length = strcasestr(text, "\r\nContent-Length:");
		pieces = !(length && length < end) && strcasestr(text, "\r\nTransfer-Encoding: chunked");
		want = end + 4 - text + (length && length < end ? strtoul(length + 17, NULL, 10) : 0);
	}
	if (pieces) {
		char *line = strstr(*answer, "\r\n");

		*answer = line ? line + 2 : *answer;
	}
	return strncmp(text, "HTTP/1.1 ", 9) ? -1 : atoi(text + 9);
}

/* The same again until it is executed */
static char *ask(struct client *c, const char *request, size_t len, char text[ANSWER_MAX], int expected)
{
	uint64_t end = now() + GIVE_UP_NS;
	char *answer = text;

	while (now() < end) {
		int status = c->fd >= 0 ? exchange(c->fd, request, len, text, &answer) : -1;

		if (status == expected)
			return answer;
		if (replay && status > 0 && status != 503) {
			fprintf(stderr, "replay-client: answered %.300s\n", text);
			return NULL;
		}
		if (c->fd >= 0)
			c->resent++;
		usleep(status > 0 ? 5000 : 1000);
		if (status < 0)
			c->fd = connect_again(c->fd);
	}
	fprintf(stderr, "replay-client: not answered; the last answer: %.300s\n", text);
	return NULL;
}

static bool one(struct client *c)
{
	char request[2048], where[512], text[ANSWER_MAX] = "", *answer;
	struct asked *a;
	unsigned long asked;
	int n;

	if (c->n == c->room) {
		c->room = c->room ? 2 * c->room : 1024;
		c->asked = realloc(c->asked, c->room * sizeof(*c->asked));
		if (!c->asked)
			return false;
	}
	a = &c->asked[c->n];
	if (replay)
		n = snprintf(request, sizeof(request), "POST %s HTTP/1.1\r\nHost: x\r\nReplay-Session: %s\r\nReplay-Sequence: %lu\r\n"
			     "Content-Length: %u\r\n\r\n%s", path, c->session, c->n + 1, BODY, FILLING);
	else {
		snprintf(where, sizeof(where), path, c->session);
		n = snprintf(request, sizeof(request), "POST %s HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s-%lu\r\n"
			     "Content-Type: application/octet-stream\r\nContent-Length: %u\r\n\r\n%s", where, c->session, c->n, BODY,
			     FILLING);
	}
	a->begin = now();
	answer = ask(c, request, n, text, 200);
	a->end = now();
	if (!answer)
		return false;
	if (sscanf(answer, "%lu %lu", &a->sum, &asked) != 2 || asked != c->n + 1) {
		fprintf(stderr, "replay-client: client %d, request %lu: %.100s\n", c->number, c->n + 1, answer);
		return false;
	}
	c->n++;
	return true;
}

static void *client(void *arg)
{
	static const char begin[] = "POST /replay/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
	char text[ANSWER_MAX], *at;
	struct client *c = arg;

	c->fd = connect_again(-1);
	snprintf(c->session, sizeof(c->session), "s%d-%llu-%d", getpid(), (unsigned long long)start, c->number);
	c->wrong = replay && (!ask(c, begin, strlen(begin), text, 201) || !(at = strcasestr(text, "Replay-Session: ")) ||
			      sscanf(at + 16, "%127s", c->session) != 1);
	while (!c->wrong && (now() < finish || !c->n))
		c->wrong = !one(c);
	close(c->fd);
	return NULL;
}

static int compare(const void *a, const void *b)
{
	unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;

	return x < y ? -1 : x > y;
}

static int measure_disk(const char *file, unsigned int sectors, unsigned long times)
{
	int fd = open(file, O_RDWR | O_CREAT | O_DIRECT, 0600);
	struct iovec part = { .iov_len = sectors * 512 };
	unsigned long *took = calloc(times, sizeof(*took)), i;
	uint64_t begin;

	if (fd < 0 || !took || posix_memalign(&part.iov_base, 4096, part.iov_len) || ftruncate(fd, 0) ||
	    posix_fallocate(fd, 0, times * part.iov_len)) {
		perror(file);
		return 1;
	}
	memset(part.iov_base, 1, part.iov_len);
	/* Twice: the first time makes blocks that have never been written */
	for (i = 0; i < 2 * times; i++) {
		begin = now();
		if (pwritev2(fd, &part, 1, i % times * part.iov_len, i < times ? 0 : RWF_DSYNC) != (ssize_t)part.iov_len ||
		    (i == times - 1 && fsync(fd))) {
			perror(file);
			return 1;
		}
		took[i % times] = now() - begin;
	}
	qsort(took, times, sizeof(*took), compare);
	printf("{\"write_us\": %.1f}\n", took[times / 2] / 1e3);
	free(part.iov_base);
	free(took);
	close(fd);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned long n = 0, all = 0, resent = 0, *sums, *ends, *latencies, i, sum = 0, gap = 0, gap_end = 0;
	const char *text = getenv("AFTER_NS");
	uint64_t after = text ? strtoull(text, NULL, 10) : 0;
	struct rusage usage;
	bool wrong = false;
	struct client *clients;
	pthread_attr_t attr;
	uint64_t counted;
	double seconds;
	int count, j;

	if (argc == 5 && !strcmp(argv[1], "disk"))
		return measure_disk(argv[2], atoi(argv[3]), strtoul(argv[4], NULL, 10));
	if (argc != 6)
		return 2;
	replay = !strcmp(argv[1], "replay");
	port = atoi(argv[2]);
	count = atoi(argv[3]);
	seconds = strtod(argv[4], NULL);
	path = argv[5];
	clients = calloc(count, sizeof(*clients));
	if (!clients || !count)
		return 2;
	start = now();
	finish = start + seconds * 1e9;
	counted = start + seconds * 1e9 / 5;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 << 10);
	for (j = 0; j < count; j++) {
		clients[j].number = j;
		if (pthread_create(&clients[j].thread, &attr, client, &clients[j]))
			return 2;
	}
	for (j = 0; j < count; j++) {
		pthread_join(clients[j].thread, NULL);
		wrong |= clients[j].wrong;
		all += clients[j].n;
		resent += clients[j].resent;
	}
	getrusage(RUSAGE_SELF, &usage);
	sums = calloc(all + 1, sizeof(*sums));
	ends = calloc(all + 1, sizeof(*ends));
	latencies = calloc(all + 1, sizeof(*latencies));
	if (!sums || !ends || !latencies)
		return 2;
	for (j = 0, all = 0; j < count; j++)
		for (i = 0; i < clients[j].n; i++) {
			const struct asked *a = &clients[j].asked[i];

			ends[all] = a->end;
			sums[all++] = a->sum;
			if (a->end < counted || a->end >= finish)
				continue;
			latencies[n++] = (a->end - a->begin) / 1000;
			sum += latencies[n - 1];
		}
	qsort(ends, all, sizeof(*ends), compare);
	for (i = 1; i < all; i++)
		if (ends[i] > after && ends[i] - ends[i - 1] > gap) {
			gap = ends[i] - ends[i - 1];
			gap_end = ends[i];
		}
	qsort(sums, all, sizeof(*sums), compare);
	for (i = 1; i < all; i++)
		if (sums[i] != sums[i - 1] + 1) {
			fprintf(stderr, "replay-client: after %lu comes %lu\n", sums[i - 1], sums[i]);
			wrong = true;
		}
	qsort(latencies, n, sizeof(*latencies), compare);
	if (n)
		printf("{\"requests\": %lu, \"clients\": %d, \"requests_s\": %.2f, \"mean_us\": %.1f, "
		       "\"p50_us\": %lu, \"p99_us\": %lu, \"max_us\": %lu, \"resent\": %lu, \"all\": %lu, \"gap_ns\": %lu, "
		       "\"gap_end_ns\": %lu, \"cpu_s\": %.3f, \"wrong\": %s}\n", n, count,
		       (double)n * 1e9 / (finish - counted), (double)sum / n,
		       latencies[n / 2], latencies[n * 99 / 100], latencies[n - 1], resent, all, gap, gap_end,
		       usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
		       (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6, wrong ? "true" : "false");
	for (j = 0; j < count; j++)
		free(clients[j].asked);
	free(clients);
	free(sums);
	free(ends);
	free(latencies);
	return wrong ? 1 : n ? 0 : 3;
}
