#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Checkpoints and restores a process that knows its memory, and damages checkpoints."""

import contextlib
import errno
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

SLOW = 6 if os.environ.get("PERDURE_PROFILE") == "debug" else 1
TARGET = Path(os.environ["PERDURE_BUILD"]) / "userspace/vm-tests/cases/frem/frem-target"
RESCUECTL = Path(os.environ["PERDURE_BUILD"]) / "userspace/userspace/rescue/rescuectl"
LAZY = os.path.exists("/proc/self/lazy_loader")
MEGABYTES = 8

cases: list[Callable[[Path], None]] = []
thorough: list[Callable[[Path], None]] = []     # for when they are asked for


def case(function: Callable[[Path], None]) -> Callable[[Path], None]:
    cases.append(function)
    return function


def thorough_case(function: Callable[[Path], None]) -> Callable[[Path], None]:
    thorough.append(function)
    return function


def frem(*args: str, status: int = 0) -> tuple[dict, str]:
    """What it says as JSON, and to the user."""
    done = subprocess.run(["frem", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == status, (args, done.returncode, done.stdout, done.stderr)
    text = done.stdout.strip().splitlines()
    return (json.loads(text[-1]) if "--json" in args and text else {}), done.stderr + done.stdout


def wait(what: str, check: Callable[[], object], limit: float = 30) -> None:
    end = time.monotonic() + limit * SLOW
    while not check():
        assert time.monotonic() < end, f"{what}: not within {limit * SLOW} s"
        time.sleep(0.02)


@contextlib.contextmanager
def before_criu(place: Path, line: str) -> Iterator[None]:
    """A line of shell runs before CRIU does."""
    path = os.environ["PATH"]
    criu = shutil.which("criu", path=f"{path}:/usr/sbin:/usr/local/sbin")
    (place / "criu").write_text(f'#!/bin/sh\n{line}\nexec {criu} "$@"\n')
    (place / "criu").chmod(0o700)
    os.environ["PATH"] = f"{place}:{path}"
    try:
        yield
    finally:
        os.environ["PATH"] = path


@contextlib.contextmanager
def preloaded(**how: object) -> Iterator[None]:
    """What frem-late.so does to frem."""
    added = {"LD_PRELOAD": str(TARGET.with_name("frem-late.so")), **{f"FREM_{key.upper()}": str(value) for key, value in how.items()}}
    os.environ |= added
    try:
        yield
    finally:
        for key in added:
            del os.environ[key]


def criu_runs() -> bool:
    return not subprocess.run(["pgrep", "-x", "criu"], stdout=subprocess.DEVNULL).returncode


class Target:
    def __init__(self, place: Path, children: int = 0, megabytes: int = MEGABYTES, more: tuple[str, ...] = ()) -> None:
        self.place = place / "state"
        self.place.mkdir()
        self.count = children + 1
        # A session of its own, as a daemon has
        self.process = subprocess.Popen([TARGET, str(self.place), str(megabytes), str(children), *more], start_new_session=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.pid = self.process.pid
        wait("the target works", lambda: all(self.rounds(n) for n in range(self.count)))

    def rounds(self, number: int = 0) -> tuple[int, ...]:
        """Of the process and of its thread; () before the first."""
        for _ in range(100):
            try:
                text = (self.place / str(number)).read_text()
            except FileNotFoundError:
                return ()
            if text.endswith("\n"):
                return tuple(map(int, text.split()))
            time.sleep(0.01)    # being written
        return ()

    def end(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if self.process.poll() is None:
            self.process.wait()
        wait("all are gone", lambda: not os.path.exists(f"/proc/{self.pid}"))

    def check(self) -> None:
        """It goes on, threads and all, and all of its memory is right."""
        before = [self.rounds(n) for n in range(self.count)]
        wait("it goes on", lambda: all(len(now := self.rounds(n)) == 2 and now[0] > before[n][0] and
                                       now[1] > before[n][1] for n in range(self.count)))
        (self.place / "check").touch()
        wait("it compares", lambda: all((self.place / f"{n}.checked").exists() for n in range(self.count)))
        for n in range(self.count):
            wait("it has compared", lambda: (self.place / f"{n}.checked").read_text())
            wrong = (self.place / f"{n}.checked").read_text()
            assert wrong == "0\n", f"process {n}: {wrong.strip()} words are wrong"


@case
def one(place: Path) -> None:
    """a process is checkpointed, goes on, dies, and is restored"""
    target = Target(place)
    taken, _ = frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--json", "--window", "1")
    assert taken["tracked"], taken
    assert taken["bytes"] >= MEGABYTES << 20, taken
    # A sixteenth, and one page in 64
    share = taken["touched_bytes"] / (MEGABYTES << 20)
    assert 0.07 < share < 0.12, taken
    cost = taken["tracking"]
    assert all(0 < cost[key] < taken["window_s"] for key in ("start_s", "stop_s", "store_s")), cost
    assert cost["removals"] or not cost["removal_s"], cost      # told in microseconds: one may take none
    before = target.rounds()
    wait("it goes on", lambda: target.rounds() > before)
    target.end()
    frem("verify", "--dir", str(place / "c"))
    # Otherwise faults may have it all before its turn
    result, text = frem("restore", "--dir", str(place / "c"), "--json", "--preload")
    if LAZY:
        loader = result["loader"]
        assert result["mode"] == "lazy" and loader["state"] == "complete", result
        # Some of it CRIU needs before that, and what is around comes along
        early = loader["by_load"] + loader["by_fault"] + loader["by_around"]
        assert loader["by_load"] and early * 4096 >= taken["touched_bytes"], (loader, taken)
        assert loader["missing"] == 0 and loader["total"] * 4096 >= MEGABYTES << 20, loader
        accounted = sum(loader[key] for key in ("removed", "by_fault", "by_around", "by_load", "by_background"))
        assert accounted == loader["total"], loader
    else:
        assert result["mode"] == "plain" and "lazy loader" in text, (result, text)
    target.check()
    target.end()


@case
def tree(place: Path) -> None:
    """a process with children and threads is restored, by CRIU alone, too"""
    target = Target(place, children=2)
    taken, _ = frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--json", "--window", "0.5")
    assert taken["tracked"] and taken["bytes"] >= 3 * MEGABYTES << 20, taken
    shown, _ = frem("stat", str(place / "c"), "--json")
    assert shown["processes"] == 3 and shown["touched_bytes"] == taken["touched_bytes"], shown
    target.end()
    result, text = frem("restore", "--dir", str(place / "c"), "--json", "--plain")
    assert result["mode"] == "plain" and "asked for" in text, (result, text)
    target.check()
    target.end()
    (target.place / "check").unlink()
    for path in target.place.glob("*.checked"):
        path.unlink()
    result, _ = frem("restore", "--dir", str(place / "c"), "--json")
    assert result["mode"] == ("lazy" if LAZY else "plain"), result
    target.check()
    target.end()


@thorough_case
def leaving(place: Path) -> None:
    """a process of the tree that ends while it is being loaded is no failure"""
    target = Target(place, children=1, megabytes=48)
    child = Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().strip()
    frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--kill")
    target.process.wait()
    script = place / "script"
    script.write_text(f'#!/bin/sh\n[ "$CRTOOLS_SCRIPT_ACTION" != post-resume ] || kill -KILL {child}\n')
    script.chmod(0o700)
    result, _ = frem("restore", "--dir", str(place / "c"), "--json", "--", "--action-script", str(script))
    if LAZY:
        assert result["loader"]["state"] == "complete" and result["loader"]["error"] == 0, result
    before = target.rounds()
    wait("the other one goes on", lambda: target.rounds() > before)
    target.end()


@thorough_case
def left(place: Path) -> None:
    """what the kernel says of a process that has ended while it was loaded is no failure"""
    if not LAZY:
        return
    target = Target(place, children=1)
    frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--kill")
    target.process.wait()
    with preloaded(left=1):
        result, _ = frem("restore", "--dir", str(place / "c"), "--json")
    assert result["loader"]["state"] == "complete" and result["loader"]["error"] == 0, result
    target.check()
    target.end()


@case
def frem_dies(place: Path) -> None:
    """frem is killed at each step of a restore: the process never runs, or is as it was"""
    if not LAZY:
        return
    target = Target(place, children=1)
    frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--kill")
    target.process.wait()
    logs = Path("/tmp")
    ran = []
    for step in range(1, 100):
        for path in *target.place.glob("*check*"), *logs.glob("frem-restore-*.log"):
            path.unlink()
        before = [target.rounds(n) for n in range(2)]
        with preloaded(die=step):
            done = subprocess.run(["frem", "restore", "--dir", str(place / "c"), "--", "-v4"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert done.returncode in (0, -signal.SIGKILL), (step, done.returncode)
        wait("CRIU has ended", lambda: not criu_runs())
        # What runs on zeros ends at once, too
        ran += [done.returncode == 0 or any("Tasks resumed" in path.read_text(errors="replace")
                                            for path in logs.glob("frem-restore-*.log"))]
        if ran[-1]:
            wait(f"step {step}: it goes on", lambda: [target.rounds(n) for n in range(2)] > before)
            target.check()
        target.end()
        if ran[-1] and (done.returncode == 0 or ran.count(True) > 3):
            break
    print(f"# it did not run {ran.count(False)} times, and was right {ran.count(True)} times")
    assert ran.count(False) >= 8 and ran.count(True) > 1, ran


@thorough_case
def in_a_namespace(place: Path) -> None:
    """numbers in a PID namespace are not those of the host: a restore that fails or is interrupted ends nobody there"""
    if not LAZY:
        return
    # Its number is that of a process in the namespace
    bystander = subprocess.Popen(["sleep", "1000"])
    (place / "state").mkdir()
    start = f"echo {bystander.pid - 1} >/proc/sys/kernel/ns_last_pid; {TARGET} {place}/state {MEGABYTES} 0 & wait"
    first = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "setsid", "sh", "-c", start],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait("it works", lambda: (place / "state/0").exists())
    inner = int(Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text())
    _, text = frem("checkpoint", str(inner), "--dir", str(place / "c"), "--kill")
    first.wait()
    assert f"process {bystander.pid} " in (place / "c/frem.descriptor").read_text(), text
    with preloaded(late=2 * SLOW):
        result, text = frem("restore", "--dir", str(place / "c"), "--json")
    assert result["mode"] == "plain" and "Too many open files" in text, (result, text)
    assert bystander.poll() is None, "the bystander was killed"
    bystander.kill()


@thorough_case
def not_lazily(place: Path) -> None:
    """where CRIU fails with pages to come later, it restores without them"""
    target = Target(place, children=1)
    frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--window", "0.2")
    target.end()
    with before_criu(place, 'case "$*" in *--lazy-pages*) exit 1 ;; esac'):
        result, text = frem("restore", "--dir", str(place / "c"), "--json")
    assert result["mode"] == "plain" and (not LAZY or "pages to come later" in text), (result, text)
    target.check()
    target.end()


@case
def too_late(place: Path) -> None:
    """what the kernel refuses when CRIU is past undoing it does not run, and is restored without lazy pages"""
    if not LAZY:
        return
    target = Target(place, children=1)
    frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--window", "0.2")
    target.end()
    with preloaded(late=2 * SLOW):
        result, text = frem("restore", "--dir", str(place / "c"), "--json")
    assert result["mode"] == "plain" and "Too many open files" in text, (result, text)
    target.check()
    target.end()


@thorough_case
def kept_until_stored(place: Path) -> None:
    """with --kill the process ends when its checkpoint is whole: where that cannot be written, it goes on"""
    target = Target(place)
    with before_criu(place, '[ "$1" != dump ] || mkdir "$5/frem.descriptor.new"'):
        frem("checkpoint", str(target.pid), "--dir", str(place / "bad"), "--kill", status=1)
    assert not (place / "bad/frem.descriptor").exists()
    before = target.rounds()
    wait("it goes on", lambda: target.rounds() > before)
    frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--kill")
    target.process.wait()
    frem("restore", "--dir", str(place / "c"))
    target.check()
    target.end()


@thorough_case
def newer_page_maps(place: Path) -> None:
    """CRIU since 4.2 counts pages in another field"""
    source = Path(os.environ["PERDURE_TOP"]) / "userspace/frem/frem_images.py"
    loader = importlib.machinery.SourceFileLoader("frem_images", str(source))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    target = Target(place)
    frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--window", "0.2")
    target.end()
    image = place / "c" / f"pagemap-{target.pid}.img"
    old = module.page_map(place / "c", target.pid)
    head, *entries = module.messages(image)
    new = [head, *(module.encoded(module.numbers(data) | {2: 0, 5: module.numbers(data)[2]}) for data in entries)]
    image.write_bytes(image.read_bytes()[:8] + b"".join(len(data).to_bytes(4, "little") + data for data in new))
    assert module.page_map(place / "c", target.pid) == old and old[2] >= MEGABYTES << 20, old
    module.mark_lazy(place / "c", target.pid)
    assert module.page_map(place / "c", target.pid)[2] == old[2]


@thorough_case
def grown(place: Path) -> None:
    """an image that has another size when the kernel takes it is not loaded lazily"""
    target = Target(place)
    frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--kill")
    target.process.wait()
    with before_criu(place, f'case "$*" in *--lazy-pages*) truncate -s +4096 {place}/c/pages-1.img ;; esac'):
        result, text = frem("restore", "--dir", str(place / "c"), "--json")
    assert result["mode"] == "plain" and (not LAZY or "Stale file handle" in text), (result, text)
    target.check()
    target.end()


@thorough_case
def cannot_tell(place: Path) -> None:
    """where it may not see whether a process is loaded, it does not take it for loaded"""
    if not LAZY:
        return
    code = "import sys; from importlib.machinery import SourceFileLoader as L; L('m', sys.argv[1]).load_module().await_loaded(1)"
    source = Path(os.environ["PERDURE_TOP"]) / "userspace/frem/frem-checkpoint"
    done = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all", "python3", "-Wignore", "-c", code, str(source)],
                          capture_output=True, text=True)
    assert done.returncode == 1 and "PermissionError" in done.stderr and "/proc/1/lazy_loader" in done.stderr, done.stderr


@case
def unmarked(place: Path) -> None:
    """where CRIU marks nothing to come later, for a stack pointer at the start of a page, frem does; locked memory comes first"""
    for name, children in (("aligned", 0), ("aligned", 1), ("locked", 0), ("locked", 1)):
        below = place / f"{name}{children}"
        below.mkdir()
        target = Target(below, children, more=(name,))
        frem("checkpoint", str(target.pid), "--dir", str(below / "c"), "--window", "0.5")
        target.end()
        frem("verify", "--dir", str(below / "c"))
        # What is on the disk is not changed any more
        for line in (below / "c/frem.descriptor").read_text().splitlines():
            if line.startswith("image "):
                _, image, _, mtime, *_ = line.split(" ")
                assert (below / "c" / image).stat().st_mtime_ns == int(mtime), line
        result, text = frem("restore", "--dir", str(below / "c"), "--json")
        all_locked = name == "locked" and not children
        assert result["mode"] == ("lazy" if LAZY and not all_locked else "plain"), (name, children, result, text)
        if all_locked:
            assert not LAZY or "it is locked" in text, text
        elif LAZY:
            late = result["loader"]["total"] * 4096 / (MEGABYTES << 20)
            assert late >= (children if name == "locked" else children + 1), (name, children, result)
        target.check()
        target.end()


@thorough_case
def periodic(place: Path) -> None:
    """checkpoints at intervals: the window adapts, old ones go, the last is restored"""
    target = Target(place)
    done = subprocess.run(["frem", "checkpoint", str(target.pid), "--dir", str(place / "c"), "--every", "3", "--count", "3",
                           "--rate", "8", "--max-window", "20", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second, third = map(json.loads, done.stdout.splitlines())
    # Equation (1), then (2); the interval bounds both
    assert abs(first["window_s"] - min(3, first["bytes"] / 8e6)) < 1 * SLOW, first
    expected = second["bytes"] / (8e6 + first["touched_bytes"] / first["window_s"])
    assert expected < second["bytes"] / 8e6 and abs(second["window_s"] - min(3, expected)) < 1 * SLOW, (first, second)
    assert sorted(path.name for path in (place / "c").iterdir()) == ["000002", "000003", "latest"]
    # One that was cut short is not in the way of the next, nor a link that was
    (place / "c/000008/pages").mkdir(parents=True)
    (place / "c/latest.new").symlink_to("000008")
    taken, _ = frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--every", "1", "--count", "1", "--window", "0.1", "--json")
    assert taken["directory"].endswith("/000009") and os.readlink(place / "c/latest") == "000009", taken
    # Ended in the window, it is whole but for what was touched
    process = subprocess.Popen(["frem", "checkpoint", str(target.pid), "--dir", str(place / "c"), "--every", "100", "--window", "99"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait("the window", lambda: (place / "c/000010/frem.descriptor").exists())
    # What is complete is the latest, although the window has not ended
    wait("it is the latest", lambda: os.readlink(place / "c/latest") == "000010")
    assert "the window had not ended" in (place / "c/000010/frem.descriptor").read_text()
    process.terminate()
    assert process.wait() == 128 + signal.SIGTERM, process.returncode
    target.end()
    for name in "latest", "000010":
        frem("restore", "--dir", str(place / "c" / name))
        target.check()
        target.end()
        for path in target.place.glob("*check*"):
            path.unlink()


@thorough_case
def goes_on(place: Path) -> None:
    """checkpoints at intervals go on after some that failed, which is said, and end with the process"""
    target = Target(place)
    directory = place / "c"
    fails = f'[ "$1" != dump ] || {{ echo >>{place}/tries; [ $(wc -l <{place}/tries) -gt 2 ] || {{ : >"$5/pages-1.img"; exit 1; }}; }}'
    options = ["checkpoint", str(target.pid), "--dir", str(directory), "--window", "0.1", "--every"]
    with before_criu(place, fails):
        _, text = frem(*options, "0.5", "--count", "4", status=1)
    assert "000001 failed, 1 of 1" in text and "000002 failed, 2 of 2" in text and "2 of 4 checkpoints failed" in text, text
    # Of the failures the last one stays, without its images
    assert sorted(path.name for path in directory.iterdir()) == ["000002", "000003", "000004", "latest"]
    assert not list((directory / "000002").glob("*.img")) and os.readlink(directory / "latest") == "000004"
    process = subprocess.Popen(["frem", *options, "0.1"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait("it goes on", lambda: os.readlink(directory / "latest") > "000005")
    os.killpg(target.pid, signal.SIGKILL)
    target.process.wait()
    _, text = process.communicate(timeout=60 * SLOW)
    assert process.returncode == 1 and f"process {target.pid} has ended; the last checkpoint is" in text, text
    target.end()
    frem("restore", "--dir", str(directory / "latest"))
    target.check()
    target.end()


def tracked(pid: int) -> bool:
    """Whether somebody else tracks what it touches."""
    fd = os.open(f"/proc/{pid}/touched_set", os.O_RDWR)
    try:
        os.write(fd, b"start")
        return False
    except OSError as e:
        assert e.errno == errno.EBUSY, e
        return True
    finally:
        os.close(fd)


@case
def slow_disk(place: Path) -> None:
    """the window ends when it should, however long the disk takes; what the disk has before the checkpoint counts"""
    target = Target(place)
    synced, hold, directory = place / "synced", place / "synced.hold", place / "new/and/new"
    hold.touch()
    with preloaded(synced=synced):
        process = subprocess.Popen(["frem", "checkpoint", str(target.pid), "--dir", str(directory), "--window", "1", "--json"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    # Of the new directories; then the images, while the window is open
    wait("it writes", synced.exists)
    hold.unlink()
    wait("it has written directories", lambda: (directory / "dump.log").exists())
    hold.touch()
    wait("it writes images", lambda: ".img" in synced.read_text())
    wait("the window ends", lambda: not tracked(target.pid))
    # All of the memory is touched, too late
    (target.place / "check").touch()
    wait("it has compared", lambda: (target.place / "0.checked").exists() and (target.place / "0.checked").read_text())
    assert not (directory / "frem.descriptor").exists()
    hold.unlink()
    taken = json.loads(process.communicate()[0])
    assert process.returncode == 0 and taken["tracked"] and 1 <= taken["window_s"] < 1 + SLOW, taken
    assert 0.07 < taken["touched_bytes"] / (MEGABYTES << 20) < 0.12, taken
    done = synced.read_text().splitlines()
    assert {str(place), str(place / "new"), str(place / "new/and"), str(directory)} <= set(done), done
    first = next(n for n, name in enumerate(done) if name.startswith(str(directory / "frem.descriptor")))
    assert {str(path) for path in directory.glob("*.img")} <= set(done[:first]), done
    target.end()


@case
def killed(place: Path) -> None:
    """frem is killed in the middle of a checkpoint: the process goes on, and can be checkpointed again"""
    target = Target(place)
    stat = Path(f"/proc/{target.pid}/stat")
    for number, status, how in ((signal.SIGTERM, 128 + signal.SIGTERM, "--json"), (signal.SIGTERM, 128 + signal.SIGTERM, "--kill"),
                                (signal.SIGINT, 130, "--no-track"), (signal.SIGKILL, -signal.SIGKILL, "--json")):
        process = subprocess.Popen(["frem", "checkpoint", str(target.pid), "--dir", str(place / f"{number.name}{how}"), how],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        wait("it stands still", lambda: stat.read_text().rpartition(")")[2].split()[0] == "t")
        # A terminal interrupts all of the group
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        assert process.wait() == status, (number, process.returncode)
        before = target.rounds()
        wait("it goes on", lambda: target.rounds() > before)
        wait("CRIU has ended", lambda: not criu_runs())
    frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--window", "0.2")
    target.end()
    frem("restore", "--dir", str(place / "c"))
    target.check()
    target.end()


@case
def interrupted(place: Path) -> None:
    """a restore that is interrupted before the process runs leaves nothing of it, and it can be restored again"""
    target = Target(place)
    frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--window", "0.2")
    target.end()
    stopped = 0
    for mode in "--detach", "--plain":
        whole = 0.0
        for part in range(6):
            process = subprocess.Popen(["frem", "restore", "--dir", str(place / "c"), mode], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait("CRIU works", lambda: process.poll() is not None or criu_runs())
            begin = time.monotonic()
            # The first one shows how long it takes
            if part:
                time.sleep(whole * (part - 1) / 6)
                process.send_signal(signal.SIGTERM)
            status = process.wait()
            whole = whole or time.monotonic() - begin
            wait("CRIU has ended", lambda: not criu_runs())
            assert status in ((0, 130) if part else (0,)), status
            # Perhaps it was too late
            if status == 0:
                target.end()
            stopped += status == 130
            wait(f"it is gone ({mode} {part})", lambda: not Path(f"/proc/{target.pid}").exists())
    assert stopped > 2, stopped
    frem("restore", "--dir", str(place / "c"))
    target.check()
    target.end()


@thorough_case
def in_a_cgroup(place: Path) -> None:
    """the process tree of a cgroup is found"""
    cgroup = Path("/sys/fs/cgroup/frem-test")
    cgroup.mkdir()
    target = Target(place)
    _, text = frem("checkpoint", "--cgroup", "/frem-test", "--dir", str(place / "c"), status=1)
    assert "has 0 process trees" in text, text
    (cgroup / "cgroup.procs").write_text(str(target.pid))
    taken, _ = frem("checkpoint", "--cgroup", "/frem-test", "--dir", str(place / "c"), "--kill", "--json")
    assert taken["pid"] == target.pid and not taken["tracked"], taken
    target.process.wait()
    cgroup.rmdir()


@case
def refusals(place: Path) -> None:
    """what cannot be done is refused with what to do about it"""
    target = Target(place)
    good = place / "good"
    _, text = frem("checkpoint", "999999", "--dir", str(good), status=1)
    assert "no process 999999" in text, text
    frem("checkpoint", str(target.pid), "--dir", str(good), "--window", "0.2")
    assert good.stat().st_mode & 0o777 == 0o700, f"{good.stat().st_mode:o}: others can read it"
    _, text = frem("checkpoint", str(target.pid), "--dir", str(good), status=1)
    assert "not empty" in text, text
    (place / "open").mkdir()
    for mode, owner, directory in (0o777, 0, "open"), (0o1777, 0, "open"), (0o777, 0, "open/new"), (0o700, 65534, "open/new/new"):
        (place / "open").chmod(mode)
        os.chown(place / "open", owner, 0)
        _, text = frem("checkpoint", str(target.pid), "--dir", str(place / directory), status=1)
        assert f"{place}/open belongs to another user, or others can write there" in text, text
        assert not list((place / "open").iterdir())
    for wrong in ["--keep", "0"], ["--every", "-1"], ["--window", "0"], ["--every", "1", "--kill"]:
        frem("checkpoint", str(target.pid), "--dir", str(place / "x"), *wrong, status=2)
    _, text = frem("restore", "--dir", str(place / "nothing"), status=1)
    assert "not a checkpoint" in text, text
    _, text = frem("restore", "--dir", str(good), status=1)
    assert "end that one first" in text, text
    target.end()

    def damaged(name: str, change: Callable[[Path], object], *verbs: str) -> str:
        bad = place / "bad"
        shutil.copytree(good, bad)      # with the times
        change(bad)
        for verb in verbs or ["restore"]:
            _, text = frem(verb, "--dir", str(bad), status=1)
            assert not os.path.exists(f"/proc/{target.pid}"), f"{name}: restored all the same"
        shutil.rmtree(bad)
        return text

    def cut(name: str) -> Callable[[Path], None]:
        return lambda bad: os.truncate(next(bad.glob(name)), 4096)

    def flip(name: str, at: int) -> Callable[[Path], None]:
        def change(bad: Path) -> None:
            with next(bad.glob(name)).open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 1]))
        return change

    assert "instead of" in damaged("cut pages", cut("pages-1.img"), "verify", "restore")
    assert "near byte 2097152" in damaged("changed pages", flip("pages-1.img", 2500000), "verify", "restore")

    def older(bad: Path) -> None:
        flip("pages-1.img", 2500000)(bad)
        os.utime(bad / "pages-1.img", ns=(1, (bad / "pages-1.img").stat().st_mtime_ns - 3600 * 10**9))
    text = damaged("older pages", older)
    assert "pages-1.img was copied or changed" in text and "near byte 2097152" in text, text
    assert "changed or damaged" in damaged("changed core", flip("core-*.img", 40))
    assert "is missing" in damaged("no image", lambda bad: next(bad.glob("mm-*.img")).unlink())
    assert "checksum is wrong" in damaged("changed descriptor", flip("frem.descriptor", 200))
    assert "version 3" in damaged("other version", lambda bad: (bad / "frem.descriptor").write_bytes(
        (bad / "frem.descriptor").read_bytes().replace(b"frem-descriptor 2 ", b"frem-descriptor 3 ", 1)))

    # A copy has other times: it is read whole, and restored
    copy = place / "copy"
    shutil.copytree(good, copy, copy_function=shutil.copy)
    _, text = frem("restore", "--dir", str(copy))
    assert "reading it whole" in text, text
    target.check()
    target.end()


@thorough_case
def private_directory(place: Path) -> None:
    """where the socket and the FIFOs are, nobody else gets in"""
    target = Target(place, megabytes=1)
    frem("checkpoint", str(target.pid), "--dir", str(place / "dir"), "--no-track", "--kill")
    target.process.wait()
    with before_criu(place, f'stat -c "%a %u" "$FREM_DIR" >{place}/mode; ls "$FREM_DIR" >{place}/names'):
        frem("restore", "--dir", str(place / "dir"))
    assert (place / "mode").read_text() == "700 0\n", (place / "mode").read_text()
    assert not LAZY or "lazy-pages.socket" in (place / "names").read_text(), (place / "names").read_text()
    target.check()
    target.end()


@case
def of_others(place: Path) -> None:
    """what others can write to, or exchange, is not restored"""
    nobody = 65534
    target = Target(place)
    good = place / "good"
    frem("checkpoint", str(target.pid), "--dir", str(good), "--kill")
    target.process.wait()
    number = 0

    def refused(what: str, change: Callable[[Path], Path | None], why: str) -> None:
        nonlocal number
        number += 1
        parent = place / f"parent{number}"
        parent.mkdir()
        bad = parent / "c"
        shutil.copytree(good, bad)
        named = change(bad) or bad
        _, text = frem("restore", "--dir", str(named), status=1)
        assert why in text, (what, text)
        assert not os.path.exists(f"/proc/{target.pid}"), f"{what}: restored all the same"
        os.chdir(parent)
        _, text = frem("restore", "--dir", os.path.relpath(named), status=1)
        os.chdir("/")
        assert why in text, (what, text)

    def mode(bits: int, name: str = ".") -> Callable[[Path], None]:
        return lambda bad: next(bad.glob(name)).chmod(bits) if name != "." else bad.chmod(bits)

    def owner(name: str, user: int = nobody) -> Callable[[Path], None]:
        return lambda bad: os.chown(next(bad.glob(name)) if name != "." else bad, user, 0)

    written, another = "can be written by others", "belongs to another user"
    refused("the directory", mode(0o777), written)
    refused("the directory, of a group", mode(0o770), written)
    refused("the directory, sticky", mode(0o1777), written)
    refused("the directory's owner", owner("."), another)
    refused("the parent", lambda bad: bad.parent.chmod(0o777), written)
    refused("the parent's owner", lambda bad: os.chown(bad.parent, nobody, 0), another)
    for name in "frem.descriptor", "pages-1.img", "core-*.img":
        refused(name, mode(0o666, name), written)
        refused(f"the owner of {name}", owner(name), another)

    def image_elsewhere(bad: Path) -> None:
        (bad / "pages-1.img").rename(bad.parent / "pages")
        (bad / "pages-1.img").symlink_to(bad.parent / "pages")

    def link_of_others(bad: Path) -> Path:
        os.symlink("c", bad.parent / "latest")
        os.lchown(bad.parent / "latest", nobody, 0)
        return bad.parent / "latest"

    def link_in_open(bad: Path) -> Path:
        (bad.parent / "open").mkdir()
        (bad.parent / "open").chmod(0o777)
        (bad.parent / "open/link").symlink_to(bad.parent)
        (bad.parent / "to").symlink_to("open/link/../parent" + str(number) + "/c")
        return bad.parent / "to"

    refused("a link as image", image_elsewhere, "Too many levels of symbolic links")
    refused("a link of others", link_of_others, another)
    refused("a link where others write", link_in_open, written)

    # Others cannot exchange what is ours in a sticky directory; a link of ours is as good as we are
    sticky = place / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    shutil.copytree(good, sticky / "c")
    (place / "latest").symlink_to("sticky/../sticky/c/")
    os.chdir(place)
    frem("restore", "--dir", "latest")
    os.chdir("/")
    target.check()
    target.end()


@thorough_case
def asked_of_criu(place: Path) -> None:
    """of the options for CRIU in a checkpoint, a restore passes on those that it knows, and no program to run"""
    target = Target(place)
    script = place / "script"
    script.write_text(f'#!/bin/sh\n: >{place}/ran-$CRTOOLS_SCRIPT_ACTION\n')
    script.chmod(0o700)
    options = ["--shell-job", "--action-script", str(script), "--ghost-limit", "1234567", "--timeout=77", "--action-scr", str(script), "-l"]
    _, text = frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--kill", "--", *options)
    target.process.wait()
    assert "does not take --action-script" in text and (place / "ran-post-dump").exists(), text
    assert f"criu_option {script}" in (place / "c/frem.descriptor").read_text()
    with before_criu(place, f'[ "$1" != restore ] || echo "$*" >{place}/argv'):
        _, text = frem("restore", "--dir", str(place / "c"))
    given = (place / "argv").read_text()
    assert "does not take --action-scr:" not in text and text.count("does not take") == 4, text
    assert not list(place.glob("ran-*restore")) and str(script) not in given, given
    assert "--shell-job --ghost-limit 1234567 --timeout=77 -l" in given, given
    target.check()
    target.end()


def flipped(image: Path, at: int) -> None:
    """A bit, and the file has the time that it had."""
    times = image.stat().st_atime_ns, image.stat().st_mtime_ns
    with image.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0] ^ 1
        file.seek(at)
        file.write(bytes([byte]))
    os.utime(image, ns=times)


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """All processors have more to do than they can."""
    hogs = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(4 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


@case
def verified_when_busy(place: Path) -> None:
    """--verify does not wait for the checks that come last when others want a processor, too"""
    target = Target(place)
    frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--kill")
    target.process.wait()
    with busy():
        start = time.monotonic()
        result, _ = frem("restore", "--dir", str(place / "c"), "--verify", "--json")
        took = time.monotonic() - start - result["loaded_s"]
    target.end()
    assert took < 10 * SLOW, took


@case
def bit_rot(place: Path) -> None:
    """damage that no time tells of is found in what is in memory before the process runs, by --verify also afterwards"""
    target = Target(place)
    frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--kill")
    target.process.wait()
    result, _ = frem("restore", "--dir", str(place / "c"), "--verify", "--json")
    assert result["mode"] == ("lazy" if LAZY else "plain"), result
    target.check()
    target.end()
    flipped(place / "c/pages-1.img", 2500000)
    if LAZY:
        # Time enough for the checks, which come last
        with before_criu(place, f'[ "$1" != restore ] || sleep {2 * SLOW}'):
            _, text = frem("restore", "--dir", str(place / "c"), status=1)
        assert "pages-1.img was changed or damaged near byte 2097152" in text and "nothing runs" in text, text
        wait("nothing is there", lambda: not os.path.exists(f"/proc/{target.pid}"))
    _, text = frem("restore", "--dir", str(place / "c"), "--plain", "--verify", status=1)
    assert "pages-1.img was changed or damaged near byte 2097152, and the process runs" in text, text
    assert os.path.exists(f"/proc/{target.pid}")
    target.end()
    frem("restore", "--dir", str(place / "c"), "--detach", "--verify", status=2)


@thorough_case
def with_breakpoints(place: Path) -> None:
    """breakpoints, which rescue points and probes have put into its memory, are not in a checkpoint: they may be gone at the restore"""
    def rescuectl(*words: str) -> str:
        return subprocess.run([RESCUECTL, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout

    def entered(name: str) -> int:
        return next(point["entered"] for point in json.loads(rescuectl("list", "--json")) if point["name"] == name)

    libc = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("/libc.so.6"))
    target = Target(place)
    rescuectl("add", libc, "open", "--value", "-1", "--name", "opens")
    try:
        wait("it comes to the breakpoint", lambda: entered("opens") > 5)
        frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--kill")
        target.process.wait()
    finally:
        rescuectl("remove", "opens")
    frem("verify", "--dir", str(place / "c"))
    frem("restore", "--dir", str(place / "c"))
    target.check()
    target.end()
    # Of an instruction that the kernel executes in a page of its own, CRIU knows nothing, and says so
    (place / "two").mkdir()
    target = Target(place / "two")
    rescuectl("add", libc, "access", "--value", "-1", "--name", "looks")
    try:
        wait("it comes to the breakpoint", lambda: entered("looks") > 5)
        _, text = frem("checkpoint", str(target.pid), "--dir", str(place / "d"), "--kill", status=1)
        assert "start it again without probes or rescue points" in text, text
    finally:
        rescuectl("remove", "looks")
    target.end()


@case
def set_back(place: Path) -> None:
    """a file that has grown since the checkpoint is set back, what was added is kept, and nothing else is cut for it"""
    out = place / "out put"
    with out.open("wb") as file:
        process = subprocess.Popen(["sh", "-c", "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done"], stdout=file,
                                   stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def grows() -> None:
        size = out.stat().st_size
        wait("it writes", lambda: out.stat().st_size > size + 100)

    def end() -> None:
        os.killpg(process.pid, signal.SIGKILL)
        if process.poll() is None:
            process.wait()
        wait("it is gone", lambda: not os.path.exists(f"/proc/{process.pid}"))

    grows()
    frem("checkpoint", str(process.pid), "--dir", str(place / "c"), "--no-track")
    grows()
    end()
    whole = out.read_bytes()
    _, text = frem("restore", "--dir", str(place / "c"), status=1)
    assert "--set-back" in text and out.read_bytes() == whole, text

    # Who can write to the directory puts another file there
    for other in "link", "second name", "owner":
        out.rename(place / "hidden")
        victim = place / "victim"
        victim.write_bytes(whole * 2)
        if other == "link":
            out.symlink_to(victim)
        elif other == "second name":
            os.link(victim, out)
        else:
            shutil.copy(victim, out)
            os.chown(out, 65534, 0)
        _, text = frem("restore", "--dir", str(place / "c"), "--set-back", status=1)
        assert "symbolic links" in text or "not set back" in text, (other, text)
        assert out.read_bytes() == victim.read_bytes() == whole * 2 and not list(place.glob("*.frem-*")), other
        out.unlink()
        (place / "hidden").rename(out)

    _, text = frem("restore", "--dir", str(place / "c"), "--set-back")
    kept, = place.glob("out put.frem-*")
    assert str(kept) in text and whole.endswith(kept.read_bytes()) and len(kept.read_bytes()) > 100, text
    grows()
    end()
    lines = out.read_text().splitlines()
    assert lines[:-1] == [f"line {n}" for n in range(1, len(lines))], lines
    assert out.read_bytes().startswith(whole[:-len(kept.read_bytes())])
    # Where nothing has been added nothing is cut
    shutil.copyfile(out, place / "now")
    os.truncate(out, len(whole) - len(kept.read_bytes()))
    _, text = frem("restore", "--dir", str(place / "c"), "--set-back")
    assert "set back" not in text and len(list(place.glob("out put.frem-*"))) == 1, text
    end()


def run_cases(chosen: list[Callable[[Path], None]]) -> None:
    """Each in a directory of its own."""
    print(f"KTAP version 1\n1..{len(chosen)}")
    for number, function in enumerate(chosen, 1):
        start = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            try:
                function(Path(place))
                word = "ok"
            except Exception:
                word = "not ok"
                print("".join(f"# {line}\n" for line in traceback.format_exc().splitlines()), end="")
        print(f"{word} {number} {function.__name__}: {function.__doc__} ({time.monotonic() - start:.1f} s)", flush=True)


def main() -> None:
    names = sys.argv[1:]
    if names == ["--thorough"]:
        run_cases(thorough)
    else:
        run_cases([function for function in cases + thorough if function.__name__ in names] if names else cases)


if __name__ == "__main__":
    main()
