#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What `meson install` leaves is what a program elsewhere needs: headers, libraries, pkg-config file, manual pages."""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hygiene"))
from ktap import BUILD, TOP, main, output  # noqa: E402

VERSION = (TOP / "VERSION").read_text().strip()
STRICT = ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Wstrict-aliasing", "-Wundef", "-pedantic", "-Werror"]


@dataclass(frozen=True)
class Library:
    name: str
    pc: str
    header: str
    map: Path
    declares: str                           # a declaration in the header: the name
    inline: frozenset[str] = frozenset()    # in the header only
    overviews: frozenset[str] = frozenset() # pages of no function


PERDURE = Library("libperdure", "perdure", "/include/perdure.h", TOP / "userspace/libperdure/src/libperdure.map",
                  r"^PERDURE_API [^;(]*?\b(\w+)\(",
                  frozenset({"getreginfo", "getiolog"}),    # they know the caller's size
                  frozenset({"perdure_conn", "perdure_shared", "perdure_state"}))
REPLAY = Library("libreplay", "libreplay", "/include/replay.h", TOP / "userspace/replay/src/libreplay.map",
                 r"^[a-z][^;({]*?\b(\w+)\((?!\*)")
TAKEOVER = Library("libtakeover", "libtakeover", "/include/takeover.h", TOP / "userspace/takeover/src/libtakeover.map", REPLAY.declares)
LIBRARIES = PERDURE, REPLAY, TAKEOVER

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


def pkg_config(library: Library, *args: str) -> list[str]:
    env = {"PKG_CONFIG_LIBDIR": str(one(f"/{library.pc}.pc").parent), "PKG_CONFIG_SYSROOT_DIR": str(root)}
    return output("pkg-config", *args, library.pc, env=env).split()


def compiled(library: Library, source: str, name: str, *flags: str, compiler: str = "cc") -> Path:
    """A program made of the source, with what is installed and nothing of the tree."""
    path = Path(scratch.name) / name
    path.write_text(source)
    program = path.with_suffix("")
    output(compiler, *flags, "-o", program, path, *pkg_config(library, "--cflags", "--libs"))
    return program


def files() -> Iterator[str]:
    installed()
    wanted = ["/include/perdure/zlr.h", "/man7/perdure.7", "/bin/replayctl", "/man5/replay.conf.5", "/man7/replay.7",
              "/man7/replay_http.7", "/man8/replayctl.8", "/sbin/rescuectl", "/man5/rescue.d.5",
              "/man8/rescuectl.8", "/sbin/takeoverctl", "/sbin/takeoverd", "/man5/takeover.conf.5",
              "/man7/takeover.7", "/man8/takeoverctl.8", "/man8/takeoverd.8", "/man7/ocf_perdure_takeover.7",
              "/lib/ocf/resource.d/perdure/takeover"]
    for library in LIBRARIES:
        wanted += [f"/{library.name}{suffix}" for suffix in (f".so.{VERSION}", ".so.0", ".so", ".a")]
        wanted += [library.header, f"/pkgconfig/{library.pc}.pc"]
    yield from (f"{name} is not installed" for name in wanted if not any(f.endswith(name) for f in installed()))
    yield from (f"{name} leads nowhere" for name, p in installed().items() if not p.exists())
    yield from (f"{name} is installed, though it is for tests" for name in installed()
                if re.search(r"unit-|abi-|replay-|faults|examples", name))


def library() -> Iterator[str]:
    for library in LIBRARIES:
        path = one(f"/{library.name}.so")
        dynamic = output("readelf", "-dW", path)
        if f"[{library.name}.so.0]" not in dynamic:
            yield f"the soname is not {library.name}.so.0"
        if "TEXTREL" in dynamic or not re.search(r"GNU_STACK.* RW ", output("readelf", "-lW", path)):
            yield f"{library.name}: text relocations, or an executable stack"


def mapped(library: Library) -> dict[str, str]:
    """The version of each symbol."""
    node, version = "", {}
    for line in library.map.read_text().splitlines():
        if begins := re.match(r"([A-Z]+_[\d.]+) \{", line):
            node = begins[1]
        elif symbol := re.match(r"\t\t(\w+);", line):
            version[symbol[1]] = node
    return version


def exports() -> Iterator[str]:
    """The library's symbols, the map and the header name the same functions."""
    for library in LIBRARIES:
        version = mapped(library)
        symbols = output("nm", "-D", "--defined-only", one(f"/{library.name}.so"))
        have = dict(re.findall(r" [TDBRVW] (\w+)@@(\w[\w.]*)$", symbols, re.M))
        header = one(library.header).read_text()
        declared = set(re.findall(library.declares, header, re.M))
        defined = set(re.findall(r"^static inline \w+ (\w+)\(", header, re.M))
        static = set(re.findall(r" [TDBRVW] (\w+)$", output("nm", "--defined-only", one(f"/{library.name}.a")), re.M))

        yield from (f"{s}: exported as {have.get(s)}, in the map as {version.get(s)}"
                    for s in sorted(have.keys() | version.keys())
                    if have.get(s) != version.get(s) and s != version.get(s))
        for what, names in (f"{library.header} declares", declared), (f"{library.name}.a has", static):
            if names != set(version):
                yield f"{what} {sorted(names - set(version))} more and {sorted(set(version) - names)} less than the map"
        if defined != library.inline:
            yield f"inline functions of {library.header}: {sorted(defined)}"


def functions() -> Iterator[str]:
    """Each function has a page of its name, and each page of section 2 and 3 is of a function."""
    want = set().union(*(mapped(library).keys() | library.inline for library in LIBRARIES))
    pages: dict[str, list[str]] = {}
    for name in (n for n in installed() if re.search(r"/man[23]/", n)):
        pages.setdefault(Path(name).stem, []).append(name)
    have = set(pages).difference(*(library.overviews for library in LIBRARIES))
    if have != want:
        yield f"pages for {sorted(have - want)}, none for {sorted(want - have)}"
    yield from (f"{name} is in {found}" for name, found in pages.items() if len(found) != 1)


def pages() -> Iterator[str]:
    """Each page names the functions that lead to it, shows their prototypes as they are, and cites pages that exist."""
    header = re.sub(r"\s+", " ", "".join(one(library.header).read_text() for library in LIBRARIES))
    overviews = frozenset().union(*(library.overviews for library in LIBRARIES))
    ours = {Path(n).name for n in installed() if "/man/" in n}
    for name, path in sorted((n, p) for n, p in installed().items() if re.search(r"/man[2357]/|/man8/(replay|rescue|takeover)", n)):
        text = path.read_text()
        if not path.is_symlink():
            complaints = output("mandoc", "-Tlint", "-Wwarning", path, ok=(0, 1, 2, 3, 4))
            # A page is as old as its release: there is no date to forget
            yield from (line for line in complaints.splitlines() if "missing date" not in line)
            for page, section in re.findall(r"^\.Xr ([\w.]+) (\d)", text, re.M):
                known = re.match(r"perdure|replay|rescue|(mod_)?takeover|zhttpd|(re|get)reg|hread|lwrite|lsendfile|getiolog", page)
                if known and f"{page}.{section}" not in ours:
                    yield f"{name}: cites {page}({section}), which does not exist"
            if re.search(r"/man[237]/", name):
                yield from (f"{name}: no section {s}" for s in ("EXAMPLES", "SEE ALSO", "STANDARDS")
                            if f".Sh {s}\n" not in text)
            if re.search(r"/man[23]/", name):
                yield from (f"{name}: no section {s}" for s in ("RETURN VALUES", "ERRORS") if f".Sh {s}\n" not in text)
        if not re.search(r"/man[23]/", name):
            continue
        names = re.findall(r"^\.Nm (\w+)", text, re.M)
        if path.stem not in (*names, *overviews):
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
    """The pages' examples in C compile, without a warning, as they are printed."""
    count = 0
    for name, path in sorted((n, p) for n, p in installed().items() if re.search(r"/man[237]/", n) and not p.is_symlink()):
        library = next((library for library in (REPLAY, TAKEOVER) if path.name.startswith(library.name[3:])), PERDURE)
        section = re.search(r"^\.Sh EXAMPLES\n(.*?)^\.Sh ", path.read_text(), re.M | re.S)
        found = re.findall(r"^\.Bd -literal -offset indent\n(.*?)^\.Ed", section[1] if section else "", re.M | re.S)
        # An overview may speak with a shell, a client its own language
        programs = [text for text in found if "#include" in text]
        if not found or (not programs and not re.search(r"/man7/(replay|takeover|ocf)", name)):
            yield f"{name}: no example"
        for number, text in enumerate(programs):
            part = [] if "main(" in text else ["-c"]
            try:
                compiled(library, text.replace("\\e", "\\"), f"{path.stem}-{number}.c", "-std=gnu11", *STRICT, *part)
                count += 1
            except RuntimeError as error:
                yield f"{name}: {error}"
    if count < 21:
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


# Its own names are those that the library has inside
USE_REPLAY = """
#include <errno.h>
#include <replay.h>

int execute, judge, nap;
int report(void);
int report(void) { return 0; }

static int run(struct replay_call *call, const void *body, size_t size, void *arg)
{
	(void)body;
	(void)arg;
	return replay_reply_text(call, "%d", (int)size) ? 500 : 200;
}

int main(void)
{
	struct replay_server *server = replay_new();
	int bad;

	bad = !server || replay_method(server, "m", 1, run, NULL);
	bad |= !replay_method(server, "m", 1, run, NULL) || errno != EEXIST;
	bad |= !replay_start(server, "/nonexistent/file") || errno != ENOENT || !*replay_error(server);
	replay_free(server);
	return bad + report();
}
"""


USE_TAKEOVER = """
#include <errno.h>
#include <takeover.h>

int stored, log_open;
int replica_op(void);
int replica_op(void) { return 0; }

int main(void)
{
	struct takeover_reply *reply;
	struct takeover_result result;
	uint64_t id = 1;
	int bad;

	bad = takeover_role(-1, &id) != TAKEOVER_OFF || id;
	bad |= !takeover_leave(-1) || errno != EBADF;
	bad |= !takeover_reply_begin(-1, 1, 1, &reply) || errno != ENOTCONN || reply;
	bad |= takeover_reply_wait(-1, 1, 1, &result) != TAKEOVER_REFUSED || result.fd != -1;
	takeover_reply_abort(reply);
	return bad + replica_op();
}
"""


def headers() -> Iterator[str]:
    """In C and C++, each header first and alone, twice, and with the kernel's name for it."""
    cast = USE.replace("static_cast<int *>(", "(int *)(")
    alone = "#include <perdure/zlr.h>\n#include <perdure.h>\n#include <perdure/zlr.h>\nint main(void) { return 0; }\n"
    twice = "#include <replay.h>\n#include <replay.h>\nint main(void) { return 0; }\n"
    for standard, compiler, ext in (("c11", "cc", "c"), ("c17", "cc", "c"), ("c++11", "c++", "cc"), ("c++20", "c++", "cc")):
        for library, name, source in ((PERDURE, "use", USE if ext == "cc" else cast), (PERDURE, "alone", alone),
                                      (REPLAY, "use", USE_REPLAY), (REPLAY, "twice", twice),
                                      (TAKEOVER, "use", USE_TAKEOVER), (TAKEOVER, "twice", twice.replace("replay", "takeover"))):
            try:
                compiled(library, source, f"{name}.{ext}", f"-std={standard}", *STRICT, compiler=compiler)
            except RuntimeError as error:
                yield f"{standard}: {error}"


def linking() -> Iterator[str]:
    """Shared and static: pkg-config says how, and the programs run."""
    use = USE.replace("static_cast<int *>(", "(int *)(").replace("++*count", "1 + !count")
    for library, source, ok in (PERDURE, use, (0, 1)), (REPLAY, USE_REPLAY, (0,)), (TAKEOVER, USE_TAKEOVER, (0,)):
        shared = compiled(library, source, "shared.c")
        if f"{library.name}.so.0" not in output("readelf", "-d", shared):
            yield f"a program linked as pkg-config says does not need {library.name}.so.0"
        output(shared, env={"LD_LIBRARY_PATH": str(one(f"/{library.name}.so").parent)}, ok=ok)
        flags = pkg_config(library, "--static", "--cflags", "--libs")
        if library == REPLAY:   # what it is made with is not there as static libraries everywhere
            flags = ["-l:libreplay.a" if flag == "-lreplay" else flag for flag in flags]
        else:
            flags.append("-static")
        static = Path(scratch.name) / "static"
        output("cc", "-o", static, shared.with_suffix(".c"), *flags)
        if library.name in output("readelf", "-d", static):
            yield f"{library.name} is not in the program that was linked with it"
        output(static, ok=ok)
        if pkg_config(library, "--modversion") != [VERSION]:
            yield f"pkg-config says version {pkg_config(library, '--modversion')}, VERSION {VERSION}"


if __name__ == "__main__":
    try:
        main(files, library, exports, functions, pages, examples, headers, linking)
    finally:
        scratch.cleanup()
