#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Points and scopes of a program in C++: exceptions, and longjmp(), within them and through them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import BUILD, equal, main  # noqa: E402

RESCUECTL = BUILD / "userspace/userspace/rescue/rescuectl"
PROGRAM = BUILD / "userspace/vm-tests/cases/rescue/rescue-throws"
ORDER = "_ZN4Shop5orderEPKc"


def ctl(*words: object) -> str:
    return subprocess.run([str(RESCUECTL), *map(str, words)], stdout=subprocess.PIPE, check=True, text=True).stdout


def program(*how: str) -> tuple[int, list[list[int]]]:
    done = subprocess.run([str(PROGRAM), *how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60)
    return done.returncode, [[int(n) for n in line.split()] for line in done.stdout.splitlines()]


def counts(name: str) -> dict[str, int]:
    return next(p for p in json.loads(ctl("list", "--json")) if p["name"] == name)


class Point:
    """While there is one; what has become of it in between."""

    def __init__(self, *words: object) -> None:
        ctl("add", PROGRAM, ORDER, "--value", -7, "--name", "order", "--burst", 1000, *words)

    def __enter__(self) -> "Point":
        return self

    def __exit__(self, *_: object) -> None:
        ctl("remove", "order")

    @staticmethod
    def became(**want: int) -> None:
        now = counts("order")
        equal({key: now.get(key, 0) for key in want}, want)


def without() -> None:
    """Without a point the program does what it is written for, and dies of its faults"""
    equal(program("pt", "pc", "pa", "pm", "j", "gt", "ut"), (0, [[3, 0, 1, 0], [2, 0, 3, 0], [3, 0, 5, 0], [4, 0, 6, 0], [5, 0, 7, 0],
                                                                 [6, 0, 8, 0], [6, 0, 9, 0]]))
    for how, by in ("pf", signal.SIGFPE), ("ph", signal.SIGFPE), ("pd", signal.SIGFPE), ("pn", signal.SIGABRT), ("xt", signal.SIGABRT):
        equal((how, program(how)), (how, (-by, [])))


def through() -> None:
    """An exception goes through a function with a point to the caller that catches it, and the next call is protected"""
    with Point() as point:
        equal(program("pt", "pa", "pm", "j"), (0, [[3, 0, 1, 0], [3, 0, 3, 0], [4, 0, 4, 0], [5, 0, 5, 0]]))
        point.became(entered=4, left=4, given_up_left=4, rescued=0)
        for how, value in ("pt", 3), ("pa", 3), ("pm", 4), ("j", 5):
            lines = program(how, "pf", how, "pf")[1]
            equal((how, [line[0] for line in lines], lines[-1][1:]), (how, [value, -7, value, -7], [0, 4 if how == "pa" else 2, 0]))
        point.became(entered=20, rescued=8)


def within() -> None:
    """A fault before, while and after an exception is caught in the function, and one that nobody catches, are undone"""
    with Point() as point:
        equal(program("pc", "ph", "pb", "pd", "pn", "xt", "pf", "pt"), (0, [[2, 0, 2, 0], *[[-7, 0, 2, 0]] * 6, [3, 0, 3, 0]]))
        point.became(entered=8, rescued=6)


def after() -> None:
    """What the caller does when an exception has reached it is not the function's: its faults, its time, its output"""
    with Point() as point:
        equal(program("ptf"), (-signal.SIGFPE, []))
        point.became(rescued=0, died_left=1)
    with Point("--deadline", "200ms", "--output", "cork") as point:
        equal(program("ptl", "pcl", "ptl"), (0, [[3, 0, 1, 0], [2, 0, 3, 0], [3, 0, 4, 0]]))
        point.became(entered=3, rescued=0, given_up_left=2, held=0)


def scopes() -> None:
    """A scope that a destructor ends is over with the exception; another one goes on, and is gone back to"""
    before = counts("rescue")
    equal(program("gf", "uf", "gh", "gt", "gtl", "g1", "pt"), (0, [[-8, 0, 0, 0], [-9, 0, 0, 0], [-8, 0, 0, 0], [6, 0, 1, 0], [6, 0, 2, 0],
                                                                   [1, 0, 3, 0], [3, 0, 4, 0]]))
    equal(program("gtf"), (-signal.SIGFPE, []))
    equal(program("utf"), (0, [[-9, 0, 0, 0]]))
    now = counts("rescue")
    equal((now["entered"] - before["entered"], now["rescued"] - before["rescued"], now["left"] - before["left"]), (8, 4, 4))


os.environ["LC_ALL"] = "C.UTF-8"
if not PROGRAM.exists():
    print("1..0 # SKIP programs in C++ need g++")
    sys.exit(0)
main(without, through, within, after, scopes)
