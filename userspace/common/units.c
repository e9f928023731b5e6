// SPDX-License-Identifier: LGPL-2.1-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "units.h"

units unit_sizes = { { "", "1" }, { "k", "1024" }, { "M", "1048576" }, { "G", "1073741824" }, { NULL } };
units unit_times = { { "ms", "1000000" }, { "s", "1000000000" }, { "m", "60000000000" }, { "h", "3600000000000" },
		     { "d", "86400000000000" }, { NULL } };
units unit_counts = { { "", "1" }, { NULL } };

bool unit_parse(const char *text, units of, uint64_t max, uint64_t *value)
{
	char *end;
	unsigned int i;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*value = strtoull(text, &end, 10);
	if (errno)
		return false;
	while (*end == ' ')
		end++;
	for (i = 0; of[i][0]; i++) {
		uint64_t factor = strtoull(of[i][1], NULL, 10);

		if (!strcmp(end, of[i][0])) {
			if (*value > max / factor)
				return false;
			*value *= factor;
			return true;
		}
	}
	return false;
}
