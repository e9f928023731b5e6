# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs functions as KTAP points: one that raises has failed."""

import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOP = Path(os.environ["PERDURE_TOP"])
BUILD = Path(os.environ["PERDURE_BUILD"])
VMLINUX = Path(os.environ.get("PERDURE_VMLINUX") or BUILD / "kernel" / "perdure-vm" / "vmlinux")
sys.path.insert(0, str(TOP / "vm-tests" / "lib"))


def equal(got: object, want: object) -> None:
    assert got == want, f"{got!r}, not {want!r}"


def run(*argv: object, ok: int | None = 0, env: dict[str, str] | None = None) -> str:
    """Output and errors of a command that must end with this status (None: any but 0)."""
    done = subprocess.run([str(a) for a in argv], env=os.environ | (env or {}), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert done.returncode == ok or ok is None and done.returncode, f"{argv}: status {done.returncode}\n{done.stdout[-3000:]}"
    return done.stdout


@contextmanager
def running(argv: Sequence[object], **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone after the block, also when the block fails: nobody waits for it then."""
    with subprocess.Popen([str(a) for a in argv], text=True, **how) as process:
        try:
            yield process
        finally:
            process.kill()


given_ports: set[int] = set()


def free_port() -> int:
    """Never the same one twice: who asks for several does so before any is used."""
    while True:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = int(s.getsockname()[1])
        if port not in given_ports:
            given_ports.add(port)
            return port


def mirror() -> str:
    """Of Debian: the one that this machine uses."""
    found = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian", "Component: main")
    uris = [u for u in found.split() if "security" not in u]
    assert uris, "apt knows no Debian mirror: configure one in /etc/apt/sources.list.d"
    return uris[0]


def main(*functions: Callable[[], None]) -> None:
    print(f"KTAP version 1\n1..{len(functions)}", flush=True)
    failed = False
    for number, function in enumerate(functions, 1):
        name = (function.__doc__ or function.__name__).rstrip(".").replace("#", "")
        try:
            function()
            print(f"ok {number} {name}", flush=True)
        except Exception:
            failed = True
            print("".join(f"# {line}\n" for line in traceback.format_exc().splitlines()), end="")
            print(f"not ok {number} {name}", flush=True)
    sys.exit(failed)
