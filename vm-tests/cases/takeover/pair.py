# SPDX-License-Identifier: GPL-2.0-or-later
"""
Two hosts of services, virtual machines with takeoverd, keepalived and a server each, and a client that reads. They have a network to
the client and one to each other. keepalived's configuration is the example that is installed.
"""

import contextlib
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "harness"))
from points import TOP, equal, main, run  # noqa: E402,F401
from guests import wait  # noqa: E402
from net import Host, Network, Process  # noqa: E402
from replica import Judge, Phase  # noqa: E402

KEY = "000102030405060708090a0b0c0d0e0f"
LAN = {"client": "192.0.2.1", "one": "192.0.2.2", "two": "192.0.2.3"}
LAN6 = {name: f"2001:db8::{i}" for i, name in enumerate(LAN, 1)}
LINK = {"one": "10.0.0.1", "two": "10.0.0.2"}
OTHER = {"one": "two", "two": "one"}
MARK = {"one": "127.0.0.2", "two": "127.0.0.3"}      # at the host itself while it lives, at the other one when it is dead
SEED = int(os.environ.get("PERDURE_SEED") or random.SystemRandom().randrange(1 << 32))
draw = random.Random(SEED)
# A machine that emulates several others is slow now and then: 2 s without a word are a death here
INTERVAL, ARBITRATE = "0.5", "1s"

TAKEOVER = """
[host]
name = {name}
log_listen = 0.0.0.0:7550
arbitrate = {arbitrate}
"""
TAKEOVER_SERVICE = """
[service {service.name}]
address = {service.address}
port = {service.port}
role = {role}
peer = {peer}
peer_log = {peer_log}:7550
interface = lan
key_file = /run/web.key
patience = {patience}
"""
# A server of ours answers it, and so does Apache, though it does not like it
CHECK = """
exec 3<>/dev/tcp/127.0.0.1/80 && echo 0 1 >&3 && [ "$(timeout 4 head -c 1 <&3 | wc -c)" = 1 ]
"""


class Service:
    def __init__(self, name: str, address: str, port: int = 80, backup: str = "two", log: dict[str, str] = LINK) -> None:
        self.name, self.address, self.port, self.backup, self.log = name, address, port, backup, log

    @property
    def v6(self) -> bool:
        return ":" in self.address


WEB = Service("web", "192.0.2.10")
ADDRESS = WEB.address
EXAMPLES = TOP / "userspace/takeover/examples"


class Traffic:
    """Clients that read for ever: traffic.py."""

    def __init__(self, host: Host, service: Service, seconds: int, long: int, short: int, idle: int) -> None:
        self.steady, self.clients, self.seconds = long + short, long + short + idle, seconds
        self.process = host.spawn([sys.executable, str(HERE / "traffic.py"), "read", service.address, str(service.port),
                                   *map(str, (seconds, long, short, idle))])

    def lines(self, word: str) -> list[list[str]]:
        text = self.process.text()
        errors = [line for line in text.splitlines() if line.startswith(("error", "Traceback"))]
        assert not errors and self.process.status is None, f"a client has failed: {errors[:5]} {text[-2000:] if not errors else ''}"
        return [line.split()[1:] for line in text[:text.rfind("\n") + 1].splitlines() if line.startswith(word + " ")]

    def answers(self) -> list[int]:
        said = self.lines("answers")
        return [int(n) for n in said[-1]] if said else [0] * self.clients

    def goes_on(self, before: list[int]) -> None:
        """Each client has had an answer that it asked for since."""
        def done() -> bool:
            now = self.answers()
            return len(now) == self.clients and all(n >= old + (2 if i < self.steady else 1) for i, (n, old) in enumerate(zip(now, before)))

        wait("each client reads on", done, 1.5 * self.seconds)

    def pauses(self) -> list[int]:
        return [int(ms) for ms, in self.lines("pause")]


class Pair:
    """
    With `clients`, how many of each kind, the servers are ours, and they read. `managed`: without keepalived, so that nobody is promoted;
    takeoverd moves the addresses. `checked`: keepalived asks the servers, which are slow when there are many clients. `hosts`:
    what else is to be said of the two.
    """

    seconds = 60        # a client waits for no answer longer than that

    def __init__(self, net: Network, *services: Service, clients: tuple[int, int, int] | None = None, patience: str = "2s",
                 managed: bool = False, checked: bool = False, **hosts: Any) -> None:
        self.net, self.services, self.clients = net, services or (WEB,), clients
        # What is judged must not go on alone because the machine is busy
        self.patience = "10s" if clients else patience
        self.managed, self.checked = managed, checked
        self.phases: list[Phase] = []
        self.found: dict[str, dict[str, dict[str, Any]]] = {}
        self.traffic: list[Traffic] = []
        self.said: dict[str, list[Process]] = {"one": [], "two": []}
        self.daemons: dict[str, dict[str, Process]] = {"one": {}, "two": {}}
        self.hosts = {name: net.host(name, {"lan": f"{LAN[name]}/24 {LAN6[name]}/64"}
                                     | ({"link": f"{LINK[name]}/24"} if name in LINK else {}), **(hosts if name in LINK else {}))
                      for name in LAN}
        self.client = self.hosts["client"]
        for name in OTHER:
            self.begin(name)

    def watch(self) -> None:
        """Begins to."""
        for name in () if self.managed else OTHER:
            self.spawn(name, "keepalived")
        self.begin_traffic()

    def begin_traffic(self, limit: float = 90) -> None:
        self.settle(limit)
        if self.clients:
            self.traffic = [Traffic(self.client, service, self.seconds, *self.clients) for service in self.services]
        for traffic in self.traffic:
            traffic.goes_on([0] * traffic.clients)

    # ---- A host

    def begin(self, name: str) -> None:
        """After its boot."""
        host = self.hosts[name].up()
        other = OTHER[name]
        conf = TAKEOVER.format(name=name, arbitrate=ARBITRATE) + "".join(TAKEOVER_SERVICE.format(
            service=s, role="backup" if s.backup == name else "primary", peer=(LAN6 if s.v6 else LAN)[other], peer_log=s.log[other],
            patience=self.patience) + "manage_address = yes\n" * self.managed for s in self.services)
        host.put("/run/takeover.conf", conf.encode())
        host.put("/run/keepalived.conf", self.keepalived(name).encode())
        host.put("/run/check", CHECK.encode())
        host.run(f"mkdir -p /run/takeover; (umask 077; echo {KEY} >/run/web.key); "
                 "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.lan.rp_filter=0 net.ipv4.conf.link.rp_filter=0")
        if self.clients:
            self.spawn(name, "server").says("listens")
        self.spawn(name, "takeoverd")
        wait("takeoverd answers", lambda: "services" in host.run("takeoverctl status --json", check=False), 20)

    def spawn(self, name: str, what: str) -> Process:
        ports = sorted({s.port for s in self.services})
        process = self.daemons[name][what] = self.hosts[name].spawn({
            "takeoverd": "exec takeoverd --config /run/takeover.conf",
            "keepalived": "exec keepalived -n -l -D -f /run/keepalived.conf -p /run/ka.pid -r /run/ka-vrrp.pid",
            "server": f"exec {sys.executable} {HERE / 'traffic.py'} serve {' '.join(map(str, ports))}"}[what])
        self.said[name].append(process)
        return process

    def keepalived(self, name: str) -> str:
        """The example, with our values, and with the part that is a service's for each."""
        text = (EXAMPLES / "keepalived.conf").read_text().replace("eth0", "lan").replace("/etc/keepalived", str(EXAMPLES))
        check = "/bin/bash /run/check" if self.checked else "/bin/true"
        text = re.sub(r'script ".*curl .*"', f'script "{check}"', text).replace("timeout 3", "timeout 5")
        first = name == "one"
        for key, value in {"OWN": LAN[name], "PEER": LAN[OTHER[name]], "OWN_ID": 3 - first, "PEER_ID": 2 + first, "INTERVAL": INTERVAL,
                           "OWN_MARK": MARK[name], "PEER_MARK": MARK[OTHER[name]]}.items():
            text = re.sub(rf"^\${key}=.*$", f"${key}={value}", text, flags=re.MULTILINE)
        start, end = text.index("# Where the address"), text.index("# What this host says")
        part, parts = text[start:end], ""
        for number, s in enumerate(self.services):
            # An instance of IPv4 can have other addresses beside its own
            address = f"127.0.0.{100 + number} dev lo\n    }}\n    virtual_ipaddress_excluded {{\n        {s.address}/128" if s.v6 \
                else f"{s.address}/32"
            parts += part.replace("192.0.2.10/32", address).replace("web", s.name).replace("instance address", f"instance {s.name}") \
                .replace("router_id 1", f"router_id {10 + number}")
        return text[:start] + parts + text[end:]

    def boot(self, name: str) -> None:
        self.hosts[name].start()
        self.begin(name)
        self.spawn(name, "keepalived")

    # ---- What they say

    def status(self, name: str) -> dict[str, dict[str, Any]]:
        said = self.hosts[name].run("takeoverctl status --json", check=False)
        with contextlib.suppress(json.JSONDecodeError):
            return {s["name"]: s for s in json.loads(said)["services"]}
        return {s.name: {"state": "silent", "role": "", "epoch": -1} for s in self.services}

    def count(self, name: str, key: str, service: str = "web") -> int:
        return int(self.status(name)[service]["kernel"].get(key, 0))

    def backup(self, service: Service = WEB) -> str:
        """Where the service's address is."""
        return next(name for name in OTHER if self.status(name)[service.name]["role"] == "backup")

    def settle(self, limit: float = 90) -> None:
        """Both have all services and all connections, and the addresses are the backups': a new phase."""
        def settled() -> bool:
            for name, daemons in self.daemons.items():
                assert all(d.status is None for d in daemons.values()), f"something has ended at {name}"
            there = {name: self.hosts[name].run("ip address show dev lan; ss -Htn state established", check=False) for name in OTHER}
            self.found = {name: self.status(name) for name in OTHER}
            return self.steady() and all(self.settled(s, there) for s in self.services)

        wait("both hosts have the services", settled, limit)
        # One that has not been used says nothing about what was meanwhile
        self.phases = [phase for phase in self.phases if phase.end != Phase.end]
        now = time.monotonic_ns()
        self.phases += [Phase((s.address, s.port), now, next(n for n in OTHER if self.found[n][s.name]["role"] == "primary"))
                        for s in self.services]

    def steady(self) -> bool:
        """keepalived may have thought one dead that had not begun yet, and its script may still be at it."""
        for name in () if self.managed else OTHER:
            text = self.hosts[name].run("ip address show dev lo to 127.0.0.0/24; flock -n /run/takeover/keepalived.lock echo steady", check=False)
            if "steady" not in text or f" {MARK[name]}/" not in text or f" {MARK[OTHER[name]]}/" in text:
                return False
        return True

    def settled(self, s: Service, there: dict[str, str]) -> bool:
        both = {name: self.found[name][s.name] for name in OTHER}
        if any(b["state"] != "protected" for b in both.values()) or {b["role"] for b in both.values()} != {"primary", "backup"}:
            return False
        end = f" [{s.address}]:{s.port} " if s.v6 else f" {s.address}:{s.port} "
        for name, b in both.items():
            # Neither busy ones that were alone are left, nor such as began while a host was
            if there[name].count(end) > b["kernel"]["now_primary"] + b["kernel"]["now_muted"]:
                return False
            if (f" {s.address}/" in there[name]) != (b["role"] == "backup"):
                return False
        return True

    # ---- What is done to them

    def strike(self, what: str, do: Callable[[], object], survivor: str = "", after: Callable[[], object] = lambda: None) -> None:
        """Something happens while both have the services; the clients read on."""
        # Connections are to begin while they are
        time.sleep(1 + draw.random())
        before = [t.answers() for t in self.traffic]
        pauses = [len(t.pauses()) for t in self.traffic]
        self.end_phase(survivor)
        do()
        after()
        for traffic, old in zip(self.traffic, before):
            traffic.goes_on(old)
        longest = max([ms for t, n in zip(self.traffic, pauses) for ms in t.pauses()[n:]], default=0)
        print(f"# {what}: the longest pause is {longest} ms", flush=True)

    def end_phase(self, survivor: str) -> None:
        """Something is done to the hosts now. It had no beginning either if one has given up in the meantime."""
        now = time.monotonic_ns()
        found = self.status("one")
        still = all(found[s.name]["epoch"] == self.found["one"][s.name]["epoch"] for s in self.services)
        for phase in self.phases[-len(self.services):]:
            phase.end, phase.survivor = now if still else 0, survivor

    def last_phase(self) -> None:
        """One at whose end nothing happens; each client asks in it."""
        self.settle()
        for traffic in self.traffic:
            traffic.goes_on(traffic.answers())
        self.end_phase("")

    def judge(self, ungated: Container[int] = (), again: bool = False) -> None:
        """
        `ungated`: the ports of clients that are answered as soon as one host can. `again`: some connections got copies
        again, and were used in the phase that followed.
        """
        phases = [phase for phase in self.phases if phase.end != Phase.end]
        judge = Judge(self.net.capture("lan"), [(s.address, s.port) for s in self.services], phases, ungated)
        since = sum(judge.again.values())
        print(f"# {judge.bytes} bytes compared, {judge.judged} segments judged, of {len(judge.flows)} connections "
              f"in {len(phases)} phases; {since} of {len(judge.again)} that had copies again", flush=True)
        assert judge.judged > since and (judge.again or not again)

    def log(self) -> str:
        return "\n".join(f"--- {name}: {process.what}: {process.status}\n{process.text()[-6000:]}"
                         for name in OTHER for process in self.said[name])

    def restart(self, name: str, what: str) -> None:
        """As systemd does, after it was killed."""
        self.daemons[name][what].signal(signal.SIGKILL)
        self.daemons[name][what].wait()
        time.sleep(0.5)
        self.spawn(name, what)
