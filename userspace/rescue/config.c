// SPDX-License-Identifier: GPL-2.0-or-later
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#include "config.h"
#include "library.h"
#include "units.h"

#define MS	1000000ull

struct parser {
	const char *path;
	int line, wrong;
	struct point **points, *point;	/* point: of the section */
};

static void wrong(struct parser *p, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A point of which a line is wrong is not what was meant */
static void wrong(struct parser *p, int line, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "rescuectl: %s:%d: ", p->path, line);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	p->wrong++;
	if (p->point)
		p->point->wrong = true;
}

bool value_parse(const char *text, int64_t *value)
{
	const bool negative = *text == '-', hexadecimal = !strncmp(text, "0x", 2) || !strncmp(text, "0X", 2);
	const char *digits = text + (hexadecimal ? 2 : negative);
	unsigned long long number;
	char *end;

	/* A sign or a blank is no digit */
	if (!isxdigit((unsigned char)*digits))
		return false;
	errno = 0;
	number = strtoull(hexadecimal ? text : digits, &end, hexadecimal ? 16 : 10);
	/* The bits of a number without a sign can be said in hexadecimal */
	if (*end || errno || (!hexadecimal && number > (unsigned long long)INT64_MAX + negative))
		return false;
	*value = negative ? -number : number;
	return true;
}

bool burst_parse(const char *text, uint32_t *burst)
{
	uint64_t n;

	if (!unit_parse(text, unit_counts, RESCUE_BURST_MAX, &n) || !n)
		return false;
	*burst = n;
	return true;
}

bool interval_parse(const char *text, uint32_t *interval_ms)
{
	uint64_t ns;

	if (!unit_parse(text, unit_times, UINT32_MAX * MS, &ns) || ns < MS)
		return false;
	*interval_ms = ns / MS;
	return true;
}

static const char *const outputs[] = {
	[RESCUE_GIVE_UP] = "give-up",
	[RESCUE_CORK] = "cork",
	[RESCUE_CASCADE] = "cascade",
};

bool output_parse(const char *text, uint32_t *output)
{
	for (uint32_t i = 0; i < sizeof(outputs) / sizeof(*outputs); i++) {
		if (!strcmp(text, outputs[i])) {
			*output = i;
			return true;
		}
	}
	return false;
}

const char *output_name(uint32_t output)
{
	return outputs[output];
}

bool name_valid(const char *name)
{
	size_t n = 0;

	while (name[n] && isascii((unsigned char)name[n]) && isgraph((unsigned char)name[n]))
		n++;
	return n && !name[n] && n < RESCUE_NAME_MAX;
}

static void set_text(struct parser *p, char **to, const char *name, const char *value)
{
	if (*value)
		*to = strdup(value);
	if (!*to)
		wrong(p, p->line, "%s has no value", name);
}

static void option(struct parser *p, const char *name, const char *value)
{
	enum { BINARY, SYMBOL, BUILD_ID, VALUE, BURST, INTERVAL, DEADLINE, OUTPUT, ERRNO, LIBC, NR };
	static const char *const names[NR] = { "binary", "symbol", "build_id", "value", "burst", "interval", "deadline", "output", "errno", "libc" };
	struct point *point = p->point;
	unsigned int n = 0;

	while (n < NR && strcmp(name, names[n]))
		n++;
	if (n == NR)
		return wrong(p, p->line, "there is no option %s", name);
	if (point->given & 1u << n)
		return wrong(p, p->line, "%s is given twice", name);
	point->given |= 1u << n;
	switch (n) {
	case BINARY:
	case LIBC:
		if (*value != '/')
			return wrong(p, p->line, "%s = %s: not a path that begins with /", name, value);
		return set_text(p, n == BINARY ? &point->binary : &point->libc, name, value);
	case SYMBOL:
		return set_text(p, &point->symbol, name, value);
	case BUILD_ID:
		return set_text(p, &point->build_id, name, value);
	case VALUE:
		point->has_value = value_parse(value, &point->value);
		if (!point->has_value)
			wrong(p, p->line, "value = %s: not a number, as -1 or 0x7f", value);
		break;
	case BURST:
		if (!burst_parse(value, &point->burst))
			wrong(p, p->line, "burst = %s: not a number from 1 to %u", value, RESCUE_BURST_MAX);
		break;
	case INTERVAL:
	case DEADLINE:
		if (!interval_parse(value, n == INTERVAL ? &point->interval_ms : &point->deadline_ms))
			wrong(p, p->line, "%s = %s: not a time from 1ms to 49d (ms, s, m, h, d)", name, value);
		break;
	case OUTPUT:
		if (!output_parse(value, &point->output))
			wrong(p, p->line, "output = %s: not give-up, cork or cascade", value);
		break;
	case ERRNO:
		if (!error_parse(value, &point->error))
			wrong(p, p->line, "errno = %s: not an error, as EIO or 5", value);
	}
}

/* A section that is wrong is a point all the same, so that its lines are read */
static void section(struct parser *p, const char *name)
{
	struct point *same, *point = calloc(1, sizeof(*point));

	p->point = point;
	if (!point)
		return wrong(p, p->line, "%s", strerror(ENOMEM));
	LL_FOREACH(*p->points, same) {
		if (!strcmp(same->name, name))
			break;
	}
	if (!name_valid(name))
		wrong(p, p->line, "[%s]: not a name: up to %u characters without blanks", name, RESCUE_NAME_MAX - 1);
	else if (same)
		wrong(p, p->line, "[%s] is there already, in line %d of %s", name, same->line, same->path);
	else
		strcpy(point->name, name);
	point->path = strdup(p->path);
	point->line = p->line;
	point->burst = DEFAULT_BURST;
	point->interval_ms = DEFAULT_INTERVAL_MS;
	LL_APPEND(*p->points, point);
}

/* Without blanks at its ends */
static char *strip(char *text)
{
	size_t n;

	text += strspn(text, " \t\r\n");
	n = strlen(text);
	while (n && isspace((unsigned char)text[n - 1]))
		text[--n] = 0;
	return text;
}

static void read_line(struct parser *p, char *line)
{
	char *text = strip(line), *value = strchr(text, '=');

	if (!*text || *text == '#' || *text == ';')
		return;
	/* Other programs take it as more of the line before */
	if (text != line)
		return wrong(p, p->line, "begins with a blank: an option is one line");
	if (*text == '[' && text[strlen(text) - 1] == ']') {
		text[strlen(text) - 1] = 0;
		return section(p, text + 1);
	}
	if (!value || value == text)
		return wrong(p, p->line, "not [NAME], nor OPTION = VALUE");
	if (!p->point)
		return wrong(p, p->line, "%s is in no section: [NAME] begins a point", text);
	*value++ = 0;
	option(p, strip(text), strip(value));
}

/* NULL: what is wrong has been said */
static FILE *open_file(const char *path)
{
	/* Of a FIFO it does not wait for who writes to it */
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	const char *why = NULL;
	struct stat st;
	FILE *file;

	if (fd < 0 || fstat(fd, &st))
		why = strerror(errno);
	else if (!S_ISREG(st.st_mode))
		why = "not a regular file";
	/* Who can write it changes what programs return */
	else if ((st.st_uid && st.st_uid != geteuid()) || st.st_mode & 022)
		why = "others can change it: it must be root's or yours, and writable for nobody else";
	file = why ? NULL : fdopen(fd, "r");
	if (file)
		return file;
	fprintf(stderr, "rescuectl: %s: %s\n", path, why ?: strerror(errno));
	if (fd >= 0)
		close(fd);
	return NULL;
}

static int read_file(const char *path, struct point **points)
{
	struct parser p = { .path = path, .points = points };
	FILE *file = open_file(path);
	char *line = NULL;
	size_t size = 0;

	if (!file)
		return 1;
	while (getline(&line, &size, file) >= 0) {
		p.line++;
		read_line(&p, line);
	}
	free(line);
	if (ferror(file))
		wrong(&p, p.line, "%s", strerror(errno));
	fclose(file);
	LL_FOREACH(*points, p.point) {
		if (!p.point->wrong && (!p.point->binary || !p.point->symbol || !p.point->has_value))
			wrong(&p, p.point->line, "[%s] has no %s", p.point->name,
			      !p.point->binary ? "binary" : !p.point->symbol ? "symbol" : "value");
		else if (!p.point->wrong && p.point->libc && !p.point->error)
			wrong(&p, p.point->line, "[%s] has libc, and no errno", p.point->name);
	}
	return p.wrong;
}

static int is_conf(const struct dirent *entry)
{
	const size_t n = strlen(entry->d_name);

	return *entry->d_name != '.' && n > 5 && !strcmp(entry->d_name + n - 5, ".conf");
}

int config_read(const char *path, struct point **points)
{
	struct dirent **entries;
	struct stat st;
	int n, errors = 0;

	if (stat(path, &st) || !S_ISDIR(st.st_mode))
		return read_file(path, points);
	n = scandir(path, &entries, is_conf, alphasort);
	if (n < 0) {
		fprintf(stderr, "rescuectl: %s: %s\n", path, strerror(errno));
		return 1;
	}
	for (int i = 0; i < n; i++) {
		char *file;

		if (asprintf(&file, "%s/%s", path, entries[i]->d_name) < 0)
			return errors + 1;
		errors += read_file(file, points);
		free(file);
		free(entries[i]);
	}
	free(entries);
	return errors;
}

void config_free(struct point *points)
{
	struct point *point, *next;

	LL_FOREACH_SAFE(points, point, next) {
		free(point->binary);
		free(point->symbol);
		free(point->build_id);
		free(point->libc);
		free(point->path);
		free(point);
	}
}
