#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The tables of bench restore and bench programs, from made-up measurements."""

import math
import sys
from runpy import run_path

from points import TOP, equal, main

sys.path.insert(0, str(TOP / "bench"))
from restore import lifetime, rows_of  # noqa: E402
from tables import row, show  # noqa: E402

WAY = {"bytes": 100e6, "touched": 25e6, "window": 8.0, "dump": 4.0, "read": 1e8, "faults": 7, "work": 3.0, "second": 4.0, "loaded": 10.0,
       "cost": 1.5, "tracking": {"start_s": 0.01, "removals": 3, "removal_s": 0.002, "stop_s": 0.004, "store_s": 0.008},
       "loader": {"fault_ns": 500000000, "removed": 9}, "phases": {"started": 0.5}}


def result(way: str, running: float, rate: str = "10", **more: object) -> dict:
    return {"program": "p", "rate": rate, "way": way, **WAY, "running": running, **more}


def only(rows: list[dict], start: str) -> dict:
    """The row of the program in the table that starts so"""
    found = [r for r in rows if r["table"].startswith(start) and r["case"] == "p"]
    equal(len(found), 1)
    return found[0]


def paper() -> None:
    """Every table of the paper has its figures"""
    rows = rows_of(["p"], ["10"], [result("CRIU", 10, second=8.0), result("lazy-pages", 1, loaded=12.5, cost=4.0), result("frem", 2),
                                   result("frem --preload", 3, cost=1.0), result("conservative", 6, window=10.0, cost=0.5)])
    equal(only(rows, "Checkpoints (Table 2)")["peers"], {"touched MB": 25, "touched %": 25, "window s": 8, "dump s": 4})
    latency = only(rows, "Restart latency (Table 3)")
    equal((latency["value"], latency["peers"]), (2, {"CRIU": 10, "lazy-pages": 1, "frem --preload": 3}))
    tracking = only(rows, "What tracking costs: FAST, 10 MB/s (Table 4)")
    equal((tracking["value"], tracking["peers"]),
          (24, {"removals": 3, "removals ms": 2, "start ms": 10, "stop ms": 4, "descriptor ms": 8}))
    equal(only(rows, "What tracking costs, of the window")["value"], 0.2)
    cost = only(rows, "What loading costs the program: FAST, 10 MB/s (Table 6)")
    equal((cost["value"], cost["peers"]), (1.5, {"faults": 7, "in faults s": 0.5, "removed pages": 9, "beside s": 1,
                                                 "lazy-pages s": 4, "frem --preload s": 1, "lazy-pages faults": 7}))
    window = only(rows, "Adaptive instead of conservative window (Table 9)")
    equal((window["value"], window["peers"]), (20, {"% shorter latency": 50, "s less in all": 2.5}))
    mean = next(r for r in rows if r["table"].startswith("Restart latency, ratio") and r["case"] == "mean of 1")
    equal((mean["value"], mean["goal"], mean["ok"]), (0.2, 0.38, True))
    equal(only(rows, "Time to a second's work, ratio")["value"], 0.5)
    loaded = only(rows, "Time to fully loaded, ratio to lazy-pages")
    equal((loaded["value"], loaded["ok"]), (0.8, True))


def numbers() -> None:
    """Tables of the slow network and of others have their names; a program without CRIU's figures is left out"""
    both = [result("CRIU", 10, "2.5"), result("frem", 2, "2.5"), result("CRIU", 10, "7"), result("frem", 2, "7")]
    tables = {r["table"] for r in rows_of(["p"], ["2.5", "7"], both)}
    for table in ("What tracking costs: SLOW, 2.5 MB/s (Table 5)", "What loading costs the program: SLOW, 2.5 MB/s (Table 7)",
                  "What tracking costs: 7 MB/s", "Restart latency (Table 3): 7 MB/s"):
        assert table in tables, (table, tables)
    equal(rows_of(["p"], ["10"], [result("frem", 2)]), [])
    equal(rows_of(["p"], ["10"], [result("frem", 2), {"program": "p", "rate": "10", "way": "CRIU", "failed": "so"}]), [])


def unknown() -> None:
    """What could not be measured is no figure"""
    rows = rows_of(["p"], ["10"], [result("CRIU", 10, second=None), result("frem", 2, second=None, work=None, cost=None)])
    equal(only(rows, "Time to a second's work")["value"], None)
    equal(only(rows, "What loading costs the program")["value"], None)
    equal([r for r in rows if r["table"].startswith(("Gained", "Time to a second's work, ratio"))], [])
    assert "| p " in show(rows)
    assert " -" in show([row("t", "c", None, "s")])


def equation() -> None:
    """A lifetime gains what equation (3) says"""
    # An hour between failures, and a checkpoint every sqrt(2 * 0.5 s * 3600 s) = 60 s
    equal(lifetime(1, 20, 0.1, 5, 0, 0.5), 15 - 6.0)
    # A failure in the window finds no touched set
    equal(round(lifetime(1, 20, 0, 5, 3600, 0.5), 6), round(15 * math.exp(-1), 6))
    # Where checkpoints are many and failures few, tracking outweighs
    assert lifetime(6400, 20, 0.5, 5, 10, 0.5) < 0 < lifetime(1, 20, 0.01, 5, 10, 0.5)


def programs() -> None:
    """Of programs as they are: who is refused and what is left misses its goal, but not where sockets are not kept"""
    bench = run_path(str(TOP / "bench/run"))
    one, restarted = bench["Series"], bench["restarted"]
    sides = {"run": one(90e6, 90e6, 99e6), "systemd": one(200e6, 200e6, 210e6), "run, left": one(0, 0, 0), "run, refused": one(0, 0, 0),
             "systemd, may be refused": one(21.5, 20, 23)}
    own = {"run": one(1, 1, 1), "systemd": one(2e8, 2e8, 2e8), "run, may be refused": one(3, 1, 4)}
    rows = restarted({"p": sides, "refuses": sides | {"run, refused": one(0.25, 0, 1)}, "leaks": sides | {"run, left": one(1, 1, 1)},
                      "late": sides | {"run": one(101e6, 101e6, 101e6)}, "own": own, "only ours": {"run": one(1, 1, 1)}})
    equal({(r["table"].split(" ")[0], r["case"]) for r in rows if r["ok"] is False},
          {("Later", "late"), ("Connections", "refuses"), ("Processes", "leaks")})
    refused = {r["case"]: r for r in rows if r["table"].startswith("Connections refused")}
    equal((refused["p"]["value"], refused["p"]["goal"], refused["p"]["peers"]), (0, 0, {"systemd": 21.5}))
    equal((refused["refuses"]["value"], refused["refuses"]["spread"]), (0.25, "0.00-1.00"))
    equal((refused["own"]["value"], refused["own"]["goal"], refused["own"]["peers"]), (3, None, {}))


main(paper, numbers, unknown, equation, programs)
