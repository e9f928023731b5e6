#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's own selftests, from the patched tree, on our kernel and on the stock kernel: the same verdicts.

What passes on stock must pass on ours, and what is skipped on one must be skipped on the other, test by test and result by
result. A difference counts when it shows in each of three runs of that test: many of these tests depend on the moment."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(os.environ["PERDURE_TOP"])
BUILD = Path(os.environ["PERDURE_BUILD"])
sys.path.insert(0, str(TOP / "vm-tests" / "lib"))
import splats  # noqa: E402
import vm  # noqa: E402

TARGETS = ("clone3", "core", "exec", "filesystems/epoll", "ipc", "pidfd", "ptrace", "seccomp", "sigaltstack", "x86",
           "net", "net/af_unix")
# Of net: programs, and the scripts that are about sockets; the others set up routers, tunnels and devices
NET_SCRIPTS = {"run_netsocktests", "run_afpackettests", "reuseport_addr_any.sh", "reuseaddr_ports_exhausted.sh",
               "tcp_fastopen_backup_key.sh", "udpgso.sh", "psock_snd.sh", "cmsg_so_mark.sh", "cmsg_ipv6.sh",
               "ipv6_flowlabel.sh", "rxtimestamp.sh", "ip_local_port_range.sh", "bind_bhash.sh"}
# One measures, and takes long; the other kills either kernel on the processor that QEMU emulates
LEFT_OUT = {"seccomp:seccomp_benchmark", "x86:sysret_ss_attrs_64"}
PLACE = BUILD / "test" / "kselftest"
LIMIT_S = 120
KERNELS = ("stock", "perdure")
ROUNDS = 3


def make(*args: str | Path, ok: tuple[int, ...] = (0,)) -> None:
    with (PLACE / "make.log").open("ab") as log:
        done = subprocess.run(["make", "-s", f"-j{os.cpu_count()}", *map(str, args)], stdin=subprocess.DEVNULL,
                              stdout=log, stderr=log)
    if done.returncode not in ok:
        sys.exit(f"make failed: see {PLACE / 'make.log'}")


def build() -> list[str]:
    """Gives the tests that could be built: some want libraries or a newer compiler."""
    (PLACE / "objects").mkdir(parents=True, exist_ok=True)
    (PLACE / "make.log").unlink(missing_ok=True)
    tree = BUILD / "linux"
    make("-C", tree, f"O={BUILD / 'kernel' / 'perdure-vm'}", "ARCH=x86_64", "headers_install",
         f"INSTALL_HDR_PATH={PLACE / 'usr'}")
    make("-k", "-C", tree / "tools" / "testing" / "selftests", f"TARGETS={' '.join(TARGETS)}", f"O={PLACE / 'objects'}",
         f"KHDR_INCLUDES=-isystem {PLACE / 'usr' / 'include'}", "install", f"INSTALL_PATH={PLACE / 'install'}",
         ok=(0, 2))
    # Of a target with a program that does not compile nothing is installed
    for target in TARGETS:
        place, source = PLACE / "install" / target, tree / "tools" / "testing" / "selftests" / target
        for file in [] if any(file.is_file() for file in place.glob("*")) else [
                *(PLACE / "objects" / "kselftest" / target).glob("*"), *source.glob("*.sh"), *source.glob("run_*")]:
            if file.is_file() and os.access(file, os.X_OK):
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, place)
    names = (PLACE / "install" / "kselftest-list.txt").read_text().split()
    chosen = []
    for name in names:
        target, _, program = name.partition(":")
        script = program.endswith((".sh", ".py")) or program.startswith("run_")
        if target == "net" and script and program not in NET_SCRIPTS or name in LEFT_OUT:
            continue
        if os.access(PLACE / "install" / target / program, os.X_OK):
            chosen.append(name)
    return sorted(dict.fromkeys(chosen))


def boot(kernel: str, tests: list[str], number: int) -> tuple[dict[str, dict], list[str]]:
    """What each test said on this kernel; what is wrong beside."""
    console = BUILD / "log" / "test" / f"kselftest-{kernel}-{number}.console"
    out, err = bytearray(), bytearray()
    job = vm.Job(["python3", str(Path(__file__).resolve().parent / "inside.py"), str(PLACE / "install"), str(LIMIT_S),
                  *tests], "/", vm.environment(PERDURE_GUEST="1"))
    machine = vm.Machine(BUILD / "kernel" / f"{kernel}-vm" / "vmlinux", console,
                         timeout=300 + len(tests) * LIMIT_S)
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


def main() -> None:
    tests = build()
    left, problems, unsteady = tests, [], []
    first: dict[str, dict[str, dict]] = {}
    found: dict[str, list[str]] = {}
    for number in range(1, ROUNDS + 1):
        said: dict[str, dict[str, dict]] = {}
        for kernel in KERNELS:
            said[kernel], wrong = boot(kernel, left, number)
            problems += wrong
        first = first or said
        none = {"word": "nothing", "points": {}, "tail": "", "seconds": 0}
        found = {test: bad for test in left
                 if (bad := differences(said["stock"].get(test, none), said["perdure"].get(test, none)))}
        for test, bad in found.items():
            tail = said["perdure"].get(test, none)["tail"]
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
        stock, ours = (first[kernel].get(test, {"word": "nothing", "points": {}, "seconds": 0}) for kernel in KERNELS)
        counts = [list(entry["points"].values()).count("pass") for entry in (stock, ours)]
        print(f"# {test:44} {stock['word']:>6} {ours['word']:>6}   {counts[0]:4} {counts[1]:4}"
              f"   {stock['seconds']:6.1f} s {ours['seconds']:6.1f} s{'   unsteady' if test in unsteady else ''}")
        print(f"{'not ok' if test in left else 'ok'} {number} {test}" +
              (f" # {found[test][0]}" if test in left else ""))
    for problem in problems:
        print(f"# {problem}")
    ran = sum(entry["word"] == "pass" for entry in first["perdure"].values())
    print(f"{'not ok' if problems or ran < 30 else 'ok'} {len(tests) + 1} {ran} tests pass on our kernel, "
          f"which does not complain")
    sys.exit(bool(left or problems or ran < 30))


if __name__ == "__main__":
    main()
