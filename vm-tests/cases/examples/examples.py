#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The examples do what they say, each across a fault of its own."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hygiene"))
import ktap  # noqa: E402
from shop import EXAMPLES, RESCUECTL, SHOP, Shop, connect  # noqa: E402

PORT = 7007
WORKERS_PORT = 7009


def counter() -> Iterator[str]:
    """Counts to ten in one process of two generations."""
    done = subprocess.run([EXAMPLES / "counter"], stdout=subprocess.PIPE, text=True, timeout=30)
    counts = re.findall(r"^pid (\d+) counts (\d+)$", done.stdout, re.M)
    if [n for _, n in counts] != [str(n) for n in range(1, 11)] or len({pid for pid, _ in counts}) != 1:
        yield f"counted {counts}"
    if re.findall(r"^generation (\d+): (.*)$", done.stdout, re.M) != [("2", "Segmentation fault at address 0")]:
        yield f"printed {done.stdout!r}"
    if done.returncode:
        yield f"status {done.returncode}"


def answered(s: socket.socket, data: bytes) -> bytes:
    s.sendall(data)
    got = b""
    while len(got) < len(data) and (more := s.recv(65536)):
        got += more
    return got


def echo() -> Iterator[str]:
    """Sends every byte back once, on three connections, while one of them makes it fault."""
    server = subprocess.Popen([EXAMPLES / "echo", str(PORT)])
    try:
        lines = [connect(PORT) for _ in range(3)]
        sent = [b"", b"", b""]
        got = [b"", b"", b""]
        for step in range(6):
            for i, s in enumerate(lines):
                data = b"crash\n" if (step, i) == (2, 1) else b"connection %d, line %d\n" % (i, step) * 50
                sent[i] += data
                got[i] += answered(s, data)
        for i, s in enumerate(lines):
            s.shutdown(socket.SHUT_WR)
            while more := s.recv(65536):
                got[i] += more
            if got[i] != sent[i]:
                yield f"connection {i} sent {len(sent[i])} bytes and got {len(got[i])}: {got[i][-100:]!r}"
        if server.poll() is not None:
            yield f"the server is gone: status {server.returncode}"
        # It must have been restarted: a second fault within the interval is the end.
        os.kill(server.pid, signal.SIGSEGV)
        if server.wait(30) != -signal.SIGSEGV:
            yield f"status {server.returncode}: it had not been restarted before"
    finally:
        server.kill()
        server.wait()


def children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def restarts(pid: int) -> int:
    found = re.search(r"^restarts:\s*(\d+)$", Path(f"/proc/{pid}/restart").read_text(), re.M)
    return int(found[1]) if found else 0


def until(true: Callable[[], bool], what: str) -> Iterator[str]:
    for _ in range(300):
        if true():
            return
        time.sleep(0.1)
    yield what


def workers() -> Iterator[str]:
    """Numbers all requests without a gap, while each worker faults once, the master too, and one exits and is replaced."""
    server = subprocess.Popen([EXAMPLES / "workers", str(WORKERS_PORT)])
    numbers: list[int] = []

    def ask(file: BinaryIO, what: bytes = b"a") -> None:
        file.write(what)
        file.flush()
        numbers.append(int(file.readline()))

    try:
        lines = [connect(WORKERS_PORT).makefile("rwb") for _ in range(3)]
        for step in range(6):
            for i, line in enumerate(lines):
                ask(line, b"c" if step == i + 1 else b"a")
        first = children(server.pid)
        if sorted(restarts(pid) for pid in first) != [1, 1, 1]:
            yield f"workers: {[(pid, restarts(pid)) for pid in first]}"
        os.kill(server.pid, signal.SIGSEGV)
        yield from until(lambda: restarts(server.pid) == 1, "the master was not restarted")
        for line in lines:
            ask(line)
        if children(server.pid) != first:
            yield f"the new master has {children(server.pid)}, the old one had {first}"
        lines[0].write(b"x")
        lines[0].flush()
        if lines[0].read():
            yield "an answer from a worker that exits"
        yield from until(lambda: len(children(server.pid)) == 3 and children(server.pid) != first, "the worker was not replaced")
        lines[0] = connect(WORKERS_PORT).makefile("rwb")
        for line in [*lines, lines[0]]:
            ask(line)
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"numbers: {numbers}"
    finally:
        server.kill()
        server.wait()


def shop() -> Iterator[str]:
    """What was taken for an order that faults is back in stock, and both servers live. Without the point the shop dies, and it is lost."""
    servers = Shop()
    try:
        subprocess.run([RESCUECTL, "add", SHOP, "order", "--value", "-1", "--output", "cascade", "--name", "order", "--burst", "100"], check=True)
        left, sold = 1000, 0
        for n in (1, 13, 2, 13, 13, 3, 2000, 13, 4):
            got = servers.ask(f"buy {n}")
            if n not in (13, 2000):
                left, sold = left - n, sold + n
            if got != ("error" if n in (13, 2000) else f"sold {n}, {left} left"):
                yield f"buy {n}: {got}"
        if (got := servers.ask("sold")) != str(sold):
            yield f"{got} are sold, not {sold}"
        listed = Path("/proc/rescue").read_text()
        for name, count in ("order", 4), ("checkpoint", 4):
            if not re.search(rf" name={name} .* rescued={count} ", listed):
                yield f"not {count} faults of {name} undone: {listed}"
        subprocess.run([RESCUECTL, "remove", "order"], check=True)
        if got := servers.ask("buy 13"):
            yield f"without the point: {got}"
        if servers.process.wait(30) != -signal.SIGSEGV:
            yield f"status {servers.process.returncode}"
        servers.start()
        if (got := servers.ask("buy 0")) != f"sold 0, {left - 13} left":
            yield f"after the death: {got}"
    finally:
        servers.stop()


def next_rung() -> Iterator[str]:
    """A fault beyond the budget of a point, in a process that is restarted in place: it is a restart, and nobody else notices."""
    servers = Shop("perdurectl", "run", "--in-place", "--")
    try:
        subprocess.run([RESCUECTL, "add", SHOP, "order", "--value", "-1", "--output", "cascade", "--name", "order", "--burst", "1"], check=True)
        for n, want in (1, "sold 1, 999 left"), (13, "error"), (2, "sold 2, 997 left"):
            if (got := servers.ask(f"buy {n}")) != want or restarts(servers.process.pid):
                yield f"buy {n}: {got}, {restarts(servers.process.pid)} restarts"
        if got := servers.ask("buy 13"):
            yield f"beyond the budget: {got}"
        yield from until(lambda: restarts(servers.process.pid) == 1, "the shop was not restarted")
        servers.connect()
        if (got := servers.ask("buy 1")) != "sold 1, 983 left":
            yield f"after the restart: {got}"
        listed = Path("/proc/rescue").read_text()
        if not re.search(r" name=order .* rescued=1 .* died_budget=1", listed):
            yield f"not one fault undone and one beyond the budget: {listed}"
        if servers.process.poll() is not None:
            yield f"the shop has ended with status {servers.process.returncode}"
    finally:
        servers.stop()
        subprocess.run([RESCUECTL, "remove", "order"])


def main() -> int:
    return ktap.run(counter, echo, workers, shop, next_rung)


if __name__ == "__main__":
    sys.exit(main())
