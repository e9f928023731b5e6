// SPDX-License-Identifier: GPL-2.0-or-later
#include <capstone/capstone.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uthash.h>

#include "returned.h"

#define ERRORS_MAX	4095	/* of the kernel; of programs, those that have more are not known as errors */
#define FOLLOW_MAX	100	/* instructions from the constant to the return */
#define VALUES_MAX	64	/* different ones of a function that are counted */

/* ---- Debug information: in the file, beside it, or where debuginfod has put it */

struct returned_types {
	struct named_type {
		char *name;
		enum returned_type type;
		UT_hash_handle hh;
	} *names;
};

/* In rax alone? What is wider is elsewhere, too. */
static enum returned_type type_of_base(Dwarf_Die *type)
{
	Dwarf_Attribute attribute;
	Dwarf_Word encoding;

	if (dwarf_formudata(dwarf_attr(type, DW_AT_encoding, &attribute), &encoding))
		return RETURNS_OTHER;
	switch (encoding) {
	case DW_ATE_signed:
	case DW_ATE_unsigned:
		return dwarf_bytesize(type) > 8 ? RETURNS_ELSEWHERE : RETURNS_NUMBER;
	case DW_ATE_float:
	case DW_ATE_complex_float:
	case DW_ATE_imaginary_float:
	case DW_ATE_decimal_float:
		return RETURNS_ELSEWHERE;
	default:
		return RETURNS_OTHER;
	}
}

static enum returned_type type_of(Dwarf_Die *function)
{
	Dwarf_Attribute attribute;
	Dwarf_Die type;

	if (!dwarf_formref_die(dwarf_attr_integrate(function, DW_AT_type, &attribute), &type) || dwarf_peel_type(&type, &type))
		return RETURNS_OTHER;
	switch (dwarf_tag(&type)) {
	case DW_TAG_pointer_type:
		return RETURNS_POINTER;
	case DW_TAG_enumeration_type:
		return RETURNS_NUMBER;
	case DW_TAG_base_type:
		return type_of_base(&type);
	/* Small ones may be in rax, or in two registers, or in one of another kind. An array is a vector. */
	case DW_TAG_structure_type:
	case DW_TAG_class_type:
	case DW_TAG_union_type:
	case DW_TAG_array_type:
		return RETURNS_ELSEWHERE;
	default:
		return RETURNS_OTHER;
	}
}

static int add_function(Dwarf_Die *function, void *arg)
{
	struct returned_types *types = arg;
	Dwarf_Attribute attribute;
	const char *name = dwarf_formstring(dwarf_attr_integrate(function, DW_AT_linkage_name, &attribute)) ?: dwarf_diename(function);
	struct named_type *named = NULL;

	if (!name || dwarf_hasattr(function, DW_AT_declaration))
		return DWARF_CB_OK;
	HASH_FIND_STR(types->names, name, named);
	if (named || !(named = calloc(1, sizeof(*named))))
		return DWARF_CB_OK;
	named->name = strdup(name);
	named->type = type_of(function);
	HASH_ADD_KEYPTR(hh, types->names, named->name, strlen(named->name), named);
	return DWARF_CB_OK;
}

struct returned_types *returned_types_read(const char *path)
{
	static const Dwfl_Callbacks callbacks = {
		.find_elf = dwfl_build_id_find_elf,
		.find_debuginfo = dwfl_standard_find_debuginfo,
		.section_address = dwfl_offline_section_address,
	};
	struct returned_types *types = calloc(1, sizeof(*types));
	Dwfl *dwfl = dwfl_begin(&callbacks);
	Dwfl_Module *module = types && dwfl ? dwfl_report_offline(dwfl, path, path, -1) : NULL;
	Dwarf_Die *unit = NULL;
	Dwarf_Addr bias;

	if (module && !dwfl_report_end(dwfl, NULL, NULL)) {
		while ((unit = dwfl_module_nextcu(module, unit, &bias)))
			dwarf_getfuncs(unit, add_function, types, 0);
	}
	dwfl_end(dwfl);
	if (types && !types->names) {
		free(types);
		types = NULL;
	}
	return types;
}

enum returned_type returned_type(const struct returned_types *types, const char *symbol)
{
	struct named_type *named = NULL;

	if (types)
		HASH_FIND_STR(types->names, symbol, named);
	return named ? named->type : RETURNS_UNKNOWN;
}

struct wanted {
	Dwarf_Addr address;
	enum returned_type type;
};

static int look_at_function(Dwarf_Die *function, void *arg)
{
	struct wanted *wanted = arg;

	if (dwarf_haspc(function, wanted->address) <= 0)
		return DWARF_CB_OK;
	wanted->type = type_of(function);
	return DWARF_CB_ABORT;
}

/* By its address: it may have more names than its debug information has. Nothing is asked of other machines: a point is to be there at once. */
enum returned_type returned_type_find(int fd, const char *path, const struct function *function)
{
	static const Dwfl_Callbacks callbacks = {
		.find_elf = dwfl_build_id_find_elf,
		.find_debuginfo = dwfl_build_id_find_debuginfo,
		.section_address = dwfl_offline_section_address,
	};
	struct wanted wanted = { .type = RETURNS_UNKNOWN };
	Dwfl *dwfl = dwfl_begin(&callbacks);
	const int copy = dwfl ? dup(fd) : -1;
	Dwfl_Module *module = copy >= 0 ? dwfl_report_offline(dwfl, path, path, copy) : NULL;
	Dwarf_Addr file_bias, bias;
	Dwarf_Die *unit = NULL;

	if (copy >= 0 && !module)
		close(copy);
	if (module && !dwfl_report_end(dwfl, NULL, NULL) && dwfl_module_getelf(module, &file_bias)) {
		while (wanted.type == RETURNS_UNKNOWN && (unit = dwfl_module_nextcu(module, unit, &bias))) {
			wanted.address = function->address + file_bias - bias;
			if (dwarf_haspc(unit, wanted.address) > 0)
				dwarf_getfuncs(unit, look_at_function, &wanted, 0);
		}
	}
	dwfl_end(dwfl);
	return wanted.type;
}

void returned_types_free(struct returned_types *types)
{
	struct named_type *named, *next;

	if (!types)
		return;
	HASH_ITER(hh, types->names, named, next) {
		HASH_DEL(types->names, named);
		free(named->name);
		free(named);
	}
	free(types);
}

/* ---- Code */

struct body {
	csh engine;
	const cs_insn *insns;
	size_t nr;
	const struct function *function;
};

/* The 64 bits of which a register is a part; X86_REG_INVALID: it is a part that does not set them all */
static x86_reg whole(x86_reg reg)
{
	static const x86_reg registers[][2] = {
		{ X86_REG_EAX, X86_REG_RAX }, { X86_REG_EBX, X86_REG_RBX }, { X86_REG_ECX, X86_REG_RCX }, { X86_REG_EDX, X86_REG_RDX },
		{ X86_REG_ESI, X86_REG_RSI }, { X86_REG_EDI, X86_REG_RDI }, { X86_REG_EBP, X86_REG_RBP }, { X86_REG_R8D, X86_REG_R8 },
		{ X86_REG_R9D, X86_REG_R9 }, { X86_REG_R10D, X86_REG_R10 }, { X86_REG_R11D, X86_REG_R11 }, { X86_REG_R12D, X86_REG_R12 },
		{ X86_REG_R13D, X86_REG_R13 }, { X86_REG_R14D, X86_REG_R14 }, { X86_REG_R15D, X86_REG_R15 },
	};

	for (size_t i = 0; i < sizeof(registers) / sizeof(*registers); i++) {
		if (reg == registers[i][0] || reg == registers[i][1])
			return registers[i][1];
	}
	return X86_REG_INVALID;
}

/* A register that it makes a constant; X86_REG_INVALID: none */
static x86_reg constant(const cs_insn *insn, int64_t *value)
{
	const cs_x86 *x86 = &insn->detail->x86;
	const cs_x86_op *to = &x86->operands[0], *from = &x86->operands[1];

	if (x86->op_count != 2 || to->type != X86_OP_REG)
		return X86_REG_INVALID;
	if (insn->id == X86_INS_XOR && from->type == X86_OP_REG && from->reg == to->reg)
		*value = 0;
	else if (from->type == X86_OP_IMM && (insn->id == X86_INS_MOV || insn->id == X86_INS_MOVABS || (insn->id == X86_INS_OR && from->imm == -1)))
		*value = to->size == 4 ? (int32_t)from->imm : from->imm;
	else
		return X86_REG_INVALID;
	return whole(to->reg);
}

static bool writes(const struct body *body, const cs_insn *insn, x86_reg reg)
{
	cs_regs read, written;
	uint8_t nr_read, nr_written;

	if (cs_regs_access(body->engine, insn, read, &nr_read, written, &nr_written))
		return true;
	for (uint8_t i = 0; i < nr_written; i++) {
		if (written[i] == reg || whole(written[i]) == reg)
			return true;
	}
	return false;
}

static size_t find_insn(const struct body *body, uint64_t address)
{
	size_t low = 0, high = body->nr;

	while (low < high) {
		const size_t middle = (low + high) / 2;

		if (body->insns[middle].address < address)
			low = middle + 1;
		else
			high = middle;
	}
	return low < body->nr && body->insns[low].address == address ? low : body->nr;
}

/* Who is called leaves it as it is */
static bool is_saved(x86_reg reg)
{
	return reg == X86_REG_RBX || reg == X86_REG_RBP || (reg >= X86_REG_R12 && reg <= X86_REG_R15);
}

/* Does what is in the register when @at is executed become the result, if no condition is met on the way? */
static bool becomes_result(const struct body *body, size_t at, x86_reg reg)
{
	for (unsigned int n = 0; n < FOLLOW_MAX && at < body->nr; n++, at++) {
		const cs_insn *insn = &body->insns[at];
		const cs_x86 *x86 = &insn->detail->x86;

		if (cs_insn_group(body->engine, insn, CS_GRP_RET))
			return reg == X86_REG_RAX;
		if (insn->id == X86_INS_JMP) {
			if (x86->operands[0].type != X86_OP_IMM)
				return false;
			at = find_insn(body, x86->operands[0].imm) - 1;
		} else if (cs_insn_group(body->engine, insn, CS_GRP_CALL)) {
			if (!is_saved(reg))
				return false;
		} else if (insn->id == X86_INS_MOV && x86->operands[0].type == X86_OP_REG && whole(x86->operands[0].reg) == X86_REG_RAX &&
			   x86->operands[1].type == X86_OP_REG && whole(x86->operands[1].reg) == reg) {
			reg = X86_REG_RAX;
		} else if (writes(body, insn, reg)) {
			return false;
		}
	}
	return false;
}

static bool is_error(int64_t value, enum returned_type type)
{
	if (type == RETURNS_POINTER)
		return !value;
	return type != RETURNS_OTHER && type != RETURNS_ELSEWHERE && value < 0 && value >= -ERRORS_MAX;
}

bool returned_error(const struct function *function, const uint8_t *code, enum returned_type type, int64_t *value, unsigned int *places)
{
	struct body body = { .function = function };
	struct constant { int64_t value; unsigned int places; } found[VALUES_MAX];
	unsigned int nr = 0, i;
	cs_insn *insns = NULL;

	*places = 0;
	if (cs_open(CS_ARCH_X86, CS_MODE_64, &body.engine))
		return false;
	cs_option(body.engine, CS_OPT_DETAIL, CS_OPT_ON);
	body.nr = cs_disasm(body.engine, code, function->size, function->start, 0, &insns);
	body.insns = insns;
	for (size_t at = 0; at < body.nr; at++) {
		int64_t candidate;
		const x86_reg reg = constant(&insns[at], &candidate);

		if (reg == X86_REG_INVALID || !is_error(candidate, type) || !becomes_result(&body, at + 1, reg))
			continue;
		for (i = 0; i < nr && found[i].value != candidate; i++)
			;
		if (i == VALUES_MAX)
			continue;
		if (i == nr)
			found[nr++] = (struct constant){ .value = candidate };
		if (++found[i].places > *places) {
			*places = found[i].places;
			*value = candidate;
		}
	}
	cs_free(insns, body.nr);
	cs_close(&body.engine);
	return *places;
}
