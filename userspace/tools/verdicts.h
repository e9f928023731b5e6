/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Verdict records of programs, beside the kernel's: files of lines as those of /proc/restart_log, which libreplay and takeoverd write. */
#ifndef VERDICTS_H
#define VERDICTS_H

#include <stdint.h>

/* Of a record; 0 if it says none */
uint64_t verdict_time(const char *line);

/* Each record that is later than @since, file by file. What a terminal would obey has been taken out. */
void verdicts_read(uint64_t since, void (*see)(char *line));

/* Readable when there is something new; -1 if there is nothing to watch. */
int verdicts_watch(void);

#endif
