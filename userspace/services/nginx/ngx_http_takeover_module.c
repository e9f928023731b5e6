// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * nginx for connections that two hosts have; see ngx_http_takeover_module(5). What has to wait for the other host does so
 * in a thread, never in a worker's loop.
 */
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <linux/sockios.h>
#include <stdbool.h>
#include <sys/ioctl.h>

#include <takeover.h>

enum { DYNAMIC, SYNC_STATIC, STATIC, OFF };

#define IN_MEMORY 32768		/* of a reply; the rest goes to a file */
#define HELD 0x04		/* in c->buffered, among those of NGX_LOWLEVEL_BUFFERED: bytes that only we know of */

/* What the backup must know of a reply beside its bytes: it ends the log */
#define TAIL 64
#define TAIL_FORMAT "%d %d %lu"
#define NAME_SIZE 64
#define UNKNOWN (1u << 31)		/* beside TAKEOVER_OPEN and TAKEOVER_BUSY */

struct conf {
	ngx_flag_t on, acknowledge;
	ngx_uint_t mode;
	off_t max_reply;
	ngx_thread_pool_t *shortly, *as_long_as_it_takes;
};

/* A connection that two hosts have, or had, and its request */
struct link {
	ngx_connection_t *c;
	uint64_t id, requests;
	enum takeover_role role;
	bool primary;			/* under this @id, though it may be alone by now */
	unsigned int gate;		/* as takeover_gate() has set it, or UNKNOWN */
	bool given_up;
	/* The request */
	ngx_http_request_t *r;
	struct conf *conf;
	enum { START, BODY, TAKEN, ASKED, DONE } step;
	bool never;			/* gets the connection a backup */
	unsigned int inner;		/* what it has led to in this server, and is named */
	bool waiting;			/* for a thread */
	bool ended;			/* meanwhile */
	bool own;			/* the reply is made by one host alone */
	const char *note;
	/* Asked for by the primary, and what the backup is told */
	struct takeover_reply *reply;
	struct takeover_result result;
	enum takeover_verdict verdict;
	int error;
	/* A reply until it is whole: its start in @memory, the rest in @file */
	enum { COLLECT, LOG, SEND } state;
	ngx_send_chain_pt send_chain;
	u_char *memory;
	size_t in_memory;
	ngx_temp_file_t *file;
	ngx_chain_t *out;
	char tail[TAIL];
};

extern ngx_module_t ngx_http_takeover_module, ngx_thread_pool_module;

static void close_link(void *data)
{
	(void)data;		/* names the link among the connection's cleanups */
}

static struct link *link_of(ngx_connection_t *c)
{
	for (ngx_pool_cleanup_t *cln = c->pool->cleanup; cln; cln = cln->next)
		if (cln->handler == close_link)
			return cln->data;
	return NULL;
}

static struct link *new_link(ngx_connection_t *c)
{
	ngx_pool_cleanup_t *cln = ngx_pool_cleanup_add(c->pool, sizeof(struct link));
	struct link *link;

	if (!cln)
		return NULL;
	cln->handler = close_link;
	link = cln->data;
	*link = (struct link){ .c = c, .role = takeover_role(c->fd, NULL), .result.fd = -1 };
	return link;
}

/* Nobody stands in for this host any more. True: this host is the backup, and its copy has ended */
static bool give_up(struct link *link, const char *why)
{
	bool backup = takeover_role(link->c->fd, NULL) == TAKEOVER_BACKUP;

	if (!link->given_up)
		ngx_log_error(NGX_LOG_WARN, link->c->log, 0, "a connection goes on unprotected: %s", why);
	link->given_up = true;
	takeover_leave(link->c->fd);
	return backup;
}

/* An open gate lets out all that is not sent yet: there must be no reply of another mode in it */
static void gate(struct link *link, unsigned int flags)
{
	int unsent = 0;

	if (flags & ~link->gate & TAKEOVER_OPEN && (ioctl(link->c->fd, SIOCOUTQ, &unsent) < 0 || unsent))
		flags &= ~TAKEOVER_OPEN;
	if (link->gate != flags && !takeover_gate(link->c->fd, flags))
		link->gate = flags;
}

/* === What waits, in a thread === */

struct wait {
	struct link *link;
	void (*work)(struct link *link);
};

static void work(void *data, ngx_log_t *log)
{
	struct wait *wait = data;

	(void)log;
	wait->work(wait->link);
}

static void request_ends(void *data);

static void worked(ngx_event_t *ev)
{
	struct link *link = ev->data;
	ngx_http_request_t *r = link->r;
	ngx_connection_t *c = r->connection;

	ngx_http_set_log_request(c->log, r);
	r->main->blocked--;
	link->waiting = false;
	if (link->ended)
		request_ends(link);
	c->write->ready = 1;
	r->write_event_handler(r);
	ngx_http_run_posted_requests(c);
}

static ngx_int_t start(struct link *link, ngx_thread_pool_t *threads, void (*what)(struct link *link))
{
	ngx_thread_task_t *task = ngx_thread_task_alloc(link->r->pool, sizeof(struct wait));

	if (!task)
		return NGX_ERROR;
	*(struct wait *)task->ctx = (struct wait){ .link = link, .work = what };
	task->handler = work;
	task->event.handler = worked;
	task->event.data = link;
	if (ngx_thread_task_post(threads, task) != NGX_OK)
		return NGX_ERROR;
	link->waiting = true;
	link->r->main->blocked++;
	return NGX_OK;
}

static void begin(struct link *link)
{
	link->error = takeover_reply_begin(link->c->fd, link->id, link->requests, &link->reply) < 0 ? errno : 0;
	if (link->error)
		link->reply = NULL;
}

static void wait_for_reply(struct link *link)
{
	link->verdict = takeover_reply_wait(link->c->fd, link->id, link->requests, &link->result);
}

static void log_whole(struct link *link)
{
	struct takeover_reply *reply = link->reply;

	link->error = 0;
	if (takeover_reply_write(reply, link->memory, link->in_memory) < 0 ||
	    (link->file && takeover_reply_sendfile(reply, link->file->file.fd, 0, link->file->offset) < 0) ||
	    takeover_reply_write(reply, link->tail, TAIL) < 0) {
		link->error = errno;
		takeover_reply_abort(reply);
	} else if (takeover_reply_end(reply, link->conf->acknowledge) < 0) {
		link->error = errno;
	}
	link->reply = NULL;
}

/* === The primary's replies === */

static void not_logged(struct link *link, int error)
{
	if (error)
		ngx_log_error(NGX_LOG_WARN, link->c->log, error,
			      "a reply cannot be logged: the connection goes on unprotected");
}

static ngx_int_t add(struct link *link, u_char *data, size_t size)
{
	size_t part = ngx_min(size, IN_MEMORY - link->in_memory);
	ngx_http_core_loc_conf_t *clcf;
	ngx_chain_t cl = { 0 };
	ngx_buf_t b = { 0 };
	ssize_t written;

	ngx_memcpy(link->memory + link->in_memory, data, part);
	link->in_memory += part;
	if (part == size)
		return NGX_OK;
	if (!link->file) {
		clcf = ngx_http_get_module_loc_conf(link->r, ngx_http_core_module);
		link->file = ngx_pcalloc(link->r->pool, sizeof(*link->file));
		if (!link->file)
			return NGX_ERROR;
		link->file->file.fd = NGX_INVALID_FILE;
		link->file->file.log = link->c->log;
		link->file->path = clcf->client_body_temp_path;
		link->file->pool = link->r->pool;
		link->file->clean = 1;
	}
	b.pos = data + part;
	b.last = data + size;
	b.memory = 1;
	cl.buf = &b;
	written = ngx_write_chain_to_temp_file(link->file, &cl);
	if (written < 0) {
		link->in_memory -= part;	/* whoever asked has it still */
		return NGX_ERROR;
	}
	link->file->offset += written;
	return NGX_OK;
}

static off_t length(const struct link *link)
{
	return link->in_memory + (link->file ? link->file->offset : 0);
}

/* Copies, even what is in a file already: a file may change between the backup's copy and ours */
static ngx_int_t add_buf(struct link *link, ngx_buf_t *b)
{
	off_t size = ngx_buf_special(b) ? 0 : ngx_buf_size(b);
	u_char part[8192];

	if (length(link) + size > link->conf->max_reply) {
		ngx_set_errno(NGX_ENOSPC);
		return NGX_ERROR;
	}
	link->c->sent += size;
	if (!size || ngx_buf_in_memory(b)) {
		if (size && add(link, b->pos, size) != NGX_OK)
			return NGX_ERROR;
		b->pos = b->last;
		b->file_pos = b->file_last;
		return NGX_OK;
	}
	while (b->file_pos < b->file_last) {
		size_t wanted = ngx_min(b->file_last - b->file_pos, (off_t)sizeof(part));
		ssize_t n = ngx_read_file(b->file, part, wanted, b->file_pos);

		if (n <= 0 || add(link, part, n) != NGX_OK)
			return NGX_ERROR;
		b->file_pos += n;
	}
	return NGX_OK;
}

static ngx_int_t make_out(struct link *link)
{
	ngx_chain_t **last = &link->out;

	for (int i = 0; i < 2; i++) {
		ngx_buf_t *b;

		if (i ? !link->file || !link->file->offset : !link->in_memory)
			continue;
		b = ngx_calloc_buf(link->r->pool);
		*last = ngx_alloc_chain_link(link->r->pool);
		if (!b || !*last)
			return NGX_ERROR;
		if (i) {
			b->in_file = 1;
			b->file = &link->file->file;
			b->file_last = link->file->offset;
		} else {
			b->memory = 1;
			b->pos = link->memory;
			b->last = link->memory + link->in_memory;
		}
		(*last)->buf = b;
		(*last)->next = NULL;
		last = &(*last)->next;
	}
	link->state = SEND;
	return NGX_OK;
}

static void release(struct link *link)
{
	if (!link->send_chain)
		return;
	link->c->send_chain = link->send_chain;
	link->c->need_last_buf = 0;
	link->c->buffered &= ~HELD;
	link->send_chain = NULL;
}

/*
 * In the place of the connection's own. Nothing is passed on before the log has all: the kernel would hold it back, and
 * the reply would wait for room in the socket for ever. nginx believes it sent, until the end.
 */
static ngx_chain_t *send_chain(ngx_connection_t *c, ngx_chain_t *in, off_t limit)
{
	struct link *link = link_of(c);
	bool last = false;

	for (; link->state == COLLECT && in; in = in->next) {
		if (add_buf(link, in->buf) != NGX_OK) {
			/* The rest may go, and what is held before it */
			not_logged(link, ngx_errno);
			takeover_reply_abort(link->reply);
			link->reply = NULL;
			if (make_out(link) != NGX_OK)
				return NGX_CHAIN_ERROR;
			break;
		}
		last |= in->buf->last_buf;
	}
	if (last && link->state == COLLECT) {
		snprintf(link->tail, TAIL, TAIL_FORMAT, (int)link->r->headers_out.status, link->r->keepalive,
			 (unsigned long)link->r->header_size);
		link->state = LOG;
		c->buffered |= HELD;
		if (start(link, link->conf->shortly, log_whole) != NGX_OK) {
			link->error = EAGAIN;
			takeover_reply_abort(link->reply);
			link->reply = NULL;
		}
	}
	if (link->state == LOG && !link->waiting) {
		not_logged(link, link->error);
		if (make_out(link) != NGX_OK)
			return NGX_CHAIN_ERROR;
	}
	if (link->state != SEND)
		return in;
	if (link->out) {
		off_t sent = c->sent;

		link->out = link->send_chain(c, link->out, limit);
		c->sent = sent;
		if (link->out == NGX_CHAIN_ERROR)
			return NGX_CHAIN_ERROR;
	}
	if (link->out) {
		c->buffered |= HELD;
		/* As ngx_http_write_filter() does after sendfile_max_chunk */
		if (c->write->ready) {
			ngx_post_event(c->write, &ngx_posted_next_events);
		}
		return in;
	}
	release(link);
	return in ? c->send_chain(c, in, limit) : NULL;
}

static ngx_int_t collect(struct link *link)
{
	link->own = true;
	if (!link->reply) {
		link->note = "alone";
		not_logged(link, link->error);
		return NGX_DECLINED;
	}
	link->memory = ngx_palloc(link->r->pool, IN_MEMORY);
	if (!link->memory)
		return NGX_ERROR;
	link->in_memory = 0;
	link->file = NULL;
	link->out = NULL;
	link->state = COLLECT;
	link->send_chain = link->c->send_chain;
	link->c->send_chain = send_chain;
	/* Also if all its bytes came before */
	link->c->need_last_buf = 1;
	return NGX_DECLINED;
}

/* === The backup's === */

static ngx_int_t write_logged(struct link *link)
{
	ngx_http_request_t *r = link->r;
	ngx_pool_cleanup_t *cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_pool_cleanup_file_t));
	ngx_buf_t *b = ngx_calloc_buf(r->pool);
	ngx_file_t *file = ngx_pcalloc(r->pool, sizeof(*file));
	ngx_chain_t out = { .buf = b };
	unsigned long header_size;
	char tail[TAIL] = "";
	int status, keepalive;

	if (!cln || !b || !file)
		return NGX_ERROR;
	if (link->result.length < TAIL ||
	    pread(link->result.fd, tail, TAIL, link->result.length - TAIL) != TAIL || tail[TAIL - 1] ||
	    sscanf(tail, TAIL_FORMAT, &status, &keepalive, &header_size) != 3) {
		give_up(link, "a logged reply is of another kind of server");
		return NGX_ERROR;
	}
	cln->handler = ngx_pool_cleanup_file;
	*(ngx_pool_cleanup_file_t *)cln->data = (ngx_pool_cleanup_file_t){
		.fd = link->result.fd, .name = (u_char *)"reply", .log = r->pool->log,
	};
	r->headers_out.status = status;
	r->header_size = header_size;
	r->keepalive = keepalive;
	r->header_sent = 1;		/* no filter is to add anything */
	file->fd = link->result.fd;
	link->result.fd = -1;
	file->log = link->c->log;
	ngx_str_set(&file->name, "reply");
	b->in_file = link->result.length > TAIL;
	b->file = file;
	b->file_last = link->result.length - TAIL;
	b->last_buf = 1;
	ngx_http_finalize_request(r, ngx_http_output_filter(r, &out));
	return NGX_DONE;
}

/* === Requests === */

static bool has_body(const ngx_http_request_t *r)
{
	return r->headers_in.expect || r->headers_in.chunked || r->headers_in.content_length_n > 0;
}

/* The server has read more than the request, and not just an empty line: a copy would never get that. Never asked of HTTP/2 */
static bool has_more(const ngx_http_request_t *r)
{
	const u_char *at = r->header_in->pos;

	while (at < r->header_in->last && (*at == CR || *at == LF))
		at++;
	return at < r->header_in->last;
}

/*
 * A connection that is alone by then gets a backup when it looks idle next: unless what the client says then may be no
 * request, or none to be protected. The rest of a body may come behind an answer, or behind "100 Continue".
 */
static unsigned int busy(const struct link *link)
{
	return link->never || has_body(link->r) || has_more(link->r) ? TAKEOVER_BUSY : 0;
}

static void request_ends(void *data)
{
	struct link *link = data;

	/* The thread has its reply; the request's memory stays until then */
	link->ended = link->waiting;
	if (link->waiting)
		return;
	if (link->reply)
		takeover_reply_abort(link->reply);
	link->reply = NULL;
	if (link->result.fd >= 0)
		close(link->result.fd);
	link->result.fd = -1;
	release(link);
	/* The server has read all of it, whatever has become of the body */
	if (!link->never && !has_more(link->r))
		gate(link, link->gate & TAKEOVER_OPEN);
	/* What comes next may be no request that could be parsed */
	link->own = false;
	link->r = NULL;
}

static ngx_int_t post_read(ngx_http_request_t *r)
{
	struct conf *conf = ngx_http_get_module_loc_conf(r, ngx_http_takeover_module);
	ngx_connection_t *c = r->connection;
	struct link *link = link_of(c);
	ngx_http_cleanup_t *cln;
	enum takeover_role role;
	uint64_t id;

	if (!conf->on)
		return NGX_DECLINED;
	if (!link)
		link = new_link(c);
	if (!link)
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	link->c = c;	/* of HTTP/2: each stream has its own */
	if (link->role == TAKEOVER_OFF)
		return NGX_DECLINED;
	cln = ngx_http_cleanup_add(r, 0);
	if (!cln)
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	link->role = role = takeover_role(c->fd, &id);
	if (id != link->id) {
		/* Also of a connection that is protected again: to its new backup it begins now */
		if (link->id)
			link->gate = UNKNOWN;
		link->id = id;
		link->requests = 0;
		link->primary = role == TAKEOVER_PRIMARY;
		link->given_up = false;
		c->requests = 1;
	}
	if (!link->given_up)
		c->start_time = ngx_current_msec;	/* of keepalive_time: two hosts have no clock that they agree on */
	link->requests++;
	link->r = r;
	link->conf = conf;
	link->step = START;
	link->inner = 0;
	link->own = link->ended = false;
	link->never = r->stream || c->ssl || r->headers_in.upgrade;
	/* Whoever has left it, has shut it. Where other phases answer, none of this is asked again */
	if (role == TAKEOVER_ALONE)
		link->gate = UNKNOWN;
	gate(link, busy(link) | (link->gate & TAKEOVER_OPEN));
	link->note = role == TAKEOVER_PRIMARY ? "primary" : role == TAKEOVER_BACKUP ? "backup" : "alone";
	cln->handler = request_ends;
	cln->data = link;
	if ((r->stream || c->ssl) && give_up(link, r->stream ? "HTTP/2" : "TLS"))
		return NGX_ERROR;
	return NGX_DECLINED;
}

static void body_read(ngx_http_request_t *r)
{
	link_of(r->connection)->step = TAKEN;
	r->preserve_body = 1;
	r->write_event_handler = ngx_http_core_run_phases;
	ngx_http_core_run_phases(r);
}

static ngx_int_t decided(struct link *link)
{
	link->step = DONE;
	if (link->primary)
		return collect(link);
	switch (link->verdict) {
	case TAKEOVER_EXECUTE:
		link->note = "alone";
		link->own = true;
		return NGX_DECLINED;
	case TAKEOVER_REPLY:
		return write_logged(link);
	default:
		give_up(link, "the primary's reply could not be logged");
		return NGX_ERROR;
	}
}

/* What the client has done wrong, both hosts find. All else in a body that is being read is an error of this host's alone */
static bool own_error(ngx_uint_t status)
{
	return status < NGX_HTTP_BAD_REQUEST || status >= NGX_HTTP_INTERNAL_SERVER_ERROR;
}

static bool body_failed(struct link *link)
{
	link->step = DONE;
	link->note = "alone";
	return give_up(link, "a request's body cannot be kept");
}

static ngx_int_t dynamic(struct link *link, ngx_http_request_t *r)
{
	ngx_int_t rc;

	if (link->primary && link->role != TAKEOVER_PRIMARY) {
		link->own = true;
		return NGX_DECLINED;
	}
	link->step = BODY;
	rc = ngx_http_read_client_request_body(r, body_read);
	if (rc >= NGX_HTTP_SPECIAL_RESPONSE)
		return rc;
	ngx_http_finalize_request(r, NGX_DONE);
	return NGX_DONE;
}

/* The primary executes the request unprotected; of a backup's, also of one that is alone by now, the reply may be logged */
static ngx_int_t no_thread(struct link *link)
{
	link->step = DONE;
	link->note = "alone";
	give_up(link, "no thread");
	return link->primary ? NGX_DECLINED : NGX_ERROR;
}

/* Of the location that the URL finds, before anything is asked of this host alone */
static ngx_int_t preaccess(ngx_http_request_t *r)
{
	struct conf *conf = ngx_http_get_module_loc_conf(r, ngx_http_takeover_module);
	struct link *link = r == r->main ? link_of(r->connection) : NULL;
	ngx_int_t rc;
	bool open;

	if (!link || link->r != r)
		return NGX_DECLINED;
	switch (link->step) {
	case START:
		link->conf = conf;
		link->step = DONE;
		link->never |= conf->mode == OFF;
		open = conf->mode == STATIC && link->role == TAKEOVER_PRIMARY && !link->given_up;
		gate(link, busy(link) | (open ? TAKEOVER_OPEN : 0));
		if (link->given_up)
			return NGX_DECLINED;
		if (conf->mode == OFF)
			return give_up(link, "its mode is off") ? NGX_ERROR : NGX_DECLINED;
		if (conf->mode != DYNAMIC) {
			/* Several would be parted by a boundary that each server draws by lot */
			if (r->headers_in.range && ngx_strchr(r->headers_in.range->value.data, ','))
				r->headers_in.range = NULL;
			return NGX_DECLINED;
		}
		return dynamic(link, r);
	case BODY:
		/* It has not been read, and this is the error's page */
		if (own_error(r->err_status))
			return body_failed(link) ? NGX_ERROR : NGX_DECLINED;
		/* Fall through */
	case TAKEN:
		link->step = ASKED;
		rc = link->primary ? start(link, link->conf->shortly, begin) :
				     start(link, link->conf->as_long_as_it_takes, wait_for_reply);
		return rc == NGX_OK ? NGX_DONE : no_thread(link);
	case ASKED:
		return link->waiting ? NGX_DONE : decided(link);
	default:
		/* Where another location answers in the place of a static one, and is dynamic, one host alone is to execute */
		if (link->own || link->given_up || link->conf->mode == DYNAMIC || conf->mode != DYNAMIC)
			return NGX_DECLINED;
		link->conf = conf;
		gate(link, link->gate & TAKEOVER_BUSY);
		return dynamic(link, r);
	}
}

/* Two hosts have no clock that they agree on, and an origin server without a clock sends no Date (RFC 9110, 6.6.1) */
static ngx_http_output_header_filter_pt next_header_filter;

/*
 * How much goes into a chunk depends on how fast the client has read until then, of which each host has its own view. So what both
 * generate is not compressed, and where its length is not known, its end is that of the connection, as in HTTP/1.0. Filters behind
 * this one ask for these, some of them later. What is compressed already stays so.
 */
static void without_chunks(ngx_http_request_t *r)
{
	const ngx_table_elt_t *encoding = r->headers_out.content_encoding;

	if (!encoding || !encoding->value.len) {
		r->gzip_tested = 1;
		r->gzip_ok = 0;
		r->headers_in.accept_encoding = NULL;
	} else if (!r->gzip_tested) {
		/* While it is that version still */
		ngx_http_gzip_ok(r);
	}
	r->http_version = ngx_min(r->http_version, NGX_HTTP_VERSION_10);
}

/* Of a connection that is alone the client may have a part of the reply from the other host, unless that has waited for this one */
static bool by_both(const struct link *link)
{
	if (link->role == TAKEOVER_OFF || link->own || link->given_up || link->conf->mode == DYNAMIC)
		return false;
	return link->role != TAKEOVER_ALONE || (!link->primary && link->conf->mode == STATIC);
}

static ngx_int_t header_filter(ngx_http_request_t *r)
{
	static ngx_table_elt_t none;	/* of hash 0: it is not sent, and no other is made */
	struct conf *conf = ngx_http_get_module_loc_conf(r, ngx_http_takeover_module);
	struct link *link = link_of(r->connection);

	if (conf->on && !link)		/* of a request that could not be parsed */
		link = new_link(r->connection);
	if (link && link->r == r && link->step == BODY && own_error(r->headers_out.status) && body_failed(link))
		return NGX_ERROR;
	/* Answered before preaccess(), as by "return": for what the last reply was not to wait for, this one is to */
	if (link && (link->r != r->main || link->step == START))
		gate(link, link->gate & TAKEOVER_BUSY);
	if (link && link->role != TAKEOVER_OFF && !link->own && !link->given_up)
		r->headers_out.date = &none;
	if (link && link->r == r && by_both(link)) {
		/* It says "close" then, which the other one does not */
		if (r->keepalive && (ngx_terminate || ngx_exiting) && give_up(link, "this nginx ends"))
			return NGX_ERROR;
		without_chunks(r);
	}
	return next_header_filter(r);
}

static ngx_int_t note(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t data)
{
	struct link *link = link_of(r->connection);

	(void)data;
	v->not_found = !link || link->role == TAKEOVER_OFF || !link->note;
	if (!v->not_found) {
		v->data = (u_char *)link->note;
		v->len = ngx_strlen(link->note);
		v->valid = 1;
		v->no_cacheable = 1;
	}
	return NGX_OK;
}

/*
 * The same on both hosts: who executes it a second time can say that it is the same request. What a page includes, and
 * what answers in the place of another location, has a name of its own.
 */
static ngx_int_t request_name(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t data)
{
	u_char *name = ngx_http_get_module_ctx(r, ngx_http_takeover_module);
	struct link *link = link_of(r->connection);

	(void)data;
	v->not_found = !link || link->role == TAKEOVER_OFF || !link->requests;
	if (v->not_found)
		return NGX_OK;
	if (!name) {
		const bool inner = r != r->main || r->internal;

		name = ngx_pnalloc(r->pool, NAME_SIZE);
		if (!name)
			return NGX_ERROR;
		snprintf((char *)name, NAME_SIZE, inner ? "%016lx-%lu.%u" : "%016lx-%lu", (unsigned long)link->id,
			 (unsigned long)link->requests, inner ? ++link->inner : 0);
		ngx_http_set_ctx(r, name, ngx_http_takeover_module);
	}
	v->data = name;
	v->len = ngx_strlen(name);
	v->valid = 1;
	v->no_cacheable = 1;
	return NGX_OK;
}

/* === Configuration === */

static ngx_int_t add_variables(ngx_conf_t *cf)
{
	static ngx_str_t names[] = { ngx_string("takeover"), ngx_string("takeover_request") };
	static const ngx_http_get_variable_pt handlers[] = { note, request_name };

	for (int i = 0; i < 2; i++) {
		ngx_http_variable_t *var = ngx_http_add_variable(cf, &names[i], NGX_HTTP_VAR_NOCACHEABLE);

		if (!var)
			return NGX_ERROR;
		var->get_handler = handlers[i];
	}
	return NGX_OK;
}

static ngx_int_t hook(ngx_conf_t *cf)
{
	ngx_http_core_main_conf_t *cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
	ngx_http_handler_pt *first = ngx_array_push(&cmcf->phases[NGX_HTTP_POST_READ_PHASE].handlers);
	ngx_http_handler_pt *then = ngx_array_push(&cmcf->phases[NGX_HTTP_PREACCESS_PHASE].handlers);

	if (!first || !then)
		return NGX_ERROR;
	*first = post_read;
	*then = preaccess;
	next_header_filter = ngx_http_top_header_filter;
	ngx_http_top_header_filter = header_filter;
	return NGX_OK;
}

static void *create_conf(ngx_conf_t *cf)
{
	struct conf *conf = ngx_pcalloc(cf->pool, sizeof(*conf));

	if (conf) {
		conf->on = conf->acknowledge = NGX_CONF_UNSET;
		conf->mode = NGX_CONF_UNSET_UINT;
		conf->max_reply = NGX_CONF_UNSET;
	}
	return conf;
}

/*
 * The threads in which backups wait for primaries. Were these the ones in which replies are logged, two hosts that are each
 * the primary of one service and the backup of another would wait for each other for ever. A pool without its line is
 * an error, unless its name is "default": so this is one.
 */
static ngx_thread_pool_t *waiters(ngx_conf_t *cf)
{
	static ngx_str_t words[] = { ngx_string("thread_pool"), ngx_string("takeover"), ngx_string("threads=32") };
	ngx_array_t args = { .elts = words, .nelts = 3, .size = sizeof(ngx_str_t), .nalloc = 3, .pool = cf->pool };
	ngx_thread_pool_t *pool = ngx_thread_pool_get(cf->cycle, &words[1]);
	ngx_command_t *command = ngx_thread_pool_module.commands;
	ngx_array_t *line = cf->args;
	char *error;

	if (pool)
		return pool;
	cf->args = &args;
	error = command->set(cf, command, ngx_get_conf(cf->cycle->conf_ctx, ngx_thread_pool_module));
	cf->args = line;
	return error == NGX_CONF_OK ? ngx_thread_pool_get(cf->cycle, &words[1]) : NULL;
}

static char *merge_conf(ngx_conf_t *cf, void *parent, void *child)
{
	struct conf *base = parent, *conf = child;

	ngx_conf_merge_value(conf->on, base->on, 0);
	ngx_conf_merge_value(conf->acknowledge, base->acknowledge, 0);
	ngx_conf_merge_uint_value(conf->mode, base->mode, DYNAMIC);
	ngx_conf_merge_off_value(conf->max_reply, base->max_reply, 64 << 20);
	if (!conf->on)
		return NGX_CONF_OK;
	conf->shortly = ngx_thread_pool_add(cf, NULL);
	conf->as_long_as_it_takes = waiters(cf);
	return conf->shortly && conf->as_long_as_it_takes ? NGX_CONF_OK : NGX_CONF_ERROR;
}

static ngx_conf_enum_t modes[] = {
	{ ngx_string("dynamic"), DYNAMIC },
	{ ngx_string("sync-static"), SYNC_STATIC },
	{ ngx_string("static"), STATIC },
	{ ngx_string("off"), OFF },
	{ ngx_null_string, 0 }
};

#define EVERYWHERE (NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF)

static ngx_command_t commands[] = {
	{ ngx_string("takeover"), NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_CONF_FLAG, ngx_conf_set_flag_slot,
	  NGX_HTTP_LOC_CONF_OFFSET, offsetof(struct conf, on), NULL },
	{ ngx_string("takeover_mode"), EVERYWHERE | NGX_CONF_TAKE1, ngx_conf_set_enum_slot,
	  NGX_HTTP_LOC_CONF_OFFSET, offsetof(struct conf, mode), modes },
	{ ngx_string("takeover_acknowledge"), EVERYWHERE | NGX_CONF_FLAG, ngx_conf_set_flag_slot,
	  NGX_HTTP_LOC_CONF_OFFSET, offsetof(struct conf, acknowledge), NULL },
	{ ngx_string("takeover_max_reply"), EVERYWHERE | NGX_CONF_TAKE1, ngx_conf_set_off_slot,
	  NGX_HTTP_LOC_CONF_OFFSET, offsetof(struct conf, max_reply), NULL },
	ngx_null_command
};

static ngx_http_module_t hooks = {
	.preconfiguration = add_variables,
	.postconfiguration = hook,
	.create_loc_conf = create_conf,
	.merge_loc_conf = merge_conf,
};

ngx_module_t ngx_http_takeover_module = {
	NGX_MODULE_V1, &hooks, commands, NGX_HTTP_MODULE,
	NULL, NULL, NULL, NULL, NULL, NULL, NULL, NGX_MODULE_V1_PADDING
};
