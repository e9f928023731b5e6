// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * zhttpd: a small web server that outlives its own faults. See zhttpd(8).
 *
 * It is an ordinary event loop, made restartable by four rules:
 *
 * 1. What must be known after a fault is in the state area (state.h), and nothing else is.
 * 2. Input is read with hread() and released only when its answer is decided (and sent, as it happens). A fault
 *    before that: it is read again.
 * 3. Output is written with lwrite() and lsendfile(): the kernel knows how many bytes of an answer are out.
 * 4. A file descriptor is recorded after it was opened and forgotten before it is closed. So one that nobody
 *    knows is either a connection just accepted (adopt it) or a file that is not needed (close it).
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <perdure.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "http.h"
#include "tls.h"

#define LISTENER	UINT32_MAX	/* epoll data; a slot number otherwise */
#define TURN		32		/* steps of one connection before the others get their turn */
#define CHUNK		(128 * 1024)	/* of a file, in one step */
#define CHECK_MS	1000		/* between two looks at the deadlines */
#define LINGER_MS	2000		/* how long to read on after an answer that closes the connection */
#define FDS_MAX		(2 * opt.max_connects + 64)	/* two for each connection, and some for ourselves */

/* What can be lost: it is rebuilt from the state area and the kernel's counts. */
struct conn {
	uint64_t released, written;	/* bytes of input given up, bytes of output */
	size_t len, done;		/* bytes in buf; how many of these are decided on, but not released */
	size_t header_len;		/* of the present answer, 0: not computed yet */
	int64_t deadline;
	uint32_t events;		/* what epoll waits for */
	struct tls_handshake *handshake;
	char buf[REQUEST_MAX];
};

static struct {
	const char *root, *address, *pid_file, *cert, *key;
	int port, max_connects, timeout;
	bool ordinary;
} opt = { .port = 80, .root = ".", .address = "0.0.0.0", .max_connects = 500, .timeout = 30 };

static struct state_area *state;
static struct global_state_var *g;	/* = &state->global */
static struct conn *conns;
static int *free_slots, num_free;
static int64_t now;			/* in ms */
static bool accept_paused;

void say(const char *format, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	dprintf(STDERR_FILENO, "zhttpd[%d]: %s\n", getpid(), text);	/* in one write: lines stay whole */
}

static int64_t monotonic_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void update_time(void)
{
	now = monotonic_ns() / 1000000;
}

static struct conn *conn_of(const struct httpd_state_var *v)
{
	return &conns[v - state->conn];
}

/* Nothing that comes before it in the program may be stored after it. */
static void enter(struct httpd_state_var *v, enum http_state stage)
{
	__atomic_store_n(&v->conn_stage, stage, __ATOMIC_SEQ_CST);
	fault_at_stage(stage);
}

/* Input and output: counted by the kernel, or ordinary where it cannot. */

static bool not_supported(ssize_t n)
{
	if (n >= 0 || errno != EOPNOTSUPP || !g->zero_loss)
		return false;
	g->zero_loss = false;		/* for good: from here on the kernel's counts miss something */
	say("zero-loss restart has been switched off (sysctl kernel.restart.enabled): going on without");
	return true;
}

static ssize_t input(int fd, void *buf, size_t room, size_t release)
{
	ssize_t n;

	do
		n = g->zero_loss ? hread(fd, buf, room, release) : room ? read(fd, buf, room) : 0;
	while (not_supported(n));
	if (n < 0 && errno == EIO && opt.cert) {
		/* A record that is no data: after a good one, wait for more, so that many are not an endless loop */
		n = perdure_tls_control(fd);
		if (n > 0) {
			errno = EAGAIN;
			return -1;
		}
	}
	return n;
}

static ssize_t output(struct httpd_state_var *v, const char *header, size_t header_len)
{
	struct conn *c = conn_of(v);
	uint64_t sent = c->written - v->response_start;
	off_t offset = v->first + sent - header_len;
	size_t count;
	ssize_t n;

	if (sent < header_len) {
		count = fault_at_sent(c->written, header_len - sent);
		do
			n = (g->zero_loss ? lwrite : write)(v->conn_fd, header + sent, count);
		while (not_supported(n));
	} else {
		count = v->length - (sent - header_len);
		count = fault_at_sent(c->written, count < CHUNK ? count : CHUNK);
		do
			n = (g->zero_loss ? lsendfile : sendfile)(v->conn_fd, v->file_fd, &offset, count);
		while (not_supported(n));
	}
	if (n > 0) {
		c->written += n;
		fault_at_sent(c->written, 0);
	}
	return n;
}

/* Connections */

static void wait_for(struct httpd_state_var *v, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.u32 = v - state->conn };
	struct conn *c = conn_of(v);

	if (c->events == events)
		return;
	/* One whose events we do not know is new, or in the set since before the fault. */
	if (epoll_ctl(g->epoll_fd, c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, v->conn_fd, &e) &&
	    (errno != EEXIST || epoll_ctl(g->epoll_fd, EPOLL_CTL_MOD, v->conn_fd, &e)))
		say("epoll_ctl: %s: the connection will time out", strerror(errno));
	c->events = events;
}

static void take_slot(int fd)
{
	struct httpd_state_var *v = &state->conn[free_slots[--num_free]];

	fault_at_stage(SLOT_FREE);
	memset(conn_of(v), 0, offsetof(struct conn, buf));
	memset(v, 0, sizeof(*v));
	v->conn_fd = fd;
	v->file_fd = -1;
	conn_of(v)->deadline = now + 1000 * opt.timeout;
	if (v - state->conn >= g->slots_used)
		g->slots_used = v - state->conn + 1;
	g->num_connects++;
	enter(v, opt.cert ? TLS_HANDSHAKE : CONNECTION_ACCEPTED);
	wait_for(v, EPOLLIN);
}

static void drop_file(struct httpd_state_var *v)
{
	int fd = v->file_fd;

	__atomic_store_n(&v->file_fd, -1, __ATOMIC_SEQ_CST);
	if (fd >= 0)
		close(fd);
}

/* Frees the slot after the close: recovery can tell a slot without a file, but not whose a socket was. */
static bool close_connection(struct httpd_state_var *v)
{
	/* Only who has got all that he was to get is told that this is the end. */
	if (opt.cert && v->conn_stage < EXPNFILENAME_RECORDED)
		perdure_tls_alert(v->conn_fd, PERDURE_TLS_CLOSE_NOTIFY);
	tls_drop(&conn_of(v)->handshake);
	enter(v, CONNECTION_CLOSING);
	drop_file(v);
	close(v->conn_fd);
	enter(v, SLOT_FREE);
	free_slots[num_free++] = v - state->conn;
	g->num_connects--;
	accept_paused = false;
	return false;
}

/* Decides on a request and records the answer, in one step with the input that it takes. */
static bool answer(struct httpd_state_var *v, const struct request *rq)
{
	struct httpd_state_var next = *v;
	struct conn *c = conn_of(v);

	enter(v, REQUEST_PARSED);
	fault_at_path(rq->path);
	http_answer(g->root_fd, rq, &next);
	enter(v, FILE_OPENED);
	if (g->stopping || !num_free)	/* somebody may be waiting for this slot */
		next.keep_alive = false;
	next.response_start = c->written;
	next.requests_end = c->released + rq->length;
	next.conn_stage = EXPNFILENAME_RECORDED;
	if (perdure_state_update(state, v, &next, sizeof(next)))
		abort();		/* it fits */
	fault_at_stage(EXPNFILENAME_RECORDED);
	c->done = rq->length;
	c->header_len = 0;
	return true;
}

static bool answer_error(struct httpd_state_var *v, int status)
{
	/* It takes all that has come: where another request would start is anyone's guess. */
	struct request rq = { .status = status, .length = conn_of(v)->len };

	return answer(v, &rq);
}

/* Gives up the request that has been answered; keeps what the client has sent after it. */
static bool release(struct httpd_state_var *v)
{
	struct conn *c = conn_of(v);

	if (input(v->conn_fd, NULL, 0, c->done) < 0)
		return false;
	c->released += c->done;
	c->len -= c->done;
	memmove(c->buf, c->buf + c->done, c->len);
	c->done = 0;
	return true;
}

/* The steps of a connection return true when there may be more to do at once. */

static bool shake_hands(struct httpd_state_var *v)
{
	switch (tls_handshake(&conn_of(v)->handshake, v->conn_fd)) {
	case TLS_DONE:
		enter(v, CONNECTION_ACCEPTED);
		return true;
	case TLS_READ:
		wait_for(v, EPOLLIN);
		return false;
	case TLS_WRITE:
		wait_for(v, EPOLLOUT);
		return false;
	default:
		return close_connection(v);
	}
}

static bool read_request(struct httpd_state_var *v)
{
	struct conn *c = conn_of(v);
	struct request rq;
	ssize_t n;

	if (c->done < c->len && c->done && !release(v))		/* else it goes with the next hread() */
		return close_connection(v);
	for (;;) {
		size_t kept = c->len - c->done;

		if (kept && http_parse(c->buf, kept, &rq))
			return answer(v, &rq);
		n = input(v->conn_fd, c->buf + kept, REQUEST_MAX - kept, c->done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			wait_for(v, EPOLLIN);
			return false;
		}
		if (n < 0 && errno == ENOBUFS && c->done && release(v))
			continue;
		if (n < 0 && errno == ENOBUFS)	/* kernel.restart.held_bytes_max is below REQUEST_MAX */
			return answer_error(v, 431);
		if (n <= 0)
			return close_connection(v);
		if (!kept)
			c->deadline = now + 1000 * opt.timeout;	/* for the whole request */
		c->released += c->done;
		c->done = 0;
		c->len = kept + n;
		enter(v, REQUEST_READ);
		fault_at_input(c->released + c->len);
	}
}

static bool send_response(struct httpd_state_var *v)
{
	struct conn *c = conn_of(v);
	uint64_t sent = c->written - v->response_start;
	char header[HEADER_MAX];
	ssize_t n;

	if (!c->header_len || sent < c->header_len)
		c->header_len = http_header(v, header);
	if (sent == c->header_len + (v->file_fd >= 0 ? v->length : 0)) {
		enter(v, RESPONSE_SENDING_COMPLETED);
		return true;
	}
	n = output(v, header, c->header_len);
	if (n < 0 && errno == EINTR)
		return true;
	if (n < 0 && errno == EAGAIN) {
		wait_for(v, EPOLLOUT);
		return false;
	}
	if (n <= 0)			/* the client has gone, or the file has become shorter */
		return close_connection(v);
	c->deadline = now + 1000 * opt.timeout;
	if (v->conn_stage != SOME_RESPONSE_SENT)
		enter(v, SOME_RESPONSE_SENT);
	return true;
}

static bool finish_response(struct httpd_state_var *v)
{
	drop_file(v);
	if (v->keep_alive) {
		conn_of(v)->deadline = now + 1000 * opt.timeout;
		enter(v, CONNECTION_ACCEPTED);
	} else {
		if (opt.cert && perdure_tls_alert(v->conn_fd, PERDURE_TLS_CLOSE_NOTIFY) && errno == EAGAIN) {
			wait_for(v, EPOLLOUT);
			return false;
		}
		/* A close with input unread would reset the connection, and the client might lose the answer. */
		shutdown(v->conn_fd, SHUT_WR);
		conn_of(v)->deadline = now + LINGER_MS;
		enter(v, CONNECTION_CLOSING);
	}
	return true;
}

static bool drain(struct httpd_state_var *v)
{
	char buf[4096];
	ssize_t n = read(v->conn_fd, buf, sizeof(buf));

	if (n < 0 && errno == EAGAIN) {
		/* A part of a record, in a connection that is half closed, counts as input. */
		wait_for(v, opt.cert ? EPOLLRDHUP : EPOLLIN);
		return false;
	}
	return n > 0 || close_connection(v);
}

static void serve(struct httpd_state_var *v)
{
	bool more = true;

	g->serving_fd = v->conn_fd;
	for (int i = 0; more && i < TURN; i++) {
		switch (v->conn_stage) {
		case EXPNFILENAME_RECORDED:
		case SOME_RESPONSE_SENT:
			more = send_response(v);
			break;
		case RESPONSE_SENDING_COMPLETED:
			more = finish_response(v);
			break;
		case CONNECTION_CLOSING:
			more = drain(v);
			break;
		case TLS_HANDSHAKE:
			more = shake_hands(v);
			break;
		default:
			more = read_request(v);
		}
	}
	if (more)
		wait_for(v, EPOLLIN | EPOLLOUT);	/* at once, after the others */
	g->serving_fd = -1;
}

static void accept_connections(void)
{
	for (int i = 0; i < TURN && num_free; i++) {
		int fd = accept4(g->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0)
			take_slot(fd);
		else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
			accept_paused = true;	/* until a connection is closed, or a second is over */
		else if (errno == EAGAIN)
			return;
	}
}

/* Beyond the limit new connections wait in the listen queue, rather than being turned away. */
static void update_listener(void)
{
	static int listening = -1;
	int want = num_free && !accept_paused;
	struct epoll_event e = { .events = want ? EPOLLIN : 0, .data.u32 = LISTENER };
	int fd = g->listen_fd;

	if (g->stopping && fd >= 0) {
		__atomic_store_n(&g->listen_fd, -1, __ATOMIC_SEQ_CST);
		close(fd);
	} else if (fd >= 0 && want != listening) {
		if (epoll_ctl(g->epoll_fd, EPOLL_CTL_MOD, fd, &e))
			die("epoll_ctl: %s", strerror(errno));
		listening = want;
	}
}

static void check_deadlines(void)
{
	accept_paused = false;
	for (int i = 0; i < g->slots_used; i++) {
		struct httpd_state_var *v = &state->conn[i];
		bool reading = v->conn_stage >= CONNECTION_ACCEPTED && v->conn_stage <= FILE_OPENED;
		bool idle = (reading && conns[i].len == conns[i].done) || v->conn_stage == TLS_HANDSHAKE;

		if (v->conn_stage == SLOT_FREE || (conns[i].deadline > now && !(g->stopping && idle)))
			continue;
		if (reading && !idle && answer_error(v, 408))
			serve(v);
		else if (v->conn_stage != SLOT_FREE)
			close_connection(v);
	}
}

static void on_stop(int sig)
{
	(void)sig;
	g->stopping++;
}

static void loop(void)
{
	struct sigaction stop = { .sa_handler = on_stop };
	struct epoll_event events[64];
	int64_t checked = now;
	sigset_t none;

	/* Blocked outside of epoll_pwait(): a SIGTERM during a restart waits for the new generation. */
	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGINT, &stop, NULL);
	sigemptyset(&none);
	while (!g->stopping || (g->num_connects && g->stopping == 1)) {
		int n;

		update_listener();
		n = epoll_pwait(g->epoll_fd, events, 64, g->num_connects || accept_paused ? CHECK_MS : -1, &none);
		update_time();
		for (int i = 0; i < n; i++) {
			uint32_t slot = events[i].data.u32;

			if (slot == LISTENER)
				accept_connections();
			else if (slot < (uint32_t)g->slots_used && state->conn[slot].conn_stage != SLOT_FREE)
				serve(&state->conn[slot]);
		}
		if (now >= checked + CHECK_MS || g->stopping) {
			check_deadlines();
			checked = now;
		}
	}
	if (opt.pid_file)
		unlink(opt.pid_file);
	say("stopped");
}

/* Start */

/* Two files for each connection, and some for ourselves. */
static void raise_limit(void)
{
	struct rlimit r;

	getrlimit(RLIMIT_NOFILE, &r);
	if (r.rlim_cur < 2 * (rlim_t)opt.max_connects + 16) {
		r.rlim_cur = 2 * opt.max_connects + 16;
		if (r.rlim_cur > r.rlim_max || setrlimit(RLIMIT_NOFILE, &r))
			die("-c %d needs %llu open files, ulimit -Hn allows %llu", opt.max_connects,
			    (unsigned long long)r.rlim_cur, (unsigned long long)r.rlim_max);
	}
}

/* True when a generation before us has left its state. */
static bool open_state(void)
{
	size_t size = sizeof(*state) + opt.max_connects * sizeof(state->conn[0]);
	uint32_t layout = STATE_LAYOUT << 16 | sizeof(state->conn[0]);
	int inherited;

	state = perdure_state_open("zhttpd", size, layout, NULL, &inherited);
	if (!state && (errno == ESTALE || errno == EBADMSG))	/* of another version; damaged */
		return false;
	if (!state)
		die("cannot open the state area: %s", strerror(errno));
	g = &state->global;
	conns = calloc(opt.max_connects, sizeof(*conns));
	free_slots = calloc(opt.max_connects, sizeof(*free_slots));
	if (!conns || !free_slots)
		die("no memory for %d connections: use a smaller -c", opt.max_connects);
	return inherited;
}

static int listen_at(const char *address, int *port)
{
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6 };
	struct sockaddr_in a4 = { .sin_family = AF_INET };
	bool v6 = strchr(address, ':');
	struct sockaddr *a = v6 ? (void *)&a6 : (void *)&a4;
	socklen_t len = v6 ? sizeof(a6) : sizeof(a4);
	int fd, one = 1;

	if (inet_pton(a->sa_family, address, v6 ? (void *)&a6.sin6_addr : (void *)&a4.sin_addr) != 1)
		die("-a %s: not an IPv4 or IPv6 address", address);
	a4.sin_port = a6.sin6_port = htons(*port);
	fd = socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) ||	/* connections inherit it */
	    bind(fd, a, len) || listen(fd, SOMAXCONN) || getsockname(fd, a, &len))
		die("cannot listen on %s, port %d: %s", address, *port, strerror(errno));
	*port = ntohs(v6 ? a6.sin6_port : a4.sin_port);
	return fd;
}

/* A listener that a service manager has opened (sd_listen_fds(3)), -1: none. */
static int given_listener(int *port)
{
	const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
	struct sockaddr_in6 a = { 0 };		/* the port is where IPv4 has it, too */
	socklen_t len = sizeof(a), int_len = sizeof(int);
	int fd = STDERR_FILENO + 1, listens = 0, one = 1;

	if (!pid || !fds || atoi(pid) != getpid())
		return -1;
	if (atoi(fds) != 1)
		die("LISTEN_FDS=%s: it takes one socket", fds);
	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &int_len) || !listens ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) || getsockname(fd, (struct sockaddr *)&a, &len) ||
	    fcntl(fd, F_SETFD, FD_CLOEXEC) || fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK))
		die("LISTEN_FDS: file %d is no listening socket of TCP", fd);
	*port = ntohs(a.sin6_port);
	return fd;
}

static void write_pid_file(void)
{
	FILE *f = fopen(opt.pid_file, "we");

	if (!f || fprintf(f, "%d\n", getpid()) < 0 || fclose(f))
		die("cannot write %s: %s", opt.pid_file, strerror(errno));
}

/* The last step of the start: before it, a fault is better fatal. */
static bool register_restart(char **argv)
{
	char path[PATH_MAX];
	struct io_log log;
	ssize_t n;

	if (opt.ordinary) {
		say("not restartable, as asked (-n): a fault will end it");
		return false;
	}
	if (perdure_abi_version() < 0 || getiolog(g->listen_fd, &log)) {
		say("%s: serving as an ordinary server, a fault will end it", errno == EOPNOTSUPP ?
		    "zero-loss restart is switched off (sysctl kernel.restart.enabled)" :
		    "this kernel has no zero-loss restart");
		return false;
	}
	n = readlink("/proc/self/exe", path, sizeof(path) - 1);
	if (n < 0)
		die("cannot find the program's own path: %s: is /proc mounted?", strerror(errno));
	path[n] = '\0';
	if (reregist(path, argv, environ, 0))
		die("cannot register %s: %s", path, strerror(errno));
	/* At the limit, one restart more to end a connection that brings the fault. */
	if (perdure_setpolicy(&(struct restart_policy){ .flags = RESTART_QUARANTINE }, sizeof(struct restart_policy)))
		say("no quarantine of poisonous requests: %s", strerror(errno));
	return true;
}

static void start(char **argv)
{
	struct epoll_event e = { .events = EPOLLIN, .data.u32 = LISTENER };
	int given = given_listener(&opt.port);

	closefrom((given < 0 ? STDERR_FILENO : given) + 1);	/* what others forgot to close is not ours */
	open_state();
	if (opt.cert)
		tls_start();
	g->max_connects = opt.max_connects;
	g->serving_fd = -1;
	g->root_fd = open(opt.root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (g->root_fd < 0)
		die("cannot open %s: %s", opt.root, strerror(errno));
	g->listen_fd = given < 0 ? listen_at(opt.address, &opt.port) : given;
	g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (g->epoll_fd < 0 || epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, g->listen_fd, &e))
		die("epoll: %s", strerror(errno));
	if (opt.pid_file)
		write_pid_file();
	for (int i = opt.max_connects; i--; )
		free_slots[num_free++] = i;
	g->zero_loss = register_restart(argv);
	say("serving %s on port %d%s", opt.root, opt.port, opt.cert ? " with TLS" : "");
}

/* Recovery */

/* Whether a descriptor is one that we can have; see raise_limit(). */
static bool in_range(int fd)
{
	return fd >= 0 && fd < FDS_MAX;
}

/* A stray write before the fault may have hit what is used as an index, or as a string, from here on. */
static bool sane(void)
{
	if (!in_range(g->epoll_fd) || !in_range(g->root_fd) || (g->listen_fd != -1 && !in_range(g->listen_fd)) ||
	    g->slots_used < 0 || g->slots_used > opt.max_connects)
		return false;
	for (int i = 0; i < g->slots_used; i++) {
		struct httpd_state_var *v = &state->conn[i];

		if (v->conn_stage != SLOT_FREE &&
		    (!in_range(v->conn_fd) || (v->file_fd != -1 && !in_range(v->file_fd)) ||
		     !memchr(v->expnfilename, '\0', sizeof(v->expnfilename))))
			return false;
	}
	return true;
}

/*
 * A request that crashes the server again and again must not take the other connections with it. The kernel says
 * which file was read last, the state whether we were working on it, and the signal whether it came from outside.
 */
static int suspect(const struct reg_info *info)
{
	int serving = g->serving_fd;

	g->serving_fd = -1;
	return info->code != SI_USER && info->suspect_fd == serving ? serving : -1;
}

/* Suspected twice without a byte of input or output in between. */
static bool is_poison(struct httpd_state_var *v, const struct io_log *log)
{
	uint64_t at = log->read + log->written;
	bool twice = v->suspected_at == at;

	v->suspected_at = at;
	return twice;
}

static void recover_connection(struct httpd_state_var *v, int suspect_fd)
{
	struct conn *c = conn_of(v);
	struct io_log log;
	size_t skip;

	if (getiolog(v->conn_fd, &log)) {
		say("getiolog: %s: closing a connection", strerror(errno));
		close_connection(v);
		return;
	}
	c->released = log.released;
	c->written = log.written;
	c->deadline = now + (v->conn_stage == CONNECTION_CLOSING ? LINGER_MS : 1000 * opt.timeout);

	/* The keys are lost but for one that has not begun: the client is told at once. */
	if (v->conn_stage == TLS_HANDSHAKE) {
		if (!(perdure_tls(v->conn_fd) & PERDURE_TLS_UNTOUCHED)) {
			say("file %d was in its handshake: ending this connection", v->conn_fd);
			perdure_tls_alert(v->conn_fd, PERDURE_TLS_INTERNAL_ERROR);
			close_connection(v);
		}
		return;
	}

	/* The roll-back of Figure 12. */
	if (v->conn_stage < EXPNFILENAME_RECORDED)
		enter(v, CONNECTION_ACCEPTED);
	else if (v->conn_stage == SOME_RESPONSE_SENT)
		enter(v, EXPNFILENAME_RECORDED);

	/* What has been decided on is not to be read again. */
	skip = v->requests_end - log.released;
	if (skip && (skip > REQUEST_MAX || input(v->conn_fd, c->buf, skip, skip) != (ssize_t)skip)) {
		say("cannot skip %zu bytes of input: %s: closing a connection", skip, strerror(errno));
		close_connection(v);
		return;
	}
	c->released += skip;
	if (v->conn_fd == suspect_fd && is_poison(v, &log)) {
		say("file %d brought the fault again: ending this connection", v->conn_fd);
		if (v->conn_stage != CONNECTION_ACCEPTED || !answer_error(v, 500))
			close_connection(v);
	}
}

/* Files that nobody knows; see rule 4. */
static void adopt_orphans(void)
{
	DIR *dir = opendir("/proc/self/fd");
	bool *known = calloc(FDS_MAX, sizeof(*known));
	struct dirent *d;

	if (!dir || !known)
		die("cannot look for orphans in /proc/self/fd: %s", strerror(errno));
	known[g->epoll_fd] = known[g->root_fd] = known[dirfd(dir)] = true;
	if (g->listen_fd >= 0)
		known[g->listen_fd] = true;
	for (int i = 0; i < g->slots_used; i++) {
		if (state->conn[i].conn_stage != SLOT_FREE) {
			known[state->conn[i].conn_fd] = true;
			if (state->conn[i].file_fd >= 0)
				known[state->conn[i].file_fd] = true;
		}
	}
	while ((d = readdir(dir))) {
		int fd = atoi(d->d_name), type, listens;
		socklen_t len = sizeof(int);

		if (fd <= STDERR_FILENO || fd >= FDS_MAX || known[fd])
			continue;
		if (fcntl(fd, F_GET_SEALS) > F_SEAL_SEAL)	/* a state area: only these have been sealed so far */
			continue;
		if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) &&
		    !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) && !listens && num_free)
			take_slot(fd);
		else
			close(fd);
	}
	closedir(dir);
	free(known);
}

static const char *cause(const struct reg_info *info)
{
	if (info->flags & REG_ASKED)
		return "a request";
	return info->signo ? sigabbrev_np(info->signo) : "an exit";
}

static void recover(const struct reg_info *info, int64_t main_ns)
{
	int suspect_fd = suspect(info), kept;

	g->num_connects = 0;
	for (int i = opt.max_connects; i--; ) {
		struct httpd_state_var *v = &state->conn[i];

		/* A slot without its file: it stopped between the close and the freeing. */
		if (i >= g->slots_used || v->conn_stage == SLOT_FREE || fcntl(v->conn_fd, F_GETFD) < 0) {
			if (i < g->slots_used)
				v->conn_stage = SLOT_FREE;
			free_slots[num_free++] = i;
		} else {
			g->num_connects++;
		}
	}
	adopt_orphans();
	kept = g->num_connects;
	for (int i = 0; i < g->slots_used; i++)
		if (state->conn[i].conn_stage != SLOT_FREE)
			recover_connection(&state->conn[i], suspect_fd);
	say("generation %llu after %s, %d connections kept, back in %.3f ms (retain %.3f, exec %.3f, restore %.3f; recovery took %.3f more)",
	    (unsigned long long)info->generation, cause(info), kept,
	    (main_ns - (int64_t)info->fault_time_ns) / 1e6, info->retain_ns / 1e6, info->exec_ns / 1e6,
	    info->restore_ns / 1e6, (monotonic_ns() - main_ns) / 1e6);
	for (int i = 0; i < g->slots_used; i++)
		if (state->conn[i].conn_stage != SLOT_FREE)
			serve(&state->conn[i]);
}

static int number(const char *name, const char *text, int min, int max)
{
	char *end;
	long n = strtol(text, &end, 10);

	if (end == text || *end || n < min || n > max)
		die("-%s %s: not a number from %d to %d", name, text, min, max);
	return n;
}

static void parse_options(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "a:C:c:d:hK:np:r:t:")) != -1) {
		switch (c) {
		case 'a': opt.address = optarg; break;
		case 'C': opt.cert = optarg; break;
		case 'c': opt.max_connects = number("c", optarg, 1, 100000); break;
		case 'd': opt.root = optarg; break;
		case 'K': opt.key = optarg; break;
		case 'n': opt.ordinary = true; break;
		case 'p': opt.port = number("p", optarg, 0, 65535); break;
		case 'r': opt.pid_file = optarg; break;
		case 't': opt.timeout = number("t", optarg, 1, 86400); break;
		default:
			dprintf(c == 'h' ? STDOUT_FILENO : STDERR_FILENO,
				"usage: zhttpd [-p port] [-d root] [-a address] [-c max_connections] [-t timeout_s] [-r pid_file] [-n]\n"
				"              [-C certificate [-K key]]\n");
			exit(c == 'h' ? 0 : 2);
		}
	}
	if (optind < argc)
		die("%s: unexpected; see zhttpd -h", argv[optind]);
	if (opt.key && !opt.cert)
		die("-K %s: there is no certificate (-C)", opt.key);
	if (opt.cert)
		tls_files(opt.cert, opt.key);
}

int main(int argc, char **argv)
{
	int64_t main_ns = monotonic_ns();
	struct reg_info info;
	bool restarted;
	sigset_t stop;

	parse_options(argc, argv);
	sigemptyset(&stop);
	sigaddset(&stop, SIGTERM);
	sigaddset(&stop, SIGINT);
	sigprocmask(SIG_BLOCK, &stop, NULL);
	signal(SIGPIPE, SIG_IGN);
	update_time();
	raise_limit();

	restarted = getreginfo(&info) == 1 && info.is_restarted;
	if (restarted && !(open_state() && g->zero_loss && sane())) {
		say("the state is of no use: starting afresh, without the connections");
		restarted = false;
	}
	if (restarted)
		recover(&info, main_ns);
	else
		start(argv);
	loop();
	return 0;
}
