// SPDX-License-Identifier: GPL-2.0-or-later
#include <dlfcn.h>
#include <errno.h>
#include <gelf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "function.h"
#include "library.h"

#define ERROR_MAX	4095

/* Of two names for one, strerrorname_np() knows the other */
static const struct {
	const char *name;
	uint32_t error;
} aliases[] = { { "EWOULDBLOCK", EWOULDBLOCK }, { "ENOTSUP", ENOTSUP }, { "EDEADLOCK", EDEADLOCK } };

bool error_parse(const char *text, uint32_t *error)
{
	unsigned long number;
	char *end;

	for (size_t i = 0; i < sizeof(aliases) / sizeof(*aliases); i++) {
		if (!strcmp(aliases[i].name, text)) {
			*error = aliases[i].error;
			return true;
		}
	}
	for (int i = 1; i <= ERROR_MAX; i++) {
		const char *name = strerrorname_np(i);

		if (name && !strcmp(name, text)) {
			*error = i;
			return true;
		}
	}
	if (*text < '0' || *text > '9')
		return false;
	number = strtoul(text, &end, 10);
	*error = number;
	return !*end && number && number <= ERROR_MAX;
}

/* What is in the next section of that type behind *@section, which becomes that one; NULL: there is none */
static Elf_Data *next_data(Elf *elf, GElf_Word type, Elf_Scn **section, GElf_Shdr *header)
{
	Elf_Data *data = NULL;

	while (!data && (*section = elf_nextscn(elf, *section))) {
		if (gelf_getshdr(*section, header) && header->sh_type == type)
			data = elf_getdata(*section, NULL);
	}
	return data;
}

/* Where errno is among the library's variables of a thread */
static bool find_errno(Elf *elf, GElf_Addr *value)
{
	Elf_Scn *section = NULL;
	GElf_Shdr header;
	GElf_Sym symbol;
	Elf_Data *data;

	while ((data = next_data(elf, SHT_DYNSYM, &section, &header))) {
		for (int i = 0; gelf_getsym(data, i, &symbol); i++) {
			const char *name = elf_strptr(elf, header.sh_link, symbol.st_name);

			if (name && !strcmp(name, "errno") && GELF_ST_TYPE(symbol.st_info) == STT_TLS && symbol.st_shndx != SHN_UNDEF) {
				*value = symbol.st_value;
				return true;
			}
		}
	}
	return false;
}

/* Where the loader of a program notes how far that variable is from the thread pointer. The library's own have no symbol there. */
static bool find_word(Elf *elf, GElf_Addr value, uint64_t *at)
{
	Elf_Scn *section = NULL;
	GElf_Shdr header;
	GElf_Rela rela;
	Elf_Data *data;

	while ((data = next_data(elf, SHT_RELA, &section, &header))) {
		for (int i = 0; gelf_getrela(data, i, &rela); i++) {
			if (GELF_R_TYPE(rela.r_info) == R_X86_64_TPOFF64 && !GELF_R_SYM(rela.r_info) && (GElf_Addr)rela.r_addend == value)
				return file_offset(elf, rela.r_offset, sizeof(uint64_t), PF_W, at);
		}
	}
	return false;
}

/* The C library that we have ourselves, as most programs of a system have; NULL: not known */
static const char *own_library(void)
{
	Dl_info info;

	return dladdr((const void *)__errno_location, &info) && *info.dli_fname == '/' ? info.dli_fname : NULL;
}

static bool read_library(struct library *library)
{
	GElf_Addr value;
	GElf_Ehdr header;
	bool found;
	Elf *elf;

	elf_version(EV_CURRENT);
	elf = elf_begin(library->fd, ELF_C_READ, NULL);
	found = elf && elf_kind(elf) == ELF_K_ELF && gelf_getehdr(elf, &header) && header.e_machine == EM_X86_64 &&
		gelf_getclass(elf) == ELFCLASS64 && find_errno(elf, &value) && find_word(elf, value, &library->errno_at);
	elf_end(elf);
	return found;
}

static const struct library *library_find(const char *path)
{
	static struct library *libraries;
	struct library *library;

	path = path ?: own_library();
	if (!path) {
		fputs("rescuectl: where this program's own C library is cannot be told: name that of the programs, by --libc or libc\n", stderr);
		return NULL;
	}
	LL_FOREACH(libraries, library) {
		if (!strcmp(library->path, path))
			return library;
	}
	library = calloc(1, sizeof(*library));
	if (!library || !(library->path = strdup(path)))
		abort();
	library->fd = function_open(path);
	if (library->fd >= 0 && read_library(library)) {
		LL_PREPEND(libraries, library);
		return library;
	}
	if (library->fd >= 0) {
		fprintf(stderr, "rescuectl: %s: it does not tell where errno is: name the programs' C library, one of GNU\n", path);
		close(library->fd);
	}
	free(library->path);
	free(library);
	return NULL;
}

const struct library *library_of(const struct point *point)
{
	return point->error ? library_find(point->libc) : NULL;
}
