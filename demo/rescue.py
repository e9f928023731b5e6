#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Shows Apache with a module that has a mistake: today, and with a rescue point; and two servers that go back together, and what
happens behind a point's limits. Needs root: ./build.sh demo rescue."""

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "vm-tests/cases" / suite) for suite in ("rescue", "examples")]
try:
    from httpd import FAULTS, HTTPD, RESCUECTL, Server, connect, get
    from shop import SHOP, Shop
except (KeyError, OSError) as e:
    sys.exit(f"demo: {e}: run ./build.sh demo rescue, which builds and sets what is needed; Apache is in Debian's apache2 and apache2-dev")

NAME = "apache"
WHAT = {"null": "a NULL pointer", "overflow": "a length from the request (stack overflow)", "twice": "memory freed twice", "abort": "a failed assertion",
        "divide": "a division by zero"}

failures: list[str] = []


def say(text: str = "") -> None:
    print(text, flush=True)


def check(good: bool, what: object) -> str:
    if not good:
        failures.append(str(what))
    return f"{what}" if good else f"{what}: WRONG"


def ask(path: str) -> str:
    try:
        status, _ = get(connect(), path)
    except (http.client.HTTPException, OSError) as e:
        return f"no answer: {type(e).__name__}"
    return f"HTTP {status} {http.client.responses[status]}"


class Others:
    """Four clients that ask for a right page all the time."""

    def __init__(self) -> None:
        self.right, self.wrong, self.over = 0, 0, False
        self.threads = [threading.Thread(target=self._ask) for _ in range(4)]
        for thread in self.threads:
            thread.start()

    def _ask(self) -> None:
        while not self.over:
            if ask("/file") == "HTTP 200 OK":
                self.right += 1
            else:
                self.wrong += 1

    def end(self) -> str:
        self.over = True
        for thread in self.threads:
            thread.join()
        return f"{self.right} requests answered, {self.wrong} not"


def rescuectl(*args: object) -> str:
    return subprocess.run([str(RESCUECTL), *(str(a) for a in args)], stdout=subprocess.PIPE, text=True, check=True).stdout


def ask_for_faults(server: Server, want: str) -> tuple[int, str]:
    """Each of the faults while others ask; how many workers died, and what the others got."""
    before, others = server.died(), Others()
    for fault in FAULTS:
        got = ask(f"/fault/{fault}")
        say(f"    {WHAT[fault]:44} {check(got.startswith(want), got)}")
    told = others.end()
    # A worker that dies says so a little later
    for _ in range(100):
        if want.startswith("HTTP") or server.died() - before == len(FAULTS):
            break
        threading.Event().wait(0.1)
    return server.died() - before, told


def next_rung() -> None:
    """A shop that cannot write the invoice of 13 things, and its stock, with a point for one fault."""
    shop = Shop("perdurectl", "run", "--in-place", "--")
    try:
        rescuectl("add", SHOP, "order", "--value", -1, "--output", "cascade", "--burst", 1, "--name", "order")
        say("(d) The next rung: a shop that takes from a stock, and a point at order(), for one fault, whose peers go back, too")
        for n, what, want in ((1, "buy 1", "sold 1, 999 left"), (13, "buy 13: a fault, undone", "error"),
                              (2, "buy 2: nothing was lost", "sold 2, 997 left"), (13, "buy 13: a fault, behind the limit", "no answer")):
            got = shop.ask(f"buy {n}") or "no answer"
            say(f"    {what:44} {check(got == want, got)}")
        shop.connect()
        got = shop.ask("buy 1")
        say(f"    {'buy 1: a new connection; 13 are lost':44} {check(got == 'sold 1, 983 left', got)}")
        told = re.search(r"^restarts:\s*(\d+)$", Path(f"/proc/{shop.process.pid}/restart").read_text(), re.M)
        say(f"    {'restarts of the shop, in the same process':44} {check(told is not None and told[1] == '1', told and told[1])}")
        rescuectl("remove", "order")
        say()
    finally:
        shop.stop()


def main() -> int:
    if not Path("/proc/rescue").exists():
        sys.exit("demo: this kernel has no rescue points: run ./build.sh demo rescue, which boots one that has")
    with tempfile.TemporaryDirectory() as place:
        server = Server(Path(place))
        (server.files / "file").write_bytes(b"x" * 20000)
        say(f"Perdure on Linux {os.uname().release}: Apache has a module with five mistakes")
        say()
        say("(a) Today: a request that meets one of them kills the worker that serves it")
        died, told = ask_for_faults(server, "no answer")
        say(f"    workers that died                            {check(died == len(FAULTS), died)}")
        say(f"    the others                                   {told}")
        say()
        command = ("add", HTTPD, "ap_run_handler", "--value", 500, "--burst", 1000, "--name", NAME)
        say(f"(b) A rescue point, while it runs: rescuectl {' '.join(str(c) for c in command[:5])}")
        rescuectl(*command)
        died, told = ask_for_faults(server, "HTTP 500")
        say(f"    workers that died                            {check(died == 0, died)}")
        say(f"    the others                                   {check(told.endswith(' 0 not'), told)}")
        point = next(p for p in json.loads(rescuectl("list", "--json")) if p["name"] == NAME)
        say(f"    the kernel: calls, rescued, pages saved      "
            f"{point['entered']}, {check(point['rescued'] == len(FAULTS), point['rescued'])}, {point['pages']}")
        log = subprocess.run(["perdurectl", "log"], stdout=subprocess.PIPE, text=True).stdout.splitlines()
        for line in [line for line in log if "rescue" in line][-2:]:
            say(f"    perdurectl log: {re.sub(r'^.{24}', '', line).strip()}")
        say()
        say("(c) Without it again")
        rescuectl("remove", NAME)
        died, told = ask_for_faults(server, "no answer")
        say(f"    workers that died                            {check(died == len(FAULTS), died)}")
        say()
        server.stop()
    next_rung()
    if failures:
        say(f"Something is WRONG: {'; '.join(failures)}")
        return 1
    say("What had been done half was undone, and nobody else noticed. See docs/rescue.md and rescuectl(8).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
