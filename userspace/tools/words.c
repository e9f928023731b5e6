// SPDX-License-Identifier: GPL-2.0-or-later
#include "words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *unescape(const char *s, unsigned char *c)
{
	if (s[0] == '\\' && strspn(s + 1, "01234567") >= 3) {
		*c = (s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0');
		return s + 4;
	}
	*c = *s;
	return s + 1;
}

char *absolute(const char *path)
{
	char *cwd, *full = NULL;

	if (*path == '/')
		return strdup(path);
	cwd = getcwd(NULL, 0);
	if (!cwd || asprintf(&full, "%s/%s", cwd, path) < 0)
		full = NULL;
	free(cwd);
	return full;
}
