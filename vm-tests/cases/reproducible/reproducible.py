#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Packages of one commit, built twice with nothing in common but the commit and the compiler. PERDURE_PACKAGES_PROFILE
names the kernel (small)."""

import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import BUILD, TOP, main, run  # noqa: E402

WORK = BUILD / "test" / "reproducible"
PROFILE = os.environ.get("PERDURE_PACKAGES_PROFILE", "small")
NOBODY = 65534
# What packages must not depend on. The second build is later by itself
FIRST = {"place": "a", "host": "first", "umask": "022", "uid": 0,
         "env": {"TZ": "Pacific/Kiritimati", "LANG": "C.UTF-8", "USER": "root",
                 "CCACHE_DIR": os.environ.get("CCACHE_DIR", str(BUILD / "cache/ccache"))}}
SECOND = {"place": "b/in/a/much/longer/path", "host": "another", "umask": "077", "uid": NOBODY, "age": "2020-02-02",
          "env": {"TZ": "America/Los_Angeles", "LANG": "de_DE.UTF-8", "LC_ALL": "C", "USER": "nobody", "LOGNAME": "nobody",
                  "EMAIL": "nobody@localhost", "DEBFULLNAME": "Nobody", "HOME": str(WORK / "home"), "CCACHE_DISABLE": "1",
                  "DEB_BUILD_OPTIONS": "parallel=1", "CFLAGS": "-O0 -DX", "DEB_CFLAGS_APPEND": "-DY", "KCPPFLAGS": "-DZ", "HOSTCFLAGS": "-O0", "SOURCE_DATE_EPOCH": "1"}}


def clone(how: dict) -> Path:
    """The last commit, at another place; what setup has found out is taken along."""
    place = WORK / how["place"]
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    run("git", "clone", "-q", TOP, place)
    if "age" in how:
        run("find", place, "-name", ".git", "-prune", "-o", "-exec", "touch", "-h", "-d", how["age"], "{}", "+")
    (place / "build/cache").mkdir(parents=True)
    for file in (BUILD / "cache").iterdir():
        if file.is_file():
            shutil.copy(file, place / "build/cache")
    (WORK / "home").mkdir(exist_ok=True)
    if how["uid"]:
        for path in place, WORK / "home":
            run("chown", "-R", f"{how['uid']}:{how['uid']}", path)
    return place


def packages(how: dict, what: str) -> Path:
    place = clone(how)
    shell = f"hostname {how['host']}; umask {how['umask']}; cd {place}; exec setpriv --reuid {how['uid']} --regid {how['uid']} --clear-groups " \
        f"sh -ec './build.sh deb --profile {PROFILE} {what}; ./build.sh rpm --profile {PROFILE} {what}'"
    run("unshare", "--uts", "sh", "-ec", shell, env=how["env"])
    return place / "dist"


def unpack(package: Path, to: Path) -> None:
    """Everything in it, its metadata too."""
    to.mkdir(parents=True)
    if package.suffix == ".deb":
        run("dpkg-deb", "-R", package, to)
    else:
        run("sh", "-ec", f"cd {to}; rpm2cpio {package} | cpio -idm --quiet --no-absolute-filenames")
        (to / "METADATA").write_text(run("rpm", "-qp", "--xml", package))


def state(root: Path) -> dict[str, tuple]:
    found = {}
    for path in sorted(root.rglob("*")):
        stat = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (oct(stat.st_mode), "" if path.is_dir() else int(stat.st_mtime), content)
    return found


def differences(one: Path, two: Path) -> str:
    """Which members of two packages differ, and in what."""
    shutil.rmtree(WORK / "diff", ignore_errors=True)
    both = []
    for number, package in enumerate((one, two)):
        unpack(package, WORK / f"diff/{number}")
        both.append(state(WORK / f"diff/{number}"))
    lines = [f"{one.name}:"]
    for name in sorted(both[0].keys() | both[1].keys()):
        a, b = both[0].get(name), both[1].get(name)
        if a != b:
            lines.append(f"  {name}: " + ("only in one" if not a or not b else ", ".join(
                what for what, x, y in zip(("mode", "time", "content"), a, b) if x != y)))
    return "\n".join(lines[:40] if len(lines) > 1 else [*lines, "  the archive alone: order, compression or header"])


def compare(what: str) -> None:
    dists = packages(FIRST, what), packages(SECOND, what)
    names = [{p.name for p in d.iterdir() if p.suffix in (".deb", ".rpm")} for d in dists]
    assert names[0] == names[1] and any(n.endswith(".deb") for n in names[0]) and any(n.endswith(".rpm") for n in names[0]), names
    print(f"# {len(names[0])} packages: {' '.join(sorted(names[0]))}")
    bad = [differences(dists[0] / n, dists[1] / n) for n in sorted(names[0]) if (dists[0] / n).read_bytes() != (dists[1] / n).read_bytes()]
    assert not bad, "\n" + "\n".join(bad)
    sums = [(d / "SHA256SUMS").read_text() for d in dists]
    assert sums[0] == sums[1]


def userspace() -> None:
    """The library's and the tools' packages are the same bytes."""
    compare("userspace")


def kernel() -> None:
    """The kernel's packages are the same bytes, compiled with and without the compiler's cache."""
    compare("kernel")


def sees() -> None:
    """A difference would be seen, and named."""
    shutil.rmtree(WORK / "see", ignore_errors=True)
    made = []
    for number in range(2):
        root = WORK / f"see/{number}/p"
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN/control").write_text("Package: p\nVersion: 1\nArchitecture: all\nMaintainer: m <m@localhost>\nDescription: d\n")
        (root / "file").write_text(f"{number}\n")
        os.utime(root / "file", (number, number))
        made.append(WORK / f"see/{number}.deb")
        run("dpkg-deb", "-b", root, made[-1])
    text = differences(*made)
    assert "  file: time, content" in text, text


if __name__ == "__main__":
    assert os.getuid() == 0, "needs root: it builds as another user, on another host"
    WORK.mkdir(parents=True, exist_ok=True)
    run(TOP / "scripts/setup.sh", "packages")
    main(sees, {"userspace": userspace, "kernel": kernel}[sys.argv[1]])
