// SPDX-License-Identifier: GPL-2.0-or-later
/* The control socket, for libtakeover and takeoverctl, and the figures for Prometheus */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>
#include <utlist.h>

#include "takeoverd.h"

#define CLIENTS_MAX	16384u		/* a quarter of the descriptors */
#define UNREACHABLE_NS	200000000ull
#define DIAL_NS		(2 * SECOND_NS)	/* libtakeover waits for an answer, and a second more */

/* "promote all" is one for many */
struct promotion {
	struct client *client;	/* NULL: it has gone */
	unsigned int left;
	int status;
	FILE *f;
	char *text;
	size_t size;
};

struct client {
	struct watch watch;
	uid_t uid;
	struct service *svc;
	struct wait *wait;
	struct dial *dial;
	bool dialling;		/* for the log of the peer, or about to */
	uint64_t dial_until;
	struct promotion *promotion;
	bool watching;
	struct client *prev, *next;
};

static struct client *clients;
static unsigned int clients_count;
static struct watch listener = { -1, NULL };

static void send_answer(struct client *client, const struct local_answer *answer, int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec part = { (void *)answer, sizeof(*answer) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	if (fd >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	}
	/* It has asked once, so there is room, or it has gone; if not, it is not to wait for what does not come */
	if (sendmsg(client->watch.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		shutdown(client->watch.fd, SHUT_RDWR);
	if (fd >= 0)
		close(fd);
}

static void refuse(struct client *client, int error)
{
	send_answer(client, &(struct local_answer){ .type = LOCAL_REFUSED, .error = error }, -1);
}

void client_answer(struct client *client, uint32_t type, int fd, uint64_t length)
{
	client->wait = NULL;
	send_answer(client, &(struct local_answer){ .type = type, .length = length }, fd);
}

void client_look(struct client *client)
{
	send_answer(client, &(struct local_answer){ .type = LOCAL_LOOK }, -1);
}

/* libtakeover. */

/* Nobody listens there, but somebody did a moment ago: it is being started anew */
static bool log_restarts(const struct client *client, int error)
{
	const struct service *svc = client->svc;
	const uint64_t now = now_ns();

	return (error == ECONNREFUSED || error == ECONNRESET || error == EPROTO) && svc->state == PROTECTED && now < client->dial_until &&
	       svc->alive_at && now - svc->alive_at < ALIVE_NS;
}

static void log_dialled(void *arg, int error, int fd, const struct peer_message *answer)
{
	struct client *client = arg;
	struct service *svc = client->svc;

	(void)answer;
	client->dial = NULL;
	if (error && log_restarts(client, error))
		return;		/* and dialled again by the next tick */
	client->dialling = false;
	if (error) {
		if (now_ns() >= svc->unreachable_said)
			say(LOG_WARNING, "%s: the peer's log cannot be reached: %s", svc->c->name, strerror(error));
		svc->unreachable_said = now_ns() + UNREACHABLE_NS;
		/* Who is refused has not waited */
		if (error != ECONNREFUSED)
			svc->unreachable_until = svc->unreachable_said;
		refuse(client, error == EACCES || error == EPROTO ? error : EHOSTUNREACH);
		return;
	}
	send_answer(client, &(struct local_answer){ .type = LOCAL_GIVEN, .patience_ms = svc->c->patience / 1000000 }, fd);
}

static void log_dial(struct client *client)
{
	struct service *svc = client->svc;
	const uint64_t now = now_ns();

	client->dial = now < client->dial_until ? peer_dial(svc, &svc->peer_log, NULL, client->dial_until - now, log_dialled, client) : NULL;
	if (!client->dial)
		log_dialled(client, EHOSTUNREACH, -1, NULL);
}

static void ask_log(struct client *client, struct service *svc)
{
	const uint64_t limit = svc->c->patience < DIAL_NS ? svc->c->patience : DIAL_NS;

	if (svc->state != PROTECTED || now_ns() < svc->unreachable_until) {
		refuse(client, EHOSTUNREACH);
		return;
	}
	client->svc = svc;
	client->dialling = true;
	client->dial_until = now_ns() + limit;
	log_dial(client);
}

void local_tick(void)
{
	struct client *client;

	DL_FOREACH(clients, client)
		if (client->dialling && !client->dial)
			log_dial(client);
}

/* takeoverctl. */

static void give_text(struct client *client, int status, const char *text)
{
	const size_t size = strlen(text);
	int fd = memfd_create("answer", MFD_CLOEXEC);

	if (fd >= 0 && (write(fd, text, size) != (ssize_t)size || lseek(fd, 0, SEEK_SET))) {
		close(fd);
		fd = -1;
	}
	send_answer(client, &(struct local_answer){ .type = LOCAL_GIVEN, .error = fd < 0 ? 1 : status, .length = size }, fd);
}

static void promoted(void *arg, int status, const char *text)
{
	struct promotion *p = arg;

	/* What has failed can be tried again, and is told before what the peer has */
	if (status && p->status != 1)
		p->status = status;
	fputs(text, p->f);
	if (--p->left)
		return;
	fclose(p->f);
	if (p->client) {
		p->client->promotion = NULL;
		give_text(p->client, p->status, p->text);
	}
	free(p->text);
	free(p);
}

/* @name: one, or all */
static bool named(const struct service *svc, const char *name)
{
	return !svc->left && (!strcmp(name, "all") || !strcmp(name, svc->c->name));
}

static void command_promote(struct client *client, const char *name)
{
	struct promotion *p = must_alloc(sizeof(*p));
	struct service *svc;

	p->client = client;
	p->left = 1;	/* ours */
	p->f = open_memstream(&p->text, &p->size);
	if (!p->f)
		abort();
	client->promotion = p;
	LL_FOREACH(services, svc)
		if (named(svc, name)) {
			p->left++;
			service_promote(svc, promoted, p);
		}
	promoted(p, 0, "");
}

/* "SERVICE [ADDRESS|- [ADDRESS:PORT]]" */
static const char *command_protect(struct service *svc, const char *peer, const char *log, bool *later)
{
	const bool moved = *peer && strcmp(peer, "-");
	union address peer_address, log_address;

	if ((moved && (!address_parse(peer, false, &peer_address) || address_unfit(&peer_address))) ||
	    (*log && (!address_parse(log, true, &log_address) || address_unfit(&log_address))))
		return "--peer is a host's address, --peer-log one and a port\n";
	if ((moved || *log) && service_set_peer(svc, moved ? &peer_address : NULL, *log ? &log_address : NULL))
		return "it is protected, or that peer's address is of another family\n";
	switch (service_protect(svc)) {
	case PROTECTION_REFUSED:
		return "the address is not on this host: it is asked at the host that the address points to\n";
	case PROTECTION_LEAVING:
		return "it is not in the file any more\n";
	case PROTECTION_LATER:
		*later = true;
		return "";
	default:
		return "";
	}
}

static void check_found(void *arg, const char *text)
{
	fprintf(arg, "%s\n", text);
}

static void command_status(struct client *client)
{
	json_t *all = json_pack("{s:s, s:{s:b, s:I}, s:{s:I, s:I, s:I, s:I}, s:o}", "host", config.name, "rules", "wrong", rules.wrong, "lost", (json_int_t)rules.lost, "store", "limit", (json_int_t)config.store_limit, "used",
				(json_int_t)store_used(), "replies", (json_int_t)store_entries(), "open", (json_int_t)store_open_entries(), "services", services_status());
	char *text = json_dumps(all, JSON_INDENT(2));

	give_text(client, 0, text ? text : "");
	free(text);
	json_decref(all);
}

static void command_check(struct client *client)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	unsigned int count = f ? host_check(check_found, f) : 1;

	if (f)
		fclose(f);
	give_text(client, count ? 1 : 0, text ? text : "");
	free(text);
}

static void command(struct client *client, char *text)
{
	char *save, *verb = strtok_r(text, " ", &save), *name = strtok_r(NULL, " ", &save), *peer = strtok_r(NULL, " ", &save);
	char *log = strtok_r(NULL, " ", &save);
	const char *wrong = "", *what;
	struct service *svc;
	bool found = false, later = false;

	if (!verb) {
		give_text(client, 2, "no command\n");
		return;
	}
	if (!strcmp(verb, "status")) {
		command_status(client);
		return;
	}
	if (!strcmp(verb, "check")) {
		command_check(client);
		return;
	}
	if (!strcmp(verb, "watch")) {
		client->watching = true;
		give_text(client, 0, "");
		return;
	}
	if (client->uid && client->uid != geteuid()) {
		give_text(client, 1, "root alone may do that\n");
		return;
	}
	LL_FOREACH(services, svc)
		found |= name && named(svc, name);
	if (!found) {
		give_text(client, 2, "there is no such service\n");
		return;
	}
	if (!strcmp(verb, "promote")) {
		command_promote(client, name);
		return;
	}
	LL_FOREACH(services, svc) {
		if (!named(svc, name))
			continue;
		if (!strcmp(verb, "abandon"))
			what = service_abandon(svc) ? "" : "the kernel does not abandon it: the journal says why\n";
		else if (!strcmp(verb, "protect"))
			what = command_protect(svc, peer ? peer : "", log ? log : "", &later);
		else
			what = "there is no such command\n";
		if (!*wrong)
			wrong = what;
	}
	if (!*wrong && later)
		give_text(client, 0, "the address is not on this host yet: the peer is asked as soon as it is\n");
	else
		give_text(client, *wrong ? 1 : 0, wrong);
}

/* One line, to each that watches */
void local_event(const char *text)
{
	struct client *client;

	DL_FOREACH(clients, client)
		if (client->watching)
			send(client->watch.fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Clients. */

static void client_close(struct client *client)
{
	if (client->wait)
		wait_cancel(client->wait);
	if (client->dial)
		peer_forget(client->dial);
	if (client->promotion)
		client->promotion->client = NULL;
	DL_DELETE(clients, client);
	clients_count--;
	watch_close(&client->watch);
	free(client);
}

/* false: it does not keep to the protocol */
static bool client_request(struct client *client, struct local_request *r, size_t size)
{
	struct service *svc;

	if (size < sizeof(*r) || r->version != TAKEOVER_VERSION)
		return false;
	if (r->type == LOCAL_ALONE) {
		/* Our answer may have been under way to it */
		if (client->wait)
			wait_alone(client->wait);
		return true;
	}
	if (client->wait || client->dialling || client->promotion || client->watching)
		return false;
	svc = service_at(&r->service);
	switch (r->type) {
	case LOCAL_COMMAND:
		((char *)r)[size] = 0;
		command(client, r->text);
		return true;
	case LOCAL_LOG:
		if (svc)
			ask_log(client, svc);
		else
			refuse(client, ENOENT);
		return true;
	case LOCAL_WAIT:
		if (r->number == UINT64_MAX)	/* there is none after it */
			return false;
		if (svc)
			client->wait = wait_new(client, svc, r->id, r->number, r->alone);
		else
			send_answer(client, &(struct local_answer){ .type = r->alone ? LOCAL_EXECUTE : LOCAL_REFUSED, .error = ENOENT }, -1);
		return true;
	}
	return false;
}

static void client_ready(struct watch *watch, uint32_t events)
{
	union {
		struct local_request request;
		char room[sizeof(struct local_request) + COMMAND_MAX + 1];
	} in;
	struct client *client = (struct client *)watch;
	ssize_t n = recv(watch->fd, &in, sizeof(in) - 1, MSG_DONTWAIT);

	(void)events;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0 || !client_request(client, &in.request, n))
		client_close(client);
}

static void client_accept(struct watch *watch, uint32_t events)
{
	struct client *client;
	struct ucred who;
	socklen_t len = sizeof(who);
	int fd = accept_spared(watch->fd, SOCK_CLOEXEC | SOCK_NONBLOCK);

	(void)events;
	if (fd < 0)
		return;
	client = calloc(1, sizeof(*client));
	if (client)
		client->watch = (struct watch){ fd, client_ready };
	/* Others may not keep root out */
	if (!client || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) || (who.uid && clients_count >= CLIENTS_MAX) || watch_add(&client->watch, EPOLLIN)) {
		free(client);
		close(fd);
		return;
	}
	client->uid = who.uid;
	clients_count++;
	DL_APPEND(clients, client);
}

void control_beside(const char *name, char path[PATH_MAX])
{
	char copy[PATH_MAX];

	snprintf(copy, sizeof(copy), "%s", config.control);
	snprintf(path, PATH_MAX, "%.*s/%s", PATH_MAX - NAME_SIZE - 16, dirname(copy), name);
}

int local_listen(void)
{
	const struct group *group = config.group ? getgrnam(config.group) : NULL;
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	const struct sockaddr *name = (const struct sockaddr *)&at;
	char copy[PATH_MAX];
	mode_t mask;
	int probe;

	snprintf(copy, sizeof(copy), "%s", config.control);
	snprintf(at.sun_path, sizeof(at.sun_path), "%s", config.control);
	if (mkdir(dirname(copy), 0755) && errno != EEXIST)
		goto fail;
	probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (probe >= 0 && !connect(probe, name, sizeof(at))) {
		close(probe);
		say(LOG_ERR, "control = %s: another takeoverd runs", config.control);
		return -1;
	}
	close(probe);
	unlink(config.control);
	listener = (struct watch){ socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), client_accept };
	mask = umask(0117);
	if (listener.fd < 0 || bind(listener.fd, name, sizeof(at)))
		goto fail;
	umask(mask);
	if ((!group || !chown(config.control, -1, group->gr_gid)) && !listen(listener.fd, 4096) && !watch_add(&listener, EPOLLIN))
		return 0;
fail:
	say(LOG_ERR, "control = %s: %s", config.control, strerror(errno));
	return -1;
}

/* Figures. */

static struct MHD_Daemon *http;
static struct watch http_watch = { -1, NULL };

static void family(FILE *f, const char *name, const char *type, const char *help)
{
	fprintf(f, "# HELP takeover_%s %s\n# TYPE takeover_%s %s\n", name, help, name, type);
}

static char *metrics_text(size_t *size)
{
	static const struct {
		const char *name, *type, *help, *key;
	} all[] = {
		{ "epoch", "gauge", "Grows with each agreement and each promotion", "epoch" },
		{ "split", "gauge", "Both hosts have been promoted", "split" },
		{ "displaced", "gauge", "The address has left this host, which is alone", "displaced" },
		{ "silent", "gauge", "The peer has abandoned it, and this host has not been promoted", "silent" },
		{ "settings_differ", "gauge", "TCP's settings are not those of the peer", "settings_differ" },
		{ "clocks_differ", "gauge", "The peer's time of day is not this host's, by more than a second", "clocks_differ" },
		{ "replies_total", "counter", "Logged replies given to this host's servers", "replies" },
		{ "executed_total", "counter", "Requests that this host was told to execute, since the primary was gone", "executed" },
		{ "refused_total", "counter", "Waits for a reply that was not logged", "refused" },
		{ "lost_total", "counter", "Replies that the primary began and did not end", "lost" },
		{ "forgotten_total", "counter", "Replies that the primary began, and that nobody wrote to or waited for", "forgotten" },
	};
	json_t *services_now = services_status(), *one, *value;
	char *text = NULL;
	FILE *f = open_memstream(&text, size);
	const char *key;
	size_t i, n;

	if (!f)
		abort();
	family(f, "store_bytes", "gauge", "What the reply log holds");
	fprintf(f, "takeover_store_bytes %" PRIu64 "\n", store_used());
	family(f, "store_limit_bytes", "gauge", "What it may hold");
	fprintf(f, "takeover_store_limit_bytes %" PRIu64 "\n", config.store_limit);
	family(f, "rules_wrong", "gauge", "The packet filter's rules are not there, or not all");
	fprintf(f, "takeover_rules_wrong %d\n", rules.wrong);
	family(f, "rules_lost_total", "counter", "How often they were found so, and set again");
	fprintf(f, "takeover_rules_lost_total %" PRIu64 "\n", rules.lost);
	family(f, "state", "gauge", "1 for what the service is here");
	json_array_foreach(services_now, i, one)
		for (n = 0; n < 6; n++) {
			static const char *const states[] = { "waiting", "protected", "alone", "abandoned", "promoting", "abandoning" };

			fprintf(f, "takeover_state{service=\"%s\",state=\"%s\"} %d\n", json_string_value(json_object_get(one, "name")), states[n],
				!strcmp(states[n], json_string_value(json_object_get(one, "state"))));
		}
	family(f, "peer_alive", "gauge", "Its takeoverd has answered in the last seconds");
	json_array_foreach(services_now, i, one)
		fprintf(f, "takeover_peer_alive{service=\"%s\"} %d\n", json_string_value(json_object_get(one, "name")),
			json_is_true(json_object_get(json_object_get(one, "peer"), "alive")));
	for (n = 0; n < sizeof(all) / sizeof(all[0]); n++) {
		family(f, all[n].name, all[n].type, all[n].help);
		json_array_foreach(services_now, i, one) {
			value = json_object_get(one, all[n].key);
			fprintf(f, "takeover_%s{service=\"%s\"} %" JSON_INTEGER_FORMAT "\n", all[n].name, json_string_value(json_object_get(one, "name")),
				json_is_boolean(value) ? (json_int_t)json_is_true(value) : json_integer_value(value));
		}
	}
	/* Those of the kernel, under its own names */
	family(f, "kernel", "untyped", "What the kernel counts of a service: /proc/net/tcp_replica");
	json_array_foreach(services_now, i, one)
		json_object_foreach(json_object_get(one, "kernel"), key, value)
			fprintf(f, "takeover_kernel{service=\"%s\",count=\"%s\"} %" JSON_INTEGER_FORMAT "\n", json_string_value(json_object_get(one, "name")), key,
				json_integer_value(value));
	fclose(f);
	json_decref(services_now);
	return text;
}

static enum MHD_Result http_answer(void *arg, struct MHD_Connection *connection, const char *url, const char *method, const char *version,
				   const char *upload, size_t *upload_size, void **request)
{
	const bool known = !strcmp(url, "/metrics") && !strcmp(method, MHD_HTTP_METHOD_GET);
	static char absent[] = "GET /metrics\n";
	struct MHD_Response *response;
	enum MHD_Result result;
	size_t size = sizeof(absent) - 1;
	char *text;

	(void)arg, (void)version, (void)upload;
	if (!*request) {
		*request = absent;	/* it wants to be asked twice */
		return MHD_YES;
	}
	*upload_size = 0;
	text = known ? metrics_text(&size) : absent;
	response = MHD_create_response_from_buffer(size, text, known ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
	if (!response)
		return MHD_NO;
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, known ? "text/plain; version=0.0.4" : "text/plain");
	result = MHD_queue_response(connection, known ? MHD_HTTP_OK : MHD_HTTP_NOT_FOUND, response);
	MHD_destroy_response(response);
	return result;
}

static void http_ready(struct watch *watch, uint32_t events)
{
	(void)watch, (void)events;
	MHD_run(http);
}

void metrics_start(void)
{
	const unsigned int v6 = config.metrics.any.sa_family == AF_INET6 ? MHD_USE_IPv6 : 0;

	if (!config.metrics.any.sa_family)
		return;
	http = MHD_start_daemon(MHD_USE_EPOLL | v6, 0, NULL, NULL, http_answer, NULL, MHD_OPTION_SOCK_ADDR, &config.metrics.any,
				MHD_OPTION_CONNECTION_LIMIT, 16u, MHD_OPTION_CONNECTION_TIMEOUT, 10u, MHD_OPTION_END);
	if (http) {
		http_watch = (struct watch){ MHD_get_daemon_info(http, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd, http_ready };
		if (!watch_add(&http_watch, EPOLLIN))
			return;
	}
	say(LOG_WARNING, "metrics = %s: there are none: %s", address_text(&config.metrics, true), strerror(errno));
}

/* It looks at its time-outs only when it is called */
void metrics_tick(void)
{
	if (http)
		MHD_run(http);
}

void metrics_stop(void)
{
	if (!http)
		return;
	watch_remove(&http_watch);
	MHD_stop_daemon(http);
}
