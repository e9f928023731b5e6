#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
A session that is replayed for long does not delay others. isolation.py REQUESTS ROUNDS

What it may take from others is a processor: so it is compared with a process that takes one, in the same server and the same round.
The rest should be nothing: the server's lock is held for the steps between methods only, and not while the log is read. Then the
ratio of the two p99 is 1. Three times as much is the bound: each p99 here is the worst of a hundred, and of few hundred requests.
If a method were replayed with the lock held, others would wait for one or more whole methods with each step of theirs.
"""

import json
import socket
import statistics
import subprocess
import sys
import time

from replay import CTL, LOAD, Server, Session, equal, main

REQUESTS, ROUNDS = int(sys.argv[1]), int(sys.argv[2])
BURN_US = 300
SECONDS = 1.2
SAMPLES = 200       # at least
BOUND = 3.0


class Probe:
    """A client that keeps its connection, and measures."""

    def __init__(self, server: Server) -> None:
        self.session = Session(server)
        self.connection = socket.create_connection(("127.0.0.1", server.port), 60)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> float:
        s, body = self.session, b"probe 1"
        text = (f"POST /add HTTP/1.1\r\nHost: x\r\nReplay-Session: {s.name}\r\nReplay-Sequence: {s.next}\r\nContent-Length: {len(body)}\r\n\r\n"
                .encode() + body)
        begin = time.perf_counter()
        self.connection.sendall(text)
        got = self.connection.recv(4096)
        took = time.perf_counter() - begin
        assert got.startswith(b"HTTP/1.1 200 ") and got.endswith(f" {s.next}\n".encode()), got
        s.next += 1
        return took

    def p99_ms(self) -> tuple[float, float, int]:
        """p99, p50, how many."""
        end = time.monotonic() + SECONDS
        took: list[float] = []
        while time.monotonic() < end or len(took) < SAMPLES:
            took.append(self.ask() * 1000)
        took.sort()
        return took[len(took) * 99 // 100], took[len(took) // 2], len(took)


def long_one(server: Server, key: str) -> str:
    """What the server does with it."""
    done = subprocess.run([str(a) for a in (CTL, "sessions", server.control, "--json")], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return next(str(one["state"]) for one in json.loads(done.stdout) if one["session"] == key)


def isolated() -> None:
    """The p99 of a session while another is replayed, against that beside a process that takes a processor"""
    server = Server("isolation", "session_checkpoint = 1G\nserver_checkpoint = 1G\nrequest_log = 64k", size="256M").start()
    done = subprocess.run([LOAD, str(server.port), "1", str(REQUESTS), "burn", str(BURN_US)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    (one,) = json.loads(subprocess.run([str(a) for a in (CTL, "sessions", server.control, "--json")], capture_output=True, text=True).stdout)
    key, ratios = one["session"], []
    equal(one["next"], REQUESTS + 1)
    for _ in range(ROUNDS):
        server.again()
        probe = Probe(server)
        equal(long_one(server, key), "replaying")
        assert server.figures()["to_replay"] >= 1
        replaying = probe.p99_ms()
        # It had not come to its end
        equal(long_one(server, key), "replaying")
        while server.figures()["to_replay"]:
            time.sleep(0.05)
        equal(long_one(server, key), "idle")
        spin = subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL)
        try:
            beside = probe.p99_ms()
        finally:
            spin.kill()
            spin.wait()
        ratios.append(replaying[0] / beside[0])
        for what, (p99, p50, n) in (("replay", replaying), ("a process", beside)):
            print(f"# beside {what}: p99 {p99:.2f} ms, p50 {p50:.2f} ms, {n} requests", flush=True)
    print(f"# ratios {[round(r, 2) for r in ratios]}", flush=True)
    equal(server.figures()["counts"]["diverged"], 0)
    assert statistics.median(ratios) < BOUND, ratios
    server.stop()


main(isolated)
