// SPDX-License-Identifier: GPL-2.0-or-later
/* replayctl: a replay log, and the server that has it open */
#include <curl/curl.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"
#include "units.h"
#include "options.h"
#include "world.h"

#define USAGE	2

static const char usage[] =
	"replayctl format LOG [--size SIZE] [--force]     make an empty log: a file of SIZE bytes (k, M, G), or a device\n"
	"replayctl verify LOG                             read a log as a recovery does, and say what is in it\n"
	"replayctl dump LOG [--json]                      print its records\n"
	"replayctl move LOG NEW [--size SIZE] [--force]   have it in another file or device, as large or larger\n"
	"replayctl status SOCKET [--json]                 what a server does; SOCKET is `control` of its file\n"
	"replayctl sessions SOCKET [--json]               its sessions\n"
	"replayctl domain SOCKET [--json]                 the other members of its domain\n"
	"replayctl metrics SOCKET                         its figures, as Prometheus reads them\n"
	"replayctl checkpoint SOCKET                      make a checkpoint now\n"
	"replayctl end SOCKET SESSION                     give up a session that is stuck: its client is told that it is gone\n";

static bool json, force;
static uint64_t size;

static __attribute__((format(printf, 1, 2))) int problem(const char *format, ...)
{
	va_list args;

	fputs("replayctl: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	return EXIT_FAILURE;
}

/* Logs */

static void show_progress(uint64_t done, uint64_t all)
{
	static unsigned int last = 101;
	unsigned int percent = done * 100 / all;

	if (percent == last || !isatty(STDERR_FILENO))
		return;
	last = percent;
	fprintf(stderr, "\rreplayctl: %3u %%%s", percent, done == all ? "\n" : "");
}

static int format(const char *path)
{
	char error[ERROR_MAX];

	if (world_format(path, size, force, NULL, show_progress, error))
		return problem("%s", error);
	printf("%s: an empty log\n", path);
	return EXIT_SUCCESS;
}

static const char *const record_names[] = {
	[R_START] = "start", [R_REQUEST] = "request", [R_READ] = "read", [R_WRITE] = "write", [R_UPDATE] = "update",
	[R_VALUE] = "value", [R_REPLY] = "reply", [R_SKIP] = "skip", [R_END] = "end", [R_CHECKPOINT] = "checkpoint",
	[R_CARRY] = "carry", [R_POSITIONS] = "positions", [R_VARIABLE] = "variable", [R_LEARNED] = "learned", [R_SERVER] = "server",
};

#define KINDS	(sizeof(record_names) / sizeof(record_names[0]))

static uint64_t counts[256], bytes[256];
static bool printing;

static void print_vector(json_t *line, struct cursor *c)
{
	struct vector v = { 0 };
	json_t *all = json_array();
	unsigned int i;

	get_vector(c, &v);
	for (i = 0; i < v.n; i++)
		json_array_append_new(all, json_pack("{s:i, s:I, s:I}", "member", v.states[i].member, "epoch",
						     (json_int_t)v.states[i].epoch, "lsn", (json_int_t)v.states[i].lsn));
	if (v.n)
		json_object_set(line, "depends", all);
	json_decref(all);
	vector_free(&v);
}

static void print_text(json_t *line, const char *name, struct cursor *c)
{
	char *text = get_text(c);
	json_t *value = json_string(text);

	/* Not UTF-8 */
	json_object_set_new(line, name, value ? value : json_string("?"));
	free(text);
}

static void print_size(json_t *line, const char *name, struct cursor *c)
{
	size_t len;

	get_blob(c, &len);
	json_object_set_new(line, name, json_integer(len));
}

/* Bodies and values may be secrets: their sizes are shown */
static void describe(json_t *line, uint8_t type, struct cursor c)
{
	if (type != R_START && type != R_VARIABLE && type != R_LEARNED && type != R_SERVER)
		json_object_set_new(line, "session", json_integer(get_u64(&c)));
	switch (type) {
	case R_START:
	case R_CHECKPOINT: {
		unsigned int i, client;

		for (i = 0; i < TOKEN_SIZE; i++)
			get_u8(&c);
		client = get_u16(&c);
		if (client != OUTSIDE)
			json_object_set_new(line, "member", json_integer(client));
		print_text(line, "key", &c);
		if (type == R_START)
			print_vector(line, &c);
		else
			json_object_set_new(line, "next", json_integer(get_u64(&c)));
		break;
	}
	case R_REQUEST:
		json_object_set_new(line, "sequence", json_integer(get_u64(&c)));
		json_object_set_new(line, "version", json_integer(get_u32(&c)));
		print_text(line, "method", &c);
		print_size(line, "body_bytes", &c);
		print_vector(line, &c);
		break;
	case R_READ:
	case R_WRITE:
	case R_UPDATE:
		print_text(line, "variable", &c);
		if (type == R_UPDATE) {
			get_u8(&c);
			print_size(line, "old_bytes", &c);
		}
		json_object_set_new(line, "present", json_boolean(get_u8(&c)));
		print_size(line, "bytes", &c);
		print_vector(line, &c);
		if (type != R_READ)
			json_object_set_new(line, "previous", json_integer(get_u64(&c)));
		break;
	case R_VALUE:
		json_object_set_new(line, "kind", json_string(get_u8(&c) == V_TIME ? "time" : "random"));
		print_size(line, "bytes", &c);
		break;
	case R_REPLY:
		get_u32(&c);
		print_text(line, "of", &c);
		get_u8(&c);
		json_object_set_new(line, "status", json_integer(get_u32(&c)));
		get_u64(&c);
		print_size(line, "body_bytes", &c);
		print_vector(line, &c);
		break;
	case R_SKIP:
		json_object_set_new(line, "from", json_integer(get_u64(&c)));
		break;
	case R_VARIABLE:
		print_text(line, "variable", &c);
		json_object_set_new(line, "present", json_boolean(get_u8(&c)));
		print_size(line, "bytes", &c);
		break;
	case R_LEARNED:
		json_object_set_new(line, "member", json_integer(get_u16(&c)));
		json_object_set_new(line, "epoch", json_integer(get_u32(&c)));
		break;
	}
}

static void print_line(json_t *line)
{
	const char *name;
	json_t *value;

	if (json) {
		json_dumpf(line, stdout, JSON_COMPACT);
		putchar('\n');
		return;
	}
	printf("%12lld %-10s", (long long)json_integer_value(json_object_get(line, "lsn")), json_string_value(json_object_get(line, "record")));
	json_object_foreach(line, name, value) {
		char *text;

		if (!strcmp(name, "lsn") || !strcmp(name, "record"))
			continue;
		text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
		printf(" %s=%s", name, text ? text : "?");
		free(text);
	}
	putchar('\n');
}

static void take(void *arg, uint64_t lsn, uint8_t type, struct cursor payload)
{
	const char *name = type < KINDS && record_names[type] ? record_names[type] : "?";
	json_t *line;

	(void)arg;
	counts[type]++;
	bytes[type] += payload.end - payload.at + RECORD_HEADER;
	if (!printing)
		return;
	line = json_pack("{s:I, s:s, s:I}", "lsn", (json_int_t)lsn, "record", name, "size", (json_int_t)(payload.end - payload.at));
	describe(line, type, payload);
	print_line(line);
	json_decref(line);
}

static int read_log(const char *path)
{
	char error[ERROR_MAX];
	struct world w;
	struct log log = { 0 };
	unsigned int i;
	int err;

	world_init(&w);
	if (world_open(&w, path, true, error))
		return problem("%s", error);
	err = log_open(&log, &w.env, w.size);
	if (err) {
		err = problem("%s: %s", path, log_problem(err));
		goto out;
	}
	err = log_scan(&log, take, NULL);
	if (err)
		err = problem("%s: %s (at LSN %" PRIu64 ", byte %" PRIu64 " of the device)", path, log_problem(err), log.durable,
			      RING_PLACE + log.durable % log.ring);
	if (err || printing)
		goto out;
	printf("%s: whole\nepoch %u, sectors of %u bytes, %" PRIu64 " bytes for records, %" PRIu64 " in use: LSN %" PRIu64 " to %" PRIu64 "\n",
	       path, log.ended.epoch, log.sector, log.ring, log.durable - log.tail, log.tail, log.durable);
	for (i = 0; i < KINDS; i++)
		if (counts[i])
			printf("%12" PRIu64 " %-10s %12" PRIu64 " bytes\n", counts[i], record_names[i], bytes[i]);
out:
	world_close(&w);
	history_free(&log.ended);
	return err;
}

static void ignore(void *arg, uint64_t lsn, uint8_t type, struct cursor payload)
{
	(void)arg;
	(void)lsn;
	(void)type;
	(void)payload;
}

/* There must not be two: the old one is no log any more when the new one is whole */
static int move(const char *old, const char *new)
{
	static const uint8_t zeros[RING_PLACE];
	char error[ERROR_MAX];
	struct world w;
	struct log log = { 0 };
	int err;

	world_init(&w);
	if (world_open(&w, old, false, error))
		return problem("%s", error);
	err = log_open(&log, &w.env, w.size);
	if (!err)
		err = log_scan(&log, ignore, NULL);
	if (err)
		err = problem("%s: %s", old, log_problem(err));
	else if (world_format(new, size ? size : w.size, force, &log, show_progress, error))
		err = problem("%s: %s is as it was", error, old);
	else if (w.env.write(&w.env, 0, zeros, sizeof(zeros)))
		err = problem("%s: %s: remove it: the log is in %s now, and must not be used twice", old, strerror(errno), new);
	else
		printf("%s: the log of %s, which is none any more\n", new, old);
	world_close(&w);
	history_free(&log.ended);
	return err;
}

static int verify(const char *path)
{
	return read_log(path);
}

static int dump(const char *path)
{
	printing = true;
	return read_log(path);
}

/* A server */

static size_t collect(char *data, size_t one, size_t n, void *arg)
{
	bytes_add(arg, data, one * n);
	return one * n;
}

static int ask(const char *socket, const char *path, bool post, struct bytes *answer)
{
	CURL *curl = curl_easy_init();
	char error[CURL_ERROR_SIZE] = "", url[64];
	long code = 0;
	CURLcode result;

	if (!curl)
		return problem("no memory");
	snprintf(url, sizeof(url), "http://localhost/%s", path);
	curl_easy_setopt(curl, CURLOPT_URL, url);
	curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, socket);
	curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error);
	curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, collect);
	curl_easy_setopt(curl, CURLOPT_WRITEDATA, answer);
	if (post)
		curl_easy_setopt(curl, CURLOPT_POSTFIELDS, "");
	result = curl_easy_perform(curl);
	curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
	curl_easy_cleanup(curl);
	bytes_add(answer, "", 1);
	if (result == CURLE_COULDNT_CONNECT)
		return problem("%s: nobody listens: is the server running, and is this its control socket?", socket);
	if (result != CURLE_OK)
		return problem("%s: %s", socket, *error ? error : curl_easy_strerror(result));
	if (code != 200)
		return problem("%s: %s", socket, answer->data);
	return EXIT_SUCCESS;
}

static void print_value(const char *name, const json_t *value)
{
	if (json_is_integer(value))
		printf("%-14s %lld\n", name, (long long)json_integer_value(value));
	else
		printf("%-14s %s\n", name, json_string_value(value));
}

static void print_object(json_t *object)
{
	const char *name, *inner;
	json_t *value, *one;

	json_object_foreach(object, name, value) {
		if (!json_is_object(value)) {
			print_value(name, value);
			continue;
		}
		json_object_foreach(value, inner, one) {
			char both[64];

			snprintf(both, sizeof(both), "%s.%s", name, inner);
			print_value(both, one);
		}
	}
}

static void print_table(json_t *rows)
{
	const char *name;
	json_t *row, *value;
	size_t i;

	json_array_foreach(rows, i, row) {
		json_object_foreach(row, name, value) {
			char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));

			if (json_is_string(value))
				printf("%s%s=%s", name == json_object_iter_key(json_object_iter(row)) ? "" : " ", name, json_string_value(value));
			else
				printf(" %s=%s", name, text);
			free(text);
		}
		putchar('\n');
	}
}

static int show(const char *socket, const char *what)
{
	struct bytes answer = { 0 };
	json_t *found = NULL;
	int err = ask(socket, what, false, &answer);

	if (!err && !json)
		found = json_loads((char *)answer.data, 0, NULL);
	if (!err && json_is_array(found))
		print_table(found);
	else if (!err && json_is_object(found))
		print_object(found);
	else if (!err)
		fputs((char *)answer.data, stdout);
	json_decref(found);
	bytes_free(&answer);
	return err;
}

static int show_status(const char *socket) { return show(socket, "status"); }
static int show_sessions(const char *socket) { return show(socket, "sessions"); }
static int show_domain(const char *socket) { return show(socket, "domain"); }
static int show_metrics(const char *socket) { return show(socket, "metrics"); }

static int make_checkpoint(const char *socket)
{
	struct bytes answer = { 0 };
	int err = ask(socket, "checkpoint", true, &answer);

	bytes_free(&answer);
	return err;
}

static int end(const char *socket, const char *session)
{
	struct bytes answer = { 0 };
	char path[64];
	int err;

	if (strlen(session) != 16 || strspn(session, "0123456789abcdef") != 16)
		return problem("%s: a session is 16 hexadecimal digits, as `replayctl sessions` shows it", session);
	snprintf(path, sizeof(path), "end/%s", session);
	err = ask(socket, path, true, &answer);
	bytes_free(&answer);
	return err;
}

struct command {
	const char *name;
	int (*run)(const char *arg);
};

static const struct command commands[] = {
	{ "format", format }, { "verify", verify }, { "dump", dump }, { "status", show_status }, { "sessions", show_sessions },
	{ "domain", show_domain }, { "metrics", show_metrics }, { "checkpoint", make_checkpoint },
};

int main(int argc, char **argv)
{
	static const struct option long_options[] = {
		{ "size", required_argument, NULL, 's' }, { "force", no_argument, NULL, 'f' }, { "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' }, { NULL },
	};
	size_t i;
	int c;

	while ((c = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
		switch (c) {
		case 's':
			if (!unit_parse(optarg, unit_sizes, UINT64_MAX, &size)) {
				problem("--size %s: it is to be bytes, or k, M, G", optarg);
				return USAGE;
			}
			break;
		case 'f':
			force = true;
			break;
		case 'j':
			json = true;
			break;
		case 'h':
			fputs(usage, stdout);
			return EXIT_SUCCESS;
		default:
			fputs(usage, stderr);
			return USAGE;
		}
	}
	if (argc - optind == 2)
		for (i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
			if (!strcmp(argv[optind], commands[i].name))
				return commands[i].run(argv[optind + 1]);
	if (argc - optind == 3 && !strcmp(argv[optind], "move"))
		return move(argv[optind + 1], argv[optind + 2]);
	if (argc - optind == 3 && !strcmp(argv[optind], "end"))
		return end(argv[optind + 1], argv[optind + 2]);
	fputs(usage, stderr);
	return USAGE;
}
