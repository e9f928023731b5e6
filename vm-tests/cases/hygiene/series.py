#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel series: form, checkpatch, sparse and kernel-doc on what is ours."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from kernel import OBJECTS, OWN, PATCHES, SOURCE, TREE, WORK, checkout_all, configure, make, own, series
from ktap import TOP, main, output, rel

HERE = Path(__file__).parent


def form() -> Iterator[str]:
    """Names, order and mail headers, as kernel-patches/README.md has them."""
    names = [path.name for path in series()]
    if not names:
        yield "kernel-patches/series names no patch"
    if names != sorted(names):
        yield "kernel-patches/series is not in the order of its numbers"
    numbers = [name[:3] for name in names]
    yield from (f"number {n} is used twice" for n in sorted(set(numbers)) if numbers.count(n) > 1)
    yield from (f"{rel(path)} is not in the series" for path in PATCHES.glob("*.patch") if path.name not in names)
    for path in series():
        if not path.exists():
            yield f"{rel(path)} is in the series, but missing"
            continue
        head, _, _ = path.read_text().partition("\n---\n")
        fields = dict(re.findall(r"^(From|Date|Subject): (.*(?:\n .*)*)$", head, re.M))
        subject = re.sub(r"\n ", " ", fields.get("Subject", "")).removeprefix("[PATCH] ")
        author = re.sub(r"\n ", " ", fields.get("From", ""))
        if not re.fullmatch(r"[0-9]{3}-[a-z0-9-]+\.patch", path.name):
            yield f"{path.name}: not named NNN-area-what.patch"
        if not re.fullmatch(r"[a-z0-9/._-]+(: [a-z0-9/._-]+)*: \S.*", subject) or len(subject) > 72:
            yield f"{path.name}: subject is not 'area: imperative' of at most 72 characters: {subject!r}"
        if "Date" not in fields:
            yield f"{path.name}: no Date"
        if f"Signed-off-by: {author}" not in head:
            yield f"{path.name}: not signed off by its author {author!r}"
        if len(re.split(r"\n\n", head)) < 3:
            yield f"{path.name}: does not say why"


def refreshed_on() -> tuple[str, str]:
    """The release that the series is refreshed on, and the one that is here: "" if UPSTREAM does not name it."""
    pins = [line.split() for line in (PATCHES / "UPSTREAM").read_text().splitlines() if line.startswith("source ")]
    here = (SOURCE / ".git/perdure-source").read_text().split(",")[0]
    return pins[0][1], next((version for _, version, checksum, *_ in pins if checksum == here), "")


# What a patch has from the release that it was made on
PLACES = re.compile(r"^([-+ ]?index [0-9a-f]+\.\.[0-9a-f]+.*|@@ [-+0-9, ]+ @@.*)$", re.M)


def fixed_point() -> Iterator[str]:
    """patch and then refresh give the same bytes; on another release than its own, but for line numbers and checksums. Done
    with copies, so that the series itself is safe."""
    copy, same = WORK / "top", WORK / "same"
    for place in copy, same:
        shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(TOP / "scripts", copy / "scripts")
    shutil.copytree(PATCHES, copy / "kernel-patches")
    output(copy / "scripts/refresh.sh", "--tree", SOURCE, "--base", "base")
    own, here = refreshed_on()
    before = PATCHES
    if here != own:
        before = shutil.copytree(PATCHES, same)
        for path in [*same.glob("*.patch"), *(copy / "kernel-patches").glob("*.patch")]:
            path.write_text(PLACES.sub("", path.read_text()))
    done = subprocess.run(["diff", "-ru", before, copy / "kernel-patches"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        yield "./build.sh refresh would change the series (or build/linux holds work that is not in it):"
        yield done.stdout[:3000]


def allowed() -> set[tuple[str, str]]:
    """checkpatch.allow: file, type, reason."""
    lines = (HERE / "checkpatch.allow").read_text().splitlines()
    return {(line.split()[0], line.split()[1]) for line in lines if line and not line.startswith("#")}


def checkpatch() -> Iterator[str]:
    excused, used = allowed(), set()
    script = SOURCE / "scripts/checkpatch.pl"
    for path in series():
        # Without git, it leaves out spdxcheck, which needs more packages; the kernel's rules for SPDX lines remain
        text = output("perl", script, "--strict", "--show-types", "--terse", "--showfile", path, cwd=SOURCE, ok=(0, 1),
                      env={"GIT_DIR": "/none"})
        for line in text.splitlines():
            found = re.match(r"([^:]*):\d+: (?:ERROR|WARNING|CHECK):([A-Z_0-9]+): ", line)
            entry = next((e for e in excused if found and e in ((found[1], found[2]), ("*", found[2]))), None)
            if entry:
                used.add(entry)
            elif not line.startswith("total: "):
                yield f"{path.name}: {line}"
    yield from (f"checkpatch.allow: {file} {kind} is not needed" for file, kind in sorted(excused - used))


def bodies(file: str, function: str) -> list[str]:
    """The definitions of that name, up to the brace that ends them."""
    return re.findall(rf"^\w[^\n;]*\b{function}\((?:(?!^}}).)*^}}", (TREE / file).read_text(), re.M | re.S)


# The iterator of /proc/net/tcp_replica holds the lock of the service at which it is, if at any; mm/undo.c keeps
# that of a page table while it walks
BETWEEN_CALLS = {"iter_service", "replica_seq_stop", "undo_table_unlock"}


def sparse() -> Iterator[str]:
    """On the whole series."""
    checkout_all()
    configure()
    objects = [target for target in own() if target.endswith(".o")] + [
        str(source.relative_to(TREE))[:-2] + ".o" for name in OWN for source in sorted((TREE / name).glob("*.c"))
        if not source.stem.endswith("_kunit")]      # those are included by the others
    if not objects:
        yield "there is nothing of ours in the tree"
    text = output("make", "-s", f"O={OBJECTS}", "C=2", "W=1", *objects, cwd=TREE, ok=(0, 2))
    for line in text.splitlines():
        # sparse does not see that the end of a scope unlocks what guard() has locked, nor that pte_offset_map_lock() locks when it
        # finds a table; lockdep counts, in the debug profile
        found = re.match(r"([^:]+):.*context imbalance in '(\w+)'", line)
        if found and (found[2] in BETWEEN_CALLS or
                      any(lock in body for body in bodies(found[1], found[2]) for lock in ("guard(", "pte_offset_map_lock("))):
            continue
        if re.match(rf"(?:\S*/)?(?:{'|'.join(OWN)})\S*:\d+:\d+: (?:warning|error):", line):
            yield line


def kernel_doc() -> Iterator[str]:
    files = [str(file.relative_to(TREE)) for name in OWN
             for file in (sorted((TREE / name).glob("*.[ch]")) if (TREE / name).is_dir() else [TREE / name])
             if file.exists()]
    if not files:
        yield "there is nothing of ours in the tree"
        return
    text = output("perl", "scripts/kernel-doc", "-none", "-Wall", "-Werror", *files, cwd=TREE, ok=tuple(range(256)))
    yield from text.splitlines()


if __name__ == "__main__":
    main(form, fixed_point, checkpatch, sparse, kernel_doc)
