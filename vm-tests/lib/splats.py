# SPDX-License-Identifier: GPL-2.0-or-later
"""Looks for the kernel's complaints in a console log. In doubt, the answer is that something is wrong."""

import re
from pathlib import Path

import races

LISTS = Path(__file__).resolve().parents[1] / "splats"

# Written by vm-tests/init/init.c around the command: without them the log is not whole
MARKS = ("perdure-init: begin", "perdure-init: end")
# What a kernel says that does look for what its profile is about
PROFILE_MARKS = {"kcsan": ("kcsan: selftest: 3/3 tests passed",)}


def patterns(path: Path) -> list[re.Pattern[str]]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return [re.compile(line) for line in lines]


def scan(console: Path, died: bool = False, lists: Path = LISTS, profile: str = "", until: str = "") -> list[str]:
    """The complaints, one line each, before a line with the text `until`. Of a guest that died, a whole log isn't expected."""
    try:
        deny, allow = patterns(lists / "deny"), patterns(lists / "allow")
        text = console.read_text(errors="replace")
    except (OSError, re.error) as e:
        return [f"the console cannot be scanned: {e}"]
    if not deny:
        return [f"the console cannot be scanned: {lists / 'deny'} is empty"]
    lines = [line.strip() for line in (text.partition(until)[0] if until else text).splitlines()]
    not_ours = races.foreign(lines)
    found = [line for number, line in enumerate(lines)
             if any(p.search(line) for p in deny) and not any(p.search(line) for p in allow) and number not in not_ours]
    for mark in () if died else MARKS + PROFILE_MARKS.get(profile, ()):
        if not any(line.endswith(mark) for line in lines):
            found.append(f'the console is not whole: "{mark}" is missing')
    return found
