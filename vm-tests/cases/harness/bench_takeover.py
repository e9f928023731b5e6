#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The tables of bench takeover, from made-up measurements; and its client, which finds answers that are wrong or do not come."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from points import BUILD, TOP, equal, main

sys.path.insert(0, str(TOP / "bench"))
from takeover_tables import DUAL, LOGGED, SINGLE, STATIC, SYNC, UNREPLICATED, rows_of  # noqa: E402

CLIENT = BUILD / "userspace/bench/takeover-client"
LETTERS = b"abcdefghijklmnopqrstuvwxyz" * 40


def sample(part: str, variant: str, number: int, clients: int, **more: Any) -> dict[str, Any]:
    return {"part": part, "variant": variant, "round": number, "clients": clients, "size": 51200, "pace": 1.0, "rate": 0, "asked": 100,
            "again": {"client": 0, "one": 1, "two": 2}, "answers_s": 10.0, "speed": 31.25e6, "mean_us": 9000.0, "p50_us": 8000,
            "p90_us": 9000, "p99_us": 10000, "p99.9_us": 11000, "max_us": 12000, "late": 0,
            "instructions": {"one": 1e6, "two": 2e5}, "times_us": []} | more


def only(rows: list[dict[str, Any]], table: str, case: str) -> dict[str, Any]:
    found = [r for r in rows if r["table"] == table and r["case"] == case]
    equal(len(found), 1)
    return found[0]


def roles() -> None:
    """Dual role beside single role, round by round, and what instructions let expect"""
    def measured(dual: float) -> list[dict[str, Any]]:
        results = [sample("cgi", UNREPLICATED, 0, 1, instructions={"one": 4e6, "two": 0.0}),
                   sample("cgi", SINGLE, 0, 1, instructions={"one": 8e6, "two": 2e6})]
        # The second round was measured on a machine half as fast
        for number, speed in enumerate((1, 0.5)):
            results += [sample("cgi", UNREPLICATED, number, 12, answers_s=6.0 * speed), sample("cgi", SINGLE, number, 12, answers_s=4.0 * speed),
                        sample("cgi", DUAL, number, 12, answers_s=dual * speed)]
        return results

    table, case = "Throughput of programs, ratio (Figure 3)", "single role / dual role, 50 KB"
    rows = rows_of(measured(8.0))
    good = only(rows, table, case)
    equal((good["value"], good["goal"], good["ok"], good["peers"]), (0.5, 0.5988, True, {"by instructions": 0.625}))
    equal(only(rows, table, "unreplicated / single role, 50 KB")["value"], 1.5)
    cycles = only(rows, "Million instructions a request (Figure 2)", "program, 50 KB")
    equal((cycles["value"], cycles["peers"]), (8, {"backup": 2, "both": 10, UNREPLICATED: 4}))
    figure = only(rows, "Throughput of programs, dual role (Figure 3)", "program, 50 KB")
    # 2 * 31.25 million a second, 10 million each
    equal((figure["value"], figure["peers"]), (6, {SINGLE: 3, UNREPLICATED: 4.5, "2 x unreplicated": 9, "dual role, theory": 6.25}))
    bad = only(rows_of(measured(6.0)), table, case)
    equal((bad["value"], bad["ok"]), (0.6667, False))


def modes() -> None:
    """Static beside reply logging, and all modes beside a host alone"""
    def measured(logged_s: float, static_us: float) -> list[dict[str, Any]]:
        return [sample("files", variant, 0, clients, answers_s=rate, mean_us=us)
                for variant, rate, us in ((UNREPLICATED, 24.0, 50e3), (STATIC, 22.0, static_us), (LOGGED, logged_s, 100e3))
                for clients in (1, 12)]

    def goals(*values: float) -> list[tuple[float, bool]]:
        rows = rows_of(measured(*values))
        return [(r["value"], r["ok"]) for r in (only(rows, "Files, ratio (Figures 4 and 5)", case) for case in (
            "throughput: reply logging / static, 50 KB", "latency: static / reply logging, 50 KB"))]

    equal(goals(9.9, 55e3), [(0.45, True), (0.55, True)])
    equal(goals(11.0, 60e3), [(0.5, False), (0.6, False)])
    cost = only(rows_of(measured(12.0, 55e3)), "What it costs, ratio to unreplicated", "latency, reply logging, 50 KB")
    equal((cost["value"], cost["peers"]), (2, {"throughput": 0.5}))
    # Another size has no goal of the paper's
    small = rows_of([one | {"size": 5120} for one in measured(22.0, 100e3)])
    equal({r["ok"] for r in small}, {None})


def tails() -> None:
    """A request that took a second is a goal that was missed, and so is one that failed"""
    results = [sample("tail", variant, number, 500, size=5120, rate=80, late=late)
               for number in (0, 1) for variant, late in ((UNREPLICATED, 0), (STATIC, number), (SYNC, 0))]
    rows = rows_of(results)
    late = {r["case"]: (r["value"], r["ok"]) for r in rows if r["table"] == "Requests that took a second and more (Figure 6)"}
    equal(late, {STATIC: (1, False), SYNC: (0, True)})
    shown = only(rows, "Latency of files of 5 KB at 80 requests a second (Figure 6)", STATIC)
    equal((shown["value"], shown["peers"]["p99.9"], shown["peers"]["segments again, two"]), (8, 11, 4))
    equal(only(rows, "The hosts' clocks, of the wall's", "6 samples")["value"], 1)


def deaths() -> None:
    """Pauses, failed requests, and parts that failed"""
    rows = rows_of([{"part": "pauses", "count": 100, "p50_ms": 4.0, "p99_ms": 11.0, "max_ms": 12.0}])
    equal([(r["case"], r["ok"]) for r in rows], [("p50 of 100", True), ("p99 of 100", False)])

    def killed(*failed: int) -> dict[str, Any]:
        return rows_of([{"part": "kills", "system": system, "asked": 10000, "failed": n, "why": {}, "kills": 4, "p50_us": 1, "max_us": 2500000}
                        for system, n in zip(("takeover", "keepalived alone", "HAProxy"), failed)])[0]

    equal([killed(n, 70, 30)["ok"] for n in (0, 1)], [True, False])
    equal(killed(0, 70, 30)["peers"], {"keepalived alone": 70, "HAProxy": 30})
    equal([(r["case"], r["ok"]) for r in rows_of([{"part": "failed", "what": "cgi", "why": "so"}])], [("cgi: so", False)])


def served(body: bytes, path: str = "/x", status: int = 200, *options: str) -> dict[str, Any]:
    """What the client says of a server that answers so, and is to answer with the alphabet's first 1000"""
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(b"HTTP/1.1 %d x\r\nA: b\r\n\r\n" % status + body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        text = subprocess.run([CLIENT, "-n", "10", *options, "1000", f"http://127.0.0.1:{server.server_address[1]}{path}"],
                              capture_output=True, text=True, timeout=60, check=True).stdout
    finally:
        server.shutdown()
        server.server_close()
    result: dict[str, Any] = json.loads(text)
    equal((result["asked"], len(result["times_us"])), (10, 10 - result["failed"]))
    return result


def client() -> None:
    """Answers that are wrong, short, refused or of another status have failed, and others not"""
    right = LETTERS[:1000]
    for body, path, status, why in (
            (right, "/x", 200, {}), (LETTERS[1:1001], "/x", 200, {"wrong": 10}), (LETTERS[1:1001], "/cgi-bin/x", 200, {}),
            (right[:999], "/x", 200, {"ended early": 10}), (right + b"a", "/x", 200, {"wrong": 10}), (right, "/x", 503, {"wrong": 10})):
        equal(served(body, path, status)["why"], why)
    equal(served(right, "/x", 200, "-c", "3", "-r", "200")["failed"], 0)
    text = subprocess.run([CLIENT, "-n", "2", "1000", "http://127.0.0.1:1/"], capture_output=True, text=True, timeout=60, check=True).stdout
    equal(json.loads(text)["why"], {"Connection refused": 2})


main(roles, modes, tails, deaths, client)
