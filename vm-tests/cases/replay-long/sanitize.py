#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A library built with a sanitizer, and its suite's programs with it: sanitize.py thread|address,undefined [replay|takeover-user]"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import BUILD, TOP, main  # noqa: E402

WHAT, SUITE = sys.argv[1], [*sys.argv, "replay"][2]
PLACE = BUILD / f"{SUITE}-{WHAT.split(',')[0]}"
CASES = Path(__file__).resolve().parents[1] / SUITE
PERDURECTL = "userspace/tools/perdurectl"
# Others are static, which sanitizers cannot be
PROGRAMS, TARGETS = {
    "replay": ((("protocol.py",), ("faults.py",), ("operators.py",), ("crash.py", "10", "100", "20")),
               ("userspace/replay/replayctl", PERDURECTL, *(f"vm-tests/cases/replay/{name}" for name in ("replay-service", "replay-load", "libslow-read.so")))),
    "takeover-user": ((("replies.py",), ("agree.py",), ("files.py",), ("hostile.py",)),
                      ("userspace/takeover/takeoverd", "userspace/takeover/takeoverctl", PERDURECTL,
                       *(f"vm-tests/cases/takeover-user/{name}" for name in ("takeover-client", "libtakeover-kernel.so")))),
}[SUITE]
# Errors end a program at once, so its test fails; what a sanitizer cannot know is not asked for
ENV = {"PERDURE_BUILD": str(PLACE), "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1:verify_asan_link_order=0", "UBSAN_OPTIONS": "halt_on_error=1",
       "TSAN_OPTIONS": "halt_on_error=1:abort_on_error=1"}


def build() -> None:
    """It builds"""
    again = ["--reconfigure"] if (PLACE / "userspace/build.ninja").exists() else []
    for argv in (["meson", "setup", *again, "-Dtests=true", f"-Db_sanitize={WHAT}", "-Db_lundef=false", PLACE / "userspace", TOP],
                 ["ninja", "-C", PLACE / "userspace", *TARGETS]):
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout[-3000:]


def programs() -> None:
    """The suite's programs find nothing"""
    for name, *arguments in PROGRAMS:
        done = subprocess.run([CASES / name, *arguments], env=os.environ | ENV, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, f"{name}\n{done.stdout[-5000:]}"


main(build, programs)
