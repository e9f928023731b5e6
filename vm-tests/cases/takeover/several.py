#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Three services, one of them of IPv6, one with the roles the other way round: each host dies, and all of them go on."""

from pair import OTHER, SEED, WEB, Network, Pair, Service, main


def dual() -> None:
    """Services with both roles on each host, and of IPv6, go on when either dies"""
    with Network("takeover-several", SEED) as net:
        pair = Pair(net, WEB, Service("other", "192.0.2.20", 81, backup="one"), Service("six", "2001:db8::10"), clients=(1, 3, 1))
        try:
            pair.watch()
            print(f"# the backups are {[pair.backup(s) for s in pair.services]}", flush=True)
            for name in OTHER:
                pair.strike(f"{name} killed", pair.hosts[name].kill, OTHER[name])
                pair.boot(name)
                pair.settle()
            pair.last_phase()
            pair.judge(again=True)
        except BaseException:
            print("# " + pair.log().replace("\n", "\n# "))
            raise


main(dual)
