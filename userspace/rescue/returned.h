/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What a function returns when it fails, as far as its code and its debug information tell */
#ifndef RESCUE_RETURNED_H
#define RESCUE_RETURNED_H

#include <stdbool.h>
#include <stdint.h>

#include "function.h"

/* RETURNS_OTHER is no error as far as the type tells: nothing, a truth value, a character. RETURNS_ELSEWHERE is not in rax alone. */
enum returned_type { RETURNS_UNKNOWN, RETURNS_NUMBER, RETURNS_POINTER, RETURNS_OTHER, RETURNS_ELSEWHERE };

/* Types of the functions of a file; NULL: no debug information of it is found */
struct returned_types *returned_types_read(const char *path);
enum returned_type returned_type(const struct returned_types *types, const char *symbol);
void returned_types_free(struct returned_types *types);

/* Of one function, by what is on this machine. @path: where the file is that @fd is, or is a copy of. */
enum returned_type returned_type_find(int fd, const char *path, const struct function *function);

/* false: no constant that would be an error. *@places: at how many places it begins to be the result. */
bool returned_error(const struct function *function, const uint8_t *code, enum returned_type type, int64_t *value, unsigned int *places);

#endif
