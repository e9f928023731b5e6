// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * An Ethernet switch for virtual machines, with cables that lose, delay and repeat frames: switch SEED.
 *
 * Each port is a unix socket to connect to, for QEMU's "-netdev stream" or any other process. Each frame on it follows
 * its length in four bytes, the highest first. A port that is connected to again belongs to the newer connection. A
 * cable has two legs, from the host and to the host; what is lost, delayed or held, is so on one leg. A change of a leg
 * is for frames that enter it from then on.
 *
 * Commands are lines on stdin; each is answered by one line on stdout, "ok..." or "error: ...". PERCENT and MS may have
 * fractions.
 *
 *   network NAME FILE       a network, whose frames go to FILE (pcapng, CLOCK_MONOTONIC): what hosts sent as inbound,
 *                           what they were given as outbound, each with its port as interface
 *   port NETWORK NAME PATH  a port, with its socket at PATH
 *   set NETWORK PORT from|to|both KEY=VALUE...
 *       loss, duplicate, reorder=PERCENT   a frame that is reordered arrives up to 10 ms later than it would
 *       delay, jitter=MS                   jitter alone changes no order
 *       rate=BITS/S queue=BYTES            what does not fit into the queue is dropped; rate=0: no limit
 *       cut=0|1 hold=0|1                   what is held arrives when it is released
 *   trigger NAME NETWORK do=WHAT [after=1] [n=N] [from=PORT] [to=PORT] [tcp=PORT] [set=FLAGS] [unset=FLAGS]
 *           [payload=BYTES] [bytes=HEX]
 *       when a host sends the Nth frame like that, do WHAT: tell, drop (the frame), cut:PORT or hold:PORT (both legs);
 *       before the frame itself, or with after=1 after it, which then arrives for sure. FLAGS are letters of FSRPAU.
 *       "event NAME NANOSECONDS" is said on stdout, once.
 *   count NETWORK PORT      frames from the host: passed, lost, dropped; to the host: the same
 *
 * It ends with its stdin.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MAX_NETWORKS	8
#define MAX_PORTS	64		/* of all networks */
#define MAX_ADDRESSES	256		/* of a network */
#define MAX_TRIGGERS	64
#define MAX_WORDS	24
#define MAX_FRAME	65550		/* what an interface with the largest MTU sends */
#define IN_SIZE		(256 << 10)
#define OUT_SIZE	(1 << 20)	/* what a host that does not listen finds later; then frames are dropped */
#define LOG_SIZE	(1 << 20)
#define QUEUE		(256 << 10)
#define MS		1000000LL
#define REORDER		(10 * MS)

enum { FROM, TO };

struct frame {
	struct frame *next;
	struct leg *leg;
	int64_t due;
	uint64_t order;			/* of two that are due at the same time */
	bool sure;
	uint32_t len;
	uint8_t data[];
};

struct leg {
	struct port *port;
	bool to;
	double loss, duplicate, reorder;	/* of 1 */
	int64_t delay, jitter;
	uint64_t rate, queue;
	bool cut, hold;
	struct frame *held, **held_end;
	int64_t busy;			/* until the frames before this one have left, at this rate */
	int64_t last;			/* when the newest arrives that keeps its place */
	uint64_t random;
	uint64_t passed, lost, dropped;
};

struct port {
	char name[32];
	struct network *network;
	unsigned int number;		/* in its network */
	int listener, fd;
	struct leg legs[2];
	uint8_t *in, *out;
	size_t in_len, out_start, out_len;
};

struct network {
	char name[32];
	int file;
	uint8_t *log;
	size_t log_len;
	unsigned int nports;
	struct {
		uint8_t mac[6];
		struct port *port;
	} addresses[MAX_ADDRESSES];
	unsigned int naddresses;
};

struct trigger {
	char name[32];
	struct network *network;
	enum { TELL, DROP, CUT, HOLD } what;
	struct port *whom, *from, *to;
	bool after;
	unsigned long left, tcp, payload;
	uint8_t set, unset;
	uint8_t *bytes;
	size_t nbytes;
};

/* What a trigger looks at */
struct seen {
	const uint8_t *payload;
	size_t len;
	bool tcp;
	uint8_t flags;
	uint16_t ports[2];
};

static struct network networks[MAX_NETWORKS];
static struct port ports[MAX_PORTS];
static struct trigger triggers[MAX_TRIGGERS];
static unsigned int nnetworks, nports, ntriggers;
static struct frame **heap;
static size_t heap_len, heap_size;
static uint64_t seed, order;
static int64_t now;

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *fmt, ...)
{
	int err = errno;
	va_list ap;

	fprintf(stderr, "switch: ");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, ": %s\n", strerror(err));
	exit(1);
}

static void *allocate(size_t size)
{
	void *p = calloc(1, size);

	if (!p)
		die("memory");
	return p;
}

static int64_t clock_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

/* splitmix64 */
static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

/* From 0 to below 1. Each leg draws its own numbers: what one loses does not depend on what another one carries */
static double draw(struct leg *leg)
{
	leg->random += 0x9e3779b97f4a7c15;
	return (mix(leg->random) >> 11) * 0x1p-53;
}

static bool chance(struct leg *leg, double p)
{
	return p > 0 && draw(leg) < p;
}

/* ---- The capture */

static void log_flush(struct network *net)
{
	/* Whole blocks only, so that the file can be read whenever this process is killed */
	for (size_t done = 0; done < net->log_len;) {
		ssize_t n = write(net->file, net->log + done, net->log_len - done);

		if (n < 0)
			die("capture of %s", net->name);
		done += n;
	}
	net->log_len = 0;
}

static void *log_room(struct network *net, size_t len)
{
	uint8_t *p;

	if (net->log_len + len > LOG_SIZE)
		log_flush(net);
	p = net->log + net->log_len;
	net->log_len += len;
	return memset(p, 0, len);
}

static void log_network(struct network *net)
{
	static const struct {
		uint32_t type, len, magic;
		uint16_t major, minor;
		uint64_t section;
		uint32_t again;
	} __attribute__((packed)) header = { 0x0a0d0d0a, sizeof(header), 0x1a2b3c4d, 1, 0, UINT64_MAX, sizeof(header) };

	memcpy(log_room(net, sizeof(header)), &header, sizeof(header));
}

static void log_port(struct port *port)
{
	struct {
		uint32_t type, len;
		uint16_t link, reserved;
		uint32_t snaplen;
		uint16_t resolution, resolution_len;
		uint8_t digits, pad[3];
		uint16_t name, name_len;
		char text[sizeof(port->name)];
		uint32_t end, again;
	} __attribute__((packed)) *b = log_room(port->network, sizeof(*b));

	b->type = 1;
	b->len = b->again = sizeof(*b);
	b->link = 1;
	b->resolution = 9;
	b->resolution_len = 1;
	b->digits = 9;
	/* The zeros that follow a shorter name are the end of the options */
	b->name = 2;
	b->name_len = strlen(port->name);
	memcpy(b->text, port->name, sizeof(b->text));
}

static void log_frame(struct leg *leg, const uint8_t *data, uint32_t len)
{
	struct {
		uint32_t type, len, interface, high, low, captured, original;
	} *head;
	struct {
		uint16_t flags, flags_len;
		uint32_t direction, end, again;
	} *tail;
	uint32_t padded = (len + 3) & ~3u;
	uint8_t *p = log_room(leg->port->network, sizeof(*head) + padded + sizeof(*tail));

	head = (void *)p;
	head->type = 6;
	head->len = sizeof(*head) + padded + sizeof(*tail);
	head->interface = leg->port->number;
	head->high = (uint64_t)now >> 32;
	head->low = now;
	head->captured = head->original = len;
	memcpy(p + sizeof(*head), data, len);
	tail = (void *)(p + sizeof(*head) + padded);
	tail->flags = 2;
	tail->flags_len = 4;
	tail->direction = leg->to ? 2 : 1;
	tail->again = head->len;
}

/* ---- Cables */

static void enter(struct leg *leg, const uint8_t *data, uint32_t len, bool sure);

static void disconnect(struct port *port)
{
	close(port->fd);
	port->fd = -1;
	port->in_len = port->out_len = port->out_start = 0;
}

static void flush(struct port *port)
{
	while (port->out_len) {
		ssize_t n = send(port->fd, port->out + port->out_start, port->out_len, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0) {
			if (errno != EAGAIN && errno != EINTR)
				disconnect(port);
			return;
		}
		port->out_start += n;
		port->out_len -= n;
	}
	port->out_start = 0;
}

static void give(struct leg *leg, const uint8_t *data, uint32_t len)
{
	struct port *port = leg->port;
	uint32_t prefix = htobe32(len);

	if (port->fd < 0 || port->out_len + sizeof(prefix) + len > OUT_SIZE) {
		leg->dropped++;
		return;
	}
	log_frame(leg, data, len);
	leg->passed++;
	if (port->out_start + port->out_len + sizeof(prefix) + len > OUT_SIZE) {
		memmove(port->out, port->out + port->out_start, port->out_len);
		port->out_start = 0;
	}
	memcpy(port->out + port->out_start + port->out_len, &prefix, sizeof(prefix));
	memcpy(port->out + port->out_start + port->out_len + sizeof(prefix), data, len);
	port->out_len += sizeof(prefix) + len;
}

static struct port *find_address(struct network *net, const uint8_t *mac)
{
	for (unsigned int i = 0; i < net->naddresses; i++)
		if (!memcmp(net->addresses[i].mac, mac, 6))
			return net->addresses[i].port;
	return NULL;
}

static void learn(struct port *port, const uint8_t *mac)
{
	struct network *net = port->network;
	unsigned int i = 0;

	if (mac[0] & 1)
		return;
	while (i < net->naddresses && memcmp(net->addresses[i].mac, mac, 6))
		i++;
	if (i == MAX_ADDRESSES)
		return;
	if (i == net->naddresses)
		net->naddresses++;
	memcpy(net->addresses[i].mac, mac, 6);
	net->addresses[i].port = port;
}

static void arrive(struct leg *leg, const uint8_t *data, uint32_t len, bool sure)
{
	struct port *to;

	if (leg->to) {
		give(leg, data, len);
		return;
	}
	leg->passed++;
	learn(leg->port, data + 6);
	to = find_address(leg->port->network, data);
	if (to) {
		if (to != leg->port)
			enter(&to->legs[TO], data, len, sure);
		return;
	}
	for (unsigned int i = 0; i < nports; i++)
		if (ports[i].network == leg->port->network && &ports[i] != leg->port)
			enter(&ports[i].legs[TO], data, len, sure);
}

static struct frame *copy(struct leg *leg, const uint8_t *data, uint32_t len, bool sure)
{
	struct frame *f = allocate(sizeof(*f) + len);

	f->leg = leg;
	f->sure = sure;
	f->len = len;
	memcpy(f->data, data, len);
	return f;
}

static bool sooner(const struct frame *a, const struct frame *b)
{
	return a->due < b->due || (a->due == b->due && a->order < b->order);
}

static void heap_add(struct frame *f)
{
	size_t i = heap_len++;

	if (heap_len > heap_size) {
		heap_size = heap_size ? 2 * heap_size : 1024;
		heap = realloc(heap, heap_size * sizeof(*heap));
		if (!heap)
			die("memory");
	}
	for (; i && sooner(f, heap[(i - 1) / 2]); i = (i - 1) / 2)
		heap[i] = heap[(i - 1) / 2];
	heap[i] = f;
}

static struct frame *heap_take(void)
{
	struct frame *first = heap[0], *f = heap[--heap_len];
	size_t i = 0;

	for (size_t next; (next = 2 * i + 1) < heap_len; i = next) {
		if (next + 1 < heap_len && sooner(heap[next + 1], heap[next]))
			next++;
		if (!sooner(heap[next], f))
			break;
		heap[i] = heap[next];
	}
	if (heap_len)
		heap[i] = f;
	return first;
}

static void travel(struct leg *leg, const uint8_t *data, uint32_t len, bool sure)
{
	int64_t due = now;
	struct frame *f;

	if (leg->rate) {
		if (leg->busy < now)
			leg->busy = now;
		if (!sure && (leg->busy - now) / 8e9 * leg->rate + len > leg->queue) {
			leg->dropped++;
			return;
		}
		leg->busy += len * 8e9 / leg->rate;
		due = leg->busy;
	}
	due += leg->delay;
	if (leg->jitter)
		due += leg->jitter * draw(leg);
	if (!sure && chance(leg, leg->reorder)) {
		due += REORDER * draw(leg);
	} else {
		if (due < leg->last)
			due = leg->last;
		leg->last = due;
	}
	if (due <= now) {
		arrive(leg, data, len, sure);
		return;
	}
	f = copy(leg, data, len, sure);
	f->due = due;
	f->order = order++;
	heap_add(f);
}

static void enter(struct leg *leg, const uint8_t *data, uint32_t len, bool sure)
{
	if (!sure) {
		if (leg->cut || chance(leg, leg->loss)) {
			leg->lost++;
			return;
		}
		if (leg->hold) {
			*leg->held_end = copy(leg, data, len, false);
			leg->held_end = &(*leg->held_end)->next;
			return;
		}
		if (chance(leg, leg->duplicate))
			travel(leg, data, len, sure);
	}
	travel(leg, data, len, sure);
}

static void release(struct leg *leg)
{
	struct frame *f = leg->held, *next;

	leg->held = NULL;
	leg->held_end = &leg->held;
	for (; f; f = next) {
		next = f->next;
		enter(leg, f->data, f->len, f->sure);
		free(f);
	}
}

/* ---- Triggers */

static struct seen look(const uint8_t *data, uint32_t len)
{
	struct seen s = { .payload = data, .len = len };
	uint32_t ip = 14, end, tcp, head;
	uint16_t type;

	if (len < ip + 40)
		return s;
	type = data[12] << 8 | data[13];
	if (type == 0x0800 && data[ip] >> 4 == 4 && data[ip + 9] == 6) {
		tcp = ip + (data[ip] & 15) * 4;
		end = ip + (data[ip + 2] << 8 | data[ip + 3]);
		if ((data[ip + 6] & 0x1f) || data[ip + 7])	/* not the first fragment */
			return s;
	} else if (type == 0x86dd && data[ip + 6] == 6) {
		tcp = ip + 40;
		end = tcp + (data[ip + 4] << 8 | data[ip + 5]);
	} else {
		return s;
	}
	/* A short frame is padded: its header says where it ends */
	if (end > len || tcp + 20 > end)
		return s;
	head = (data[tcp + 12] >> 4) * 4;
	if (head < 20 || tcp + head > end)
		return s;
	s.tcp = true;
	s.ports[0] = data[tcp] << 8 | data[tcp + 1];
	s.ports[1] = data[tcp + 2] << 8 | data[tcp + 3];
	s.flags = data[tcp + 13];
	s.payload = data + tcp + head;
	s.len = end - tcp - head;
	return s;
}

static bool matches(struct trigger *t, struct port *from, const uint8_t *data, const struct seen *s)
{
	if (t->network != from->network || (t->from && t->from != from) ||
	    (t->to && find_address(t->network, data) != t->to))
		return false;
	if ((t->set || t->unset || t->payload || t->tcp) && !s->tcp)
		return false;
	if ((s->flags & t->set) != t->set || (s->flags & t->unset) || s->len < t->payload)
		return false;
	if (t->tcp && s->ports[0] != t->tcp && s->ports[1] != t->tcp)
		return false;
	return !t->nbytes || memmem(s->payload, s->len, t->bytes, t->nbytes);
}

/* A frame as a host sent it */
static void sent(struct port *port, const uint8_t *data, uint32_t len)
{
	struct leg *leg = &port->legs[FROM];
	struct seen s = {};
	bool sure = false, drop = false;

	log_frame(leg, data, len);
	if (ntriggers)
		s = look(data, len);
	for (unsigned int i = 0; i < ntriggers; i++) {
		struct trigger *t = &triggers[i];

		if (!matches(t, port, data, &s) || --t->left)
			continue;
		for (int j = FROM; t->whom && j <= TO; j++) {
			t->whom->legs[j].cut |= t->what == CUT;
			t->whom->legs[j].hold |= t->what == HOLD;
		}
		sure |= t->after;
		drop |= t->what == DROP;
		printf("event %s %lld\n", t->name, (long long)now);
		free(t->bytes);
		*t = triggers[--ntriggers];
		i--;
	}
	if (drop)
		leg->lost++;
	else
		enter(leg, data, len, sure);
}

static void receive(struct port *port)
{
	ssize_t n = recv(port->fd, port->in + port->in_len, IN_SIZE - port->in_len, MSG_DONTWAIT);
	size_t at = 0;

	if (n <= 0) {
		if (!n || (errno != EAGAIN && errno != EINTR))
			disconnect(port);
		return;
	}
	port->in_len += n;
	while (port->in_len - at >= 4) {
		uint32_t len;

		memcpy(&len, port->in + at, 4);
		len = be32toh(len);
		if (len < 14 || len > MAX_FRAME) {
			fprintf(stderr, "switch: %s sends a frame of %u bytes\n", port->name, len);
			disconnect(port);
			return;
		}
		if (port->in_len - at < 4 + len)
			break;
		sent(port, port->in + at + 4, len);
		at += 4 + len;
	}
	port->in_len -= at;
	memmove(port->in, port->in + at, port->in_len);
}

/* ---- Commands: each returns what is wrong, or NULL */

static const char *number(const char *text, double most, double *value)
{
	char *end;

	*value = strtod(text, &end);
	return end == text || *end || !(*value >= 0 && *value <= most) ? "not a number, or out of range" : NULL;
}

static struct network *find_network(const char *name)
{
	for (unsigned int i = 0; i < nnetworks; i++)
		if (!strcmp(networks[i].name, name))
			return &networks[i];
	return NULL;
}

static struct port *find_port(struct network *net, const char *name)
{
	for (unsigned int i = 0; net && i < nports; i++)
		if (ports[i].network == net && !strcmp(ports[i].name, name))
			return &ports[i];
	return NULL;
}

static const char *add_network(char **words)
{
	struct network *net = &networks[nnetworks];

	if (nnetworks == MAX_NETWORKS || strlen(words[1]) >= sizeof(net->name) || find_network(words[1]))
		return "too many networks, or not a new name";
	net->file = open(words[2], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (net->file < 0)
		return strerror(errno);
	strcpy(net->name, words[1]);
	net->log = allocate(LOG_SIZE);
	log_network(net);
	nnetworks++;
	return NULL;
}

static const char *add_port(char **words)
{
	struct network *net = find_network(words[1]);
	struct port *port = &ports[nports];
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	if (!net || nports == MAX_PORTS || strlen(words[2]) >= sizeof(port->name) || find_port(net, words[2]))
		return "no such network, too many ports, or not a new name";
	if (strlen(words[3]) >= sizeof(address.sun_path))
		return "a path too long for a socket";
	strcpy(address.sun_path, words[3]);
	port->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (port->listener < 0)
		return strerror(errno);
	if (bind(port->listener, (void *)&address, sizeof(address)) || listen(port->listener, 8)) {
		close(port->listener);
		return strerror(errno);
	}
	strcpy(port->name, words[2]);
	port->network = net;
	port->number = net->nports++;
	port->fd = -1;
	port->in = allocate(IN_SIZE);
	port->out = allocate(OUT_SIZE);
	for (int i = FROM; i <= TO; i++) {
		struct leg *leg = &port->legs[i];

		leg->port = port;
		leg->to = i == TO;
		leg->queue = QUEUE;
		leg->held_end = &leg->held;
		leg->random = mix(seed + 2 * nports + i);
	}
	log_port(port);
	nports++;
	return NULL;
}

static const char *set_leg(struct leg *leg, const char *key, const char *text)
{
	double *share = !strcmp(key, "loss") ? &leg->loss : !strcmp(key, "duplicate") ? &leg->duplicate :
			!strcmp(key, "reorder") ? &leg->reorder : NULL;
	int64_t *time = !strcmp(key, "delay") ? &leg->delay : !strcmp(key, "jitter") ? &leg->jitter : NULL;
	uint64_t *size = !strcmp(key, "rate") ? &leg->rate : !strcmp(key, "queue") ? &leg->queue : NULL;
	bool *flag = !strcmp(key, "cut") ? &leg->cut : !strcmp(key, "hold") ? &leg->hold : NULL;
	const char *wrong;
	double value;

	wrong = number(text, share ? 100 : time ? 1e6 : size ? 1e12 : flag ? 1 : -1, &value);
	if (wrong)
		return wrong;
	if (share)
		*share = value / 100;
	else if (time)
		*time = value * MS;
	else if (size)
		*size = value;
	else
		*flag = value;
	if (flag == &leg->hold && !leg->hold)
		release(leg);
	return NULL;
}

static const char *set(char **words)
{
	struct port *port = find_port(find_network(words[1]), words[2]);
	bool from = strcmp(words[3], "to"), to = strcmp(words[3], "from");

	if (!port)
		return "no such port";
	if (from && to && strcmp(words[3], "both"))
		return "neither from, to nor both";
	for (char **word = words + 4; *word; word++) {
		char *value = strchr(*word, '=');
		const char *wrong = NULL;

		if (!value)
			return "not KEY=VALUE";
		*value++ = 0;
		if (from)
			wrong = set_leg(&port->legs[FROM], *word, value);
		if (to && !wrong)
			wrong = set_leg(&port->legs[TO], *word, value);
		if (wrong)
			return wrong;
	}
	return NULL;
}

static const char *flags_of(const char *text, uint8_t *flags)
{
	static const char letters[] = "FSRPAU";

	for (*flags = 0; *text; text++) {
		const char *at = strchr(letters, *text);

		if (!at)
			return "not a TCP flag";
		*flags |= 1 << (at - letters);
	}
	return NULL;
}

static const char *what_of(char *text, struct trigger *t)
{
	static const char *const names[] = { "tell", "drop", "cut", "hold" };
	char *whom = strchr(text, ':');

	if (whom)
		*whom++ = 0;
	for (t->what = TELL; strcmp(names[t->what], text); t->what++)
		if (t->what == HOLD)
			return "no such thing to do";
	t->whom = whom ? find_port(t->network, whom) : NULL;
	return (t->what >= CUT) != !!t->whom ? "no such port" : NULL;
}

static const char *bytes_of(const char *text, struct trigger *t)
{
	size_t len = strlen(text) / 2;

	t->bytes = allocate(len + 1);
	for (t->nbytes = 0; t->nbytes < len; t->nbytes++)
		if (sscanf(text + 2 * t->nbytes, "%2hhx", &t->bytes[t->nbytes]) != 1)
			return "not hexadecimal";
	return NULL;
}

static const char *trigger_key(struct trigger *t, const char *key, char *value)
{
	const char *wrong = NULL;
	double n = 0;

	if (!strcmp(key, "do"))
		return what_of(value, t);
	if (!strcmp(key, "from") || !strcmp(key, "to")) {
		struct port *port = find_port(t->network, value);

		*(key[0] == 'f' ? &t->from : &t->to) = port;
		return port ? NULL : "no such port";
	}
	if (!strcmp(key, "set"))
		return flags_of(value, &t->set);
	if (!strcmp(key, "unset"))
		return flags_of(value, &t->unset);
	if (!strcmp(key, "bytes"))
		return bytes_of(value, t);
	wrong = number(value, 1e9, &n);
	if (!strcmp(key, "n"))
		t->left = n;
	else if (!strcmp(key, "after"))
		t->after = n;
	else if (!strcmp(key, "tcp"))
		t->tcp = n;
	else if (!strcmp(key, "payload"))
		t->payload = n;
	else
		return "no such key";
	return wrong;
}

static const char *add_trigger(char **words)
{
	struct trigger t = { .network = find_network(words[2]), .left = 1 };

	if (!t.network || ntriggers == MAX_TRIGGERS || strlen(words[1]) >= sizeof(t.name))
		return "no such network, too many triggers, or too long a name";
	strcpy(t.name, words[1]);
	for (char **word = words + 3; *word; word++) {
		char *value = strchr(*word, '=');
		const char *wrong;

		if (!value)
			return "not KEY=VALUE";
		*value++ = 0;
		wrong = trigger_key(&t, *word, value);
		if (wrong)
			return wrong;
	}
	if (!t.left || (t.after && t.what == DROP))
		return "this never happens";
	triggers[ntriggers++] = t;
	return NULL;
}

static const char *count(char **words)
{
	struct port *port = find_port(find_network(words[1]), words[2]);

	if (!port)
		return "no such port";
	printf("ok");
	for (int i = FROM; i <= TO; i++)
		printf(" %llu %llu %llu", (unsigned long long)port->legs[i].passed, (unsigned long long)port->legs[i].lost,
		       (unsigned long long)port->legs[i].dropped);
	printf("\n");
	return NULL;
}

static void command(char *line)
{
	static const struct {
		const char *name;
		const char *(*run)(char **words);
		int least, most;
	} commands[] = {
		{ "network", add_network, 3, 3 },
		{ "port", add_port, 4, 4 },
		{ "set", set, 5, MAX_WORDS },
		{ "trigger", add_trigger, 4, MAX_WORDS },
		{ "count", count, 3, 3 },
	};
	char *words[MAX_WORDS + 1] = {}, *rest = NULL;
	const char *wrong = "no such command, or not its number of words";
	int n = 0;

	for (char *word = strtok_r(line, " ", &rest); word && n < MAX_WORDS; word = strtok_r(NULL, " ", &rest))
		words[n++] = word;
	for (size_t i = 0; n && i < sizeof(commands) / sizeof(*commands); i++) {
		if (strcmp(commands[i].name, words[0]) || n < commands[i].least || n > commands[i].most)
			continue;
		wrong = commands[i].run(words);
		if (!wrong && commands[i].run == count)
			return;
	}
	if (wrong)
		printf("error: %s\n", wrong);
	else
		printf("ok\n");
}

/* False at the end */
static bool commanded(void)
{
	static char buffer[65536];
	static size_t len;
	ssize_t n = read(0, buffer + len, sizeof(buffer) - len);
	char *start = buffer, *end;

	if (n <= 0)
		return false;
	len += n;
	while ((end = memchr(start, '\n', buffer + len - start))) {
		*end = 0;
		command(start);
		start = end + 1;
	}
	len = buffer + len - start;
	memmove(buffer, start, len);
	return len < sizeof(buffer);
}

static void wait_for(struct pollfd *p)
{
	struct timespec ts = {};
	int64_t left = heap_len ? heap[0]->due - clock_now() : -1;

	if (left > 0) {
		ts.tv_sec = left / 1000000000;
		ts.tv_nsec = left % 1000000000;
	}
	p[0] = (struct pollfd){ .fd = 0, .events = POLLIN };
	for (unsigned int i = 0; i < nports; i++) {
		p[1 + 2 * i] = (struct pollfd){ .fd = ports[i].listener, .events = POLLIN };
		p[2 + 2 * i] = (struct pollfd){ .fd = ports[i].fd,
						.events = POLLIN | (ports[i].out_len ? POLLOUT : 0) };
	}
	if (ppoll(p, 1 + 2 * nports, heap_len ? &ts : NULL, NULL) < 0 && errno != EINTR)
		die("ppoll");
	now = clock_now();
}

int main(int argc, char **argv)
{
	static struct pollfd p[1 + 2 * MAX_PORTS];
	bool more = true;

	if (argc != 2) {
		fprintf(stderr, "usage: switch SEED\n");
		return 2;
	}
	seed = strtoull(argv[1], NULL, 0);
	while (more) {
		unsigned int polled = nports;

		wait_for(p);
		while (heap_len && heap[0]->due <= now) {
			struct frame *f = heap_take();

			arrive(f->leg, f->data, f->len, f->sure);
			free(f);
		}
		for (unsigned int i = 0; i < polled; i++) {
			if (p[2 + 2 * i].revents && ports[i].fd >= 0)
				receive(&ports[i]);
			if (p[1 + 2 * i].revents) {
				if (ports[i].fd >= 0)
					disconnect(&ports[i]);
				ports[i].fd = accept4(ports[i].listener, NULL, NULL, SOCK_CLOEXEC);
			}
		}
		/* Last, so that what has been sent before a command has been seen before it */
		if (p[0].revents)
			more = commanded();
		/* A frame is in the capture before its host has it */
		for (unsigned int i = 0; i < nnetworks; i++)
			log_flush(&networks[i]);
		for (unsigned int i = 0; i < nports; i++)
			if (ports[i].fd >= 0)
				flush(&ports[i]);
		fflush(stdout);
	}
	return 0;
}
