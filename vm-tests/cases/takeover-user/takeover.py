# SPDX-License-Identifier: GPL-2.0-or-later
"""Two hosts with a takeoverd each, joined by two cables: namespaces of this machine, whose kernel is preloaded."""

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import BUILD, TOP, equal, main, run  # noqa: E402,F401

if "TAKEOVER_INSIDE" not in os.environ:
    os.environ["TAKEOVER_INSIDE"] = "1"
    os.execvp("unshare", ["unshare", "-Urnm", "--", sys.executable, *sys.argv])

MESON = BUILD / "userspace"
DAEMON = MESON / "userspace/takeover/takeoverd"
CTL = MESON / "userspace/takeover/takeoverctl"
CLIENT = MESON / "vm-tests/cases/takeover-user/takeover-client"
KERNEL = MESON / "vm-tests/cases/takeover-user/libtakeover-kernel.so"
OFF, PRIMARY, BACKUP, ALONE = range(4)
ADDRESS, PORT, LOG = "192.0.2.10", 80, 7550
WAIT_S = 20

run("mount", "-t", "tmpfs", "tmpfs", "/run")
PLACE = Path("/run")


def wait(what: str, done: Callable[[], object], limit: float = WAIT_S) -> None:
    end = time.monotonic() + limit
    while not done():
        assert time.monotonic() < end, f"{what}: not within {limit:g} seconds"
        time.sleep(0.02)


class Client:
    """A server's module at a host, which does what it is told; its connection is what the host's kernel says."""

    def __init__(self, host: "Host", role: int, id: int = 1, address: str = ADDRESS) -> None:
        host.clients += 1
        self.place = host.place / f"client-{host.clients}"
        self.place.mkdir()
        self.be(role, id)
        env = os.environ | {"LD_PRELOAD": str(KERNEL), "TAKEOVER_KERNEL": str(self.place), "TAKEOVER_SOCKET": str(host.socket)}
        self.process = subprocess.Popen(host.inside(CLIENT, address, PORT), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        atexit.register(self.process.kill)

    def be(self, role: int, id: int) -> None:
        new = self.place / "role.new"
        new.write_text(f"{role} {id}")
        new.rename(self.place / "role")

    def ops(self) -> list[str]:
        log = self.place / "log"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    def begin_do(self, *words: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def done(self) -> list[str]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the client has ended"
        return line.split()

    def do(self, *words: object) -> list[str]:
        self.begin_do(*words)
        return self.done()

    def reply(self, id: int, number: int, text: str, acknowledged: bool = True) -> None:
        for words in ("begin", id, number), ("text", 0, 0, text), ("end", int(acknowledged)):
            equal(self.do(*words)[0], "OK")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


running: list["Host"] = []


class Host:
    def __init__(self, name: str, number: int, role: str, options: str = "", service: str = "", key: str = "00112233445566778899aabbccddeeff") -> None:
        self.name, self.number, self.place, self.clients, self.said = name, number, PLACE / f"{name}-{time.monotonic_ns()}", 0, ""
        self.place.mkdir()
        self.socket, self.store, self.config, self.key = (self.place / n for n in ("takeoverd.sock", "store", "takeover.conf", "key"))
        self.key.write_text(key + "\n")
        self.key.chmod(0o600)
        peer = 3 - number
        self.config.write_text(f"""[host]
name = {name}
log_listen = 0.0.0.0:{LOG}
control = {self.socket}
store_dir = {self.store}
metrics = 127.0.0.1:9090
{options}
[service web]
address = {ADDRESS}
port = {PORT}
role = {role}
peer = 10.0.1.{peer}
peer_log = 10.0.0.{peer}:{LOG}
interface = eth0
key_file = {self.key}
{"" if service.startswith("patience") else "patience = 1s"}
{service}
""")
        self.process: subprocess.Popen[str] | None = None

    def inside(self, *argv: object) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *map(str, argv)]

    def sh(self, command: str) -> str:
        return run(*self.inside("sh", "-c", command))

    def start(self) -> "Host":
        env = os.environ | {"LD_PRELOAD": str(KERNEL), "TAKEOVER_KERNEL": str(self.place)}
        # Its own words, and not those of what it runs
        self.errors = (self.place / "errors").open("a+")
        self.process = subprocess.Popen(self.inside(DAEMON, "--config", self.config), stdin=subprocess.DEVNULL, stderr=self.errors, text=True, env=env)
        atexit.register(self.process.kill)
        wait(f"{self.name} is there", lambda: self.process and (self.process.poll() is not None or f"{self.name} is there" in self.text()))
        assert self.process.poll() is None, self.text()
        running.append(self)
        return self

    def text(self) -> str:
        return (self.place / "errors").read_text(errors="replace")

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()
        (self.place / "errors").write_text("")

    def stop(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        equal(self.process.wait(WAIT_S), 0)
        (self.place / "errors").write_text("")

    def ctl(self, *argv: object, ok: int | None = 0) -> str:
        return run(*self.inside(CTL, "--socket", self.socket, *argv), ok=ok)

    def host_status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.ctl("status", "--json"))
        return status

    def status(self) -> dict[str, Any]:
        service: dict[str, Any] = self.host_status()["services"][0]
        return service

    def state(self) -> str:
        return str(self.status()["state"])

    def ops(self) -> list[str]:
        """What the kernel has been told"""
        log = self.place / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [" ".join(line.split()[:2 if line.startswith("set") else 1]) for line in lines if not line.startswith("join")]

    def client(self, role: int, id: int = 1) -> Client:
        return Client(self, role, id)


def network() -> None:
    """eth0 and eth1 of each host; the peer's addresses are 10.0.0.N and 10.0.1.N"""
    for name in ("a", "b"):
        run("ip", "netns", "add", name)
    for cable in range(2):
        run("ip", "link", "add", f"eth{cable}", "netns", "a", "type", "veth", "peer", "name", f"eth{cable}", "netns", "b")
    for number, name in enumerate(("a", "b"), 1):
        run("nsenter", f"--net=/run/netns/{name}", "sh", "-c", "ip link set lo up; for i in 0 1; do ip link set eth$i up; "
            f"ip address add 10.0.$i.{number}/24 dev eth$i; done; sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0 "
            "net.ipv4.neigh.eth0.retrans_time_ms=100 net.ipv4.neigh.eth1.retrans_time_ms=100; "
            f"ip address add {ADDRESS}/32 dev lo; ip address add {ADDRESS}/32 dev eth0")


run("mkdir", "-p", "/run/netns")
network()


def pair(options: str = "", service: str = "", protected: bool = True) -> tuple[Host, Host]:
    """The primary and the backup."""
    # Those of a test that has failed
    for host in running:
        if host.process and host.process.poll() is None:
            host.kill()
    running.clear()
    a, b = Host("a", 1, "primary", options, service), Host("b", 2, "backup", options, service)
    for host in (a, b):
        host.sh(f"ip link set eth0 up; ip link set eth1 up; nft flush ruleset; "
                f"ip address replace {ADDRESS}/32 dev lo; ip address replace {ADDRESS}/32 dev eth0")
        host.start()
    if protected:
        wait("both are protected", lambda: a.state() == b.state() == "protected")
    return a, b


def end(*hosts: Host) -> None:
    for host in hosts:
        if host.process and host.process.poll() is None:
            host.stop()
