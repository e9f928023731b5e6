// SPDX-License-Identifier: GPL-2.0-or-later
/* frem: checkpoints of processes that run again before their memory has been read. See frem(1). */
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frem.h"

enum { USAGE = 2 };

static void usage(FILE *to)
{
	fputs("usage: frem checkpoint PID|--cgroup PATH --dir DIRECTORY [OPTION...] [-- CRIU-OPTION...]\n"
	      "       frem restore --dir DIRECTORY [OPTION...] [-- CRIU-OPTION...]\n"
	      "       frem verify --dir DIRECTORY [--json]\n"
	      "       frem stat DIRECTORY|PID [--json]\n\n"
	      "Checkpoints of processes that run before their memory has been read. frem checkpoint --help has its options.\n\n"
	      "frem restore\n"
	      "      --preload     let nothing run before what it touches first is loaded\n"
	      "      --plain       with CRIU alone, which reads everything first\n"
	      "      --check       check all of the images first\n"
	      "      --verify      check them while it runs\n"
	      "      --set-back    cut files that have grown since the checkpoint, and keep what was added\n"
	      "      --detach      return when it runs, do not wait until it is loaded\n"
	      "      --json        machine-readable\n", to);
}

static void tell(const char *format, va_list args)
{
	fputs("frem: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
}

void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	tell(format, args);
	va_end(args);
}

void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	tell(format, args);
	va_end(args);
	exit(EXIT_FAILURE);
}

/* Room for one more; arrays double. */
void *grow(void *array, size_t nr, size_t size)
{
	if (nr & (nr - 1))
		return array;
	array = reallocarray(array, nr ? 2 * nr : 1, size);
	if (!array)
		die("out of memory");
	return array;
}

/* A pair of a JSON object */
void print_string(const char *key, const char *value)
{
	printf("\"%s\": \"", key);
	for (; *value; value++) {
		if (*value == '"' || *value == '\\')
			printf("\\%c", *value);
		else if ((unsigned char)*value < ' ')
			printf("\\u%04x", *value);
		else
			putchar(*value);
	}
	putchar('"');
}

/* The part in Python: beside us before it is installed */
const char *part(const char *name)
{
	static char path[PATH_MAX + 32];
	char here[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", here, sizeof(here) - 1);

	here[n > 0 ? n : 0] = '\0';
	snprintf(path, sizeof(path), "%s/%s", dirname(here), name);
	if (access(path, X_OK))
		snprintf(path, sizeof(path), "%s/%s", FREM_PRIVATE, name);
	return path;
}

void exec_part(char *const argv[])
{
	execv(part("frem-checkpoint"), argv);
	die("%s: %m", part("frem-checkpoint"));
}

static int verify(const char *dir, bool json)
{
	struct descriptor d;

	descriptor_load(&d, dir);
	descriptor_check(&d, true);
	if (json) {
		printf("{\"ok\": true, \"images\": %zu, \"lazy\": %s, ", d.nr_images, d.why_plain ? "false" : "true");
		print_string("why", d.why_plain ?: "");
		puts("}");
	} else {
		printf("%s: %zu images are as they were written%s%s\n", dir, d.nr_images,
		       d.why_plain ? "; only CRIU's own restore can use them: " : "", d.why_plain ?: "");
	}
	return EXIT_SUCCESS;
}

/* Now, and not only when it is restored */
static void warn_of_options(char **argv)
{
	const char **trusted;
	size_t nr = 0;

	while (*argv && strcmp(*argv, "--"))
		argv++;
	if (!*argv++)
		return;
	while (argv[nr])
		nr++;
	trusted = calloc(nr + 1, sizeof(*trusted));
	if (!trusted)
		die("out of memory");
	trusted_options(argv, nr, trusted);
	free(trusted);
}

int main(int argc, char **argv)
{
	enum { DIR = 1, PLAIN, CHECK, DETACH, PRELOAD, JSON, HELP, SET_BACK, VERIFY, FOR_RESTORE = 6 };
	static const struct option options[] = {
		/* Six are for restore alone */
		{ "plain", no_argument, NULL, PLAIN },
		{ "check", no_argument, NULL, CHECK },
		{ "detach", no_argument, NULL, DETACH },
		{ "preload", no_argument, NULL, PRELOAD },
		{ "set-back", no_argument, NULL, SET_BACK },
		{ "verify", no_argument, NULL, VERIFY },
		{ "dir", required_argument, NULL, DIR },
		{ "json", no_argument, NULL, JSON },
		{ "help", no_argument, NULL, HELP },
		{}
	};
	const char *verb = argc > 1 ? argv[1] : "", *dir = NULL;
	bool verifies = !strcmp(verb, "verify");
	struct restore_options opt = {};
	int c;

	if (!strcmp(verb, "--help") || !strcmp(verb, "-h")) {
		usage(stdout);
		return EXIT_SUCCESS;
	}
	if (!strcmp(verb, "checkpoint"))
		warn_of_options(argv);
	if (!strcmp(verb, "checkpoint") || !strcmp(verb, "stat"))
		exec_part(argv);
	if (!verifies && strcmp(verb, "restore")) {
		usage(stderr);
		return USAGE;
	}
	argv[1] = argv[0];
	while ((c = getopt_long(argc - 1, argv + 1, "+", options + (verifies ? FOR_RESTORE : 0), NULL)) != -1) {
		switch (c) {
		case DIR:
			dir = optarg;
			break;
		case PLAIN:
			opt.plain = true;
			break;
		case CHECK:
			opt.check = true;
			break;
		case DETACH:
			opt.detach = true;
			break;
		case PRELOAD:
			opt.preload = true;
			break;
		case SET_BACK:
			opt.set_back = true;
			break;
		case VERIFY:
			opt.verify = true;
			break;
		case JSON:
			opt.json = true;
			break;
		case HELP:
			usage(stdout);
			return EXIT_SUCCESS;
		default:
			return USAGE;
		}
	}
	opt.criu = argv + 1 + optind;
	if (opt.detach && opt.verify) {
		fputs("frem restore: --verify ends when all is loaded: not with --detach\n", stderr);
		return USAGE;
	}
	if (!dir || (*opt.criu && (verifies || strcmp(opt.criu[-1], "--")))) {
		usage(stderr);
		return USAGE;
	}
	return verifies ? verify(dir, opt.json) : restore(dir, &opt);
}
