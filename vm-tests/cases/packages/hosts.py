#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Two hosts of a service from nothing: fresh systems, and what docs/takeover.md says, word for word. Then one of them dies."""

import contextlib
import hashlib
import os
import random
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from packages import DEBS, TOP, VERSION, WORK, System, equal, main

sys.path.insert(0, str(TOP / "vm-tests/lib"))
from guests import wait  # noqa: E402
from net import Host, Network  # noqa: E402

MANUAL = (TOP / "docs/takeover.md").read_text()
ADDRESS, CLIENT = "192.0.2.10", "192.0.2.1"
LAN = {"one": "192.0.2.2", "two": "192.0.2.3"}
LINK = {"one": "10.0.0.1", "two": "10.0.0.2"}
FILM = random.Random(1).randbytes(24_000_000)       # more than a client's kernel takes in ahead
BOOT_S = 600        # emulated machines, three at once
# What the manual takes for granted: a network; and a site. The last part tells the test what the host would tell its owner
NETWORK = """#!/bin/sh
ip link set eth0 up; ip address add {lan}/24 dev eth0
ip link set eth1 up; ip address add {link}/24 dev eth1
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0
"""
ORDER = """#!/bin/sh
read -r form
number=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
echo "order $number: $form" >>/srv/orders
sleep 20
printf 'Content-Type: text/plain\\r\\n\\r\\norder %s accepted: %s\\n' "$number" "$form"
"""
WATCH = """#!/bin/sh
said=$(takeoverd --check 2>&1)
echo "PERDURE: check: $? $said"
while sleep 2; do
    echo "PERDURE: status $(takeoverctl status --json | tr -d '\\n')"
    sed 's/^/PERDURE: /' /srv/orders
done
"""
UNITS = {"network": (NETWORK, "Before=network.target\nDefaultDependencies=no\nAfter=systemd-sysctl.service\n", "Type=oneshot\nRemainAfterExit=yes"),
         "watch": (WATCH, "After=takeoverd.service keepalived.service\n", "StandardOutput=tty\nStandardError=tty\nTTYPath=/dev/console")}


def block(after: str) -> str:
    """What the manual has indented behind these words."""
    at = MANUAL.index(after, MANUAL.index("## Two hosts from nothing"))
    found = re.search(r"\n\n((?:(?: {4,}.*)?\n)+)", MANUAL[at:])
    assert found
    return textwrap.dedent(found[1]).strip("\n") + "\n"


def once(pattern: str, new: str, text: str) -> str:
    text, n = re.subn(pattern, new, text, flags=re.M)
    equal((pattern, n), (pattern, 1))
    return text


def install() -> None:
    """The packages, the key, the files and the units of the manual"""
    # This kernel's name has that of its profile in it
    apt = block("**The packages**").replace(f"perdure-{VERSION}_", f"perdure-{VERSION}*_")
    equal(len(system.copy("N", *DEBS)), len(DEBS))
    (system.root / "etc/apt/apt.conf.d/90test").write_text('APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\n')
    system.inside("sh", "-ec", f"cd /packages; {apt}")
    key, = re.findall(r"`(takeoverctl key \S+)`", MANUAL)
    copies = block("It needs an instance for each direction")
    enable, status = block("**The server**").splitlines()
    equal(status, "takeoverctl status")
    system.inside("sh", "-ec", f"{key}\n{copies}\n{enable.replace(' --now', '')}")
    root = system.root
    for name, text, mode in (("etc/apache2/conf-enabled/site.conf", block("**Apache** has `mod_takeover`"), 0o644),
                             ("usr/lib/cgi-bin/order", ORDER, 0o755), ("srv/orders", "", 0o666)):
        (root / name).write_text(text)
        (root / name).chmod(mode)
    (root / "var/www/html/film").write_bytes(FILM)
    os.utime(root / "var/www/html/film", (1.7e9, 1.7e9))
    system.inside("a2enmod", "-q", "cgid")
    for unit, (script, order, kind) in UNITS.items():
        (root / f"etc/systemd/system/{unit}.service").write_text(
            f"[Unit]\n{order}[Service]\nExecStart=/bin/sh /srv/{unit}\n{kind}\n[Install]\nWantedBy=multi-user.target\n")
        system.inside("systemctl", "enable", f"{unit}.service")
    system.inside("systemctl", "disable", "perdure-check.service")


def write(name: str) -> Path:
    """A host's disk: what differs between the two, as the manual says it does."""
    root, image = system.root, WORK / f"{name}.img"
    other, = set(LAN) - {name}
    conf = block("**`/etc/perdure/takeover.conf`**")
    if name == "two":
        for key, value in {"role": "backup", "peer": LAN[other], "peer_log": f"{LINK[other]}:7550"}.items():
            assert f"`{key} = {value}`" in MANUAL.replace("\n   ", " "), key
            conf = once(rf"^{key} = .*", f"{key} = {value}", conf)
    # Three emulated machines on two processors are slow
    (root / "etc/perdure/takeover.conf").write_text(once("^group = .*", r"\g<0>\narbitrate = 5s", conf))
    number = {"one": 2, "two": 3}
    keepalived = (root / "etc/keepalived/keepalived.conf").read_text()
    for key, what in {"OWN": LAN[name], "PEER": LAN[other], "OWN_ID": number[name], "PEER_ID": number[other], "INTERVAL": 0.5,
                      "OWN_MARK": f"127.0.0.{number[name]}", "PEER_MARK": f"127.0.0.{number[other]}"}.items():
        keepalived = once(rf"^\${key}=.*", f"${key}={what}", keepalived)
    (root / "etc/keepalived/keepalived.conf").write_text(keepalived)
    script = root / "etc/keepalived/takeover.sh"
    script.write_text(once("^GATEWAY=.*", f"GATEWAY={CLIENT}", script.read_text()))
    for unit, (text, _, _) in UNITS.items():
        (root / f"srv/{unit}").write_text(text.replace("{lan}", LAN[name]).replace("{link}", LINK[name]))
    (root / "etc/hostname").write_text(f"{name}\n")
    system.write(image)
    return image


class Machine:
    def __init__(self, name: str) -> None:
        self.name, self.console = name, WORK / f"console-hosts-{name}.log"
        self.console.unlink(missing_ok=True)
        number, release = list(LAN).index(name) + 2, system.ours()[0]
        cables = [word for i, network in enumerate(("lan", "link")) for word in (
            "-netdev", f"stream,id={network},server=off,addr.type=unix,addr.path={net.port(network, name)}",
            "-device", f"virtio-net-pci,netdev={network},mac=52:54:00:00:1{i}:0{number},romfile=")]
        argv = system.machine(write(name), self.console, system.root / "boot" / f"vmlinuz-{release}", system.initramfs(release), *cables,
                              memory="700M")
        self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *argv])
        stack.callback(self.end)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        assert self.process.poll() is None, f"{self.name} has ended: {text[-2000:]}"
        return text

    def status(self, key: str = "state") -> str:
        found = re.findall(rf'PERDURE: status .*"name": ?"web".*?"{key}": ?"(\w+)"', self.said())
        return found[-1] if found else "silent"


def protected() -> None:
    """Both boot into the installed kernel, and takeoverctl status says protected on both"""
    global one, two, client
    client = net.host("client", {"lan": f"{CLIENT}/24"})
    one, two = Machine("one"), Machine("two")
    client.up()
    wait("both are protected", lambda: one.status() == two.status() == "protected", BOOT_S)
    for host in (one, two):
        equal(re.findall(r"PERDURE: check: (\d+) .*?\r?$", host.said(), re.M), ["0"])


def dies() -> None:
    """The primary dies: a download and an order, in the midst of which that is, are whole, and the order is executed once more at most"""
    url = f"http://{ADDRESS}"
    film = client.spawn(f"curl -sS --limit-rate 500k --max-time 300 -o /run/film {url}/film && sha256sum </run/film")
    wait("the download is under way", lambda: int(client.run("stat -c %s /run/film 2>/dev/null || echo 0")) > 2_000_000, 120)
    order = client.spawn(f"curl -sS --max-time 300 -d item=book {url}/cgi-bin/order")
    wait("the order is being executed", lambda: "item=book" in one.said() + two.said(), 60)
    # Which of them began first has had the service alone for a moment
    primary, backup = (one, two) if one.status("role") == "primary" else (two, one)
    equal((primary.status("role"), backup.status("role")), ("primary", "backup"))
    assert "PERDURE: order" in primary.said() and "PERDURE: order" not in backup.said(), "both have executed it, or the backup"
    assert film.status is None and order.status is None, "an answer is over before anything happens"
    primary.process.kill()
    wait("the other one goes on alone", lambda: backup.status() == "alone", 120)
    wait("both have their answers", lambda: film.status is not None and order.status is not None, 300)
    equal(film.text().split()[0], hashlib.sha256(FILM).hexdigest())
    number, = re.findall(r"^order (\d+) accepted: item=book$", order.text(), re.M)
    equal(set(re.findall(r"PERDURE: order (\d+)", backup.said())), {number})
    # New clients, too
    equal(client.run(f"curl -sS --max-time 60 {url}/film | sha256sum").split()[0], hashlib.sha256(FILM).hexdigest())


assert os.getuid() == 0, "needs root: it makes file systems and installs packages into them"
one: Machine
two: Machine
client: Host
system = System("bookworm", "keepalived", "curl", "iputils-ping")
try:
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(Network("packages-hosts"))
        main(install, protected, dies)
finally:
    system.close()
    for name in LAN:
        (WORK / f"{name}.img").unlink(missing_ok=True)
