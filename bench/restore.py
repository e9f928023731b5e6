# SPDX-License-Identifier: GPL-2.0-or-later
"""What the guests of bench/run restore have measured, as the tables 2 to 7 and 9 of the paper, and its figures 6 to 8."""

import math
from pathlib import Path
from statistics import mean

from tables import by_table, identifier, row

# The paper's networks, and a disk as fast as it is
RATES = {"10": "FAST, 10 MB/s", "2.5": "SLOW, 2.5 MB/s", "0": "no limit"}
# The numbers of the paper's tables of tracking and of loading, and of its figure of a lifetime
NUMBERED = {"10": (" (Table 4)", " (Table 6)", " (Figure 7)"), "2.5": (" (Table 5)", " (Table 7)", " (Figure 8)")}
# Of the paper: FREM's restart latency, as a part of that of the checkpointer that it extends
LATENCY = {"10": 0.38, "2.5": 0.49}
HOURS = (1, 10, 100, 1000, 6400)    # between two failures: the range of the paper

Ways = dict[str, dict]              # of one program and rate, by how it was restored


def label_of(rate: str) -> str:
    return RATES.get(rate, f"{rate} MB/s")


def rows_of(programs: list[str], rates: list[str], results: list[dict]) -> list[dict]:
    found: dict[tuple[str, str], Ways] = {}
    for one in results:
        if "skipped" not in one and "failed" not in one:
            found.setdefault((one["rate"], one["program"]), {})[one["way"]] = one
    rows: list[dict] = []
    for rate in rates:
        cases = {program: found[rate, program] for program in programs
                 if {"frem", "CRIU"} <= found.get((rate, program), {}).keys()}
        if cases:
            label, numbers = label_of(rate), NUMBERED.get(rate, ("", "", ""))
            # The conservative window is compared with the adaptive one only
            usual = {program: {way: one for way, one in ways.items() if way != "conservative"} for program, ways in cases.items()}
            rows += [*checkpoints(label, cases), *times(label, usual), *ratios(label, usual, LATENCY.get(rate)),
                     *tracking(label + numbers[0], cases), *loading(label + numbers[1], cases), *afterwards(label, usual),
                     *windows(label, cases), *lifetimes(label + numbers[2], cases)]
    return rows


def checkpoints(label: str, cases: dict[str, Ways]) -> list[dict]:
    rows = []
    for program, ways in cases.items():
        ours = ways["frem"]
        rows.append(row(f"Checkpoints (Table 2): {label}", program, ours["bytes"] / 1e6, "MB",
                        peers={"touched MB": round(ours["touched"] / 1e6, 1),
                               "touched %": round(100 * ours["touched"] / ours["bytes"], 1),
                               "window s": ours["window"], "dump s": ours["dump"]}))
    return rows


def times(label: str, cases: dict[str, Ways]) -> list[dict]:
    rows = []
    for what, key in (("Restart latency (Table 3)", "running"), ("Time to first useful work", "work"),
                      ("Time to a second's work", "second"), ("Time to fully loaded", "loaded")):
        for program, ways in cases.items():
            rows.append(row(f"{what}: {label}", program, ways["frem"][key], "s",
                            peers={way: round(ways[way][key] or 0, 3) for way in ways if way != "frem"}))
    for program, ways in cases.items():
        rows.append(row(f"Read from the disk: {label}", program, ways["frem"]["read"] / 1e6, "MB",
                        peers={way: round(ways[way]["read"] / 1e6, 1) for way in ("CRIU", "lazy-pages") if way in ways}))
    for program, ways in cases.items():
        rows.append(row(f"Where frem's latency goes: {label}", program, ways["frem"]["running"], "s",
                        peers={name: round(value, 2) for name, value in ways["frem"]["phases"].items()}))
    return rows


def ratios(label: str, cases: dict[str, Ways], latency: float | None) -> list[dict]:
    rows = []
    for what, key, goal in (("Restart latency", "running", latency), ("Time to a second's work", "second", None)):
        each = {program: {way: ways[way][key] / ways["CRIU"][key] for way in ways} for program, ways in cases.items()
                if all(one[key] for one in ways.values())}
        if each:
            # A peer's mean is of the programs with which it did not fail
            every = {way: [one[way] for one in each.values() if way in one] for ways in cases.values() for way in ways}
            each[f"mean of {len(each)}"] = {way: mean(values) for way, values in every.items() if values}
        rows += [row(f"{what}, ratio to CRIU: {label}", program, one["frem"], "x",
                     peers={way: round(one[way], 3) for way in one if way not in ("CRIU", "frem")},
                     **({"paper": goal, "goal": goal} if program.startswith("mean of") else {}))
                 for program, one in each.items()]
    return rows + [row(f"Time to fully loaded, ratio to lazy-pages: {label}", program,
                       ways["frem"]["loaded"] / ways["lazy-pages"]["loaded"], "x", goal=1) for program, ways in cases.items()
                   if "lazy-pages" in ways]


def tracked(taken: dict) -> float:
    """Seconds that the process paid for its touched set, at most: frem writes the descriptor on another processor."""
    cost = taken["tracking"]
    return cost["start_s"] + cost["removal_s"] + cost["stop_s"]


def tracking(label: str, cases: dict[str, Ways]) -> list[dict]:
    rows = []
    for program, ways in cases.items():
        taken, cost = ways["frem"], ways["frem"]["tracking"]
        rows.append(row(f"What tracking costs: {label}", program, 1000 * (tracked(taken) + cost["store_s"]), "ms",
                        peers={"removals": cost["removals"], "removals ms": round(1000 * cost["removal_s"], 2),
                               "start ms": round(1000 * cost["start_s"], 2), "stop ms": round(1000 * cost["stop_s"], 2),
                               "descriptor ms": round(1000 * cost["store_s"], 2)}))
    return rows + [row(f"What tracking costs, of the window: {label}", program,
                       100 * tracked(ways["frem"]) / ways["frem"]["window"], "%", goal=1) for program, ways in cases.items()]


def loading(label: str, cases: dict[str, Ways]) -> list[dict]:
    rows = []
    for program, ways in cases.items():
        ours, others = ways["frem"], {way: ways[way] for way in ("lazy-pages", "frem --preload") if way in ways}
        waited = ours["loader"]["fault_ns"] / 1e9
        rows.append(row(f"What loading costs the program: {label}", program, ours["cost"], "s",
                        peers={"faults": ours["faults"], "in faults s": round(waited, 2),
                               "removed pages": ours["loader"]["removed"],
                               **({"beside s": round(ours["cost"] - waited, 2)} if ours["cost"] is not None else {}),
                               **{f"{way} s": round(one["cost"], 2) for way, one in others.items() if one["cost"] is not None},
                               **{f"{way} faults": one["faults"] for way, one in others.items() if way == "lazy-pages"}}))
    return rows


def afterwards(label: str, cases: dict[str, Ways]) -> list[dict]:
    """Is the process as fast as it was? Pages that come one by one are small at first."""
    known = {program: {way: one for way, one in ways.items() if "pace" in one} for program, ways in cases.items()}
    known = {program: ways for program, ways in known.items() if "frem" in ways}
    rows = [row(f"Pace when all is loaded, of that before the checkpoint: {label}", program, ways["frem"]["pace"], "x",
                peers={way: round(one["pace"], 2) for way, one in ways.items() if way != "frem"})
            for program, ways in known.items()]
    return rows + [row(f"Huge pages when all is loaded: {label}", program, ways["frem"]["huge"], "MB",
                       peers={"before": round(ways["frem"]["had_huge"]),
                              **{way: round(one["huge"]) for way, one in ways.items() if way != "frem"}})
                   for program, ways in known.items()]


def windows(label: str, cases: dict[str, Ways]) -> list[dict]:
    """What equation (2) saves over (1), in the paper's way: the touched set is loaded before it runs."""
    rows = []
    for program, ways in cases.items():
        if not {"conservative", "frem --preload"} <= ways.keys():
            continue
        before, after = ways["conservative"], ways["frem --preload"]
        known = None not in (before["cost"], after["cost"])
        rows.append(row(f"Adaptive instead of conservative window (Table 9): {label}", program,
                        100 * (1 - after["window"] / before["window"]), "% shorter window",
                        peers={"% shorter latency": round(100 * (1 - after["running"] / before["running"]), 1),
                               **({"s less in all": round(before["running"] + before["cost"] - after["running"] - after["cost"], 2)}
                                  if known else {})}))
    return rows


def lifetime(hours: float, gain: float, tracking_s: float, loading_s: float, window_s: float, dump_s: float) -> float:
    """Equation (3): seconds that are gained between two restarts. Failures are Poisson's, checkpoints at Young's interval."""
    between = hours * 3600
    fails_in_window = 1 - math.exp(-window_s / between)
    checkpoints_taken = between / math.sqrt(2 * dump_s * between)
    return (gain - loading_s) * (1 - fails_in_window) - tracking_s * checkpoints_taken


def lifetimes(label: str, cases: dict[str, Ways]) -> list[dict]:
    rows = []
    for program, ways in cases.items():
        ours = ways["frem"]
        if ours["cost"] is None:
            continue
        gains = [round(lifetime(hours, ways["CRIU"]["running"] - ours["running"], tracked(ours), ours["cost"],
                                ours["window"], ours["dump"]), 2) for hours in HOURS]
        rows.append(row(f"Gained between two restarts, a failure in an hour: {label}", program, gains[0], "s",
                        peers={f"{hours} h": gain for hours, gain in zip(HOURS[1:], gains[1:])}))
    return rows


def figures(rows: list[dict], directory: Path) -> None:
    """One picture for each table of times, and the paper's figures."""
    for table, mine in by_table(rows).items():
        file = directory / f"{identifier(table)}.png"
        if table.startswith(("Restart latency (", "Time to")) and "ratio" not in table:
            bars(table + " [s]", [r["case"] for r in mine],
                 {**{name: [r["peers"].get(name) or 0 for r in mine] for name in mine[0]["peers"]}, "frem": [r["value"] or 0 for r in mine]}, file)
        elif table.startswith("Restart latency, ratio"):
            rate = table.partition(": ")[2]
            bars(f"Restart latency: % less than CRIU's, {rate}", [r["case"] for r in mine],
                 {"frem": [100 * (1 - r["value"]) for r in mine],
                  "frem --preload": [100 * (1 - r["peers"].get("frem --preload", 1)) for r in mine]},
                 directory / f"figure-6-{identifier(rate)}.png")
        elif table.startswith("Gained"):
            lines(f"Gained between two restarts [s], {table.partition(': ')[2]}", mine, file)


def bars(title: str, names: list[str], sides: dict[str, list[float]], file: Path) -> None:
    from matplotlib.figure import Figure
    axes = (figure := Figure(figsize=(9, 4), layout="constrained")).subplots()
    for n, (side, values) in enumerate(sides.items()):
        axes.bar([x + 0.8 / len(sides) * (n - (len(sides) - 1) / 2) for x in range(len(names))], values, 0.76 / len(sides), label=side)
    axes.set_xticks(range(len(names)), names, rotation=30)
    axes.set_ylabel(title, fontsize="small")
    axes.legend(ncols=len(sides), loc="lower center", bbox_to_anchor=(0.5, 1), fontsize="small")
    figure.savefig(file, dpi=120)


def lines(title: str, rows: list[dict], file: Path) -> None:
    from matplotlib.figure import Figure
    axes = (figure := Figure(figsize=(9, 5), layout="constrained")).subplots()
    for n, r in enumerate(rows):    # there are ten colours
        axes.plot(HOURS, [r["value"], *r["peers"].values()], "-" if n < 10 else "--", marker=".", label=r["case"])
    axes.set_xscale("log")
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("hours between two failures")
    axes.set_ylabel(title, fontsize="small")
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(file, dpi=120)
