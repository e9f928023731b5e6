// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Several servers in two domains, their clients, disks, network and clock in one process: one seed, one run, again and again the
 * same. Servers crash at every step, messages are lost, doubled and late, the last write is torn.
 *
 * What must hold: each request of a client is executed once, whatever happened; nobody outside of a domain sees it go back;
 * nobody is an orphan when all is quiet; the log stays within its bounds.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "core.h"

#define NODES_MAX	5
#define CLIENTS_MAX	6
#define VARIABLES	3
#define STACK_SIZE	(256 * 1024)
#define SECTOR		512
#define DEVICE_SIZE	(RING_PLACE + RING_MIN)
#define US		1000ull
#define MS		1000000ull

static uint64_t now, random_state, steps, crashes_wanted, seed;
static bool verbose, quiet;
static unsigned int nr_crashes, crashes_max;

#define say(...) do { if (verbose) { printf("%10.3f ms ", now / 1e6); printf(__VA_ARGS__); putchar('\n'); } } while (0)

static __attribute__((noreturn, format(printf, 1, 2))) void wrong(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "seed %llu, at %.3f ms: ", (unsigned long long)seed, now / 1e6);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	fflush(stdout);
	abort();
}

static uint64_t dice(uint64_t sides)
{
	random_state += 0x9e3779b97f4a7c15ull;
	uint64_t z = random_state;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (z ^ (z >> 31)) % sides;
}

/* Tasks and time */

struct node;

struct task {
	ucontext_t context;
	struct node *node;
	unsigned int life;	/* of the node */
	void (*run)(void *arg);
	void *arg;
	const void *what;
	uint64_t waits;
	bool done;
	struct task *next;	/* all */
	char *stack;
};

struct event {
	uint64_t at, order;
	struct task *task;
	uint64_t waits;
	void (*run)(void *arg);
	void *arg;
};

struct write {
	uint64_t place;
	uint8_t *data;
	size_t len;
	struct write *next;
};

struct node {
	struct env env;
	unsigned int number;
	unsigned int domain;
	bool up;
	unsigned int life;
	struct task *holder;
	uint8_t *device;
	struct write *writes;
	struct server *server, *started;
	struct config config;
	struct peer peers[2 * NODES_MAX];
	unsigned int crashes;
};

static struct node nodes[NODES_MAX];
static unsigned int nr_nodes, nr_clients;
static struct task *tasks, *running;
static ucontext_t scheduler;
static struct event *heap;
static size_t nr_events, room_events;
static uint64_t order;

static bool before(const struct event *a, const struct event *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void event_push(struct event e)
{
	size_t i;

	e.order = order++;
	if (nr_events == room_events) {
		room_events = room_events ? room_events * 2 : 64;
		heap = must_resize(heap, room_events * sizeof(*heap));
	}
	for (i = nr_events++; i && before(&e, &heap[(i - 1) / 2]); i = (i - 1) / 2)
		heap[i] = heap[(i - 1) / 2];
	heap[i] = e;
}

static struct event event_pop(void)
{
	struct event first = heap[0], last = heap[--nr_events];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < nr_events) {
		if (child + 1 < nr_events && before(&heap[child + 1], &heap[child]))
			child++;
		if (!before(&heap[child], &last))
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = last;
	return first;
}

static void at(uint64_t when, void (*run)(void *arg), void *arg)
{
	event_push((struct event){ .at = when, .run = run, .arg = arg });
}

static void task_main(void)
{
	running->run(running->arg);
	running->done = true;
	swapcontext(&running->context, &scheduler);
}

static void task_new(struct node *node, void (*run)(void *arg), void *arg, uint64_t when)
{
	struct task *t = must_alloc(sizeof(*t));

	t->node = node;
	t->life = node ? node->life : 0;
	t->run = run;
	t->arg = arg;
	t->stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (t->stack == MAP_FAILED)
		wrong("no memory for a stack");
	getcontext(&t->context);
	t->context.uc_stack.ss_sp = t->stack;
	t->context.uc_stack.ss_size = STACK_SIZE;
	makecontext(&t->context, task_main, 0);
	t->next = tasks;
	tasks = t;
	event_push((struct event){ .at = when, .task = t });
}

static void tasks_sweep(void)
{
	struct task **link = &tasks, *t;

	while ((t = *link)) {
		if (t->done || (t->node && t->life != t->node->life)) {
			*link = t->next;
			munmap(t->stack, STACK_SIZE);
			t->stack = NULL;
			t->done = true;		/* events may still name it */
		} else {
			link = &t->next;
		}
	}
}

static void sleep_until(const void *what, uint64_t until)
{
	struct task *me = running;

	me->what = what;
	me->waits++;
	if (until)
		event_push((struct event){ .at = until, .task = me, .waits = me->waits });
	swapcontext(&me->context, &scheduler);
}

static void pause_for(uint64_t ns)
{
	int here = 0;

	sleep_until(&here, now + ns);
}

static void wake_all(struct node *node, const void *what)
{
	struct task *t;

	for (t = tasks; t; t = t->next) {
		if (t->node != node || t->what != what || t->done || (node && t->life != node->life))
			continue;
		t->what = NULL;
		t->waits++;
		event_push((struct event){ .at = now + dice(3 * US), .task = t, .waits = t->waits });
	}
}

/* Crashes */

static void node_start(void *arg);

static void node_crash(struct node *node)
{
	struct write *w;
	size_t i;

	say("server %u crashes", node->number);
	nr_crashes++;
	node->crashes++;
	node->up = false;
	node->life++;
	node->holder = NULL;
	/* Of what was being written, some sectors are there */
	for (w = node->writes; w; w = w->next) {
		unsigned int kind = dice(4);
		size_t cut = dice(w->len / SECTOR + 1) * SECTOR;

		for (i = 0; i < w->len; i += SECTOR) {
			bool there = kind == 0 ? false : kind == 1 ? true : kind == 2 ? i < cut : dice(2);

			if (there)
				memcpy(node->device + w->place + i, w->data + i, SECTOR);
		}
		/* The one that the power cut fell on may be neither */
		if (kind == 2 && dice(2) && cut < w->len)
			memset(node->device + w->place + cut, (int)dice(256), SECTOR);
	}
	node->writes = NULL;
	at(now + dice(30 * MS), node_start, node);
}

static void step(struct node *node)
{
	steps++;
	if (!node || quiet || nr_crashes >= crashes_max || dice(crashes_wanted))
		return;
	node_crash(node);
	/* Others may go at the same time */
	while (!dice(4)) {
		struct node *other = &nodes[dice(nr_nodes)];

		if (other->up)
			node_crash(other);
	}
	swapcontext(&running->context, &scheduler);
}

/* The environment */

static struct node *to_node(struct env *env)
{
	return (struct node *)env;
}

static void sim_lock(struct env *env)
{
	struct node *node = to_node(env);

	if (!dice(8))
		pause_for(dice(100 * US));
	step(node);
	if (node->holder)
		wrong("server %u: the lock is taken twice", node->number);
	node->holder = running;
}

static void sim_unlock(struct env *env)
{
	struct node *node = to_node(env);

	if (node->holder != running)
		wrong("server %u: the lock is given up by who does not have it", node->number);
	node->holder = NULL;
	if (!dice(8))
		pause_for(dice(100 * US));
}

static void sim_wait(struct env *env, const void *what, uint64_t until)
{
	struct node *node = to_node(env);

	if (node->holder != running)
		wrong("server %u: waits without the lock", node->number);
	node->holder = NULL;
	step(node);
	/* For no reason */
	if (!dice(50))
		until = now + dice(MS);
	sleep_until(what, until && until <= now ? now + 1 : until);
	if (node->holder)
		wrong("server %u: the lock is taken twice", node->number);
	node->holder = running;
}

static void sim_wake(struct env *env, const void *what)
{
	wake_all(to_node(env), what);
}

/* One of those that wait, any one */
static void sim_wake_one(struct env *env, const void *what)
{
	struct node *node = to_node(env);
	struct task *t, *chosen = NULL;
	unsigned int n = 0;

	for (t = tasks; t; t = t->next)
		if (t->node == node && t->what == what && !t->done && t->life == node->life && !dice(++n))
			chosen = t;
	if (!chosen)
		return;
	chosen->what = NULL;
	chosen->waits++;
	event_push((struct event){ .at = now + dice(3 * US), .task = chosen, .waits = chosen->waits });
}

static int sim_thread(struct env *env, void (*run)(void *arg), void *arg)
{
	task_new(to_node(env), run, arg, now + dice(50 * US));
	return 0;
}

static uint64_t sim_clock(struct env *env)
{
	(void)env;
	return now;
}

static uint64_t sim_time(struct env *env)
{
	(void)env;
	return 1700000000000000000ull + now;
}

static void sim_random(struct env *env, void *data, size_t len)
{
	uint8_t *to = data;

	(void)env;
	while (len--)
		*to++ = dice(256);
}

static void not_held(struct node *node, const char *what)
{
	if (node->holder == running && running)
		wrong("server %u: %s with the lock held", node->number, what);
}

static int sim_read(struct env *env, uint64_t place, void *data, size_t len)
{
	struct node *node = to_node(env);

	not_held(node, "reads");
	if (place + len > DEVICE_SIZE)
		wrong("a read behind the device");
	if (running)
		step(node);
	memcpy(data, node->device + place, len);
	if (running && !dice(4))
		pause_for(dice(200 * US));
	return 0;
}

static int sim_write(struct env *env, uint64_t place, const void *data, size_t len)
{
	struct node *node = to_node(env);
	struct write w = { .place = place, .len = len, .next = node->writes };

	not_held(node, "writes");
	if (place + len > DEVICE_SIZE || len % SECTOR || place % SECTOR)
		wrong("a write behind the device, or of no whole sectors");
	if (!running) {
		memcpy(node->device + place, data, len);
		return 0;
	}
	w.data = must_alloc(len);
	memcpy(w.data, data, len);
	node->writes = &w;
	step(node);
	pause_for(20 * US + dice(2 * MS));
	step(node);
	memcpy(node->device + place, data, len);
	if (node->writes == &w) {
		node->writes = w.next;
	} else {
		struct write *other = node->writes;

		while (other->next != &w)
			other = other->next;
		other->next = w.next;
	}
	free(w.data);
	step(node);
	return 0;
}

static void dump(const struct node *node)
{
	const struct server *server = node->started;
	const struct variable *v;
	const struct session *s;

	if (!server)
		return;
	fprintf(stderr, "server %u: log %#llx to %#llx of %#llx, %u threads, %u blocked, worked %llu, reserved %llu\n", node->number,
		(unsigned long long)server->log.tail, (unsigned long long)log_end(&server->log),
		(unsigned long long)server->log.ring, server->threads, server->blocked, (unsigned long long)server->worked,
		(unsigned long long)server->reserved);
	for (s = server->sessions; s; s = s->hh.next)
		fprintf(stderr, "  session %llx: base %llx lsn %llx logged %llu depends on %u%s%s%s%s%s%s%s, age %u, state %zu, reply %zu\n",
			(unsigned long long)s->key, (unsigned long long)s->base, (unsigned long long)s->lsn,
			(unsigned long long)s->logged, s->depends.n, s->live ? "" : " not replayed", s->busy ? " busy" : "",
			s->queued ? " queued" : "", s->orphan ? " orphan" : "", s->due_checkpoint ? " due" : "",
			s->method ? " running" : "", s->inbox ? " asked" : "", s->age, s->values_size, s->reply.len);
	for (v = server->variables; v; v = v->hh.next)
		fprintf(stderr, "  variable %s: base %llx lsn %llx writes %llu depends on %u%s, %zu bytes\n", v->name,
			(unsigned long long)v->base, (unsigned long long)v->lsn, (unsigned long long)v->writes, v->depends.n,
			v->busy ? " busy" : "", v->value.len);
}

static __attribute__((noreturn)) void sim_fail(struct env *env, const char *why)
{
	dump(to_node(env));
	wrong("server %u cannot go on: %s", to_node(env)->number, why);
}

/* The network */

struct flight {
	struct exchange *x;	/* NULL: nobody waits any more */
	struct node *from;
	unsigned int from_life;
	struct task *sender;
	bool *pending;
	struct node *to;
	struct message *message;
	struct reply reply;
	int error;
};

static void arrive_back(void *arg)
{
	struct flight *f = arg;
	struct node *from = f->from;

	if (!f->x || f->x->error != -ETIMEDOUT || (from && from->life != f->from_life) || f->sender->done)
		return;
	f->x->error = f->error;
	f->x->reply = f->reply;
	f->x = NULL;
	wake_all(from, f->pending);
}

static void send_back(struct flight *f, int error)
{
	if (!quiet && !dice(20)) {
		say("a reply to %u is lost", f->from ? f->from->number : 99);
		return;
	}
	f->error = error;
	at(now + 10 * US + dice(dice(10) ? 300 * US : 20 * MS), arrive_back, f);
}

static void request_done(void *arg, struct reply *reply)
{
	struct flight *f = arg;

	f->reply = *reply;
	send_back(f, 0);
}

static void serve_message(void *arg)
{
	struct flight *f = arg;
	struct reply reply = { 0 };

	if (f->message->from == OUTSIDE) {
		server_request(f->to->server, f->message, request_done, f);
		return;
	}
	server_message(f->to->server, f->message, &reply);
	f->reply = reply;
	send_back(f, 0);
}

static void arrive(void *arg)
{
	struct flight *f = arg;

	if (f->to->up && f->to->server)
		task_new(f->to, serve_message, f, now);
	else
		send_back(f, -ECONNREFUSED);
}

static void fly(struct node *from, struct exchange *x, bool *pending)
{
	unsigned int copies = quiet ? 1 : !dice(20) ? 0 : !dice(20) ? 2 : 1;

	while (copies--) {
		struct flight *f = must_alloc(sizeof(*f));

		*f = (struct flight){ .x = x, .from = from, .from_life = from ? from->life : 0, .sender = running, .pending = pending,
				      .to = x->peer->where, .message = message_copy(x->message) };
		at(now + 10 * US + dice(dice(10) ? 300 * US : 20 * MS), arrive, f);
	}
}

/*
 * The exchanges live in memory that is never used again: what comes late must not be taken for an answer to another. The run's
 * process ends soon.
 */
static void exchange_all(struct node *from, struct exchange *exchanges, unsigned int n)
{
	struct exchange *copy = must_alloc(n * sizeof(*copy));
	bool *pending = must_alloc(sizeof(*pending));
	uint64_t until = now + 50 * MS;
	unsigned int i, open;

	for (i = 0; i < n; i++) {
		copy[i] = exchanges[i];
		copy[i].error = -ETIMEDOUT;
		fly(from, &copy[i], pending);
	}
	do {
		sleep_until(pending, until);
		for (open = i = 0; i < n; i++)
			open += copy[i].error == -ETIMEDOUT;
	} while (open && now < until);
	for (i = 0; i < n; i++) {
		exchanges[i].error = copy[i].error;
		exchanges[i].reply = copy[i].reply;
		if (copy[i].error == -ETIMEDOUT)
			copy[i].error = -ECANCELED;
	}
}

static void sim_exchange(struct env *env, struct exchange *exchanges, unsigned int n)
{
	struct node *node = to_node(env);

	not_held(node, "sends");
	step(node);
	exchange_all(node, exchanges, n);
	step(node);
}

/* The service: the body is a list of things to do */

static uint64_t timeouts;
static uint64_t added[NODES_MAX][VARIABLES];	/* asked for by clients, once for each request */

static void count_up(void *arg, bool *present, struct bytes *value)
{
	uint64_t n = 0;

	if (*present)
		memcpy(&n, value->data, sizeof(n));
	n++;
	bytes_set(value, &n, sizeof(n));
	*present = true;
	*(uint64_t *)arg = n;
}

static int32_t work(struct replay_call *call, const struct bytes *body, struct bytes *reply)
{
	struct node *node = (struct node *)call->server->env;
	struct cursor c = cursor(body->data, body->len);
	struct bytes value = { 0 };
	uint64_t n = 0;
	int err;

	err = call_get(call, "count", &value);
	if (err && err != -ENOENT)
		goto out;
	if (!err)
		memcpy(&n, value.data, sizeof(n));
	n++;
	if (call_set(call, "count", &n, sizeof(n)))
		goto out;
	put_u64(reply, n);
	while (c.at < c.end && !c.bad) {
		char name[8] = "v0", what = get_u8(&c);
		bool present;
		uint8_t which;
		int32_t status;
		size_t len;
		const void *data;

		if (!quiet && !dice(4))
			pause_for(dice(500 * US));
		step(node);
		which = get_u8(&c);
		name[1] = '0' + which;
		switch (what) {
		case 'a':
			if (call_update(call, name, count_up, &n))
				goto out;
			put_u64(reply, n);
			break;
		case 'r':
			name[0] = 'w';
			if (call_read(call, name, &present, &value))
				goto out;
			put_blob(reply, value.data, value.len);
			break;
		case 'w':
			name[0] = 'w';
			data = get_blob(&c, &len);
			if (call_write(call, name, len, data, len))
				goto out;
			break;
		case 't':
			if (call_value(call, which % 2 ? V_TIME : V_RANDOM, &n, sizeof(n)))
				goto out;
			put_u64(reply, n);
			break;
		case 'p':
			data = get_blob(&c, &len);
			if (call_set(call, name, data, len))
				goto out;
			break;
		case 'c':
			data = get_blob(&c, &len);
			name[0] = 's';
			err = call_method(call, name, "work", data, len, &status, &value);
			if (err == -ECANCELED)
				goto out;
			if (err)
				wrong("server %u: a call of %s fails: %s", node->number, name, strerror(-err));
			put_blob(reply, value.data, value.len);
			break;
		case 'q':
			data = get_blob(&c, &len);
			name[0] = 'q';
			err = call_method(call, name, "work", data, len, &status, &value);
			if (err == -ECANCELED)
				goto out;
			if (err && err != -ETIMEDOUT)
				wrong("server %u: a call of %s fails: %s", node->number, name, strerror(-err));
			timeouts += err != 0;
			put_u8(reply, err != 0);
			break;
		default:
			wrong("server %u: a body that nobody sent", node->number);
		}
	}
out:
	bytes_free(&value);
	return 7;
}

static const struct method methods[] = { { .name = "work", .version = 1, .run = work } };

static void node_start(void *arg);

static void node_boot(void *arg)
{
	struct node *node = arg;
	struct server *server = must_alloc(sizeof(*server));
	int err;

	node->started = server;
	err = server_start(server, &node->env, &node->config, DEVICE_SIZE);
	if (err)
		wrong("server %u does not start: %s", node->number, strerror(-err));
	node->server = server;
	say("server %u is open: epoch %u, %u sessions, %u variables", node->number, server->log.ended.epoch,
	    HASH_COUNT(server->sessions), HASH_COUNT(server->variables));
}

static void node_start(void *arg)
{
	struct node *node = arg;

	if (node->up)
		return;
	node->up = true;
	node->server = NULL;
	say("server %u starts", node->number);
	task_new(node, node_boot, node, now);
}

/* Clients */

struct client {
	unsigned int number;
	struct node *home;
	char *session;
	bool keyed;		/* each request has a key of its own, and no session */
	uint64_t sequence;
	uint64_t requests;
	uint64_t count;		/* how often its session has been called */
	bool done;
};

static struct client clients[CLIENTS_MAX];
static uint64_t requests_done, requests_each;

static struct reply ask_until(struct client *cl, struct message *m)
{
	struct peer peer = { .where = cl->home };
	struct exchange x;
	unsigned int tries = 0;

	m->from = OUTSIDE;
	for (;;) {
		x = (struct exchange){ .peer = &peer, .message = m };
		exchange_all(NULL, &x, 1);
		if (!x.error && x.reply.answer == A_OK)
			return x.reply;
		if (!x.error && x.reply.answer != A_RETRY)
			wrong("client %u is answered %u: %.*s, expected %llu, request %llu", cl->number, x.reply.answer,
			      (int)x.reply.body.len, (char *)x.reply.body.data, (unsigned long long)x.reply.sequence,
			      (unsigned long long)m->sequence);
		if (!x.error)
			reply_free(&x.reply);
		if (tries == 19999)
			for (unsigned int i = 0; i < nr_nodes; i++)
				dump(&nodes[i]);
		if (++tries == 20000)
			wrong("client %u is not answered", cl->number);
		pause_for(dice(5 * MS));
	}
}

/* What is to be done at @node, by a path of calls through @path */
static void make_body(struct bytes *b, struct client *cl, unsigned int node, unsigned int depth)
{
	unsigned int n = dice(4), which;
	char padding[32 * 1024];

	while (n--) {
		which = dice(VARIABLES);
		switch (dice(depth < 2 ? 8 : 5)) {
		case 0:
			put_u8(b, 'a');
			put_u8(b, which);
			added[node][which]++;
			break;
		case 1:
			put_u8(b, 'r');
			put_u8(b, which);
			break;
		case 2:
			put_u8(b, 'w');
			put_u8(b, which);
			memset(padding, 'A' + cl->number, sizeof(padding));
			put_blob(b, padding, dice(6) ? dice(100) : dice(8000));
			break;
		case 3:
			put_u8(b, 't');
			put_u8(b, which);
			break;
		case 4:
			put_u8(b, 'p');
			put_u8(b, which);
			memset(padding, 'a' + cl->number, sizeof(padding));
			put_blob(b, padding, dice(6) ? dice(300) : dice(6000));
			break;
		case 5: {
			/* Of what has no effect nobody needs to know whether it was done */
			static const uint8_t look[] = { 'r', 0 };
			unsigned int to = dice(nr_nodes);

			if (to == node)
				break;
			put_u8(b, 'q');
			put_u8(b, to);
			put_blob(b, look, sizeof(look));
			break;
		}
		default: {
			struct bytes inner = { 0 };
			unsigned int to = dice(nr_nodes);

			if (to == node)
				break;
			put_u8(b, 'c');
			put_u8(b, to);
			make_body(&inner, cl, to, depth + 1);
			put_blob(b, inner.data, inner.len);
			bytes_free(&inner);
		}
		}
	}
}

/* The session's counter grows by one with each request; what is called on the way answers what it was asked */
static void check_reply(struct client *cl, struct cursor *c, struct cursor *body, bool outermost)
{
	uint64_t n = get_u64(c);
	size_t len, i;

	if (outermost && n != ++cl->count)
		wrong("client %u: request %llu has been executed %llu times", cl->number, (unsigned long long)cl->count,
		      (unsigned long long)n);
	while (body->at < body->end) {
		char what = get_u8(body);
		const uint8_t *data;

		get_u8(body);		/* which */
		switch (what) {
		case 'a':
		case 't':
			get_u64(c);
			break;
		case 'r':
			data = get_blob(c, &len);
			for (i = 1; i < len; i++)
				if (data[i] != data[0])
					wrong("client %u: a value that nobody wrote", cl->number);
			break;
		case 'w':
		case 'p':
			get_blob(body, &len);
			break;
		case 'q':
			get_blob(body, &len);
			get_u8(c);
			break;
		case 'c': {
			struct cursor inner, inner_body;

			data = get_blob(c, &len);
			inner = cursor(data, len);
			data = get_blob(body, &len);
			inner_body = cursor(data, len);
			check_reply(cl, &inner, &inner_body, false);
		}
		}
	}
	if (c->bad || c->at != c->end)
		wrong("client %u: a reply of another length", cl->number);
}

static void client_run(void *arg)
{
	struct client *cl = arg;
	struct message start = { .kind = M_START };
	struct reply reply = ask_until(cl, &start);
	char key[40];

	cl->session = strndup((char *)reply.body.data, reply.body.len);
	cl->sequence = reply.sequence;
	reply_free(&reply);
	while (cl->requests < requests_each) {
		struct message m = { .kind = M_CALL, .session = cl->session, .sequence = cl->sequence, .method = "work" };
		struct cursor c, body;

		if (cl->keyed) {
			snprintf(key, sizeof(key), "%u/%llu", cl->number, (unsigned long long)cl->requests);
			m.session = NULL;
			m.key = key;
			m.sequence = 1;
			cl->count = 0;
		}
		make_body(&m.body, cl, cl->home->number, 0);
		say("client %u asks server %u for request %llu of %s", cl->number, cl->home->number, (unsigned long long)cl->sequence,
		    cl->session);
		reply = ask_until(cl, &m);
		say("client %u has its reply to %llu", cl->number, (unsigned long long)cl->sequence);
		if (reply.status != 7 || reply.sequence != m.sequence)
			wrong("client %u: a reply to another request", cl->number);
		if (reply.depends.n)
			wrong("client %u: a dependency leaves the domain", cl->number);
		c = cursor(reply.body.data, reply.body.len);
		body = cursor(m.body.data, m.body.len);
		check_reply(cl, &c, &body, true);
		bytes_free(&m.body);
		reply_free(&reply);
		cl->sequence++;
		cl->requests++;
		requests_done++;
		if (!dice(4))
			pause_for(dice(5 * MS));
	}
	cl->done = true;
}

static void check_counts(void *arg)
{
	struct client *cl = arg;
	struct message start = { .kind = M_START };
	struct reply reply = ask_until(cl, &start);
	struct message m = { .kind = M_CALL, .session = strndup((char *)reply.body.data, reply.body.len), .sequence = 1, .method = "work" };
	unsigned int i;
	struct cursor c;

	for (i = 0; i < VARIABLES; i++) {
		put_u8(&m.body, 'a');
		put_u8(&m.body, i);
	}
	reply = ask_until(cl, &m);
	c = cursor(reply.body.data, reply.body.len);
	get_u64(&c);
	for (i = 0; i < VARIABLES; i++) {
		uint64_t n = get_u64(&c);

		if (n != added[cl->home->number][i] + 1)
			wrong("server %u has added %llu times to variable %u, and was asked to %llu times", cl->home->number,
			      (unsigned long long)n - 1, i, (unsigned long long)added[cl->home->number][i]);
	}
	m.kind = M_END;
	m.sequence = 2;
	reply = ask_until(cl, &m);
	cl->done = true;
}

/* A run */

static void run_until(bool (*enough)(void), uint64_t limit)
{
	uint64_t events = 0;

	while (!enough()) {
		struct event e;

		if (!nr_events)
			wrong("nothing happens any more");
		if (now > limit)
			wrong("it takes too long");
		e = event_pop();
		now = e.at;
		if (e.run) {
			e.run(e.arg);
			continue;
		}
		if (e.task->done || (e.task->node && e.task->life != e.task->node->life) || (e.waits && e.waits != e.task->waits))
			continue;
		e.task->what = NULL;
		e.task->waits++;
		running = e.task;
		swapcontext(&scheduler, &e.task->context);
		running = NULL;
		if (++events % 64 == 0)
			tasks_sweep();
	}
}

static bool clients_done(void)
{
	unsigned int i;

	for (i = 0; i < nr_clients; i++)
		if (!clients[i].done)
			return false;
	return true;
}

static uint64_t settled_at;

static bool settled(void)
{
	return now >= settled_at;
}

static void sim_report(struct env *env, const struct verdict_record *record)
{
	say("server %u: %s after %s: %s", to_node(env)->number, record->outcome, record->cause, record->why);
}

static void node_make(unsigned int number)
{
	static const char *const names[] = { "s0", "s1", "s2", "s3", "s4" };
	static const char *const hasty[] = { "q0", "q1", "q2", "q3", "q4" };
	struct node *node = &nodes[number];
	unsigned int i, n = 0;

	node->number = number;
	node->env = (struct env){ .lock = sim_lock, .unlock = sim_unlock, .wait = sim_wait, .wake = sim_wake,
				  .wake_one = sim_wake_one, .thread = sim_thread,
				  .clock = sim_clock, .time = sim_time, .random = sim_random, .read = sim_read, .write = sim_write,
				  .exchange = sim_exchange, .report = sim_report, .fail = sim_fail };
	node->device = must_alloc(DEVICE_SIZE);
	for (i = 0; i < nr_nodes; i++)
		if (i != number)
			node->peers[n++] = (struct peer){ .name = names[i], .where = &nodes[i],
							  .member = nodes[i].domain == node->domain ? i : OUTSIDE };
	/* The same ones, for who does not wait long */
	for (i = 0; i < nr_nodes; i++)
		if (i != number)
			node->peers[n++] = (struct peer){ .name = hasty[i], .where = &nodes[i], .member = OUTSIDE,
							  .timeout = 1 + dice(30 * MS) };
	node->config = (struct config){
		.self = number, .peers = node->peers, .nr_peers = n, .methods = methods, .nr_methods = 1,
		.threads = 1 + dice(4), .threads_max = 64,
		.session_checkpoint = 500 << dice(10), .variable_checkpoint = 2 << dice(5), .server_checkpoint = 4000 << dice(7),
		.forced_after = 1 + dice(6), .request_log = 64 << 10, .log_cache = dice(8) * CHUNK_SIZE,
	};
	if (log_format(&node->env, DEVICE_SIZE, dice(2) ? 512 : 4096))
		wrong("no log");
}

static void simulate(void)
{
	unsigned int i;

	random_state = seed * 7919 + 1;
	nr_nodes = 3 + dice(3);
	nr_clients = 2 + dice(CLIENTS_MAX - 1);
	requests_each = 5 + dice(40);
	crashes_wanted = 200 << dice(6);
	crashes_max = 1 + dice(150);
	for (i = 0; i < nr_nodes; i++)
		nodes[i].domain = i < 2 ? 0 : i == 2 ? dice(2) : 1;
	for (i = 0; i < nr_nodes; i++) {
		node_make(i);
		at(dice(MS), node_start, &nodes[i]);
	}
	for (i = 0; i < nr_clients; i++) {
		clients[i] = (struct client){ .number = i, .home = &nodes[dice(nr_nodes)], .keyed = !dice(4) };
		task_new(NULL, client_run, &clients[i], dice(5 * MS));
	}
	run_until(clients_done, 4000000 * MS);
	/* All quiet: what is orphan hears of it, and then everything is as it was asked for */
	quiet = true;
	settled_at = now + 10000 * MS;
	run_until(settled, UINT64_MAX);
	for (i = 0; i < nr_nodes; i++) {
		struct session *s, *next;
		struct state unknown;

		if (!nodes[i].server)
			wrong("server %u is not there", i);
		HASH_ITER(hh, nodes[i].server->sessions, s, next) {
			if (s->stuck)
				wrong("server %u: %s", i, s->stuck);
			if (s->busy || s->queued || !s->live || judge(nodes[i].server, &s->depends, &unknown) == ORPHAN)
				wrong("server %u: session %llx is not at rest: %s%s%s", i, (unsigned long long)s->key,
				      s->busy ? "busy " : "", s->queued ? "queued " : "", s->live ? "" : "not replayed");
		}
		if (log_used(&nodes[i].server->log) > nodes[i].server->log.ring)
			wrong("server %u: the log is beyond its bounds", i);
	}
	for (i = 0; i < nr_nodes; i++) {
		clients[i] = (struct client){ .number = i, .home = &nodes[i] };
		task_new(NULL, check_counts, &clients[i], now);
	}
	nr_clients = nr_nodes;
	run_until(clients_done, now + 100000 * MS);
	if (verbose) {
		for (i = 0; i < nr_nodes; i++) {
			const struct server *s = nodes[i].server;

			printf("server %u: %u crashes, %llu requests, %llu replayed, %llu orphans, %llu rolled back, %llu checkpoints, log %llu of %llu\n",
			       i, nodes[i].crashes, (unsigned long long)s->requests, (unsigned long long)s->replayed,
			       (unsigned long long)s->orphans, (unsigned long long)s->rollbacks, (unsigned long long)s->checkpoints,
			       (unsigned long long)log_end(&s->log), (unsigned long long)s->log.ring);
		}
	}
}

int main(int argc, char **argv)
{
	uint64_t first = 1, n = 1, crashes = 0, requests = 0, late = 0, failed = 0, i;
	int c;

	while ((c = getopt(argc, argv, "s:n:v")) != -1) {
		if (c == 's')
			first = strtoull(optarg, NULL, 0);
		else if (c == 'n')
			n = strtoull(optarg, NULL, 0);
		else if (c == 'v')
			verbose = true;
		else
			return 2;
	}
	for (i = first; i < first + n; i++) {
		uint64_t sums[3] = { 0 };
		int fds[2], status;
		pid_t pid;

		seed = i;
		fflush(stdout);
		if (pipe(fds))
			return 1;
		pid = fork();
		if (!pid) {
			alarm(120);
			simulate();
			sums[0] = nr_crashes;
			sums[1] = requests_done;
			sums[2] = timeouts;
			if (write(fds[1], sums, sizeof(sums)) != sizeof(sums))
				_exit(1);
			fflush(stdout);
			_exit(0);
		}
		close(fds[1]);
		if (read(fds[0], sums, sizeof(sums)) == sizeof(sums)) {
			crashes += sums[0];
			requests += sums[1];
			late += sums[2];
		}
		close(fds[0]);
		waitpid(pid, &status, 0);
		if (status) {
			failed++;
			printf("not ok: seed %llu (status %#x)\n", (unsigned long long)i, status);
		}
	}
	printf("%llu seeds, %llu requests, %llu crashes, %llu timeouts, %llu failed\n", (unsigned long long)n,
	       (unsigned long long)requests, (unsigned long long)crashes, (unsigned long long)late, (unsigned long long)failed);
	return failed > 0;
}
