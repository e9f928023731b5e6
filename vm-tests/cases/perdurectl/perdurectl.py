#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""This test checks perdurectl: programs that know nothing of it restart, what it tells is true, what it refuses is said."""

import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hygiene"))
import ktap  # noqa: E402
from ctl import CTL, ctl, run  # noqa: E402
from ktap import differ  # noqa: E402

BUILD = Path(os.environ["PERDURE_BUILD"]) / "userspace"
STATIC = BUILD / "vm-tests/cases/restart/restart-target-static"     # exits with 42: generation 2, restarted, two arguments
COMPLETION = Path(os.environ["PERDURE_TOP"]) / "userspace/tools/perdurectl.bash"
SYSCTL = Path("/proc/sys/kernel/restart")
PORT = 7010
NOBODY = 65534
os.environ["PATH"] = f"{CTL.parent}:{os.environ['PATH']}"


def program(text: str, name: str = "program") -> str:
    path = Path(scratch) / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def restarts() -> Iterator[str]:
    """--keep: a script, a static program: the same process, files and arguments, and its own exit status."""
    script = program("#!/bin/sh\n"
                     "echo $$ $# \"$1\" $A >>$TMP/trace; exec 9>>$TMP/nine; ls /proc/$$/fd | grep -cx 9 >>$TMP/fds\n"
                     "[ $(wc -l <$TMP/trace) = 4 ] && exit 7; kill -$SIG $$; sleep 9\n")
    for sig in ("SEGV", "ABRT"):
        for name in ("trace", "nine", "fds"):
            (Path(scratch) / name).unlink(missing_ok=True)
        process = subprocess.Popen([CTL, "run", "--keep", "--child-id=-5", script, "a b", "--burst"],
                                   env=os.environ | {"A": "c d", "TMP": scratch, "SIG": sig})
        yield from differ("status", process.wait(60), 7)
        yield from differ("generations", (Path(scratch) / "trace").read_text(), f"{process.pid} 2 a b c d\n" * 4)
    # In each generation, argv[1] and [2]
    killed = subprocess.Popen([CTL, "run", "--keep", "sh", "-c", "kill -STOP $$; kill -SEGV $$", "x"])
    os.waitid(os.P_PID, killed.pid, os.WSTOPPED)
    os.kill(killed.pid, signal.SIGSEGV)
    os.kill(killed.pid, signal.SIGCONT)
    os.waitid(os.P_PID, killed.pid, os.WSTOPPED)
    killed.kill()
    yield from differ("status", killed.wait(60), -signal.SIGKILL)
    # Not restarted yet, a static program says so with 41
    yield from run("run", STATIC, "1", "2", status=41)
    yield from run("run", "-i", "3", "--", "sh", "-c", "exit 3", status=3)


SERVER = """
import os, socket, sys
if sys.argv[1] == "own":
    listener = socket.create_server(("127.0.0.1", %d))
    listener.set_inheritable(True)      # so that it outlives an execve(2), too
else:
    assert os.environ["LISTEN_FDS"] == "2" and os.environ["LISTEN_PID"] == str(os.getpid())
    listener = socket.socket(fileno=3)
    second = socket.socket(fileno=4)
    assert second.getsockname()[1] == %d
while True:
    client = listener.accept()[0]
    if client.recv(1) == b"x":
        os.abort()
    client.sendall(b"%%d" %% os.getpid())
    client.close()
""" % (PORT, PORT + 1)


def connect(data: bytes) -> socket.socket:
    for _ in range(300):
        try:
            client = socket.create_connection(("127.0.0.1", PORT), timeout=30)
            client.sendall(data)
            return client
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise RuntimeError("the server does not listen")


def ask(own: bool) -> tuple[bytes, bytes]:
    """The answer, and the end of it. Who meets a socket of the server's own just before that is closed is reset, and tries again."""
    for _ in range(300):
        try:
            with connect(b"a") as client:
                return client.recv(100), client.recv(1)
        except (ConnectionResetError, BrokenPipeError):
            if not own:
                raise
    raise RuntimeError("the server resets everybody")


def servers() -> Iterator[str]:
    """One that is given its sockets, whose waiting clients are not refused; one that opens its own. Nobody waits for the old generation."""
    listen = ["-l", f"127.0.0.1:{PORT}", "--listen", f"[::1]:{PORT + 1}"]
    for options in (["--in-place", *listen], ["--in-place", "--no-ports"], ["--in-place"], [*listen, "--keep"]):
        given, keep = "-l" in options, "--keep" in options
        server = subprocess.Popen([CTL, "run", *options, "--", sys.executable, "-c", SERVER, "given" if given else "own"])
        files, kept = [], []
        try:
            for number in range(3):
                yield from differ(f"answer {number}", ask(not given), (b"%d" % server.pid, b""))
                files.append(len(os.listdir(f"/proc/{server.pid}/fd")))
                client = connect(b"x")
                if given:
                    # Connected while the server dies: in the queue of the socket, which is kept
                    with connect(b"a") as waiting:
                        yield from differ(f"answer to one that waited, {number}", waiting.recv(100), b"%d" % server.pid)
                if keep:
                    kept.append(client)
                else:
                    # Its connection was its own: closed with the generation
                    yield from differ("end", client.recv(1), b"")
                    client.close()
            yield from differ("descriptors", [n - files[0] for n in files], [0, 1, 2] if keep else [0, 0, 0])
            yield from differ("status", server.poll(), None)
        finally:
            server.kill()
            server.wait()
            for client in kept:
                client.close()


def limits() -> Iterator[str]:
    """The limit counts restarts of a program that is executed by way of perdurectl, too; they come later and later."""
    for options in (["--in-place"], ["--keeper"]):
        count = Path(scratch) / f"count{options[0]}"
        begun = time.monotonic()
        process = subprocess.Popen([CTL, "run", *options, "-b", "2", "-t", "1000000", "-d", "1000", "sh", "-c",
                                    f"echo $$ >>{count}; kill -SEGV $$; sleep 9"], stderr=subprocess.PIPE, text=True)
        said = process.communicate(timeout=60)[1]
        yield from differ("status", process.returncode, -signal.SIGSEGV)
        starts = count.read_text().split()
        yield from differ("starts, processes", (len(starts), len(set(starts))), (3, 1))
        yield from differ("is it perdurectl's", starts[0] == str(process.pid), "--in-place" in options)
        yield from differ("waits", re.findall(r"the next one is in (\d+) ms", said), ["1000", "2000"])
        yield from differ("waited", time.monotonic() - begun > 3, True)


def moved() -> Iterator[str]:
    """A program that changes its directory is found again, under the name that it was called by."""
    shutil.copy(sys.executable, Path(scratch) / "moves")
    text = ("import os, sys\nos.chdir('/')\nname = open('/proc/self/cmdline').read().split(chr(0))[0]\n"
            "n = os.write(1, name.encode() + b' ')\nif os.lseek(1, 0, 1) < 20:\n os.abort()\nsys.exit(9)\n")
    for name, path in (("./moves", os.environ["PATH"]), ("moves", f".:{os.environ['PATH']}")):
        with tempfile.TemporaryFile() as out:
            done = subprocess.run([CTL, "run", "--delay", "0", "--", name, "-c", text], cwd=scratch, stdout=out, stderr=subprocess.PIPE,
                                  timeout=60, env=os.environ | {"PATH": path})
            yield from differ("status", (done.returncode, done.stderr), (9, b""))
            out.seek(0)
            said = out.read().decode().split()
            yield from differ("names", (set(said), len(said) > 2), ({name}, True))


def refusals() -> Iterator[str]:
    """What cannot be run says why, with the status that a shell would give."""
    yield from run("run", "nonexistent-program", status=127, says="nonexistent-program: No such file")
    yield from run("run", "/nonexistent/program", status=127, says="No such file")
    yield from run("run", "/etc/passwd", status=126, says="Permission denied")
    yield from run("run", program("echo no first line\n", "bare"), status=126, says="#!/bin/sh")
    yield from run("run", status=2, says="which program")
    yield from run("run", "--burst", "0", "true", status=2, says="1 to 64")
    yield from run("run", "-i", "x", "true", status=2, says="not a number")
    yield from run("run", "--nonsense", "true", status=2, says="usage")
    yield from run("run", "-l", "127.0.0.1:notaport", "true", status=125, says="--listen 127.0.0.1:notaport")
    for port in "99999", "127.0.0.1:65536", "0", "184467440737095516160":
        yield from run("run", "-l", port, "true", status=2, says="--listen .*: not a number from 1 to 65535")
    yield from run("run", "--keep", "--no-ports", "true", status=2, says="nothing is ended")
    yield from run("run", "--keeper", "--in-place", "true", status=2, says="--keeper: not with")
    yield from run("run", "-l", "1", "true", status=2, says="LISTEN_FDS", env=os.environ | {"LISTEN_FDS": "1"})
    yield from run("run", "true", status=125, says="128 KiB", env=os.environ | {"A": "a" * 131000})
    for how, end in (("--in-place", "a fault will be the end"), ("--keeper", "another one is started"), ("--keep", "a fault will be")):
        yield from run("run", "--try", how, "sh", "-c", "exit 6", status=6, says=f"128 KiB.*{end}",
                       env=os.environ | {"A": "a" * 131000})
    yield from run("nonsense", status=2, says="no such command: nonsense")
    yield from run(status=2, says="usage")
    yield from run("show", status=2, says="process id")
    yield from run("show", "abc", status=2, says="not a process id")
    yield from run("show", "999999", status=5, says="no process 999999")
    yield from run("list", "x", status=2, says="show PID")
    yield from run("log", "-n", "0", status=2, says="not a number")
    yield from run("list", "-n", "1", status=2, says="for log")
    yield from run("watch", "--exit-code", status=2, says="for log")
    yield from run("log", "--journal", status=2, says="for watch")
    yield from run("log", "--hook", "true", status=2, says="for watch")
    yield from run("show", "--since", "1", "1", status=2, says="--since is for")
    for seq in "x", "-1", "":
        yield from run("log", "--since", seq, status=2, says="not the seq")
    yield from run("watch", "--since", "1", "--cursor-file", "x", status=2, says="has the number")
    yield from run("run", "--core", "--no-core", "true", status=2, says="--core: not with")
    yield from run("run", "--core-max", "0", "true", status=2, says="--core-max 0: not a number")
    # A program with privileges that its starter has not: a user, a group, a capability (effective and permitted, CAP_NET_BIND_SERVICE)
    gains = program("", "gains")
    shutil.copy(STATIC, gains)
    os.chown(gains, 2002, 2002)
    os.chmod(scratch, 0o755)
    for mode, capability in ((0o4755, False), (0o2755, False), (0o6755, False), (0o755, True)):
        os.chmod(gains, mode)
        if capability:
            os.setxattr(gains, "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))
        yield from run("run", gains, status=126, says="gets privileges", user=NOBODY, group=NOBODY)
    # Root has them all
    yield from run("run", gains, "1", "2", status=41)
    os.removexattr(gains, "security.capability")
    # Without the group's right to execute it, the bit means something else
    for mode in (0o2705, 0o755):
        os.chmod(gains, mode)
        yield from run("run", gains, "1", "2", status=41, user=NOBODY, group=NOBODY)


def switched_off() -> Iterator[str]:
    """kernel.restart.enabled = 0: says how to switch it on, and what it knows; with --try the program runs."""
    process = subprocess.Popen([CTL, "run", "--keep", "sh", "-c", "kill -STOP $$; exit 3"])
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    os.kill(process.pid, signal.SIGSEGV)
    os.kill(process.pid, signal.SIGCONT)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    says = "sysctl kernel.restart.enabled=1"
    (SYSCTL / "enabled").write_text("0")
    try:
        for command in (["list", "--json"], ["log", "--json", process.pid], ["show", "--json", process.pid]):
            done = ctl(*command)
            yield from differ(f"{command}", (done.returncode, "faults kill: " + says in done.stderr), (0, True))
            told = json.loads(done.stdout)
            told = told[0] if isinstance(told, list) else told
            yield from differ("told", (told["pid"], told["generation"], told["signo"]), (process.pid, 2, 11))
        watch = subprocess.Popen([CTL, "watch", str(process.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert watch.stderr and watch.stdout
        yield from differ("watch", says in watch.stderr.readline(), True)
        yield from run("check", status=1, says=says)
        yield from run("run", "true", status=125, says=f"{says}.*--try")
        yield from run("run", "--try", "sh", "-c", "exit 5", status=5, says="another one is started")
    finally:
        (SYSCTL / "enabled").write_text("1")
    # It goes on to watch; where it was only asked to begin with, it may see the fault before as well
    process.send_signal(signal.SIGSEGV)
    process.send_signal(signal.SIGCONT)
    yield from differ("seen", f"sh[{process.pid}]  SIGSEGV" in watch.stdout.readline(), True)
    watch.kill()
    watch.communicate()
    process.kill()
    process.wait()


def checks() -> Iterator[str]:
    told = json.loads(ctl("check", "--json").stdout)
    known = {"abi": told["abi"], "enabled": 1, "min_interval_ms": 0, "cap_burst": 64, "cap_interval_ms": 0,
             "stable_ms": 10000, "held_bytes_max": 1048576}
    yield from differ("check --json", told, known)
    yield from differ("check", dict(line.split() for line in ctl("check").stdout.splitlines()),
                      {name: str(value) for name, value in told.items()})


def tells() -> Iterator[str]:
    """list and show: what is registered, for people and for programs; paths only for the owner."""
    yield from run("list", status=0, says="no process is registered")
    yield from differ("list --json", json.loads(ctl("list", "--json").stdout), [])
    name = program("#!/bin/sh\nkill -STOP $$\n", 'a "strange\\ name\u00e9')
    process = subprocess.Popen([CTL, "run", "--keep", "-i", "7", "--burst", "3", "-t", "90000", "-q", name, "two words", "", "\t", "-", ""])
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        os.kill(process.pid, signal.SIGSEGV)
        os.kill(process.pid, signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        listed = json.loads(ctl("list", "--json").stdout)
        shown = json.loads(ctl("--json", "show", process.pid).stdout)
        yield from differ("one is listed", [one["pid"] for one in listed], [process.pid])
        want = {"registered": 1, "child_id": 7, "generation": 2, "signo": 11, "cause": "fault", "burst": 3,
                "interval_ms": 90000, "left": 2, "policy": ["limit", "quarantine"], "pid": process.pid}
        for one in (*listed, shown):
            yield from differ("told", {key: one.get(key) for key in want}, want)
            yield from differ("path", one["path"], name)
            yield from differ("times", (type(one["fault_time_ns"]), one["fault_age_ns"] > one["age_ns"] > 0, one["downtime_ns"] > 0),
                              (str, True, True))
            yield from differ("argv", one["argv"][1:], ["two words", "", "\t", "-", ""])
        text = ctl("show", process.pid).stdout
        said = dict(re.findall(r"^(\w+) +(.*)$", text, re.M))
        yield from differ("show", (said["generation"], said["path"]), ("2", name.replace("\\", "\\134").replace(" ", "\\040")))
        yield from differ("show, times", bool(re.fullmatch(r"\d+ \([\d.]+ (us|ms|s)\)", said["age_ns"])), True)
        lines = ctl("list").stdout.splitlines()
        yield from differ("list", [len(lines), lines[1].split()[0]], [2, str(process.pid)])
        yield from differ("list, times", bool(re.search(r"( +[\d.]+ (us|ms|s)){3}  - +limit quarantine$", lines[1])), True)
        other = ctl("show", process.pid, "--json", user=NOBODY, group=NOBODY)
        yield from differ("for others", "path" in json.loads(other.stdout), False)
        yield from run("show", "1", status=5, says="process 1 is not registered")
        yield from differ("show --json", ctl("show", "1", "--json").returncode, 5)
    finally:
        process.kill()
        process.wait()


def names() -> Iterator[str]:
    """A process may call itself what it likes: as JSON that is it, in words it does not reach the terminal."""
    shutil.copy("/bin/sh", Path(scratch) / "7")
    stops = "import ctypes, os, signal; ctypes.CDLL(None).prctl(15, %r, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP)"
    for comm in (b"7", b"a\\101 \\", b"\x1b[31m\xc3\xa9", b"two\nlines\n", b"\xff\xc0\xaf\xed\xa0\x80", b"\xe2\x80\xae\xc2\x9b"):
        process = subprocess.Popen([CTL, "run", "--keep", sys.executable, "-c", stops % comm])
        try:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            for one in (*json.loads(ctl("list", "--json").stdout), json.loads(ctl("show", process.pid, "--json").stdout)):
                yield from differ("comm", one["comm"], comm.decode(errors="replace"))
            text = re.sub("[^ -~\u00e9]", "?", comm.decode(errors="replace"))
            yield from differ("show", re.findall(r"^comm +(.*)$", ctl("show", process.pid).stdout, re.M), [text])
            yield from differ("list", f"  {text}  " in ctl("list").stdout, True)
        finally:
            process.kill()
            process.wait()
    seen = len(ctl("log", "--json").stdout.splitlines())
    process = subprocess.Popen([CTL, "run", "--keep", "-b", "1", "./7", "-c", "kill -SEGV $$"], cwd=scratch)
    process.wait(60)
    for line in ctl("log", "--json").stdout.splitlines()[seen:]:
        yield from differ("comm in the log", json.loads(line)["comm"], "7")


def log() -> Iterator[str]:
    """Records: as many as there were faults, as JSON and in words, as they come, of one process."""
    seen = len(ctl("log", "--json").stdout.splitlines())
    go = Path(scratch) / "go"
    # The limit: two restarts, then death
    process = subprocess.Popen([CTL, "run", "--keep", "-b", "2", "-t", "100000", "sh", "-c",
                                f"until [ -e {go} ]; do sleep 0.1; done; kill -BUS $$; sleep 9"])
    watch, words, his, others = (subprocess.Popen([CTL, "watch", *more], stdout=subprocess.PIPE, text=True)
                                 for more in (["--json"], [], [str(process.pid)], ["1"]))
    time.sleep(1)
    go.touch()
    yield from differ("status", process.wait(60), -signal.SIGBUS)
    assert watch.stdout and words.stdout and his.stdout
    live = [json.loads(watch.stdout.readline()) for _ in range(3)]
    spoken = [words.stdout.readline() for _ in range(3)]
    yield from differ("watch PID", [his.stdout.readline() for _ in range(3)], spoken)
    for w in (watch, words, his, others):
        w.kill()
    yield from differ("watch of another", others.communicate()[0], "")
    for w in (watch, words, his):
        w.communicate()
    want = [("restarted", 2), ("restarted", 3), ("limit", 3)]
    records = [json.loads(line) for line in ctl("log", "--json").stdout.splitlines()][seen:]
    yield from differ("records", records, live)
    yield from differ("outcomes", [(r["outcome"], r["generation"]) for r in records], want)
    yield from differ("of whom", {(r["pid"], r["signo"], r["comm"], r["cause"]) for r in records}, {(process.pid, 7, "sh", "fault")})
    for line, says in zip(spoken, ("SIGBUS  restart: generation 2 after", "SIGBUS  restart: generation 3 after", "SIGBUS  dead: one fault too many")):
        if says not in line or f"sh[{process.pid}]" not in line:
            yield f"in words: {line!r}, not {says!r}"
    yield from differ("log -n 2", ctl("log", "-n", "2").stdout, "".join(spoken[1:]))
    yield from differ("log PID", ctl("log", process.pid).stdout, "".join(spoken))
    yield from run("log", "1", status=0, says="no fault")
    # What others have done is not for everybody
    yield from differ("for others", ctl("log", "--json", user=NOBODY, group=NOBODY).stdout, "")


def sequels() -> Iterator[str]:
    """What becomes of a restart, of a program that is run, by its own name; numbers that every reader of JSON can have."""
    (SYSCTL / "stable_ms").write_text("60000")
    seen = len(ctl("log", "--json").stdout.splitlines())
    once = "import os, sys, time\nif not os.path.exists(sys.argv[1]):\n open(sys.argv[1], 'w')\n os.kill(os.getpid(), 11)\n"
    try:
        ended = subprocess.run([CTL, "run", "--in-place", sys.executable, "-c", once + "os._exit(3)", Path(scratch) / "s1"], timeout=60)
        (SYSCTL / "stable_ms").write_text("1000")
        stable = subprocess.Popen([CTL, "run", "--in-place", sys.executable, "-c", once + "time.sleep(60)", Path(scratch) / "s2"])
        want = [("restarted", "fault"), ("ended", "exited"), ("restarted", "fault"), ("stable", "fault")]
        for _ in range(600):
            told = [json.loads(line) for line in ctl("log", "--json").stdout.splitlines()][seen:]
            if len(told) == len(want):
                break
            time.sleep(0.1)
        stable.kill()
        stable.wait()
    finally:
        (SYSCTL / "stable_ms").write_text("10000")
    yield from differ("status", ended.returncode, 3)
    yield from differ("records", [(one["outcome"], one["cause"]) for one in told], want)
    yield from differ("names", {one["comm"] for one in told}, {Path(sys.executable).name[:15]})
    yield from differ("moments", {type(one[key]) for one in told for key in ("time_ns", "mono_ns")}, {str})
    yield from differ("numbers", {key for one in told for key, value in one.items() if isinstance(value, int) and abs(value) > 2**53}, set())
    yield from differ("ages", (told[1]["age_ns"] > 0, told[3]["age_ns"] >= 980_000_000), (True, True))
    words = ctl("log").stdout.splitlines()[seen:]
    for line, says in zip(words, (r"SIGSEGV  restart: generation 2 after \d+ us, having lived for [\d.]+ (ms|s)$",
                                  r"ended: generation 2, by exit 3, [\d.]+ (ms|s) after its start$", "SIGSEGV  restart: ",
                                  r"stable: generation 2 has lived for (\d{3} ms|[\d.]+ s)$")):
        if not re.search(says, line):
            yield f"in words: {line!r}, not {says!r}"


def faults(number: int) -> None:
    """So many records."""
    for _ in range(number):
        subprocess.run([CTL, "run", "--keep", "-b", "1", "sh", "-c", "kill -SEGV $$"], timeout=60, check=False)


@contextmanager
def watching(*args: object, **more: Any) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([CTL, "watch", *map(str, args)], stdout=subprocess.PIPE, text=True, **more)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def take(process: subprocess.Popen[str], number: int) -> list[dict[str, Any]]:
    assert process.stdout
    # What does not come is a failure, and not the end of all tests
    timer = threading.Timer(120, process.kill)
    timer.start()
    try:
        return [json.loads(process.stdout.readline()) for _ in range(number)]
    finally:
        timer.cancel()


@contextmanager
def programs() -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory for records of programs, and an environment in which it is the only one."""
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        yield Path(place), {**os.environ, "PERDURE_VERDICTS": place}


def add(path: Path, moment: int, outcome: str, more: str = "") -> None:
    with path.open("a") as file:
        file.write(f"time_ns={moment} pid=7 comm=prog rung=takeover cause=x outcome={outcome}{more}\n")


def of_programs() -> Iterator[str]:
    """Records of programs: each is told once, whatever its time, in whichever file; what a line says does no harm."""
    with programs() as (place, env):
        a, b = place / "a.verdicts", place / "b.verdicts"
        add(a, 5, "old")
        with watching("--json", env=env) as watch:
            time.sleep(1)
            for moment, outcome in (9 * 10**18, "future"), (6, "past"), (time.time_ns(), "now"):
                add(a, moment, outcome)
                time.sleep(0.5)
            a.rename(place / "a.verdicts.old")
            add(a, 7, "renewed")
            # Longer than any record
            add(a, 8, "long", f" x={'y' * 300_000}")
            add(a, 9, "short")
            time.sleep(0.5)
            a.write_text("")
            time.sleep(0.5)
            add(a, 10, "begun", ' a":1,"uid=0')
            with a.open("a") as file:
                file.write("time_ns=11 outcome=ha")
                file.flush()
                time.sleep(0.5)
                file.write("lf\n")
            told = take(watch, 7)
        yield from differ("told", [one["outcome"] for one in told], ["future", "past", "now", "renewed", "short", "begun", "half"])
        yield from differ("keys", (told[5].get('a":1,"uid'), "uid" in told[5]), (0, False))

    # Two files, the later record first; ended while the second one is told
    with programs() as (place, env):
        out, cursor = place / "out", place / "cursor"
        for name, moment in ("a", 200), ("b", 150), ("c", 100):
            add(place / f"{name}.verdicts", moment, name)
        last = json.loads(ctl("log", "--json").stdout.splitlines()[-1])["seq"]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        cursor.write_text(f"{boot} {last}\n")
        for end in "b", "none":
            hook = f"echo $PERDURE_OUTCOME >>{out}; [ $PERDURE_OUTCOME != {end} ] || kill -KILL $PPID"
            with watching("--cursor-file", cursor, "--hook", hook, env=env):
                for _ in range(100):
                    if out.exists() and len(out.read_text().split()) == (2 if end == "b" else 4):
                        break
                    time.sleep(0.1)
                time.sleep(0.5)
        yield from differ("with a cursor", out.read_text().split(), ["a", "b", "b", "c"])


def since() -> Iterator[str]:
    """Who watches from a number on, or from where the last one was, misses nothing and gets nothing twice; what is overwritten is told."""
    faults(2)       # a restart and a death each
    records = [json.loads(line) for line in ctl("log", "--json").stdout.splitlines()]
    last = records[-1]["seq"]
    with watching("--json", "--since", last - 2) as watch:
        yield from differ("watch --since", take(watch, 2), records[-2:])
        faults(1)
        yield from differ("goes on", [one["seq"] for one in take(watch, 2)], [last + 1, last + 2])
    last += 2
    yield from differ("log --since", [json.loads(line)["seq"] for line in ctl("log", "--json", "--since", last - 1).stdout.splitlines()], [last])
    yield from differ("--exit-code", [ctl("log", "-x", "-s", number).returncode for number in (last - 1, last)], [6, 0])
    yield from run("log", "--since", last, status=0, says="no fault .* since then")

    cursor = Path(scratch) / "cursor"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with watching("--json", "--cursor-file", cursor) as watch:
        yield from differ("from the first", [one["seq"] for one in take(watch, len(records) + 2)][-2:], [last - 1, last])
        for _ in range(300):
            if cursor.read_text().split()[:2] == [boot, str(last)]:
                break
            time.sleep(0.1)
        else:
            yield f"the cursor is {cursor.read_text()}, not {boot} {last}"
    faults(1)
    with watching("--json", "--cursor-file", cursor) as watch:
        yield from differ("from the cursor", [one["seq"] for one in take(watch, 2)], [last + 1, last + 2])
    # Numbers of another boot say nothing
    cursor.write_text(f"{'0' * 36} 1000000 0\n")
    with watching("--json", "--cursor-file", cursor) as watch:
        yield from differ("another boot", take(watch, 1)[0]["seq"], records[0]["seq"])
    # Nor do those that a loss of power has left
    for text in "garbage", "":
        cursor.write_text(text)
        with watching("--json", "--cursor-file", cursor, stderr=subprocess.PIPE) as watch:
            yield from differ("no cursor", take(watch, 1)[0]["seq"], records[0]["seq"])
            assert watch.stderr
            yield from differ("said", "not what perdurectl writes" in watch.stderr.readline(), True)
    yield from run("watch", "--cursor-file", "/nonexistent/x", status=1, says="/nonexistent/x")

    # One that stands still while the log is overwritten
    last += 2
    with watching("--json", "--since", last) as watch, watching("--since", last) as words:
        faults(1)
        take(watch, 2)
        assert words.stdout
        words.stdout.readline(), words.stdout.readline()
        for process in watch, words:
            process.send_signal(signal.SIGSTOP)
        faults(135)
        for process in watch, words:
            process.send_signal(signal.SIGCONT)
        gap, first = take(watch, 2)
        yield from differ("gap", (gap["outcome"], gap["seq"], gap["missing"]), ("missing", first["seq"] - 1, first["seq"] - 1 - (last + 2)))
        yield from differ("so many", gap["missing"] >= 14, True)
        line = words.stdout.readline()
        yield from differ("in words", f"  {gap['missing']} records are missing" in line, True)
    # A number that has been overwritten: what programs have recorded before that is not new
    with programs() as (place, env):
        add(place / "a.verdicts", 1, "before")
        told = [json.loads(line) for line in ctl("log", "--json", "--since", 0, env=env).stdout.splitlines()]
        yield from differ("before", [one["outcome"] for one in told if one["outcome"] == "before"], [])
        yield from differ("oldest", told[0]["seq"] > 1, True)
        with watching("--json", "--since", 0, env=env) as watch:
            take(watch, len(told) + 1)       # and what is missing
            add(place / "a.verdicts", time.time_ns(), "after")
            yield from differ("watch", take(watch, 1)[0]["outcome"], "after")
    # Others have gaps all the time: what is not for them
    with watching("--json", user=NOBODY, group=NOBODY) as watch:
        time.sleep(1)
        faults(1)
        own = subprocess.Popen([CTL, "run", "-b", "1", "--keep", "sh", "-c", "kill -SEGV $$"], user=NOBODY, group=NOBODY)
        own.wait(60)
        yield from differ("another's", [one["outcome"] for one in take(watch, 2)], ["restarted", "limit"])


def afresh() -> Iterator[str]:
    """What could not be restarted in its process, and is started by its keeper: told, too."""
    (SYSCTL / "stable_ms").write_text("60000")
    done = Path(scratch) / "done"
    text = f"import os\nif os.path.exists('{done}'):\n os._exit(4)\nopen('{done}', 'w')\nos.setuid({NOBODY})\nos.kill(os.getpid(), 11)\n"
    try:
        with watching("--json") as watch, watching() as words:
            time.sleep(1)
            process = subprocess.Popen([CTL, "run", "--keeper", "-b", "3", "--", sys.executable, "-c", text], stderr=subprocess.DEVNULL)
            yield from differ("status", process.wait(60), 4)
            told = take(watch, 3)
            assert words.stdout
            said = [words.stdout.readline() for _ in range(3)]
    finally:
        (SYSCTL / "stable_ms").write_text("10000")
    yield from differ("told", [(one["outcome"], one["cause"]) for one in told], [("restarted", "fault"), ("ended", "cleared"), ("afresh", "changed")])
    yield from differ("who", (told[2]["comm"], told[2]["pid"] > told[0]["pid"]), (Path(sys.executable).name[:15], True))
    for line, says in zip(said, ("restart: generation 2", "generation 2 is registered no longer, ", f"restart: started afresh, as process {told[2]['pid']}")):
        if says not in line:
            yield f"in words: {line!r}, not {says!r}"


def hook() -> Iterator[str]:
    """A command for each record, with what is in it; one that fails or hangs is not waited for."""
    out = Path(scratch) / "hook"
    name = program("#!/bin/sh\nkill -SEGV $$\n", 'k "x" $(id) \u00e9')
    with watching("--hook", f"env >>{out}; echo END >>{out}; exit 3", stderr=subprocess.PIPE) as watch:
        time.sleep(1)
        process = subprocess.Popen([CTL, "run", "--keep", "-b", "1", name])
        process.wait(60)
        assert watch.stderr
        yield from differ("said", [watch.stderr.readline().split(": ")[-1] for _ in range(2)], ["status 3\n"] * 2)
    first, second, _ = out.read_text().split("END\n")
    told = dict(line.split("=", 1) for line in first.splitlines() if line.startswith("PERDURE_"))
    yield from differ("environment", {key: told.get(f"PERDURE_{key}") for key in ("PID", "OUTCOME", "SIGNO", "COMM", "PATH", "GENERATION")},
                      {"PID": str(process.pid), "OUTCOME": "restarted", "SIGNO": "11", "COMM": Path(name).name[:15], "PATH": name, "GENERATION": "2"})
    yield from differ("message", f"[{process.pid}]  SIGSEGV  restart: generation 2 after" in told["PERDURE_MESSAGE"], True)
    yield from differ("second", "PERDURE_OUTCOME=limit\n" in second, True)


def samples(file: Path) -> dict[str, float]:
    """What a collector reads: names, with labels, and values; anything else is an error."""
    found = {}
    for line in file.read_text().splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP [a-z_]+ .+|TYPE [a-z_]+ (counter|gauge))", line), line
            continue
        name, value = line.rsplit(" ", 1)
        assert re.fullmatch(r'[a-z_]+(\{rung=%s,outcome=%s,unit=%s\})?' % ((r'"(?:\\[\\"]|[^"\\])*"',) * 3), name), line
        assert name not in found, line
        found[name] = float(value)
    return found


def expect(file: Path, wanted: dict[str, float], name: str = "total") -> Iterator[str]:
    """These counts, soon, and no others."""
    end = time.monotonic() + 20
    found: dict[str, float] | None = None
    while found != wanted and time.monotonic() < end:
        time.sleep(0.05)
        if file.exists():
            found = {key.partition("{")[2]: value for key, value in samples(file).items() if key.startswith(f"perdure_verdicts_{name}{{")}
    yield from differ(f"{name} in {file}", found, wanted)


def metrics() -> Iterator[str]:
    """Counts for Prometheus, which no user can make large or false; a file that cannot be written is told once, and tried again."""
    file = Path(scratch) / "a.prom"
    begun = time.time()
    with programs() as (place, env), watching("--metrics", file, env=env) as watch:
        yield from expect(file, {})
        yield from differ("start", abs(samples(file)["perdure_watch_start_time_seconds"] - begun) < 20, True)
        faults(2)
        wanted = {'rung="restart",outcome="restarted",unit=""}': 2.0, 'rung="restart",outcome="limit",unit=""}': 2.0}
        yield from expect(file, wanted)
        found = samples(file)
        yield from differ("took", 0 < found['perdure_verdicts_duration_seconds_total{rung="restart",outcome="restarted",unit=""}'] < 5, True)
        yield from differ("last", begun - 20 < found['perdure_verdicts_last_time_seconds{rung="restart",outcome="limit",unit=""}'] < time.time() + 20, True)
        yield from differ("mode", oct(file.stat().st_mode & 0o777), "0o644")
        # Root's, with a unit
        moment = time.time_ns()
        add(place / "a.verdicts", moment, "replayed", " cgroup=/system.slice/a\\134b.service took_ns=1500000000")
        wanted['rung="takeover",outcome="replayed",unit="a\\\\134b.service"}'] = 1.0
        yield from expect(file, wanted)
        yield from differ("took", samples(file)['perdure_verdicts_duration_seconds_total{rung="takeover",outcome="replayed",unit="a\\\\134b.service"}'], 1.5)
        # Another user's: he has said nothing of root's units, nor that records are missing
        of_user = place / "b.verdicts"
        of_user.write_text("")
        os.chown(of_user, NOBODY, NOBODY)
        add(of_user, moment + 1, "replayed", " cgroup=/system.slice/a.service")
        wanted['rung="takeover",outcome="replayed",unit="?"}'] = 1.0
        yield from expect(file, wanted)
        with of_user.open("a") as f:
            f.write(f'time_ns={moment + 2} pid=1 comm=x rung=log cause=x outcome=missing missing=1000000\n')
        wanted['rung="log",outcome="missing",unit="?"}'] = 1.0
        yield from expect(file, wanted)
        with of_user.open("a") as f:
            f.writelines(f'time_ns={moment + 3 + i} pid=1 comm=x rung=r{i}"}} outcome=o\n' for i in range(3000))
        end = time.monotonic() + 60
        while (total := sum(v for k, v in samples(file).items() if "_total{" in k and "duration" not in k)) < 3007 and time.monotonic() < end:
            time.sleep(0.1)
        found = samples(file)
        yield from differ("all of them", total, 3007.0)
        yield from differ("few of them", len(found) <= 3 * 2001 + 1, True)
        yield from differ("other", found['perdure_verdicts_total{rung="other",outcome="other",unit="other"}'] > 900, True)
        yield from differ("printed", watch.stdout and select.select([watch.stdout], [], [], 0)[0], [])
    # No room: once, and again
    full = Path(scratch) / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", full], check=True)
    try:
        with programs() as (place, env), watching("--metrics", full / "b.prom", env=env, stderr=subprocess.PIPE) as watch:
            yield from expect(full / "b.prom", {})
            before = samples(full / "b.prom")
            add(place / "a.verdicts", time.time_ns(), "replayed")
            add(place / "a.verdicts", time.time_ns(), "replayed")
            assert watch.stderr
            yield from differ("full", re.sub(r"/.*/", "", watch.stderr.readline()), "perdurectl: --metrics b.prom: not written; it is tried again: No space left on device\n")
            yield from differ("as it was", samples(full / "b.prom"), before)
            add(place / "a.verdicts", time.time_ns(), "replayed")
            yield from differ("said again", select.select([watch.stderr], [], [], 2)[0], [])
            subprocess.run(["mount", "-o", "remount,size=64k", full], check=True)
            add(place / "a.verdicts", time.time_ns(), "replayed")
            yield from expect(full / "b.prom", {'rung="takeover",outcome="replayed",unit=""}': 4.0})
            yield from differ("said once", select.select([watch.stderr], [], [], 0)[0], [])
    finally:
        subprocess.run(["umount", full], check=True)
    yield from run("watch", "--metrics", "/nowhere/a.prom", status=1, says="--metrics /nowhere/a.prom: No such file")
    yield from run("log", "--metrics", "a", status=2, says="for watch")


def entry(server: socket.socket) -> dict[str, str]:
    """One of the journal's, by its protocol."""
    data, fields = server.recv(65536), {}
    while data:
        key, rest = data.split(b"\n", 1)
        size = int.from_bytes(rest[:8], "little")
        fields[key.decode()], data = rest[8:8 + size].decode(), rest[9 + size:]
    return fields


def journal() -> Iterator[str]:
    """Entries of the journal: what its protocol says, with the service's unit; systemd's own program has them, where there is one."""
    place = Path("/run/systemd/journal")
    place.mkdir(parents=True, exist_ok=True)
    group = Path(scratch) / "cgroup"
    group.mkdir()
    subprocess.run(["mount", "-t", "cgroup2", "none", group], check=True)
    unit = group / "test.slice" / "kept.service" / "other.service"
    unit.mkdir(parents=True)
    text = f"echo 0 >{unit}/cgroup.procs; exec $0 run --keep -b 1 sh -c 'kill -SEGV $$'"
    want = {"MESSAGE_ID": "9b6c7f1d2e0a4c3f8d5be1a70c94f263", "SYSLOG_IDENTIFIER": "perdure", "OBJECT_SYSTEMD_UNIT": "kept.service",
            "PERDURE_CGROUP": "/test.slice/kept.service/other.service", "PERDURE_UNIT": "kept.service", "PERDURE_COMM": "sh"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(place / "socket"))
        server.settimeout(60)
        with watching("--journal") as watch:
            time.sleep(1)
            subprocess.run(["sh", "-c", text, CTL], timeout=60, check=False)
            for outcome, level in (("restarted", "4"), ("limit", "3")):
                fields = entry(server)
                yield from differ("fields", {key: fields.get(key) for key in want}, want)
                yield from differ("outcome", (fields["PERDURE_OUTCOME"], fields["PRIORITY"]), (outcome, level))
                yield from differ("message", fields["MESSAGE"].startswith("kept.service  sh["), True)
            yield from differ("status", watch.poll(), None)
        # A service's word for its unit is not root's; what does not fit is left out
        default = Path("/proc/sys/net/core/wmem_default")
        before = default.read_text()
        default.write_text("4608")
        try:
            with programs() as (records, env), watching("--journal", env=env, stderr=subprocess.PIPE) as watch:
                time.sleep(1)
                add(records / "root.verdicts", 1, "a", " cgroup=/system.slice/sshd.service")
                yield from differ("root's", entry(server).get("OBJECT_SYSTEMD_UNIT"), "sshd.service")
                other = records / "other.verdicts"
                other.touch()
                os.chown(other, NOBODY, NOBODY)
                add(other, 1, "b", " cgroup=/system.slice/sshd.service")
                fields = entry(server)
                yield from differ("another's", (fields["PERDURE_OUTCOME"], fields.get("OBJECT_SYSTEMD_UNIT")), ("b", None))
                add(other, 1, "c" * 3500)
                add(other, 1, "d")
                yield from differ("after a large one", entry(server)["PERDURE_OUTCOME"], "d")
                assert watch.stderr
                yield from differ("said", "Message too long" in watch.stderr.readline(), True)
        finally:
            default.write_text(before)
    (place / "socket").unlink()
    daemon = Path("/lib/systemd/systemd-journald")
    if daemon.exists():
        server = subprocess.Popen([daemon])
        for _ in range(300):
            if (place / "socket").exists():
                break
            time.sleep(0.1)
        with watching("--journal"):
            time.sleep(1)
            subprocess.run(["sh", "-c", text, CTL], timeout=60, check=False)
            entries: list[str] = []
            for _ in range(300):
                entries = subprocess.run(["journalctl", "-u", "kept.service", "-o", "cat"], capture_output=True, text=True).stdout.splitlines()
                if len(entries) == 2:
                    break
                time.sleep(0.1)
        server.terminate()
        server.wait()
        yield from differ("journalctl -u", [" generation 2 after " in entries[0], " dead: " in entries[1]] if len(entries) == 2 else entries, [True, True])
    subprocess.run(["umount", "-l", group], check=True)


def dual() -> Iterator[str]:
    """--listen without a host: IPv6 and IPv4; where there is no IPv6, IPv4."""
    text = "import socket, sys; s = socket.socket(fileno=3); print(s.family.name, s.getsockname()[1], flush=True)\nwhile 1: c, _ = s.accept(); c.sendall(b'y')"
    for where in str(PORT), f":{PORT}":
        server = subprocess.Popen([CTL, "run", "-l", where, sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
        assert server.stdout
        yield from differ("family", server.stdout.readline().split(), ["AF_INET6", str(PORT)])
        for host in "127.0.0.1", "::1":
            with socket.create_connection((host, PORT), timeout=60) as client:
                yield from differ(host, client.recv(1), b"y")
        server.kill()
        server.communicate()
    # What socket(2) says where the kernel has no IPv6
    done = subprocess.run([sys.executable, "-c", WITHOUT_IPV6, CTL, "run", "--try", "--in-place", "-l", str(PORT), sys.executable, "-c",
                           text.split("\n")[0]], capture_output=True, text=True, timeout=60)
    yield from differ("without IPv6", done.stdout.split(), ["AF_INET", str(PORT)])


# A seccomp filter: socket(AF_INET6, ...) fails with EAFNOSUPPORT
WITHOUT_IPV6 = """
import ctypes, os, platform, struct, sys
number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
code = b"".join(struct.pack("HBBI", *i) for i in ((0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 16), (0x15, 0, 1, 10),
                                                  (0x06, 0, 0, 0x50000 | 97), (0x06, 0, 0, 0x7fff0000)))
room = ctypes.create_string_buffer(code)
libc = ctypes.CDLL(None, use_errno=True)
assert not libc.prctl(38, 1, 0, 0, 0)
assert not libc.prctl(22, 2, struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(room))), os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
"""


def dumped(names: str, expected: bool = True) -> list[Path]:
    """The cores, and empty files. A child writes one, which may need longer than the next generation."""
    end = time.monotonic() + 20
    while True:
        files = list(Path(scratch).glob(names))
        if not expected or any(path.stat().st_size for path in files) or time.monotonic() > end:
            return files
        time.sleep(0.05)


def cores() -> Iterator[str]:
    """A core dump as the soft limit has it, but of 1 GiB at most; --core-max; --core in spite of the limit; --no-core."""
    pattern = Path("/proc/sys/kernel/core_pattern")
    before = pattern.read_text()
    pattern.write_text(f"{scratch}/dump")
    dump = Path(scratch) / "dump"
    text = f"ulimit -Sc; [ -e {scratch}/again ] && exit 6; echo >{scratch}/again; kill -SEGV $$"
    unlimited, gib, mib = resource.RLIM_INFINITY, 1 << 30, 1 << 20
    try:
        for soft, hard, options, limit, size in ((unlimited, unlimited, [], gib, "some"), (0, unlimited, [], 0, None),
                                                 (3 * mib, unlimited, [], 3 * mib, "some"), (unlimited, unlimited, ["--no-core"], 0, None),
                                                 (0, unlimited, ["--core"], gib, "some"), (0, 2 * mib, ["--core"], 2 * mib, "some"),
                                                 (unlimited, unlimited, ["--core-max", "1"], mib, mib)):
            for path in (Path(scratch) / "again", *Path(scratch).glob("dump*")):
                path.unlink(missing_ok=True)
            # More memory than 1 MiB, to be cut
            what = ["sh", "-c", text] if size != mib else [sys.executable, "-c", f"import os\nx = os.urandom(4 << 20)\nos.execlp('sh', 'sh', '-c', {text!r}) "
                                                          f"if os.path.exists('{scratch}/again') else (open('{scratch}/again', 'w'), os.abort())"]
            done = ctl("run", "--delay", 0, *options, "--", *what, preexec_fn=lambda s=soft, h=hard: resource.setrlimit(resource.RLIMIT_CORE, (s, h)))
            told = done.stdout.split()
            yield from differ(f"{options}, {soft}: status", done.returncode, 6)
            # In units of 512 bytes; by the first generation and the second
            yield from differ(f"{options}, {soft}: limit", set(told), {str(limit // 512)})
            files = dumped("dump*", bool(size))
            yield from differ(f"{options}, {soft}: cores", len(files), 1 if size else 0)
            if size == mib:
                # What is written, in whole pages: holes do not count
                yield from differ("cut", 0 < files[0].stat().st_blocks * 512 <= mib + 4096, True)
    finally:
        pattern.write_text(before)
    yield from run("run", "--core", "true", status=0, says="hard limit of core dumps is 0",
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
    assert dump


def exit_policy() -> Iterator[str]:
    """--on-exit: a status is a fault, 0 is none."""
    script = program("#!/bin/sh\necho $$ >>$TMP/exits; exit $(wc -l <$TMP/exits | grep -vx 3 || echo 0)\n", "exits.sh")
    process = subprocess.Popen([CTL, "run", "--keep", "--on-exit", "--burst", "5", script], env=os.environ | {"TMP": scratch})
    yield from differ("status", process.wait(60), 0)
    yield from differ("starts", (Path(scratch) / "exits").read_text(), f"{process.pid}\n" * 3)


def policies() -> Iterator[str]:
    """What run asks for is the kernel's policy: who hangs is restarted, and a fault leaves a core."""
    show = 'while read -r line; do echo "$line"; done </proc/$$/restart'
    done = ctl("run", "--burst", 3, "--interval", 5000, "--quarantine", "--on-exit", "--core", "--heartbeat", 60000, "sh", "-c", show)
    said = dict(line.split(":", 1) for line in done.stdout.splitlines())
    for key, want in (("burst", "3"), ("interval_ms", "5000"), ("heartbeat_ns", "60000000000"), ("policy", "limit exit quarantine core")):
        yield from differ(key, sorted(said[key].split()), sorted(want.split()))
    hang = program(f"#!/bin/sh\necho >>{scratch}/hangs; [ $(wc -l <{scratch}/hangs) = 2 ] && exit 5; while :; do :; done\n", "hang")
    yield from run("run", "--heartbeat", 3000, hang, status=5)
    pattern = Path("/proc/sys/kernel/core_pattern")
    before = pattern.read_text()
    pattern.write_text(f"{scratch}/core")
    try:
        fault = program(f"#!/bin/sh\n[ -e {scratch}/faulted ] && exit 6; echo >{scratch}/faulted; kill -SEGV $$\n", "fault")
        yield from run("run", "--core", "--delay", 0, fault, status=6, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30)))
        core = next(iter(dumped("core*")), None)
        yield from differ("core", core and core.read_bytes()[:4], b"\x7fELF")
    finally:
        pattern.write_text(before)


def drop_in() -> Iterator[str]:
    """The line in the systemd example is one that perdurectl takes."""
    text = (COMPLETION.parent.parent / "examples/systemd/perdure.conf").read_text()
    line = re.findall(r"^ExecStart=/usr/bin/perdurectl (.+) -- /usr/sbin/NAME", text, re.M)
    yield from differ("lines", len(line), 1)
    yield from run(*line[0].split(), "--", "sh", "-c", "exit 4", status=4)


def completion() -> Iterator[str]:
    """bash offers commands, options and programs."""
    for words, want in ((["li"], ["list"]), (["--j"], ["--json"]), (["run", "--no-p"], ["--no-ports"]), (["run", "--", "perdurec"], ["perdurectl"]),
                        (["run", "-i", "3", "perdurec"], ["perdurectl"]), (["run", "sh", "/etc/passw"], ["/etc/passwd", "/etc/passwd-"]),
                        (["log", "--l"], ["--lines"]), (["show", "--l"], []),
                        (["watch", "--h"], ["--hook"]), (["watch", "--j"], ["--journal", "--json"]), (["watch", "--m"], ["--metrics"]), (["watch", "-M", "/etc/passw"], ["/etc/passwd", "/etc/passwd-"]), (["run", "--core"], ["--core", "--core-max"])):
        line = " ".join(f"'{w}'" for w in ["perdurectl", *words])
        done = subprocess.run(["bash", "-c", f'. "{COMPLETION}"; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _perdurectl; printf "%s\\n" "${{COMPREPLY[@]}}"'],
                              capture_output=True, text=True)
        yield from differ(f"completion of {words}", sorted(filter(None, done.stdout.splitlines())), want)
        yield from differ("errors", done.stderr, "")


def main() -> int:
    (SYSCTL / "min_interval_ms").write_text("0")
    return ktap.run(checks, tells, names, log, sequels, since, of_programs, afresh, hook, metrics, journal, dual, cores, restarts, servers, limits, moved, refusals, switched_off, exit_policy, policies, drop_in, completion)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(main())
