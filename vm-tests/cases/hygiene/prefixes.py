#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Every prefix of the kernel series compiles, as far as it goes, and the whole with its options off, or one of them. (The suite bisect compiles and boots
all of each: hours.)"""

from collections.abc import Iterator
from pathlib import Path

from kernel import WORK, apply, checkout_base, configure, files_of, fingerprint, make, own, series, touched
from ktap import main


def prefixes() -> Iterator[str]:
    """Every prefix of the series applies, and the objects it touches compile. (All of it is compiled when the kernels are built.)"""
    passed = WORK / "passed"
    done = set(passed.read_text().split()) if passed.exists() else set()
    configured = False
    patches = series()
    checkout_base()
    for number, patch in enumerate(patches, 1):
        try:
            apply(patch)
        except RuntimeError as error:
            yield str(error)
            return
        stamp = fingerprint(patches[:number])
        if stamp in done or all(f.startswith(("tools/", "Documentation/")) or f == "MAINTAINERS" for f in files_of(patch)):
            continue
        try:
            # Options that are new
            if not configured or any(Path(f).name.startswith("Kconfig") for f in files_of(patch)):
                configure()
                configured = True
            objects = touched(patch) + own(patch)
            if objects:
                make("KCFLAGS=-Werror", *objects)
        except RuntimeError as error:
            yield f"with the patches up to {patch.name}: {error}"
            continue
        done.add(stamp)
    passed.write_text("\n".join(sorted(done)) + "\n")


def off() -> Iterator[str]:
    """The files that the series touches compile with its options off."""
    configure("vm.config", "off.config")
    try:
        make("KCFLAGS=-Werror", *sorted({name for patch in series() for name in touched(patch)}))
    except RuntimeError as error:
        yield str(error)


def alone() -> Iterator[str]:
    """Rescue points compile without peers that go back, too."""
    configure(without="RESCUE_CASCADE")
    try:
        make("KCFLAGS=-Werror", *own(), *sorted({name for patch in series() if "RESCUE" in patch.read_text() for name in touched(patch)}))
    except RuntimeError as error:
        yield str(error)


if __name__ == "__main__":
    main(prefixes, off, alone)
