#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""./build.sh with work that it must not lose, in a copy."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from points import TOP, equal, main, run

scratch = tempfile.TemporaryDirectory(prefix="build-")
COPY = Path(scratch.name)
LINUX = COPY / "build/linux"
AUTHOR = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def build(verb: str, *options: str) -> tuple[int, str]:
    done = subprocess.run([str(COPY / "build.sh"), verb, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def git(*words: object) -> None:
    run("git", "-C", LINUX, *words, env=AUTHOR)


def copy() -> None:
    """A tree without patches, as ./build.sh patch would leave it"""
    shutil.copy(TOP / "build.sh", COPY)
    shutil.copytree(TOP / "scripts", COPY / "scripts")
    LINUX.mkdir(parents=True)
    git("init", "-q")
    (LINUX / "file").write_text("base\n")
    git("add", "file")
    git("commit", "-q", "-m", "base")
    git("tag", "base")
    (LINUX / ".git/perdure-applied").write_text("")


def kept() -> None:
    """distclean keeps changes, and commits, that the series has not"""
    (LINUX / "file").write_text("changed\n")
    status, said = build("distclean")
    assert status == 1 and "changes that are not committed" in said and "--force" in said, said
    git("commit", "-q", "-a", "-m", "work")
    status, said = build("distclean")
    assert status == 1 and "commits that are not in the series" in said, said
    equal((LINUX / "file").read_text(), "changed\n")


def removed() -> None:
    """It removes them when it is forced to, and what the series has"""
    equal(build("distclean", "--force"), (0, ""))
    assert not LINUX.exists()
    equal(build("distclean"), (0, ""))


def changed() -> None:
    """A build.sh that changes under a verb is not read again"""
    script = COPY / "build.sh"
    size = script.stat().st_size
    (COPY / "scripts/setup.sh").write_text(
        f'#!/bin/sh\nfor n in $(seq {size // 10}); do echo "touch {COPY}/wrong"; done >{script}\n')
    equal(build("setup"), (0, ""))
    assert not (COPY / "wrong").exists(), "it went on with what it did not begin with"


main(copy, kept, removed, changed)
