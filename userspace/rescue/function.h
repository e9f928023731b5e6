/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Where a function of a program begins and where it is left */
#ifndef RESCUE_FUNCTION_H
#define RESCUE_FUNCTION_H

#include <gelf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <perdure/rescue.h>

#define FUNCTION_BUILD_ID	40	/* hexadecimal digits that are kept */

struct function {
	uint64_t entry;			/* in the file, in bytes: behind the mark of an indirect branch, unless it jumps there itself */
	uint64_t address;		/* as the file says it */
	uint64_t start;			/* its first byte, and how many there are */
	uint64_t size;
	uint64_t returns[RESCUE_RETURNS_MAX];
	unsigned int nr_returns;
	unsigned int tails;		/* of these, jumps to other functions */
	char build_id[FUNCTION_BUILD_ID + 1];	/* empty: it has none */
};

/* Without links, to be freed; as it is if that was another file, as of one in /proc/PID/root. NULL and errno: there is none */
char *file_path(const char *path);

/* Opens a file that may be a program; -1: what is wrong has been said */
int function_open(const char *path);

/* Where in the file these addresses are, in a part with these rights */
bool file_offset(Elf *elf, GElf_Addr address, uint64_t size, GElf_Word rights, uint64_t *offset);

/* 0, or -1: what is wrong has been said */
int function_find(int fd, const char *path, const char *symbol, struct function *function);

/* Needs the file itself a library that encrypts what it sends? Its name, to be freed; NULL: none that is known. */
char *function_encrypts(int fd);

/* Visits each one that a point can be set at by its name, in the order of these */
typedef void function_visit(const char *symbol, const struct function *function, const uint8_t *code, void *arg);

/* 0, or -1: what is wrong has been said */
int function_each(int fd, const char *path, function_visit *visit, void *arg);

#endif
