// SPDX-License-Identifier: GPL-2.0-or-later
#include "facts.h"

#include <err.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <perdure.h>

#include "words.h"

/* Parts that end with one of @ends, each a key and a value with @between between them. */
static int split(char *text, const char *ends, const char *between, struct pair *pairs, int max)
{
	int n = 0;

	for (char *part = strtok(text, ends); part && n < max; part = strtok(NULL, ends)) {
		char *at = strstr(part, between);

		if (!at)
			continue;
		*at = 0;
		pairs[n++] = (struct pair){ part, at + strlen(between) };
	}
	return n;
}

int split_record(char *line, struct pair *pairs, int max)
{
	return split(line, " \n", "=", pairs, max);
}

int split_lines(char *text, struct pair *pairs, int max)
{
	return split(text, "\n", ":\t", pairs, max);
}

const char *value_of(const struct pair *pairs, int n, const char *key)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(pairs[i].key, key))
			return pairs[i].value;
	return "-";
}

char *bytes_of(const char *value)
{
	char *bytes = strdup(value), *to = bytes;

	if (!bytes)
		err(FAILED, "reading");
	while (*value)
		value = unescape(value, (unsigned char *)to++);
	*to = 0;
	return bytes;
}

/* ---- UTF-8 ---- */

/* The length of the character that begins here, and which it is; 0: none does. */
static int utf8(const char *text, uint32_t *c)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const unsigned char *s = (const unsigned char *)text;
	int n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;

	*c = n == 1 ? s[0] : s[0] & (0x7f >> n);
	for (int i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		*c = *c << 6 | (s[i] & 0x3f);
	}
	return n > 1 && (*c < least[n] || *c > 0x10ffff || (*c >= 0xd800 && *c < 0xe000)) ? 0 : n;
}

/* Neither obeyed by a terminal, nor invisible, nor such that it turns others round */
static bool is_visible(uint32_t c)
{
	return (c >= ' ' && c < 0x7f) || (c >= 0xa0 && c != 0xad && !(c >= 0x200b && c <= 0x200f) && !(c >= 0x2028 && c <= 0x202e) &&
					  !(c >= 0x2060 && c <= 0x206f) && c != 0xfeff && !(c >= 0xfff0 && c <= 0xfffb) && c < 0xe0000);
}

void print_name(FILE *to, const char *bytes)
{
	uint32_t c;
	int n;

	for (; *bytes; bytes += n ? n : 1) {
		n = utf8(bytes, &c);
		if (n && is_visible(c))
			fwrite(bytes, 1, n, to);
		else
			putc('?', to);
	}
}

void print_text(FILE *to, const char *value)
{
	while (*value) {
		const char *rest = value;
		char bytes[5] = "";
		uint32_t c;
		int n, i;

		/* At most four bytes are a character */
		for (i = 0; i < 4 && *rest; i++)
			rest = unescape(rest, (unsigned char *)&bytes[i]);
		n = utf8(bytes, &c);
		if (*value == '\\' && n > 1 && is_visible(c)) {
			fwrite(bytes, 1, n, to);
			for (i = 0; i < n; i++)
				value = unescape(value, (unsigned char *)bytes);
		} else {
			putc(*value++, to);
		}
	}
}

/* ---- JSON ---- */

/* Text is UTF-8. Names are bytes: what is none of it is U+FFFD. */
static void print_json_text(const char *bytes)
{
	uint32_t c;
	int n;

	for (; *bytes; bytes += n ? n : 1) {
		n = utf8(bytes, &c);
		if (!n)
			printf("\\ufffd");
		else if (c == '"' || c == '\\')
			printf("\\%c", (int)c);
		else if (c < ' ' || (c >= 0x7f && c < 0xa0))
			printf("\\u%04" PRIx32, c);
		else
			fwrite(bytes, 1, n, stdout);
	}
}

/* To the end of the string, or to the next space where that ends it. */
static const char *print_json_string(const char *s, bool to_space)
{
	size_t len = to_space ? strcspn(s, " ") : strlen(s);
	char *part = strndup(s, len), *bytes;

	if (!part)
		err(FAILED, "JSON");
	bytes = bytes_of(part);
	putchar('"');
	print_json_text(bytes);
	putchar('"');
	free(bytes);
	free(part);
	return s + len;
}

/* A number of JSON: digits, without a leading 0. */
static bool is_number(const char *s)
{
	s += *s == '-';
	if (!*s || (*s == '0' && s[1]))
		return false;
	return strspn(s, "0123456789") == strlen(s);
}

static bool is_one_of(const char *key, const char *const *keys)
{
	while (*keys && strcmp(key, *keys))
		keys++;
	return *keys;
}

static void print_value(const struct pair *p)
{
	static const char *const texts[] = { "comm", "path", "cgroup", "unit", NULL };
	/* Moments: in ns, they are more than what a program that reads numbers as doubles can tell apart */
	static const char *const moments[] = { "time_ns", "mono_ns", "fault_time_ns", NULL };
	bool policy = !strcmp(p->key, "policy");
	const char *s = p->value;

	if (policy && !strcmp(s, "-")) {
		printf("[]");
	} else if (policy || !strcmp(p->key, "argv")) {
		/* A space is always between two, of which each may be empty */
		putchar('[');
		while (*(s = print_json_string(s, true))) {
			printf(", ");
			s++;
		}
		putchar(']');
	} else if (!is_one_of(p->key, texts) && !is_one_of(p->key, moments) && is_number(s)) {
		printf("%s", s);
	} else {
		print_json_string(s, false);
	}
}

void print_object(long pid, const char *comm, const struct pair *pairs, int n)
{
	putchar('{');
	if (pid) {
		/* /proc/PID/comm escapes nothing */
		printf("\"pid\": %ld, \"comm\": \"", pid);
		print_json_text(comm);
		putchar('"');
	}
	for (int i = 0; i < n; i++) {
		printf("%s\"", i || pid ? ", " : "");
		print_json_text(pairs[i].key);
		printf("\": ");
		print_value(&pairs[i]);
	}
	putchar('}');
}

/* ---- the rest ---- */

void print_span(FILE *to, uint64_t ns)
{
	const uint64_t s = ns / 1000000000;

	if (ns < 10000000)
		fprintf(to, "%" PRIu64 " us", ns / 1000);
	else if (s < 1)
		fprintf(to, "%" PRIu64 " ms", ns / 1000000);
	else if (s < 120)
		fprintf(to, "%" PRIu64 ".%" PRIu64 " s", s, ns / 100000000 % 10);
	else if (s < 7200)
		fprintf(to, "%" PRIu64 " min", s / 60);
	else if (s < 2 * 86400)
		fprintf(to, "%" PRIu64 " h", s / 3600);
	else
		fprintf(to, "%" PRIu64 " days", s / 86400);
}

char *unit_of(const char *cgroup)
{
	char *path = strdup(cgroup), *unit = NULL;

	if (!path)
		err(FAILED, "control group");
	for (char *part = strtok(path, "/"); part; part = strtok(NULL, "/")) {
		const char *dot = strrchr(part, '.');

		if (dot && !strcmp(dot, ".slice"))
			continue;
		/* What is below is the unit's own, and may be called like another */
		if (dot && (!strcmp(dot, ".service") || !strcmp(dot, ".scope")))
			unit = strdup(part);
		break;
	}
	free(path);
	return unit;
}

void explain(void)
{
	int version = perdure_abi_version();

	if (version < 0 && errno == ENOSYS)
		errx(FAILED, "this kernel has no zero-loss restart: boot a Perdure kernel (uname -r: ...-perdure)");
	if (version < 0 && errno == EOPNOTSUPP)
		errx(FAILED, "it is switched off: sysctl kernel.restart.enabled=1");
	if (version < 0)
		err(FAILED, "a seccomp filter forbids our system calls: run this outside of the sandbox, or allow 500 to 506");
}

void must_tell(const char *path)
{
	if (access("/proc/self", F_OK))
		errx(FAILED, "/proc is not mounted: mount -t proc proc /proc");
	if (!access(path, F_OK)) {
		if (perdure_abi_version() < 0 && errno == EOPNOTSUPP)
			warnx("it is switched off, and faults kill: sysctl kernel.restart.enabled=1");
		return;
	}
	explain();
	errx(FAILED, "this kernel does not tell (no %s): it is older than this program", path);
}
