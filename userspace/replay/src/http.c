// SPDX-License-Identifier: LGPL-2.1-or-later
/* The listeners */
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "http.h"
#include "kept.h"
#include "wire.h"

#define SESSIONS	"/replay/sessions"
#define IDLE_S		75u
#define POLLERS		2u
#define CLIENT_MEMORY	(32u << 10)
#define DOMAIN_MEMORY	(160u << 10)	/* endings of all members in one header */
#define ACTIVATED_FD	3		/* systemd's first */

enum listener { CLIENTS, DOMAIN, CONTROL, METRICS, NR_LISTENERS };

static const char *const listener_names[] = { "clients", "domain", "control", "metrics" };

struct http;

struct slot {
	struct http *http;
	enum listener listener;
};

struct http {
	struct server *server;		/* NULL: not yet */
	pthread_rwlock_t serving;
	char *domain_key;
	page_fn page;
	void *page_arg;
	char *control;			/* that we have made, and remove */
	char *cors;
	struct MHD_Daemon *daemons[NR_LISTENERS];
	struct slot slots[NR_LISTENERS];
};

struct request {
	struct http *http;
	enum listener listener;
	struct MHD_Connection *connection;
	struct bytes body;
	bool start;		/* a session is */
	bool answered;
	struct reply reply;
};

/* Answers */

static int socket_of(struct MHD_Connection *connection)
{
	return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

/* How many bytes it makes */
static size_t add_header(struct MHD_Response *response, const char *name, const char *value)
{
	MHD_add_response_header(response, name, value);
	return strlen(name) + strlen(value) + sizeof(": \r\n") - 1;
}

/* What a page of another origin may do in a browser: call, and see the headers of the answer. How many bytes it makes. */
static size_t add_cors(const struct request *r, struct MHD_Response *response)
{
	return add_header(response, "Access-Control-Allow-Origin", r->http->cors) +
	       add_header(response, "Access-Control-Allow-Methods", "POST, DELETE") +
	       add_header(response, "Access-Control-Allow-Headers", "Content-Type, " H_SESSION ", " H_SEQUENCE ", " H_KEY) +
	       add_header(response, "Access-Control-Expose-Headers", H_ANSWER ", " H_SESSION ", " H_SEQUENCE ", Retry-After") +
	       add_header(response, "Access-Control-Max-Age", "86400");
}

static enum MHD_Result send_response(struct request *r, unsigned int status, const char *type, const void *data, size_t len,
				     const char *const headers[][2])
{
	struct MHD_Response *response = MHD_create_response_from_buffer(len, (void *)data, MHD_RESPMEM_MUST_COPY);
	size_t said = len + snprintf(NULL, 0, "%zu", len) + strlen(MHD_get_reason_phrase_for(status));
	enum MHD_Result result;
	unsigned int i;

	if (!response)
		return MHD_NO;
	if (len && type && *type)
		said += add_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	said += add_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
	for (i = 0; headers && headers[i][0]; i++)
		if (headers[i][1])
			said += add_header(response, headers[i][0], headers[i][1]);
	if (r->listener == CLIENTS && r->http->cors)
		said += add_cors(r, response);
	kept_answer(socket_of(r->connection), said);
	result = MHD_queue_response(r->connection, status, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result send_text(struct request *r, unsigned int status, enum answer answer, const char *text)
{
	const char *const headers[][2] = { { H_ANSWER, answer_text(answer) }, { NULL } };

	return send_response(r, status, "text/plain", text, strlen(text), headers);
}

struct outcome {
	unsigned int status;
	const char *text;
};

static const struct outcome outcomes[] = {
	[A_RETRY] = { MHD_HTTP_SERVICE_UNAVAILABLE, "The server is recovering, or has too much to do: send the request again.\n" },
	[A_GONE] = { MHD_HTTP_GONE, "There is no such session: it has ended, or has been idle for too long.\n" },
	[A_SEQUENCE] = { MHD_HTTP_CONFLICT, "Not the next request of the session: " H_SEQUENCE " in this answer is.\n" },
	[A_CHANGED] = { MHD_HTTP_UNPROCESSABLE_CONTENT, "A request of this number or key has been executed, and it was another one.\n" },
	[A_STUCK] = { MHD_HTTP_INTERNAL_SERVER_ERROR, "" },
	[A_ORPHAN] = { MHD_HTTP_CONFLICT, "It has been lost.\n" },
	[A_REFUSED] = { MHD_HTTP_BAD_REQUEST, "" },
};

static enum MHD_Result send_reply(struct request *r)
{
	struct reply *reply = &r->reply;
	const char *type = "text/plain", *data = (char *)reply->body.data, *session = NULL;
	char sequence[24], name[SESSION_NAME_LEN + 1];
	size_t len = reply->body.len, type_len;
	char *depends = NULL, *endings = NULL;
	unsigned int status = MHD_HTTP_OK;
	enum MHD_Result result;

	snprintf(sequence, sizeof(sequence), "%llu", (unsigned long long)reply->sequence);
	if (r->listener == DOMAIN) {
		depends = vector_text(&reply->depends);
		endings = hex_text(&reply->endings);
	}
	if (reply->answer != A_OK) {
		status = outcomes[reply->answer].status;
		if (!len) {
			data = outcomes[reply->answer].text;
			len = strlen(data);
		}
	} else if (r->start) {
		status = MHD_HTTP_CREATED;
		snprintf(name, sizeof(name), "%.*s", (int)len, data);
		session = name;
		len = 0;
	} else if (reply->status) {
		/* Of a method: its status, the type, and what it says */
		status = reply->status >= 200 && reply->status <= 599 ? reply->status : MHD_HTTP_INTERNAL_SERVER_ERROR;
		type_len = len ? strnlen(data, len - 1) : 0;
		type = len ? data : "";
		data += len ? type_len + 1 : 0;
		len -= len ? type_len + 1 : 0;
	} else {
		status = MHD_HTTP_NO_CONTENT;
		len = 0;
	}
	{
		const char *const headers[][2] = {
			{ H_ANSWER, answer_text(reply->answer) },
			{ H_SEQUENCE, reply->sequence ? sequence : NULL },
			{ H_SESSION, session },
			{ MHD_HTTP_HEADER_RETRY_AFTER, reply->answer == A_RETRY ? "1" : NULL },
			{ H_DEPENDS, depends && *depends ? depends : NULL },
			{ H_ENDINGS, endings && *endings ? endings : NULL },
			{ NULL },
		};

		result = send_response(r, status, type, data, len, headers);
	}
	free(depends);
	free(endings);
	return result;
}

/* Requests */

static void answered(void *arg, struct reply *reply)
{
	struct request *r = arg;

	r->reply = *reply;
	r->answered = true;
	MHD_resume_connection(r->connection);
}

static const char *header(struct request *r, const char *name)
{
	return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

/* It takes as long whatever the key is: nobody learns it letter by letter */
static bool same_key(const char *key, const char *said)
{
	size_t own = strlen(key), len = strlen(said), i;
	unsigned int different = own != len;

	for (i = 0; i < len; i++)
		different |= key[i % own] ^ said[i];
	return !different;
}

/* Who the sender is, in the domain */
static const char *read_member(struct request *r, struct message *m)
{
	const char *key = header(r, H_DOMAIN_KEY);
	uint64_t member;

	if (!key || !same_key(r->http->domain_key, key))
		return "the domain's key is another";
	if (!number_parse(header(r, H_FROM), MEMBERS_MAX - 1, &member))
		return H_FROM " is not a member's number";
	if (!vector_parse(header(r, H_DEPENDS), &m->depends))
		return H_DEPENDS " is malformed";
	m->from = member;
	return NULL;
}

static const char *read_call(struct request *r, struct message *m, const char *path)
{
	const char *sequence = header(r, H_SEQUENCE);

	m->session = header(r, H_SESSION);
	if (!m->session) {
		m->key = header(r, H_KEY);
		m->sequence = 1;
		if (!m->key)
			return "a request says " H_SESSION " and " H_SEQUENCE ", or " H_KEY "; POST " SESSIONS " begins a session";
	} else if (!number_parse(sequence, UINT64_MAX, &m->sequence)) {
		return H_SEQUENCE " is not a number";
	}
	m->kind = M_CALL;
	m->method = path + 1;
	return NULL;
}

/* What is asked: NULL, or what is wrong with it */
static const char *read_request(struct request *r, struct message *m, const char *method, const char *path)
{
	const char *why = r->listener == DOMAIN ? read_member(r, m) : NULL;

	if (why)
		return why;
	if (!strcmp(method, MHD_HTTP_METHOD_DELETE) && !strncmp(path, SESSIONS "/", sizeof(SESSIONS))) {
		m->kind = M_END;
		m->session = path + sizeof(SESSIONS);
		return number_parse(header(r, H_SEQUENCE), UINT64_MAX, &m->sequence) ? NULL : H_SEQUENCE " is not a number";
	}
	if (strcmp(method, MHD_HTTP_METHOD_POST))
		return "methods are called with POST";
	if (!strcmp(path, SESSIONS)) {
		m->kind = M_START;
		return NULL;
	}
	if (strncmp(path, "/replay/", 8))
		return read_call(r, m, path);
	if (r->listener == DOMAIN && !strcmp(path, "/replay/recovered")) {
		m->kind = M_RECOVERED;
		return NULL;
	}
	if (r->listener == DOMAIN && (!strcmp(path, "/replay/flush") || !strcmp(path, "/replay/history"))) {
		m->kind = path[8] == 'f' ? M_FLUSH : M_HISTORY;
		return state_parse(header(r, H_STATE), &m->state) ? NULL : H_STATE " is malformed";
	}
	return "there is nothing under /replay/ but sessions";
}

/* A server that is there stays until all daemons have stopped */
static bool serving(struct http *http)
{
	bool there;

	pthread_rwlock_rdlock(&http->serving);
	there = http->server;
	pthread_rwlock_unlock(&http->serving);
	return there;
}

static bool serve(struct request *r, struct message *m)
{
	struct http *http = r->http;

	if (!serving(http)) {
		r->reply.answer = A_RETRY;
		return true;
	}
	r->start = m->kind == M_START;
	if (r->listener == DOMAIN) {
		/* Its threads are one a connection: they may wait */
		server_message(http->server, m, &r->reply);
		return true;
	}
	MHD_suspend_connection(r->connection);
	server_request(http->server, m, answered, r);
	return false;
}

static enum MHD_Result handle_request(struct request *r, const char *method, const char *path)
{
	struct message m = { .from = OUTSIDE };
	const char *why;
	bool now = true;

	/* A browser asks first whether it may */
	if (r->listener == CLIENTS && r->http->cors && !strcmp(method, MHD_HTTP_METHOD_OPTIONS))
		return send_response(r, MHD_HTTP_NO_CONTENT, NULL, "", 0, NULL);
	why = read_request(r, &m, method, path);
	m.body = r->body;
	if (!why) {
		now = serve(r, &m);
	} else {
		r->reply.answer = A_REFUSED;
		bytes_set(&r->reply.body, why, strlen(why));
		bytes_add(&r->reply.body, "\n", 1);
	}
	vector_free(&m.depends);
	return now ? send_reply(r) : MHD_YES;
}

static enum MHD_Result handle_page(struct request *r, const char *method, const char *path)
{
	struct page page = { .status = MHD_HTTP_OK, .type = "text/plain" };
	enum MHD_Result result;

	if (r->listener == METRICS && (strcmp(path, "/metrics") || strcmp(method, MHD_HTTP_METHOD_GET)))
		return send_response(r, MHD_HTTP_NOT_FOUND, "text/plain", "GET /metrics\n", 13, NULL);
	r->http->page(r->http->page_arg, serving(r->http), method, path, &page);
	result = send_response(r, page.status, page.type, page.body.data, page.body.len, NULL);
	bytes_free(&page.body);
	return result;
}

static bool too_large(struct request *r)
{
	const char *length = header(r, MHD_HTTP_HEADER_CONTENT_LENGTH);
	uint64_t n;

	return length && !number_parse(length, VALUE_MAX, &n);
}

/* MHD calls it with the headers alone, with each piece of the body, at the body's end, and after MHD_resume_connection() */
static enum MHD_Result handle(void *arg, struct MHD_Connection *connection, const char *path, const char *method, const char *version,
			      const char *data, size_t *size, void **state)
{
	const struct slot *slot = arg;
	struct request *r = *state;

	if (!r) {
		*state = r = must_alloc(sizeof(*r));
		r->http = slot->http;
		r->listener = slot->listener;
		r->connection = connection;
		return too_large(r) ? send_text(r, MHD_HTTP_CONTENT_TOO_LARGE, A_REFUSED, "A request has at most 1 MiB.\n") : MHD_YES;
	}
	if (*size) {
		/* Of one that did not say its length the end may be far */
		if (r->body.len + *size > VALUE_MAX)
			return MHD_NO;
		bytes_add(&r->body, data, *size);
		*size = 0;
		return MHD_YES;
	}
	if (r->answered)
		return send_reply(r);
	/* Who speaks 1.0 may wait for the connection's end */
	if (!strcmp(version, MHD_HTTP_VERSION_1_1))
		kept_asked(socket_of(connection));
	return r->listener == CLIENTS || r->listener == DOMAIN ? handle_request(r, method, path) : handle_page(r, method, path);
}

static void request_end(void *arg, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode code)
{
	struct request *r = *state;

	(void)arg;
	if (!r)
		return;
	if (code == MHD_REQUEST_TERMINATED_COMPLETED_OK)
		kept_answered(socket_of(connection));
	bytes_free(&r->body);
	reply_free(&r->reply);
	free(r);
	*state = NULL;
}

static void connection_change(void *arg, struct MHD_Connection *connection, void **state, enum MHD_ConnectionNotificationCode code)
{
	const struct slot *slot = arg;

	(void)state;
	if (code == MHD_CONNECTION_NOTIFY_STARTED)
		kept_note(socket_of(connection), slot->listener == CLIENTS ? KEPT_CLIENT : KEPT_FILE);
	else
		kept_forget(socket_of(connection));
}

/* Sockets */

/* "host:port", "[address]:port", ":port" */
static int listen_tcp(const char *where, char error[ERROR_MAX])
{
	struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *found = NULL, *a;
	const char *colon = strrchr(where, ':');
	int fd = -1, one = 1, err;
	char host[256];
	uint64_t port;

	if (!colon || (size_t)(colon - where) >= sizeof(host) || !number_parse(colon + 1, UINT16_MAX, &port)) {
		return set_error(error, -1, "%s: it is to be address:port, the port from 0 to 65535", where);
	}
	snprintf(host, sizeof(host), "%.*s", (int)(colon - where), where);
	if (*host == '[' && host[strlen(host) - 1] == ']') {
		host[strlen(host) - 1] = 0;
		memmove(host, host + 1, strlen(host));
	}
	err = getaddrinfo(*host ? host : NULL, colon + 1, &hints, &found);
	if (err) {
		return set_error(error, -1, "%s: %s", where, gai_strerror(err));
	}
	for (a = found; a && fd < 0; a = a->ai_next) {
		fd = kept_listener(a->ai_addr, a->ai_addrlen);
		if (fd >= 0)
			continue;
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		if (fd < 0)
			continue;
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, SOMAXCONN)) {
			set_error(error, -1, "%s: %s", where, strerror(errno));
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(found);
	return fd;
}

/* For the owner and the group. One that a server before us has left is taken away. */
static int listen_unix(const char *path, char error[ERROR_MAX])
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct stat st;
	mode_t mask;
	int fd;

	if (strlen(path) >= sizeof(a.sun_path)) {
		return set_error(error, -1, "%s: a socket's path has at most %zu bytes", path, sizeof(a.sun_path) - 1);
	}
	strcpy(a.sun_path, path);
	fd = kept_listener((struct sockaddr *)&a, offsetof(struct sockaddr_un, sun_path) + strlen(path) + 1);
	if (fd >= 0)
		return fd;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof(a))) {
		close(fd);
		return set_error(error, -1, "%s: another server listens there", path);
	}
	if (!stat(path, &st) && S_ISSOCK(st.st_mode))
		unlink(path);
	mask = umask(0117);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, SOMAXCONN)) {
		set_error(error, -1, "%s: %s", path, strerror(errno));
		if (fd >= 0)
			close(fd);
		fd = -1;
	}
	umask(mask);
	return fd;
}

/* A socket that the service manager has opened, by its name; one without a name is for clients */
static int activated(enum listener listener)
{
	const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS"), *names = getenv("LISTEN_FDNAMES");
	int i, n = fds ? atoi(fds) : 0;

	if (!pid || atoi(pid) != getpid())
		return -1;
	for (i = 0; i < n; i++) {
		const char *end = names ? strchrnul(names, ':') : NULL;
		size_t len = names ? end - names : 0;
		bool known = false;
		int l;

		for (l = 0; l < NR_LISTENERS; l++) {
			bool same = len == strlen(listener_names[l]) && !strncmp(names, listener_names[l], len);

			known |= same;
			if (same && l == (int)listener)
				return ACTIVATED_FD + i;
		}
		if (!known && listener == CLIENTS)
			return ACTIVATED_FD + i;
		names = end && *end ? end + 1 : NULL;
	}
	return -1;
}

/* With a NUL decoded, the path would seem to end there */
static size_t unescape(void *arg, struct MHD_Connection *connection, char *text)
{
	(void)arg;
	(void)connection;
	return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

static bool start(struct http *http, const struct options *o, enum listener listener, const char *where, char error[ERROR_MAX])
{
	/* A domain's and an operator's requests may wait; clients' are suspended, so few threads serve many */
	bool threads = listener != CLIENTS;
	unsigned int flags = threads ? MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_ITC :
				       MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
	struct slot *slot = &http->slots[listener];
	int fd;

	if (!where)
		return true;
	fd = activated(listener);
	if (fd < 0) {
		fd = listener == CONTROL ? listen_unix(where, error) : listen_tcp(where, error);
		if (fd >= 0 && listener == CONTROL)
			http->control = strdup(where);
	}
	if (fd < 0)
		return false;
	*slot = (struct slot){ .http = http, .listener = listener };
	kept_note(fd, KEPT_LISTENER);
	kept_watch();
	http->daemons[listener] = MHD_start_daemon(flags, 0, NULL, NULL, handle, slot,
		MHD_OPTION_LISTEN_SOCKET, (MHD_socket)fd,
		MHD_OPTION_NOTIFY_COMPLETED, request_end, slot,
		MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
		MHD_OPTION_NOTIFY_CONNECTION, connection_change, slot,
		MHD_OPTION_CONNECTION_LIMIT, (unsigned int)o->connections,
		MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)(listener == DOMAIN ? DOMAIN_MEMORY : CLIENT_MEMORY),
		threads ? MHD_OPTION_END : MHD_OPTION_THREAD_POOL_SIZE, POLLERS, MHD_OPTION_END);
	kept_watched();
	if (!http->daemons[listener]) {
		set_error(error, -1, "%s: no HTTP server can be started: %s", where, strerror(errno));
		kept_forget(fd);
		close(fd);
	}
	return http->daemons[listener];
}

/* After a restart in place: who has asked is told to ask again, as the answer may have been decided or not */
static void take_over(struct http *http)
{
	static const char ask_again[] = "HTTP/1.1 503 Service Unavailable\r\n" H_ANSWER ": retry\r\nRetry-After: 1\r\n"
					"Cache-Control: no-store\r\nContent-Length: 0\r\n\r\n";
	unsigned int kept = 0, closed = 0;
	struct sockaddr_storage address;
	enum kept_state state;
	int fd;

	while ((fd = kept_client(&state)) >= 0) {
		socklen_t len = sizeof(address);

		if (state == KEPT_ASKED && send(fd, ask_again, sizeof(ask_again) - 1, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(ask_again) - 1)
			state = KEPT_BROKEN;
		if (state == KEPT_BROKEN || getpeername(fd, (struct sockaddr *)&address, &len)) {
			kept_forget(fd);
			close(fd);
			closed++;
			continue;
		}
		kept_note(fd, KEPT_CLIENT);
		/* It closes what it does not take */
		if (MHD_add_connection(http->daemons[CLIENTS], fd, (struct sockaddr *)&address, len))
			kept++;
		else
			closed++;
	}
	if (kept || closed)
		fprintf(stderr, "replay: restarted in place: %u connections kept, %u closed\n", kept, closed);
}

struct http *http_listen(const struct options *o, page_fn page, void *arg, char error[ERROR_MAX])
{
	struct http *http = must_alloc(sizeof(*http));

	pthread_rwlock_init(&http->serving, NULL);
	http->page = page;
	http->page_arg = arg;
	if (o->domain_key.len)
		http->domain_key = strdup((char *)o->domain_key.data);
	if (o->cors)
		http->cors = strdup(o->cors);
	if (start(http, o, CONTROL, o->control, error) && start(http, o, METRICS, o->metrics, error) &&
	    start(http, o, DOMAIN, o->domain_listen, error) && start(http, o, CLIENTS, o->listen, error)) {
		kept_close_listeners();
		take_over(http);
		return http;
	}
	http_close(http);
	return NULL;
}

void http_serve(struct http *http, struct server *server)
{
	pthread_rwlock_wrlock(&http->serving);
	http->server = server;
	pthread_rwlock_unlock(&http->serving);
}

void http_close(struct http *http)
{
	int i;

	for (i = NR_LISTENERS; i--; ) {
		MHD_socket fd;

		if (!http->daemons[i])
			continue;
		/* Or it would be shut down, for the service manager, too */
		fd = MHD_quiesce_daemon(http->daemons[i]);
		MHD_stop_daemon(http->daemons[i]);
		if (fd != MHD_INVALID_SOCKET)
			close(fd);
	}
	if (http->control)
		unlink(http->control);
	free(http->control);
	free(http->cors);
	free(http->domain_key);
	pthread_rwlock_destroy(&http->serving);
	free(http);
}
