#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Three guests on two networks: what they send gets through what the cables do to it, and they die and come back."""

import hashlib
import random
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import equal, main  # noqa: E402
from guests import wait  # noqa: E402
from net import Host, Network, Process  # noqa: E402

ECHO = """
import socket, sys
open("/proc/sys/net/ipv4/ping_group_range", "w").write("0 0")
for address in sys.argv[1:]:
    six = ":" in address
    s = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP)
    s.settimeout(10)
    s.sendto(bytes([128 if six else 8, 0, 0, 0, 0, 0, 0, 1]) + b"to " + address.encode(), (address, 0))
    print(s.recv(100)[8:].decode(), flush=True)
"""
# Says what it gets, in the end its hash
SERVER = """
import hashlib, socket, sys
s = socket.create_server(("::", 80), family=socket.AF_INET6, dualstack_ipv6=True)
print("listens", flush=True)
c, _ = s.accept()
all = hashlib.sha256()
while data := c.recv(65536):
    all.update(data)
    if sys.argv[1] == "aloud":
        print(data.decode(), flush=True)
print("hash", all.hexdigest(), flush=True)
"""
# Sends a file, or the lines of its input one by one with time between them
CLIENT = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 80), 30)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
if len(sys.argv) > 2:
    s.sendall(open(sys.argv[2], "rb").read())
else:
    for i in range(10):
        s.sendall(b"line %d\\n" % i)
        time.sleep(0.05)
s.close()
"""

net = Network("net-hosts")
hosts: list[Host] = []


def connection(to: str, *file: str) -> tuple[Process, Process]:
    """From a to b."""
    a, b, _ = hosts
    server = b.python(SERVER, "" if file else "aloud")
    server.says("listens")
    return server, a.python(CLIENT, to, *file)


def reached() -> None:
    """Three guests reach each other on two networks, by addresses of both families, which are there at once"""
    a, b, c = hosts
    for host, addresses in ((a, "192.0.2.2 2001:db8::2 192.0.2.3"), (b, "192.0.2.1 10.0.0.3 2001:db8::3"), (c, "2001:db8::1 fd00::2")):
        process = host.python(ECHO, *addresses.split())
        equal((process.wait(), process.text()), (0, "".join(f"to {address}\n" for address in addresses.split())))
    pings = [f for f in net.capture("link") if f.protocol in (socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6) and b"to " in f.payload]
    # Each one goes and comes back, and is there as sent and as given
    equal([(f.host, f.sent, f.src, f.dst) for f in pings if f.protocol == socket.IPPROTO_ICMP],
          [("b", True, "10.0.0.2", "10.0.0.3"), ("c", False, "10.0.0.2", "10.0.0.3"),
           ("c", True, "10.0.0.3", "10.0.0.2"), ("b", False, "10.0.0.3", "10.0.0.2")])
    equal([f.host for f in pings if f.protocol == socket.IPPROTO_ICMPV6], ["c", "b", "b", "c"])


def commands() -> None:
    """Several commands at once, their input, output and end, signals, files, and one that fails"""
    a = hosts[0]
    slow = a.spawn("echo begun; sleep 100; echo not reached")
    slow.says("begun")
    equal(a.run("read line; echo $line $X; hostname", input=b"some words\n", env={"X": "7"}), "some words 7\na\n")
    data = random.Random(1).randbytes(3_000_000)
    a.put("/tmp/data", data)
    equal(hashlib.sha256(a.get("/tmp/data")).digest(), hashlib.sha256(data).digest())
    slow.signal(15)
    equal((slow.wait(10), slow.text()), (-15, "begun\n"))
    equal(a.run(["/no/such", "program"], check=False), "/no/such: No such file or directory\n")
    # What a daemon says later is heard too
    parent = a.spawn("(sleep 0.3; echo later) & echo now")
    equal(parent.wait(), 0)
    equal(parent.text(), "now\n")
    wait("it is heard", lambda: parent.text() == "now\nlater\n", 10)
    for command, problem in (("echo why; false", "why"), ("exec sleep 100", "does not end")):
        try:
            a.run(command, timeout=0.5)
        except AssertionError as error:
            assert problem in str(error), error
        else:
            raise AssertionError(f"{command}: no error")


def transfer() -> None:
    """A transfer over cables that lose 5 %, reorder, repeat and delay frames comes out whole"""
    a = hosts[0]
    data = random.Random(2).randbytes(500_000)
    a.put("/tmp/data", data)
    before = len(net.capture("lan"))
    net.set("lan", "a", loss=5, reorder=5, duplicate=5, delay=10)
    net.set("lan", "b", delay=10, jitter=5)
    server, client = connection("2001:db8::2", "/tmp/data")
    equal((client.wait(), server.wait()), (0, 0))
    equal(server.text(), f"listens\nhash {hashlib.sha256(data).hexdigest()}\n")
    for host in "ab":
        net.set("lan", host, loss=0, reorder=0, duplicate=0, delay=0, jitter=0)
    counts = net.count("lan", "a")["from"]
    frames = [f for f in net.capture("lan")[before:] if f.dport == 80 and f.payload]
    sent, given = ([f for f in frames if f.sent == way] for way in (True, False))
    print(f"# {len(sent)} segments sent, {len(given)} given; lost {counts['lost']}", flush=True)
    assert counts["lost"] > 3 and max(len(f.data) for f in frames) <= 1514, counts
    # What is in the capture is what was sent: put together again
    first = min(f.seq for f in sent)
    whole = bytearray(len(data))
    for f in given:
        whole[f.seq - first:f.seq - first + len(f.payload)] = f.payload
    equal(bytes(whole), data)
    assert len({f.seq for f in sent}) < len(sent), "nothing was sent again"
    gets = [f.seq for f in given]
    assert gets != sorted(gets), "all came in order"


def interrupted() -> None:
    """A cut cable stops a connection, which goes on when it is mended"""
    server, client = connection("192.0.2.2")
    server.says("line 1\n")
    net.cut("lan", "b")
    cut = time.monotonic_ns()
    lines = server.text().count("line")
    time.sleep(0.5)
    assert server.text().count("line") <= lines + 1 and server.status is None, server.text()
    mended = time.monotonic_ns()
    net.mend("lan", "b")
    equal((client.wait(), server.wait()), (0, 0))
    equal(server.text().split()[1:-2:2], ["line"] * 10)
    frames = [f for f in net.capture("lan") if cut + 1_000_000 < f.time < mended]
    assert [f for f in frames if f.sent and f.host == "a" and f.payload and f.dport == 80], "a has sent nothing"
    equal([str(f) for f in frames if not f.sent and f.host == "b"], [])


def triggered() -> None:
    """A trigger cuts a real connection before or after the segment that has a certain text"""
    for after in False, True:
        trigger = net.trigger("lan", "cut:b", after=after, source="a", to="b", tcp=80, payload=1, contains=b"line 4")
        server, client = connection("192.0.2.2")
        when = trigger.wait()
        time.sleep(0.2)
        equal(("line 3\n" in server.text(), "line 4\n" in server.text(), "line 5\n" in server.text()), (True, after, False))
        frames = [f for f in net.capture("lan") if f.sent and f.time == when]
        assert any(b"line 4" in f.payload for f in frames), [str(f) for f in frames]
        net.mend("lan", "b")
        equal((client.wait(), server.wait()), (0, 0))


def killed() -> None:
    """A guest that is killed takes what it ran with it, sends no more, and starts again at its place"""
    b = hosts[1]
    server, client = connection("192.0.2.2")
    server.says("line 1\n")
    b.kill()
    gone = time.monotonic_ns()
    try:
        server.wait(5)
    except AssertionError as error:
        assert "b has ended while it ran" in str(error), error
    else:
        raise AssertionError("it ends well")
    b.start()
    b.run("true")
    frames = net.capture("lan")
    equal([str(f) for f in frames if f.host == "b" and f.sent and gone < f.time < gone + 1_000_000_000], [])
    # It knows nothing of the connection any more
    wait("it resets the connection", lambda: any(f.sent and f.host == "b" and "R" in f.flags and f.time > gone for f in net.capture("lan")), 60)
    b.run("test ! -e /tmp/data")


def stopped() -> None:
    """A guest that is stopped says nothing, and goes on where it was when it is woken"""
    a, b, _ = hosts
    server, client = connection("192.0.2.2")
    server.says("line 1\n")
    b.stop()
    begin = time.monotonic_ns()
    time.sleep(1)
    end = time.monotonic_ns()
    b.cont()
    equal((client.wait(), server.wait()), (0, 0))
    equal([str(f) for f in net.capture("lan") if f.host == "b" and f.sent and begin + 50_000_000 < f.time < end], [])
    equal(a.run("echo here"), "here\n")


def panicked() -> None:
    """A guest that panics is gone, which is no failure; it starts again, and another one ends in order and starts again"""
    _, b, c = hosts
    b.panic()
    c.end()
    b.start()
    c.start()
    net.up()
    for host, address in ((b, "10.0.0.3"), (c, "10.0.0.2")):
        process = host.python(ECHO, address)
        equal((process.wait(), process.text()), (0, f"to {address}\n"))


def noticed() -> None:
    """What a kernel complains of fails the test, also before a kill or a panic; so does a guest that dies on its own, or is left stopped"""
    def complain(host: Host) -> None:
        host.run("echo '<4>WARNING: made up' >/dev/kmsg")

    def kill(host: Host) -> None:
        complain(host)
        host.kill()

    def panic(host: Host) -> None:
        complain(host)
        host.panic()

    def die(host: Host) -> None:
        host.spawn("echo b >/proc/sysrq-trigger")
        host.guest.thread.join(30)

    def notice(bring_about: Callable[[Host], None], message: str) -> None:
        try:
            with Network(f"net-{bring_about.__name__}") as other:
                bring_about(other.host("x", {"lan": ""}).up())
        except AssertionError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"{bring_about.__name__} is not noticed")

    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(notice, *pair) for pair in ((complain, "made up"), (kill, "made up"), (panic, "made up"),
                                                               (die, "has ended"), (Host.stop, "stopped still"))]:
            future.result()


with net:
    hosts += [net.host("a", {"lan": "192.0.2.1/24 2001:db8::1/64"}),
              net.host("b", {"lan": "192.0.2.2/24 2001:db8::2/64", "link": "10.0.0.2/24 fd00::2/64"}),
              net.host("c", {"lan": "192.0.2.3/24 2001:db8::3/64", "link": "10.0.0.3/24 fd00::3/64"}, cpus=2, memory="384M")]
    net.up()
    main(reached, commands, transfer, interrupted, triggered, killed, stopped, panicked, noticed)
