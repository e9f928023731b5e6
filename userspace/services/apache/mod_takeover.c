// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * mod_takeover: two servers answer each connection, and either can go on with it alone; see mod_takeover(5).
 *
 * The kernel sees to it that the client gets no byte which the backup has not written to its own socket. Here both
 * servers are made to write the same bytes: the primary logs the whole reply of a dynamic request at the backup, which
 * writes it as it is; a static one both generate.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <linux/sockios.h>

#include <httpd.h>
#include <http_config.h>
#include <http_connection.h>
#include <http_core.h>
#include <http_log.h>
#include <http_protocol.h>
#include <http_request.h>
#include <http_ssl.h>
#include <ap_mpm.h>
#include <apr_portable.h>
#include <apr_strings.h>

#include <takeover.h>

module AP_MODULE_DECLARE_DATA takeover_module;
APLOG_USE_MODULE(takeover);

#define IN_MEMORY 32768		/* of a body or reply; the rest goes to a file. Well below FlushMaxThreshold */
#define MAX_REPLY (64 << 20)
#define MAX_BODY (64 << 20)
#define NOTE "takeover"
#define UNKNOWN (1u << 31)		/* beside TAKEOVER_OPEN and TAKEOVER_BUSY */

enum mode { UNSET, DYNAMIC, SYNC_STATIC, STATIC, OFF };
static const char *const modes[] = { NULL, "dynamic", "sync-static", "static", "off" };

struct prefix {
	const char *path;
	size_t length;
	enum mode mode;
};

struct server {
	int on, acknowledge;		/* -1: unset */
	apr_off_t max_reply, max_body;	/* 0: unset */
	apr_array_header_t *prefixes;
};

struct location {
	enum mode mode;
};

/* A body or a reply until it is whole: its start in @held, the rest in @file */
struct whole {
	apr_pool_t *pool;
	apr_bucket_brigade *held;
	apr_file_t *file;
	apr_off_t length, in_file;
};

/* A request's, and whether that is all of it */
struct body {
	struct whole whole;
	apr_bucket_brigade *bb;
	bool ended;
};

/* A connection that two hosts have, or had */
struct link {
	conn_rec *c;
	int fd;
	uint64_t id, requests;
	request_rec *with_body;		/* the last request, if it has one */
	unsigned int inner;		/* of the last request: what it has led to in this server */
	ap_filter_t *output;
	bool primary;			/* under this @id, though it may be alone by now */
	unsigned int gate;		/* as takeover_gate() has set it, or UNKNOWN */
	bool given_up;
	bool ended;			/* here, for good: the primary goes on alone */
	/* The reply under way */
	bool own;			/* made by one host alone */
	bool head_passed;
	request_rec *r;			/* whose reply is logged */
	struct takeover_reply *reply;
	struct whole whole;
	apr_off_t max_reply;
	bool acknowledge;
};

static struct link *link_of(conn_rec *c)
{
	return ap_get_module_config(c->conn_config, &takeover_module);
}

/* What the backup must know of a reply beside its bytes: it ends the log */
#define TAIL 64
#define TAIL_FORMAT "%d %d %d %lld"

static void whole_start(struct whole *whole, request_rec *r)
{
	*whole = (struct whole){
		.pool = r->pool,
		.held = apr_brigade_create(r->pool, r->connection->bucket_alloc),
	};
}

static apr_status_t whole_file(struct whole *whole)
{
	const char *dir;
	char *name;
	apr_status_t rv = apr_temp_dir_get(&dir, whole->pool);

	if (rv != APR_SUCCESS)
		return rv;
	name = apr_pstrcat(whole->pool, dir, "/takeover.XXXXXX", NULL);
	rv = apr_file_mktemp(&whole->file, name,
			     APR_FOPEN_CREATE | APR_FOPEN_EXCL | APR_FOPEN_READ | APR_FOPEN_WRITE | APR_FOPEN_BINARY,
			     whole->pool);
	return rv == APR_SUCCESS ? apr_file_remove(name, whole->pool) : rv;
}

/* Copies, even what is in a file already: a file may change between the backup's copy and ours */
static apr_status_t whole_add(struct whole *whole, const char *data, apr_size_t length)
{
	apr_status_t rv = APR_SUCCESS;

	if (!whole->file && whole->length + (apr_off_t)length > IN_MEMORY)
		rv = whole_file(whole);
	if (rv != APR_SUCCESS)
		return rv;
	if (whole->file) {
		rv = apr_file_write_full(whole->file, data, length, NULL);
		whole->in_file += rv == APR_SUCCESS ? length : 0;
	} else {
		rv = apr_brigade_write(whole->held, NULL, NULL, data, length);
	}
	whole->length += rv == APR_SUCCESS ? length : 0;
	return rv;
}

static apr_bucket_brigade *whole_end(struct whole *whole)
{
	if (whole->in_file)
		apr_brigade_insert_file(whole->held, whole->file, 0, whole->in_file, whole->pool);
	return whole->held;
}

static void end_copy(struct link *link)
{
	link->ended = true;
	link->c->aborted = 1;
	link->c->keepalive = AP_CONN_CLOSE;
}

/* Nobody stands in for this host any more. True: this host is the backup, and its copy has ended */
static bool give_up(struct link *link, const char *why)
{
	static bool said;

	if (link->given_up)
		return link->ended;
	link->given_up = true;
	ap_log_cerror(APLOG_MARK, said ? APLOG_INFO : APLOG_WARNING, 0, link->c,
		      "a connection goes on unprotected: %s", why);
	said = true;
	if (takeover_role(link->fd, NULL) == TAKEOVER_BACKUP)
		end_copy(link);
	takeover_leave(link->fd);
	return link->ended;
}

/* === What one host makes: the primary === */

static void abort_reply(struct link *link)
{
	takeover_reply_abort(link->reply);
	link->reply = NULL;
}

static apr_status_t request_ends(void *data)
{
	request_rec *r = data;
	struct link *link = link_of(r->connection);

	if (link->reply && link->r == r)
		abort_reply(link);
	return APR_SUCCESS;
}

static void log_tail(struct link *link)
{
	const request_rec *last = link->r;
	char tail[TAIL] = "";

	while (last->next)
		last = last->next;
	snprintf(tail, sizeof(tail), TAIL_FORMAT, last->status, link->c->keepalive == AP_CONN_KEEPALIVE,
		 link->c->keepalives, (long long)last->bytes_sent);
	if (link->c->aborted || takeover_reply_write(link->reply, tail, sizeof(tail)) < 0) {
		abort_reply(link);
		return;
	}
	if (takeover_reply_end(link->reply, link->acknowledge) < 0)
		ap_log_cerror(APLOG_MARK, APLOG_WARNING, APR_FROM_OS_ERROR(errno), link->c,
			      "a reply cannot be logged: the connection goes on unprotected");
	link->reply = NULL;
}

static const char http[] = "HTTP/1.";

/* Of the head of a reply; 0: it has none */
static int status_of(const char *head, apr_size_t length)
{
	return length > sizeof(http) + 4 && !memcmp(head, http, sizeof(http) - 1) ? atoi(head + sizeof(http) + 1) : 0;
}

static apr_status_t log_data(struct link *link, const char *data, apr_size_t length)
{
	if (!link->whole.length && status_of(data, length) == HTTP_SWITCHING_PROTOCOLS)
		return APR_ENOTIMPL;
	if (link->whole.length + (apr_off_t)length > link->max_reply)
		return APR_ENOSPC;
	if (takeover_reply_write(link->reply, data, length) < 0)
		return APR_FROM_OS_ERROR(errno);
	return whole_add(&link->whole, data, length);
}

/*
 * Nothing is passed on before the log has all: the kernel would hold it back, and this process would wait for ever for
 * room in its socket
 */
static apr_status_t log_reply(struct link *link, apr_bucket_brigade *bb)
{
	apr_bucket_brigade *held;

	while (link->reply && !APR_BRIGADE_EMPTY(bb)) {
		apr_bucket *b = APR_BRIGADE_FIRST(bb);
		apr_size_t length;
		const char *data;
		apr_status_t rv;

		if (AP_BUCKET_IS_EOR(b)) {
			log_tail(link);
			break;
		}
		if (!APR_BUCKET_IS_METADATA(b)) {
			rv = apr_bucket_read(b, &data, &length, APR_BLOCK_READ);
			if (rv == APR_SUCCESS)
				rv = log_data(link, data, length);
			if (rv != APR_SUCCESS) {
				ap_log_cerror(APLOG_MARK, APLOG_WARNING, rv, link->c,
					      "a reply cannot be logged: the connection goes on unprotected");
				abort_reply(link);
				break;
			}
		}
		apr_bucket_delete(b);
	}
	if (link->reply)
		return APR_SUCCESS;
	held = whole_end(&link->whole);
	APR_BRIGADE_PREPEND(bb, held);
	return ap_pass_brigade(link->output->next, bb);
}

/* The head then says that the connection ends, as ap_set_keepalive() finds; the other host's need not */
static bool this_apache_ends(void)
{
	int state;

	return ap_mpm_query(AP_MPMQ_MPM_STATE, &state) != APR_SUCCESS || state == AP_MPMQ_STOPPING;
}

/*
 * Two hosts have no clock that they agree on, and an origin server without a clock sends no Date (RFC 9110, 6.6.1):
 * whoever receives the reply then takes his own. The field follows the status line.
 */
static void remove_date(struct link *link, apr_bucket_brigade *bb)
{
	static const char field[] = "\r\nDate: ";
	apr_bucket *b = APR_BRIGADE_FIRST(bb);
	const char *data, *start, *end;
	apr_size_t length;
	int status;

	while (b != APR_BRIGADE_SENTINEL(bb) && APR_BUCKET_IS_METADATA(b))
		b = APR_BUCKET_NEXT(b);
	if (b == APR_BRIGADE_SENTINEL(bb) || apr_bucket_read(b, &data, &length, APR_BLOCK_READ) != APR_SUCCESS)
		return;
	status = status_of(data, length);
	if (status == HTTP_SWITCHING_PROTOCOLS)
		give_up(link, "another protocol");
	if (status >= HTTP_OK && this_apache_ends())
		give_up(link, "this Apache ends");
	link->head_passed = !ap_is_HTTP_INFO(status);
	start = status ? memmem(data, length, "\r\n", 2) : NULL;
	if (!start || length - (start - data) < sizeof(field) || memcmp(start, field, sizeof(field) - 1))
		return;
	end = memmem(start + 2, length - (start + 2 - data), "\r\n", 2);
	if (!end)
		return;
	apr_bucket_split(b, end - data);
	apr_bucket_split(b, start - data);
	apr_bucket_delete(APR_BUCKET_NEXT(b));
}

/* The last filter: what passes here goes to the socket */
static apr_status_t output_filter(ap_filter_t *f, apr_bucket_brigade *bb)
{
	struct link *link = f->ctx;
	bool logged = link->reply, ends = false;

	for (apr_bucket *b = APR_BRIGADE_FIRST(bb); b != APR_BRIGADE_SENTINEL(bb); b = APR_BUCKET_NEXT(b))
		ends |= AP_BUCKET_IS_EOR(b);
	if (!logged && !link->own && !link->head_passed && !link->given_up)
		remove_date(link, bb);
	if (ends)
		link->own = link->head_passed = false;
	return logged ? log_reply(link, bb) : ap_pass_brigade(f->next, bb);
}

static int start_logging(struct link *link, request_rec *r)
{
	const struct server *server = ap_get_module_config(r->server->module_config, &takeover_module);

	if (takeover_reply_begin(link->fd, link->id, link->requests, &link->reply) < 0) {
		ap_log_rerror(APLOG_MARK, APLOG_WARNING, APR_FROM_OS_ERROR(errno), r,
			      "no reply log: the connection goes on unprotected");
		apr_table_setn(r->notes, NOTE, "alone");
		link->reply = NULL;
		return DECLINED;
	}
	link->r = r;
	link->acknowledge = server->acknowledge > 0;
	link->max_reply = server->max_reply ? server->max_reply : MAX_REPLY;
	whole_start(&link->whole, r);
	apr_pool_cleanup_register(r->pool, r, request_ends, apr_pool_cleanup_null);
	return DECLINED;
}

/* === What one host makes: the backup === */

static apr_status_t close_fd(void *data)
{
	close((int)(intptr_t)data);
	return APR_SUCCESS;
}

static int write_logged(struct link *link, request_rec *r, const struct takeover_result *result)
{
	apr_bucket_brigade *bb = apr_brigade_create(r->pool, link->c->bucket_alloc);
	apr_os_file_t fd = result->fd;
	char tail[TAIL] = "";
	long long bytes_sent;
	int keepalive;
	apr_file_t *file;

	apr_pool_cleanup_register(r->pool, (void *)(intptr_t)fd, close_fd, apr_pool_cleanup_null);
	if (result->length < TAIL || pread(fd, tail, TAIL, result->length - TAIL) != TAIL || tail[TAIL - 1] ||
	    sscanf(tail, TAIL_FORMAT, &r->status, &keepalive, &link->c->keepalives, &bytes_sent) != 4) {
		give_up(link, "a logged reply is of another kind of server");
		end_copy(link);
		return DONE;
	}
	r->bytes_sent = bytes_sent;
	r->sent_bodyct = bytes_sent > 0;
	link->c->keepalive = keepalive ? AP_CONN_KEEPALIVE : AP_CONN_CLOSE;
	if (result->length == TAIL)
		return DONE;
	apr_os_file_put(&file, &fd, APR_FOPEN_READ | APR_FOPEN_BINARY, r->pool);
	apr_brigade_insert_file(bb, file, 0, result->length - TAIL, r->pool);
	ap_pass_brigade(link->output->next, bb);
	return DONE;
}

/* DECLINED: this host has to execute the request */
static int wait_for_reply(struct link *link, request_rec *r)
{
	struct takeover_result result;
	int status = DONE;

	switch (takeover_reply_wait(link->fd, link->id, link->requests, &result)) {
	case TAKEOVER_EXECUTE:
		apr_table_setn(r->notes, NOTE, "alone");
		return DECLINED;
	case TAKEOVER_REPLY:
		status = write_logged(link, r, &result);
		break;
	default:
		give_up(link, "the primary's reply could not be logged");
		end_copy(link);
		break;
	}
	r->eos_sent = 1;	/* no other filter is to add anything */
	return status;
}

/* === Requests === */

static ap_filter_rec_t *body_handle;

/* What take_body() has read. Who has a limit of a <Directory> is told as by the filter that parses bodies. */
static apr_status_t body_filter(ap_filter_t *f, apr_bucket_brigade *bb, ap_input_mode_t mode, apr_read_type_e block,
				apr_off_t readbytes)
{
	const struct body *body = f->ctx;
	apr_off_t limit = ap_get_limit_req_body(f->r);
	apr_bucket *after;
	apr_status_t rv;

	if (mode != AP_MODE_READBYTES)
		return APR_ENOTIMPL;
	if (limit && body->whole.length > limit)
		return APR_ENOSPC;
	if (APR_BRIGADE_EMPTY(body->bb)) {
		if (!body->ended)
			return ap_get_brigade(f->next, bb, mode, block, readbytes);
		APR_BRIGADE_INSERT_TAIL(bb, apr_bucket_eos_create(f->c->bucket_alloc));
		return APR_SUCCESS;
	}
	rv = apr_brigade_partition(body->bb, readbytes, &after);
	if (rv != APR_SUCCESS && rv != APR_INCOMPLETE)
		return rv;
	while (APR_BRIGADE_FIRST(body->bb) != after && !APR_BRIGADE_EMPTY(body->bb)) {
		apr_bucket *b = APR_BRIGADE_FIRST(body->bb);

		APR_BUCKET_REMOVE(b);
		APR_BRIGADE_INSERT_TAIL(bb, b);
	}
	return APR_SUCCESS;
}

/* A body that this host cannot keep: it goes on alone with what it has and what comes, or, the backup, not at all */
static int leave_body(struct link *link, request_rec *r, apr_status_t rv)
{
	if (rv != APR_EGENERAL)
		ap_log_rerror(APLOG_MARK, APLOG_WARNING, rv, r, "a request's body cannot be kept");
	if (takeover_role(link->fd, NULL) != TAKEOVER_ALONE)
		give_up(link, rv == APR_EGENERAL ? "a request's body is longer than TakeoverMaxBody" :
						   "a request's body cannot be kept");
	if (!link->ended) {
		apr_table_setn(r->notes, NOTE, "alone");
		return link->primary ? DECLINED : OK;	/* of a copy that is alone by now, the reply may be logged */
	}
	r->eos_sent = 1;	/* no other filter is to add anything */
	return DONE;
}

/*
 * Reads the body before anyone executes the request: the backup, which waits for the answer, would else let the window
 * fill. Errors of the client both hosts find, and answer alike; one that this host alone has is no answer.
 */
static int take_body(struct link *link, request_rec *r)
{
	const struct server *server = ap_get_module_config(r->server->module_config, &takeover_module);
	const apr_off_t max = server->max_body ? server->max_body : MAX_BODY;
	apr_status_t kept = APR_SUCCESS;
	apr_bucket_brigade *bb;
	struct body *body;

	if (!ap_request_has_body(r))
		return OK;
	bb = apr_brigade_create(r->pool, r->connection->bucket_alloc);
	body = apr_pcalloc(r->pool, sizeof(*body));
	whole_start(&body->whole, r);
	while (!body->ended && kept == APR_SUCCESS) {
		apr_status_t rv = ap_get_brigade(r->input_filters, bb, AP_MODE_READBYTES, APR_BLOCK_READ,
						 HUGE_STRING_LEN);

		while (rv == APR_SUCCESS && kept == APR_SUCCESS && !APR_BRIGADE_EMPTY(bb)) {
			apr_bucket *b = APR_BRIGADE_FIRST(bb);
			apr_size_t length;
			const char *data;

			body->ended |= APR_BUCKET_IS_EOS(b);
			if (!APR_BUCKET_IS_METADATA(b)) {
				rv = apr_bucket_read(b, &data, &length, APR_BLOCK_READ);
				if (rv != APR_SUCCESS)
					break;
				kept = body->whole.length + (apr_off_t)length > max ? APR_EGENERAL :
				       whole_add(&body->whole, data, length);
			}
			if (kept == APR_SUCCESS)
				apr_bucket_delete(b);
		}
		if (rv != APR_SUCCESS)
			return ap_map_http_request_error(rv, HTTP_BAD_REQUEST);
	}
	body->bb = whole_end(&body->whole);
	for (apr_bucket *b = APR_BRIGADE_FIRST(bb); b != APR_BRIGADE_SENTINEL(bb); b = APR_BUCKET_NEXT(b)) {
		body->ended |= APR_BUCKET_IS_EOS(b);
		apr_bucket_setaside(b, r->pool);
	}
	APR_BRIGADE_CONCAT(body->bb, bb);
	if (body->ended && kept == APR_SUCCESS)
		APR_BRIGADE_INSERT_TAIL(body->bb, apr_bucket_eos_create(r->connection->bucket_alloc));
	ap_add_input_filter_handle(body_handle, body, r, r->connection);
	return kept == APR_SUCCESS ? OK : leave_body(link, r, kept);
}

/* Of the URL as the client wrote it: nothing that one host has on its disk decides. @dir: what its <Location>s say */
static enum mode mode_of(request_rec *r, ap_conf_vector_t **dir)
{
	const struct server *server = ap_get_module_config(r->server->module_config, &takeover_module);
	ap_conf_vector_t *per_dir_config = r->per_dir_config;
	char *path = apr_pstrdup(r->pool, r->parsed_uri.path ? r->parsed_uri.path : "/");
	char *uri = r->uri;
	const struct location *location;
	enum mode mode = DYNAMIC;
	size_t best = 0;

	*dir = per_dir_config;
	if (!ap_normalize_path(path, AP_NORMALIZE_NOT_ABOVE_ROOT | AP_NORMALIZE_MERGE_SLASHES |
				     AP_NORMALIZE_DECODE_UNRESERVED))
		return SYNC_STATIC;	/* both answer that it is malformed */
	r->uri = path;
	ap_location_walk(r);
	*dir = r->per_dir_config;
	location = ap_get_module_config(*dir, &takeover_module);
	r->uri = uri;
	r->per_dir_config = per_dir_config;
	if (location->mode != UNSET)
		return location->mode;
	for (int i = 0; i < server->prefixes->nelts; i++) {
		const struct prefix *p = &APR_ARRAY_IDX(server->prefixes, i, struct prefix);

		if (p->length >= best && !strncmp(path, p->path, p->length)) {
			best = p->length;
			mode = p->mode;
		}
	}
	return mode;
}

/* An open gate lets out all that is not sent yet: there must be no reply of another mode in it */
static void gate(struct link *link, unsigned int flags)
{
	int unsent = 0;

	if (flags & ~link->gate & TAKEOVER_OPEN &&
	    (link->c->data_in_output_filters || ioctl(link->fd, SIOCOUTQ, &unsent) < 0 || unsent))
		flags &= ~TAKEOVER_OPEN;
	if (link->gate != flags && !takeover_gate(link->fd, flags))
		link->gate = flags;
}

/* Of a connection that is protected again its new backup knows nothing: to that one it begins now */
static void begin_link(struct link *link, enum takeover_role role, uint64_t id)
{
	if (link->id)
		link->gate = UNKNOWN;
	link->id = id;
	link->requests = 0;
	link->primary = role == TAKEOVER_PRIMARY;
	link->given_up = false;
	link->c->keepalives = 0;
}

/* The same on both hosts: who executes it a second time can say that it is the same request */
static void name_request(const struct link *link, request_rec *r)
{
	const char *name = apr_psprintf(r->pool, "%016" PRIx64 "-%" PRIu64, link->id, link->requests);

	if (link->inner)
		name = apr_psprintf(r->pool, "%s.%u", name, link->inner);
	apr_table_setn(r->subprocess_env, "TAKEOVER_REQUEST", name);
}

static void name_inner(struct link *link, request_rec *r)
{
	link->inner++;
	name_request(link, r);
}

/* quick_handler() does not see all that a page includes */
static int fixups(request_rec *r)
{
	struct link *link = link_of(r->connection);

	if (link && link->own && r->main)
		name_inner(link, r);
	return DECLINED;
}

static int dynamic(struct link *link, request_rec *r, enum takeover_role role, ap_conf_vector_t *dir)
{
	ap_conf_vector_t *per_dir_config = r->per_dir_config;
	int status;

	name_request(link, r);
	if (link->primary && role != TAKEOVER_PRIMARY) {
		link->own = true;
		return DECLINED;
	}
	/* The limits of its <Location>; access control comes later */
	r->per_dir_config = dir;
	status = take_body(link, r);
	r->per_dir_config = per_dir_config;
	if (status != OK && status != DECLINED)
		return status;
	link->own = true;
	if (status == DECLINED)
		return DECLINED;
	/* Also when alone by now: the reply may be logged, and half of it sent */
	return link->primary ? start_logging(link, r) : wait_for_reply(link, r);
}

/* What has led to @r in this server, if quick_handler() has seen it */
static const request_rec *outer_request(const request_rec *r)
{
	do
		r = r->main ? r->main : r->prev;
	while (r && !apr_table_get(r->notes, NOTE));
	return r;
}

/*
 * An error's page, what a request is rewritten to, or what a page includes, is no request of the client's: it has the
 * number and the mode of the one that led to it. Only what answers in the place of a static one, and is dynamic itself,
 * one host alone is to execute.
 */
static int inner_request(struct link *link, request_rec *r, const request_rec *outer)
{
	ap_conf_vector_t *dir;

	apr_table_setn(r->notes, NOTE, apr_table_get(outer->notes, NOTE));
	if (link->own && !r->main)
		name_inner(link, r);
	if (link->own || link->given_up || r->main || mode_of(r, &dir) != DYNAMIC)
		return DECLINED;
	gate(link, link->gate & TAKEOVER_BUSY);
	return dynamic(link, r, takeover_role(link->fd, NULL), dir);
}

static bool has_body(const request_rec *r)
{
	const char *length = apr_table_get(r->headers_in, "Content-Length");

	return r->expecting_100 || apr_table_get(r->headers_in, "Transfer-Encoding") || (length && strcmp(length, "0"));
}

/*
 * The server has read more than the request: that waits in the core's filter, before its socket, and a copy would never get
 * it. When the server has taken half of a head from there, it writes nothing before it has the other half.
 */
static bool has_more(const struct link *link)
{
	const ap_filter_t *f = link->c->input_filters;
	apr_bucket_brigade *bb;
	const core_net_rec *net;

	while (f->next)
		f = f->next;
	net = f->ctx;
	if (f->frec != ap_core_input_filter_handle || !net->in_ctx)
		return false;
	bb = net->in_ctx->b;
	for (apr_bucket *b = APR_BRIGADE_FIRST(bb); b != APR_BRIGADE_SENTINEL(bb); b = APR_BUCKET_NEXT(b)) {
		const char *text;
		apr_size_t length;

		if (APR_BUCKET_IS_METADATA(b) || b->length == (apr_size_t)-1 || apr_bucket_read(b, &text, &length, APR_NONBLOCK_READ))
			continue;
		/* Some clients send an empty line behind a body */
		for (apr_size_t i = 0; i < length; i++)
			if (text[i] != APR_ASCII_CR && text[i] != APR_ASCII_LF)
				return true;
	}
	return false;
}

/* The server looks whether there is a next request when the end of a reply has yet to leave */
static apr_status_t input_filter(ap_filter_t *f, apr_bucket_brigade *bb, ap_input_mode_t mode, apr_read_type_e block,
				 apr_off_t readbytes)
{
	apr_status_t rv = ap_get_brigade(f->next, bb, mode, block, readbytes);
	struct link *link = f->ctx;

	if (mode == AP_MODE_SPECULATIVE && link->c->data_in_output_filters && has_more(link))
		gate(link, (link->gate & TAKEOVER_OPEN) | TAKEOVER_BUSY);
	return rv;
}

/* The server has read all of the request, whatever its handler made of the body */
static apr_status_t body_is_read(void *data)
{
	request_rec *r = data;
	struct link *link = link_of(r->connection);

	/* The end of its reply may leave when the next one has begun */
	if (link->with_body == r && !link->c->aborted && !has_more(link))
		gate(link, link->gate & TAKEOVER_OPEN);
	return APR_SUCCESS;
}

/*
 * A connection that is alone by then gets a backup when it looks idle next: unless what the client says then may be no
 * request, or none to be protected. The rest of a body may come behind an answer, or behind "100 Continue".
 */
static bool is_busy(struct link *link, request_rec *r, enum mode mode)
{
	link->with_body = NULL;
	if (mode == OFF || r->connection->master || ap_ssl_conn_is_ssl(link->c) || r->method_number == M_CONNECT ||
	    apr_table_get(r->headers_in, "Upgrade"))
		return true;
	if (!has_body(r))
		return false;
	link->with_body = r;
	apr_pool_cleanup_register(r->pool, r, body_is_read, apr_pool_cleanup_null);
	return true;
}

/* Before every other module: what they do with a dynamic request, only one host's may do */
static int quick_handler(request_rec *r, int lookup)
{
	conn_rec *c = r->connection;
	struct link *link = link_of(c->master ? c->master : c);
	const request_rec *outer = outer_request(r);
	enum takeover_role role;
	ap_conf_vector_t *dir;
	unsigned int busy;
	enum mode mode;
	bool open;
	uint64_t id;

	if (!link || lookup)
		return DECLINED;
	if (outer)
		return inner_request(link, r, outer);
	role = takeover_role(link->fd, &id);
	if (id && id != link->id)
		begin_link(link, role, id);
	link->requests++;
	link->inner = 0;
	apr_table_setn(r->notes, NOTE,
		       role == TAKEOVER_PRIMARY ? "primary" : role == TAKEOVER_BACKUP ? "backup" : "alone");
	mode = mode_of(r, &dir);
	/* Whoever has left it, has shut it */
	if (role == TAKEOVER_ALONE)
		link->gate = UNKNOWN;
	busy = is_busy(link, r, mode) || has_more(link) ? TAKEOVER_BUSY : 0;
	if (link->given_up)
		mode = OFF;
	open = mode == STATIC && role == TAKEOVER_PRIMARY && !c->master;
	gate(link, busy | (open ? TAKEOVER_OPEN : 0));
	if (mode == OFF || c->master)
		return give_up(link, c->master ? "HTTP/2" : "its mode is off") ? HTTP_SERVICE_UNAVAILABLE : DECLINED;
	if (mode != DYNAMIC) {
		const char *range = apr_table_get(r->headers_in, "Range");

		/* Several would be parted by a boundary that each server draws by lot */
		if (range && strchr(range, ','))
			apr_table_unset(r->headers_in, "Range");
		return DECLINED;
	}
	return dynamic(link, r, role, dir);
}

/* === Connections === */

static int pre_connection(conn_rec *c, void *csd)
{
	const struct server *server = ap_get_module_config(c->base_server->module_config, &takeover_module);
	enum takeover_role role;
	struct link *link;
	apr_os_sock_t fd;
	uint64_t id;

	if (c->master || server->on <= 0 || apr_os_sock_get(&fd, csd) != APR_SUCCESS)
		return OK;
	role = takeover_role(fd, &id);
	if (role == TAKEOVER_OFF)
		return OK;
	link = apr_pcalloc(c->pool, sizeof(*link));
	link->c = c;
	link->fd = fd;
	begin_link(link, role, id);
	ap_add_input_filter("TAKEOVER_NEXT", link, NULL, c);
	link->output = ap_add_output_filter("TAKEOVER", link, NULL, c);
	ap_set_module_config(c->conn_config, &takeover_module, link);
	return OK;
}

/* The bytes of an encrypted connection depend on keys that one host alone has */
static int process_connection(conn_rec *c)
{
	struct link *link = link_of(c);

	if (!link || !ap_ssl_conn_is_ssl(c) || !give_up(link, "TLS"))
		return DECLINED;
	if (c->cs)
		c->cs->state = CONN_STATE_LINGER;
	return OK;
}

/* === Configuration === */

static void *create_server(apr_pool_t *p, server_rec *s)
{
	struct server *server = apr_pcalloc(p, sizeof(*server));

	(void)s;
	server->on = server->acknowledge = -1;
	server->prefixes = apr_array_make(p, 2, sizeof(struct prefix));
	return server;
}

static void *merge_server(apr_pool_t *p, void *base_, void *add_)
{
	struct server *base = base_, *add = add_, *server = apr_pcalloc(p, sizeof(*server));

	server->on = add->on < 0 ? base->on : add->on;
	server->acknowledge = add->acknowledge < 0 ? base->acknowledge : add->acknowledge;
	server->max_reply = add->max_reply ? add->max_reply : base->max_reply;
	server->max_body = add->max_body ? add->max_body : base->max_body;
	server->prefixes = apr_array_append(p, base->prefixes, add->prefixes);
	return server;
}

static void *create_location(apr_pool_t *p, char *path)
{
	(void)path;
	return apr_pcalloc(p, sizeof(struct location));
}

static void *merge_location(apr_pool_t *p, void *base_, void *add_)
{
	struct location *base = base_, *add = add_, *location = apr_pcalloc(p, sizeof(*location));

	location->mode = add->mode ? add->mode : base->mode;
	return location;
}

static struct server *server_of(cmd_parms *cmd)
{
	return ap_get_module_config(cmd->server->module_config, &takeover_module);
}

static const char *parse_mode(cmd_parms *cmd, const char *word, enum mode *mode)
{
	for (*mode = DYNAMIC; *mode <= OFF; ++*mode)
		if (!strcasecmp(word, modes[*mode]))
			return NULL;
	return apr_psprintf(cmd->pool, "%s: '%s' is not dynamic, sync-static, static or off", cmd->cmd->name, word);
}

static const char *set_engine(cmd_parms *cmd, void *dir, int on)
{
	(void)dir;
	server_of(cmd)->on = on;
	return NULL;
}

static const char *set_acknowledge(cmd_parms *cmd, void *dir, int on)
{
	(void)dir;
	server_of(cmd)->acknowledge = on;
	return NULL;
}

static const char *set_bytes(cmd_parms *cmd, const char *word, apr_off_t *max)
{
	char *end;

	if (apr_strtoff(max, word, &end, 10) != APR_SUCCESS || *end || *max < 1)
		return apr_psprintf(cmd->pool, "%s: '%s' is not a number of bytes", cmd->cmd->name, word);
	return NULL;
}

static const char *set_max_reply(cmd_parms *cmd, void *dir, const char *word)
{
	(void)dir;
	return set_bytes(cmd, word, &server_of(cmd)->max_reply);
}

static const char *set_max_body(cmd_parms *cmd, void *dir, const char *word)
{
	(void)dir;
	return set_bytes(cmd, word, &server_of(cmd)->max_body);
}

static const char *set_prefix(cmd_parms *cmd, void *dir, const char *path, const char *word)
{
	struct prefix prefix = { .path = path, .length = strlen(path) };
	const char *error = parse_mode(cmd, word, &prefix.mode);

	(void)dir;
	if (*path != '/')
		return apr_psprintf(cmd->pool, "%s: '%s' does not start with a slash", cmd->cmd->name, path);
	if (!error)
		APR_ARRAY_PUSH(server_of(cmd)->prefixes, struct prefix) = prefix;
	return error;
}

static const char *set_mode(cmd_parms *cmd, void *dir, const char *word)
{
	struct location *location = dir;
	const char *error = ap_check_cmd_context(cmd, NOT_IN_DIRECTORY | NOT_IN_FILES | NOT_IN_HTACCESS);

	return error ? error : parse_mode(cmd, word, &location->mode);
}

static const command_rec directives[] = {
	AP_INIT_FLAG("TakeoverEngine", set_engine, NULL, RSRC_CONF, "on: two hosts give the same replies"),
	AP_INIT_FLAG("TakeoverAcknowledge", set_acknowledge, NULL, RSRC_CONF, "on: wait for the backup's word"),
	AP_INIT_TAKE1("TakeoverMaxReply", set_max_reply, NULL, RSRC_CONF, "bytes of the largest reply that is logged"),
	AP_INIT_TAKE1("TakeoverMaxBody", set_max_body, NULL, RSRC_CONF, "bytes of the largest body of a dynamic request"),
	AP_INIT_TAKE2("TakeoverPrefix", set_prefix, NULL, RSRC_CONF, "start of URL paths, and their mode"),
	AP_INIT_TAKE1("TakeoverMode", set_mode, NULL, ACCESS_CONF, "dynamic, sync-static, static or off"),
	{ NULL }
};

static void register_hooks(apr_pool_t *p)
{
	(void)p;
	ap_hook_pre_connection(pre_connection, NULL, NULL, APR_HOOK_MIDDLE);
	ap_hook_process_connection(process_connection, NULL, NULL, APR_HOOK_REALLY_FIRST);
	ap_hook_quick_handler(quick_handler, NULL, NULL, APR_HOOK_REALLY_FIRST);
	ap_hook_fixups(fixups, NULL, NULL, APR_HOOK_REALLY_FIRST);
	ap_register_output_filter("TAKEOVER", output_filter, NULL, AP_FTYPE_NETWORK - 1);
	ap_register_input_filter("TAKEOVER_NEXT", input_filter, NULL, AP_FTYPE_NETWORK - 1);
	/* Nearer to the handler than the one that parses bodies */
	body_handle = ap_register_input_filter("TAKEOVER_BODY", body_filter, NULL, AP_FTYPE_PROTOCOL - 1);
}

module AP_MODULE_DECLARE_DATA takeover_module = {
	STANDARD20_MODULE_STUFF,
	create_location,
	merge_location,
	create_server,
	merge_server,
	directives,
	register_hooks,
	0,
};
