#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Hosts die, hang and lose their cables, one after the other, while clients read: scenes.py [all | servers | random COUNT]."""

import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pair import OTHER, SEED, WEB, Network, Pair, draw, main, wait

stack = ExitStack()
pair: Pair
broken = False
NEW_KEY = "f" * 32
clients = (3, 6, 2)


def boot() -> None:
    """Both hosts have the service, and clients read"""
    global pair
    pair = Pair(stack.enter_context(Network("takeover", SEED)), WEB, clients=clients, checked=sys.argv[1:] == ["servers"])
    pair.watch()


def role(which: str) -> str:
    return pair.backup() if which == "backup" else OTHER[pair.backup()]


def stopped(which: str) -> None:
    """The {}'s host stands still for 5 seconds"""
    name = role(which)

    def hang() -> None:
        pair.hosts[name].stop()
        time.sleep(5)
        pair.hosts[name].cont()

    pair.strike(f"{which} stopped", hang, OTHER[name],
                lambda: wait("it has given way", lambda: "abandoned" in pair.daemons[name]["takeoverd"].text(), 30))


def lan(which: str) -> None:
    """The {}'s cable to the clients is cut"""
    name = role(which)
    pair.strike(f"{which}'s lan cut", lambda: pair.net.cut("lan", name), OTHER[name])
    pair.net.mend("lan", name)


def link() -> None:
    """The cable between the hosts is cut"""
    pair.strike("link cut", lambda: pair.net.cut("link", "one"))
    pair.net.mend("link", "one")


def server(which: str) -> None:
    """The {}'s server is killed and restarted"""
    name = role(which)
    pair.strike(f"{which}'s server killed", lambda: pair.restart(name, "server"), OTHER[name])


def down(which: str) -> None:
    """The {}'s server is killed and stays away: new connections are the other host's, too"""
    name = role(which)

    def end() -> None:
        process = pair.daemons[name]["server"]
        process.signal(signal.SIGKILL)
        process.wait()

    pair.strike(f"{which}'s server gone", end, OTHER[name])
    pair.spawn(name, "server").says("listens")


def hangs(which: str) -> None:
    """The {}'s server hangs until the other host has gone on"""
    name = role(which)
    server = pair.daemons[name]["server"]
    pair.strike(f"{which}'s server hangs", lambda: server.signal(signal.SIGSTOP), OTHER[name])
    server.signal(signal.SIGCONT)


def takeoverd(which: str) -> None:
    """The {}'s takeoverd is killed and restarted"""
    name = role(which)
    pair.strike(f"{which}'s takeoverd killed", lambda: pair.restart(name, "takeoverd"))


def keepalived(which: str) -> None:
    """The {}'s keepalived is killed and restarted"""
    name = role(which)
    pair.strike(f"{which}'s keepalived killed", lambda: pair.restart(name, "keepalived"), "",
                lambda: time.sleep(3))      # until the other one has noticed, or not


def key() -> None:
    """The key is changed: both hosts have the connections again, and none has ended"""
    name = pair.backup()

    def change() -> None:
        pair.hosts[name].run("takeoverctl promote all")
        wait("they are alone", lambda: int(pair.hosts[name].run("takeoverctl status").split()[-1]) >= clients[0])
        for host in pair.hosts[OTHER[name]], pair.hosts[name]:
            host.run(f"(umask 077; echo {NEW_KEY} >/run/web.key)")
            pair.restart(host.name, "takeoverd")
        pair.hosts[name].run("takeoverctl protect all")

    pair.strike("key changed", change, name)
    pair.settle()
    wait("connections that were there have their copy", lambda: pair.count(name, "joined") >= 2, 30)


def dies(which: str, how: str) -> None:
    """The {}'s host dies by {}, and comes back"""
    name = role(which)
    pair.strike(f"{which}: {how}", getattr(pair.hosts[name], how), OTHER[name])
    pair.boot(name)
    pair.settle()
    # Those that are busy for ever keep to one host, those that pause get their copy
    wait("connections that were there have their copy", lambda: pair.count(OTHER[name], "joined") >= 2, 30)


def sent() -> None:
    """What the hosts have sent was right at each moment, for connections that got their copies later, too"""
    pair.last_phase()
    pair.judge(again=True)
    stack.close()


def scene(function: Callable[..., None], *args: str) -> Callable[[], None]:
    def play() -> None:
        global broken
        assert not broken, "not tried, as another one has failed"
        try:
            if function not in (boot, sent):
                pair.settle()
            function(*args)
        except BaseException as error:
            broken = True
            with ExitStack() as end:
                end.push(stack.pop_all())
                if "pair" in globals():
                    print("# " + pair.log().replace("\n", "\n# "))
                raise error

    play.__doc__ = (function.__doc__ or "").format(*args)
    return play


BOTH = ("backup", "primary")
KINDS = [*((f, which) for f in (stopped, lan) for which in BOTH), (link,),
         *((f, which) for f in (takeoverd, keepalived) for which in BOTH),
         *((dies, which, how) for how in ("kill", "panic") for which in BOTH)]
SERVERS = [*((f, which) for f in (server, down, hangs) for which in BOTH), (key,)]


def network(*kinds: tuple[Any, ...]) -> list[Callable[[], None]]:
    return [scene(boot), *(scene(*kind) for kind in kinds), scene(sent)]


match sys.argv[1:]:
    case ["all"]:
        main(*network(*KINDS))
    case ["servers"]:
        main(*network(*SERVERS))
    case ["random", count]:
        # Ten of a network, whose capture is to be read
        main(*(point for n in range(0, int(count), 10)
               for point in network(*draw.choices(KINDS, k=min(10, int(count) - n)))))
    case _:
        clients = (5, 20, 475)
        main(*network((stopped, "primary"), (dies, draw.choice(BOTH), draw.choice(("kill", "panic")))))
