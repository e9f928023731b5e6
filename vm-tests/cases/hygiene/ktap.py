# SPDX-License-Identifier: GPL-2.0-or-later
"""A check is a function that yields its complaints, one line each; none means that it passed."""

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

TOP = Path(os.environ.get("PERDURE_TOP") or Path(__file__).resolve().parents[3])
BUILD = Path(os.environ.get("PERDURE_BUILD") or TOP / "build")

Check = Callable[[], Iterable[str]]


def output(*command: str | Path, cwd: Path = TOP, ok: tuple[int, ...] = (0,), env: dict[str, str] | None = None) -> str:
    """What the command printed, errors included. A status that is not ok is an error of the check itself."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env=os.environ | (env or {}), text=True, errors="replace")
    if done.returncode not in ok:
        raise RuntimeError(f"{' '.join(map(str, command))[:200]}: status {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def differ(what: str, have: object, want: object) -> Iterator[str]:
    if have != want:
        yield f"{what} is {have!r}, not {want!r}"


def tracked(*patterns: str) -> list[Path]:
    """The repository's files, as git knows them."""
    names = output("git", "ls-files", "-z", "--", *patterns).split("\0")
    return [TOP / name for name in names if name and (TOP / name).is_file()]


def rel(path: Path) -> str:
    return str(path.relative_to(TOP))


def run(*checks: Check) -> int:
    print(f"KTAP version 1\n1..{len(checks)}", flush=True)
    failed = 0
    for number, check in enumerate(checks, 1):
        name = check.__name__.replace("_", "-")
        try:
            complaints = [line for complaint in check() for line in complaint.splitlines()]
        except Exception:   # a check that breaks is a check that failed
            complaints = traceback.format_exc().splitlines()
        for line in complaints[:60]:
            print(f"# {line}")
        if len(complaints) > 60:
            print(f"# and {len(complaints) - 60} lines more")
        failed += bool(complaints)
        print(f"{'not ok' if complaints else 'ok'} {number} {name}" + (f" # {complaints[0]}" if complaints else ""),
              flush=True)
    return 1 if failed else 0


def main(*checks: Check) -> None:
    """All checks, or those named on the command line."""
    wanted = sys.argv[1:]
    sys.exit(run(*(c for c in checks if not wanted or c.__name__.replace("_", "-") in wanted)))
