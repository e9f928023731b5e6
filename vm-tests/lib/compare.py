# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs the same tests on the stock kernel and on ours, for suites of other people's: the same verdicts on both.

What passes on stock must pass on ours, and what is skipped on one must be skipped on the other, test by test and result by
result. A difference counts when it shows in each of three runs of that test: many such tests depend on the moment."""

import json
from pathlib import Path

import splats
import vm

KERNELS = ("stock", "perdure")
ROUNDS = 3
NOTHING = {"word": "nothing", "points": {}, "tail": "", "seconds": 0}


def boot(name: str, inside: list[str], kernel: str, tests: list[str], number: int, limit_s: float) -> tuple[dict[str, dict], list[str]]:
    """What each test said on this kernel, a line of JSON each; what is wrong beside."""
    console = vm.LOG / "test" / f"{name}-{kernel}-{number}.console"
    out, err = bytearray(), bytearray()
    job = vm.Job(["python3", *inside, *tests], "/", vm.environment(PERDURE_GUEST="1"))
    machine = vm.Machine(vm.BUILD / "kernel" / f"{kernel}-vm" / "vmlinux", console, timeout=300 + len(tests) * limit_s)
    result = vm.run(job, machine, out.extend, err.extend)
    found = {entry["test"]: entry for entry in map(json.loads, out.decode().splitlines())}
    wrong = [f"{kernel}: {result.why or err.decode()[-200:]}"] if result.status else []
    # The stock kernel is not on trial
    if kernel == "perdure":
        wrong += [f"{kernel}: {line}" for line in splats.scan(console, died=bool(result.why))]
    return found, wrong


def differences(stock: dict, ours: dict) -> list[str]:
    def differs(a: str, b: str) -> bool:
        return a == "pass" != b or (a == "skip") != (b == "skip")

    found = [f"{stock['word']} on stock, {ours['word']} on ours"] if differs(stock["word"], ours["word"]) else []
    for name, word in stock["points"].items():
        other = ours["points"].get(name, "absent")
        if differs(word, other):
            found.append(f"{name}: {word} on stock, {other} on ours")
    return found


def compare(name: str, inside: list[str], tests: list[str], limit_s: float, least: int) -> int:
    """`inside` is the program for the guest, and its first arguments. At least so many are to pass. Prints KTAP."""
    left, problems, unsteady = tests, [], []
    first: dict[str, dict[str, dict]] = {}
    found: dict[str, list[str]] = {}
    for number in range(1, ROUNDS + 1):
        said: dict[str, dict[str, dict]] = {}
        for kernel in KERNELS:
            said[kernel], wrong = boot(name, inside, kernel, left, number, limit_s)
            problems += wrong
        first = first or said
        found = {test: bad for test in left
                 if (bad := differences(said["stock"].get(test, NOTHING), said["perdure"].get(test, NOTHING)))}
        for test, bad in found.items():
            tail = said["perdure"].get(test, NOTHING)["tail"]
            print("\n".join([f"# {test}, run {number}:", *(f"#   {line}" for line in bad),
                             *(f"#   | {line}" for line in tail.splitlines()[-12:])]), flush=True)
        if number > 1:
            unsteady += [test for test in left if test not in found]
        left = list(found)
        if not left:
            break

    print(f"KTAP version 1\n1..{len(tests) + 1}")
    print(f"# {'test':44} {'stock':>6} {'ours':>6}   results that passed")
    for number, test in enumerate(tests, 1):
        stock, ours = (first[kernel].get(test, NOTHING) for kernel in KERNELS)
        counts = [list(entry["points"].values()).count("pass") for entry in (stock, ours)]
        print(f"# {test:44} {stock['word']:>6} {ours['word']:>6}   {counts[0]:4} {counts[1]:4}"
              f"   {stock['seconds']:6.1f} s {ours['seconds']:6.1f} s{'   unsteady' if test in unsteady else ''}")
        print(f"{'not ok' if test in left else 'ok'} {number} {test}" +
              (f" # {found[test][0]}" if test in left else ""))
    for problem in problems:
        print(f"# {problem}")
    ran = sum(entry["word"] == "pass" for entry in first["perdure"].values())
    print(f"{'not ok' if problems or ran < least else 'ok'} {len(tests) + 1} {ran} tests pass on our kernel, "
          f"which does not complain")
    return bool(left or problems or ran < least)


def here(file: str, program: str = "inside.py") -> str:
    """A program that lies beside this file."""
    return str(Path(file).resolve().parent / program)
