// SPDX-License-Identifier: GPL-2.0-or-later
/* takeoverctl: what takeoverd does, and is to do. See takeoverctl(8). */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "wire.h"

#define TRIES		100
#define AGAIN_US	100000

static const char *socket_path = TAKEOVER_SOCKET;

static int usage(FILE *to, int status)
{
	fputs("usage: takeoverctl [--socket PATH] COMMAND\n\n"
	      "  status [--json]    each service: what it is here, and whether its peer is there\n"
	      "  promote SERVICE    this host goes on alone; \"all\": with each. 3: the peer has been promoted\n"
	      "  abandon SERVICE    its connections end here without a word: the peer has them\n"
	      "  protect SERVICE [--peer ADDRESS] [--peer-log ADDRESS:PORT]\n"
	      "                     new connections get a peer again, and idle ones, as soon as it is there\n"
	      "  check              what of this host's settings is not as it should be\n"
	      "  watch              a line for each change, until it is interrupted\n"
	      "  key FILE           makes one, for both hosts of a service\n", to);
	return status;
}

static int complain(const char *what)
{
	fprintf(stderr, "takeoverctl: %s: %s\n", what, strerror(errno));
	return 1;
}

/*
 * What it says, and its exit status; @s: the connection stays open. @patient: the caller asks once, and it may just be being started
 * anew. What changes something may be asked twice.
 */
static char *ask(const char *command, int *status, int *s, bool patient)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	struct local_request *request;
	struct local_answer answer;
	const size_t size = sizeof(*request) + strlen(command);
	unsigned int tries = patient ? TRIES : 1;
	char *text = NULL;
	int fd;

	snprintf(at.sun_path, sizeof(at.sun_path), "%s", socket_path);
	request = calloc(1, size);
	if (request) {
		request->version = TAKEOVER_VERSION;
		request->type = LOCAL_COMMAND;
		memcpy(request->text, command, strlen(command));
	}
	for (;;) {
		*s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		if (*s < 0 || connect(*s, (struct sockaddr *)&at, sizeof(at))) {
			if ((errno != ENOENT && errno != ECONNREFUSED) || !--tries) {
				const bool denied = errno == EACCES;

				complain(socket_path);
				if (denied)
					fputs("takeoverctl: that is for root, and for the group of takeover.conf(5)\n", stderr);
				else
					fputs("takeoverctl: is takeoverd running? See `systemctl status takeoverd`\n", stderr);
				exit(1);
			}
		} else if (!request || send(*s, request, size, MSG_NOSIGNAL) != (ssize_t)size || local_receive(*s, &answer, &fd) || fd < 0 ||
			   !(text = calloc(1, answer.length + 1)) || pread(fd, text, answer.length, 0) != (ssize_t)answer.length) {
			if (!--tries) {
				fprintf(stderr, "takeoverctl: takeoverd does not answer\n");
				exit(1);
			}
		} else {
			break;
		}
		if (*s >= 0)
			close(*s);
		usleep(AGAIN_US);
	}
	close(fd);
	free(request);
	*status = answer.error;
	return text;
}

static const char *text_of(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }
static long long number_of(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static int show_status(bool json)
{
	int status, s;
	char *text = ask("status", &status, &s, false);
	json_t *all, *one;
	size_t i;

	close(s);
	if (json)
		puts(text);
	all = json ? NULL : json_loads(text, 0, NULL);
	free(text);
	if (json)
		return status;
	printf("%-16s %-24s %-8s %-10s %6s  %-20s %9s %9s\n", "SERVICE", "ADDRESS", "ROLE", "STATE", "EPOCH", "PEER", "PROTECTED", "ALONE");
	json_array_foreach(json_object_get(all, "services"), i, one) {
		const json_t *peer = json_object_get(one, "peer"), *kernel = json_object_get(one, "kernel");
		char address[64], there[96];

		snprintf(address, sizeof(address), strchr(text_of(one, "address"), ':') ? "[%s]:%lld" : "%s:%lld", text_of(one, "address"),
			 number_of(one, "port"));
		snprintf(there, sizeof(there), "%s%s%s%s%s%s%s", text_of(peer, "state"), json_is_true(json_object_get(one, "split")) ? ", split" : "",
			 json_is_true(json_object_get(one, "displaced")) ? ", displaced" : "", json_is_true(json_object_get(one, "settings_differ")) ? ", differs" : "",
			 json_is_true(json_object_get(one, "clocks_differ")) ? ", clock" : "",
			 json_is_true(json_object_get(peer, "alive")) && json_is_false(json_object_get(one, "asked")) ? ", not asked" : "",
			 json_is_true(json_object_get(one, "in_file")) ? "" : ", not in the file");
		printf("%-16s %-24s %-8s %-10s %6lld  %-20s %9lld %9lld\n", text_of(one, "name"), address, text_of(one, "role"), text_of(one, "state"),
		       number_of(one, "epoch"), there, number_of(kernel, "now_primary") + number_of(kernel, "now_muted"), number_of(kernel, "now_alone"));
	}
	json_decref(all);
	return status;
}

static int make_key(const char *path)
{
	uint8_t key[16];
	char text[34];
	int fd;

	if (getrandom(key, sizeof(key), 0) != sizeof(key))
		return complain("getrandom");
	for (unsigned int i = 0; i < sizeof(key); i++)
		sprintf(text + 2 * i, "%02x", key[i]);
	strcat(text, "\n");
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 && errno == ENOENT) {
		fprintf(stderr, "takeoverctl: %s: its directory is not there: make it first\n", path);
		return 1;
	}
	if (fd < 0 || write(fd, text, 33) != 33 || fsync(fd) || close(fd))
		return complain(path);
	return 0;
}

static int watch(void)
{
	char line[512];
	int status, s;
	ssize_t n;

	free(ask("watch", &status, &s, false));
	setlinebuf(stdout);
	while ((n = recv(s, line, sizeof(line) - 1, 0)) > 0)
		printf("%.*s\n", (int)n, line);
	fprintf(stderr, "takeoverctl: takeoverd has ended\n");
	return 1;
}

static int command(const char *format, const char *a, const char *b, const char *c, bool patient)
{
	char line[COMMAND_MAX], *text;
	int status, s;

	if (snprintf(line, sizeof(line), format, a, b, c) >= (int)sizeof(line)) {
		errno = ENAMETOOLONG;
		return complain(a);
	}
	text = ask(line, &status, &s, patient);
	fputs(text, status ? stderr : stdout);
	free(text);
	return status;
}

int main(int argc, char **argv)
{
	enum { SOCKET = 256, JSON, PEER, PEER_LOG };
	static const struct option options[] = {
		{ "socket", required_argument, NULL, SOCKET }, { "json", no_argument, NULL, JSON }, { "peer", required_argument, NULL, PEER },
		{ "peer-log", required_argument, NULL, PEER_LOG }, { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL },
	};
	const char *peer = "-", *log = "", *verb, *what;
	bool json = false;
	int c;

	while ((c = getopt_long(argc, argv, "hV", options, NULL)) != -1)
		switch (c) {
		case SOCKET:
			socket_path = optarg;
			break;
		case JSON:
			json = true;
			break;
		case PEER:
			peer = optarg;
			break;
		case PEER_LOG:
			log = optarg;
			break;
		case 'V':
			printf("takeoverctl %s\n", PERDURE_VERSION);
			return 0;
		case 'h':
			return usage(stdout, 0);
		default:
			return usage(stderr, 2);
		}
	if (optind == argc || argc - optind > 2)
		return usage(stderr, 2);
	verb = argv[optind];
	what = argv[optind + 1];
	if (!what) {
		if (!strcmp(verb, "status"))
			return show_status(json);
		if (!strcmp(verb, "check"))
			return command("check", "", "", "", false);
		if (!strcmp(verb, "watch"))
			return watch();
		return usage(stderr, 2);
	}
	if (!strcmp(verb, "promote"))
		return command("promote %s", what, "", "", true);
	if (!strcmp(verb, "abandon"))
		return command("abandon %s", what, "", "", true);
	if (!strcmp(verb, "protect"))
		return command("protect %s %s %s", what, peer, log, true);
	if (!strcmp(verb, "key"))
		return make_key(what);
	return usage(stderr, 2);
}
