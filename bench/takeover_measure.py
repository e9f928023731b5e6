# SPDX-License-Identifier: GPL-2.0-or-later
"""Measures for bench/run takeover: two hosts with limited processors, on a limited network, beside a host alone in the same run;
keepalived alone and HAProxy while hosts die; and the pause of a takeover."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("PERDURE_BUILD", TOP / "build"))
os.environ |= {"PERDURE_TOP": str(TOP), "PERDURE_BUILD": str(BUILD)}
sys.path[:0] = [str(TOP / "vm-tests/lib"), str(TOP / "vm-tests/cases/takeover")]
import pair as pairs  # noqa: E402
from guests import wait  # noqa: E402
from net import Host, Network, Process  # noqa: E402
from pair import LAN, LINK, OTHER, Pair, Service  # noqa: E402

PROGRAMS = BUILD / "userspace/bench"
MODULES = Path("/usr/lib/apache2/modules")
OURS = BUILD / "userspace/userspace/services/apache/mod_takeover.so"
PARTS = ("cgi", "files", "tail", "pauses", "kills")
# 31 million instructions a second, and a network that is as slow beside them as the paper's 100 Mbit/s beside 350 MHz
SLOW = 5
SPEED = 1e9 / (1 << SLOW)
RATE, QUEUE = 10_000_000, 1 << 20
UNREPLICATED, SINGLE, DUAL = "unreplicated", "single role", "dual role"
STATIC, SYNC, LOGGED, LOGGED_LINK = "static", "sync-static", "reply logging", "reply logging, own network"
WEB = Service("web", "192.0.2.10", 80)
OTHER_WEB = Service("other", "192.0.2.20", 81, backup="one")
LOG_ON_LAN = Service("lan", "192.0.2.30", 82, log=LAN)

SIZES = (5120, 20480, 51200)
MANY = 12           # clients, of whom the hosts are busy all the time
KILLS_SIZE, KILLS_RATE = 51200, 100
PROXY = "192.0.2.4"

Result = dict[str, Any]

# With the log of requests, as in the paper
APACHE = """
ServerRoot /run/apache
ServerName bench.example
Listen 80
Listen 81
Listen 82
Listen 8080
PidFile /run/apache/pid
ErrorLog /run/apache/error.log
LogFormat "%h %t \\"%r\\" %>s %b" bench
CustomLog /run/apache/access.log bench
User www-data
Group www-data
{modules}
StartServers 40
MinSpareServers 40
MaxSpareServers 64
MaxRequestWorkers 64
ListenBacklog 1024
ScriptAlias /cgi-bin/ /srv/bench/cgi/
AliasMatch "^/[a-z]+/([0-9]+)$" /srv/bench/www/$1
<Directory /srv/bench>
    Require all granted
</Directory>
"""
TAKEOVER = """
TakeoverEngine on
TakeoverPrefix /static/ static
TakeoverPrefix /sync/ sync-static
TakeoverPrefix /logged/ dynamic
TakeoverPrefix /cgi-bin/ dynamic
"""


pairs.TAKEOVER = pairs.TAKEOVER.replace("[host]\n", "[host]\ngroup = www-data\n")


# As without takeover; with `nopreempt`, nothing moves when a host is back
KEEPALIVED = """
global_defs {{
    vrrp_version 3
    vrrp_startup_delay 2
}}
vrrp_instance address {{
    state BACKUP
    nopreempt
    interface lan
    virtual_router_id 1
    priority 100
    advert_int 0.5
    unicast_src_ip {own}
    unicast_peer {{
        {peer}
    }}
    virtual_ipaddress {{
        {address}/24 dev lan
    }}
}}
"""
HAPROXY = """
defaults
    mode http
    maxconn 3000
    timeout connect 1s
    timeout client 30s
    timeout server 3s
    retries 3
    option redispatch 1
    retry-on all-retryable-errors
frontend web
    bind {proxy}:80
    default_backend hosts
backend hosts
    balance roundrobin
    timeout check 2s
    option httpchk HEAD /files/{size}
    default-server check inter 500ms fall 3 rise 2
    server one {one}:8080
    server two {two}:8080
"""


class Failed(Exception):
    """What is there and does not do what it should."""


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def serve(host: Host, sizes: list[int], takeover: bool = True) -> None:
    """Apache, with the same files on both hosts."""
    names = ["mpm_prefork", "authz_core", "alias", "cgi", "log_config"]
    built_in = re.findall(r"mod_(\w+)\.c", host.run("apache2 -l"))
    modules = "".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so\n" for name in names if name not in built_in)
    if takeover:
        modules += f"LoadModule takeover_module {OURS}\n"
    host.run("mkdir -p /run/apache /srv/bench/www /srv/bench/cgi")
    host.put("/run/apache/httpd.conf", (APACHE.format(modules=modules) + TAKEOVER * takeover).encode())
    for size in sizes:
        host.put(f"/srv/bench/www/{size}", (b"abcdefghijklmnopqrstuvwxyz" * (size // 26 + 1))[:size])
    host.run(f"cp {PROGRAMS}/takeover-cgi /srv/bench/cgi/answer; touch -d 2026-01-01 /srv/bench/www/*")
    host.spawn("exec apache2 -f /run/apache/httpd.conf -DFOREGROUND")
    wait("Apache listens", lambda: ":8080 " in host.run("ss -tln"), 60)


def clients(host: Host, size: int, urls: list[str], **options: float) -> Process:
    words = [word for name, value in options.items() for word in (f"-{name}", value)]
    return host.spawn([str(word) for word in (PROGRAMS / "takeover-client", *words, size, *urls)])


def said(process: Process, limit: float) -> Result:
    status = process.wait(limit)
    if status:
        raise Failed(f"{process.what}: {process.text()[-300:]}")
    answer: Result = json.loads(process.text())
    return answer


def percentile(values: list[int], share: float) -> int:
    return values[min(int(len(values) * share), len(values) - 1)]


class Clock:
    """What a host has done until now."""

    def __init__(self, host: Host) -> None:
        begin = time.monotonic()
        text = host.run(["cat", "/proc/uptime", "/proc/net/snmp"])
        self.wall = (begin + time.monotonic()) / 2
        self.up, idle = map(float, text.split("\n", 1)[0].split())
        self.busy = self.up - idle
        names, values = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
        self.again = int(values[names.index("RetransSegs")])


class Bench:
    """The two hosts with all services, and the client."""

    def __init__(self, net: Network, sizes: list[int]) -> None:
        self.pair = Pair(net, WEB, OTHER_WEB, LOG_ON_LAN, patience="30s", managed=True, memory="384M", slow=SLOW)
        self.hosts = {name: self.pair.hosts[name] for name in OTHER}
        for host in self.hosts.values():
            serve(host, sizes)
        self.pair.watch()
        for network, names in (("lan", LAN), ("link", LINK)):
            for name in names:
                net.set(network, name, rate=RATE, queue=QUEUE)
        self.each, self.second = {name: 0.0 for name in OTHER}, {name: 0.0 for name in OTHER}

    def urls(self, variant: str, what: str) -> list[str]:
        def at(service: Service, path: str) -> str:
            return f"http://{service.address}:{service.port}{path}"

        path = f"/cgi-bin/answer?{what[4:]}" if what.startswith("cgi") else "/{}/" + what
        return {UNREPLICATED: [f"http://{LAN['one']}:8080{path.format('files')}"],
                SINGLE: [at(WEB, path)], DUAL: [at(WEB, path), at(OTHER_WEB, path)],
                STATIC: [at(WEB, path.format("static"))], SYNC: [at(WEB, path.format("sync"))],
                LOGGED: [at(LOG_ON_LAN, path.format("logged"))], LOGGED_LINK: [at(WEB, path.format("logged"))]}[variant]

    def rest(self) -> Iterator[Result]:
        """What a look at the clocks takes, and what a host does that has nothing to do."""
        spans = []
        for seconds in (2, 20):
            before = self.clocks()
            time.sleep(seconds)
            after = self.clocks()
            spans.append({name: (after[name].up - before[name].up, after[name].busy - before[name].busy) for name in OTHER})
        for name in OTHER:
            (t1, b1), (t2, b2) = spans[0][name], spans[1][name]
            self.second[name] = max((b2 - b1) / (t2 - t1), 0)
            self.each[name] = max(b1 - self.second[name] * t1, 0)
        yield {"part": "rest", "instructions_s": {name: round(share * SPEED) for name, share in self.second.items()}}

    def clocks(self) -> dict[str, Clock]:
        return {name: Clock(host) for name, host in self.hosts.items()}

    def alone(self) -> Counter[str]:
        """Connections that one host has had alone until now, by service, host and reason."""
        said = [self.pair.status(name) for name in OTHER]
        if states := {s["state"] for status in said for s in status.values()} - {"protected"}:
            raise Failed(f"a service is {', '.join(states)}: the machine is too busy, or a host has died")
        if any(said[list(OTHER).index(s.backup)][s.name]["role"] != "backup" for s in self.pair.services):
            raise Failed("the roles of the hosts have changed")
        return Counter({f"{s['name']} at {host}: {key}": int(value) for host, status in zip(OTHER, said) for s in status.values()
                        for key, value in s["kernel"].items() if key.startswith("alone_") or key == "promoted"})

    def sample(self, *args: Any, **more: Any) -> Result:
        """Once more, and once more again, when the machine was too busy for the hosts, or they are still catching up."""
        for _ in range(3):
            result = self.once(*args, **more)
            if 0.96 < result["pace"] < 1.04:
                break
            say(f"the hosts' clocks went {result['pace']:.2f} times as fast as the wall's")
        return result

    def once(self, part: str, variant: str, what: str, number: int, count: int, seconds: float, rate: float = 0) -> Result:
        """`count` clients; `what`: the size of a file, or of a program's answer."""
        size, warm = int(re.sub(r"\D", "", what)), seconds / 6
        alone = self.alone()
        before = self.clocks()
        begun = Clock(self.pair.client).again
        got = said(clients(self.pair.client, size, self.urls(variant, what), c=count, s=seconds, w=warm, r=rate), seconds + warm + 120)
        after = self.clocks()
        again = {"client": Clock(self.pair.client).again - begun, **{name: after[name].again - before[name].again for name in OTHER}}
        if got["failed"]:
            raise Failed(f"{variant}, {what}: {got['failed']} of {got['asked']} requests have failed: {got['why']}")
        if lost := self.alone() - alone:
            raise Failed(f"{variant}, {what}: connections were not protected to their end: {dict(lost)}")
        times = sorted(got["times_us"])
        up = {name: after[name].up - before[name].up for name in OTHER}
        # How fast the hosts' clocks went beside the wall's
        pace = sum(up.values()) / sum(after[name].wall - before[name].wall for name in OTHER)
        busy = {name: after[name].busy - before[name].busy - self.each[name] - self.second[name] * up[name] for name in OTHER}
        return {"part": part, "variant": variant, "what": what, "size": size, "round": number, "clients": count, "pace": pace,
                "answers_s": got["answers_s"], "again": again, "asked": got["asked"], "rate": rate,
                "mean_us": sum(times) / len(times), **{f"p{n}_us": percentile(times, n / 100) for n in (50, 90, 99, 99.9)},
                "max_us": times[-1], "late": sum(t >= 1_000_000 for t in times),
                "speed": SPEED, "instructions": {name: busy[name] * SPEED / got["asked"] for name in OTHER},
                "times_us": times if part == "tail" else []}


def in_turn(variants: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Who is measured first takes turns, too."""
    return variants if number % 2 == 0 else variants[::-1]


def cgi(bench: Bench, quick: bool) -> Iterator[Result]:
    """Answers of a program: roles."""
    for number in range(1 if quick else 3):
        for size in SIZES if number == 0 and not quick else SIZES[-1:]:
            for variant in in_turn((UNREPLICATED, SINGLE, DUAL), number):
                if variant != DUAL:
                    yield bench.sample("cgi", variant, f"cgi {size}", number, 1, 4 if quick else 6)
                yield bench.sample("cgi", variant, f"cgi {size}", number, MANY, 12 if quick else 30)


def files(bench: Bench, quick: bool) -> Iterator[Result]:
    """Answers of files: modes."""
    for number in range(1 if quick else 3):
        for size in SIZES[-1:] if quick else SIZES if number == 0 else (SIZES[0], SIZES[-1]):
            for variant in in_turn((UNREPLICATED, STATIC, SYNC, LOGGED, LOGGED_LINK), number):
                for count in 1, MANY:
                    yield bench.sample("files", variant, str(size), number, count, 4 if quick else 4 + (count > 1) * 2)


def tail(bench: Bench, quick: bool) -> Iterator[Result]:
    """How long requests at a fixed rate take: three quarters of what the slowest can do."""
    most = min(bench.sample("warm", variant, str(SIZES[0]), 0, MANY, 4)["answers_s"] for variant in (STATIC, SYNC))
    for number in range(1 if quick else 2):
        for variant in in_turn((UNREPLICATED, STATIC, SYNC), number):
            yield bench.sample("tail", variant, str(SIZES[0]), number, 500, 10 if quick else 24, rate=round(0.75 * most))


def pauses(quick: bool) -> Iterator[Result]:
    """In one machine, whose hosts are namespaces: from PROMOTE to the client's next byte."""
    count = 20 if quick else 100
    done = subprocess.run([TOP / "vm-tests/run", "run", "--log", BUILD / "log/bench-takeover-pauses.console", "--", sys.executable,
                           TOP / "vm-tests/cases/replica/load.py", "--pauses", str(count)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=900)
    found = re.search(r"next byte, (\d+) times: p50 ([\d.]+) ms, p99 ([\d.]+) ms, longest ([\d.]+) ms", done.stdout)
    if done.returncode or not found:
        raise Failed(f"replica/load.py --pauses ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    yield {"part": "pauses", "count": int(found[1]), "p50_ms": float(found[2]), "p99_ms": float(found[3]), "max_ms": float(found[4])}


class Ours:
    """Two hosts with takeover."""

    def __init__(self, net: Network) -> None:
        self.pair = Pair(net, memory="384M")
        self.hosts, self.client, self.url = self.pair.hosts, self.pair.client, f"http://{pairs.ADDRESS}:80/sync/{KILLS_SIZE}"
        for name in OTHER:
            serve(self.hosts[name], [KILLS_SIZE])
        self.pair.watch()

    def boot(self, name: str) -> None:
        self.pair.boot(name)
        serve(self.hosts[name], [KILLS_SIZE])

    def settle(self) -> None:
        self.pair.settle()


class Keepalived:
    """The address moves to the host that is left; it stays there when the other one is back."""

    url = f"http://{pairs.ADDRESS}:8080/files/{KILLS_SIZE}"

    def __init__(self, net: Network) -> None:
        self.hosts = {name: net.host(name, {"lan": f"{LAN[name]}/24"}, memory="384M") for name in LAN}
        self.client = self.hosts["client"]
        for name in OTHER:
            self.begin(name)
        self.settle()

    def begin(self, name: str) -> None:
        host = self.hosts[name].up()
        serve(host, [KILLS_SIZE], takeover=False)
        host.put("/run/keepalived.conf", KEEPALIVED.format(own=LAN[name], peer=LAN[OTHER[name]], address=pairs.ADDRESS).encode())
        host.spawn("exec keepalived -n -f /run/keepalived.conf -p /run/ka.pid -r /run/ka-vrrp.pid")

    def boot(self, name: str) -> None:
        self.hosts[name].start()
        self.begin(name)

    def settle(self) -> None:
        wait("one host has the address", lambda: sum(pairs.ADDRESS in self.hosts[name].run("ip address show dev lan") for name in OTHER) == 1)


class Haproxy:
    """A third host in front of two, which itself nobody kills; it asks the other server when one gives no answer."""

    url = f"http://{PROXY}:80/files/{KILLS_SIZE}"

    def __init__(self, net: Network) -> None:
        self.hosts = {name: net.host(name, {"lan": f"{address}/24"}, memory="384M") for name, address in {**LAN, "proxy": PROXY}.items()}
        self.client = self.hosts["client"]
        for name in OTHER:
            self.begin(name)
        self.hosts["proxy"].put("/run/haproxy.cfg", HAPROXY.format(**LAN, proxy=PROXY, size=KILLS_SIZE).encode())
        self.hosts["proxy"].spawn("exec haproxy -db -f /run/haproxy.cfg")
        self.settle()

    def begin(self, name: str) -> None:
        serve(self.hosts[name].up(), [KILLS_SIZE], takeover=False)

    def boot(self, name: str) -> None:
        self.hosts[name].start()
        self.begin(name)

    def settle(self) -> None:
        ask = f"curl -sf -o /run/got {self.url}"
        wait("the proxy has its servers", lambda: self.hosts["client"].spawn(f"{ask} && {ask}").wait() == 0)
        time.sleep(2)       # until a server that is back has been seen


def kills(quick: bool) -> Iterator[Result]:
    """Requests at a fixed rate, by clients that are 50 ms away, while hosts die and come back."""
    requests, victims = (1500, ("one",)) if quick else (10_000, ("one", "one", "two", "two"))
    for system, name in ((Ours, "takeover"), (Keepalived, "keepalived alone"), (Haproxy, "HAProxy")):
        with Network(f"bench-takeover-{name.split()[0].lower()}") as net:
            side = system(net)
            net.set("lan", "client", delay=50)
            begin = time.monotonic()
            asking = clients(side.client, KILLS_SIZE, [side.url], n=requests, r=KILLS_RATE, c=4000)
            for number, victim in enumerate(victims):
                wait("it is time", lambda: time.monotonic() - begin > (number + 0.3) * requests / KILLS_RATE / len(victims))
                assert asking.status is None, f"{name}: all has been asked before the kills: {asking.text()[:300]}"
                side.hosts[victim].kill()
                if number + 1 < len(victims):
                    side.boot(victim)
                    side.settle()
            got = said(asking, requests / KILLS_RATE + 180)
            times = sorted(got["times_us"])
            yield {"part": "kills", "system": name, "asked": got["asked"], "failed": got["failed"], "why": got["why"], "kills": len(victims),
                   "p50_us": percentile(times, 0.5), "max_us": times[-1]}


def told(result: Result) -> str:
    part = result["part"]
    if part == "pauses":
        return f"{part}: p50 {result['p50_ms']} ms, p99 {result['p99_ms']} ms"
    if part == "kills":
        return (f"{part}: {result['system']}: {result['failed']} of {result['asked']} failed {result['why'] or ''}, "
                f"longest {result['max_us'] / 1e6:.1f} s")
    if part == "rest":
        return f"nothing to do: {result['instructions_s']} instructions a second"
    return (f"{part}: {result['variant']}, {result['what']}, {result['clients']} clients: {result['answers_s']:.1f} a second, "
            f"p50 {result['p50_us'] / 1000:.1f} ms, longest {result['max_us'] / 1000:.0f} ms, million instructions each "
            + ", ".join(f"{name} {n / 1e6:.2f}" for name, n in result["instructions"].items())
            + f", again {result['again']}, pace {result['pace']:.2f}")


def measure(parts: list[str], quick: bool, keep: Callable[[list[Result]], None]) -> list[Result]:
    """keep() gets all that is known, each time that there is more."""
    results: list[Result] = []

    def take(part: str, found: Iterator[Result]) -> None:
        try:
            for result in found:
                results.append(result)
                keep(results)
                say(told(result))
        except (AssertionError, Failed, OSError, subprocess.SubprocessError) as e:
            results.append({"part": "failed", "what": part, "why": str(e).splitlines()[0][:200] if str(e) else type(e).__name__})
            keep(results)
            say(f"{part}: failed: {str(e)[-2000:]}")

    limited = {"cgi": cgi, "files": files, "tail": tail}

    def joined() -> Iterator[Result]:
        with Network("bench-takeover") as net:
            say("two hosts and a client boot")
            bench = Bench(net, list(SIZES))
            yield from bench.rest()
            for part in parts:
                if part in limited:
                    take(part, limited[part](bench, quick))

    if any(part in limited for part in parts):
        take("hosts", joined())
    for part, function in (("pauses", pauses), ("kills", kills)):
        if part in parts:
            take(part, function(quick))
    return results
