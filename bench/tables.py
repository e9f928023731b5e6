# SPDX-License-Identifier: GPL-2.0-or-later
"""Rows of figures, and how they are shown: as tables on the terminal, as pictures."""

import re
from pathlib import Path


def row(table: str, case: str, value: float | None, unit: str, paper: float | None = None,
        peers: dict[str, float] | None = None, goal: float | None = None, spread: str = "") -> dict:
    """`goal` is the largest value that is good enough."""
    rounded = None if value is None else round(value, 4)
    return {"id": identifier(f"{table} {case}"), "table": table, "case": case, "value": rounded, "unit": unit, "paper": paper,
            "peers": peers or {}, "goal": goal, "ok": None if goal is None or value is None else value <= goal, "spread": spread}


def identifier(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def by_table(rows: list[dict]) -> dict[str, list[dict]]:
    return {table: [r for r in rows if r["table"] == table] for table in dict.fromkeys(r["table"] for r in rows)}


def text(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 10 else \
        f"{value:.1f}" if isinstance(value, float) else str(value)


def show(rows: list[dict]) -> str:
    shown = ""
    for table, mine in by_table(rows).items():
        peers = list(dict.fromkeys(name for r in mine for name in r["peers"]))
        optional = [name for name in ("paper", "spread", "goal", "ok") if any(r[name] not in (None, "") for r in mine)]
        lines = [["case", f"ours [{mine[0]['unit']}]", *peers, *optional]]
        for r in mine:
            lines.append([r["case"], text(r["value"]), *(text(r["peers"].get(p)) for p in peers),
                          *(text(r[name]) for name in optional)])
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        lines.insert(1, ["-" * width for width in widths])
        shown += f"\n### {table}\n\n"
        shown += "".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |\n" for line in lines)
    return shown


def plot(rows: list[dict], file: Path) -> None:
    """The ratios, with their goals: what is left of 1 costs less than the peer."""
    from matplotlib.figure import Figure
    ratios = [r for r in rows if "ratio" in r["table"] and r["value"] is not None]
    axes = (figure := Figure(figsize=(9, 1 + 0.28 * len(ratios)), layout="constrained")).subplots()
    for y, r in enumerate(ratios):
        axes.barh(y, r["value"], color="tab:red" if r["ok"] is False else "tab:blue")
        if r["goal"]:
            axes.plot([r["goal"]] * 2, [y - 0.4, y + 0.4], color="black")
    tables = {r["table"] for r in ratios}
    axes.set_yticks(range(len(ratios)), [r["case"] if len(tables) == 1 else f"{r['table']}: {r['case']}" for r in ratios],
                    fontsize="small")
    axes.invert_yaxis()
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xlabel("ours / peer; a black mark is a goal")
    figure.savefig(file, dpi=120)
