#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Every prefix of the series, from none to all: builds as a whole, with our options on, and boots."""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hygiene"))
from kernel import TREE, apply, checkout_base, series  # noqa: E402
from ktap import BUILD, TOP  # noqa: E402

OBJECTS = BUILD / "kernel" / "bisect"
LOG = BUILD / "log"


def build(log: Path) -> bool:
    OBJECTS.mkdir(parents=True, exist_ok=True)
    fragment = OBJECTS / "wanted.config"
    fragment.write_text("".join((TOP / "configs" / name).read_text() for name in ("vm.config", "features.config")))
    make = ["make", "-s", f"-j{os.cpu_count()}", f"O={OBJECTS}"]
    if "CCACHE_DIR" in os.environ:
        make.append("CC=ccache gcc")
    with open(log, "w") as out:
        return all(subprocess.run([*make, *goal], cwd=TREE, stdin=subprocess.DEVNULL, stdout=out, stderr=out).returncode == 0
                   for goal in ([f"KCONFIG_ALLCONFIG={fragment}", "allnoconfig"], ["vmlinux"]))


def boots(console: Path) -> bool:
    command = [str(TOP / "vm-tests/run"), "run", "--vmlinux", str(OBJECTS / "vmlinux"), "--timeout", "120",
               "--log", str(console), "--", "true"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode == 0


def main() -> int:
    patches = series()
    failed = 0
    LOG.mkdir(parents=True, exist_ok=True)
    print(f"KTAP version 1\n1..{len(patches) + 1}", flush=True)
    checkout_base()
    for number, patch in enumerate([None, *patches]):
        name = patch.stem if patch else "base"
        log = LOG / f"bisect-{name}.log"
        why = ""
        if patch:
            try:
                apply(patch)
            except RuntimeError as error:
                print(f"Bail out! {patch.name} does not apply: {error}")
                return 1
        if not build(log):
            why = f"does not build, see {log}"
        elif not boots(log.with_suffix(".console")):
            why = f"does not boot, see {log.with_suffix('.console')}"
        failed += bool(why)
        print(f"{'not ok' if why else 'ok'} {number + 1} {name}{' # ' + why if why else ''}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
