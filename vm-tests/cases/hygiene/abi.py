#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""kernel-patches/SYSCALLS against every place that repeats it: the series, the library, the manual pages, the manual.
And each library: its header and what it exports."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kernel import PATCHES, SOURCE
from ktap import TOP, main, tracked

FIRST, LAST = 500, 511      # ours; mainline below, x32 above
LIBRARY = TOP / "userspace/libperdure"
REPLAY = TOP / "userspace/replay"
TAKEOVER = TOP / "userspace/takeover"
UAPI = "include/uapi/linux/zlr.h"
# Where the calls of an option are, if not in kernel/zlr
PLACES = {"RESCUE": "kernel/rescue"}


class Call(NamedTuple):
    number: int
    name: str
    entry: str
    compat: str     # "-" for none
    option: str
    page: str
    since: str


def table() -> list[Call]:
    rows = [line.split() for line in (PATCHES / "SYSCALLS").read_text().splitlines()
            if line.strip() and not line.startswith("#")]
    return [Call(int(row[0]), *row[1:]) for row in rows]


def kernel_text(name: str) -> str:
    return (SOURCE / name).read_text(errors="replace")


def differences(where: str, want: set, have: set) -> Iterator[str]:
    yield from (f"{where}: lacks {item}" for item in sorted(want - have, key=str))
    yield from (f"{where}: {item} is not in kernel-patches/SYSCALLS" for item in sorted(have - want, key=str))


def numbers() -> Iterator[str]:
    """The table itself."""
    calls = table()
    if not calls:
        yield "kernel-patches/SYSCALLS is empty"
    for call in calls:
        if not FIRST <= call.number <= LAST:
            yield f"{call.name}: number {call.number} is not between {FIRST} and {LAST}"
        if call.entry != f"sys_{call.name}" or call.compat not in ("-", f"compat_sys_{call.name}"):
            yield f"{call.name}: entry points are not named after it"
    for column in ("number", "name"):
        values = [getattr(call, column) for call in calls]
        if len(set(values)) != len(values):
            yield f"a {column} is there twice"


def system_call_tables() -> Iterator[str]:
    """number, ABI, name and entry points, in both directions."""
    for name, abi, native_compat in (("arch/x86/entry/syscalls/syscall_64.tbl", "common", "64"),
                                     ("arch/x86/entry/syscalls/syscall_32.tbl", "i386", "i386"),
                                     ("scripts/syscall.tbl", "common", "common"),
                                     ("arch/arm64/tools/syscall_32.tbl", "common", "common")):
        have = {tuple(row) for row in map(str.split, kernel_text(name).splitlines())
                if row and row[0].isdigit() and FIRST <= int(row[0]) <= LAST}
        want = set()
        for c in table():
            # x32 has no entry of its own for what takes arrays of pointers: 64 bit only
            row = (str(c.number), abi if c.compat == "-" else native_compat, c.name, c.entry)
            want.add(row if c.compat == "-" or name.endswith("_64.tbl") else (*row, c.compat))
        yield from differences(name, want, have)


def generic_numbers() -> Iterator[str]:
    name = "include/uapi/asm-generic/unistd.h"
    text = kernel_text(name)
    have = set(re.findall(r"#define __NR_(\w+) (5[01]\d)\n(__SYSCALL|__SC_COMP)\(__NR_\1, ([\w, ]+)\)", text))
    want = {(c.name, str(c.number), *(("__SYSCALL", c.entry) if c.compat == "-" else
                                      ("__SC_COMP", f"{c.entry}, {c.compat}"))) for c in table()}
    yield from differences(name, want, have)
    if f"#define __NR_syscalls {max(c.number for c in table()) + 1}\n" not in text:
        yield f"{name}: __NR_syscalls is not one more than the last number"


def kernel_sources() -> Iterator[str]:
    """Prototypes, what kernels without us answer, and exactly one definition of each call."""
    prototypes, absent = kernel_text("include/linux/syscalls.h"), kernel_text("kernel/sys_ni.c")
    compat = kernel_text("include/linux/compat.h")
    for c in table():
        place = PLACES.get(c.option, "kernel/zlr")
        code = {p.name: p.read_text() for p in (SOURCE / place).glob("*.c")}
        makefile = kernel_text(f"{place}/Makefile")
        if len(re.findall(rf"^asmlinkage long {c.entry}\(", prototypes, re.M)) != 1:
            yield f"include/linux/syscalls.h: no prototype of {c.entry}"
        if f"COND_SYSCALL({c.name});" not in absent:
            yield f"kernel/sys_ni.c: lacks {c.name}"
        if c.compat != "-" and (f"COND_SYSCALL_COMPAT({c.name});" not in absent or f"{c.compat}(" not in compat):
            yield f"{c.compat} is not declared, or not in kernel/sys_ni.c"
        for macro in ["SYSCALL_DEFINE"] + ["COMPAT_SYSCALL_DEFINE"] * (c.compat != "-"):
            where = [name for name, text in code.items() if re.search(rf"^{macro}\d\({c.name},", text, re.M)]
            if len(where) != 1:
                yield f"{macro}({c.name}) is defined in {where or 'no file'} of {place}"
            elif not re.search(rf"obj-\$\(CONFIG_{c.option}\)\s*\+=.*\b{where[0][:-2]}\.o", makefile.replace("\\\n", " ")):
                yield f"{place}/Makefile: {where[0]} with {c.name} does not depend on CONFIG_{c.option}"


def exported(version_script: Path) -> set[str]:
    return set(re.findall(r"^\t\t([\w*]+);", version_script.read_text().partition("local:")[0], re.M))


def library() -> Iterator[str]:
    """Numbers, exports and prototypes."""
    header = (LIBRARY / "include/perdure.h").read_text()
    exports = exported(LIBRARY / "src/libperdure.map")
    declared = set(re.findall(r"^PERDURE_API [^;(]*?\b(\w+)\(", header, re.M))
    have = {(name, int(number)) for name, number in
            re.findall(r"#define __NR_(\w+)\s+(\d+)", (LIBRARY / "src/numbers.h").read_text())}
    yield from differences("numbers.h", {(c.name, c.number) for c in table()}, have)
    for c in table():
        if not exports & {c.name, f"perdure_{c.name}"}:
            yield f"libperdure.map: exports neither {c.name} nor perdure_{c.name}"
        if not declared & {c.name, f"perdure_{c.name}"}:
            yield f"perdure.h: does not declare {c.name}"
        if f"PERDURE_{c.since} " not in (LIBRARY / "src/libperdure.map").read_text():
            yield f"libperdure.map: has no node PERDURE_{c.since}"
    yield from (f"libperdure.map exports {name}, which perdure.h does not declare" for name in exports - declared)
    yield from (f"perdure.h declares {name}, which libperdure.map does not export" for name in declared - exports)


def rung(name: str, place: Path, source: str, fewest: int) -> Iterator[str]:
    """A rung's header, the functions that it marks as its interface, its map, and its pages."""
    declared = set(re.findall(rf"^[a-z][^;(]*?\b({name}_\w+)\((?!\*)", (place / f"include/{name}.h").read_text(), re.M))
    marked = set(re.findall(r"^API [^;(]*?\b(\w+)\(", (place / "src" / source).read_text(), re.M))
    exports = exported(place / f"src/lib{name}.map")
    pages = {function for p in tracked("userspace/man/") if p.suffix == ".3" for function in re.findall(r"^\.Nm (\w+)", p.read_text(), re.M)}
    if len(declared) < fewest:
        yield f"{name}.h declares {len(declared)} functions only"
    for function in sorted(declared | marked | exports):
        yield from (f"{function} is not in {where}" for where, names in
                    ((f"{name}.h", declared), (f"{source} as API", marked), (f"lib{name}.map", exports), ("userspace/man", pages))
                    if function not in names)


def replay() -> Iterator[str]:
    """libreplay's interface, in each place."""
    yield from rung("replay", REPLAY, "api.c", 20)


def takeover() -> Iterator[str]:
    """libtakeover's."""
    yield from rung("takeover", TAKEOVER, "library.c", 9)


def user_header() -> Iterator[str]:
    """The library's copy is the kernel's, but for the guard."""
    ours = (LIBRARY / "include/perdure/zlr.h").read_text()
    if ours != kernel_text(UAPI).replace("_UAPI_LINUX_ZLR_H", "_LINUX_ZLR_H"):
        yield f"userspace/libperdure/include/perdure/zlr.h is not {UAPI} of the series"
    for name in ("lazy_loader", "rescue", "tcp_replica"):
        if (LIBRARY / f"include/perdure/{name}.h").read_text() != kernel_text(f"include/uapi/linux/{name}.h").replace("_UAPI_LINUX", "_LINUX"):
            yield f"userspace/libperdure/include/perdure/{name}.h is not include/uapi/linux/{name}.h of the series"


def chapter_of(name: str) -> str:
    own = TOP / f"docs/abi/{name}.md"
    return (own if own.exists() else TOP / "docs/abi/zlr.md").read_text()


def documented_errors(name: str) -> set[str]:
    """Of the error table in docs/abi; "others" and the two that every call has are left out."""
    text = chapter_of(name)
    section = re.search(rf"^## {name} .*?(?=^## |\Z)", text, re.M | re.S)
    rows = re.findall(r"^\| ([A-Z0-9, ]+) \|", section[0] if section else "", re.M)
    return {error for row in rows for error in row.split(", ")}


def manual() -> Iterator[str]:
    """Each call has its page, its chapter, and the same errors in both and in the kernel's comment."""
    pages = {p.name: p.read_text() for p in tracked("userspace/")}
    chapter = (TOP / "docs/abi/zlr.md").read_text()
    code = "".join(p.read_text() for place in ("kernel/zlr", *PLACES.values()) for p in (SOURCE / place).glob("*.c"))
    for c in table():
        page = pages.get(c.page)
        if page is None:
            yield f"{c.page} is missing"
            continue
        if not re.search(rf"\b{c.name}\([^)]", chapter_of(c.name)):
            yield f"docs/abi: no prototype of {c.name}"
        if not re.search(rf"\b{c.name}\b", page):
            yield f"{c.page} does not mention {c.name}"
        yield from (f"{c.page} does not mention {e}" for e in sorted(documented_errors(c.name)) if e not in page)
        comment = re.search(rf"/\*\*\n \* sys_{c.name} - .*?\*/", code, re.S)
        if not comment:
            yield f"kernel: sys_{c.name} has no kernel-doc comment"
    for name in ("enabled", "min_interval_ms", "cap_burst", "cap_interval_ms", "held_bytes_max"):
        for where, text in (("docs/abi/zlr.md", chapter), ("kernel/zlr/sysctl.c", kernel_text("kernel/zlr/sysctl.c")),
                            ("zlr.rst", kernel_text("Documentation/userspace-api/zlr.rst"))):
            if name not in text:
                yield f"{where}: lacks the sysctl {name}"


if __name__ == "__main__":
    main(numbers, system_call_tables, generic_numbers, kernel_sources, library, replay, takeover, user_header, manual)
