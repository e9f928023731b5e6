# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs functions as KTAP points: one that raises has failed."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

TOP = Path(os.environ["PERDURE_TOP"])
BUILD = Path(os.environ["PERDURE_BUILD"])
VMLINUX = Path(os.environ.get("PERDURE_VMLINUX") or BUILD / "kernel" / "perdure-vm" / "vmlinux")
sys.path.insert(0, str(TOP / "vm-tests" / "lib"))


def equal(got: object, want: object) -> None:
    assert got == want, f"{got!r}, not {want!r}"


def main(*functions: Callable[[], None]) -> None:
    print(f"KTAP version 1\n1..{len(functions)}", flush=True)
    failed = False
    for number, function in enumerate(functions, 1):
        name = (function.__doc__ or function.__name__).rstrip(".").replace("#", "")
        try:
            function()
            print(f"ok {number} {name}", flush=True)
        except Exception:
            failed = True
            print("".join(f"# {line}\n" for line in traceback.format_exc().splitlines()), end="")
            print(f"not ok {number} {name}", flush=True)
    sys.exit(failed)
