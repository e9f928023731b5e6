// SPDX-License-Identifier: GPL-2.0-or-later
#include <capstone/capstone.h>
#include <elf.h>
#include <gelf.h>
#include <libelf.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "function.h"

struct finder {
	const char *path, *symbol;
	struct function *function;
	char *error;
	size_t size;
	Elf *elf;
	GElf_Addr address;
};

static int wrong(struct finder *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int wrong(struct finder *f, const char *format, ...)
{
	int n = snprintf(f->error, f->size, "%s: ", f->path);
	va_list args;

	va_start(args, format);
	if (n >= 0 && (size_t)n < f->size)
		vsnprintf(f->error + n, f->size - n, format, args);
	va_end(args);
	return -1;
}

static void read_build_id(struct finder *f, Elf_Scn *section)
{
	Elf_Data *data = elf_getdata(section, NULL);
	size_t at = 0, name, desc;
	GElf_Nhdr note;

	while (data && (at = gelf_getnote(data, at, &note, &name, &desc)) > 0) {
		const uint8_t *bytes = (const uint8_t *)data->d_buf + desc;

		if (note.n_type != NT_GNU_BUILD_ID || note.n_namesz != sizeof("GNU") || memcmp((const char *)data->d_buf + name, "GNU", sizeof("GNU")))
			continue;
		for (unsigned int i = 0; i < note.n_descsz && i < FUNCTION_BUILD_ID / 2; i++)
			sprintf(f->function->build_id + 2 * i, "%02x", bytes[i]);
		return;
	}
}

/* A table of symbols: 1 if it has the function. The local names of two files can be the same: -1 then. */
static int search(struct finder *f, Elf_Scn *section, const GElf_Shdr *header)
{
	Elf_Data *data = elf_getdata(section, NULL);
	int found = 0;
	GElf_Sym symbol;

	for (int i = 0; data && header->sh_entsize && i < (int)(header->sh_size / header->sh_entsize); i++) {
		const char *name;

		if (!gelf_getsym(data, i, &symbol) || GELF_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF)
			continue;
		name = elf_strptr(f->elf, header->sh_link, symbol.st_name);
		if (!name || strcmp(name, f->symbol))
			continue;
		if (found && symbol.st_value != f->address)
			return wrong(f, "more than one function is called %s", f->symbol);
		f->address = symbol.st_value;
		f->function->size = symbol.st_size;
		found = 1;
	}
	return found;
}

static int find_symbol(struct finder *f)
{
	Elf_Scn *section = NULL;
	bool tables = false;
	GElf_Shdr header;
	int found = 0;

	while ((section = elf_nextscn(f->elf, section))) {
		if (!gelf_getshdr(section, &header))
			continue;
		if (header.sh_type == SHT_NOTE)
			read_build_id(f, section);
		/* What is exported is in both */
		if ((header.sh_type == SHT_SYMTAB || header.sh_type == SHT_DYNSYM) && !found) {
			tables |= header.sh_type == SHT_SYMTAB;
			found = search(f, section, &header);
			if (found < 0)
				return found;
		}
	}
	if (found)
		return 0;
	return wrong(f, tables ? "no function %s" : "no function %s is exported, and it has no table of the others: name one that it exports (nm -D %s), or "
		     "install a program that is not stripped", f->symbol, f->path);
}

static int find_offset(struct finder *f)
{
	GElf_Phdr segment;
	size_t n;

	if (elf_getphdrnum(f->elf, &n))
		return wrong(f, "no program headers: %s", elf_errmsg(-1));
	for (size_t i = 0; i < n; i++) {
		if (!gelf_getphdr(f->elf, i, &segment) || segment.p_type != PT_LOAD || !(segment.p_flags & PF_X))
			continue;
		if (f->address >= segment.p_vaddr && f->address - segment.p_vaddr < segment.p_filesz) {
			if (f->function->size > segment.p_filesz - (f->address - segment.p_vaddr))
				break;
			f->function->start = f->address - segment.p_vaddr + segment.p_offset;
			return 0;
		}
	}
	return wrong(f, "%s is not in a part that is executed", f->symbol);
}

/* Adds a place where the function is left; -1: there are too many */
static int leaves(struct finder *f, uint64_t at)
{
	struct function *function = f->function;

	if (function->nr_returns == RESCUE_RETURNS_MAX)
		return wrong(f, "%s is left at more than %u places", f->symbol, RESCUE_RETURNS_MAX);
	function->returns[function->nr_returns++] = at;
	return 0;
}

/*
 * A jump out of it is a call of another function in its place, or goes to a part of it that is kept elsewhere: the stack tells when it is
 * executed. An indirect one that is marked as not to be checked is of a switch.
 */
static int read_instruction(struct finder *f, csh engine, const cs_insn *insn)
{
	const cs_x86 *x86 = &insn->detail->x86;
	struct function *function = f->function;

	if (cs_insn_group(engine, insn, CS_GRP_RET))
		return leaves(f, insn->address);
	if (insn->id != X86_INS_JMP || !x86->op_count)
		return 0;
	if (x86->operands[0].type == X86_OP_IMM) {
		const uint64_t to = x86->operands[0].imm;

		if (to >= function->start && to < function->start + function->size)
			return 0;
	} else if (insn->bytes[0] == 0x3e) {
		return 0;
	}
	function->tails++;
	return leaves(f, insn->address);
}

static int read_code(struct finder *f, const uint8_t *code)
{
	static const uint8_t endbr64[] = { 0xf3, 0x0f, 0x1e, 0xfa };
	struct function *function = f->function;
	const uint8_t *at = code;
	size_t left = function->size;
	uint64_t address = function->start;
	csh engine;
	cs_insn *insn;
	int error = 0;

	if (cs_open(CS_ARCH_X86, CS_MODE_64, &engine))
		return wrong(f, "no disassembler");
	cs_option(engine, CS_OPT_DETAIL, CS_OPT_ON);
	insn = cs_malloc(engine);
	function->entry = function->start;
	/* The kernel executes what is behind it without a trap more */
	if (left > sizeof(endbr64) && !memcmp(code, endbr64, sizeof(endbr64)))
		function->entry += sizeof(endbr64);
	while (!error && left) {
		if (cs_disasm_iter(engine, &at, &left, &address, insn))
			error = read_instruction(f, engine, insn);
		else
			error = wrong(f, "%s+0x%zx is not an instruction that is known", f->symbol, (size_t)(at - code));
	}
	cs_free(insn, 1);
	cs_close(&engine);
	if (!error && !function->nr_returns)
		error = wrong(f, "%s never returns", f->symbol);
	return error;
}

/* The file itself; 0 or -1 */
static int open_file(struct finder *f, int fd)
{
	GElf_Ehdr header;

	elf_version(EV_CURRENT);
	f->elf = elf_begin(fd, ELF_C_READ_MMAP, NULL);
	if (!f->elf || elf_kind(f->elf) != ELF_K_ELF || !gelf_getehdr(f->elf, &header))
		return wrong(f, "not a program or a library");
	if (header.e_machine != EM_X86_64 || gelf_getclass(f->elf) != ELFCLASS64)
		return wrong(f, "not a program of x86-64");
	return 0;
}

/* What is left when the symbol is known; NULL, or its code, to be freed */
static uint8_t *find_code(struct finder *f, int fd)
{
	struct function *function = f->function;
	uint8_t *code;

	if (find_offset(f))
		return NULL;
	if (!function->size) {
		wrong(f, "the size of %s is not known", f->symbol);
		return NULL;
	}
	code = malloc(function->size);
	if (!code || pread(fd, code, function->size, function->start) != (ssize_t)function->size) {
		wrong(f, "%s cannot be read", f->symbol);
	} else if (!read_code(f, code)) {
		return code;
	}
	free(code);
	return NULL;
}

int function_find(int fd, const char *path, const char *symbol, struct function *function, char *error, size_t size)
{
	struct finder f = { .path = path, .symbol = symbol, .function = function, .error = error, .size = size };
	uint8_t *code = NULL;
	bool found;

	memset(function, 0, sizeof(*function));
	if (!open_file(&f, fd) && !find_symbol(&f))
		code = find_code(&f, fd);
	found = code;
	elf_end(f.elf);
	free(code);
	return found ? 0 : -1;
}

static void each_symbol(struct finder *f, int fd, Elf_Scn *section, const GElf_Shdr *header, function_visit *visit, void *arg)
{
	Elf_Data *data = elf_getdata(section, NULL);
	GElf_Sym symbol;

	for (int i = 0; data && header->sh_entsize && i < (int)(header->sh_size / header->sh_entsize); i++) {
		uint8_t *code;

		if (!gelf_getsym(data, i, &symbol) || GELF_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF)
			continue;
		memset(f->function, 0, sizeof(*f->function));
		f->symbol = elf_strptr(f->elf, header->sh_link, symbol.st_name);
		f->address = symbol.st_value;
		f->function->size = symbol.st_size;
		code = f->symbol ? find_code(f, fd) : NULL;
		if (code)
			visit(f->symbol, f->function, code, arg);
		free(code);
	}
}

int function_each(int fd, const char *path, function_visit *visit, void *arg, char *error, size_t size)
{
	struct function function;
	struct finder f = { .path = path, .function = &function, .error = error, .size = size };
	Elf_Scn *section = NULL, *table = NULL;
	GElf_Shdr header, best = { };
	int ret = open_file(&f, fd);

	while (!ret && (section = elf_nextscn(f.elf, section))) {
		if (!gelf_getshdr(section, &header) || (header.sh_type != SHT_SYMTAB && (header.sh_type != SHT_DYNSYM || table)))
			continue;
		/* What is exported is in both */
		table = section;
		best = header;
	}
	if (!ret && !table)
		ret = wrong(&f, "no symbols");
	if (!ret)
		each_symbol(&f, fd, table, &best, visit, arg);
	elf_end(f.elf);
	return ret;
}
