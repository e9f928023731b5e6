// SPDX-License-Identifier: GPL-2.0-or-later
#include <capstone/capstone.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <gelf.h>
#include <inttypes.h>
#include <libelf.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "function.h"

struct finder {
	const char *path, *symbol;
	struct function *function;
	bool quiet;
	int fd;
	Elf *elf;
	csh engine;
	GElf_Addr address;
	bool found;	/* these are of it */
	/* A part that is seldom executed, and that the compiler has put elsewhere; of size 0: none */
	GElf_Addr cold_address;
	uint64_t cold_start, cold_size;
	/* A jump goes to its first byte, or behind the mark there */
	bool again, again_behind;
};

static int wrong(struct finder *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int wrong(struct finder *f, const char *format, ...)
{
	va_list args;

	if (f->quiet)
		return -1;
	fprintf(stderr, "rescuectl: %s: ", f->path);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
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

/* Of what is exported: which are for programs that were linked long ago */
static Elf_Data *find_versions(struct finder *f)
{
	Elf_Scn *section = NULL;
	GElf_Shdr header;

	while ((section = elf_nextscn(f->elf, section))) {
		if (gelf_getshdr(section, &header) && header.sh_type == SHT_GNU_versym)
			return elf_getdata(section, NULL);
	}
	return NULL;
}

/*
 * A table of symbols. Of a function that is exported, the other table has the part elsewhere. The local names of two files can be the same:
 * -1 then.
 */
static int search(struct finder *f, Elf_Scn *section, const GElf_Shdr *header)
{
	Elf_Data *data = elf_getdata(section, NULL), *versions = header->sh_type == SHT_DYNSYM ? find_versions(f) : NULL;
	const size_t length = strlen(f->symbol);
	bool found = false, found_old = false, chosen = false, twice = false, other = false;
	GElf_Sym symbol, cold = { };

	for (int i = 0; data && header->sh_entsize && i < (int)(header->sh_size / header->sh_entsize); i++) {
		GElf_Versym version = 0;
		const char *name;
		bool old;

		if (!gelf_getsym(data, i, &symbol) || symbol.st_shndx == SHN_UNDEF)
			continue;
		name = elf_strptr(f->elf, header->sh_link, symbol.st_name);
		if (!name || strncmp(name, f->symbol, length))
			continue;
		if (!strcmp(name + length, ".cold"))
			cold = symbol;
		other |= f->found && !name[length] && GELF_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_value != f->address;
		if (name[length] || f->found)
			continue;
		old = versions && gelf_getversym(versions, i, &version) && version & 0x8000;
		chosen |= GELF_ST_TYPE(symbol.st_info) == STT_GNU_IFUNC && !old;
		if (GELF_ST_TYPE(symbol.st_info) != STT_FUNC || (found && old && !found_old))
			continue;
		twice = found && old == found_old && (twice || symbol.st_value != f->address);
		f->address = symbol.st_value;
		f->function->size = symbol.st_size;
		found = true;
		found_old = old;
	}
	if (chosen && (!found || found_old))
		return wrong(f, "%s is one of several functions, chosen at each start of a program: name that one", f->symbol);
	if (twice)
		return wrong(f, "more than one function is called %s", f->symbol);
	f->found |= found;
	/* It may be that of a local one of the same name */
	if (cold.st_size && !other) {
		f->cold_address = cold.st_value;
		f->cold_size = cold.st_size;
	}
	return 0;
}

static int find_symbol(struct finder *f)
{
	Elf_Scn *section = NULL;
	bool tables = false;
	GElf_Shdr header;

	while ((section = elf_nextscn(f->elf, section))) {
		if (!gelf_getshdr(section, &header))
			continue;
		if (header.sh_type == SHT_NOTE)
			read_build_id(f, section);
		tables |= header.sh_type == SHT_SYMTAB;
		if ((header.sh_type == SHT_SYMTAB || header.sh_type == SHT_DYNSYM) && search(f, section, &header))
			return -1;
	}
	if (f->found)
		return 0;
	return wrong(f, tables ? "no function %s" : "no function %s is exported, and it has no table of the others: name one that it exports (nm -D %s), or "
		     "install a program that is not stripped", f->symbol, f->path);
}

bool file_offset(Elf *elf, GElf_Addr address, uint64_t size, GElf_Word rights, uint64_t *offset)
{
	GElf_Phdr segment;
	size_t n;

	if (elf_getphdrnum(elf, &n))
		return false;
	for (size_t i = 0; i < n; i++) {
		if (!gelf_getphdr(elf, i, &segment) || segment.p_type != PT_LOAD || (segment.p_flags & rights) != rights)
			continue;
		if (address >= segment.p_vaddr && address - segment.p_vaddr < segment.p_filesz) {
			*offset = address - segment.p_vaddr + segment.p_offset;
			return size <= segment.p_filesz - (address - segment.p_vaddr);
		}
	}
	return false;
}

/* The kernel puts no breakpoint on these */
static bool is_refused(const cs_insn *insn)
{
	const uint8_t *prefix = insn->detail->x86.prefix;

	return prefix[0] == X86_PREFIX_LOCK || prefix[1] == X86_PREFIX_CS || prefix[1] == X86_PREFIX_SS || prefix[1] == X86_PREFIX_DS ||
	       prefix[1] == X86_PREFIX_ES;
}

/* Adds a place where the function is left; -1: it cannot be */
static int leaves(struct finder *f, const cs_insn *insn)
{
	struct function *function = f->function;

	if (function->nr_returns == RESCUE_RETURNS_MAX)
		return wrong(f, "%s is left at more than %u places", f->symbol, RESCUE_RETURNS_MAX);
	if (is_refused(insn))
		return wrong(f, "%s is left at 0x%" PRIx64 ", where there can be no breakpoint", f->symbol, insn->address);
	function->returns[function->nr_returns++] = insn->address;
	return 0;
}

static bool is_within(const struct finder *f, uint64_t offset)
{
	return (offset >= f->function->start && offset - f->function->start < f->function->size) ||
	       (offset >= f->cold_start && offset - f->cold_start < f->cold_size);
}

/* A table of addresses, as a switch has in a program that is always at the same place: is the first one in the function? */
static bool is_table(struct finder *f, const cs_x86_op *mem)
{
	uint64_t offset, address;

	return mem->type == X86_OP_MEM && mem->mem.base == X86_REG_INVALID && mem->mem.index != X86_REG_INVALID && mem->mem.scale == 8 &&
	       file_offset(f->elf, (int32_t)mem->mem.disp, sizeof(address), PF_R, &offset) &&
	       pread(f->fd, &address, sizeof(address), offset) == sizeof(address) &&
	       address >= f->address && address - f->address < f->function->size;
}

/*
 * Which registers are an address of a switch: it was in a table, or is where the table is and a number of 32 bits that was in it. That of
 * a function is never such a sum.
 */
static void follow(struct finder *f, const cs_insn *insn, bool *switched)
{
	const cs_x86_op *to = &insn->detail->x86.operands[0], *from = &insn->detail->x86.operands[1];

	if (cs_insn_group(f->engine, insn, CS_GRP_CALL))
		memset(switched, 0, X86_REG_ENDING);
	else if (insn->id == X86_INS_CDQE)
		switched[X86_REG_RAX] = true;
	if (!insn->detail->x86.op_count || to->type != X86_OP_REG || !(to->access & CS_AC_WRITE))
		return;
	if (insn->id == X86_INS_ADD && from->type == X86_OP_REG)
		switched[to->reg] |= switched[from->reg];
	else if (insn->id == X86_INS_MOV && from->type == X86_OP_REG)
		switched[to->reg] = switched[from->reg];
	else
		switched[to->reg] = insn->id == X86_INS_MOVSXD || (insn->id == X86_INS_MOV && is_table(f, from));
}

/*
 * A jump out of it is a call of another function in its place, or goes to a part of it that is kept elsewhere: the stack tells when it is
 * executed. An indirect one may be of a switch: it is marked as not to be checked, or its address comes from a table.
 */
static int read_jump(struct finder *f, const cs_insn *insn, const bool *switched)
{
	const cs_x86_op *to = &insn->detail->x86.operands[0];
	struct function *function = f->function;

	if (to->type == X86_OP_IMM) {
		f->again |= (uint64_t)to->imm == function->start;
		f->again_behind |= (uint64_t)to->imm == function->entry;
	}
	if (insn->id != X86_INS_JMP)
		return 0;
	if (to->type == X86_OP_IMM ? is_within(f, to->imm) :
	    insn->bytes[0] == X86_PREFIX_DS || is_table(f, to) || (to->type == X86_OP_REG && switched[to->reg]))
		return 0;
	function->tails++;
	return leaves(f, insn);
}

/* A part of it; 0 or -1 */
static int read_part(struct finder *f, const uint8_t *code, uint64_t start, size_t size)
{
	bool switched[X86_REG_ENDING] = { };
	const uint8_t *at = code;
	uint64_t address = start;
	cs_insn *insn = cs_malloc(f->engine);
	size_t left = size;
	int error = 0;

	while (!error && left) {
		if (!cs_disasm_iter(f->engine, &at, &left, &address, insn))
			error = wrong(f, "%s+0x%zx is not an instruction that is known", f->symbol, (size_t)(at - code));
		else if (insn->address == f->function->entry && is_refused(insn))
			error = wrong(f, "%s begins with an instruction on which there can be no breakpoint", f->symbol);
		else if (cs_insn_group(f->engine, insn, CS_GRP_RET))
			error = leaves(f, insn);
		else if (cs_insn_group(f->engine, insn, CS_GRP_JUMP))
			error = read_jump(f, insn, switched);
		else
			follow(f, insn, switched);
	}
	cs_free(insn, 1);
	return error;
}

static int read_code(struct finder *f, const uint8_t *code, const uint8_t *cold)
{
	static const uint8_t endbr64[] = { 0xf3, 0x0f, 0x1e, 0xfa };
	struct function *function = f->function;

	function->entry = function->start;
	f->again = f->again_behind = false;
	/* The kernel executes what is behind it without a trap more */
	if (function->size > sizeof(endbr64) && !memcmp(code, endbr64, sizeof(endbr64)))
		function->entry += sizeof(endbr64);
	if (read_part(f, code, function->start, function->size) || (cold && read_part(f, cold, f->cold_start, f->cold_size)))
		return -1;
	/* It would begin again and again, and only its last round would be undone */
	if (f->again)
		return wrong(f, "%s jumps to its own beginning, as if it was called again: take the function that calls it", f->symbol);
	if (f->again_behind)
		function->entry = function->start;
	if (!function->nr_returns)
		return wrong(f, "%s never returns", f->symbol);
	return 0;
}

/* NULL, or so many bytes of the file, to be freed */
static uint8_t *read_bytes(struct finder *f, uint64_t start, uint64_t size)
{
	uint8_t *bytes = malloc(size);

	if (bytes && pread(f->fd, bytes, size, start) == (ssize_t)size)
		return bytes;
	wrong(f, "%s cannot be read", f->symbol);
	free(bytes);
	return NULL;
}

/* What is left when the symbol is known; NULL, or its code, to be freed */
static uint8_t *find_code(struct finder *f)
{
	struct function *function = f->function;
	uint8_t *code, *cold = NULL;
	bool good;

	function->address = f->address;
	if (!function->size) {
		wrong(f, "the size of %s is not known", f->symbol);
		return NULL;
	}
	if (!file_offset(f->elf, f->address, function->size, PF_X, &function->start)) {
		wrong(f, "%s is not in a part that is executed", f->symbol);
		return NULL;
	}
	if (f->cold_size && !file_offset(f->elf, f->cold_address, f->cold_size, PF_X, &f->cold_start))
		f->cold_size = 0;
	code = read_bytes(f, function->start, function->size);
	if (code && f->cold_size)
		cold = read_bytes(f, f->cold_start, f->cold_size);
	good = code && (cold || !f->cold_size) && !read_code(f, code, cold);
	free(cold);
	if (good)
		return code;
	free(code);
	return NULL;
}

/* The file itself; 0 or -1. Either way, close_file(). */
static int open_file(struct finder *f)
{
	GElf_Ehdr header;

	elf_version(EV_CURRENT);
	/* Not mapped: it may become shorter */
	f->elf = elf_begin(f->fd, ELF_C_READ, NULL);
	if (!f->elf || elf_kind(f->elf) != ELF_K_ELF || !gelf_getehdr(f->elf, &header))
		return wrong(f, "not a program or a library");
	if (header.e_machine != EM_X86_64 || gelf_getclass(f->elf) != ELFCLASS64)
		return wrong(f, "not a program of x86-64");
	if (cs_open(CS_ARCH_X86, CS_MODE_64, &f->engine))
		return wrong(f, "no disassembler");
	cs_option(f->engine, CS_OPT_DETAIL, CS_OPT_ON);
	return 0;
}

static void close_file(struct finder *f)
{
	if (f->engine)
		cs_close(&f->engine);
	elf_end(f->elf);
}

char *file_path(const char *path)
{
	struct stat there, here;
	char *real;

	if (stat(path, &there))
		return NULL;
	real = realpath(path, NULL);
	if (real && !stat(real, &here) && there.st_dev == here.st_dev && there.st_ino == here.st_ino)
		return real;
	free(real);
	return strdup(path);
}

int function_open(const char *path)
{
	/* Of a FIFO it does not wait for who writes to it, and a device may have no end */
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	const char *why = NULL;
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		why = strerror(errno);
	else if (!S_ISREG(st.st_mode))
		why = "not a regular file";
	if (!why)
		return fd;
	fprintf(stderr, "rescuectl: %s: %s\n", path, why);
	if (fd >= 0)
		close(fd);
	return -1;
}

int function_find(int fd, const char *path, const char *symbol, struct function *function)
{
	struct finder f = { .path = path, .symbol = symbol, .function = function, .fd = fd };
	uint8_t *code = NULL;
	bool found;

	memset(function, 0, sizeof(*function));
	if (!open_file(&f) && !find_symbol(&f))
		code = find_code(&f);
	found = code;
	close_file(&f);
	free(code);
	return found ? 0 : -1;
}

static bool is_encrypting(const char *name)
{
	static const char *const libraries[] = { "libssl.so", "libssl3.so", "libgnutls.so", "libmbedtls.so", "libwolfssl.so" };

	for (size_t i = 0; name && i < sizeof(libraries) / sizeof(*libraries); i++) {
		if (!strncmp(name, libraries[i], strlen(libraries[i])))
			return true;
	}
	return false;
}

char *function_encrypts(int fd)
{
	Elf *elf = elf_begin(fd, ELF_C_READ, NULL);
	Elf_Scn *section = NULL;
	char *found = NULL;
	GElf_Shdr header;
	GElf_Dyn entry;

	while (!found && (section = elf_nextscn(elf, section))) {
		Elf_Data *data;

		if (!gelf_getshdr(section, &header) || header.sh_type != SHT_DYNAMIC)
			continue;
		data = elf_getdata(section, NULL);
		for (int i = 0; !found && data && gelf_getdyn(data, i, &entry) && entry.d_tag != DT_NULL; i++) {
			const char *name = entry.d_tag == DT_NEEDED ? elf_strptr(elf, header.sh_link, entry.d_un.d_val) : NULL;

			if (is_encrypting(name))
				found = strdup(name);
		}
	}
	elf_end(elf);
	return found;
}

/* A function, or a part of one, that a table of symbols has */
struct named {
	const char *name;
	GElf_Addr address;
	uint64_t size;
};

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

static bool is_cold(const char *name)
{
	const size_t length = strlen(name);

	return length > 5 && !strcmp(name + length - 5, ".cold");
}

/* All of them by their names, to be freed; NULL: no memory */
static struct named *find_all(struct finder *f, Elf_Data *data, const GElf_Shdr *header, size_t *nr)
{
	const size_t size = header->sh_size / header->sh_entsize;
	struct named *all = calloc(size + 1, sizeof(*all));
	GElf_Sym symbol;

	*nr = 0;
	for (size_t i = 0; all && i < size; i++) {
		const char *name;

		if (!gelf_getsym(data, i, &symbol) || GELF_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF)
			continue;
		name = elf_strptr(f->elf, header->sh_link, symbol.st_name);
		if (name)
			all[(*nr)++] = (struct named){ .name = name, .address = symbol.st_value, .size = symbol.st_size };
	}
	if (all)
		qsort(all, *nr, sizeof(*all), by_name);
	return all;
}

static void take_cold(struct finder *f, const struct named *all, size_t nr)
{
	struct named key, *found = NULL;
	char *name;

	if (asprintf(&name, "%s.cold", f->symbol) >= 0) {
		key.name = name;
		found = bsearch(&key, all, nr, sizeof(*all), by_name);
		free(name);
	}
	f->cold_address = found ? found->address : 0;
	f->cold_size = found ? found->size : 0;
}

static void each_symbol(struct finder *f, Elf_Scn *section, const GElf_Shdr *header, function_visit *visit, void *arg)
{
	Elf_Data *data = header->sh_entsize ? elf_getdata(section, NULL) : NULL;
	struct named *all = NULL;
	size_t nr = 0;

	f->quiet = true;
	if (data)
		all = find_all(f, data, header, &nr);
	for (size_t i = 0, next; i < nr; i = next) {
		bool twice = false;
		uint8_t *code;

		for (next = i + 1; next < nr && !by_name(&all[i], &all[next]); next++)
			twice |= all[next].address != all[i].address;
		/* A point could not be set by a name that two functions have */
		if (twice || is_cold(all[i].name))
			continue;
		memset(f->function, 0, sizeof(*f->function));
		f->symbol = all[i].name;
		f->address = all[i].address;
		f->function->size = all[i].size;
		take_cold(f, all, nr);
		code = find_code(f);
		if (code)
			visit(f->symbol, f->function, code, arg);
		free(code);
	}
	free(all);
}

int function_each(int fd, const char *path, function_visit *visit, void *arg)
{
	struct function function;
	struct finder f = { .path = path, .function = &function, .fd = fd };
	Elf_Scn *section = NULL, *table = NULL;
	GElf_Shdr header, best = { };
	int ret = open_file(&f);

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
		each_symbol(&f, table, &best, visit, arg);
	close_file(&f);
	return ret;
}
