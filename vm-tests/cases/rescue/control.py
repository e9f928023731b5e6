#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""rescuectl: functions of all shapes, its files and what is wrong in them, and what it says."""

import ctypes
import errno
import fcntl
import functools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import BUILD, equal, main, run, running  # noqa: E402

RESCUECTL = BUILD / "userspace/userspace/rescue/rescuectl"
COMPLETION = Path(os.environ["PERDURE_TOP"]) / "userspace/rescue/rescuectl.bash"
UNIT = COMPLETION.with_name("rescue-points.service")
PROGRAM = BUILD / "userspace/vm-tests/cases/rescue/rescue-functions"
PLAIN = PROGRAM.with_name("rescue-functions-plain")
scratch = tempfile.TemporaryDirectory(prefix="rescue-")
PLACE = Path(scratch.name)


def ctl(*words: object, ok: int = 0, user: int | None = None, **how: Any) -> str:
    done = subprocess.run([str(RESCUECTL), *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, user=user, **how)
    assert done.returncode == ok, f"{words}: status {done.returncode}, not {ok}: {done.stdout}"
    return done.stdout


def program(*how: str, path: Path = PROGRAM) -> tuple[int, list[list[int]]]:
    done = subprocess.run([str(path), *how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.returncode, [[int(n) for n in line.split()] for line in done.stdout.splitlines() if line[0] in "-0123456789"]


def point(name: str) -> dict[str, int]:
    return next(p for p in json.loads(ctl("list", "--json")) if p["name"] == name)


def shapes() -> None:
    """Functions with a tail call, tables of jumps, and a part elsewhere return their values"""
    for path in (PROGRAM, PLAIN):
        equal(program("n", "nb", "lna", path=path), (0, [[1, 1, 0, 2], [1, 1, 20, 2], [14, 1, 6, 7]]))
        for how in ("f", "lfa", "m"):
            equal(program(how, path=path)[0], -signal.SIGFPE)
        names = ("plain", "by_tail", "by_switch", "with_cold", "leaf", "marked", "aside")
        for n, name in enumerate(names, 1):
            ctl("add", path, name, "--value", -n, "--burst", 1000)
        try:
            # plain() is called by itself, by_tail() calls it at its end, by_switch() within
            equal(program("fa", path=path), (0, [[-1, -1, -3, -4]]))
            equal(program("fb", "fc", "nd", "fg", path=path), (0, [[-1, -1, -3, -4], [-1, -1, -3, -4], [1, 1, 41, 2], [-1, -1, -3, -4]]))
            equal([point(name)["rescued"] for name in ("plain", "by_switch", "with_cold")], [8, 4, 4])
            # A function that ends in a jump to another one is left there
            equal(point("by_tail")["left"], point("by_tail")["entered"])
            # It is not by one of a switch
            equal(program(*(f"lf{c}" for c in "abcdefgh"), "lnd", path=path), (0, [[-5, 5, 6, 7]] * 8 + [[12, -1, 6, 7]]))
            equal((point("leaf")["rescued"], point("leaf")["left"]), (8, 1))
            equal(program("c", path=path), (0, [[1, 2]]))
            equal({key: n for key, n in point("aside").items() if key == "entered" or key.startswith("given_up_") and n}, {"entered": 2})
            # Nor is it entered again in each round
            equal(program("m", path=path), (0, [[-6]]))
            equal((point("marked")["entered"], point("marked")["rescued"]), (1, 1))
        finally:
            ctl("remove", *names)
        equal(program("f", path=path)[0], -signal.SIGFPE)
        for name in ("loop", "to_mark"):
            assert "jumps to its own beginning" in ctl("add", path, name, "--value", 1, ok=1)


def said() -> None:
    """list, show and what is wrong with arguments"""
    ctl("add", PROGRAM, "plain", "--value", "0x10", "--name", "one", "--burst", 2, "--interval", "1h", "--output", "cork",
        "--deadline", "1h")
    try:
        equal(program("fa"), (-signal.SIGFPE, []))
        text = ctl("list")
        line, = [line.split() for line in text.splitlines() if line.startswith("one")]
        equal(line[1:6], ["3", "2", "0", "0", "1"])
        assert line[6:] == ["budget", "1"], text
        p = point("one")
        equal((p["value"], p["burst"], p["interval_ms"], p["output"], p["died_budget"]), (16, 2, 3600000, "cork", 1))
        equal((p["deadline_ms"], p["uid"]), (3600000, 0))
        assert "already" in ctl("add", PROGRAM, "plain", "--value", 1, "--name", "one", ok=1)
    finally:
        ctl("remove", "--all")
    assert "no point one" in ctl("remove", "one", ok=1)
    text = ctl("show", PROGRAM, "by_switch")
    assert re.search(r"build_id  [0-9a-f]{40}\n", text) and "entered   0x" in text, text
    for words, why in ((("add", PROGRAM, "none", "--value", 1), "no function none"), (("add", PROGRAM, "never", "--value", 1), "never returns"),
                       (("add", "/etc/passwd", "x", "--value", 1), "not a program"), (("add", "/nowhere", "x", "--value", 1), "No such file"),
                       (("show", RESCUECTL, "x"), "no function x")):
        assert why in ctl(*words, ok=1), words
    for value, number in (("010", 10), ("-9223372036854775808", -1 << 63), ("0x7fffffffffffffff", (1 << 63) - 1), ("0x8000000000000000", -1 << 63),
                          ("0xffffffffffffffff", -1), ("9223372036854775807", (1 << 63) - 1), ("-0", 0)):
        ctl("add", PROGRAM, "plain", "--value", value)
        equal((value, point("plain")["value"]), (value, number))
        ctl("remove", "plain")
    for value in ("-9223372036854775809", "9223372036854775808", "0x10000000000000000", "0x", "-", "--1", "-0x1", "+1", " 1", "1 ", "a", "0x0x1", "1e3"):
        assert f"--value {value}: not a number" in ctl("add", PROGRAM, "plain", f"--value={value}", ok=2), value
    for wrong in (("add", PROGRAM, "plain"), ("add", PROGRAM), ("add", PROGRAM, "plain", "--value", "x"), ("add", PROGRAM, "plain", "--value", ""),
                  ("add", PROGRAM, "plain", "--value", 1, "--burst", 0), ("add", PROGRAM, "plain", "--value", 1, "--interval", "3"),
                  ("add", PROGRAM, "plain", "--value", 1, "--output", "refuse"), ("add", PROGRAM, "plain", "--value", 1, "--deadline", 0), (), ("what",),
                  ("remove",), ("remove", "--all", "one"), ("list", "one"), ("cascade",), ("cascade", "--"),
                  ("list", "--all"), ("remove", "--json", "x"), ("load", "--value", 1), ("show", PROGRAM, "plain", "--burst", 1), ("check", "--what"),
                  ("suggest", PROGRAM, "--inject", 1), ("--value", 1, "cascade", "true"), ("remove", "--all", "--all"),
                  ("remove", "x", "--user", "nobody"), ("remove", "x", "--user", -1), ("list", "--user", 1),
                  ("add", PROGRAM, "plain", "--value", 1, "--value", 1), ("add", PROGRAM, "plain", "--value", 1, "--name", "a b")):
        ctl(*wrong, ok=2)


def error_numbers() -> None:
    """errno after a fault, in programs that have it at different places, with the C library that they have"""
    libc, place = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("/libc.so.6")), PLACE / "lib"
    place.mkdir()
    other = Path(shutil.copy(libc, place / "libc.so.6"))

    def lines(how: str, path: Path = PROGRAM, **env: str) -> list[int]:
        done = subprocess.run([str(path), how], stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **env})
        return [int(n) for n in done.stdout.split()]

    with_other = {"LD_LIBRARY_PATH": str(place)}
    for path in (PROGRAM, PLAIN):
        for said, number in (("EBADMSG", errno.EBADMSG), ("ENOTSUP", errno.EOPNOTSUPP), ("110", errno.ETIMEDOUT), ("4095", 4095)):
            ctl("add", path, "plain", "--value", -1, "--errno", said)
            equal(lines("ef", path), [-1, number])
            equal(lines("en", path), [1, errno.EAGAIN])
            # It has another one
            equal(lines("ef", path, **with_other), [-1, errno.EAGAIN])
            p = point("plain")
            equal((p["errno"], p["errno_inode"], p["errno_unset"], p["rescued"]), (number, os.stat(libc).st_ino, 1, 2))
            assert re.fullmatch("0x[0-9a-f]+8", p["errno_at"]) or re.fullmatch("0x[0-9a-f]+0", p["errno_at"]), p
            assert re.search(r"^plain .*  errno not set 1$", ctl("list"), re.M), ctl("list")
            ctl("remove", "plain")
    ctl("add", PROGRAM, "plain", "--value", -1, "--errno", "EIO", "--libc", other)
    equal((lines("ef", **with_other), lines("ef")), ([-1, errno.EIO], [-1, errno.EAGAIN]))
    ctl("remove", "plain")
    text = ctl("test", PROGRAM, "plain", "--value", -1, "--errno", "EIO", "--", PROGRAM, "en")
    assert "-1 5\n" in text and "did not set errno" not in text, text
    text = ctl("test", PROGRAM, "plain", "--value", -1, "--errno", "EIO", "--libc", other, "--", PROGRAM, "en", ok=1)
    assert "-1 11\n" in text and "1 of them did not set errno: " in text, text
    # The command has a copy of that library, too
    calls = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.labs(5), ctypes.get_errno())"
    text = ctl("test", libc, "labs", "--value", -1, "--errno", "EIO", "--", sys.executable, "-c", calls)
    assert "-1 5\n" in text, text
    mine = PLACE / "mine"
    shutil.copy(PROGRAM, mine)
    os.chown(mine, 65534, 65534)
    PLACE.chmod(0o755)
    ctl("add", mine, "plain", "--value", -1, "--errno", "EIO", user=65534)
    equal(subprocess.run([mine, "ef"], stdout=subprocess.PIPE, text=True, user=65534).stdout, "-1 5\n")
    ctl("remove", "plain", user=65534)
    for wrong in ("", "EWHAT", "0", "4096", "-1", "5x", "0x5", " 5", "eio"):
        assert f"--errno {wrong}: not an error" in ctl("add", PROGRAM, "plain", "--value", -1, f"--errno={wrong}", ok=2), wrong
    assert "Say it: --errno" in ctl("add", PROGRAM, "plain", "--value", -1, "--libc", libc, ok=2)
    assert "No such file" in ctl("add", PROGRAM, "plain", "--value", -1, "--errno", 5, "--libc", place / "none", ok=2)
    for wrong, why in ((PROGRAM, "does not tell where errno is"), ("/etc/passwd", "does not tell where errno is"), (place, "not a regular file")):
        assert f"{wrong}: " in ctl("add", PROGRAM, "plain", "--value", -1, "--errno", 5, "--libc", wrong, ok=1), wrong
        assert why in ctl("test", PROGRAM, "plain", "--value", -1, "--errno", 5, "--libc", wrong, "--", "true", ok=1), wrong
    equal([p["name"] for p in json.loads(ctl("list", "--json")) if p["id"]], [])
    # A C library that was replaced is another one
    conf, there = PLACE / "errno.conf", "0 added, 0 replaced, 1 there before, 0 wrong\n"
    good = f"[plain]\nbinary = {PROGRAM}\nsymbol = plain\nvalue = -1\nerrno = EPROTO\nlibc = {other}\n"
    conf.write_text(good)
    equal(ctl("check", conf), "1 right, 0 wrong\n")
    equal((ctl("load", conf), ctl("load", conf)), (there.replace("0 added", "1 added").replace("1 there", "0 there"), there))
    equal(lines("ef", **with_other), [-1, errno.EPROTO])
    how: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {**os.environ, **with_other}}
    with running([PROGRAM, "ef", "w", "ef", "w", "ef"], **how) as old:
        equal(old.stdout.readline(), "-1 71\n")
        os.replace(shutil.copy(other, place / "new"), other)
        assert re.search("^plain .*  C library replaced$", ctl("list"), re.M), ctl("list")
        equal(lines("ef", **with_other), [-1, errno.EAGAIN])
        old.stdin.write("\n")
        old.stdin.flush()
        equal(old.stdout.readline(), "-1 71\n")
        # From here on it is for those that begin
        equal(ctl("load", conf), there.replace("0 replaced, 1 there", "1 replaced, 0 there"))
        equal(lines("ef", **with_other), [-1, errno.EPROTO])
        equal(old.communicate("\n", timeout=30)[0], "-1 11\n")
    assert "C library replaced" not in ctl("list"), ctl("list")
    other.write_bytes(other.read_bytes())
    equal(lines("ef", **with_other), [-1, errno.EAGAIN])
    ctl("remove", "plain")
    ctl("load", conf)
    conf.write_text(good.replace("EPROTO", "71"))
    equal(ctl("load", conf), there)
    conf.write_text(good.replace(f"libc = {other}\n", ""))
    equal(ctl("load", conf), there.replace("0 replaced, 1 there", "1 replaced, 0 there"))
    equal((lines("ef", **with_other), lines("ef")), ([-1, errno.EAGAIN], [-1, errno.EPROTO]))
    ctl("unload", conf)
    for old, new, why in (("EPROTO", "NONE", ":5: errno = NONE: not an error, as EIO or 5"), ("errno = EPROTO\n", "", "[plain] has libc, and no errno"),
                          (f"libc = {other}", "libc = libc.so.6", ":6: libc = libc.so.6: not a path"), (str(other), "/etc/passwd", "does not tell")):
        conf.write_text(good.replace(old, new))
        assert why in ctl("check", conf, ok=1), why
    # It does not keep that library's file system
    run("mount", "-t", "tmpfs", "none", place)
    shutil.copy(libc, place / "libc.so.6")
    ctl("add", PROGRAM, "plain", "--value", -1, "--errno", "EIO", "--libc", place / "libc.so.6")
    equal(lines("ef", **with_other), [-1, errno.EIO])
    run("umount", place)
    ctl("remove", "plain")
    jailed(place)


def jailed(place: Path) -> None:
    """A program and a C library that are seen by /proc/PID/root alone are those, not the ones of these paths here."""
    script = """mount -t tmpfs none "$0" && cd "$0" && mkdir old usr proc && mount --rbind /usr usr && cp -a /bin /lib /lib64 . 2>/dev/null
                cp "$1" program && cp "$2" libc.so.6 && pivot_root . old && LD_LIBRARY_PATH=/ exec /program w ef"""
    libc = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("/libc.so.6"))
    with running(["unshare", "-m", "sh", "-c", script, place, PROGRAM, libc], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as inside:
        root = Path(f"/proc/{inside.pid}/root")
        end = time.monotonic() + 30
        while not os.readlink(f"/proc/{inside.pid}/exe").endswith("/program"):
            assert inside.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        ctl("add", root / "program", "plain", "--value", -1, "--errno", "EIO", "--libc", root / "libc.so.6")
        equal(inside.communicate("\n", timeout=30)[0], "-1 5\n")
        equal((point("plain")["rescued"], point("plain").get("errno_unset")), (1, None))
    ctl("remove", "plain")


def unwritten() -> None:
    """What it cannot write is an error"""
    for words in (("list",), ("list", "--json"), ("show", PROGRAM, "plain"), ("suggest", PROGRAM), ("check", "/etc/perdure/none"), ("--help",),
                  ("--version",), ("test", PROGRAM, "plain", "--value", 1, "--", "true")):
        with open("/dev/full", "w") as full:
            done = subprocess.run([str(RESCUECTL), *map(str, words)], stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1 and "not all of the output could be written" in done.stderr, f"{words}: {done}"
    with open("/dev/full", "w") as full:
        equal(subprocess.run([RESCUECTL], stdout=full, stderr=subprocess.DEVNULL).returncode, 2)


def cascading() -> None:
    """--output cascade, a warning for what encrypts, and a command whose sockets have it"""
    ctl("add", PROGRAM, "plain", "--value", 1, "--output", "cascade")
    try:
        equal(point("plain")["output"], "cascade")
    finally:
        ctl("remove", "plain")
    # Of a program that says it needs the other library
    encrypts = PLACE / "encrypts"
    text = PROGRAM.read_bytes()
    equal(text.count(b"\0libc.so.6\0"), 1)
    encrypts.write_bytes(text.replace(b"\0libc.so.6\0", b"\0libssl.so\0"))
    for output, warned in ("cascade", True), ("cork", False), ("give-up", False):
        said = ctl("add", encrypts, "plain", "--value", 1, "--output", output)
        equal((said.count("warning: it needs libssl.so."), said.count("\n")), (warned, warned))
        ctl("remove", "plain")
    asked = "import socket; print(socket.socket().getsockopt(socket.IPPROTO_TCP, 501))"
    equal(ctl("cascade", "python3", "-c", asked, user=65534), "1\n")
    equal(ctl("cascade", "bash", "-c", f"python3 -c '{asked}' --all"), "1\n")
    equal(subprocess.run([sys.executable, "-c", asked], stdout=subprocess.PIPE, text=True).stdout, "0\n")
    equal(ctl("cascade", "--", "python3", "-c", asked), "1\n")
    assert "No such file" in ctl("cascade", "/nowhere", ok=1)


def own_scopes() -> None:
    """list: a line for scopes of programs' own, as soon as one was refused, and as JSON always"""
    equal([p["name"] for p in json.loads(ctl("list", "--json"))], ["rescue", "checkpoint"])
    # RESCUE_ENTER in a process that shares its descriptors (CLONE_FILES)
    code = ("import ctypes, os, signal; call = ctypes.CDLL(None, use_errno=True).syscall; child = call(56, 0x400 | signal.SIGCHLD, 0, 0, 0, 0)\n"
            "if not child: signal.pause()\n"
            "call(507, 0, 5, 0, 0); print(os.strerror(ctypes.get_errno())); os.kill(child, 9)")
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=30).stdout
    equal(said, "Operation not supported\n")
    line, = [line.split() for line in ctl("list").splitlines() if line.startswith("rescue ")]
    assert int(line[4]) > 0, line


def files() -> None:
    """rescue.d: each line that is wrong is named, and the right ones are added once"""
    directory = PLACE / "rescue.d"
    directory.mkdir()
    (directory / "a.conf").write_text(f"# a comment\n[plain]\nbinary = {PROGRAM}\nsymbol = plain\nvalue = -7\nburst = 100\ninterval = 2s\n"
                                      "output = cork\ndeadline = 1m\n")
    (directory / "b.conf").write_text(f"[tail]\nbinary = {PROGRAM}\nsymbol = by_tail\nvalue = -8\n")
    (directory / "ignored.txt").write_text("what?\n")
    equal(ctl("check", directory), "2 right, 0 wrong\n")
    equal(ctl("load", directory), "2 added, 0 replaced, 0 there before, 0 wrong\n")
    equal(ctl("load", directory), "0 added, 0 replaced, 2 there before, 0 wrong\n")
    # with_cold() faults still; what was called before has returned -7
    equal(program("na", "f")[0], -signal.SIGABRT)
    equal(point("plain")["rescued"], 2)
    equal((point("plain")["value"], point("plain")["interval_ms"], point("tail")["burst"]), (-7, 2000, 10))
    equal((point("plain")["output"], point("tail")["output"]), ("cork", "give-up"))
    equal((point("plain")["deadline_ms"], point("tail")["deadline_ms"]), (60000, 0))
    ctl("remove", "--all")
    good = f"binary = {PROGRAM}\nsymbol = plain\nvalue = 1\n"
    for text, line, why in (("what\n", 1, "[NAME]"), ("value = 1\n", 1, "no section"), ("[a b]\n" + good, 1, "not a name"),
                            (f"[p]\n{good}colour = red\n", 5, "no option colour"), (f"[p]\n{good}burst = 0\n", 5, "burst = 0"),
                            (f"[p]\n{good}interval = soon\n", 5, "interval = soon"),
                            (f"[p]\n{good}deadline = 0s\n", 5, "deadline = 0s"),
                            (f"[p]\n{good}output = none\n", 5, "output = none"), (f"[p]\n{good}value = 2\n", 5, "value is given twice"),
                            (f"[p]\n{good}burst = 2\nburst = 2\n", 6, "burst is given twice"),
                            (f"[p]\n{good}deadline = 2s\ndeadline = 2s\n", 6, "deadline is given twice"),
                            (f"[p]\n{good}output = cork\noutput = cork\n", 6, "output is given twice"),
                            ("[p]\nbinary = plain\nsymbol = x\nvalue = 1\n", 2, "begins with /"), ("\n[p]\nsymbol = x\nvalue = 1\n", 2, "no binary"),
                            (f"[p]\n[q]\n{good}", 1, "[p] has no binary"), (f"[p]\n{good}[q]\n", 5, "[q] has no binary"),
                            (f"[p]\n{good}what\n", 5, "[NAME]"), (f"[p]\n{good}symbol\n", 5, "[NAME]"), (f"[{'p' * 128}]\n{good}", 1, "not a name"),
                            (f"[p]\n{good}  burst = 5\n", 5, "begins with a blank"), (f"[p]\n{good}symbol =\n", 5, "twice"),
                            (f"[p]\nbuild_id =\n{good}", 2, "build_id has no value"), (f"[p]\n{good}[p]\n{good}", 5, f"in line 1 of {directory}/b.conf"),
                            (f"[plain]\n{good}", 1, f"[plain] is there already, in line 2 of {directory}/a.conf"),
                            (f"[p]\n{good.replace('= 1', '= 1x')}", 4, "value = 1x")):
        (directory / "b.conf").write_text(text)
        said = ctl("check", directory, ok=1).splitlines()
        # Once, and the point that is wrong is not added
        assert len(said) == 2 and said[0].startswith(f"rescuectl: {directory}/b.conf:{line}: ") and why in said[0], f"{text!r}: {said}"
        equal(said[1], f"{1 + text.count('[q]' + chr(10) + good) + text.count('[p]' + chr(10) + good + '[')} right, 1 wrong")
    # A name as long as it can be, and a line that is longer
    (directory / "b.conf").write_text(f"# {'x' * 1000}\n  # {'x' * 1000}\n[{'p' * 127}]\n{good}")
    equal(ctl("load", directory), "2 added, 0 replaced, 0 there before, 0 wrong\n")
    equal(point("p" * 127)["value"], 1)
    ctl("remove", "--all")
    # Only regular files
    (directory / "b.conf").unlink()
    for make in (os.mkfifo, os.mkdir):
        make(directory / "b.conf")
        assert "b.conf: not a regular file" in ctl("check", directory, ok=1)
        os.rename(directory / "b.conf", PLACE / make.__name__)
    assert "mkfifo: not a regular file" in ctl("load", PLACE / "mkfifo", ok=1)
    build_id = re.findall(r"build_id  (\w+)", ctl("show", PROGRAM, "plain"))[0]
    (directory / "b.conf").write_text(f"[p]\n{good}build_id = {build_id.upper()}\n")
    equal(ctl("check", directory), "2 right, 0 wrong\n")
    (directory / "b.conf").write_text(f"[p]\n{good}build_id = 0123\n")
    # A status of its own: not all is wrong
    assert "its build ID is" in ctl("load", directory, ok=3)
    equal(sum(p["id"] > 0 for p in json.loads(ctl("list", "--json"))), 1)
    (directory / "b.conf").chmod(0o666)
    assert "others can change it" in ctl("load", directory, ok=3)
    equal(ctl("unload", directory, ok=3).splitlines()[-1], "1 removed, 1 wrong")
    assert "others can change it" in ctl("load", directory / "b.conf", ok=1)
    assert "No such file" in ctl("load", PLACE / "none", ok=1)
    ctl("remove", "--all")


def reloaded() -> None:
    """load: a point is there once, as its file says, for the program that is there now"""
    copy, conf = PLACE / "upgraded", PLACE / "upgraded.conf"
    shutil.copy(PROGRAM, copy)
    options = {"binary": str(copy), "symbol": "plain", "value": "5"}

    def load(said: str, **changes: str) -> dict[str, int]:
        options.update(changes)
        conf.write_text("[up]\n" + "".join(f"{option} = {value}\n" for option, value in options.items()))
        equal(ctl("load", conf), said + "\n")
        equal([p["name"] for p in json.loads(ctl("list", "--json")) if p["id"]], ["up"])
        return point("up")

    there, replaced = "0 added, 0 replaced, 1 there before, 0 wrong", "0 added, 1 replaced, 0 there before, 0 wrong"
    first = load("1 added, 0 replaced, 0 there before, 0 wrong")
    equal(load(there), first)
    for option, value, key, then in (("value", "-6", "value", -6), ("burst", "11", "burst", 11), ("interval", "2s", "interval_ms", 2000),
                                     ("deadline", "1h", "deadline_ms", 3600000), ("output", "cork", "output", "cork"),
                                     ("output", "cascade", "output", "cascade")):
        equal(load(replaced, **{option: value})[key], then)
        load(there)
    load(replaced, symbol="by_switch")
    load(replaced, symbol="plain")
    copy.unlink()
    shutil.copy(PLAIN, copy)
    equal(program("fa", path=copy)[0], -signal.SIGFPE)
    load(replaced, value="7")
    load(there)
    equal(program("fa", path=copy)[0], -signal.SIGABRT)     # with_cold() faults still
    equal(point("up")["rescued"], 3)
    # The same file once more, as an upgrade writes it
    copy.unlink()
    shutil.copy(PLAIN, copy)
    load(replaced)
    # Only what its file names goes
    ctl("add", PROGRAM, "plain", "--value", 1, "--name", "other")
    equal(ctl("unload", conf), "1 removed, 0 wrong\n")
    equal(ctl("unload", conf), "0 removed, 0 wrong\n")
    equal([p["name"] for p in json.loads(ctl("list", "--json")) if p["id"]], ["other"])
    ctl("remove", "other")
    assert "No such file" in ctl("unload", PLACE / "none", ok=1)
    load("1 added, 0 replaced, 0 there before, 0 wrong")
    # What is wrong leaves it as it was
    conf.write_text(conf.read_text().replace("symbol = plain", "symbol = none"))
    equal(ctl("load", conf, ok=1).splitlines()[-1], "0 added, 0 replaced, 0 there before, 1 wrong")
    equal(point("up")["value"], 7)
    ctl("remove", "up")


def gone() -> None:
    """What its files do not have any more, load takes away, and unload; nothing else, and not when a line is wrong"""
    directory, link = PLACE / "gone.d", PLACE / "link.d"
    directory.mkdir()
    link.symlink_to(directory)

    def write(name: str, *points: str) -> Path:
        path = directory / name
        path.write_text("".join(f"[{p}]\nbinary = {PROGRAM}\nsymbol = plain\nvalue = 1\n" for p in points))
        return path

    def names() -> list[str]:
        return sorted(p["name"] for p in json.loads(ctl("list", "--json")) if p["id"])

    one, two = write("a.conf", "one", "more"), write("b.conf", "two")
    ctl("add", PROGRAM, "plain", "--value", 1, "--name", "by-hand")
    equal(ctl("load", directory), "3 added, 0 replaced, 0 there before, 0 wrong\n")
    write("a.conf", "one")
    equal(ctl("load", one), "0 added, 0 replaced, 1 there before, 0 wrong, 1 removed\n")
    two.unlink()
    one.write_text(f"{one.read_text()}what?\n")
    ctl("load", link, ok=1)
    equal(names(), ["by-hand", "one", "two"])
    write("a.conf", "one")
    equal(ctl("load", link), "0 added, 0 replaced, 1 there before, 0 wrong, 1 removed\n")
    equal(names(), ["by-hand", "one"])
    # One that is in another file now is there; of files in other places nothing is known
    one.rename(two)
    write("c.conf", "three")
    equal(ctl("load", directory), "1 added, 0 replaced, 1 there before, 0 wrong\n")
    (directory / "below").mkdir()
    equal(ctl("load", directory / "below"), "0 added, 0 replaced, 0 there before, 0 wrong\n")
    equal(ctl("unload", one, ok=1).splitlines()[-1], "0 removed, 1 wrong")
    equal(names(), ["by-hand", "one", "three"])
    # Files that are gone, and then their directory
    two.unlink()
    equal(ctl("unload", two), "1 removed, 0 wrong\n")
    shutil.rmtree(directory)
    link.unlink()
    equal(ctl("unload", f"{directory}/"), "1 removed, 0 wrong\n")
    equal(names(), ["by-hand"])
    # What was noted is damaged: as if nothing was
    directory.mkdir()
    write("a.conf", "one", "two")
    ctl("load", directory)
    Path("/run/perdure/rescue-points").write_text("[{")
    write("a.conf", "one")
    equal(ctl("load", directory), "0 added, 0 replaced, 1 there before, 0 wrong\n")
    equal(names(), ["by-hand", "one", "two"])
    ctl("remove", "--all")
    # A name that is not UTF-8 is not noted, and that is said
    latin = PLACE / os.fsdecode(b"caf\xe9")
    latin.mkdir()
    shutil.copy(PROGRAM, latin)
    assert "is not UTF-8" in ctl("add", latin / PROGRAM.name, "plain", "--value", 1)
    shutil.copy(write("a.conf", "one"), latin)
    assert "is not UTF-8" in ctl("load", latin)
    equal(names(), ["one", "plain"])
    ctl("remove", "--all")
    # A user's are noted where he has a place
    mine, place = PLACE / "users", PLACE / "runtime"
    shutil.copy(PROGRAM, mine)
    place.mkdir(0o700)
    write("a.conf", "one").write_text(f"[one]\nbinary = {mine}\nsymbol = plain\nvalue = 1\n")
    for path in (mine, place):
        os.chown(path, 65534, 65534)
    PLACE.chmod(0o755)
    how: dict[str, Any] = {"user": 65534, "env": {**os.environ, "XDG_RUNTIME_DIR": str(place)}}
    equal(ctl("load", directory, **how), "1 added, 0 replaced, 0 there before, 0 wrong\n")
    equal(ctl("load", directory), "1 added, 0 replaced, 0 there before, 0 wrong\n")
    (directory / "a.conf").unlink()
    equal(ctl("load", directory, **how), "0 added, 0 replaced, 0 there before, 0 wrong, 1 removed\n")
    equal(names(), ["one"])
    equal(ctl("unload", directory), "1 removed, 0 wrong\n")
    how["env"]["XDG_RUNTIME_DIR"] = str(directory)
    assert "not noted" in ctl("add", mine, "plain", "--value", 1, **how)
    ctl("remove", "plain", **how)


def limited() -> None:
    """The unit ends in time and stays active with points that are right; who changes points does not wait for ever"""
    unit = dict(re.findall(r"^(\w+)=(.*)", UNIT.read_text(), re.M))
    equal((unit["TimeoutStartSec"], unit["TimeoutStopSec"], unit["SuccessExitStatus"]), ("30s", "30s", "3 124 SIGKILL"))
    assert "MemoryMax" in unit, unit
    # A start that systemd ends is one without a stop: it ends by itself before
    for key in "ExecStart", "ExecReload":
        words = unit[key].split()
        equal((words[-2:], words[0]), (["/usr/sbin/rescuectl", "load"], "/usr/bin/timeout"))
        ends = subprocess.run([*words[:-3], "1", "sh", "-c", "trap '' TERM; sleep 100"], stderr=subprocess.DEVNULL).returncode
        assert (signal.Signals(-ends).name if ends < 0 else str(ends)) in unit["SuccessExitStatus"].split(), ends
    with open("/run/perdure/rescue-points.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for words in (("add", PROGRAM, "plain", "--value", 1), ("load", PLACE), ("unload", PLACE)):
            assert "another rescuectl has it: try again" in ctl(*words, ok=1, timeout=30), words
    equal([p["name"] for p in json.loads(ctl("list", "--json")) if p["id"]], [])


def upgraded() -> None:
    """A program is replaced: load gives the new one its point, and leaves those that run theirs"""
    binary, conf = PLACE / "service", PLACE / "service.conf"
    PLACE.chmod(0o755)
    shutil.copy(PROGRAM, binary)
    conf.write_text(f"[up]\nbinary = {binary}\nsymbol = leaf\nvalue = -5\n")

    def replace() -> None:
        shutil.copy(PROGRAM, PLACE / "new")
        os.replace(PLACE / "new", binary)

    def rows() -> list[str]:
        return [" ".join(line.split()[:3] + line.split()[6:]) for line in ctl("list").splitlines() if line.startswith("up ")]

    there = "0 added, 0 replaced, 1 there before, 0 wrong"
    replaced, kept = there.replace("0 replaced, 1 there", "1 replaced, 0 there"), "kept for processes of files that were replaced\n"
    ctl("load", conf)
    how: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with running([binary, "w", "lfa"], **how) as old, running([binary, "w"], **how) as older:
        equal(rows(), ["up 0 0"])
        replace()
        equal(rows(), ["up 0 0 file replaced"])
        equal(point("up")["changed"], "file replaced")
        equal(ctl("load", conf), f"{replaced}, 1 {kept}")
        equal(ctl("load", conf), f"{there}, 1 {kept}")
        # Another option is for the file that is there now
        conf.write_text(conf.read_text().replace("= -5", "= -6"))
        equal(ctl("load", conf), f"{replaced}, 1 {kept}")
        equal(old.communicate("\n", timeout=30)[0], "-5 5 6 7\n")
        equal(old.returncode, 0)
        equal(program("lfa", path=binary), (0, [[-6, 5, 6, 7]]))
        equal(rows(), ["up 1 1 file replaced", "up 1 1"])
        older.communicate("\n", timeout=30)
        equal(ctl("load", conf), f"{there}, 1 removed\n")
        equal(rows(), ["up 1 1"])
    with running([binary, "w", "lfa"], **how) as old:
        replace()
        equal(ctl("load", conf), f"{replaced}, 1 {kept}")
        # Another function is not what somebody wants to have in the old one
        conf.write_text(conf.read_text().replace("symbol = leaf", "symbol = plain"))
        equal(ctl("load", conf), f"{replaced}, 1 removed\n")
        replace()
        equal(ctl("load", conf), replaced + "\n")
        conf.write_text(conf.read_text().replace("symbol = plain", "symbol = leaf"))
        ctl("load", conf)
    with running([binary, "w"], **how):
        replace()
        equal(ctl("load", conf), f"{replaced}, 1 {kept}")
        equal(ctl("unload", conf), "2 removed, 0 wrong\n")
        ctl("load", conf)
        replace()
        ctl("load", conf)
        binary.unlink()
        ctl("remove", "up")
        equal(rows(), [])
    shutil.copy(PROGRAM, binary)
    ctl("load", conf)
    # With the unit's capabilities it sees who executes it; without, it may be anybody
    names = re.findall(r"^CapabilityBoundingSet=(.*)", UNIT.read_text(), re.M)[0].lower().replace("cap_", "+").split()
    with running([binary, "w"], user=65534, **how) as old:
        replace()
        equal(run("setpriv", f"--bounding-set=-all,{','.join(names)}", RESCUECTL, "load", conf), f"{replaced}, 1 {kept}")
        old.communicate("\n", timeout=30)
    equal(run("setpriv", "--bounding-set=-all,+sys_admin,+dac_read_search", RESCUECTL, "load", conf), f"{there}, 1 {kept}")
    equal(run("setpriv", f"--bounding-set=-all,{','.join(names)}", RESCUECTL, "load", conf), f"{there}, 1 removed\n")
    binary.unlink()
    equal(rows(), ["up 0 0 file gone"])
    ctl("unload", conf)


def busy() -> None:
    """A program that has a point cannot be written to, only replaced; one that somebody writes to gets none"""
    binary = PLACE / "busy"
    shutil.copy(PROGRAM, binary)
    with binary.open("r+b"):
        assert "somebody writes to it" in ctl("add", binary, "plain", "--value", 1, "--name", "busy", ok=1)
    ctl("add", binary, "plain", "--value", 1, "--name", "busy")
    for write in (lambda: binary.open("r+b").close(), lambda: os.truncate(binary, 1)):
        try:
            write()
        except OSError as error:
            equal(error.errno, errno.ETXTBSY)
        else:
            raise AssertionError("it was written to")
    shutil.copy(PROGRAM, PLACE / "new")
    os.replace(PLACE / "new", binary)
    binary.open("r+b").close()
    ctl("remove", "busy")


def mounted() -> None:
    """A point keeps its mount, of a namespace that is gone, too; the unit has no namespace of its own"""
    place = PLACE / "mounted"
    place.mkdir()
    run("mount", "-t", "tmpfs", "none", place)
    shutil.copy(PROGRAM, place / "program")
    ctl("add", place / "program", "plain", "--value", 1)
    assert "busy" in run("umount", place, ok=None)
    ctl("remove", "plain")
    run("unshare", "-m", "--propagation", "slave", RESCUECTL, "add", place / "program", "plain", "--value", 1)
    run("umount", place)
    equal(point("plain")["value"], 1)
    ctl("remove", "plain")
    # systemd.exec(5): what makes a mount namespace
    names = re.findall(r"^(\w+)=", UNIT.read_text(), re.M)
    assert "ExecStart" in names, names
    equal([name for name in names if re.match(r"Protect|Private|Proc|ReadOnly|ReadWrite|Inaccessible|Exec(Paths|SearchPath)|NoExec|Bind|Temporary|Root|"
                                              r"Mount|Extension|Dynamic|LogNamespace|NetworkNamespace|(Runtime|State|Cache|Logs)Dir", name)], [])


def confine(error: int) -> None:
    """A seccomp filter that answers system call 507 with that error."""
    # BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ, BPF_RET: SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, 507), (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7fff0000)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(text)))
    # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    equal(ctypes.CDLL(None).prctl(22, 2, program, 0, 0), 0)


def contained() -> None:
    """Root of a container is told what it has not"""
    words = "add", PROGRAM, "plain", "--value", 1
    assert "CAP_SYS_ADMIN of the host" in run("setpriv", "--bounding-set=-sys_admin", RESCUECTL, *words, ok=1)
    for error, why in (errno.ENOSYS, "a seccomp filter, as a container's, forbids"), (errno.EPERM, "no seccomp filter that forbids"):
        assert f"{why} system call 507" in ctl(*words, ok=1, preexec_fn=functools.partial(confine, error)), why


def whose() -> None:
    """Only root adds points to what is not his own; a file that is replaced has none"""
    assert "for root" in ctl("add", PROGRAM, "plain", "--value", 1, ok=1, user=65534)
    secret = PLACE / "secret"
    PLACE.chmod(0o755)
    secret.touch(0o600)
    text = ctl("add", secret, "plain", "--value", 1, ok=1, user=65534)
    assert "Permission denied" in text and "for root" not in text, text
    assert "cannot be the name" in ctl("add", PROGRAM, "a b", "--value", 1, ok=2)
    # There is a breakpoint already, and nobody has it mapped
    assert "Invalid argument: the kernel cannot put a breakpoint at its beginning" in ctl("add", PROGRAM, "trap", "--value", 1, ok=1)
    ctl("add", PROGRAM, "plain", "--value", 1, "--name", "roots")
    equal(ctl("list", user=65534).count("\n"), 1)
    assert "no point roots" in ctl("remove", "roots", ok=1, user=65534)
    ctl("remove", "--all", user=65534)
    equal(point("roots")["rescued"], 0)
    own = PLACE / "own"
    shutil.copy(PROGRAM, own)
    os.chown(own, 65534, 65534)
    conf = PLACE / "own.conf"
    conf.write_text(f"[own]\nbinary = {own}\nsymbol = plain\nvalue = 1\n")
    os.chown(conf, 65534, 65534)
    equal(ctl("load", conf, user=65534), "1 added, 0 replaced, 0 there before, 0 wrong\n")
    equal(ctl("list", user=65534).split("\n")[1].split()[:2], ["own", "0"])
    assert subprocess.run([own, "fa"], stdout=subprocess.DEVNULL, user=65534).returncode == -signal.SIGABRT
    equal((point("own")["uid"], point("own")["rescued"]), (65534, 3))
    # Of the same name each has his own
    ctl("add", PROGRAM, "plain", "--value", 1, "--name", "own")
    equal(sorted(p["uid"] for p in json.loads(ctl("list", "--json")) if p["name"] == "own"), [0, 65534])
    equal(ctl("remove", "own"), "")
    equal(point("own")["uid"], 65534)
    assert re.search("^own .* of user 65534$", ctl("list"), re.M) and "of user" not in ctl("list", user=65534)
    # Root's processes are not his
    equal(program("f", path=own)[0], -signal.SIGFPE)
    # Root takes it away if there is no other one that could be meant
    os.chown(own, 65533, 65533)
    ctl("add", own, "plain", "--value", 1, "--name", "own", user=65533)
    assert "several users have a point own" in ctl("remove", "own", ok=1)
    assert "no point own of that user" in ctl("remove", "own", "--user", 1, ok=1)
    equal(ctl("remove", "own", "--user", 65533), "")
    equal(point("own")["uid"], 65534)
    equal(ctl("remove", "own"), "own is user 65534's\n")
    assert "no point own" in ctl("remove", "own", ok=1)
    ctl("add", own, "plain", "--value", 1, "--name", "own", user=65533)
    ctl("remove", "--all", "--user", 65533)
    equal([p["name"] for p in json.loads(ctl("list", "--json")) if p["id"]], ["roots"])
    copy = PLACE / "program"
    shutil.copy(PROGRAM, copy)
    ctl("add", copy, "plain", "--value", 5, "--name", "copy")
    equal(program("fa", path=copy)[0], -signal.SIGABRT)     # with_cold() faults still
    equal(point("copy")["rescued"], 3)
    os.unlink(copy)
    shutil.copy(PROGRAM, copy)
    equal(program("fa", path=copy)[0], -signal.SIGFPE)
    equal(point("copy")["rescued"], 3)
    ctl("remove", "copy", "roots")


def tried() -> None:
    """test: each N-th return faults in a copy, as any user; what comes of it is said, and nothing is left"""
    before = ctl("list")
    text = ctl("test", PROGRAM, "plain", "--value", -1, "--", PROGRAM, "na", "nb")
    assert "-1 -1 9 2\n-1 -1 -20 2\n" in text and "6 calls, 6 faults on purpose, 6 faults undone: it returned -1\n" in text, text
    assert "ended with status 0" in text, text
    text = ctl("test", PROGRAM, "plain", "--value", -1, "--inject", 3, "--", PROGRAM, "na", "nb", user=65534)
    assert "1 1 9 2\n1 1 -20 2\n" in text and "6 calls, 2 faults on purpose, 2 faults undone" in text, text
    # A program that finds it by its path, and one that is started by another one
    text = ctl("test", PROGRAM, "plain", "--value", 5, "--", "sh", "-c", f"{PROGRAM} na; exec {PROGRAM} na")
    assert text.count("5 5 15 2\n") == 2 and "6 faults undone" in text, text
    # Faults that are not undone; none at all; what the command says
    text = ctl("test", PROGRAM, "prints", "--value", -1, "--", PROGRAM, "s3", ok=1)
    assert "s3\n" in text and "1 faults were not undone: output 1" in text and "died: SIGSEGV" in text, text
    text = ctl("test", PROGRAM, "plain", "--value", -1, "--inject", 7, "--", PROGRAM, "na", "nb", ok=1)
    assert "no fault: plain has not returned 7 times" in text, text
    assert "no call of plain: does the command run" in ctl("test", PROGRAM, "plain", "--value", -1, "--", "true", ok=1)
    text = ctl("test", PROGRAM, "plain", "--value", -1, "--", "sh", "-c", f"{PROGRAM} na; exit 3", ok=1)
    assert "3 faults undone" in text and "sh ended with status 3" in text, text
    # One that comes by itself, beyond the burst
    text = ctl("test", PROGRAM, "plain", "--value", -1, "--inject", 100, "--burst", 1, "--", PROGRAM, "fa", ok=1)
    assert "1 faults were not undone: budget 1" in text and "died: SIGFPE" in text, text
    for words, why in ((("test", PROGRAM, "none", "--value", 1, "--", "true"), "no function none"), (("test", "/nowhere", "x", "--value", 1, "--", "true"), "No such"),
                       (("test", PROGRAM, "plain", "--value", 1, "--", "/nowhere"), "No such file"), (("suggest", "/etc/passwd"), "not a program")):
        assert why in ctl(*words, ok=1), words
    for words in (("test", PROGRAM, "plain", "--value", 1), ("test", PROGRAM, "plain", "--", "true"), ("suggest",),
                  ("test", PROGRAM, "plain", "--value", 1, "--inject", 0, "--", "true")):
        ctl(*words, ok=2)
    # It ends by what ends it, and takes everything away
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        with running([RESCUECTL, "test", PROGRAM, "plain", "--value", 1, "--", PROGRAM], stdout=subprocess.PIPE) as process:
            while "plain" not in ctl("list"):
                assert process.poll() is None
            process.send_signal(number)
            assert f"died: {number.name}" in process.communicate(timeout=30)[0]
        equal(process.returncode, 128 + number)
        equal(ctl("list"), before)
    # No run begins any more
    ready = PLACE / "ready"
    words = [RESCUECTL, "suggest", PROGRAM, "--", "sh", "-c", f"{PROGRAM} s3; touch {ready}; exec sleep 60"]
    with running(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        while not ready.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        text = process.communicate(timeout=30)[0]
    assert "run 1 ended with status 143: 1 functions do what cannot be undone\n" in text and "run 2" not in text and "prints" in text, text
    equal(process.returncode, 128 + signal.SIGTERM)
    # Who ignores a signal; who ignores the ends of children; and no place for the copy
    ignoring = ctl("test", PROGRAM, "plain", "--value", -1, "--", "sh", "-c", f"kill -HUP $PPID; exec {PROGRAM} na",
                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert "ended with status 0" in ignoring, ignoring
    ctl("test", PROGRAM, "plain", "--value", -1, "--", PROGRAM, "na", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN), timeout=30)
    ctl("test", PROGRAM, "plain", "--value", -1, "--", PROGRAM, "na", env={**os.environ, "TMPDIR": ""})
    for words in (("test", "/dev/zero", "x", "--value", 1, "--", "true"), ("suggest", PLACE / "mkfifo"), ("show", "/dev/zero", "x"), ("show", "/etc", "x"),
                  ("add", PLACE / "mkfifo", "x", "--value", 1)):
        assert "not a regular file" in ctl(*words, ok=1, timeout=30), words
    equal(ctl("list"), before)
    equal([name for name in os.listdir("/tmp") if name.startswith("rescue-") and Path("/tmp", name) != PLACE], [])
    # In place, as root
    ctl("add", PROGRAM, "plain", "--value", 9, "--inject", 2, "--burst", 1)
    equal(program("na")[1], [[1, 9, 11, 2]])
    equal((point("plain")["inject"], point("plain")["injected"], point("plain")["rescued"]), (2, 1, 1))
    said = subprocess.run([BUILD / "userspace/userspace/tools/perdurectl", "log"], stdout=subprocess.PIPE, text=True).stdout
    assert "injected  rescue: plain returns an error" in said.splitlines()[-1], said[-300:]
    ctl("remove", "plain")


def typed() -> None:
    """A function whose result is not one register for numbers gets no point, if that is known"""
    before = ctl("list")
    why = "neither a pointer nor a number"
    conf = PLACE / "typed.conf"
    for symbol in ("half", "halved", "wide", "doubled"):
        assert f"{symbol} returns {why}" in ctl("add", PROGRAM, symbol, "--value", -1, ok=1), symbol
        assert why in ctl("test", PROGRAM, symbol, "--value", -1, "--", "true", ok=1), symbol
        conf.write_text(f"[typed]\nbinary = {PROGRAM}\nsymbol = {symbol}\nvalue = -1\n")
        for command in ("check", "load"):
            assert why in ctl(command, conf, ok=1), symbol
    equal(ctl("list"), before)
    for symbol in ("number", "second", "nothing", "is_told", "first"):
        ctl("add", PROGRAM, symbol, "--value", -1)
        ctl("remove", symbol)
    # The debug information may be elsewhere; without any nothing is known
    stripped, debug = PLACE / "untyped", Path("/usr/lib/debug/.build-id")
    run("strip", "-g", "-o", stripped, PROGRAM)
    ctl("add", stripped, "half", "--value", -1)
    ctl("remove", "half")
    assert "no debug information tells what number returns" in ctl("test", stripped, "number", "--value", -1, "--", stripped, "s3")
    assert "debug information" not in ctl("test", PROGRAM, "number", "--value", -1, "--", PROGRAM, "s3")
    build_id = re.findall(r"build_id  (\w+)", ctl("show", PROGRAM, "half"))[0]
    (debug / build_id[:2]).mkdir(parents=True, exist_ok=True)
    run("objcopy", "--only-keep-debug", PROGRAM, debug / build_id[:2] / f"{build_id[2:]}.debug")
    assert why in ctl("add", stripped, "half", "--value", -1, ok=1)
    (debug / build_id[:2] / f"{build_id[2:]}.debug").unlink()
    equal(ctl("list"), before)


def suggested() -> None:
    """suggest: functions that return an error, by their code and debug information; and those of a run that can be undone"""
    before = ctl("list")
    rows = {line.split()[0]: line.split()[1:] for line in ctl("suggest", PROGRAM).splitlines()[1:]}
    equal({name: (value[0], value[3]) for name, value in rows.items()},
          {"number": ("-7", "number"), "second": ("0", "pointer"), "prints": ("-8", "number")})
    text = ctl("suggest", PROGRAM, "--", PROGRAM, "s3", "s4", user=65534)
    assert "run 1 ended with status 0: 1 functions do what cannot be undone; once more" in text and "run 2 ended" in text, text
    rows = {line.split()[0]: line.split()[1:4] for line in text.splitlines() if line.split()[:1] in (["number"], ["second"], ["prints"])}
    # From main() and by prints()
    equal(rows, {"number": ["-7", "4", "0"], "second": ["0", "4", "0"], "prints": ["-8", "2", "2"]})
    assert f"rescuectl test {PROGRAM} number --value -7" in text and "output 2" in text, text
    stripped = PLACE / "stripped"
    run("strip", "-g", "-o", stripped, PROGRAM)
    text = ctl("suggest", stripped)
    assert "no debug information" in text and "prints" in text and "second" not in text, text
    run("strip", stripped)
    assert "none of its functions" in ctl("suggest", stripped)
    assert "None of the 3 functions that were looked at was called" in ctl("suggest", PROGRAM, "--", "true")
    # A place for the copy where a user can have no points: ramfs is no tmpfs
    place = PLACE / "ram"
    place.mkdir()
    run("mount", "-t", "ramfs", "none", place)
    place.chmod(0o777)
    for words in ("suggest", PROGRAM, "--", PROGRAM, "s3"), ("test", PROGRAM, "number", "--value", -7, "--", PROGRAM, "s3"):
        assert "set TMPDIR to such a place" in ctl(*words, ok=1, user=65534, env={**os.environ, "TMPDIR": str(place)})
    run("umount", place)
    # Names that a terminal would obey are left out
    escapes = PLACE / "escapes"
    run("objcopy", "--redefine-sym", "number=num\x1bber", PROGRAM, escapes)
    text = ctl("suggest", escapes)
    assert "\x1b" not in text and "prints" in text, text
    # So is a name that another function has, too, though that one returns no error
    twins = PLACE / "twins"
    run("objcopy", "--redefine-sym", "nothing=number", PROGRAM, twins)
    equal([line.split()[0] for line in ctl("suggest", twins).splitlines()[1:]], ["prints", "second"])
    assert "more than one function is called number" in ctl("add", twins, "number", "--value", -7, ok=1)
    # Of those that there is no point for it is the turn later
    mine = PLACE / "mine"
    shutil.copy(PROGRAM, mine)
    os.chown(mine, 65534, 65534)
    for n in range(63):
        ctl("add", mine, "plain", "--value", 1, "--name", f"n{n}", user=65534)
    text = ctl("suggest", PROGRAM, "--", PROGRAM, "s3", "s4", user=65534)
    again = {line.split()[0]: line.split()[1:4] for line in text.splitlines() if line.split()[:1] in (["number"], ["second"], ["prints"])}
    equal(again, rows)
    assert "run 3 ended" in text and "were looked at" not in text, text
    ctl("add", mine, "plain", "--value", 1, "--name", "n63", user=65534)
    assert "as many points as a user can" in ctl("suggest", PROGRAM, "--", PROGRAM, "s3", ok=1, user=65534)
    ctl("remove", "--all", user=65534)
    equal(ctl("list"), before)


def completed() -> None:
    """bash offers commands, options, functions and points, and executes no name of one"""
    bad, quoted = "$(touch${IFS}/tmp/pwned)", r"\$\(touch\$\{IFS\}/tmp/pwned\)"
    ctl("add", PROGRAM, "plain", "--value", 1)
    ctl("add", PROGRAM, "plain", "--value", 1, "--name", bad)
    for words, want in ((["sug"], ["suggest"]), (["add", "--de"], ["--deadline"]), (["add", "x", "y", "--output", "ca"], ["cascade"]),
                        (["add", "/etc/passw"], ["/etc/passwd", "/etc/passwd-"]), (["test", str(PROGRAM), "se"], ["second"]),
                        (["add", "--value", "0", str(PROGRAM), "se"], ["second"]), (["remove", ""], ["--all", "--user", quoted, "plain"]),
                        (["remove", "$"], [quoted]), (["remove", r"\$"], [quoted]),
                        (["test", str(PROGRAM), "second", "--value", "0", "--", "rescuec"], ["rescuectl"]), (["remove", "p"], ["plain"]),
                        (["add", "x", "y", "--value", ""], []), (["list", "-"], ["--json"]), (["cascade", "/etc/passwd-"], ["/etc/passwd-"])):
        line = " ".join(f"'{w}'" for w in ["rescuectl", *words])
        done = subprocess.run(["bash", "-c", f'. "{COMPLETION}"; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _rescuectl; '
                               'printf "%s\n" "${COMPREPLY[@]}"'], capture_output=True, text=True,
                              env={**os.environ, "PATH": f"{RESCUECTL.parent}:{os.environ['PATH']}"})
        equal((words, sorted(filter(None, done.stdout.splitlines())), done.stderr), (words, want, ""))
    assert not os.path.exists("/tmp/pwned")
    ctl("remove", "plain", bad)


def recorded() -> None:
    """The log of verdicts has the faults, with their rung, and functions that took too long"""
    perdurectl = BUILD / "userspace/userspace/tools/perdurectl"
    ctl("add", PROGRAM, "plain", "--value", 1, "--name", "logged", "--burst", 1)
    equal(program("fa")[0], -signal.SIGFPE)
    with open("/proc/restart_log", "rb", buffering=0) as log:
        # Whole records, so that there must be room for one
        text = b"".join(iter(lambda: log.read(1 << 16), b"")).decode()
    lines = [line for line in text.splitlines() if "path=logged" in line]
    equal([re.sub(r".*(rung=\w+ cause=\w+) .*(outcome=\w+) .*", r"\1 \2", line) for line in lines],
          ["rung=rescue cause=fault outcome=rescued", "rung=rescue cause=budget outcome=given_up"])
    said = subprocess.run([str(perdurectl), "log"], stdout=subprocess.PIPE, text=True).stdout
    assert "SIGFPE  rescue: logged returns an error" in said and "SIGFPE  rescue: logged could not be rescued: budget" in said, said[-500:]
    ctl("remove", "logged")
    ctl("add", PROGRAM, "plain", "--value", 1, "--name", "late", "--deadline", "200ms")
    equal(program("ha"), (0, [[1, 1, 11, 2]]))
    equal(point("late")["rescued"], 3)
    ctl("remove", "late")
    said = subprocess.run([str(perdurectl), "log"], stdout=subprocess.PIPE, text=True).stdout
    assert said.count("deadline  rescue: late returns an error") == 3, said[-500:]


main(shapes, said, error_numbers, unwritten, cascading, own_scopes, files, reloaded, gone, limited, upgraded, busy, mounted, contained, whose,
     tried, typed, suggested, completed, recorded)
