#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Pacemaker instead of keepalived: hosts die and come back, lose their clients' network, and the roles are changed for maintenance, while
clients read. With "fence": a host hangs or is cut off, and is fenced.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from pair import EXAMPLES, HERE, OTHER, SEED, TOP, WEB, Network, Pair, Process, equal, main, wait

AGENT = TOP / "userspace/takeover/pacemaker/takeover"
COMMANDS = {"corosync": "exec corosync -f", "pacemaker": "exec env PCMK_logfile=/run/pacemaker.log pacemakerd"}
AUTHKEY = os.urandom(256)
# Of the example, the boards that can cut a host's power
BOARDS = {"10.0.1.1": "one", "10.0.1.2": "two"}
PASSWORD = os.urandom(8).hex()
HOLD_S = 4      # so long a fence takes, for whoever does not wait for it
subprocess.run([TOP / "scripts/setup.sh", "pacemaker"], check=True, stdout=subprocess.DEVNULL)


class Cluster(Pair):
    """Nobody fences here: a host that is killed is dead, and takeoverd's epochs do the rest."""

    seconds = 150       # agents are slow in a machine that is emulated, and TCP's pauses double

    def example(self) -> str:
        text = (EXAMPLES / "pacemaker.crm").read_text()
        equal(text.count("=eth0"), 2)
        return text.replace("=eth0", "=lan")

    def configuration(self) -> str:
        text = self.example()
        return text[:text.index("# A real one")] + "property stonith-enabled=false\n"

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
        self.hosts["one"].put("/run/pacemaker.crm", self.configuration().encode())
        self.hosts["one"].run("crm configure load update /run/pacemaker.crm", timeout=120)
        self.begin_traffic(180)

    def log(self) -> str:
        return super().log() + "".join(f"\n--- {name}\n" + host.run("crm_mon -1rfA; tail -60 /run/pacemaker.log", check=False)
                                       for name, host in self.hosts.items() if name in OTHER and not host.dead and not host.stopped)


class Fenced(Cluster):
    """The example with its fences as they are. fence.sh is their agent: it asks the test, which kills the other virtual machine."""

    def __init__(self, net: Network) -> None:
        self.asked: list[tuple[str, str]] = []      # who, and whom to kill
        self.errors: list[str] = []
        self.lock = threading.Lock()
        # Whom it may hit, whether the boards do what they are told, and how often they did
        self.target, self.obey, self.killed, self.over = "", True, 0, False
        super().__init__(net, WEB, clients=(1, 2, 1), memory="512M")
        # A primary must not go on by itself before the other host has been fenced
        self.patience = "60s"

    def configuration(self) -> str:
        # So long that it shows who waits, as slow as the hosts are
        return self.example().replace("priority-fencing-delay=5s", "priority-fencing-delay=15s")

    def begin(self, name: str) -> None:
        host = self.hosts[name].up()
        host.run(f"mkdir -p /run/fence /etc/perdure; mkfifo /run/fence/requests; ln -sf {HERE / 'fence.sh'} /usr/sbin/fence_ipmilan; "
                 f"printf '#!/bin/sh\\necho {PASSWORD}\\n' >/etc/perdure/ipmi; chmod 700 /etc/perdure/ipmi")
        requests = host.spawn("exec cat <>/run/fence/requests")
        threading.Thread(target=self.listen, args=(name, requests), daemon=True).start()
        super().begin(name)

    # ---- The boards

    def listen(self, name: str, requests: Process) -> None:
        done = 0
        while not self.over and not requests.guest.result:
            lines = requests.text().split("\n")[:-1]
            for line in lines[done:]:
                try:
                    where, *request = line.split()
                    status = self.board(name, *request)
                    # One that was killed meanwhile does not hear it
                    if not self.over and not self.hosts[name].dead and not requests.guest.result:
                        self.hosts[name].put(where, f"{status}\n".encode())
                except Exception as error:
                    self.errors.append(f"{name}: {line}: {error}")
            done = len(lines)
            time.sleep(0.1)

    def board(self, name: str, action: str, address: str, user: str, password: str) -> int:
        """The agent's exit status."""
        equal((user, password), ("fence", PASSWORD))
        other = BOARDS[address]
        if action in ("monitor", "status"):
            return 2 if self.hosts[other].dead and action == "status" else 0
        assert action in ("off", "reboot"), "is not what a fence is for"
        with self.lock:
            if self.over or self.hosts[name].dead:
                return 1
            self.asked.append((name, other))
            assert other == self.target, "is not to be fenced"
            self.hold(name)
            if not self.obey:
                return 1
            if not self.hosts[other].dead:
                self.hosts[other].kill()
                # The survivor has been mute until now, and Pair.judge() looks
                self.phases[-1].end, self.phases[-1].survivor = time.monotonic_ns(), name
                self.killed += 1
            return 0

    def hold(self, name: str) -> None:
        """A fence takes its time, and the host that wants it is not promoted meanwhile."""
        end = time.monotonic() + HOLD_S
        while time.monotonic() < end:
            self.unpromoted(name)
            time.sleep(0.5)

    def unpromoted(self, name: str) -> None:
        now, before = self.status(name)["web"], self.found[name]["web"]
        for key in ("state", "role", "epoch"):
            assert now[key] == before[key], f"{name} has been promoted before the fence: {now}"

    # ---- What is done

    def watch(self) -> None:
        super().watch()
        wait("the fences are there", lambda: self.hosts["one"].run("crm_mon -1 2>&1").count("(stonith:fence_ipmilan):\t Started") == 2, 60)

    def end_phase(self, survivor: str) -> None:
        """It ends with the fence."""

    def fence(self, what: str, name: str, do: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> None:
        """Something happens to this host, which is fenced for it."""
        asked, killed = len(self.asked), self.killed
        self.target = name

        def fenced() -> None:
            meanwhile()
            wait(f"{name} is fenced", lambda: self.killed > killed or bool(self.errors), 60)

        self.strike(what, do, OTHER[name], fenced)
        print(f"# {what}: asked {self.asked[asked:]}", flush=True)
        equal((self.errors, self.killed, self.hosts[name].dead), ([], killed + 1, True))
        self.target = ""
        self.net.mend("lan", name)
        self.net.mend("link", name)
        self.boot(name)
        self.settle(180)


def agent() -> None:
    """Pacemaker's own test of agents has nothing to say"""
    with Network("takeover-ocf", SEED) as net:
        pair = Cluster(net, WEB, managed=True, memory="512M")
        pair.online()
        said = pair.hosts["one"].run(f"ocf-tester -v -n web -o service=web {AGENT} 2>&1", check=False, timeout=300)
        assert f"{AGENT} passed all tests" in said, said
        # A stop that fails would have the host fenced
        ocf = f"OCF_ROOT=/usr/lib/ocf OCF_RESOURCE_INSTANCE=web OCF_RESKEY_service=web {AGENT}"
        pair.hosts["one"].run(f"{ocf} start")
        pair.daemons["one"]["takeoverd"].signal(signal.SIGKILL)
        pair.daemons["one"]["takeoverd"].wait()
        stop = pair.hosts["one"].spawn(f"{ocf} stop")
        time.sleep(2)
        pair.spawn("one", "takeoverd")
        equal((stop.wait(), stop.text() if stop.status else ""), (0, ""))
        for service, status in ("other", 6), ("../web", 6), ("", 6):
            pair.hosts["one"].run(f"OCF_ROOT=/usr/lib/ocf OCF_RESKEY_service={service} {AGENT} validate-all; [ $? = {status} ]")


def cluster() -> None:
    """Either host dies under Pacemaker and comes back, or loses the clients' network alone; the roles are changed by hand"""
    with Network("takeover-pacemaker", SEED) as net:
        pair = Cluster(net, WEB, clients=(1, 2, 1), memory="512M")
        try:
            pair.watch()

            def there(host: str) -> None:
                """What clients ask for when the address is there, they get: all that was before may be from before the move."""
                wait("the address is there", lambda: f" {WEB.address}/" in pair.hosts[host].run("ip address show dev lan"), 60)
                for traffic in pair.traffic:
                    traffic.goes_on(traffic.answers())

            def alone(host: str) -> None:
                wait("it goes on alone", lambda: pair.status(host)["web"]["state"] == "alone", pair.seconds)
                there(host)

            for role in ("backup", "primary"):
                name = pair.backup() if role == "backup" else OTHER[pair.backup()]
                pair.strike(f"{name}, the {role}, is killed", pair.hosts[name].kill, OTHER[name])
                pair.boot(name)
                pair.settle(180)
            for role in ("backup", "primary"):
                name = pair.backup() if role == "backup" else OTHER[pair.backup()]
                pair.strike(f"{name}, the {role}, loses its cable to the clients", lambda: net.cut("lan", name), OTHER[name], lambda: alone(OTHER[name]))
                # corosync has noticed nothing
                assert all(f" {host} " in pair.hosts["one"].run("crm_mon -1 2>&1 | grep Online:") for host in OTHER)
                net.mend("lan", name)
                pair.settle(180)

            def both() -> None:
                """Neither host is better than the other one, however long it lasts."""
                for name in OTHER:
                    net.cut("lan", name)
                for name in OTHER:
                    wait("its network is gone", lambda name=name: 'value="0"' in pair.hosts[name].run(
                        f"attrd_updater -Q -n clients-network -N {name}", check=False), 60)
                time.sleep(10)
                for name in OTHER:
                    net.mend("lan", name)

            pair.strike("the switch is off for a while", both)
            pair.settle(180)
            name = OTHER[pair.backup()]
            pair.strike(f"the address moves to {name}", lambda: pair.hosts[name].run(
                f"crm_resource --resource web-hosts --move --promoted --node {name}"), name, lambda: there(name))
            pair.settle(180)
            assert pair.backup() == name
            pair.hosts[name].run("crm_resource --resource web-hosts --clear")
            pair.settle(180)
            pair.last_phase()
            pair.judge(again=True)
        except BaseException:
            print("# " + pair.log().replace("\n", "\n# "))
            raise


def fenced() -> None:
    """A host that hangs or is cut off is fenced, and nobody is promoted before that"""
    with Network("takeover-fence", SEED) as net:
        pair = Fenced(net)
        try:
            pair.watch()
            name = OTHER[pair.backup()]
            pair.fence(f"{name}, the primary, hangs", name, pair.hosts[name].stop)

            name = OTHER[pair.backup()]

            def cut() -> None:
                # The boards have a network of their own. The other host is the promoted one, and comes first
                pair.net.cut("link", name)
                pair.net.cut("lan", name)

            pair.fence(f"{name}, the primary, is cut off", name, cut)

            name = OTHER[pair.backup()]

            def refused() -> None:
                wait("fences fail", lambda: pair.asked.count((OTHER[name], name)) >= asked + 1, 60)
                before = [t.answers() for t in pair.traffic]
                wait("fences fail", lambda: pair.asked.count((OTHER[name], name)) >= asked + 3, 60)
                pair.unpromoted(OTHER[name])
                equal([t.answers() for t in pair.traffic], before)
                pair.obey = True

            pair.obey = False
            asked = pair.asked.count((OTHER[name], name))
            pair.fence(f"{name}, the primary, hangs, and its fence fails at first", name, pair.hosts[name].stop, refused)
            pair.judge()
            pair.over = True
        except BaseException:
            pair.over = True
            print("# " + "\n".join([f"asked {pair.asked}", *pair.errors, pair.log()]).replace("\n", "\n# "))
            raise


main(*((fenced,) if sys.argv[1:] == ["fence"] else (agent, cluster)))
