/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Verdict records of programs, beside the kernel's: files of lines as those of /proc/restart_log, which libreplay, takeoverd and keepers write. */
#ifndef VERDICTS_H
#define VERDICTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Of a record; 0 if it says none */
uint64_t verdict_time(const char *line);

/*
 * Each record that has come since the last call, file by file, and whether root has written it: others may write what they like.
 * What a terminal would obey has been taken out.
 */
void verdicts_read(void (*see)(char *line, bool of_root));

/* How far each file has been read, for another process of this boot, which goes on from there. */
void verdicts_save(FILE *to);
void verdicts_load(FILE *from);

/* Where the keepers of perdurectl run write */
#define KEEPERS	"/run/perdure"

/* Readable when there is something new; -1 if there is nothing to watch, and nothing to be waited for. */
int verdicts_watch(bool wait);

/* After that: directories that have come since are watched, too. */
bool verdicts_watch_more(int fd);

#endif
