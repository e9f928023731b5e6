#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""load.py CONNECTIONS: so many at once when a host dies, and then over a bad cable when the other one does."""

import sys

from pair import SEED, WEB, Network, Pair, main

COUNT = int(sys.argv[1])


def load() -> None:
    """Many connections go on when either host dies, the second time over a bad cable"""
    with Network("takeover-load", SEED) as net:
        pair = Pair(net, WEB, clients=(COUNT // 50, COUNT // 20, COUNT - COUNT // 50 - COUNT // 20))
        try:
            pair.watch()
            pair.strike(f"{COUNT} connections, primary killed", pair.hosts["one"].kill, "two")
            pair.boot("one")
            pair.settle()
            net.set("lan", "client", loss=1, reorder=2, delay=50)   # on each leg
            pair.strike(f"{COUNT} connections, bad cable, backup killed", pair.hosts["two"].kill, "one")
            pair.judge(again=True)
        except BaseException:
            print("# " + pair.log().replace("\n", "\n# "))
            raise


main(load)
