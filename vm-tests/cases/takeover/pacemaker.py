#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Pacemaker instead of keepalived: hosts die and come back, and the roles are changed for maintenance, while clients read."""

import os
import re
import subprocess

from pair import EXAMPLES, OTHER, SEED, TOP, WEB, Network, Pair, Process, main, wait

AGENT = TOP / "userspace/takeover/pacemaker/takeover"
COMMANDS = {"corosync": "exec corosync -f", "pacemaker": "exec env PCMK_logfile=/run/pacemaker.log pacemakerd"}
AUTHKEY = os.urandom(256)
subprocess.run([TOP / "scripts/setup.sh", "pacemaker"], check=True, stdout=subprocess.DEVNULL)


class Cluster(Pair):
    """Nobody fences here: a host that is killed is dead, and takeoverd's epochs do the rest."""

    def begin(self, name: str) -> None:
        super().begin(name)
        host = self.hosts[name]
        # A machine that emulates several others is slow now and then
        conf = re.sub(r"token: \d+", "token: 3000", (EXAMPLES / "corosync.conf").read_text())
        host.put("/etc/corosync/corosync.conf", conf.encode())
        host.put("/etc/corosync/authkey", AUTHKEY)
        host.run(f"hostname {name}; mkdir -p /usr/lib/ocf/resource.d/perdure; ln -sf {AGENT} /usr/lib/ocf/resource.d/perdure/takeover")
        self.spawn(name, "corosync")
        wait("corosync runs", lambda: "Membership" in host.run("corosync-quorumtool 2>&1", check=False), 30)
        self.spawn(name, "pacemaker")

    def boot(self, name: str) -> None:
        self.hosts[name].start()
        self.begin(name)

    def steady(self) -> bool:
        """The cluster has nothing more to do."""
        return "S_IDLE" in self.hosts["one"].run("crmadmin -q -S $(crmadmin -q -D | sed 's/.*: //') 2>&1", check=False)

    def spawn(self, name: str, what: str) -> Process:
        if what not in COMMANDS:
            return super().spawn(name, what)
        process = self.daemons[name][what] = self.hosts[name].spawn(COMMANDS[what])
        self.said[name].append(process)
        return process

    def online(self) -> None:
        for name in OTHER:
            wait(f"{name} is in the cluster", lambda: f" {name} " in self.hosts["one"].run("crm_mon -1 2>&1 | grep Online:", check=False), 90)

    def watch(self) -> None:
        self.online()
        text = (EXAMPLES / "pacemaker.crm").read_text().replace("nic=eth0", "nic=lan")
        text = text[:text.index("# A real one")] + "property stonith-enabled=false\n"
        self.hosts["one"].put("/run/pacemaker.crm", text.encode())
        self.hosts["one"].run("crm configure load update /run/pacemaker.crm", timeout=120)
        self.begin_traffic()

    def log(self) -> str:
        return super().log() + "".join(f"\n--- {name}\n" + host.run("crm_mon -1rfA; tail -60 /run/pacemaker.log", check=False)
                                       for name, host in self.hosts.items() if name in OTHER and not host.dead)


def agent() -> None:
    """Pacemaker's own test of agents has nothing to say"""
    with Network("takeover-ocf", SEED) as net:
        pair = Cluster(net, WEB, managed=True, memory="512M")
        pair.online()
        said = pair.hosts["one"].run(f"ocf-tester -v -n web -o service=web {AGENT} 2>&1", check=False, timeout=300)
        assert f"{AGENT} passed all tests" in said, said
        for service, status in ("other", 6), ("../web", 6), ("", 6):
            pair.hosts["one"].run(f"OCF_ROOT=/usr/lib/ocf OCF_RESKEY_service={service} {AGENT} validate-all; [ $? = {status} ]")


def cluster() -> None:
    """Either host dies under Pacemaker and comes back; the roles are changed by hand"""
    with Network("takeover-pacemaker", SEED) as net:
        pair = Cluster(net, WEB, clients=(1, 2, 1), memory="512M")
        try:
            pair.watch()
            for role in ("backup", "primary"):
                name = pair.backup() if role == "backup" else OTHER[pair.backup()]
                pair.strike(f"{name}, the {role}, is killed", pair.hosts[name].kill, OTHER[name])
                pair.boot(name)
                pair.settle(180)
            name = OTHER[pair.backup()]

            def there() -> None:
                """What clients ask for when the address is there, they get: all that was before may be from before the move."""
                wait("the address is there", lambda: f" {WEB.address}/" in pair.hosts[name].run("ip address show dev lan"), 60)
                for traffic in pair.traffic:
                    traffic.goes_on(traffic.answers())

            pair.strike(f"the address moves to {name}", lambda: pair.hosts[name].run(
                f"crm_resource --resource web-hosts --move --promoted --node {name}"), name, there)
            pair.settle(180)
            assert pair.backup() == name
            pair.hosts[name].run("crm_resource --resource web-hosts --clear")
            pair.settle(180)
            pair.judge()
        except BaseException:
            print("# " + pair.log().replace("\n", "\n# "))
            raise


main(agent, cluster)
