#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A primary dies when its program has told a database, and before the reply is logged: the backup executes the request again."""

import sys
from pathlib import Path

from pair import HERE, SEED, Network, Pair, equal, main, run, wait

sys.path.insert(0, str(HERE.parents[2] / "demo"))
import takeover as shop  # noqa: E402

BUILD = Path(shop.os.environ["PERDURE_BUILD"])
CTL = BUILD / "userspace/userspace/replay/replayctl"
SERVICE = BUILD / "userspace/vm-tests/cases/replay/replay-service"
# A database that executes a request with a key once, however often it comes
CONFIG = "[server]\nname = orders\nlog = /run/orders.log\nlisten = 192.0.2.1:8080\n"
ORDER = """#!/bin/sh
read -r name
key=$TAKEOVER_REQUEST
[ "$name" = plain ] && key=$(cat /proc/sys/kernel/random/uuid)
curl -sS -H "Idempotency-Key: $key" -d "$name 1" http://192.0.2.1:8080/add >/dev/null
echo "$name" >>/srv/shop/www/orders
sleep 3
printf 'Content-Type: text/plain\\r\\n\\r\\nordered at %s\\n' "$(cat /run/name)"
"""


def ordered_once() -> None:
    """Its database executes it once, by the name that it has on both hosts; without that, twice"""
    shop.ORDER = ORDER
    shop.pairs.TAKEOVER = shop.pairs.TAKEOVER.replace("[host]\n", "[host]\ngroup = www-data\n")
    with Network("takeover-once", SEED) as net:
        pair = Pair(net)
        client = pair.client
        client.put("/run/orders.conf", CONFIG.encode())
        client.run(f"{CTL} format /run/orders.log --size 8M")
        client.spawn(f"exec {SERVICE} /run/orders.conf")
        for name in shop.HOSTS:
            shop.serve(pair.hosts[name], True)
        pair.watch()
        orders = {name: client.spawn(f"curl -sS --max-time 60 -d {name} http://{shop.ADDRESS}/cgi-bin/order") for name in ("named", "plain")}
        for name in orders:
            wait("it is being executed", lambda: name in pair.hosts["one"].run("cat /srv/shop/www/orders"))
        pair.hosts["one"].kill()
        for process in orders.values():
            equal((process.wait(90), process.text()), (0, "ordered at two\n"))
        look = "curl -sS -H 'Idempotency-Key: look-{0}' -d {0} http://192.0.2.1:8080/look"
        equal([client.run(look.format(name)).strip() for name in orders], ["1", "2"])


main(ordered_once)
