#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Connections at all points of their lives, in all modes of mod_takeover, when one of their hosts fails: matrix.py [KIND...].
In the client's machine: matrix.py client, which says "held" when each connection is where it is to be, and goes on when /run/go is there.
"""

import contextlib
import hashlib
import http.client
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

ADDRESS = "192.0.2.10"
SMALL, LARGE = 3008, 400_000
GO = Path("/run/go")
LIMIT = 90
STATIC, SYNC, DYNAMIC = MODES = ("static", "sync-static", "dynamic")

# What the client does not let through, by its own ports
RULES = """
table inet matrix {
    set mute { type inet_service; }
    set hasty { type inet_service; }
    set deaf { type inet_service; }
    chain output { type filter hook output priority 0;
        tcp dport 80 tcp sport @mute drop
        tcp dport 80 tcp sport @hasty tcp flags & (syn | ack) == ack drop
    }
    chain input { type filter hook input priority 0; tcp sport 80 tcp dport @deaf drop; }
}
"""


class Connection:
    """A client's; what it asks for is the same bytes each time, or those of one execution."""

    def __init__(self, mode: str, point: str, port: int) -> None:
        self.mode, self.point, self.port = mode, point, port
        self.name = f"{point.replace(' ', '_')}-{mode}"
        self.open()

    def open(self) -> None:
        self.s = socket.socket()
        self.s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        self.s.bind(("", self.port))
        self.s.settimeout(LIMIT)
        self.answers = self.s.makefile("rb")

    def connect(self) -> None:
        self.s.connect((ADDRESS, 80))

    def rule(self, name: str) -> None:
        subprocess.run(["nft", f"add element inet matrix {name} {{ {self.port} }}"], check=True)

    def request(self, number: int, size: int = SMALL, hold: str = "-", close: bool = False) -> bytes:
        path = f"/cgi-bin/step?{self.name}.{number}&{size}&{hold}" if self.mode == DYNAMIC else f"/{self.mode}/{size}"
        return f"GET {path} HTTP/1.1\r\nHost: matrix\r\n{'Connection: close' if close else 'X: x'}\r\n\r\n".encode()

    def begin(self, part: int = 0) -> None:
        """The head of an answer, and `part` of its body."""
        self.answer = http.client.HTTPResponse(cast(socket.socket, self))
        self.answer.begin()
        assert self.answer.status == 200, f"status {self.answer.status}"
        self.text = self.answer.read(part) if part else b""

    def makefile(self, _mode: str) -> "Connection":
        """For one answer; there may be another one behind it."""
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.answers, name)

    def close(self) -> None:
        """It has been read."""

    def finish(self, size: int = SMALL) -> None:
        self.text += self.answer.read()
        assert len(self.text) == size, f"the end after {len(self.text)} of {size} bytes"
        want = self.text[:8] * (size // 8) if self.mode == DYNAMIC else text_of(size)
        assert hashlib.sha256(self.text).digest() == hashlib.sha256(want).digest(), f"other bytes: {self.text[:64]!r}"

    def hear(self, size: int = SMALL) -> None:
        self.begin()
        self.finish(size)

    def ask(self, number: int, close: bool = False) -> None:
        self.s.sendall(self.request(number, close=close))
        self.hear()

    def over(self) -> None:
        """One more answer, and the end, without an error."""
        self.ask(9, close=True)
        rest = self.answers.read()
        assert rest == b"", f"more than was asked for: {rest[:64]!r}"
        self.closed()

    def closed(self) -> None:
        self.s.shutdown(socket.SHUT_WR)
        end = time.monotonic() + LIMIT
        # TIME_WAIT is CLOSE to who has the descriptor
        while self.s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != b"\7":
            assert time.monotonic() < end, "its FIN is not acknowledged"
            time.sleep(0.1)
        assert not self.s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "a reset"


Steps = Iterator[None]


def syn(c: Connection) -> Steps:
    c.rule("mute")
    c.s.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        c.connect()
    yield
    c.s.settimeout(LIMIT)
    c.ask(1)


def after_syn_ack(c: Connection) -> Steps:
    c.rule("hasty")
    c.connect()
    yield
    c.ask(1)


def within_request(c: Connection) -> Steps:
    c.connect()
    request = c.request(1)
    c.s.sendall(request[:20])
    yield
    c.s.sendall(request[20:])
    c.hear()


def stored(c: Connection) -> Steps:
    """Its rule is the primary's."""
    c.connect()
    c.s.sendall(c.request(1))
    time.sleep(1)
    assert c.s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)[24:] != bytes(4), "it is acknowledged"
    yield
    c.hear()


def program(c: Connection, hold: str) -> Steps:
    c.connect()
    c.s.sendall(c.request(1, LARGE, hold))
    yield
    c.hear(LARGE)


def after_logging(c: Connection) -> Steps:
    c.connect()
    c.rule("deaf")
    c.s.sendall(c.request(1))
    yield
    c.hear()


def within_transmission(c: Connection) -> Steps:
    c.connect()
    c.s.sendall(c.request(1, LARGE))
    c.begin(LARGE // 20)
    yield
    c.finish(LARGE)


def fin(c: Connection) -> Steps:
    c.connect()
    c.ask(1, close=True)
    assert c.answers.read() == b""
    yield
    c.closed()


def time_wait(c: Connection) -> Steps:
    """... and the same ends again"""
    c.connect()
    c.ask(1, close=True)
    assert c.answers.read() == b""
    c.closed()
    yield
    c.s.close()
    c.open()
    c.connect()


def idle(c: Connection) -> Steps:
    c.connect()
    c.ask(1)
    yield


def pipelined(c: Connection) -> Steps:
    """A program executes the second; of files it is within its transmission. Apache sends the first answer with it."""
    c.connect()
    c.s.sendall(c.request(1) + c.request(2, LARGE, "before"))
    if c.mode != DYNAMIC:
        c.hear()
        c.begin(1000)
    yield
    if c.mode == DYNAMIC:
        c.hear()
        c.begin()
    c.finish(LARGE)


ENDED = ("FIN",)
POINTS: dict[str, Callable[[Connection], Steps]] = {
    "SYN": syn, "after SYN-ACK": after_syn_ack, "within request": within_request, "stored, not acknowledged": stored,
    "before reply logging": partial(program, hold="before"), "within reply logging": partial(program, hold="within"),
    "after reply logging": after_logging, "within transmission": within_transmission, "FIN": fin, "TIME_WAIT": time_wait, "idle": idle,
    "second of two pipelined": pipelined}
LOGGING = [point for point in POINTS if "logging" in point]
# Requests whose replies are logged by then: they are executed once, whoever dies
LOGGED = {f"{point.replace(' ', '_')}-{DYNAMIC}.1" for point in POINTS if point in
          ("after reply logging", "within transmission", "FIN", "TIME_WAIT", "idle", "second of two pipelined")}
CELLS = [(mode, point) for mode in MODES for point in POINTS if mode == DYNAMIC or point not in LOGGING]


def text_of(size: int) -> bytes:
    return (b"abcdefghijklmnopqrstuvwxyz" * (size // 26 + 1))[:size]


def port_of(cell: tuple[str, str], number: int) -> int:
    return 20000 + 100 * number + CELLS.index(cell)


def client(number: int) -> None:
    """The connections of one failure."""
    GO.unlink(missing_ok=True)
    subprocess.run(["nft", "-f", "-"], input=RULES, text=True, check=True)
    held = threading.Semaphore(0)
    lock = threading.Lock()

    def work(cell: tuple[str, str]) -> None:
        mode, point = cell
        result = "ok"
        steps = None
        try:
            c = Connection(mode, point, port_of(cell, number))
            steps = POINTS[point](c)
            next(steps)
        except Exception as e:
            result = f"before anything fails: {e!r}"
        with lock:
            print(f"there {point} / {mode}", flush=True)
        held.release()
        while not GO.exists():
            time.sleep(0.05)
        if steps and result == "ok":
            try:
                next(steps, None)
                if point not in ENDED:
                    c.over()
            except Exception as e:
                result = repr(e)
        with lock:
            print(f"cell {point} / {mode}: {result}", flush=True)

    threads = [threading.Thread(target=work, args=(cell,)) for cell in CELLS]
    for thread in threads:
        thread.start()
    for _ in threads:
        held.acquire()
    print("held", flush=True)
    while not GO.exists():
        time.sleep(0.02)
    subprocess.run(["nft", "delete table inet matrix"], check=True)
    for thread in threads:
        thread.join()
    print("over", flush=True)


if __name__ == "__main__" and sys.argv[1:2] == ["client"]:
    client(int(sys.argv[2]))
    os._exit(0)


# ---- What is done to the hosts

from pair import HERE, OTHER, SEED, TOP, WEB, Network, Pair, main, wait  # noqa: E402

sys.path.insert(0, str(TOP / "demo"))
import takeover as shop  # noqa: E402

shop.pairs.TAKEOVER = shop.pairs.TAKEOVER.replace("[host]\n", "[host]\ngroup = www-data\n")
shop.TAKEOVER = "TakeoverEngine on\n" + "".join(f"TakeoverPrefix /{mode}/ {mode}\n" for mode in (STATIC, SYNC)) + "TakeoverPrefix /cgi-bin/ dynamic\n"
shop.APACHE += "StartServers 48\nMinSpareServers 16\nMaxRequestWorkers 96\nTimeout 200\nKeepAliveTimeout 200\n"
shop.FILE = b""
# Its answer is another one each time. It says when it begins and when it has written all.
STEP = """#!/bin/sh
IFS='&'
set -- $QUERY_STRING
echo "$1 begin" >>/run/matrix/executed
number=$(od -An -N4 -tx4 /dev/urandom | tr -d ' ')
hold() { while [ "$1" = "$2" ] && [ ! -e /run/matrix/go ]; do sleep 0.1; done; }
part() { yes "$number" | tr -d '\\n' | head -c "$1"; }
hold "$3" before
printf 'Content-Type: text/plain\\r\\nContent-Length: %s\\r\\n\\r\\n' "$2"
part $(($2 / 16 * 8))
hold "$3" within
part $(($2 - $2 / 16 * 8))
echo "$1 end" >>/run/matrix/executed
"""
# The primary alone does not get what these say
LOSES = "add table inet matrix; add chain inet matrix in {{ type filter hook prerouting priority -250; }}; " \
        "add rule inet matrix in tcp dport 80 tcp sport {{ {} }} tcp flags & (syn | psh) == psh drop"
# Nor what the backup sends to it: its own reports, or its copies of what clients say
BETWEEN = "add table inet between; add chain inet between in {{ type filter hook prerouting priority -250; }}; " \
          "add rule inet between in tcp dport 80 tcp option @254,16,16 0x5252 counter {}; " \
          "add rule inet between in tcp dport 80 counter {}"
PREPARE = "nft delete table inet matrix 2>/dev/null; rm -rf /run/matrix; mkdir /run/matrix; chown www-data /run/matrix"
RELEASE = "touch /run/matrix/go; nft delete table inet matrix 2>/dev/null; true"
BOTH = ("backup", "primary")
KINDS = ("killed", "stopped", "panics", "link cut", "lan cut", "traffic lost")
FAILURES = [(kind, role) for kind in KINDS for role in BOTH if kind in sys.argv[1:] or len(sys.argv) == 1]
stack = contextlib.ExitStack()
pair: Pair
table: dict[tuple[str, str], list[str]] = {cell: [] for cell in CELLS}


def serve(name: str) -> None:
    host = pair.hosts[name]
    shop.ORDER = STEP
    shop.serve(host, True)
    host.run("mv /srv/shop/cgi/order /srv/shop/cgi/step; mkdir -p " + " ".join(f"/srv/shop/www/{mode}" for mode in (STATIC, SYNC)))
    for mode in (STATIC, SYNC):
        for size in (SMALL, LARGE):
            host.put(f"/srv/shop/www/{mode}/{size}", text_of(size))
    host.run("touch -d 2026-01-01 /srv/shop/www/*/*")


def boot() -> None:
    """Both hosts have the service"""
    global pair
    # Patience for longer than a connection is held at its point and a failure goes unseen
    pair = Pair(stack.enter_context(Network("takeover-matrix", SEED)), WEB, patience="20s", memory="512M")
    for name in OTHER:
        serve(name)
    pair.watch()


def executed(name: str) -> list[str]:
    return pair.hosts[name].run("cat /run/matrix/executed", check=False).splitlines()


def fails(number: int, kind: str, role: str) -> None:
    pair.settle(150)
    backup = pair.backup()
    name = backup if role == "backup" else OTHER[backup]
    hosts, other = pair.hosts, OTHER[name]
    lost = ", ".join(str(port_of(cell, number)) for cell in CELLS if cell[1] == "stored, not acknowledged")
    for host in OTHER:
        hosts[host].run(PREPARE)
    hosts[OTHER[backup]].run(["nft", LOSES.format(lost)])
    crowd = pair.client.spawn([sys.executable, str(HERE / "matrix.py"), "client", str(number)])
    try:
        crowd.says("held", LIMIT)
    except AssertionError:
        there = crowd.text()
        raise AssertionError(f"before anything fails, not at their points: {[c for c in CELLS if f'there {c[1]} / {c[0]}' not in there]}\n{there}") from None
    wait("programs are where they are to be", lambda: {
        f"after_reply_logging-{DYNAMIC}.1 end", f"second_of_two_pipelined-{DYNAMIC}.2 begin"} < set(executed(OTHER[backup])))
    time.sleep(1)
    before = executed(name)
    pair.end_phase("" if kind in ("link cut", "traffic lost") else other)
    match kind:
        case "killed":
            hosts[name].kill()
        case "panics":
            hosts[name].panic()
        case "stopped":
            hosts[name].stop()
        case "link cut":
            pair.net.cut("link", name)
        case "lan cut":
            pair.net.cut("lan", name)
        case "traffic lost":
            hosts[OTHER[backup]].run(["nft", BETWEEN.format(*(("accept", "drop") if role == "primary" else ("drop", "accept")))])
    hosts[other].run(RELEASE)
    pair.client.run(["touch", str(GO)])
    if kind == "stopped":
        time.sleep(5)
        hosts[name].cont()
    if kind == "traffic lost":
        time.sleep(5)
        rules = hosts[OTHER[backup]].run("nft list table inet between; nft delete table inet between")
        assert re.search(r"packets [1-9]\d* bytes \d+ drop", rules), rules
    if kind not in ("killed", "panics"):
        hosts[name].run(RELEASE)
    crowd.says("over", 2 * LIMIT)
    after = executed(other) + (before if kind in ("killed", "panics") else executed(name))
    if kind in ("killed", "panics"):
        pair.boot(name)
        serve(name)
    elif kind.endswith("cut"):
        pair.net.mend(kind.split()[0], name)

    said = {tuple(line[5:].split(": ", 1)[0].split(" / ")): line.split(": ", 1)[1] for line in crowd.text().splitlines() if line.startswith("cell ")}
    wrong = []
    for mode, point in CELLS:
        result = said.get((point, mode), "nothing is known of it")
        request = f"{point.replace(' ', '_')}-{mode}.1"
        if result == "ok" and request in LOGGED and (count := after.count(f"{request} begin")) != 1:
            result = f"executed {count} times"
        table[mode, point].append("ok" if result == "ok" else "WRONG")
        if result != "ok":
            wrong.append(f"{point}, {mode}: {result}")
    assert not wrong, "\n".join(wrong)


def point_of(number: int, kind: str, role: str) -> Callable[[], None]:
    def play() -> None:
        if "pair" not in globals():
            raise AssertionError("not tried: there are no hosts")
        try:
            fails(number, kind, role)
        except BaseException:
            print("# " + pair.log().replace("\n", "\n# "))
            raise

    play.__doc__ = f"The {role}'s " + {"killed": "host is killed", "stopped": "host stands still for 5 seconds", "panics": "host panics",
                                       "link cut": "cable to the other host is cut", "lan cut": "cable to the clients is cut",
                                       "traffic lost": f"{'reports' if role == 'backup' else 'copies of what clients send'} are lost for 5 seconds"}[kind]
    return play


def sent() -> None:
    """What the hosts have sent was right at each moment"""
    print("# " + " " * 26 + "mode         " + "  ".join(f"{kind} {role}" for kind, role in FAILURES))
    for (mode, point), results in table.items():
        print(f"# {point:26}{mode:13}" + "  ".join(f"{result:{len(kind + role) + 1}}" for result, (kind, role) in zip(results, FAILURES)))
    for point in LOGGING:
        print(f"# {point:26}{STATIC}, {SYNC}: there is no reply logging")
    pair.judge({port_of(cell, number) for cell in CELLS if cell[0] == STATIC for number in range(len(FAILURES))})
    stack.close()


main(boot, *(point_of(number, *failure) for number, failure in enumerate(FAILURES)), sent)
