#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Shows a web server whose host dies in the middle of its answers: with keepalived alone, and with takeover. ./build.sh demo takeover."""

import hashlib
import os
import random
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
os.environ |= {"PERDURE_TOP": str(TOP), "PERDURE_BUILD": str(TOP / "build")}
sys.path[:0] = [str(TOP / "vm-tests/lib"), str(TOP / "vm-tests/cases/takeover")]
import pair as pairs  # noqa: E402
from guests import wait  # noqa: E402
from net import Host, Network, Process  # noqa: E402

ADDRESS, HOSTS, LAN = pairs.ADDRESS, ("one", "two"), pairs.LAN
SIZE = 24_000_000        # more than a client's kernel takes in ahead
MODULES = Path("/usr/lib/apache2/modules")
OURS = TOP / "build/userspace/userspace/services/apache/mod_takeover.so"
NAMES = ["mpm_prefork", "authz_core", "alias", "mime", "cgi"]
FILE = random.Random(1).randbytes(SIZE)

APACHE = """
ServerRoot /run/apache
ServerName shop.example
Listen 80
PidFile /run/apache/pid
ErrorLog /run/apache/error.log
User www-data
Group www-data
{modules}
DocumentRoot /srv/shop/www
ScriptAlias /cgi-bin/ /srv/shop/cgi/
<Directory /srv/shop>
    Require all granted
</Directory>
"""
TAKEOVER = """
TakeoverEngine on
TakeoverPrefix / sync-static
TakeoverPrefix /cgi-bin/ dynamic
"""
# Without takeover: the address alone
KEEPALIVED = """
global_defs {{
    vrrp_version 3
    vrrp_startup_delay 2
}}
vrrp_instance address {{
    state BACKUP
    interface lan
    virtual_router_id 1
    priority {priority}
    advert_int 0.1
    unicast_src_ip {own}
    unicast_peer {{
        {peer}
    }}
    virtual_ipaddress {{
        {address}/24 dev lan
    }}
}}
"""
# What it answers is another thing on each host and at each time
ORDER = """#!/bin/sh
read -r form
number=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
echo "order $number: $form" >>/srv/shop/www/orders
sleep 2
printf 'Content-Type: text/plain\\r\\n\\r\\norder %s accepted by host %s: %s\\n' "$number" "$(cat /run/name)" "$form"
"""

failures: list[str] = []


def say(text: str = "") -> None:
    print(text, flush=True)


def check(good: bool, what: str) -> str:
    if not good:
        failures.append(what)
    return what if good else f"{what}: WRONG"


def serve(host: Host, takeover: bool) -> None:
    """Apache, with the same files on both hosts."""
    modules = "".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so\n" for name in NAMES)
    if takeover:
        modules += f"LoadModule takeover_module {OURS}\n"
    host.run("mkdir -p /run/apache /srv/shop/www /srv/shop/cgi")
    host.put("/run/apache/httpd.conf", (APACHE.format(modules=modules) + TAKEOVER * takeover +
                                        "TypesConfig /etc/mime.types\n").encode())
    host.put("/srv/shop/www/film", FILE)
    host.put("/srv/shop/cgi/order", ORDER.encode())
    host.put("/run/name", host.name.encode())
    host.run("touch -d 2026-01-01 /srv/shop/www/film; : >/srv/shop/www/orders; chmod 755 /srv/shop/cgi/order; chown www-data /srv/shop/www/orders")
    host.spawn("exec apache2 -f /run/apache/httpd.conf -DFOREGROUND")
    wait("Apache listens", lambda: ":80 " in host.run("ss -tln"), 30)


def clients(client: Host, servers: list[Host]) -> tuple[Process, Process]:
    """A download and an order, both in the middle of it."""
    film = client.spawn(f"curl -sS --limit-rate 4M --max-time 40 -o /run/film http://{ADDRESS}/film && sha256sum </run/film")
    wait("the download is under way", lambda: int(client.run("stat -c %s /run/film 2>/dev/null || echo 0")) > 2_000_000)
    order = client.spawn(f"curl -sS --max-time 40 -d item=book http://{ADDRESS}/cgi-bin/order")
    wait("the order is being executed", lambda: any("book" in server.run("cat /srv/shop/www/orders") for server in servers))
    return film, order


def said(process: Process) -> str:
    wait("the client ends", lambda: process.status is not None, 60)
    text = process.text().strip()
    error = re.search(r"curl: .*", text)
    return error[0] if error else text


def today() -> None:
    say("(a) Today: keepalived moves the address to the other host")
    with Network("demo-takeover-today") as net:
        hosts = {name: net.host(name, {"lan": f"{LAN[name]}/24"}) for name in ("client", *HOSTS)}
        for name in HOSTS:
            serve(hosts[name].up(), False)
            hosts[name].put("/run/keepalived.conf", KEEPALIVED.format(
                priority=150 if name == "one" else 100, own=LAN[name], peer=LAN["two" if name == "one" else "one"], address=ADDRESS).encode())
            hosts[name].spawn("exec keepalived -n -f /run/keepalived.conf -p /run/ka.pid -r /run/ka-vrrp.pid")
        wait("the address is there", lambda: ADDRESS in hosts["one"].run("ip address show dev lan"))
        film, order = clients(hosts["client"], [hosts[name] for name in HOSTS])
        hosts["one"].kill()
        say("    host one, which has both connections, has just lost its power")
        text = said(film)
        say(f"    download  {check(text.startswith('curl'), text)}")
        text = said(order)
        say(f"    order     {check(text.startswith('curl'), text)}")
    say()


def ours(dies: str) -> None:
    say(f"({'b' if dies == 'one' else 'c'}) Perdure: the {'primary' if dies == 'one' else 'backup'} dies")
    with Network(f"demo-takeover-{dies}") as net:
        pair = pairs.Pair(net)
        for name in HOSTS:
            serve(pair.hosts[name], True)
        pair.watch()
        film, order = clients(pair.client, [pair.hosts[name] for name in HOSTS])
        pair.hosts[dies].kill()
        left = pair.hosts["two" if dies == "one" else "one"]
        say(f"    host {dies} has just lost its power; host {left.name} has both connections as well")
        text = said(film)
        whole = text.split()[0] == hashlib.sha256(FILE).hexdigest()
        say(f"    download  {check(whole, f'{SIZE:,} bytes, SHA-256 right' if whole else text)}")
        text = said(order)
        say(f"    order     {check('accepted' in text, text)}")
        verdict = [line for line in left.run("perdurectl log", check=False).splitlines() if "takeover" in line]
        for line in verdict[-1:]:
            say(f"    perdurectl log: {line.strip()}")
    say()


def main() -> int:
    for what in (OURS, MODULES / "mod_cgi.so"):
        if not what.exists():
            sys.exit(f"demo: {what} is missing: run ./build.sh setup (Apache with its headers), then ./build.sh demo takeover")
    pairs.TAKEOVER = pairs.TAKEOVER.replace("[host]\n", "[host]\ngroup = www-data\n")
    say("Takeover: two hosts, Apache on each, and a client that downloads a film and orders a book")
    say()
    today()
    ours("one")
    ours("two")
    say("Nothing of the client is ours: curl, over a network." if not failures else f"{len(failures)} of these are not as they should be")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
