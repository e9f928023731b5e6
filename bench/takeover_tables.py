# SPDX-License-Identifier: GPL-2.0-or-later
"""What bench/run takeover has measured, as tables and pictures: Figures 2 to 6 of the paper, and peers."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from replay_tables import bars, known, lines, middle, only, spread_of
from tables import by_table, identifier, row

Result = dict[str, Any]
Row = dict[str, Any]
UNREPLICATED, SINGLE, DUAL = "unreplicated", "single role", "dual role"
STATIC, SYNC, LOGGED, LOGGED_LINK = "static", "sync-static", "reply logging", "reply logging, own network"
MODES = (STATIC, SYNC, LOGGED, LOGGED_LINK)
PEERS = ("keepalived alone", "HAProxy")
GOAL_SIZE = 51200
# Of the paper, at 50 KB: dual role has 1.67 times the throughput of single role; static has 2.21 times that of reply logging, and
# 0.57 of its latency
DUAL_GAIN, STATIC_GAIN, STATIC_LATENCY = 1.67, 2.21, 0.57
PAUSE_MS = 10


def kilobytes(size: int) -> str:
    return f"{size / 1024:g} KB"


def many(results: list[Result]) -> list[Result]:
    return [one for one in results if one["clients"] > 1]


def alone(results: list[Result]) -> list[Result]:
    return only(results, clients=1)


def ratios(results: list[Result], above: str, below: str, of: Callable[[Result], float]) -> list[float]:
    """One of each round, in which both were measured one soon after the other."""
    found = []
    for number in sorted({one["round"] for one in results}):
        a, b = (only(results, round=number, variant=variant) for variant in (above, below))
        if a and b and of(b[0]):
            found.append(of(a[0]) / of(b[0]))
    return found


def ratio_row(table: str, case: str, found: list[float], paper: float | None = None, goal: float | None = None, **more: Any) -> Row:
    spread = f"{min(found):.3g}-{max(found):.3g}" if len(found) > 1 else ""
    return row(table, case, median(found) if found else None, "x", paper and round(paper, 3), goal=goal and round(goal, 4), spread=spread,
               **more)


def answers_s(one: Result) -> float:
    return float(one["answers_s"])


def mean_us(one: Result) -> float:
    return float(one["mean_us"])


def millions(results: list[Result], host: str) -> float | None:
    return middle(results, lambda one: one["instructions"][host] / 1e6)


def cgi(results: list[Result]) -> list[Row]:
    """One host is the primary of half of the requests and the backup of the others, or all of one kind."""
    cycles, rates, shares = [], [], []
    for size in sorted({one["size"] for one in results}):
        here, case = only(results, size=size), f"program, {kilobytes(size)}"
        light = only(alone(here), variant=SINGLE)
        primary, backup = millions(light, "one"), millions(light, "two")
        total = None if primary is None or backup is None else primary + backup
        cycles.append(row("Million instructions a request (Figure 2)", case, primary, "million, primary",
                          peers=known({"backup": backup, "both": total, UNREPLICATED: millions(only(alone(here), variant=UNREPLICATED), "one")}),
                          spread=spread_of([{"n": one["instructions"]["one"]} for one in light], "n", 1e-6)))
        sides = {variant: middle(only(many(here), variant=variant), answers_s) for variant in (DUAL, SINGLE, UNREPLICATED)}
        dual = sides.pop(DUAL)
        one = sides[UNREPLICATED]
        # Of both hosts together, when no instruction is lost
        theory = 2 * results[0]["speed"] / 1e6 / total if total and "speed" in results[0] else None
        rates.append(row("Throughput of programs, dual role (Figure 3)", case, dual, "1/s",
                         peers=known({**sides, "2 x unreplicated": None if one is None else 2 * one, "dual role, theory": theory}),
                         spread=spread_of(only(many(here), variant=DUAL), "answers_s")))
        expected = None if not total or primary is None or backup is None else total / 2 / max(primary, backup)
        shares.append(ratio_row("Throughput of programs, ratio (Figure 3)", f"single role / dual role, {kilobytes(size)}",
                                ratios(many(here), SINGLE, DUAL, answers_s), 1 / DUAL_GAIN if size == GOAL_SIZE else None,
                                1 / DUAL_GAIN if size == GOAL_SIZE else None, peers=known({"by instructions": expected}, 3)))
        shares.append(ratio_row("Throughput of programs, ratio (Figure 3)", f"unreplicated / single role, {kilobytes(size)}",
                                ratios(many(here), UNREPLICATED, SINGLE, answers_s)))
    return cycles + rates + shares


def files(results: list[Result]) -> list[Row]:
    cycles, rates, times, shares, cost = [], [], [], [], []
    for size in sorted({one["size"] for one in results}):
        here, label, goal = only(results, size=size), kilobytes(size), size == GOAL_SIZE
        for variant in dict.fromkeys(one["variant"] for one in here):
            light = only(alone(here), variant=variant)
            primary, backup = millions(light, "one"), millions(light, "two")
            cycles.append(row("Million instructions a request, files", f"{variant}, {label}", primary, "million, primary",
                              peers=known({"backup": None if variant == UNREPLICATED else backup})))
        for rows, table, mine, of, unit, key, scale in (
                (rates, "Throughput of files, static (Figure 4)", many(here), answers_s, "1/s", "answers_s", 1),
                (times, "Latency of files, static (Figure 5)", alone(here), mean_us, "ms", "mean_us", 0.001)):
            sides = {variant: middle(only(mine, variant=variant), lambda one: of(one) * scale)
                     for variant in (UNREPLICATED, *MODES)}
            rows.append(row(table, label, sides.pop(STATIC), unit, peers=known(sides),
                            spread=spread_of(only(mine, variant=STATIC), key, scale)))
        busiest = {variant: middle(only(many(here), variant=variant), lambda one: max(one["instructions"].values()))
                   for variant in (STATIC, LOGGED)}
        expected = busiest[STATIC] / busiest[LOGGED] if busiest[STATIC] and busiest[LOGGED] else None
        shares.append(ratio_row("Files, ratio (Figures 4 and 5)", f"throughput: reply logging / static, {label}",
                                ratios(many(here), LOGGED, STATIC, answers_s), 1 / STATIC_GAIN if goal else None,
                                1 / STATIC_GAIN if goal else None, peers=known({"by instructions": expected}, 3)))
        shares.append(ratio_row("Files, ratio (Figures 4 and 5)", f"latency: static / reply logging, {label}",
                                ratios(alone(here), STATIC, LOGGED, mean_us), STATIC_LATENCY if goal else None,
                                STATIC_LATENCY if goal else None))
        for variant in MODES:
            cost.append(ratio_row("What it costs, ratio to unreplicated", f"latency, {variant}, {label}",
                                  ratios(alone(here), variant, UNREPLICATED, mean_us),
                                  peers=known({"throughput": median(ratios(many(here), variant, UNREPLICATED, answers_s) or [0])})))
    return cycles + rates + times + shares + cost


def tail(results: list[Result]) -> list[Row]:
    table = f"Latency of files of {kilobytes(results[0]['size'])} at {results[0]['rate']:g} requests a second (Figure 6)"
    shown, late = [], {}
    for variant in dict.fromkeys(one["variant"] for one in results):
        mine = only(results, variant=variant)
        asked = sum(one["asked"] for one in mine)
        again = {host: sum(one["again"][host] for one in mine) for host in mine[0]["again"]}
        late[variant] = sum(one["late"] for one in mine)
        shown.append(row(table, variant, middle(mine, lambda one: one["p50_us"] / 1000), "ms, p50",
                         peers=known({f"p{n}": middle(mine, lambda one: one[f"p{n}_us"] / 1000) for n in (90, 99, 99.9)}
                                     | {"longest": max(one["max_us"] for one in mine) / 1000, "requests": asked}
                                     | {f"segments again, {host}": n for host, n in again.items()})))
    return shown + [row("Requests that took a second and more (Figure 6)", variant, late[variant], "requests",
                        peers=known({UNREPLICATED: late.get(UNREPLICATED)}), goal=0) for variant in (STATIC, SYNC) if variant in late]


def pauses(results: list[Result]) -> list[Row]:
    return [row("From PROMOTE to the client's next byte", f"{name} of {one['count']}", one[key], "ms", goal=PAUSE_MS)
            for one in results for name, key in (("p50", "p50_ms"), ("p99", "p99_ms"))]


def kills(results: list[Result]) -> list[Row]:
    ours = only(results, system="takeover")
    if not ours:
        return []
    others = {name: only(results, system=name) for name in PEERS}
    one = ours[0]
    return [row(f"Hosts are killed, {one['kills']} of them", f"failed of {one['asked']} requests", one["failed"], "requests",
                peers=known({name: each[0]["failed"] for name, each in others.items() if each}), goal=0),
            row(f"The longest request while hosts are killed, {one['kills']} of them", "longest", one["max_us"] / 1e6, "s",
                peers=known({name: each[0]["max_us"] / 1e6 for name, each in others.items() if each}))]


def rest(results: list[Result]) -> list[Row]:
    """Of takeoverd and keepalived, with three services, and of the kernel."""
    return [row("Million instructions a second of a host that has nothing to do", host, n / 1e6, "million")
            for one in results for host, n in one["instructions_s"].items()]


def pace(results: list[Result]) -> list[Row]:
    """Where it is not 1, this machine was too busy for the hosts: then instructions are right, and times are not."""
    paces = sorted(one["pace"] for one in results if "pace" in one)
    return [row("The hosts' clocks, of the wall's", f"{len(paces)} samples", median(paces), "x", spread=f"{paces[0]:.2f}-{paces[-1]:.2f}")] \
        if paces else []


def failed(results: list[Result]) -> list[Row]:
    return [row("What failed", f"{one['what']}: {one['why']}", 1, "parts", goal=0) for one in results]


TABLES = {"cgi": cgi, "files": files, "tail": tail, "pauses": pauses, "kills": kills, "rest": rest, "failed": failed}


def rows_of(results: list[Result]) -> list[Row]:
    return [each for part, tables in TABLES.items() if (mine := only(results, part=part)) for each in tables(mine)] + pace(results)


def figures(rows: list[Row], results: list[Result], directory: Path) -> None:
    """Those of the paper."""
    for table, mine in by_table(rows).items():
        file = directory / f"takeover-{identifier(table)}.png"
        if table.endswith(("(Figure 2)", "(Figure 3)", "(Figure 4)", "(Figure 5)")) and "ratio" not in table:
            first = "primary" if table.endswith("(Figure 2)") else DUAL if table.endswith("(Figure 3)") else STATIC
            names = list(dict.fromkeys(name for r in mine for name in r["peers"]))
            sides = {first: [r["value"] for r in mine], **{name: [r["peers"].get(name) for r in mine] for name in names}}
            lines(f"{table} [{mine[0]['unit'].partition(',')[0]}]", [r["case"] for r in mine], sides, file)
        elif table.startswith("Hosts are killed"):
            bars("Failed requests", ["takeover", *mine[0]["peers"]], {mine[0]["case"]: [mine[0]["value"], *mine[0]["peers"].values()]}, file)
    distribution(only(results, part="tail"), directory / "takeover-figure-6.png")


def distribution(results: list[Result], file: Path) -> None:
    """Figure 6: how many requests took longer than that."""
    from matplotlib.figure import Figure

    if not results:
        return
    axes = (figure := Figure(figsize=(9, 4), layout="constrained")).subplots()
    for variant in dict.fromkeys(one["variant"] for one in results):
        times = sorted(t / 1000 for one in only(results, variant=variant) for t in one["times_us"])
        axes.step(times, [1 - n / len(times) for n in range(len(times))], where="post", label=variant)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("ms")
    axes.set_title("Share of requests that took longer (Figure 6)", fontsize="medium")
    axes.legend(fontsize="small")
    figure.savefig(file, dpi=120)
