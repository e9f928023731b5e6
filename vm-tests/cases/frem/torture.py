#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Checkpoints and restores, at random instants, a process that checks its memory; damages checkpoints at random places;
takes the disk away from a restore. usage: torture.py [--rounds N] [--minutes N] [--damages N] [--seed N] [CASE...]"""

import argparse
import contextlib
import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from roundtrip import LAZY, SLOW, Target, before_criu, frem, run_cases, wait  # noqa: E402

PROGRAM = Path(os.environ["PERDURE_BUILD"]) / "userspace/vm-tests/cases/frem/frem-torture"
args: argparse.Namespace


def end(process: subprocess.Popen) -> None:
    """All of its session."""
    def left() -> bool:
        process.poll()
        return any(session_of(path) == str(process.pid) for path in Path("/proc").glob("[0-9]*"))
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    wait("all are gone", lambda: not left())


def session_of(process: Path) -> str:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[3]
    except OSError:
        return ""


def steps(log: Path) -> int:
    text = log.read_text()
    assert "WRONG" not in text, text[-400:]
    return text.count("ok")


@contextlib.contextmanager
def disk(place: Path, megabytes: int = 64) -> Iterator[tuple[Path, Path]]:
    """The image of a disk, and where it is mounted: what is in it can leave memory, unlike the files of the guest's /tmp."""
    image, mount = place / "disk", place / "mount"
    mount.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", "-O", "^has_journal", image], check=True)
    loop = subprocess.run(["losetup", "-f", "--show", image], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    subprocess.run(["mount", loop, mount], check=True)
    try:
        yield image, mount
    finally:
        subprocess.run(["umount", "-l", mount], check=True)
        subprocess.run(["losetup", "-d", loop], check=True)


def empty_caches() -> None:
    subprocess.run(["sh", "-c", "sync; echo 3 >/proc/sys/vm/drop_caches"], check=True)


def forget(directory: Path) -> None:
    """Only the checkpoint leaves memory: programs come from the host, slowly."""
    os.sync()
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rounds(place: Path) -> None:
    """a process is checkpointed and restored again and again, and never finds a wrong byte"""
    chance = random.Random(args.seed)
    log = place / "log"
    # It never rests: frem and CRIU come first, or it has both processors
    process = subprocess.Popen(["nice", "-n", "10", PROGRAM, log, str(args.seed)], start_new_session=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log.touch()
    wait("it works", lambda: steps(log))
    pid = process.pid
    deadline = time.monotonic() + args.minutes * 60 if args.minutes else None
    done = lazy = faults = 0
    with disk(place, 256) as (_, mount):
        directory = mount / "c"
        while done < args.rounds and (not deadline or time.monotonic() < deadline):
            time.sleep(chance.random() / 3)
            how = chance.choice([["--kill"], ["--window", f"{chance.uniform(0.001, 0.2):.3f}"]])
            frem("checkpoint", str(pid), "--dir", str(directory), *how)
            end(process)
            before = steps(log)
            if chance.random() < 0.5:
                forget(directory)
            detach = chance.random() < 0.5
            how = [*(["--detach"] if detach else []), *(["--preload"] if chance.random() < 0.5 else [])]
            result, _ = frem("restore", "--dir", str(directory), "--json", *how)
            assert result["mode"] == ("lazy" if LAZY else "plain"), result
            lazy += LAZY
            faults += result.get("loader", {}).get("faults", 0)
            wait("it goes on", lambda: steps(log) > before)
            done += 1
            shutil.rmtree(directory)
            if done % 20 == 0:
                print(f"# {done} rounds", flush=True)
    end(process)
    print(f"# {done} rounds, {lazy} of them lazy, {steps(log)} times {50} steps, {faults} faults while loading")


def damage(place: Path) -> None:
    """a flipped bit or a cut anywhere in an image is found, and nothing runs"""
    chance = random.Random(args.seed)
    target = Target(place)
    good = place / "good"
    frem("checkpoint", str(target.pid), "--dir", str(good), "--kill")
    target.process.wait()
    images = sorted(good.iterdir())
    for number in range(args.damages):
        # Mostly where most of the bytes are
        chosen = next(good.glob("pages-*.img")) if chance.random() < 0.5 else chance.choice(images)
        info = chosen.stat()
        if chosen.name == "dump.log" or not info.st_size:
            continue
        bad = place / "bad"
        shutil.copytree(good, bad)
        path, at = bad / chosen.name, chance.randrange(info.st_size)
        cut = chance.random() < 0.4
        if cut:
            os.truncate(path, at)
        else:
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0] ^ 1 << chance.randrange(8)
                file.seek(at)
                file.write(bytes([byte]))
        # An honest disk would have changed the time; damage need not
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
        what = f"{chosen.name} {'cut' if cut else 'flipped'} at {at}"
        verb = chance.choice([["verify"], ["restore", "--check"], ["restore", "--check", "--plain"]])
        _, text = frem(*verb, "--dir", str(bad), status=1)
        assert chosen.name in text, (what, text)
        assert not os.path.exists(f"/proc/{target.pid}"), what
        shutil.rmtree(bad)
    frem("verify", "--dir", str(good))


def pages_of(checkpoint: Path) -> Path:
    return max(checkpoint.glob("pages-*.img"), key=lambda path: path.stat().st_size)


def cached(path: Path) -> int:
    """How many of its pages are in memory."""
    return int(subprocess.run(["fincore", "-b", "-n", "-o", "PAGES", path], check=True, stdout=subprocess.PIPE, text=True).stdout)


def dropped(path: Path, page: int, count: int) -> bool:
    """Whether so many pages have gone from the page cache: somebody may still hold them."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), page * 4096, count * 4096, os.POSIX_FADV_DONTNEED)
    return cached(path) <= path.stat().st_size // 4096 - count


def first_block(path: Path, page: int, count: int) -> int:
    """Where on the disk the first of so many pages of a file is, in bytes; blocks have the size of a page."""
    with path.open("rb") as file:
        return min(struct.unpack("i", fcntl.ioctl(file, 1, struct.pack("i", n)))[0] for n in range(page, page + count)) * 4096  # FIBMAP


def lost_disk(place: Path) -> None:
    """the disk fails under the touched set, or under the rest: an error, no process that goes on, and never zeros"""
    if not LAZY:
        return
    for track, preload in (True, True), (True, False), (False, False):
        with disk(place / f"{track}-{preload}") as (image, mount):
            lose_disk(image, mount, track, preload)


def lose_disk(image: Path, mount: Path, track: bool, preload: bool) -> None:
    target = Target(image.parent)
    directory = mount / "c"
    frem("checkpoint", str(target.pid), "--dir", str(directory), *(["--window", "0.3"] if track else ["--no-track"]))
    target.end()
    empty_caches()
    for path in directory.iterdir():
        path.read_bytes()
    # All is in memory, but for a quarter in the middle, which is in no list of what CRIU needs first
    pages = pages_of(directory)
    half = pages.stat().st_size // 8192
    wait("it is not in memory", lambda: dropped(pages, half, half // 2))
    os.truncate(image, first_block(pages, half, half // 2))
    _, text = frem("restore", "--dir", str(directory), *(["--preload"] if preload else []), status=1)
    assert "frem verify" in text and ("cannot be read" if preload else "loading failed") in text, text
    (target.place / "check").touch()
    wait("it dies of what it misses", lambda: not os.path.exists(f"/proc/{target.pid}"))
    checked = target.place / "0.checked"
    assert not checked.exists() or checked.read_text() == "0\n", checked.read_text()


def ahead(place: Path) -> None:
    """the disk is read while CRIU works: the touched set, and then the rest"""
    if not LAZY:
        return
    with disk(place) as (_, mount):
        target = Target(place)
        directory = mount / "c"
        frem("checkpoint", str(target.pid), "--dir", str(directory), "--window", "0.3")
        target.end()
        empty_caches()
        pages = pages_of(directory)
        whole = pages.stat().st_size // 4096
        assert cached(pages) < whole // 20, (cached(pages), whole)
        counted = place / "counted"
        count = f"fincore -b -n -o PAGES {pages} >{counted}; [ $(cat {counted}) -lt {whole} ] || break; sleep 0.1"
        with before_criu(place, f'[ "$1" != restore ] || for i in $(seq 50); do {count}; done'):
            frem("restore", "--dir", str(directory))
        assert int(counted.read_text()) == whole, (counted.read_text(), whole)
        target.check()
        target.end()


def reload(place: Path) -> None:
    """a checkpoint of a process that is still being loaded waits, and has all of its memory"""
    with disk(place) as (_, mount):
        target = Target(place)
        frem("checkpoint", str(target.pid), "--dir", str(mount / "c"), "--kill")
        target.process.wait()
        empty_caches()
        frem("restore", "--dir", str(mount / "c"), "--detach")
        frem("checkpoint", str(target.pid), "--dir", str(mount / "d"), "--kill")
        wait("it is gone", lambda: not os.path.exists(f"/proc/{target.pid}"))
        frem("restore", "--dir", str(mount / "d"))
        target.check()
        target.end()


def changing(place: Path) -> None:
    """a tree of processes that come and go is looked at"""
    loader = SourceFileLoader("checkpoint", f"{os.environ['PERDURE_BUILD']}/userspace/userspace/frem/frem-checkpoint")
    module = module_from_spec(spec_from_loader("checkpoint", loader))
    loader.exec_module(module)
    with subprocess.Popen(["sh", "-c", "while :; do sh -c 'true & true & wait' & wait; done"]) as process:
        end = time.monotonic() + 3
        sizes = []
        try:
            while time.monotonic() < end:
                sizes.append(len(module.family(process.pid)))
        finally:
            process.kill()
    print(f"# {len(sizes)} looks, {min(sizes)} to {max(sizes)} processes")
    assert min(sizes) >= 1 and max(sizes) > 2, (min(sizes), max(sizes))


def main() -> None:
    global args
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--damages", type=int, default=4)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("PERDURE_SEED", time.time_ns() % 1000000)))
    parser.add_argument("case", nargs="*")
    args = parser.parse_args()
    print(f"# seed {args.seed}; {SLOW} times the time")
    cases = {case.__name__: case for case in (rounds, damage, lost_disk, ahead, reload, changing)}
    run_cases([cases[name] for name in args.case or cases])


if __name__ == "__main__":
    main()
