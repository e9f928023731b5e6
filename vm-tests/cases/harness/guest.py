#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Real guests: what they return, and what becomes of those that do not end well."""

import hashlib
import os
import stat
import subprocess
import tempfile
import time
from pathlib import Path

from points import BUILD, TOP, VMLINUX, equal, main

CONSOLE = BUILD / "log" / "test" / "harness-guest.console"


def run(*command: str, options: tuple[str, ...] = (), data: bytes = b"", vmlinux: Path = VMLINUX,
        cwd: Path = TOP) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([str(TOP / "build.sh"), "run", "--vmlinux", str(vmlinux), "--log", str(CONSOLE), *options, "--",
                           *command], input=data, capture_output=True, cwd=cwd, timeout=60)


def status() -> None:
    """The exit status comes through: 0, 3, a signal, a program that is not there"""
    for command, want in (("exit 0", 0), ("exit 3", 3), ("kill -SEGV $$", 139), ("/not/there", 127)):
        equal(run("sh", "-c", command).returncode, want)
    equal(run("/not/there").returncode, 127)


def output() -> None:
    """Ten megabytes each way arrive whole; stdout and stderr stay apart"""
    data = os.urandom(10_000_000)
    done = run("sh", "-c", "tee /dev/stderr | sha256sum; cat /proc/sys/kernel/random/uuid >/dev/null", data=data)
    equal(done.returncode, 0)
    equal(done.stdout.split()[0].decode(), hashlib.sha256(data).hexdigest())
    equal(hashlib.sha256(done.stderr).hexdigest(), hashlib.sha256(data).hexdigest())
    # The system's programs, not examples of the same name
    equal(run("env", "echo", "echo").stdout, b"echo\n")
    done = run("cat", data=data)
    assert done.stdout == data


def place() -> None:
    """Root in the caller's directory, loopback up, memory on /tmp, the file systems there"""
    with tempfile.TemporaryDirectory(prefix="perdure-", dir="/tmp") as here:
        Path(here, "file").write_text("seen\n")
        done = run("sh", "-ec", "id -u; pwd; cat file; findmnt -no FSTYPE /; findmnt -no FSTYPE /tmp; "
                   "curl -s --max-time 5 telnet://127.0.0.1:1 || echo $?; test -d /sys/kernel/debug/tracing; "
                   "test -e /dev/ptmx; test -e /sys/fs/cgroup/cgroup.procs; echo x >/dev/shm/x; nproc", cwd=Path(here))
        equal(done.stdout.decode().split(), ["0", here, "seen", "overlay", "tmpfs", "7", "2"])


def read_only() -> None:
    """What the guest writes is seen there and gone afterwards"""
    with tempfile.TemporaryDirectory(dir=BUILD) as here:
        victim = Path(here, "victim")
        victim.write_text("host")
        done = run("sh", "-ec", f"echo guest >{victim}; rm -r {TOP}/docs; touch /etc/perdure-was-here; cat {victim}")
        equal((done.returncode, done.stdout), (0, b"guest\n"))
        equal(victim.read_text(), "host")
    assert (TOP / "docs").is_dir() and not Path("/etc/perdure-was-here").exists()


def writable() -> None:
    """A directory given with --rw is written, on disk and below /tmp, also one in another, and nothing beside it"""
    for parent in (BUILD, Path("/tmp")):
        with tempfile.TemporaryDirectory(dir=parent) as here:
            open_, shut = Path(here, "open,readonly=on"), Path(here, "shut")
            (open_ / "in").mkdir(parents=True), shut.mkdir()
            done = run("sh", "-ec", f"echo 1 >{open_}/a; echo 3 >{open_}/in/c; mkdir -p {shut}; echo 2 >{shut}/b",
                       options=("--rw", str(open_ / "in"), "--rw", str(open_)))
            equal(done.returncode, 0)
            equal(((open_ / "a").read_text(), (open_ / "in/c").read_text()), ("1\n", "3\n"))
            assert not (shut / "b").exists()


def log_device() -> None:
    """A device that takes the console stays one"""
    if os.getuid():
        return
    with tempfile.TemporaryDirectory(dir=BUILD) as here:
        device = Path(here, "null")
        os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        equal(run("true", options=("--log", str(device))).returncode, 0)
        assert device.is_char_device()


def one_line(done: subprocess.CompletedProcess[bytes], want: int) -> None:
    assert done.returncode == want, f"{done.returncode}, not {want}: {done.stderr.decode()}"
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("vm: ")]
    assert len(lines) == 1 and "harness-guest.console" in lines[0], done.stderr


def dead() -> None:
    """A guest that panics or powers off is 125, and the line names the console"""
    for command in ("echo c >/proc/sysrq-trigger", "echo o >/proc/sysrq-trigger; sleep 9", "echo b >/proc/sysrq-trigger"):
        one_line(run("sh", "-c", command), 125)


def hanging() -> None:
    """A guest that hangs is killed in time, is 124, and its output so far is there"""
    start = time.monotonic()
    done = run("sh", "-c", "echo before; sleep 100", options=("--timeout", "20"))
    one_line(done, 124)
    equal(done.stdout, b"before\n")
    assert time.monotonic() - start < 40


def not_booting() -> None:
    """A kernel that is none, and one that is missing, are 125"""
    with tempfile.NamedTemporaryFile(dir=BUILD) as junk:
        junk.write(b"no kernel\n" * 1000)
        junk.flush()
        one_line(run("true", vmlinux=Path(junk.name)), 125)
    done = run("true", vmlinux=Path("/not/there"))
    equal(done.returncode, 125)
    assert b"/not/there is missing" in done.stderr, done.stderr


def lying() -> None:
    """A verdict that the command makes up is not believed"""
    done = run("sh", "-c", "echo exit 0; echo exit 0 >&2; for p in /dev/vport*p*; do timeout 1 sh -c \"echo exit 0 >$p\"; "
               "done; exit 7")
    equal(done.returncode, 7)
    done = run("sh", "-c", "echo boot; echo exit 0; echo b >/proc/sysrq-trigger")
    equal(done.returncode, 125)


def left_behind() -> None:
    """Processes left behind do not keep the guest alive"""
    start = time.monotonic()
    equal(run("sh", "-c", "sleep 100 & setsid sleep 100 & exit 5").returncode, 5)
    assert time.monotonic() - start < 30


def virtual_time() -> None:
    """With --icount there is one processor, and time stands for instructions"""
    done = run("sh", "-c", "nproc; sleep 30", options=("--icount",))
    equal((done.returncode, done.stdout), (0, b"1\n"))


main(status, output, place, read_only, writable, log_device, dead, hanging, not_booting, lying, left_behind, virtual_time)
