#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's own selftests, from the patched tree, on our kernel and on the stock kernel: the same verdicts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(os.environ["PERDURE_TOP"])
BUILD = Path(os.environ["PERDURE_BUILD"])
sys.path.insert(0, str(TOP / "vm-tests" / "lib"))
import compare  # noqa: E402

TARGETS = ("clone3", "core", "exec", "filesystems/epoll", "ipc", "pidfd", "ptrace", "seccomp", "sigaltstack", "x86",
           "net", "net/af_unix")
# Of net: programs, and the scripts that are about sockets; the others set up routers, tunnels and devices
NET_SCRIPTS = {"run_netsocktests", "run_afpackettests", "reuseport_addr_any.sh", "reuseaddr_ports_exhausted.sh",
               "tcp_fastopen_backup_key.sh", "udpgso.sh", "psock_snd.sh", "cmsg_so_mark.sh", "cmsg_ipv6.sh",
               "ipv6_flowlabel.sh", "rxtimestamp.sh", "ip_local_port_range.sh", "bind_bhash.sh"}
# One measures, and takes long; two kill either kernel on the processor that QEMU emulates; one is of the series, and has a suite
LEFT_OUT = {"seccomp:seccomp_benchmark", "x86:sysret_ss_attrs_64", "x86:test_syscall_vdso_32", "net:tcp_replica"}
PLACE = BUILD / "test" / "kselftest"
LIMIT_S = 120


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


def main() -> None:
    sys.exit(compare.compare("kselftest", [compare.here(__file__), str(PLACE / "install"), str(LIMIT_S)], build(), LIMIT_S, 30))


if __name__ == "__main__":
    main()
