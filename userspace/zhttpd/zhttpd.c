// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * zhttpd: a small web server that outlives its own faults. See zhttpd(8).
 *
 * It is an ordinary event loop. The library keeps the books of its connections, perdure_conn(3): a request is held until
 * perdure_conn_done() says that its answer is out, and after a fault the answer is made again, without what the client
 * has of it. Three rules are left:
 *
 * 1. The same request can have another answer by then: later, or when its file has gone. So what was decided is noted
 *    with the connection before the first byte is sent (state.h), and the file stays open.
 * 2. What nobody can note in time is told by what it is: a file that belongs to no answer is closed.
 * 3. All else that is in memory can be lost.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <perdure.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "http.h"
#include "tls.h"

#define STATE		"zhttpd"
#define BOOKS		"zhttpd-connections"
#define TURN		32		/* steps of one connection before the others get their turn */
#define CHUNK		(128 * 1024)	/* of a file, in one step */
#define CHECK_MS	1000		/* between two looks at the deadlines */
#define STOPS_MAX	100		/* SIGTERMs that somebody may send */
#define LINGER_MS	2000		/* how long to read on after an answer that closes the connection */
#define FDS_MAX		(2 * opt.max_connects + 16)	/* two for each connection, and some for ourselves */

/* What can be lost */
struct conn {
	int fd;
	enum http_state stage;
	struct perdure_conn *books;	/* NULL before the handshake is done */
	size_t len;			/* bytes in buf: requests that are not answered yet */
	size_t header_len;		/* of the present answer, 0: not computed yet */
	uint64_t sent;			/* bytes of it that the client has */
	bool ended;			/* the client is told that nothing comes any more */
	int unsent;			/* bytes of output, when we looked last */
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

static struct global_state_var *g;
static struct perdure_conns *books;
static struct conn **conns;		/* by descriptor */
static int listen_fd = -1, epoll_fd, num_connects;
static int64_t now;			/* in ms */
static bool accept_paused, registered, zero_loss;

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

static void enter(struct conn *c, enum http_state stage)
{
	c->stage = stage;
	fault_at_stage(stage);
}

/* The answer to the present request, from EXPNFILENAME_RECORDED on; NULL before. */
static struct httpd_state_var *decided(const struct conn *c)
{
	struct httpd_state_var *v = c->books ? perdure_conn_tag(c->books) : NULL;

	return v && v->number == perdure_conn_number(c->books) + 1 ? v : NULL;
}

/* Connections */

static void wait_for(struct conn *c, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.fd = c->fd };

	if (c->events == events)
		return;
	if (epoll_ctl(epoll_fd, c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &e))
		say("epoll_ctl: %s: the connection will time out", strerror(errno));
	c->events = events;
}

static struct conn *new_connection(int fd)
{
	struct conn *c = fd < FDS_MAX ? malloc(sizeof(*c)) : NULL;

	if (!c) {
		close(fd);
		return NULL;
	}
	memset(c, 0, offsetof(struct conn, buf));
	c->fd = fd;
	c->deadline = now + 1000 * opt.timeout;
	c->stage = opt.cert ? TLS_HANDSHAKE : CONNECTION_ACCEPTED;
	conns[fd] = c;
	num_connects++;
	return c;
}

/* The file after the connection: one that no connection needs is closed by a new generation. */
static bool close_connection(struct conn *c)
{
	struct httpd_state_var *v = decided(c);
	int file_fd = v ? v->file_fd : -1;

	tls_drop(&c->handshake);
	enter(c, CONNECTION_CLOSING);
	conns[c->fd] = NULL;
	if (c->books)
		perdure_conn_close(c->books);
	else
		close(c->fd);
	enter(c, SLOT_FREE);
	if (file_fd >= 0)
		close(file_fd);
	free(c);
	num_connects--;
	accept_paused = false;
	return false;
}

static bool keep_books(struct conn *c)
{
	c->books = perdure_conn_open(books, c->fd);
	if (!c->books)
		say("cannot go on with file %d: %s: closing a connection", c->fd, strerror(errno));
	return c->books;
}

static void take_connection(int fd)
{
	struct conn *c;

	fault_at_stage(SLOT_FREE);
	c = new_connection(fd);
	if (!c)
		return;
	if (!opt.cert && !keep_books(c)) {
		close_connection(c);
		return;
	}
	enter(c, c->stage);
	wait_for(c, EPOLLIN);
}

/* Decides on a request, and notes the answer: the number comes last, for before it the note means nothing. */
static void answer(struct conn *c, const struct request *rq)
{
	struct httpd_state_var *v = perdure_conn_tag(c->books);

	enter(c, REQUEST_PARSED);
	fault_at_path(rq->path);
	http_answer(g->root_fd, rq, v);
	enter(c, FILE_OPENED);
	if (g->stopping || num_connects >= opt.max_connects)	/* somebody may be waiting for this place */
		v->keep_alive = false;
	__atomic_store_n(&v->number, perdure_conn_number(c->books) + 1, __ATOMIC_RELEASE);
	enter(c, EXPNFILENAME_RECORDED);
}

static void answer_error(struct conn *c, int status)
{
	/* It takes all that has come: where another request would start is anyone's guess. */
	struct request rq = { .status = status, .length = c->len };

	answer(c, &rq);
}

/* The steps of a connection return true when there may be more to do at once. */

static bool shake_hands(struct conn *c)
{
	switch (tls_handshake(&c->handshake, c->fd)) {
	case TLS_DONE:
		if (!keep_books(c))
			return close_connection(c);
		enter(c, CONNECTION_ACCEPTED);
		return true;
	case TLS_READ:
		wait_for(c, EPOLLIN);
		return false;
	case TLS_WRITE:
		wait_for(c, EPOLLOUT);
		return false;
	default:
		return close_connection(c);
	}
}

static bool read_request(struct conn *c)
{
	for (;;) {
		struct httpd_state_var *v = decided(c);
		struct request rq;
		ssize_t n;

		/* Before a fault: its bytes are read again, but it is not looked at again. */
		if (v && c->len >= v->request_length) {
			enter(c, EXPNFILENAME_RECORDED);
			return true;
		}
		if (!v && c->len && http_parse(c->buf, c->len, &rq)) {
			answer(c, &rq);
			return true;
		}
		n = perdure_conn_read(c->books, c->buf + c->len, REQUEST_MAX - c->len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			wait_for(c, EPOLLIN);
			return false;
		}
		if (n < 0 && errno == ENOBUFS && !v) {	/* kernel.restart.held_bytes_max is below REQUEST_MAX */
			answer_error(c, 431);
			return true;
		}
		if (n <= 0)
			return close_connection(c);
		if (!c->len)
			c->deadline = now + 1000 * opt.timeout;	/* for the whole request */
		c->len += n;
		enter(c, REQUEST_READ);
		fault_at_input(c->len);
	}
}

static bool send_response(struct conn *c)
{
	struct httpd_state_var *v = decided(c);
	char header[HEADER_MAX];
	size_t count;
	off_t offset;
	ssize_t n;

	if (!c->header_len || c->sent < c->header_len)
		c->header_len = http_header(v, header);
	if (c->sent == c->header_len + (v->file_fd >= 0 ? v->length : 0)) {
		enter(c, RESPONSE_SENDING_COMPLETED);
		return true;
	}
	if (c->sent < c->header_len) {
		count = fault_at_sent(c->sent, c->header_len - c->sent);
		n = perdure_conn_write(c->books, header + c->sent, count);
	} else {
		offset = v->first + c->sent - c->header_len;
		count = v->length - (c->sent - c->header_len);
		count = fault_at_sent(c->sent, count < CHUNK ? count : CHUNK);
		n = perdure_conn_sendfile(c->books, v->file_fd, &offset, count);
	}
	if (n < 0 && errno == EINTR)
		return true;
	if (n < 0 && errno == EAGAIN) {
		wait_for(c, EPOLLOUT);
		return false;
	}
	if (n <= 0)	/* the client has gone; the file has become shorter, or is another one after a fault */
		return close_connection(c);
	c->sent += n;
	fault_at_sent(c->sent, 0);
	c->deadline = now + 1000 * opt.timeout;
	if (c->stage != SOME_RESPONSE_SENT)
		enter(c, SOME_RESPONSE_SENT);
	return true;
}

static bool finish_response(struct conn *c)
{
	struct httpd_state_var *v = decided(c);

	if (perdure_conn_done(c->books, v->request_length, v->keep_alive ? 0 : PERDURE_LAST))
		return close_connection(c);
	if (v->file_fd >= 0)
		close(v->file_fd);
	c->len -= v->request_length;
	memmove(c->buf, c->buf + v->request_length, c->len);
	c->sent = c->header_len = 0;
	c->deadline = now + 1000 * opt.timeout;
	enter(c, v->keep_alive ? CONNECTION_ACCEPTED : CONNECTION_CLOSING);
	return true;
}

/*
 * A close with input unread would reset the connection, and the client might lose the answer. With TLS the alert is the
 * end: what is encrypted and had no room yet would be lost by a shutdown.
 */
static bool drain(struct conn *c)
{
	ssize_t n;

	if (!c->ended) {
		if (!opt.cert) {
			shutdown(c->fd, SHUT_WR);
		} else if (perdure_tls_alert(c->fd, PERDURE_TLS_CLOSE_NOTIFY) && errno == EAGAIN) {
			wait_for(c, EPOLLOUT);
			return false;
		}
		c->ended = true;
		c->unsent = INT_MAX;
		c->deadline = now + LINGER_MS;
	}
	n = perdure_conn_read(c->books, c->buf, sizeof(c->buf));
	if (n < 0 && errno == EAGAIN) {
		wait_for(c, EPOLLIN);
		return false;
	}
	return (n > 0 && !perdure_conn_done(c->books, n, PERDURE_LAST)) || close_connection(c);
}

static void serve(struct conn *c)
{
	bool more = true;

	g->serving_fd = c->fd;
	for (int i = 0; more && i < TURN; i++) {
		switch (c->stage) {
		case EXPNFILENAME_RECORDED:
		case SOME_RESPONSE_SENT:
			more = send_response(c);
			break;
		case RESPONSE_SENDING_COMPLETED:
			more = finish_response(c);
			break;
		case CONNECTION_CLOSING:
			more = drain(c);
			break;
		case TLS_HANDSHAKE:
			more = shake_hands(c);
			break;
		default:
			more = read_request(c);
		}
	}
	if (more)
		wait_for(c, EPOLLIN | EPOLLOUT);	/* at once, after the others */
	g->serving_fd = -1;
}

static void accept_connections(void)
{
	for (int i = 0; i < TURN && num_connects < opt.max_connects; i++) {
		int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0)
			take_connection(fd);
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
	int want = num_connects < opt.max_connects && !accept_paused;
	struct epoll_event e = { .events = want ? EPOLLIN : 0, .data.fd = listen_fd };

	if (g->stopping && listen_fd >= 0) {
		close(listen_fd);
		listen_fd = -1;
	} else if (listen_fd >= 0 && want != listening) {
		if (epoll_ctl(epoll_fd, listening < 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, listen_fd, &e))
			die("epoll_ctl: %s", strerror(errno));
		listening = want;
	}
}

/* By a close TLS loses what TCP has had no room for. */
static bool still_sending(struct conn *c)
{
	int left = 0, before = c->unsent;

	if (!opt.cert || !c->ended || ioctl(c->fd, SIOCOUTQ, &left))
		return false;
	c->unsent = left;
	c->deadline = now + 1000 * opt.timeout;
	return left && left < before;
}

static void check_deadlines(void)
{
	accept_paused = false;
	if (registered && zero_loss != perdure_protected()) {
		zero_loss = !zero_loss;
		say("zero-loss restart has been switched %s (sysctl kernel.restart.enabled)%s", zero_loss ? "on" : "off",
		    zero_loss ? ", before anything was lost" : ": going on without");
	}
	for (int fd = 0; fd < FDS_MAX; fd++) {
		struct conn *c = conns[fd];
		bool reading = c && c->stage >= CONNECTION_ACCEPTED && c->stage <= FILE_OPENED;
		bool idle = c && ((reading && !c->len) || c->stage == TLS_HANDSHAKE);

		if (!c || (c->deadline > now && !(g->stopping && idle)))
			continue;
		if (reading && !idle && !decided(c)) {
			answer_error(c, 408);
			serve(c);
		} else if (!still_sending(c)) {
			close_connection(c);
		}
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
	while (!g->stopping || (num_connects && g->stopping == 1)) {
		int n;

		update_listener();
		n = epoll_pwait(epoll_fd, events, 64, num_connects || accept_paused ? CHECK_MS : -1, &none);
		update_time();
		for (int i = 0; i < n; i++) {
			int fd = events[i].data.fd;

			if (fd == listen_fd)
				accept_connections();
			else if (conns[fd])
				serve(conns[fd]);
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

static void raise_limit(void)
{
	struct rlimit r;

	getrlimit(RLIMIT_NOFILE, &r);
	if (r.rlim_cur < (rlim_t)FDS_MAX) {
		r.rlim_cur = FDS_MAX;
		if (r.rlim_cur > r.rlim_max || setrlimit(RLIMIT_NOFILE, &r))
			die("-c %d needs %llu open files, ulimit -Hn allows %llu", opt.max_connects,
			    (unsigned long long)r.rlim_cur, (unsigned long long)r.rlim_max);
	}
}

/* False where what a generation before us has left is of no use: of another version, damaged, not counted to its end. */
static bool open_state(void)
{
	g = g ? g : perdure_state_open(STATE, sizeof(*g), STATE_LAYOUT << 16 | sizeof(*g), NULL, NULL);
	if (g)
		books = perdure_conns_open(BOOKS, FDS_MAX, sizeof(struct httpd_state_var));
	if (!books && errno != ESTALE && errno != EBADMSG)
		die("cannot open the state area: %s", strerror(errno));
	return books;
}

/* That it is to stop is not forgotten. */
static void discard_state(void)
{
	if (!g)
		perdure_state_discard(STATE);
	perdure_state_discard(BOOKS);
}

static void open_files(void)
{
	struct stat st;

	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll_fd < 0)
		die("epoll: %s", strerror(errno));
	/* After a fault it is still the same directory. */
	if (g->root_fd > STDERR_FILENO && !fstat(g->root_fd, &st) && S_ISDIR(st.st_mode))
		return;
	g->root_fd = open(opt.root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (g->root_fd < 0)
		die("cannot open %s: %s", opt.root, strerror(errno));
}

static int port_of(int fd)
{
	struct sockaddr_in6 a = { 0 };		/* the port is where IPv4 has it, too */
	socklen_t len = sizeof(a);

	return getsockname(fd, (struct sockaddr *)&a, &len) ? -1 : ntohs(a.sin6_port);
}

static int listen_at(const char *address, int port)
{
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6 };
	struct sockaddr_in a4 = { .sin_family = AF_INET };
	bool v6 = strchr(address, ':');
	struct sockaddr *a = v6 ? (void *)&a6 : (void *)&a4;
	socklen_t len = v6 ? sizeof(a6) : sizeof(a4);
	int fd, one = 1;

	if (inet_pton(a->sa_family, address, v6 ? (void *)&a6.sin6_addr : (void *)&a4.sin_addr) != 1)
		die("-a %s: not an IPv4 or IPv6 address", address);
	a4.sin_port = a6.sin6_port = htons(port);
	fd = socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) ||	/* connections inherit it */
	    bind(fd, a, len) || listen(fd, SOMAXCONN))
		die("cannot listen on %s, port %d: %s", address, port, strerror(errno));
	return fd;
}

/* A listener that a service manager has opened (sd_listen_fds(3)), -1: none. */
static int given_listener(void)
{
	const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
	socklen_t len = sizeof(int);
	int fd = STDERR_FILENO + 1, listens = 0, one = 1;

	if (!pid || !fds || atoi(pid) != getpid())
		return -1;
	if (atoi(fds) != 1)
		die("LISTEN_FDS=%s: it takes one socket", fds);
	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) || !listens ||
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) ||
	    fcntl(fd, F_SETFD, FD_CLOEXEC) || fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK))
		die("LISTEN_FDS: file %d is no listening socket of TCP", fd);
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
	struct io_log log;

	if (opt.ordinary) {
		say("not restartable, as asked (-n): a fault will end it");
		return false;
	}
	if (perdure_abi_version() < 0 || getiolog(listen_fd, &log)) {
		say("%s: serving as an ordinary server, a fault will end it", errno == EOPNOTSUPP ?
		    "zero-loss restart is switched off (sysctl kernel.restart.enabled)" :
		    "this kernel has no zero-loss restart");
		return false;
	}
	if (perdure_register(argv) < 0)
		die("cannot register: %s%s", strerror(errno), errno == ENOENT ? ": is /proc mounted?" : "");
	return true;
}

/* Each generation asks for it: at the limit, one restart more to end a connection that brings the fault. */
static void is_registered(void)
{
	registered = zero_loss = true;
	if (perdure_setpolicy(&(struct restart_policy){ .flags = RESTART_QUARANTINE }, sizeof(struct restart_policy)))
		say("no quarantine of poisonous requests: %s", strerror(errno));
}

static void start(char **argv)
{
	if (listen_fd < 0)
		listen_fd = listen_at(opt.address, opt.port);
	if (!open_state())
		die("cannot open the state area: %s", strerror(errno));
	if (opt.cert)
		tls_start();
	g->serving_fd = -1;
	open_files();
	if (opt.pid_file)
		write_pid_file();
	if (register_restart(argv))
		is_registered();
	say("serving %s on port %d%s", opt.root, port_of(listen_fd), opt.cert ? " with TLS" : "");
}

/* Recovery */

/*
 * A stray write before the fault may have hit what was noted: it must be the file that was opened, and nobody else's.
 * A name is read to its end.
 */
static bool sane(struct httpd_state_var *v, bool *unclaimed)
{
	struct stat st;

	if (!memchr(v->expnfilename, '\0', sizeof(v->expnfilename)) || v->request_length > REQUEST_MAX)
		return false;
	if (v->file_fd == -1)
		return true;
	if (v->file_fd < 0 || v->file_fd >= FDS_MAX || !unclaimed[v->file_fd] || fstat(v->file_fd, &st) ||
	    st.st_dev != v->file_dev || st.st_ino != v->file_ino)
		return false;
	unclaimed[v->file_fd] = false;
	return true;
}

/*
 * A request that crashes the server again and again must not take the other connections with it. The library says
 * whose input was read last, twice without a byte in between; the state whether we were working on it.
 */
static void recover_connection(int fd, bool *unclaimed, int serving)
{
	int tls = opt.cert ? perdure_tls(fd) : 0;
	struct conn *c = new_connection(fd);
	unsigned int flags;

	if (!c || tls & PERDURE_TLS_UNTOUCHED)
		return;
	if ((!opt.cert || tls == (PERDURE_TLS_TX | PERDURE_TLS_RX)) && !keep_books(c)) {
		close_connection(c);
		return;
	}
	flags = c->books ? perdure_conn_flags(c->books) : 0;
	if (opt.cert && !(flags & PERDURE_CONN_INHERITED)) {
		/* The keys are lost: the client is told at once. */
		say("file %d was in its handshake: ending this connection", fd);
		perdure_tls_alert(fd, PERDURE_TLS_INTERNAL_ERROR);
		close_connection(c);
		return;
	}
	if (decided(c) && !sane(decided(c), unclaimed)) {
		say("file %d: its answer has been overwritten: ending this connection", fd);
		decided(c)->file_fd = -1;
		close_connection(c);
		return;
	}
	/* The roll-back of Figure 12 */
	c->stage = flags & PERDURE_CONN_ENDED ? CONNECTION_CLOSING : CONNECTION_ACCEPTED;
	if (flags & PERDURE_CONN_SUSPECT && fd == serving) {
		say("file %d brought the fault again: ending this connection", fd);
		if (c->stage == CONNECTION_CLOSING || decided(c))
			close_connection(c);
		else
			answer_error(c, 500);
	}
}

/* What another generation has left: its socket that listens, and, if they can go on, its connections with their files. */
static void inherit(bool connections)
{
	bool *unclaimed = calloc(FDS_MAX, sizeof(*unclaimed));
	struct perdure_inherited *list;
	int n = perdure_inherited(&list), serving = connections ? g->serving_fd : -1;

	if (n < 0 || !unclaimed)
		die("cannot look for what was inherited: %s", strerror(errno));
	/* When it stops, it does not listen any more: then its connections look like those that we would have made. */
	for (int i = 0; i < n; i++) {
		if (list[i].fd <= STDERR_FILENO)
			list[i].kind = PERDURE_LISTENING;	/* not ours to close */
		else if (list[i].kind == PERDURE_LISTENING && listen_fd < 0)
			listen_fd = list[i].fd;
		else if (connections && list[i].kind == PERDURE_OTHER && list[i].fd < FDS_MAX)
			unclaimed[list[i].fd] = true;
		else if (!connections || list[i].fd >= FDS_MAX)
			close(list[i].fd);
	}
	if (connections) {
		g->serving_fd = -1;
		open_files();
		unclaimed[g->root_fd] = false;
	}
	for (int i = 0; connections && i < n; i++)
		if (list[i].kind > PERDURE_LISTENING && list[i].fd < FDS_MAX)
			recover_connection(list[i].fd, unclaimed, serving);
	for (int fd = 0; fd < FDS_MAX; fd++)
		if (unclaimed[fd])
			close(fd);
	free(list);
	free(unclaimed);
}

static const char *cause(const struct reg_info *info)
{
	if (info->flags & REG_ASKED)
		return "a request";
	return info->signo ? sigabbrev_np(info->signo) : "an exit";
}

static void recover(const struct reg_info *info, int64_t main_ns)
{
	inherit(true);
	if (g->stopping > STOPS_MAX)	/* a stray write */
		g->stopping = 0;
	if (listen_fd < 0 && !g->stopping)
		listen_fd = listen_at(opt.address, opt.port);
	is_registered();
	say("generation %llu after %s, %d connections kept, back in %.3f ms (retain %.3f, exec %.3f, restore %.3f; recovery took %.3f more)",
	    (unsigned long long)info->generation, cause(info), num_connects,
	    (main_ns - (int64_t)info->fault_time_ns) / 1e6, info->retain_ns / 1e6, info->exec_ns / 1e6,
	    info->restore_ns / 1e6, (monotonic_ns() - main_ns) / 1e6);
	for (int fd = 0; fd < FDS_MAX; fd++)
		if (conns[fd])
			serve(conns[fd]);
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
	int fd;

	parse_options(argc, argv);
	while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO)	/* a place of its own for each that was closed */
		;
	close(fd);
	sigemptyset(&stop);
	sigaddset(&stop, SIGTERM);
	sigaddset(&stop, SIGINT);
	sigprocmask(SIG_BLOCK, &stop, NULL);
	signal(SIGPIPE, SIG_IGN);
	update_time();
	raise_limit();

	conns = calloc(FDS_MAX, sizeof(*conns));
	if (!conns)
		die("no memory for %d connections: use a smaller -c", opt.max_connects);

	restarted = getreginfo(&info) == 1 && info.is_restarted;
	if (!restarted) {
		listen_fd = given_listener();
		closefrom((listen_fd < 0 ? STDERR_FILENO : listen_fd) + 1);	/* what others forgot to close is not ours */
	} else if (!open_state()) {
		say("the state is of no use: starting afresh, without the connections");
		restarted = false;
		inherit(false);
		discard_state();
	}
	if (restarted)
		recover(&info, main_ns);
	else if (!g || !g->stopping)
		start(argv);
	loop();
	return 0;
}
