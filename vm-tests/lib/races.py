# SPDX-License-Identifier: GPL-2.0-or-later
"""Which of KCSAN's reports are about our code. The stock kernel has many races that nobody minds."""

import re
from pathlib import Path

import vm

PATCHES = vm.TOP / "kernel-patches"
REPORT = re.compile(r"BUG: KCSAN: ")
END = re.compile(r"Reported by Kernel Concurrency Sanitizer")
FRAME = re.compile(r"([A-Za-z_][\w.]*)\+0x[0-9a-f]+/0x[0-9a-f]+$")
ACCESS = re.compile(r"(read|write|assert no).* to 0x[0-9a-f]+ of \d+ bytes by ")
INTERRUPTS = ("asm_sysvec_", "asm_common_interrupt", "handle_softirqs")
# Stock's, which do the same for whoever reads, writes or executes a file, and race for its times, its credentials and
# the flags of the task, which the timer looks at
STOCK = ("touch_atime", "file_update_time", "alloc_bprm", "bprm_execve", "page_cache_ra_unbounded")
DEFINITION = re.compile(r"\+(?:[A-Za-z_][\w ]*[ *]+)?(\w+)\((\w*)[^;]*$")
HUNK = re.compile(r"@@ .* @@ (?:[A-Za-z_][\w ]*[ *]+)?(\w+)\((\w*)")


def name(function: str, argument: str) -> str:
    return f"sys_{argument}" if "SYSCALL_DEFINE" in function else function


def series(patches: Path = PATCHES) -> tuple[set[str], set[str]]:
    """The functions that the series defines, and those of other people that it changes."""
    defined: set[str] = set()
    changed: set[str] = set()
    for patch in patches.glob("*.patch"):
        code = False
        for line in patch.read_text().splitlines():
            if line.startswith("diff --git"):
                code = line.endswith((".c", ".h")) and " a/tools/" not in line
            elif code and (match := DEFINITION.match(line)):
                defined.add(name(*match.groups()))
            elif code and (match := HUNK.match(line)):
                changed.add(name(*match.groups()))
    return defined, changed - defined


def ours(report: list[str], defined: set[str], changed: set[str]) -> bool:
    """Does a function of ours stand on a stack, or is one that we changed where the access is?"""
    # Whoever wrote did so by intent, as in data_race(): what counts is who reads
    unknown = any("race at unknown origin" in line for line in report)
    top = apart = False
    for line in report:
        if ACCESS.search(line):
            top, apart = True, False
        elif (match := FRAME.search(line)) and not apart:
            function = re.sub(r"^__(x64|ia32|se|do)_(compat_)?sys_", "sys_", match[1].split(".")[0])
            if function in defined and (top or not unknown) or top and function in changed:
                return True
            # What was interrupted has nothing to do with it, nor who called stock's
            top, apart = False, match[1].startswith(INTERRUPTS) or function in STOCK
    return False


def foreign(lines: list[str], patches: Path = PATCHES) -> set[int]:
    """The numbers of the lines that begin a report about somebody else's code. One without an end is nobody else's."""
    found: set[int] = set()
    starts = [number for number, line in enumerate(lines) if REPORT.search(line)]
    if not starts:
        return found
    defined, changed = series(patches)
    for start in starts:
        end = next((n for n in range(start + 1, len(lines)) if END.search(lines[n]) or REPORT.search(lines[n])), None)
        if end and END.search(lines[end]) and not ours(lines[start + 1:end], defined, changed):
            found.add(start)
    return found
