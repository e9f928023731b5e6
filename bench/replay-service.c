// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The services of bench replay: replay-service CONFIG.
 *
 * "job": reads and writes its session, and adds 1 to a number that all share. Answers "SUM ASKED" and filling.
 *
 * "outer" and "inner" are ServiceMethod1 and 2 of the paper: 8 KiB of session, of which a request
 * writes 512 bytes; shared variables of 128 bytes, of which outer reads and writes one, calls inner,
 * and another; inner two. "outer2" and "outer4" call inner as often. Parameter and answer have 100
 * bytes. STORE=postgres:SOCKET, postgres-locked:SOCKET or redis:PORT: the session is fetched from
 * there and written back as a whole. With "locked", fetching it locks it for others, as session
 * modules of web servers do; that is a transaction that writes, too.
 *
 * CRASH_EVERY: after as many calls the server whose process is in the file CRASH_PID is killed, when
 * its answer has come.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <replay.h>

#define PART		512
#define STATE		8192
#define SHARED		128
#define JOB_ANSWER	200
#define ANSWER		100

static const char *store, *crash_pid;
static long crash_every;

static __attribute__((noreturn)) void die(const char *what)
{
	fprintf(stderr, "replay-service: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* A connection to the store for each thread; what comes is read whole, and never more than it */
static _Thread_local int store_fd = -1;

static void store_send(const void *data, size_t size)
{
	if (send(store_fd, data, size, MSG_NOSIGNAL) != (ssize_t)size)
		die(store);
}

static void store_read(void *data, size_t size)
{
	if (recv(store_fd, data, size, MSG_WAITALL) != (ssize_t)size)
		die(store);
}

static uint32_t store_number(void)
{
	uint32_t n;

	store_read(&n, sizeof(n));
	return ntohl(n);
}

/* PostgreSQL's messages until it is ready again. @state: where the value of a row goes, if there is one. */
static bool postgres_answer(char *state)
{
	char data[STATE + 1024], type;
	bool found = false;
	uint32_t size;

	do {
		store_read(&type, 1);
		size = store_number() - 4;
		if (size > sizeof(data)) {
			errno = EMSGSIZE;
			die(store);
		}
		store_read(data, size);
		if (type == 'E') {
			fprintf(stderr, "replay-service: %.*s\n", (int)size, data);
			exit(1);
		}
		if (type == 'D' && state && size == 2 + 4 + STATE) {
			memcpy(state, data + 2 + 4, STATE);
			found = true;
		}
	} while (type != 'Z');
	return found;
}

static bool postgres(const char *query, char *state)
{
	char message[STATE + 1024];
	size_t size = strlen(query) + 1;
	uint32_t n = htonl(size + 4);

	message[0] = 'Q';
	memcpy(message + 1, &n, 4);
	memcpy(message + 5, query, size);
	store_send(message, size + 5);
	return postgres_answer(state);
}

static void postgres_connect(const char *path, bool locked)
{
	static const char hello[] = "\0\0\0\0\0\3\0\0user\0postgres\0database\0postgres\0";
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	char first[sizeof(hello)];
	uint32_t n = htonl(sizeof(hello));

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	store_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(store_fd, (struct sockaddr *)&a, sizeof(a)))
		die(path);
	memcpy(first, hello, sizeof(hello));
	memcpy(first, &n, 4);
	store_send(first, sizeof(first));
	postgres_answer(NULL);
	postgres(locked ? "PREPARE get_state AS UPDATE sessions SET locked = true WHERE id = $1 RETURNING state" :
			  "PREPARE get_state AS SELECT state FROM sessions WHERE id = $1", NULL);
	postgres("PREPARE put_state AS INSERT INTO sessions VALUES ($1, $2, false) "
		 "ON CONFLICT (id) DO UPDATE SET state = $2, locked = false", NULL);
}

static void redis_connect(int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int one = 1;

	store_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(store_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(store_fd, (struct sockaddr *)&a, sizeof(a)))
		die(store);
}

/* A line of Redis, without its end */
static void redis_line(char *line, size_t size)
{
	size_t n = 0;

	do {
		store_read(line + n++, 1);
	} while (n < size - 1 && line[n - 1] != '\n');
	line[n - 1] = 0;
	if (line[0] != '$' && line[0] != '+') {
		fprintf(stderr, "replay-service: redis: %s\n", line);
		exit(1);
	}
}

static bool fetch(const char *id, char state[STATE])
{
	char text[256], end[2];
	int n;

	if (store_fd < 0) {
		if (strncmp(store, "redis:", 6))
			postgres_connect(strchr(store, ':') + 1, !strncmp(store, "postgres-locked", 15));
		else
			redis_connect(atoi(store + 6));
	}
	if (strncmp(store, "redis:", 6)) {
		snprintf(text, sizeof(text), "EXECUTE get_state('%s')", id);
		return postgres(text, state);
	}
	n = snprintf(text, sizeof(text), "*2\r\n$3\r\nGET\r\n$%zu\r\n%s\r\n", strlen(id), id);
	store_send(text, n);
	redis_line(text, sizeof(text));
	if (atoi(text + 1) != STATE)
		return false;
	store_read(state, STATE);
	store_read(end, 2);
	return true;
}

static void put_back(const char *id, const char state[STATE])
{
	char text[STATE + 256];
	int n;

	if (strncmp(store, "redis:", 6)) {
		snprintf(text, sizeof(text), "EXECUTE put_state('%s', '%.*s')", id, STATE, state);
		postgres(text, NULL);
		return;
	}
	n = snprintf(text, sizeof(text), "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%u\r\n%.*s\r\n", strlen(id), id, STATE, STATE,
		     state);
	store_send(text, n);
	redis_line(text, sizeof(text));
}

/* Text that cannot be pressed together, with how often it was asked in front */
static void fill(char *part, size_t size, long asked)
{
	uint64_t random = asked * 0x9e3779b97f4a7c15ull + 1;
	char number[24];
	size_t i;

	for (i = 0; i < size; i++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		part[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[random >> 58];
	}
	memcpy(part, number, snprintf(number, sizeof(number), "%20ld ", asked));
}

/* The session has been asked once more; how often, or -1 to return at once */
static long session_in_store(struct replay_call *call)
{
	const void *value;
	char state[STATE], id[37];
	long asked = 0;

	if (!replay_get(call, "id", &value, NULL))
		memcpy(id, value, sizeof(id));
	else if (errno != ENOENT || replay_uuid(call, id) || replay_set(call, "id", id, sizeof(id)))
		return -1;
	if (fetch(id, state))
		asked = strtol(state, NULL, 10);
	else
		fill(state, sizeof(state), 0);
	fill(state, PART, ++asked);
	put_back(id, state);
	return asked;
}

static long session(struct replay_call *call)
{
	char part[PART], name[8];
	const void *value;
	long asked = 0;
	int i;

	if (store)
		return session_in_store(call);
	if (!replay_get(call, "part0", &value, NULL))
		asked = strtol(value, NULL, 10);
	else if (errno != ENOENT)
		return -1;
	else
		for (i = 1; i < STATE / PART; i++) {
			snprintf(name, sizeof(name), "part%d", i);
			fill(part, sizeof(part), i);
			if (replay_set(call, name, part, sizeof(part)))
				return -1;
		}
	fill(part, sizeof(part), ++asked);
	return replay_set(call, "part0", part, sizeof(part)) ? -1 : asked;
}

static ptrdiff_t one_more(void *arg, const void *old, size_t size, void *new_value, size_t room)
{
	long *sum = arg;

	*sum = old && size == SHARED ? strtol(old, NULL, 10) + 1 : 1;
	fill(new_value, room, *sum);
	return room;
}

static int answer(struct replay_call *call, long sum, long asked, size_t size)
{
	char text[JOB_ANSWER];
	int n = snprintf(text, sizeof(text), "%ld %ld ", sum, asked);

	memset(text + n, '.', size - n);
	return replay_reply(call, "text/plain", text, size) ? 500 : 200;
}

static int job(struct replay_call *call, const void *body, size_t size, void *arg)
{
	const void *value;
	int64_t asked = 0, sum;

	(void)body;
	(void)size;
	(void)arg;
	if (!replay_get(call, "asked", &value, NULL))
		memcpy(&asked, value, sizeof(asked));
	else if (errno != ENOENT)
		return 0;
	asked++;
	if (replay_set(call, "asked", &asked, sizeof(asked)) || replay_add(call, "sum", 1, &sum))
		return 0;
	return answer(call, sum, asked, JOB_ANSWER);
}

/* The other server, whose process is another one each time */
static void crash(void)
{
	FILE *f = fopen(crash_pid, "re");
	int pid;

	if (f && fscanf(f, "%d", &pid) == 1)
		kill(pid, SIGKILL);
	if (f)
		fclose(f);
}

static int outer(struct replay_call *call, const void *body, size_t size, void *arg)
{
	static _Atomic long done;
	const long *calls = arg;
	const void *reply;
	size_t reply_size;
	long sum, other, asked, i;
	int status;

	if (replay_update(call, "SV0", SHARED, one_more, &sum))
		return 0;
	for (i = 0; i < *calls; i++)
		if (replay_call_method(call, "inner", "inner", body, size, &status, &reply, &reply_size) || status != 200)
			return 500;
	if (crash_every && !replay_replaying(call) && ++done % crash_every == 0)
		crash();
	if (replay_update(call, "SV1", SHARED, one_more, &other))
		return 0;
	asked = session(call);
	return asked < 0 ? 0 : answer(call, sum, asked, ANSWER);
}

static int inner(struct replay_call *call, const void *body, size_t size, void *arg)
{
	long sum, other, asked;

	(void)body;
	(void)size;
	(void)arg;
	if (replay_update(call, "SV2", SHARED, one_more, &sum) || replay_update(call, "SV3", SHARED, one_more, &other))
		return 0;
	asked = session(call);
	return asked < 0 ? 0 : answer(call, sum, asked, ANSWER);
}

int main(int argc, char **argv)
{
	static const long calls[] = { 1, 2, 4 };
	struct replay_server *server = replay_new();
	int status;

	if (argc != 2 || !server)
		return 2;
	store = getenv("STORE");
	crash_pid = getenv("CRASH_PID");
	if (getenv("CRASH_EVERY") && crash_pid)
		crash_every = atol(getenv("CRASH_EVERY"));
	if (replay_method(server, "job", 1, job, NULL) || replay_method(server, "inner", 1, inner, NULL) ||
	    replay_method(server, "outer", 1, outer, (void *)&calls[0]) ||
	    replay_method(server, "outer2", 1, outer, (void *)&calls[1]) ||
	    replay_method(server, "outer4", 1, outer, (void *)&calls[2])) {
		fprintf(stderr, "replay-service: %s\n", replay_error(server));
		return 2;
	}
	status = replay_main(server, argv[1]);
	replay_free(server);
	return status;
}
