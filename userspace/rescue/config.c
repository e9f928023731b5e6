// SPDX-License-Identifier: GPL-2.0-or-later
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#include "config.h"
#include "units.h"

#define MS	1000000ull

struct parser {
	const char *path;
	FILE *file;
	int line, wrong;
	struct point **points, *first;	/* first: of this file */
};

static int wrong(struct parser *p, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Returns what tells the library to go on: all that is wrong is said */
static int wrong(struct parser *p, int line, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "rescuectl: %s:%d: ", p->path, line);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	p->wrong++;
	return 1;
}

bool value_parse(const char *text, int64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoll(text, &end, 0);
	return end != text && !*end && !errno && !isspace((unsigned char)*text);
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

static int set_text(struct parser *p, char **to, const char *name, const char *value)
{
	if (*to)
		return wrong(p, p->line, "%s is given twice", name);
	if (!*value)
		return wrong(p, p->line, "%s has no value", name);
	*to = strdup(value);
	return *to != NULL;
}

static int option(struct parser *p, struct point *point, const char *name, const char *value)
{
	if (!strcmp(name, "binary")) {
		if (*value != '/')
			return wrong(p, p->line, "binary = %s: not a path that begins with /", value);
		return set_text(p, &point->binary, name, value);
	}
	if (!strcmp(name, "symbol"))
		return set_text(p, &point->symbol, name, value);
	if (!strcmp(name, "build_id"))
		return set_text(p, &point->build_id, name, value);
	if (!strcmp(name, "value")) {
		if (point->has_value)
			return wrong(p, p->line, "value is given twice");
		point->has_value = value_parse(value, &point->value);
		return point->has_value ? 1 : wrong(p, p->line, "value = %s: not a number, as -1 or 0x7f", value);
	}
	if (!strcmp(name, "burst"))
		return burst_parse(value, &point->burst) ? 1 :
		       wrong(p, p->line, "burst = %s: not a number from 1 to %u", value, RESCUE_BURST_MAX);
	if (!strcmp(name, "interval"))
		return interval_parse(value, &point->interval_ms) ? 1 :
		       wrong(p, p->line, "interval = %s: not a time from 1ms to 49d (ms, s, m, h, d)", value);
	if (!strcmp(name, "deadline"))
		return interval_parse(value, &point->deadline_ms) ? 1 :
		       wrong(p, p->line, "deadline = %s: not a time from 1ms to 49d (ms, s, m, h, d)", value);
	if (!strcmp(name, "output"))
		return output_parse(value, &point->output) ? 1 :
		       wrong(p, p->line, "output = %s: not give-up, cork or cascade", value);
	return wrong(p, p->line, "there is no option %s", name);
}

static int handle(void *user, const char *section, const char *name, const char *value)
{
	struct parser *p = user;
	struct point *point;

	if (!*section)
		return wrong(p, p->line, "%s is in no section: [NAME] begins a point", name);
	LL_FOREACH(*p->points, point) {
		if (!strcmp(point->name, section))
			break;
	}
	if (!point) {
		if (!name_valid(section))
			return wrong(p, p->line, "[%s]: not a name: up to %u characters without blanks", section, RESCUE_NAME_MAX - 1);
		point = calloc(1, sizeof(*point));
		if (!point)
			return 0;
		strcpy(point->name, section);
		point->burst = DEFAULT_BURST;
		point->interval_ms = DEFAULT_INTERVAL_MS;
		LL_APPEND(*p->points, point);
		if (!p->first)
			p->first = point;
	}
	return option(p, point, name, value);
}

/* The library does not tell the line */
static char *next_line(char *text, int size, void *user)
{
	struct parser *p = user;

	if (!fgets(text, size, p->file))
		return NULL;
	p->line++;
	if (!strchr(text, '\n') && !feof(p->file)) {
		wrong(p, p->line, "longer than %d characters", size - 2);
		while (fgets(text, size, p->file) && !strchr(text, '\n'))
			;
		*text = 0;
	}
	return text;
}


static int read_file(const char *path, struct point **points)
{
	struct parser p = { .path = path, .points = points };
	struct point *point;
	struct stat st;
	int line;

	p.file = fopen(path, "re");
	if (!p.file || fstat(fileno(p.file), &st)) {
		fprintf(stderr, "rescuectl: %s: %s\n", path, strerror(errno));
		if (p.file)
			fclose(p.file);
		return 1;
	}
	/* Who can write it changes what programs return */
	if ((st.st_uid && st.st_uid != geteuid()) || st.st_mode & 022) {
		fprintf(stderr, "rescuectl: %s: others can change it: it must be root's or yours, and writable for nobody else\n", path);
		fclose(p.file);
		return 1;
	}
	line = ini_parse_stream(next_line, &p, handle, &p);
	if (line)
		wrong(&p, line > 0 ? line : p.line, "not [NAME], nor OPTION = VALUE");
	fclose(p.file);
	LL_FOREACH(p.first, point) {
		if (!point->binary || !point->symbol || !point->has_value)
			wrong(&p, p.line, "[%s] has no %s", point->name, !point->binary ? "binary" : !point->symbol ? "symbol" : "value");
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
		free(point);
	}
}
