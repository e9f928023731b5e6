# SPDX-License-Identifier: GPL-2.0-or-later
"""The list of small mistakes that the tests should notice, vm-tests/mutate/mistakes/*: finds the place of each in the code."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LISTS = Path(__file__).resolve().parents[1] / "mutate" / "mistakes"
KERNEL = ("arch/", "fs/", "include/", "io_uring/", "ipc/", "kernel/", "mm/", "net/")


class Error(Exception):
    """The list is wrong; the text says where."""


def parts(suite: str) -> tuple[str, str, str]:
    """Name, case and profile of SUITE/CASE@PROFILE; the last two may be empty."""
    named, _, profile = suite.partition("@")
    name, _, case = named.partition("/")
    return name, case, profile


@dataclass
class Mistake:
    name: str
    file: str
    function: str       # where to look; "" for the whole file
    old: str
    new: str
    suites: list[str]   # the one that is most likely to notice it first

    @property
    def kernel(self) -> bool:
        """In the kernel's tree, not in this repository."""
        return self.file.startswith(KERNEL)

    @property
    def whole_suites(self) -> list[str]:
        return [parts(suite)[0] for suite in self.suites]

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256("\0".join([self.file, self.function, self.old, self.new, *self.suites]).encode()).hexdigest()[:16]

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where it fits. White space is any white space: a line may be broken elsewhere by now."""
        pattern = re.compile(r"\s+".join(map(re.escape, self.old.split())))
        return [(low + found.start(), low + found.end()) for low, high in functions(text, self.function, self.file)
                for found in pattern.finditer(text[low:high])]

    def problems(self, text: str) -> list[str]:
        places = self.places(text)
        if len(places) == 1:
            return []
        if self.function and not functions(text, self.function, self.file):
            return [f"{self.file} has no function {self.function}"]
        return [f"{len(places)} places in {self.file} {self.function}".rstrip() + f" have: {self.old}"]

    def apply(self, text: str) -> str:
        (start, end), = self.places(text)
        return text[:start] + self.new + text[end:]


@dataclass
class Generic(Mistake):
    """One of a tool's making: `new` is the whole file, for `old`."""

    def problems(self, text: str) -> list[str]:
        return [] if text == self.old else [f"{self.file} has changed meanwhile"]

    def apply(self, text: str) -> str:
        return self.new


def functions(text: str, name: str, file: str) -> list[tuple[int, int]]:
    """Where the definitions of that name begin and end; the whole text without a name."""
    if not name:
        return [(0, len(text))]
    found = []
    if file.endswith((".c", ".h")):
        # From the beginning of a line to the next closing brace there; a system call's name is an argument
        start = re.compile(rf"^(?:\w[^\n;=]*\b{re.escape(name)}\(|SYSCALL_DEFINE\d\({re.escape(name)},)", re.M)
        for match in start.finditer(text):
            brace, semicolon = text.find("\n{", match.end()), re.compile(r";[ \t]*$", re.M).search(text, match.end())
            if brace >= 0 and (not semicolon or brace < semicolon.start()):
                close = text.find("\n}", brace)
                found.append((match.start(), close if close >= 0 else len(text)))
        return found
    for match in re.finditer(rf"^([ \t]*)def {re.escape(name)}\(", text, re.M):
        after = re.compile(rf"^[ \t]{{0,{len(match[1])}}}[^\s)#]", re.M).search(text, match.end())
        found.append((match.start(), after.start() if after else len(text)))
    return found


def parse(path: Path) -> Iterator[Mistake]:
    """
    A name; indented below it the file and the function, what is there (-) and what is to be there instead (+), on as many
    lines as it needs, and the suites, SUITE/CASE@PROFILE when only that profile's kernel can see it. An empty line ends it.
    """
    for block in re.split(r"\n[ \t]*\n", path.read_text()):
        lines = [line for line in block.split("\n") if line.strip() and not line.startswith("#")]
        if not lines:
            continue
        where = f"{path.name}: {lines[0]}"
        body = [line.strip() for line in lines[1:]]
        if lines[0] != lines[0].strip() or not re.fullmatch(r"[a-z0-9-]+", lines[0]) or len(body) < 3 or not body[1].startswith("-"):
            raise Error(f"{where}: not a name, a file, what is there, and suites")
        file, _, function = body[0].partition(" ")
        old = "\n".join(line[1:].strip() for line in body[1:-1] if line.startswith("-"))
        new = "\n".join(line[1:].strip() for line in body[1:-1] if line.startswith("+"))
        if any(line[0] not in "-+" for line in body[1:-1]) or old == new:
            raise Error(f"{where}: its lines begin with - and +, and differ")
        yield Mistake(lines[0], file, function, old, new, body[-1].split())


def load(place: Path = LISTS) -> list[Mistake]:
    found = [one for path in sorted(place.glob("*.list")) for one in parse(path)]
    names = [one.name for one in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Error(f"two mistakes are called {', '.join(twice)}")
    return found


def check(found: list[Mistake], top: Path) -> Iterator[str]:
    """What is wrong with them, as the code is now."""
    for one in found:
        path = (top / "build/linux" if one.kernel else top) / one.file
        if not path.is_file():
            yield f"{one.name}: there is no {one.file}"
        else:
            yield from (f"{one.name}: {problem}" for problem in one.problems(path.read_text()))
        for suite in one.suites:
            name, case, profile = parts(suite)
            file = top / "vm-tests/cases" / name / "suite.json"
            known = json.loads(file.read_text()) if file.is_file() else {"cases": [], "profiles": []}
            if case and case not in [c["name"] for c in known["cases"]] or profile not in ["", *known["profiles"]]:
                yield f"{one.name}: there is no suite {suite}"
