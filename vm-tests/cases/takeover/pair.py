# SPDX-License-Identifier: GPL-2.0-or-later
"""
Two hosts of a service, virtual machines with takeoverd and keepalived, and a client. "one" is the primary at first, "two" has the
address. They have a network to the client and one to each other, and watch each other on both.
"""

import os
import random
import struct
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "harness"))
from points import equal, main, run  # noqa: E402,F401
from guests import wait  # noqa: E402
from net import Frame, Host, Network, Process  # noqa: E402

ADDRESS = "192.0.2.10"
PORT = 80
KEY = "000102030405060708090a0b0c0d0e0f"
LAN = {"client": "192.0.2.1", "one": "192.0.2.2", "two": "192.0.2.3"}
LINK = {"one": "10.0.0.1", "two": "10.0.0.2"}
MARKS = {"lan": "192.0.2.11", "link": "10.0.0.11"}
OTHER = {"one": "two", "two": "one"}
SEED = int(os.environ.get("PERDURE_SEED") or random.SystemRandom().randrange(1 << 32))
draw = random.Random(SEED)

TAKEOVER = """
[host]
name = {name}
log_listen = {link}:7550
metrics = 127.0.0.1:9750
[service web]
address = {address}
port = {port}
role = {role}
peer = {peer}
peer_log = {peer}:7550
interface = lan
key_file = /run/web.key
patience = 1s
"""
# One instance for each way in which a host can be missed. Who becomes the master of one that is not its own goes on alone, and
# protects again when the owner is back.
KEEPALIVED = """
global_defs {{
    vrrp_version 3
    vrrp_startup_delay 2
    script_user root
    enable_script_security
}}
"""
INSTANCE = """
vrrp_instance {name} {{
    state BACKUP
    interface {interface}
    virtual_router_id {id}
    priority {priority}
    advert_int 0.1
    unicast_src_ip {own}
    unicast_peer {{
        {peer}
    }}
    {address}
    {notify}
}}
"""


class Pair:
    def __init__(self, net: Network) -> None:
        self.net = net
        self.hosts: dict[str, Host] = {}
        for name in ("client", "one", "two"):
            nics = {"lan": f"{LAN[name]}/24"} | ({"link": f"{LINK[name]}/24"} if name in LINK else {})
            self.hosts[name] = net.host(name, nics)
        self.client = self.hosts["client"]
        self.watchers: dict[str, list[Process]] = {}
        for name in OTHER:
            self.begin(name)

    def begin(self, name: str) -> None:
        """After its boot."""
        host = self.hosts[name].up()
        role = "primary" if name == "one" else "backup"
        host.put("/run/web.key", KEY.encode() + b"\n")
        host.run("chmod 600 /run/web.key; mkdir -p /run/takeover")
        host.put("/run/takeover.conf", TAKEOVER.format(name=name, link=LINK[name], peer=LINK[OTHER[name]], address=ADDRESS, port=PORT,
                                                       role=role).encode())
        host.put("/run/keepalived.conf", self.keepalived(name).encode())
        host.run("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.lan.rp_filter=0 net.ipv4.conf.link.rp_filter=0")
        daemon = host.spawn("exec takeoverd --config /run/takeover.conf")
        self.watchers[name] = [daemon]
        wait("takeoverd answers", lambda: host.run("takeoverctl status", check=False).startswith("SERVICE"), 20)

    def keepalived(self, name: str) -> str:
        text = KEEPALIVED.format()
        own = {"address": "two", "primary": "one", "primary_link": "one"}
        for number, (what, owner) in enumerate(own.items(), 1):
            interface, places = ("link", LINK) if what.endswith("link") else ("lan", LAN)
            text += INSTANCE.format(
                name=what, interface=interface, id=number, priority=150 if name == owner else 100, own=places[name],
                peer=places[OTHER[name]],
                # keepalived wants one of each
                address=f"virtual_ipaddress {{\n        {ADDRESS if what == 'address' else MARKS[interface]}/24 dev {interface}\n    }}",
                notify="" if name == owner else 'notify_master "takeoverctl promote web"\n    notify_backup "takeoverctl protect web"')
        return text

    def watch(self) -> None:
        """Begins to."""
        for name in OTHER:
            self.watchers[name].append(self.hosts[name].spawn("exec keepalived -n -l -D -f /run/keepalived.conf -p /run/ka.pid -r /run/ka-vrrp.pid"))
        wait("the address is there", lambda: ADDRESS in self.hosts["two"].run("ip address show dev lan"))
        wait("protected", lambda: all(" protected " in self.status(name) for name in OTHER))

    def status(self, name: str) -> str:
        return self.hosts[name].run("takeoverctl status", check=False)

    def kernel(self, name: str) -> dict[str, str]:
        """The service's line of /proc/net/tcp_replica."""
        for line in self.hosts[name].run("cat /proc/net/tcp_replica").splitlines():
            if line.startswith("service "):
                return dict(pair.split("=", 1) for pair in line.split()[1:])
        return {}

    def said(self, name: str) -> str:
        return "\n".join(process.text() for process in self.watchers[name])
