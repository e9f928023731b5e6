// SPDX-License-Identifier: LGPL-2.1-or-later
/* Messages to other servers, by libcurl: each thread keeps its connections */
#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http.h"
#include "kept.h"
#include "wire.h"

#define CONNECT_MS	2000l
#define ANSWER_MS	5000l		/* of a member of the domain, to what needs no method to run */
#define METHOD_MS	60000l		/* then it is asked again, and joins the one that runs */

static pthread_key_t multi_key;

static void multi_free(void *multi)
{
	curl_multi_cleanup(multi);
}

static void init(void)
{
	curl_global_init(CURL_GLOBAL_DEFAULT);
	pthread_key_create(&multi_key, multi_free);
}

void http_exchange_init(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, init);
}

static CURLM *multi_get(void)
{
	CURLM *multi = pthread_getspecific(multi_key);

	if (!multi) {
		kept_watch();
		multi = curl_multi_init();
		kept_watched();
		pthread_setspecific(multi_key, multi);
	}
	return multi;
}

/* One exchange on its way */
struct leg {
	struct exchange *x;
	const struct service *service;
	CURL *easy;
	struct curl_slist *headers;
	struct bytes body;
	char *type;
	bool answer, bad, large;
};

static curl_socket_t socket_open(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
	int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);

	(void)arg;
	(void)purpose;
	kept_note(fd, KEPT_FILE);
	return fd;
}

static int socket_close(void *arg, curl_socket_t fd)
{
	(void)arg;
	kept_forget(fd);
	return close(fd);
}

static size_t take_body(char *data, size_t size, size_t n, void *arg)
{
	struct leg *leg = arg;

	/* A plain service may say anything */
	if (leg->body.len + size * n > VALUE_MAX) {
		leg->large = true;
		return 0;
	}
	bytes_add(&leg->body, data, size * n);
	return size * n;
}

static bool named(const char *data, size_t len, const char *name, char **value)
{
	size_t n = strlen(name), end = len;

	if (len <= n || data[n] != ':' || strncasecmp(data, name, n))
		return false;
	n++;
	while (n < end && (data[n] == ' ' || data[n] == '\t'))
		n++;
	while (end > n && strchr(" \t\r\n", data[end - 1]))
		end--;
	*value = strndup(data + n, end - n);
	return true;
}

static size_t take_header(char *data, size_t size, size_t n, void *arg)
{
	struct leg *leg = arg;
	struct reply *reply = &leg->x->reply;
	size_t len = size * n;
	char *value = NULL;

	if (named(data, len, H_ANSWER, &value)) {
		leg->answer = answer_parse(value, &reply->answer);
		leg->bad |= !leg->answer;
	} else if (named(data, len, H_SEQUENCE, &value)) {
		leg->bad |= !number_parse(value, UINT64_MAX, &reply->sequence);
	} else if (leg->x->message->kind == M_START && named(data, len, H_SESSION, &value)) {
		bytes_set(&reply->body, value, strlen(value));
	} else if (named(data, len, "Content-Type", &value)) {
		free(leg->type);
		leg->type = value;
		value = NULL;
	} else if (leg->service->member == OUTSIDE) {
		return len;
	} else if (named(data, len, H_DEPENDS, &value)) {
		leg->bad |= !vector_parse(value, &reply->depends);
	} else if (named(data, len, H_ENDINGS, &value)) {
		leg->bad |= !hex_parse(value, &reply->endings);
	}
	free(value);
	return len;
}

static __attribute__((format(printf, 2, 3))) void add_header(struct leg *leg, const char *format, ...)
{
	va_list args;
	char *line;

	va_start(args, format);
	if (vasprintf(&line, format, args) >= 0) {
		leg->headers = curl_slist_append(leg->headers, line);
		free(line);
	}
	va_end(args);
}

/* The path, and the headers that say what is asked */
static char *describe(struct leg *leg)
{
	const struct message *m = leg->x->message;
	struct vector state = { .n = 1, .states = (struct state *)&m->state };
	char *url = NULL, *text;
	int n = -1;

	switch (m->kind) {
	case M_START:
		n = asprintf(&url, "%s/replay/sessions", leg->service->url);
		break;
	case M_END:
		n = asprintf(&url, "%s/replay/sessions/%s", leg->service->url, m->session);
		break;
	case M_CALL:
		n = asprintf(&url, "%s/%s", leg->service->url, m->method);
		if (leg->service->plain)
			add_header(leg, H_KEY ": \"%s-%llu\"", m->session, (unsigned long long)m->sequence);
		else
			add_header(leg, H_SESSION ": %s", m->session);
		break;
	case M_FLUSH:
	case M_HISTORY:
		n = asprintf(&url, "%s/replay/%s", leg->service->url, m->kind == M_FLUSH ? "flush" : "history");
		text = vector_text(&state);
		add_header(leg, H_STATE ": %s", text);
		free(text);
		break;
	case M_RECOVERED:
		n = asprintf(&url, "%s/replay/recovered", leg->service->url);
		break;
	}
	if ((m->kind == M_CALL || m->kind == M_END) && !leg->service->plain)
		add_header(leg, H_SEQUENCE ": %llu", (unsigned long long)m->sequence);
	if (leg->service->member != OUTSIDE) {
		add_header(leg, H_DOMAIN_KEY ": %s", leg->service->domain_key);
		add_header(leg, H_FROM ": %u", m->from);
		text = vector_text(&m->depends);
		if (*text)
			add_header(leg, H_DEPENDS ": %s", text);
		free(text);
	}
	add_header(leg, "Content-Type: application/octet-stream");
	/* Or the library asks whether it may send a large body, and waits */
	add_header(leg, "Expect:");
	return n < 0 ? NULL : url;
}

static bool leg_begin(struct leg *leg, CURLM *multi)
{
	const struct message *m = leg->x->message;
	long wait = m->kind == M_CALL ? METHOD_MS : ANSWER_MS;
	char *url = describe(leg);

	leg->easy = curl_easy_init();
	if (!url || !leg->easy) {
		free(url);
		return false;
	}
	curl_easy_setopt(leg->easy, CURLOPT_URL, url);
	free(url);
	curl_easy_setopt(leg->easy, CURLOPT_NOSIGNAL, 1l);
	curl_easy_setopt(leg->easy, CURLOPT_PROTOCOLS_STR, "http,https");
	if (leg->service->ca)
		curl_easy_setopt(leg->easy, CURLOPT_CAINFO, leg->service->ca);
	curl_easy_setopt(leg->easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
	if (leg->x->patience && leg->x->patience / 1000000 < (uint64_t)wait)
		wait = leg->x->patience / 1000000 + 1;
	curl_easy_setopt(leg->easy, CURLOPT_TIMEOUT_MS, wait);
	curl_easy_setopt(leg->easy, CURLOPT_HTTPHEADER, leg->headers);
	curl_easy_setopt(leg->easy, CURLOPT_POST, 1l);
	if (m->kind == M_END)
		curl_easy_setopt(leg->easy, CURLOPT_CUSTOMREQUEST, "DELETE");
	curl_easy_setopt(leg->easy, CURLOPT_POSTFIELDS, m->body.len ? (char *)m->body.data : "");
	curl_easy_setopt(leg->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)m->body.len);
	curl_easy_setopt(leg->easy, CURLOPT_WRITEFUNCTION, take_body);
	curl_easy_setopt(leg->easy, CURLOPT_WRITEDATA, leg);
	curl_easy_setopt(leg->easy, CURLOPT_HEADERFUNCTION, take_header);
	curl_easy_setopt(leg->easy, CURLOPT_HEADERDATA, leg);
	curl_easy_setopt(leg->easy, CURLOPT_PRIVATE, leg);
	curl_easy_setopt(leg->easy, CURLOPT_OPENSOCKETFUNCTION, socket_open);
	curl_easy_setopt(leg->easy, CURLOPT_CLOSESOCKETFUNCTION, socket_close);
	return curl_multi_add_handle(multi, leg->easy) == CURLM_OK;
}

/* "Ask again" of a service that is none of ours, or of a proxy before one that is */
static bool again(long status)
{
	return status == 409 || status == 425 || status == 429 || status == 502 || status == 503 || status == 504;
}

static void leg_end(struct leg *leg, CURLcode result)
{
	struct reply *reply = &leg->x->reply;
	long status = 0;

	curl_easy_getinfo(leg->easy, CURLINFO_RESPONSE_CODE, &status);
	/* It would say the same again */
	if (leg->large && !leg->bad && leg->x->message->kind == M_CALL && (leg->answer ? reply->answer == A_OK : !again(status))) {
		reply->answer = A_LARGE;
		return;
	}
	if (result != CURLE_OK || leg->bad || (!leg->answer && (!leg->service->plain || again(status)))) {
		leg->x->error = result == CURLE_COULDNT_CONNECT ? -ECONNREFUSED : leg->bad ? -EBADMSG : -ETIMEDOUT;
		return;
	}
	if (!leg->answer) {
		reply->answer = A_OK;
		reply->sequence = leg->x->message->sequence;
	}
	if (leg->x->message->kind != M_CALL)
		return;
	reply->status = status;
	if (reply->answer == A_OK)
		bytes_set(&reply->body, leg->type ? leg->type : "", (leg->type ? strlen(leg->type) : 0) + 1);
	bytes_add(&reply->body, leg->body.data, leg->body.len);
}

/* A session with a service that knows none of ours is a name for its keys */
static void begin_plain(struct env *env, struct exchange *x)
{
	struct bytes name = { 0 };
	uint8_t random[16];
	char *text;

	env->random(env, random, sizeof(random));
	bytes_add(&name, random, sizeof(random));
	text = hex_text(&name);
	bytes_set(&x->reply.body, text, strlen(text));
	x->reply.answer = A_OK;
	x->reply.sequence = 1;
	free(text);
	bytes_free(&name);
}

void http_exchange(struct env *env, struct exchange *exchanges, unsigned int n)
{
	struct leg *legs = must_alloc(n * sizeof(*legs));
	CURLM *multi = multi_get();
	int running = 0, left;
	CURLMsg *done;
	unsigned int i;

	for (i = 0; i < n; i++) {
		const struct service *service = exchanges[i].peer->where;

		legs[i] = (struct leg){ .x = &exchanges[i], .service = service };
		exchanges[i].reply = (struct reply){ 0 };
		exchanges[i].error = 0;
		if (service->plain && exchanges[i].message->kind == M_START) {
			begin_plain(env, &exchanges[i]);
			continue;
		}
		exchanges[i].error = -ETIMEDOUT;
		if (!multi || !leg_begin(&legs[i], multi))
			exchanges[i].error = -ENOMEM;
	}
	do {
		if (curl_multi_perform(multi, &running) != CURLM_OK)
			break;
		while ((done = curl_multi_info_read(multi, &left))) {
			struct leg *leg;

			if (done->msg != CURLMSG_DONE)
				continue;
			curl_easy_getinfo(done->easy_handle, CURLINFO_PRIVATE, (char **)&leg);
			leg->x->error = 0;
			leg_end(leg, done->data.result);
		}
		if (running)
			curl_multi_poll(multi, NULL, 0, 200, NULL);
	} while (running && !((struct world *)env)->stopping);
	for (i = 0; i < n; i++) {
		if (legs[i].easy) {
			curl_multi_remove_handle(multi, legs[i].easy);
			curl_easy_cleanup(legs[i].easy);
		}
		if (exchanges[i].error)
			reply_free(&exchanges[i].reply);
		curl_slist_free_all(legs[i].headers);
		bytes_free(&legs[i].body);
		free(legs[i].type);
	}
	free(legs);
}
