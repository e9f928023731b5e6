#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Every file of the repository: licence, white space, links, and what the linters say of it."""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ktap import TOP, main, output, rel, tracked

sys.path.insert(0, str(TOP / "vm-tests" / "lib"))
import mistakes  # noqa: E402

# No place for a comment, or not ours to change. A patch carries the licence of each file that it adds.
NO_SPDX = re.compile(r"(VERSION|UPSTREAM|kernel-patches/series|LICENSES/.*|.*\.(json|patch|txt))$")

# What each part is licensed under; the first match decides.
LICENCES = (
    (r"userspace/libperdure/include/perdure/", "GPL-2.0 WITH Linux-syscall-note"),
    (r"userspace/(common|libperdure|python/perdure|(replay|takeover)/(include|src))/", "LGPL-2.1-or-later"),
    (r"configs/", "GPL-2.0-only"),
    (r"", "GPL-2.0-or-later"),
)


def text_of(path: Path) -> str | None:
    data = path.read_bytes()
    return None if b"\0" in data else data.decode("utf-8", "replace")


def spdx() -> Iterator[str]:
    for path in tracked():
        name, text = rel(path), text_of(path)
        if NO_SPDX.match(name) or not text:
            continue
        found = re.search(r"SPDX-License-Identifier: ([^*\n]+?)\s*(\*/|-->|\n)", "\n".join(text.split("\n")[:5]) + "\n")
        if not found:
            yield f"{name}: no SPDX-License-Identifier in the first five lines"
            continue
        want = next(licence for where, licence in LICENCES if re.match(where, name))
        if found[1] != want and not (name.startswith("kernel-patches/") and found[1].startswith("GPL-2.0")):
            yield f"{name}: licensed under {found[1]}, not {want}"


def licence_texts() -> Iterator[str]:
    for name in ("GPL-2.0", "LGPL-2.1", "Linux-syscall-note"):
        if not (TOP / "LICENSES" / name).is_file():
            yield f"LICENSES/{name} is missing"


def white_space() -> Iterator[str]:
    for path in tracked():
        name, text = rel(path), text_of(path)
        if not text or name.startswith("LICENSES/") or name.endswith(".patch"):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if line != line.rstrip():
                yield f"{name}:{number}: white space at the end of the line"
        if not text.endswith("\n") or text.endswith("\n\n"):
            yield f"{name}: must end with exactly one newline"


def anchors(markdown: str) -> set[str]:
    found: set[str] = set()
    for title in re.findall(r"^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", markdown), re.M):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()).strip().replace(" ", "-")
        found.add(slug)
    return found


def links() -> Iterator[str]:
    """Relative links of the manual, and paths that it names in code style."""
    for page in tracked("*.md"):
        text = page.read_text()
        prose = re.sub(r"(?ms)^```.*?^```", "", text)
        for target in re.findall(r"(?<!!)\[[^]]*\]\(([^)\s]+)\)", prose):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            there = (page.parent / file).resolve() if file else page
            if not there.exists():
                yield f"{rel(page)}: link to {target}, which does not exist"
            elif anchor and there.suffix == ".md" and anchor not in anchors(there.read_text()):
                yield f"{rel(page)}: link to {target}: no such heading"


def orphans() -> Iterator[str]:
    """Every page of the manual can be reached from its index."""
    index = (TOP / "docs/index.md").read_text()
    for page in tracked("docs/*.md", "docs/**/*.md"):
        name = str(page.relative_to(TOP / "docs"))
        if name != "index.md" and f"({name})" not in index:
            yield f"docs/{name} is not linked from docs/index.md"


def tests_named() -> Iterator[str]:
    """The threat model says which test refuses what, as `suite/case test`: it is there."""
    page = TOP / "docs/design/security.md"
    found = re.findall(r"`([a-z_-]+)/([a-z_-]+)(?: (\w+))?`", page.read_text())
    if len(found) < 50:
        yield f"{rel(page)} names {len(found)} tests only"
    for suite, case, test in found:
        place = TOP / "vm-tests/cases" / suite
        cases = json.loads((place / "suite.json").read_text())["cases"] if place.is_dir() else []
        if case not in [one["name"] for one in cases]:
            yield f"{rel(page)}: there is no case {suite}/{case}"
            continue
        # The kernel tree's own tests are in the series
        defined = rf"\b(TV?|T_LIMIT|ROW)\({test}\b|^(def|    def) {test}\(|^\+TEST(_F)?(_TIMEOUT)?\((\w+, )?{test}\b"
        files = (*place.glob("*.c"), *place.glob("*.py"), *TOP.glob(f"kernel-patches/*-selftests-{suite}.patch"))
        if test and not any(re.search(defined, file.read_text(), re.M) for file in files):
            yield f"{rel(page)}: {suite}/{case} has no test {test}"


def mistakes_fit() -> Iterator[str]:
    """Each mistake of ./build.sh mutate applies to the code as it is, at one place."""
    yield from mistakes.check(mistakes.load(), TOP)


def shell_scripts() -> list[Path]:
    return [p for p in tracked() if p.suffix == ".sh"
            or re.match(rb"#!.*\b(ba|da)?sh\b", p.read_bytes()[:40].split(b"\n")[0])]


def shellcheck() -> Iterator[str]:
    scripts = shell_scripts()
    if scripts:
        yield from output("shellcheck", "-x", "--format=gcc", *scripts, ok=(0, 1)).splitlines()


def python() -> Iterator[str]:
    for path in tracked():
        if path.suffix == ".py" or path.read_bytes()[:40].startswith(b"#!/usr/bin/env python3"):
            try:
                ast.parse(path.read_text(), filename=rel(path))
            except SyntaxError as error:
                yield str(error)


def typed() -> Iterator[str]:
    """The Python package, and the examples that show how it is used, for the oldest Python that they are for."""
    package = TOP / "userspace/python"
    done = output("mypy", "--strict", "--python-version=3.9", "--cache-dir=/dev/null", package / "perdure", *package.glob("*.py"), ok=(0, 1))
    yield from (line for line in done.splitlines() if "error:" in line)


def manual_pages() -> Iterator[str]:
    pages = [p for p in tracked("userspace/") if re.fullmatch(r"\.[1-8]", p.suffix)]
    if not pages:
        yield "there are no manual pages under userspace/"
    for page in pages:
        text = output("mandoc", "-T", "lint", "-W", "warning", page, ok=(0, 1, 2, 3, 4))
        # A page is as old as its release: there is no date to forget
        yield from (line for line in text.splitlines() if "missing date" not in line)
        # Who calls a function has to know from where he may
        attributes = re.search(r"^\.Sh ATTRIBUTES\n(.*?)^\.Sh ", page.read_text(), re.M | re.S)
        if page.suffix in (".2", ".3") and not (attributes and "thread" in attributes[1] and "signal" in attributes[1]):
            yield f"{rel(page)}: no section ATTRIBUTES that speaks of threads and signal handlers"


if __name__ == "__main__":
    main(spdx, licence_texts, white_space, links, orphans, tests_named, mistakes_fit, shellcheck, python, typed, manual_pages)
