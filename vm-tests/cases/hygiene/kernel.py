# SPDX-License-Identifier: GPL-2.0-or-later
"""A kernel tree of our own, to put prefixes of the series on, and objects of it."""

import hashlib
import os
import re
import shutil
from pathlib import Path

from ktap import BUILD, TOP, output

PATCHES = TOP / "kernel-patches"
SOURCE = BUILD / "linux"            # made by ./build.sh patch; its tag "base" is the kernel without us
WORK = BUILD / "test" / "hygiene"
TREE = WORK / "linux"               # ours to check out as we like
OBJECTS = BUILD / "kernel" / "prefix"
FRAGMENTS = ("vm.config", "features.config")

# Files of the kernel that are ours alone, when they are there.
OWN = ("kernel/zlr", "net/ipv4/tcp_hold.c", "net/ipv4/tcp_replica.c", "include/net/tcp_replica.h", "include/uapi/linux/tcp_replica.h",
       "net/ipv4/tcp_cascade.c", "include/net/tcp_cascade.h", "include/linux/zlr.h", "include/uapi/linux/zlr.h",
       "include/trace/events/zlr.h", "mm/touched_set.c", "fs/proc/touched_set.c", "include/linux/touched_set.h",
       "mm/hole_list.c", "mm/hole_list.h", "mm/lazy_loader.c", "include/linux/no_fault.h", "include/linux/lazy_loader.h",
       "include/uapi/linux/lazy_loader.h", "include/trace/events/lazy_loader.h",
       "kernel/rescue", "arch/x86/kernel/fpu/rescue.c", "include/linux/rescue.h", "include/uapi/linux/rescue.h", "mm/undo.c",
       "include/linux/mm_undo.h")


def series() -> list[Path]:
    lines = (PATCHES / "series").read_text().splitlines()
    return [PATCHES / line.strip() for line in lines if line.strip() and not line.startswith("#")]


def git(*args: str | Path, ok: tuple[int, ...] = (0,)) -> str:
    return output("git", *args, cwd=TREE, ok=ok)


def base() -> str:
    if not (SOURCE / ".git").exists():
        raise RuntimeError(f"{SOURCE} is missing: run ./build.sh patch")
    return output("git", "rev-parse", "base^{commit}", cwd=SOURCE).strip()


def checkout_base() -> None:
    """Puts the tree on the unpatched kernel; unchanged files keep their times, so that objects stay valid."""
    commit = base()
    try:
        git("fetch", "-q", "--tags", "--force", "origin")
    except (RuntimeError, OSError):
        # No tree yet, or one that borrows from a build/linux that has been made anew since
        shutil.rmtree(TREE, ignore_errors=True)
        TREE.parent.mkdir(parents=True, exist_ok=True)
        output("git", "clone", "-q", "--shared", "--no-checkout", SOURCE, TREE)
    git("checkout", "-q", "--force", "--detach", commit)
    git("clean", "-qfd")


def apply(patch: Path) -> None:
    """No fuzz, no white space errors; offsets are fine."""
    git("apply", "--index", "--whitespace=error-all", patch)


def files_of(patch: Path) -> list[str]:
    """What the patch adds or changes."""
    return re.findall(r"^\+\+\+ b/(\S+)$", patch.read_text(errors="replace"), re.M)


def make(*args: str, ok: tuple[int, ...] = (0,)) -> str:
    return output("make", "-s", f"-j{os.cpu_count()}", f"O={OBJECTS}", *args, cwd=TREE, ok=ok)


def configure(*fragments: str, without: str = "") -> None:
    OBJECTS.mkdir(parents=True, exist_ok=True)
    wanted = "".join((TOP / "configs" / name).read_text() for name in fragments or FRAGMENTS)
    wanted = wanted.replace(f"CONFIG_{without}=y", f"# CONFIG_{without} is not set")
    fragment = OBJECTS / "wanted.config"
    if not fragment.exists() or fragment.read_text() != wanted or not (OBJECTS / ".config").exists():
        fragment.write_text(wanted)
    # Each prefix has other options; an unchanged result keeps its time.
    make(f"KCONFIG_ALLCONFIG={fragment}", "allnoconfig")


def checkout_all() -> None:
    """The tree with the whole series."""
    checkout_base()
    for patch in series():
        apply(patch)


def built(name: str) -> bool:
    """Does a Makefile name it yet, for an option that is on? The parts of a long file come in several patches, and it is built with
    the last; an option without a prompt is on when the first one selects it."""
    makefile = (TREE / name).with_name("Makefile").read_text()
    found = re.search(rf"^\w+-(?:y|\$\((\w+)\)).* {re.escape(Path(name).stem)}\.o\b", makefile, re.M)
    return bool(found) and (not found[1] or f"{found[1]}=y" in (OBJECTS / ".config").read_text())


def own(patch: Path | None = None) -> list[str]:
    """Objects of our files, as far as the series has got; of a patch, those that it touches, or all when it touches one of our headers."""
    files = files_of(patch) if patch else []
    everything = not patch or any(name.startswith("include/") and name in OWN for name in files)
    ours = [name for name in OWN if name.startswith(("arch/", "kernel/", "net/", "mm/", "fs/")) and (TREE / name).exists()
            and (everything or any(file == name or file.startswith(name + "/") for file in files))]
    return [name + "/" for name in ours if (TREE / name).is_dir()] + \
        [name[:-2] + ".o" for name in ours if name.endswith(".c") and built(name)]


def touched(patch: Path) -> list[str]:
    """Objects of the kernel's files that a patch touches."""
    objects: set[str] = set()
    for name in files_of(patch):
        if name.endswith(".tbl"):
            objects |= {"arch/x86/entry/syscall_64.o", "kernel/sys_ni.o"}
        # KUnit tests are included by what they test, and sem_recover.c by sem.c, which its patch touches, too
        elif re.search(r"(?<!_kunit)(?<!_recover)\.c$", name) and not name.startswith(("tools/", "Documentation/", "samples/", *OWN)):
            objects.add(name[:-2] + ".o")
    return sorted(objects)


def fingerprint(patches: list[Path]) -> str:
    """Of everything that decides whether a prefix compiles."""
    digest = hashlib.sha256(base().encode())
    for part in (*patches, *(TOP / "configs" / name for name in FRAGMENTS), Path(__file__),
                 Path(__file__).parent / "prefixes.py"):
        digest.update(part.read_bytes())
    digest.update(output("gcc", "--version").encode())
    return digest.hexdigest()
