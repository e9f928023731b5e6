#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What a rescue point costs Apache and MariaDB, and a server whose peer would go back, too, in ns of a request; and what it saves: run in
a guest by bench/run. A line a case and side.
usage: rescue-guest.py ROUNDS PART...; of part faults ROUNDS are requests"""

import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "vm-tests/cases" / suite) for suite in ("rescue", "examples")]
from database import MARIADB, Database  # noqa: E402
from httpd import HTTPD, MODULE, PORT, RESCUECTL, Server  # noqa: E402
from shop import SHOP, Shop  # noqa: E402

NAME = "bench"
SIDES = ("native", "rescue")
DATABASE_PORT = 7012
THREADS, EVERY, SMALL = 8, 100, b"x" * 1000
AWARE = (str(RESCUECTL), "cascade")


def output(*argv: object) -> str:
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"bench: {argv[0]} failed with status {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def point(binary: str, symbol: str, value: int, *options: str) -> None:
    output(RESCUECTL, "add", binary, symbol, "--value", value, "--name", NAME, *options)


def counts() -> dict[str, int]:
    line = next(line for line in Path("/proc/rescue").read_text().splitlines() if f" name={NAME} " in line)
    return {key: int(n) for key, n in re.findall(r"(\w+)=(\d+)(?= |$)", line)}


def compare(case: str, rounds: int, sample: Callable[[str], float], binary: str, symbol: str, value: int, *options: str) -> None:
    """Both sides in each round; who goes first alternates. All calls of the point have to be protected to their end."""
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds + 1):
        for side in SIDES if number % 2 else reversed(SIDES):
            if side == "rescue":
                point(binary, symbol, value, *options)
                # The first calls find memory that is not known yet
                sample(side)
            took = sample(side)
            if side == "rescue":
                counted = counts()
                output(RESCUECTL, "remove", NAME)
                lost = {key: n for key, n in counted.items() if re.match("given_up|refused|died", key) and n}
                if not counted["left"] or sum(lost.values()) * 100 > counted["entered"]:
                    sys.exit(f"bench: {case}: scopes that do not protect: {counted}")
            if number:
                times[side].append(took)
    for side in SIDES:
        low, *_, high = statistics.quantiles(times[side], n=10)
        print(f"bench\t{case}\t{side}\t{statistics.median(times[side]):.3f}\t{low:.3f}\t{high:.3f}\t{rounds}", flush=True)
    print(f"# {case}: {counted}", flush=True)


def apache(place: Path, rounds: int) -> None:
    server = Server(place)
    for size in (16, 32, 64, 128):
        (server.files / str(size)).write_bytes(b"x" * (size << 10))

        def sample(_: str) -> float:
            said = output("ab", "-q", "-n", 200, f"http://127.0.0.1:{PORT}/{size}")
            assert re.search(r"Complete requests: +200\n", said) and re.search(r"Failed requests: +0\n", said), said
            taken = re.search(r"Time taken for tests: +([\d.]+) seconds", said)
            assert taken, said
            return float(taken[1]) * 1e9 / 200

        # Everything about a request but what answers it: what is wrong with it shows there
        compare(f"apache {size} KB", rounds, sample, HTTPD, "ap_process_request_internal", 500)
    server.stop()


def mariadb(place: Path, rounds: int) -> None:
    """By its own socket; and by TCP with peers that would go back, beside such that would not"""
    server = Database(place, "--skip-networking=0", "--bind-address=127.0.0.1", f"--port={DATABASE_PORT}", runner=AWARE)
    server.prepare()

    def measure(case: str, threads: int, *options: str, port: int = 0) -> None:
        def sample(side: str) -> float:
            said = output(*(AWARE if port and side == "rescue" else ()),
                          *server.selects(f"--threads={threads}", "--events=1000", "--time=0", "run", port=port))
            taken = re.search(r"total time: +([\d.]+)s", said)
            assert taken, said
            return float(taken[1]) * 1e9 / 1000

        compare(case, rounds, sample, MARIADB, "_ZN4JOIN8optimizeEv", 1, *options)

    measure("mariadb 1 connection", 1)
    measure("mariadb 4 connections", 4)
    measure("mariadb, cascade", 1, "--output", "cascade", port=DATABASE_PORT)
    server.stop()


def cascade(_: Path, rounds: int) -> None:
    """A shop that asks its stock in a scope: beside the scope there is the peer's, and an option in TCP's header."""
    servers = Shop()

    def sample(_: str) -> float:
        start = time.monotonic()
        for _ in range(200):
            answer = servers.ask("buy 0")
            assert answer == "sold 0, 1000 left", answer
        return (time.monotonic() - start) * 1e9 / 200

    try:
        compare("cascade, an order", rounds, sample, str(SHOP), "order", -1, "--output", "cascade")
    finally:
        servers.stop()


class Client(threading.Thread):
    """Asks on one connection as long as that lives. One request of EVERY meets a bug of the server's module."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.requests = requests
        self.failed = {False: 0, True: 0}     # by whether they meet the bug
        self.done = 0
        self.start()

    def run(self) -> None:
        s = None
        for number in range(self.requests):
            bug = number % EVERY == EVERY // 2
            s = s or socket.create_connection(("127.0.0.1", PORT), 60)
            if not self.answered(s, b"GET /%s HTTP/1.1\r\nHost: bench\r\n\r\n" % (b"fault/null" if bug else b"small")):
                self.failed[bug] += 1
                s.close()
                s = None
            self.done += 1

    def answered(self, s: socket.socket, request: bytes) -> bool:
        """Whole, and as it is to be. A page of an error ends the connection."""
        got = b""
        try:
            s.sendall(request)
            while not got.endswith(SMALL):
                more = s.recv(4096)
                got += more
                if not more or not got.startswith(b"HTTP/1.1 200"[:len(got)]):
                    return False
        except OSError:
            return False
        return True


def faults(place: Path, requests: int) -> None:
    """Of a server with threads, whose module has a bug: what fails beside the requests that meet it"""
    server = Server(place, 2 * THREADS)     # who finds no thread free has its connection closed
    (server.files / "small").write_bytes(SMALL)
    # Without a point Apache starts another worker for each, and waits a second before
    for side, number in zip(SIDES, (requests // 10, requests)):
        if side == "rescue":
            point(str(MODULE), "handle", 500, "--burst", str(requests))
        clients = [Client(number // THREADS) for _ in range(THREADS)]
        for client in clients:
            client.join()
        others, bugs = (sum(client.failed[bug] for client in clients) for bug in (False, True))
        asked = number // THREADS
        if any(c.done != asked for c in clients) or bugs != THREADS * len(range(EVERY // 2, asked, EVERY)):
            sys.exit(f"bench: a client has ended, or an answer that was none is right: {[(c.done, c.failed) for c in clients]}")
        print(f"bench\tApache, {THREADS} clients\t{side}\t{others * requests / number:.0f}\t{others}\t{others + bugs}\t{number}", flush=True)
    counted = counts()
    print(f"# faults: {counted}", flush=True)
    if counted["rescued"] != bugs:
        sys.exit("bench: the bug was met otherwise than by the point")
    output(RESCUECTL, "remove", NAME)
    server.stop()


PARTS = {"apache": apache, "mariadb": mariadb, "cascade": cascade, "faults": faults}


def main() -> None:
    rounds, *parts = sys.argv[1:]
    for part in parts or PARTS:
        with tempfile.TemporaryDirectory(prefix="bench-") as place:
            PARTS[part](Path(place), int(rounds))


main()
