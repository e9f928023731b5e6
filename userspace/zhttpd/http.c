// SPDX-License-Identifier: GPL-2.0-or-later
#include "http.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HTTP_DATE "%a, %d %b %Y %H:%M:%S GMT"

/* Parsing */

static bool is(struct slice s, const char *text)
{
	return s.len == strlen(text) && !strncasecmp(s.p, text, s.len);
}

static struct slice trim(struct slice s)
{
	while (s.len && (*s.p == ' ' || *s.p == '\t'))
		s.p++, s.len--;
	while (s.len && (s.p[s.len - 1] == ' ' || s.p[s.len - 1] == '\t'))
		s.len--;
	return s;
}

/* Cuts the next element off a comma-separated list. */
static bool next_element(struct slice *list, struct slice *element)
{
	while (list->len) {
		const char *comma = memchr(list->p, ',', list->len);
		size_t n = comma ? (size_t)(comma - list->p) : list->len;

		*element = trim((struct slice){ list->p, n });
		list->p += n + !!comma;
		list->len -= n + !!comma;
		if (element->len)
			return true;
	}
	return false;
}

static bool is_token(struct slice s)
{
	for (size_t i = 0; i < s.len; i++)
		if (!isalnum((unsigned char)s.p[i]) && (!s.p[i] || !strchr("!#$%&'*+-.^_`|~", s.p[i])))
			return false;
	return s.len > 0;
}

static bool number(struct slice s, int64_t *n)
{
	*n = 0;
	for (size_t i = 0; i < s.len; i++)
		if (!isdigit((unsigned char)s.p[i]) || __builtin_mul_overflow(*n, 10, n) ||
		    __builtin_add_overflow(*n, s.p[i] - '0', n))
			return false;
	return s.len > 0;
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The request target as a path relative to the root. Returns a status, 0 when it is fine. */
static int parse_target(struct slice t, char path[EXPNFILENAME_MAX])
{
	const char *end, *p;
	size_t n = 0;

	if (t.len > TARGET_MAX)
		return 414;
	if (t.len >= 7 && !strncasecmp(t.p, "http://", 7)) {	/* absolute form: the authority is not ours to judge */
		p = memchr(t.p + 7, '/', t.len - 7);
		if (!p)
			p = t.p + t.len;
		t = (struct slice){ p, t.p + t.len - p };
	} else if (!t.len || *t.p != '/') {
		return 400;
	}
	end = memchr(t.p, '?', t.len);
	if (!end)
		end = t.p + t.len;
	for (p = t.p; p < end; p++) {
		unsigned char c = *p;

		if (c == '%') {
			if (end - p < 3 || hex(p[1]) < 0 || hex(p[2]) < 0)
				return 400;
			c = hex(p[1]) * 16 + hex(p[2]);
			p += 2;
			if (!c)
				return 400;
		} else if (c <= ' ' || c == 0x7f || c == '#') {
			return 400;
		}
		if (c == '/' && !n)		/* relative to the root from here on */
			continue;
		if (n == EXPNFILENAME_MAX - sizeof("/index.html"))
			return 414;
		path[n++] = c;
	}
	path[n] = '\0';
	return 0;
}

static int parse_request_line(struct slice line, struct request *rq)
{
	const char *sp1 = memchr(line.p, ' ', line.len), *sp2 = memrchr(line.p, ' ', line.len);
	struct slice method, target, version;

	if (!sp1 || sp1 == sp2)
		return 400;
	method = (struct slice){ line.p, sp1 - line.p };
	target = (struct slice){ sp1 + 1, sp2 - sp1 - 1 };
	version = (struct slice){ sp2 + 1, line.p + line.len - sp2 - 1 };
	if (!is_token(method) || version.len != 8 || memcmp(version.p, "HTTP/", 5) || version.p[6] != '.' ||
	    !isdigit((unsigned char)version.p[5]) || !isdigit((unsigned char)version.p[7]))
		return 400;
	if (version.p[5] != '1')
		return 505;
	rq->http10 = version.p[7] == '0';
	rq->keep_alive = !rq->http10;

	/* Methods are case-sensitive. Known ones are not allowed (405), others not implemented (501). */
	if (method.len == 3 && !memcmp(method.p, "GET", 3)) {
		rq->method = METHOD_GET;
	} else if (method.len == 4 && !memcmp(method.p, "HEAD", 4)) {
		rq->method = METHOD_HEAD;
	} else {
		static const char *const known[] = { "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH" };

		for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
			if (method.len == strlen(known[i]) && !memcmp(method.p, known[i], method.len))
				return 405;
		return 501;
	}
	return parse_target(target, rq->path);
}

struct framing {
	int hosts;
	bool has_length, transfer_encoding, bad, unmet_expectation;
	int64_t content_length;
};

static void parse_field(struct slice name, struct slice value, struct request *rq, struct framing *f)
{
	struct slice element;
	int64_t n;

	if (is(name, "Host")) {
		f->hosts++;
		for (size_t i = 0; i < value.len; i++)
			if (!isalnum((unsigned char)value.p[i]) && (!value.p[i] || !strchr("-._~%!$&'()*+,;=:[]", value.p[i])))
				f->bad = true;
	} else if (is(name, "Content-Length")) {
		if (!number(value, &n) || (f->has_length && n != f->content_length))
			f->bad = true;
		f->has_length = true;
		f->content_length = n;
	} else if (is(name, "Transfer-Encoding")) {
		f->transfer_encoding = true;
	} else if (is(name, "Connection")) {
		while (next_element(&value, &element)) {
			if (is(element, "close"))
				rq->keep_alive = false;
			else if (is(element, "keep-alive") && rq->http10)
				rq->keep_alive = true;
		}
	} else if (is(name, "Expect")) {
		if (!is(value, "100-continue"))
			f->unmet_expectation = true;
	} else if (is(name, "Range")) {
		rq->range = value;
	} else if (is(name, "If-Range")) {
		rq->if_range = value;
	} else if (is(name, "If-None-Match")) {
		rq->if_none_match = value;
	} else if (is(name, "If-Modified-Since")) {
		rq->if_modified_since = value;
	}
}

/*
 * Takes the next line, without its CRLF. A lone CR or LF ends nothing here: what ends a line for us and not for
 * a proxy before us is how requests are smuggled.
 */
static int next_line(const char **p, const char *end, struct slice *line)
{
	const char *lf = memchr(*p, '\n', end - *p);

	if (!lf)
		return 0;
	if (lf == *p || lf[-1] != '\r' || memchr(*p, '\r', lf - *p) != lf - 1 || memchr(*p, '\0', lf - *p))
		return -1;
	*line = (struct slice){ *p, lf - 1 - *p };
	*p = lf + 1;
	return 1;
}

static bool give_up(struct request *rq, int status, size_t length)
{
	rq->status = status;
	rq->keep_alive = false;		/* where the next request starts is anyone's guess */
	rq->length = length;
	return true;
}

bool http_parse(const char *buf, size_t len, struct request *rq)
{
	const char *p = buf, *end = buf + len;
	struct framing f = { 0 };
	struct slice line;
	int got;

	memset(rq, 0, sizeof(*rq));
	while (end - p >= 2 && p[0] == '\r' && p[1] == '\n')	/* empty lines before a request are allowed */
		p += 2;
	got = next_line(&p, end, &line);
	if (got < 0)
		return give_up(rq, 400, len);
	if (!got) {
		if (len == REQUEST_MAX)
			return give_up(rq, 414, len);
		return false;
	}
	rq->status = parse_request_line(line, rq);
	if (rq->status && rq->status != 405 && rq->status != 501)
		return give_up(rq, rq->status, len);

	for (;;) {
		struct slice name;
		const char *colon;

		got = next_line(&p, end, &line);
		if (got < 0)
			return give_up(rq, 400, len);
		if (!got) {
			if (len == REQUEST_MAX)
				return give_up(rq, 431, len);
			return false;
		}
		if (!line.len)
			break;
		colon = memchr(line.p, ':', line.len);
		name = (struct slice){ line.p, colon ? colon - line.p : 0 };
		if (!colon || !is_token(name))		/* folded lines and "name :" land here, too */
			return give_up(rq, 400, len);
		parse_field(name, trim((struct slice){ colon + 1, line.p + line.len - colon - 1 }), rq, &f);
	}
	rq->length = p - buf;

	if (f.bad || f.hosts > 1 || (!f.hosts && !rq->http10) || (f.transfer_encoding && (f.has_length || rq->http10)))
		return give_up(rq, 400, len);
	if (f.transfer_encoding)
		return give_up(rq, rq->status ? rq->status : 501, len);
	if (f.content_length)			/* nothing here takes a body, so none is read */
		return give_up(rq, rq->status ? rq->status : 413, len);
	if (!rq->status && f.unmet_expectation)
		rq->status = 417;
	return true;
}

/* Deciding */

static void format_date(int64_t t, char out[64])
{
	time_t time = t, epoch = 0;
	struct tm tm;

	if (!gmtime_r(&time, &tm))		/* a file may be of any year */
		gmtime_r(&epoch, &tm);
	strftime(out, 64, HTTP_DATE, &tm);
}

static bool parse_date(struct slice s, int64_t *t)
{
	static const char *const formats[] = { HTTP_DATE, "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y" };
	char text[64];

	if (s.len >= sizeof(text))
		return false;
	memcpy(text, s.p, s.len);
	text[s.len] = '\0';
	for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
		struct tm tm = { 0 };
		const char *end = strptime(text, formats[i], &tm);

		if (end && !*end) {
			*t = timegm(&tm);
			return true;
		}
	}
	return false;
}

static void format_etag(const struct httpd_state_var *v, char out[64])
{
	snprintf(out, 64, "\"%llx-%llx.%llx\"", (long long)v->file_size, (long long)v->mtime_sec, (long long)v->mtime_nsec);
}

static bool etag_matches(struct slice list, const struct httpd_state_var *v, bool weak_too)
{
	struct slice tag;
	char ours[64];

	format_etag(v, ours);
	if (is(list, "*"))
		return true;
	while (next_element(&list, &tag)) {
		if (weak_too && tag.len > 2 && !memcmp(tag.p, "W/", 2))
			tag.p += 2, tag.len -= 2;
		if (tag.len == strlen(ours) && !memcmp(tag.p, ours, tag.len))
			return true;
	}
	return false;
}

/* Whether the client has what we would send. */
static bool not_modified(const struct request *rq, const struct httpd_state_var *v)
{
	int64_t t;

	if (rq->if_none_match.p)
		return etag_matches(rq->if_none_match, v, true);
	return rq->if_modified_since.p && parse_date(rq->if_modified_since, &t) && v->mtime_sec <= t;
}

/* One element of a Range: -1 when it is none, 0 when it is outside the file, 1 when it is [*first, *last]. */
static int parse_range(struct slice r, int64_t size, int64_t *first, int64_t *last)
{
	const char *dash = memchr(r.p, '-', r.len);
	struct slice from, to;

	if (!dash)
		return -1;
	from = (struct slice){ r.p, dash - r.p };
	to = (struct slice){ dash + 1, r.p + r.len - dash - 1 };
	*first = 0;
	*last = INT64_MAX;
	if ((from.len && !number(from, first)) || (to.len && !number(to, last)) || (!from.len && !to.len))
		return -1;
	if (from.len) {
		if (*last < *first)
			return -1;
	} else {			/* "-n": the last n bytes */
		*first = !*last ? size : *last < size ? size - *last : 0;
		*last = INT64_MAX;
	}
	if (*last >= size)
		*last = size - 1;
	return *first < size;
}

/*
 * Narrows first and length where the request leaves one range of the file. Several are answered with the whole
 * file, as they may be, and so is what cannot be understood.
 */
static int apply_range(const struct request *rq, struct httpd_state_var *v)
{
	struct slice element, r = rq->range;
	int64_t first, last, t;
	int found = 0, outside = 0;

	if (!r.p || rq->method != METHOD_GET || r.len < 6 || strncasecmp(r.p, "bytes=", 6))
		return 200;
	if (rq->if_range.p && !etag_matches(rq->if_range, v, false) &&
	    !(parse_date(rq->if_range, &t) && t == v->mtime_sec))
		return 200;
	r = (struct slice){ r.p + 6, r.len - 6 };
	while (next_element(&r, &element)) {
		switch (parse_range(element, v->file_size, &first, &last)) {
		case -1:
			goto whole;
		case 0:
			outside++;
			break;
		case 1:
			if (found++)
				goto whole;
			v->first = first;
			v->length = last - first + 1;
		}
	}
	if (!found && outside)
		return 416;
	if (found)
		return 206;
whole:
	v->first = 0;
	v->length = v->file_size;
	return 200;
}

static int open_beneath(int root_fd, const char *path)
{
	struct open_how how = {
		.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,	/* a FIFO in the root must not stop us */
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
	};
	int fd, tries = 0;

	/* EAGAIN: raced with a rename, or another process holds a lease on it */
	do
		fd = syscall(SYS_openat2, root_fd, *path ? path : ".", &how, sizeof(how));
	while (fd < 0 && (errno == EINTR || (errno == EAGAIN && ++tries < 16)));
	return fd;
}

static int open_status(int error)
{
	switch (error) {
	case ENOENT: case ENOTDIR: case ENAMETOOLONG: case ENXIO: case ENODEV:
		return 404;
	case EACCES: case EPERM: case EXDEV: case ELOOP:
		return 403;
	case EMFILE: case ENFILE: case ENOMEM: case EAGAIN:
		return 503;
	default:
		return 500;
	}
}

static int open_file(int root_fd, struct httpd_state_var *v)
{
	size_t len = strlen(v->expnfilename);
	bool is_dir_name = !len || v->expnfilename[len - 1] == '/';
	struct stat st;
	int fd;

	if (is_dir_name)
		strcpy(v->expnfilename + len, "index.html");
	fd = open_beneath(root_fd, v->expnfilename);
	if (fd < 0) {
		int error = errno;

		/* A directory that does not want to be listed is forbidden; one that is not there is not found. */
		if (is_dir_name && error == ENOENT) {
			v->expnfilename[len] = '\0';
			fd = open_beneath(root_fd, v->expnfilename);
			if (fd >= 0) {
				close(fd);
				return 403;
			}
		}
		return open_status(error);
	}
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		close(fd);
		return S_ISDIR(st.st_mode) && !is_dir_name ? 301 : 403;
	}
	v->file_fd = fd;
	v->file_dev = st.st_dev;
	v->file_ino = st.st_ino;
	v->file_size = v->length = st.st_size;
	v->mtime_sec = st.st_mtim.tv_sec;
	v->mtime_nsec = st.st_mtim.tv_nsec;
	return 200;
}

void http_answer(int root_fd, const struct request *rq, struct httpd_state_var *v)
{
	v->request_length = rq->length;
	v->method = rq->method;
	v->http10 = rq->http10;
	v->keep_alive = rq->keep_alive;
	v->file_fd = -1;
	v->file_size = v->mtime_sec = v->mtime_nsec = v->first = v->length = 0;
	v->date = time(NULL);
	v->status = rq->status;
	strcpy(v->expnfilename, rq->path);
	if (v->status)
		return;

	v->status = open_file(root_fd, v);
	if (v->status != 200)
		return;
	v->status = not_modified(rq, v) ? 304 : apply_range(rq, v);
	if ((v->status != 200 && v->status != 206) || v->method == METHOD_HEAD || !v->length) {
		close(v->file_fd);		/* no byte of it will be sent */
		v->file_fd = -1;
	}
}

/* Telling */

static const char *reason(int status)
{
	switch (status) {
	case 200: return "OK";
	case 206: return "Partial Content";
	case 301: return "Moved Permanently";
	case 304: return "Not Modified";
	case 400: return "Bad Request";
	case 403: return "Forbidden";
	case 404: return "Not Found";
	case 405: return "Method Not Allowed";
	case 408: return "Request Timeout";
	case 413: return "Content Too Large";
	case 414: return "URI Too Long";
	case 416: return "Range Not Satisfiable";
	case 417: return "Expectation Failed";
	case 431: return "Request Header Fields Too Large";
	case 501: return "Not Implemented";
	case 503: return "Service Unavailable";
	case 505: return "HTTP Version Not Supported";
	default:  return "Internal Server Error";
	}
}

static const char *content_type(const char *name)
{
	static const struct { const char *ext, *type; } types[] = {
		{ "html", "text/html; charset=utf-8" }, { "txt", "text/plain; charset=utf-8" },
		{ "css", "text/css; charset=utf-8" }, { "js", "text/javascript; charset=utf-8" },
		{ "json", "application/json" }, { "xml", "application/xml" }, { "pdf", "application/pdf" },
		{ "png", "image/png" }, { "jpg", "image/jpeg" }, { "gif", "image/gif" }, { "webp", "image/webp" },
		{ "svg", "image/svg+xml" }, { "ico", "image/vnd.microsoft.icon" }, { "mp4", "video/mp4" },
	};
	const char *slash = strrchr(name, '/'), *dot = strrchr(slash ? slash : name, '.');

	for (size_t i = 0; dot && i < sizeof(types) / sizeof(*types); i++)
		if (!strcasecmp(dot + 1, types[i].ext))
			return types[i].type;
	return "application/octet-stream";
}

static size_t add_location(const char *path, char *out)
{
	size_t n = sprintf(out, "Location: /");

	for (; *path; path++)
		n += isalnum((unsigned char)*path) || strchr("-._~/", *path) ?
			sprintf(out + n, "%c", *path) : sprintf(out + n, "%%%02X", (unsigned char)*path);
	return n + sprintf(out + n, "/\r\n");
}

/* A pure function of the record: after a fault the header comes out the same, byte by byte, Date included. */
size_t http_header(const struct httpd_state_var *v, char out[HEADER_MAX])
{
	bool has_file = v->status == 200 || v->status == 206, has_text = !has_file && v->status != 304;
	char date[64], etag[64], text[64] = "";
	size_t n;

	format_date(v->date, date);
	n = sprintf(out, "HTTP/1.1 %d %s\r\nServer: zhttpd\r\nDate: %s\r\n", v->status, reason(v->status), date);
	if (has_file || v->status == 304) {
		format_date(v->mtime_sec, date);
		format_etag(v, etag);
		n += sprintf(out + n, "Last-Modified: %s\r\nETag: %s\r\n", date, etag);
	}
	if (has_file)
		n += sprintf(out + n, "Accept-Ranges: bytes\r\nContent-Type: %s\r\nContent-Length: %lld\r\n",
			     content_type(v->expnfilename), (long long)v->length);
	if (has_text) {
		sprintf(text, "%d %s\n", v->status, reason(v->status));
		n += sprintf(out + n, "Content-Type: text/plain; charset=utf-8\r\nContent-Length: %zu\r\n", strlen(text));
	}
	if (v->status == 206)
		n += sprintf(out + n, "Content-Range: bytes %lld-%lld/%lld\r\n", (long long)v->first,
			     (long long)(v->first + v->length - 1), (long long)v->file_size);
	else if (v->status == 416)
		n += sprintf(out + n, "Content-Range: bytes */%lld\r\n", (long long)v->file_size);
	else if (v->status == 405)
		n += sprintf(out + n, "Allow: GET, HEAD\r\n");
	else if (v->status == 301)
		n += add_location(v->expnfilename, out + n);
	if (!v->keep_alive)
		n += sprintf(out + n, "Connection: close\r\n");
	else if (v->http10)
		n += sprintf(out + n, "Connection: keep-alive\r\n");
	n += sprintf(out + n, "\r\n");
	if (has_text && v->method != METHOD_HEAD)
		n += sprintf(out + n, "%s", text);
	return n;
}
