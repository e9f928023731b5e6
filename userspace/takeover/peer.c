// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Connections between the hosts. All begin alike:
 *
 *	dialler			listener
 *	struct hello	->
 *			<-	struct challenge
 *	proof		->
 *			<-	welcome
 *
 * Each shows that it has the service's key: challenge.mac is HMAC-SHA256(key, "listener", hello, challenge.nonce), the proof is the same
 * with "dialler". In a KIND_PEER the dialler then sends one struct sealed, gets another, and that is its end. They are signed the same way, with
 * "question" or "answer__" and the message behind the nonce, so that neither is good for another connection, or in the other direction.
 * A KIND_LOG becomes one of messages of wire.h, between a server, which has no key, and our peer. Those are not signed: the network
 * between the hosts is one that nobody else writes to.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <syslog.h>
#include <unistd.h>
#include <utlist.h>

#include "takeoverd.h"

#define MAGIC		"TAKEOVER"
#define NONCE_SIZE	32
#define MAC_SIZE	32
#define QUESTION	"question"
#define ANSWER		"answer__"
#define GREETING_NS	(2 * SECOND_NS)	/* how long a stranger may take to say who he is */
#define STRANGERS_MAX	256

enum { KIND_LOG = 1, KIND_PEER };

struct hello {
	char magic[8];
	uint16_t version;
	uint16_t kind;
	uint16_t family;	/* 4 or 6 */
	uint16_t port;
	uint8_t address[16];
	uint8_t nonce[NONCE_SIZE];
};

struct challenge {
	uint8_t nonce[NONCE_SIZE];
	uint8_t mac[MAC_SIZE];
};

struct sealed {
	struct peer_message message;	/* in network byte order */
	uint8_t mac[MAC_SIZE];
};

/* All that is read here is one of these */
union frame {
	struct hello hello;
	struct challenge challenge;
	uint8_t proof[MAC_SIZE];
	uint32_t welcome;	/* 0, or an errno */
	struct sealed sealed;
};

/* What one side of a greeting knows */
struct dial {
	struct watch watch;
	struct service *svc;
	bool listener;
	enum { CONNECTING, HELLO, CHALLENGE, PROOF, WELCOME, MESSAGE } expects;
	struct hello hello;
	struct challenge challenge;
	union frame in;
	size_t have, want;
	uint64_t deadline;
	/* The dialler's */
	uint32_t begun;		/* clock_ms() */
	struct peer_message question;
	dialled_fn done;
	void *arg;
	struct dial *prev, *next;
};

static struct dial *dials;
static unsigned int strangers;
static struct watch listener = { -1, NULL };

/* @what: one of eight letters; @message: of a question or an answer */
static void sign(const struct dial *d, const char *what, const struct peer_message *message, uint8_t mac[MAC_SIZE])
{
	struct {
		char what[8];
		struct hello hello;
		uint8_t nonce[NONCE_SIZE];
		struct peer_message message;
	} text = { .hello = d->hello };
	const size_t size = sizeof(text) - (message ? 0 : sizeof(text.message));

	memcpy(text.what, what, sizeof(text.what));
	memcpy(text.nonce, d->challenge.nonce, NONCE_SIZE);
	if (message)
		text.message = *message;
	if (!HMAC(EVP_sha256(), d->svc->c->key, KEY_SIZE, (const uint8_t *)&text, size, mac, NULL)) {
		say(LOG_CRIT, "libcrypto has no HMAC-SHA256");
		abort();
	}
}

static bool nonce(uint8_t to[NONCE_SIZE])
{
	return getrandom(to, NONCE_SIZE, 0) == NONCE_SIZE;
}

static void message_swap(struct peer_message *m, bool out)
{
	m->verb = out ? htonl(m->verb) : ntohl(m->verb);
	m->state = out ? htonl(m->state) : ntohl(m->state);
	m->epoch = out ? htobe64(m->epoch) : be64toh(m->epoch);
	m->backup = out ? htonl(m->backup) : ntohl(m->backup);
	m->lot = out ? htonl(m->lot) : ntohl(m->lot);
	for (unsigned int i = 0; i < SETTINGS; i++)
		m->settings[i] = out ? htonl(m->settings[i]) : ntohl(m->settings[i]);
}

/* Gives the descriptor */
static int dial_free(struct dial *d)
{
	const int fd = d->watch.fd;

	DL_DELETE(dials, d);
	if (d->listener)
		strangers--;
	watch_remove(&d->watch);
	free(d);
	return fd;
}

/* Who has dialled is told, after it is gone: he may dial again */
static void dial_end(struct dial *d, int error, const struct peer_message *answer)
{
	const struct peer_message copy = answer ? *answer : (struct peer_message){ 0 };
	const dialled_fn done = d->done;
	void *arg = d->arg;

	close(dial_free(d));
	if (done)
		done(arg, error, -1, answer ? &copy : NULL);
}

/* It becomes somebody else's */
static void dial_give(struct dial *d)
{
	const dialled_fn done = d->done;
	struct service *svc = d->svc;
	void *arg = d->arg;
	const int fd = dial_free(d);

	if (done)
		done(arg, 0, fd, NULL);
	else
		log_accept(svc, fd);
}

/* They are short: what does not fit has no reader */
static bool dial_send(struct dial *d, const void *data, size_t size)
{
	return send(d->watch.fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size;
}

static bool dial_seal(struct dial *d, const struct peer_message *message)
{
	struct sealed sealed = { .message = *message };

	sign(d, d->listener ? ANSWER : QUESTION, message, sealed.mac);
	return dial_send(d, &sealed, sizeof(sealed));
}

static void expect(struct dial *d, int what, size_t size)
{
	d->expects = what;
	d->have = 0;
	d->want = size;
}

static struct service *service_greeted(const struct hello *hello)
{
	struct endpoint at = { .family = ntohs(hello->family) == 4 ? AF_INET : AF_INET6, .port = hello->port };

	memcpy(at.address, hello->address, sizeof(at.address));
	return service_at(&at);
}

/* One whole frame has come. Returns whether @d goes on. */
static bool dial_frame(struct dial *d)
{
	struct peer_message message;
	uint8_t mac[MAC_SIZE];
	const struct dial *other;
	uint32_t welcome;

	switch (d->expects) {
	case HELLO:
		d->hello = d->in.hello;
		DL_FOREACH(dials, other)
			if (!other->listener && !memcmp(other->hello.nonce, d->hello.nonce, NONCE_SIZE)) {
				say(LOG_ERR, "%s: peer or peer_log is this host itself", other->svc->c->name);
				return false;
			}
		d->svc = service_greeted(&d->hello);
		if (memcmp(d->hello.magic, MAGIC, 8) || ntohs(d->hello.version) != TAKEOVER_VERSION || !d->svc || !nonce(d->challenge.nonce))
			return false;
		sign(d, "listener", NULL, d->challenge.mac);
		expect(d, PROOF, MAC_SIZE);
		return dial_send(d, &d->challenge, sizeof(d->challenge));
	case CHALLENGE:
		d->challenge = d->in.challenge;
		sign(d, "listener", NULL, mac);
		if (CRYPTO_memcmp(mac, d->challenge.mac, MAC_SIZE)) {
			dial_end(d, EACCES, NULL);
			return true;
		}
		sign(d, "dialler\0", NULL, mac);
		expect(d, WELCOME, sizeof(welcome));
		return dial_send(d, mac, sizeof(mac));
	case PROOF:
		sign(d, "dialler\0", NULL, mac);
		if (CRYPTO_memcmp(mac, d->in.proof, MAC_SIZE)) {
			say(LOG_WARNING, "%s: somebody who has another key asks", d->svc->c->name);
			return false;
		}
		welcome = ntohs(d->hello.kind) == KIND_LOG && d->svc->state != PROTECTED ? EHOSTUNREACH : 0;
		welcome = htonl(welcome);
		if (!dial_send(d, &welcome, sizeof(welcome)) || welcome)
			return false;
		if (ntohs(d->hello.kind) == KIND_LOG)
			dial_give(d);
		else
			expect(d, MESSAGE, sizeof(struct sealed));
		return true;
	case WELCOME:
		if (d->in.welcome) {
			dial_end(d, ntohl(d->in.welcome), NULL);
		} else if (ntohs(d->hello.kind) == KIND_LOG) {
			dial_give(d);
		} else {
			expect(d, MESSAGE, sizeof(struct sealed));
			return dial_seal(d, &d->question);
		}
		return true;
	case MESSAGE:
		message = d->in.sealed.message;
		sign(d, d->listener ? QUESTION : ANSWER, &message, mac);
		if (CRYPTO_memcmp(mac, d->in.sealed.mac, MAC_SIZE)) {
			say(LOG_WARNING, "%s: what came from the peer was changed on its way: nobody else may write to that network", d->svc->c->name);
			return false;
		}
		message_swap(&message, false);
		if (!d->listener) {
			service_clock(d->svc, d->begun, message.verb == VERB_ANSWER ? message.lot : 0);
			dial_end(d, 0, &message);
			return true;
		}
		service_asked(d->svc, &message);
		message_swap(&message, true);
		dial_seal(d, &message);
		return false;
	default:
		return false;
	}
}

static void dial_connected(struct dial *d)
{
	int error = 0;
	socklen_t len = sizeof(error);

	getsockopt(d->watch.fd, SOL_SOCKET, SO_ERROR, &error, &len);
	if (!error && !dial_send(d, &d->hello, sizeof(d->hello)))
		error = ECONNRESET;
	if (error) {
		dial_end(d, error, NULL);
		return;
	}
	expect(d, CHALLENGE, sizeof(d->in.challenge));
	watch_change(&d->watch, EPOLLIN);
}

/* One frame a turn: a dial may be another's afterwards, or gone */
static void dial_ready(struct watch *watch, uint32_t events)
{
	struct dial *d = (struct dial *)watch;
	ssize_t n;

	(void)events;
	if (d->expects == CONNECTING) {
		dial_connected(d);
		return;
	}
	n = recv(watch->fd, (char *)&d->in + d->have, d->want - d->have, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		dial_end(d, n ? errno : EPROTO, NULL);
		return;
	}
	d->have += n;
	if (d->have == d->want && !dial_frame(d))
		dial_end(d, ECONNRESET, NULL);
}

static struct dial *dial_new(int fd, uint64_t limit_ns)
{
	struct dial *d = calloc(1, sizeof(*d));
	const int one = 1;

	if (!d)
		return NULL;
	d->watch = (struct watch){ fd, dial_ready };
	d->deadline = now_ns() + limit_ns;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return d;
}

struct dial *peer_dial(struct service *svc, const union address *to, const struct peer_message *question, uint64_t limit_ns,
		       dialled_fn done, void *arg)
{
	const int fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	const socklen_t len = to->any.sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	const unsigned int patience_ms = svc->c->patience / 1000000;
	struct dial *d;

	if (fd < 0)
		return NULL;
	if (connect(fd, &to->any, len) && errno != EINPROGRESS)
		goto fail;
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof(patience_ms));
	d = dial_new(fd, limit_ns);
	if (!d)
		goto fail;
	d->svc = svc;
	d->done = done;
	d->arg = arg;
	d->hello = (struct hello){
		.magic = MAGIC, .version = htons(TAKEOVER_VERSION), .kind = htons(question ? KIND_PEER : KIND_LOG),
		.family = htons(svc->c->at.family == AF_INET ? 4 : 6), .port = svc->c->at.port,
	};
	memcpy(d->hello.address, svc->c->at.address, sizeof(d->hello.address));
	d->begun = clock_ms();
	if (question) {
		d->question = *question;
		message_swap(&d->question, true);
	}
	if (!nonce(d->hello.nonce) || watch_add(&d->watch, EPOLLOUT)) {
		free(d);
		goto fail;
	}
	DL_APPEND(dials, d);
	return d;
fail:
	close(fd);
	return NULL;
}

void peer_forget(struct dial *dial)
{
	close(dial_free(dial));
}

static void accept_ready(struct watch *watch, uint32_t events)
{
	int fd = accept_spared(watch->fd, SOCK_NONBLOCK | SOCK_CLOEXEC);
	struct dial *d;

	(void)events;
	if (fd < 0)
		return;
	/* Who has had the longest time makes room: a crowd that says nothing keeps nobody out */
	if (strangers == STRANGERS_MAX) {
		DL_SEARCH_SCALAR(dials, d, listener, true);
		dial_end(d, 0, NULL);
	}
	d = dial_new(fd, GREETING_NS);
	if (!d) {
		close(fd);
		return;
	}
	d->listener = true;
	expect(d, HELLO, sizeof(d->in.hello));
	if (watch_add(&d->watch, EPOLLIN)) {
		close(fd);
		free(d);
		return;
	}
	strangers++;
	DL_APPEND(dials, d);
}

int peer_listen(void)
{
	const union address *at = &config.log_listen;
	const socklen_t len = at->any.sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	const int one = 1;

	listener = (struct watch){ socket(at->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), accept_ready };
	if (listener.fd >= 0 && !setsockopt(listener.fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) &&
	    !setsockopt(listener.fd, IPPROTO_IP, IP_FREEBIND, &one, sizeof(one)) && !bind(listener.fd, &at->any, len) && !listen(listener.fd, 512) &&
	    !watch_add(&listener, EPOLLIN))
		return 0;
	say(LOG_ERR, "log_listen = %s: %s", address_text(at, true), strerror(errno));
	return -1;
}

void peer_tick(uint64_t now)
{
	struct dial *d;

	/* One's end may begin others, and end some */
again:
	DL_FOREACH(dials, d)
		if (now >= d->deadline) {
			dial_end(d, ETIMEDOUT, NULL);
			goto again;
		}
}
