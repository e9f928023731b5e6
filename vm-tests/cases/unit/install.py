#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What `meson install` leaves is what a program elsewhere needs: headers, libraries, pkg-config file, manual pages."""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hygiene"))
from ktap import BUILD, TOP, main, output  # noqa: E402

VERSION = (TOP / "VERSION").read_text().strip()
MAP = TOP / "userspace/libperdure/src/libperdure.map"
INLINE = {"getreginfo", "getiolog"}     # in the header only: they know the caller's size
STRICT = ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Wstrict-aliasing", "-Wundef", "-pedantic", "-Werror"]

scratch = tempfile.TemporaryDirectory(prefix="unit-install-", dir=BUILD)
root = Path(scratch.name) / "root"


@cache
def installed() -> dict[str, Path]:
    """Every installed file and link, by its path."""
    output("meson", "install", "-C", BUILD / "userspace", "--no-rebuild", "--destdir", root)
    return {"/" + str(p.relative_to(root)): p for p in root.rglob("*") if p.is_symlink() or p.is_file()}


def one(suffix: str) -> Path:
    found = [p for name, p in installed().items() if name.endswith(suffix)]
    if len(found) != 1:
        raise RuntimeError(f"{suffix} is installed {len(found)} times")
    return found[0]


def pkg_config(*args: str) -> list[str]:
    env = {"PKG_CONFIG_LIBDIR": str(one("/perdure.pc").parent), "PKG_CONFIG_SYSROOT_DIR": str(root)}
    return output("pkg-config", *args, "perdure", env=env).split()


def compiled(source: str, name: str, *flags: str, compiler: str = "cc") -> Path:
    """A program made of the source, with what is installed and nothing of the tree."""
    path = Path(scratch.name) / name
    path.write_text(source)
    program = path.with_suffix("")
    output(compiler, *flags, "-o", program, path, *pkg_config("--cflags", "--libs"))
    return program


def files() -> Iterator[str]:
    installed()
    wanted = [f"/libperdure.so.{VERSION}", "/libperdure.so.0", "/libperdure.so", "/libperdure.a", "/include/perdure.h",
              "/include/perdure/zlr.h", "/pkgconfig/perdure.pc", "/man7/perdure.7"]
    yield from (f"{name} is not installed" for name in wanted if not any(f.endswith(name) for f in installed()))
    yield from (f"{name} leads nowhere" for name, p in installed().items() if not p.exists())
    yield from (f"{name} is installed, though it is for tests" for name in installed()
                if re.search(r"unit-|abi-|faults|examples", name))


def library() -> Iterator[str]:
    dynamic = output("readelf", "-dW", one("/libperdure.so"))
    if "[libperdure.so.0]" not in dynamic:
        yield "the soname is not libperdure.so.0"
    if "TEXTREL" in dynamic or not re.search(r"GNU_STACK.* RW ", output("readelf", "-lW", one("/libperdure.so"))):
        yield "text relocations, or an executable stack"


def exports() -> Iterator[str]:
    """The library's symbols, the map, the header and the pages name the same functions."""
    node, version = "", {}
    for line in MAP.read_text().splitlines():
        if begins := re.match(r"(PERDURE_[\d.]+) \{", line):
            node = begins[1]
        elif symbol := re.match(r"\t\t(\w+);", line):
            version[symbol[1]] = node
    have = dict(re.findall(r" [TDBRVW] (\w+)@@(\w[\w.]*)$", output("nm", "-D", "--defined-only", one("/libperdure.so")), re.M))
    header = one("/include/perdure.h").read_text()
    declared = set(re.findall(r"^PERDURE_API [^;(]*?\b(\w+)\(", header, re.M))
    defined = set(re.findall(r"^static inline \w+ (\w+)\(", header, re.M))
    static = set(re.findall(r" [TDBRVW] (\w+)$", output("nm", "--defined-only", one("/libperdure.a")), re.M))
    pages: dict[str, list[str]] = {}
    for name in (n for n in installed() if re.search(r"/man[23]/", n)):
        pages.setdefault(Path(name).stem, []).append(name)

    yield from (f"{s}: exported as {have.get(s)}, in the map as {version.get(s)}"
                for s in sorted(have.keys() | version.keys()) if have.get(s) != version.get(s) and s != version.get(s))
    for what, names in ("the header declares", declared), ("the static library has", static):
        if names != set(version):
            yield f"{what} {sorted(names - set(version))} more and {sorted(set(version) - names)} less than the map"
    if defined != INLINE:
        yield f"inline functions of the header: {sorted(defined)}"
    if set(pages) - {"perdure_shared", "perdure_state"} != set(version) | INLINE:
        yield f"pages for {sorted(set(pages) - set(version) - INLINE)}, none for {sorted((set(version) | INLINE) - set(pages))}"
    yield from (f"{name} is in {found}" for name, found in pages.items() if len(found) != 1)


def pages() -> Iterator[str]:
    """Each page names the functions that lead to it, shows their prototypes as they are, and cites pages that exist."""
    header = re.sub(r"\s+", " ", one("/include/perdure.h").read_text())
    ours = {Path(n).name for n in installed() if "/man/" in n}
    for name, path in sorted((n, p) for n, p in installed().items() if re.search(r"/man[237]/", n)):
        text = path.read_text()
        if not path.is_symlink():
            complaints = output("mandoc", "-Tlint", "-Wwarning", path, ok=(0, 1, 2, 3, 4))
            yield from complaints.splitlines()
            yield from (f"{name}: no section {s}" for s in ("EXAMPLES", "SEE ALSO", "STANDARDS") if f".Sh {s}\n" not in text)
            if "/man7/" not in name:
                yield from (f"{name}: no section {s}" for s in ("RETURN VALUES", "ERRORS") if f".Sh {s}\n" not in text)
            for page, section in re.findall(r"^\.Xr (\w+) (\d)", text, re.M):
                if re.match(r"perdure|zhttpd|(re|get)reg|hread|lwrite|lsendfile|getiolog", page) and f"{page}.{section}" not in ours:
                    yield f"{name}: cites {page}({section}), which does not exist"
        if "/man7/" in name:
            continue
        names = re.findall(r"^\.Nm (\w+)", text, re.M)
        if path.stem not in (*names, "perdure_shared", "perdure_state"):
            yield f"{name}: is not about {path.stem}"
        for function in names:
            shown = prototype(text, function)
            if shown is None or shown not in header:
                yield f"{name}: the header does not have {shown or function}"


def prototype(page: str, function: str) -> str | None:
    """As the page's synopsis has it: on one line, without the final semicolon."""
    one_line = re.search(rf'^\.Ft (.*)\n\.Fn {function} (.*)$', page, re.M)
    lines = re.search(rf'^\.Ft (.*)\n\.Fo {function}\n((?:\.Fa .*\n)+)\.Fc', page, re.M)
    if not one_line and not lines:
        return None
    found = one_line or lines
    args = re.findall(r'"([^"]+)"|\b(void)$', found[2], re.M)
    kind = found[1] if found[1].endswith("*") else found[1] + " "
    return f"{kind}{function}({', '.join(a or b for a, b in args)})"


def examples() -> Iterator[str]:
    """The pages' examples compile, without a warning, as they are printed."""
    count = 0
    for name, path in sorted((n, p) for n, p in installed().items() if re.search(r"/man[237]/", n) and not p.is_symlink()):
        section = re.search(r"^\.Sh EXAMPLES\n(.*?)^\.Sh ", path.read_text(), re.M | re.S)
        found = re.findall(r"^\.Bd -literal -offset indent\n(.*?)^\.Ed", section[1] if section else "", re.M | re.S)
        if not found:
            yield f"{name}: no example"
        for number, text in enumerate(found):
            try:
                compiled(text.replace("\\e", "\\"), f"{path.stem}-{number}.c", "-std=gnu11", *STRICT)
                count += 1
            except RuntimeError as error:
                yield f"{name}: {error}"
    if count < 11:
        yield f"only {count} examples compile"


USE = """
#include <perdure.h>

int main(void)
{
	struct reg_info info;
	struct io_log log;
	int *count = static_cast<int *>(perdure_state_open("use", sizeof(*count), 1, NULL, NULL));

	if (!count || perdure_abi_version() != getreginfo(&info) || getiolog(0, &log) != hread(0, NULL, 0, 0))
		return ++*count;
	return 0;
}
"""


def headers() -> Iterator[str]:
    """In C and C++, each header first and alone, twice, and with the kernel's name for it."""
    cast = USE.replace("static_cast<int *>(", "(int *)(")
    alone = "#include <perdure/zlr.h>\n#include <perdure.h>\n#include <perdure/zlr.h>\nint main(void) { return 0; }\n"
    for standard, compiler, ext in (("c11", "cc", "c"), ("c17", "cc", "c"), ("c++11", "c++", "cc"), ("c++20", "c++", "cc")):
        for name, source in (("use", USE if ext == "cc" else cast), ("alone", alone)):
            try:
                compiled(source, f"{name}.{ext}", f"-std={standard}", *STRICT, compiler=compiler)
            except RuntimeError as error:
                yield f"{standard}: {error}"


def linking() -> Iterator[str]:
    """Shared and static: pkg-config says how, and the programs run."""
    source = USE.replace("static_cast<int *>(", "(int *)(").replace("++*count", "1 + !count")
    shared = compiled(source, "shared.c")
    if "libperdure.so.0" not in output("readelf", "-d", shared):
        yield "a program linked as pkg-config says does not need libperdure.so.0"
    output(shared, env={"LD_LIBRARY_PATH": str(one("/libperdure.so").parent)}, ok=(0, 1))
    static = Path(scratch.name) / "static"
    output("cc", "-static", "-o", static, shared.with_suffix(".c"), *pkg_config("--static", "--cflags", "--libs"))
    output(static, ok=(0, 1))
    if pkg_config("--modversion") != [VERSION]:
        yield f"pkg-config says version {pkg_config('--modversion')}, VERSION {VERSION}"


if __name__ == "__main__":
    try:
        main(files, library, exports, pages, examples, headers, linking)
    finally:
        scratch.cleanup()
