#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The tables of bench replay, from made-up measurements; its client, which finds wrong answers; its
relay, which takes the time that it is told."""

import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

from points import BUILD, TOP, equal, main

sys.path.insert(0, str(TOP / "bench"))
from replay_measure import free_port    # noqa: E402
from replay_tables import RAW, SLOW, rows_of    # noqa: E402

PROGRAMS = BUILD / "userspace/bench"


def only(rows: list[dict], table: str, case: str) -> dict:
    found = [r for r in rows if r["table"] == table and r["case"] == case]
    equal(len(found), 1)
    return found[0]


def asked(part: str, system: str, n: int, mean_us: float, **more: object) -> dict:
    return {
        "part": part, "system": system, "round": n, "clients": 1, "calls": 1, "requests_s": 1e6 / mean_us,
        "mean_us": mean_us, "p50_us": mean_us, "p99_us": 2 * mean_us, "max_us": 3 * mean_us, "flushes": [2.0, 1.0],
        "sectors": [4.0, 3.0]
    } | more


def peers() -> None:
    """The goals are about the better peer, round by round"""

    def side(system: str, rates: list[float], clients: int) -> list[dict]:
        return [asked("peers", system, n, 1e6 / rate, disk=RAW, clients=clients) for n, rate in enumerate(rates)]

    results = [
        *side("libreplay, C", [900, 1800, 3000], 100), *side("DBOS", [100, 200, 300], 100),
        *side("Restate", [300, 450, 600], 100), *side("libreplay, C", [400], 1), *side("DBOS", [100], 1),
        *side("Restate", [250], 1),
        {"part": "peers", "disk": RAW, "system": "libreplay, C", "round": 0,
         "outage_ms": 5.0}, {"part": "peers", "disk": RAW, "system": "DBOS", "round": 0, "outage_ms": 700.0}
    ]
    rows = rows_of(results)
    table = f"The same job, ratio: {RAW}"
    rate = only(rows, table, "requests of the better peer, 100 clients: libreplay, C")
    equal((rate["value"], rate["goal"], rate["ok"]), (0.25, 0.3333, True))
    equal(rate["peers"], {"to DBOS": 0.1111, "to Restate": 0.25})
    p50 = only(rows, table, "p50, of the better peer's, 1 client: libreplay, C")
    equal((p50["value"], p50["ok"]), (0.625, False))
    equal(only(rows, f"The same job, Requests: {RAW}", "100 clients")["peers"], {"DBOS": 200, "Restate": 450})
    equal(only(rows, f"From kill -9 under load to the first answer: {RAW}", "10 clients")["peers"], {"DBOS": 700})
    equal([r["case"] for r in rows if r["case"].endswith("Python")], [])


def paper() -> None:
    """Figure 14 and the law of section 5.2"""
    results = [{"part": "paper", "regime": SLOW, "round": 0, "flush_us": [8000.0, 8100.0], "message_us": 3600.0}]
    for system, calls, mean in (("LoOptimistic", 1, 24000.0), ("Pessimistic", 1, 36000.0), ("NoLog", 1, 8000.0),
                                ("Psession", 1, 40000.0), ("LoOptimistic", 2, 28000.0), ("Pessimistic", 2, 60000.0)):
        results.append(asked("paper", system, 0, mean, regime=SLOW, calls=calls))
    rows = rows_of(results)
    ratios = {
        r["case"]: (r["value"], r["ok"]) for r in rows if r["table"] == f"Response time, ratio of LoOptimistic: {SLOW}"
    }
    equal(ratios, {"to Pessimistic": (0.6667, True), "to NoLog": (3.0, False), "to Psession": (0.6, False)})
    equal(only(rows, f"A request's flushes: {SLOW}", "Pessimistic")["peers"], {"front": 2, "inner": 1})
    equal(only(rows, f"A request's sectors: {SLOW}", "LoOptimistic")["value"], 7)
    one, two = (only(rows, f"What LoOptimistic saves, apart from 2 m TF - TM (5.2): {SLOW}", f"m = {m}")
                for m in (1, 2))
    # 12.0 of 12.4 ms; 32.0 of 28.4
    equal((one["value"], one["ok"], one["peers"]), (3.2258, True, {"saved ms": 12, "2 m TF - TM ms": 12.4}))
    equal((two["value"], two["ok"]), (12.6761, False))
    equal(only(rows, f"Response time with more calls (Figure 14): {SLOW}", "2 calls")["value"], 28)


def others() -> None:
    """Figures 15 to 17, and recovery"""
    results = [
        asked("checkpoints", system, 0, mean, regime=RAW) for system, mean in (("64k", 1250.0), ("1024G", 1000.0))
    ]
    results += [
        asked("crashes", f"{system}, {how}", 0, 1000.0 * (how == "crashes") + 1000, regime=SLOW)
        for system in ("LoOptimistic", "Pessimistic") for how in ("crashes", "none")
    ]
    for clients in 1, 4:
        for system, rate in (("LoOptimistic", 100), ("LoOptimistic, batch", 105), ("Pessimistic", 50),
                             ("Pessimistic, batch", 80)):
            results.append(asked("clients", system, 0, 1e6 / rate / clients, clients=clients))
    results += [{
        "part": "recovery", "regime": SLOW, "round": 0, "case": "1 session", "mean_us": 20000.0, "recovery_s": 1.0,
        "replayed": 1000
    }, {
        "part": "recovery", "regime": RAW, "round": 0, "case": "1 session", "mean_us": 500.0, "recovery_s": 0.1,
        "replayed": 1000
    }]
    results += [{
        "part": "recovery", "regime": RAW, "round": 0, "case": "100 sessions", "processors": n, "requests_s": 900.0,
        "recovery_s": 2.0 / n, "replayed": 1000
    } for n in (1, 2)]
    rows = rows_of(results)
    equal(only(rows, f"Throughput by session_checkpoint (Figure 15): {RAW}", "64k")["peers"], {"% of none's": 80})
    longest = only(rows, f"Longest response time, a crash every 1000 requests (Figure 16): {SLOW}", "LoOptimistic")
    equal((longest["value"], longest["paper"], longest["peers"]), (6, 3245, {"without crashes": 3}))
    batch = {
        r["case"].partition(":")[0]: (r["value"], r["ok"]) for r in rows
        if r["table"] == "Highest throughput, ratio (Figure 17)"
    }
    equal(batch, {"LoOptimistic": (0.9524, False), "Pessimistic": (0.625, True), "with batch flush": (0.7619, None)})
    replays = {
        r["case"]: (r["value"], r["ok"]) for r in rows
        if r["table"] == "A request's replay, ratio to its execution (5.4)"
    }
    equal(replays, {SLOW: (0.05, True), RAW: (0.2, False)})
    equal(only(rows, "Recovery of 100 sessions", "2 processors")["value"], 1)


def failed() -> None:
    """A part that failed is a goal that was missed"""
    rows = rows_of([{"part": "failed", "what": "paper", "why": "so"}])
    equal([(r["case"], r["ok"]) for r in rows], [("paper: so", False)])


def served(answers: "count[int] | list[int]") -> tuple[int, str]:
    """What the client says of a server that answers so; its session is asked once more each time."""
    numbers, lock, sessions = iter(answers), threading.Lock(), count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                body = f"{next(numbers)} {next(sessions) + 1} .".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        done = subprocess.run(
            [PROGRAMS / "replay-bench-client", "key",
             str(server.server_address[1]), "1", "2", "/x/%s"],
            capture_output=True,
            text=True,
            timeout=60)
        return done.returncode, done.stdout + done.stderr
    finally:
        server.shutdown()


def client() -> None:
    """Numbers that come twice or not at all are found, and right ones are right"""
    status, text = served(count(5))
    equal((status, json.loads(text)["wrong"]), (0, False))
    twice = [1, 2, 2, *range(3, 1000000)]
    missing = [1, 2, *range(4, 1000000)]
    for wrong, said in ((twice, "after 2 comes 2"), (missing, "after 2 comes 4")):
        status, text = served(wrong)
        assert status == 1 and said in text, (status, text)


def relay() -> None:
    """What it is given arrives after its time, whole and in order"""
    import socket

    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen([PROGRAMS / "replay-relay", "20000", f"{port}:{listener.getsockname()[1]}"],
                                   stdout=subprocess.PIPE)
        try:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            with socket.create_connection(("127.0.0.1", port)) as one, listener.accept()[0] as other:
                begin = time.monotonic()
                one.sendall(b"a")
                equal(other.recv(10), b"a")
                assert time.monotonic() - begin >= 0.02
                data = bytes(range(256)) * 2000
                threading.Thread(target=other.sendall, args=(data, ), daemon=True).start()
                got = b""
                while len(got) < len(data):
                    got += one.recv(1 << 16)
                assert got == data
                other.shutdown(socket.SHUT_RDWR)
                equal(one.recv(10), b"")
        finally:
            process.kill()
            process.wait()
            process.stdout.close() if process.stdout else None


main(peers, paper, others, failed, client, relay)
