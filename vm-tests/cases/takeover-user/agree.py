#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Who goes on: promotion with the peer there, gone, hung or out of reach; and protection again."""

import os
import re
import signal
import socket
import subprocess
import threading
import time

from takeover import BACKUP, CTL, MESON, PLACE, PRIMARY, Host, end, equal, main, pair, run, wait

PERDURECTL = MESON / "userspace/tools/perdurectl"


def cables(host: Host, up: bool, *which: int) -> None:
    for number in which or (0, 1):
        host.sh(f"ip link set eth{number} {'up' if up else 'down'}")


def promote(host: Host, statuses: dict[str, int]) -> threading.Thread:
    def ask() -> None:
        statuses[host.name] = subprocess.run(host.inside(CTL, "--socket", host.socket, "promote", "web"), capture_output=True).returncode

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def at_first() -> None:
    """At first the backup asks, the primary is one first, and the network is what each needs"""
    a, b = pair()
    equal((a.ops(), b.ops()), (["set 3", "set 1"], ["set 3", "set 2"]))
    equal((a.status()["epoch"], b.status()["epoch"]), (1, 1))
    rules = b.sh("nft list table ip takeover")
    # What the hosts say to each other is not copied back
    assert re.search(r"tcp dport 80 tcp option (@254,16,16|254) .*return\n.*tcp dport 80 dup to", rules), rules
    for rule in ("ip daddr 192.0.2.10 tcp dport 80 notrack", "tcp dport 80 dup to 10.0.1.1", "ip saddr 192.0.2.10 tcp sport 80 notrack",
                 "icmp type { destination-unreachable, time-exceeded, parameter-problem } dup to 10.0.1.1"):
        assert rule in rules, rules
    rules = a.sh("nft list table ip takeover")
    assert "dup" not in rules and "dport 80 notrack" in rules, rules
    assert "192.0.2.10" in a.sh("ip address show dev lo")
    equal(a.sh("sysctl -n net.ipv4.conf.all.arp_ignore net.ipv4.conf.all.arp_announce").split(), ["1", "2"])
    equal(b.sh("sysctl -n net.ipv4.conf.all.arp_ignore").split(), ["0"])
    table = a.ctl("status")
    assert "web" in table and "192.0.2.10:80" in table and "protected" in table, table
    end(a, b)


def switched() -> None:
    """The peer is there: it gives way before this host goes on; each leaves a record"""
    a, b = pair()
    watch = subprocess.Popen(b.inside(CTL, "--socket", b.socket, "watch"), stdout=subprocess.PIPE, text=True)
    time.sleep(0.3)
    text = b.ctl("promote", "all")
    assert "agreed with the peer" in text, text
    assert watch.stdout
    equal(watch.stdout.readline(), "web: alone, epoch 2: agreed with the peer\n")
    watch.kill()
    equal((a.state(), b.state(), a.ops()[-1], b.ops()[-1]), ("abandoned", "alone", "abandon", "promote"))
    equal([(host.place / "web.claim").read_text() for host in (a, b)], ["0\n", "2\n"])
    wait("nothing is copied", lambda: "dup" not in b.sh("nft list table ip takeover"))
    lines = run(PERDURECTL, "log", env={"PERDURE_VERDICTS": str(b.place)}).splitlines()
    assert any("takeover" in line and "alone" in line and "web" in line for line in lines), lines
    # It has been done
    assert "has been promoted" in b.ctl("promote", "web")
    # The other one cannot
    assert "the peer goes on" in a.ctl("promote", "web", ok=3)
    equal(a.state(), "abandoned")
    b.ctl("promote", "none", ok=2)
    # And again
    b.ctl("protect", "web")
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    equal((a.status()["role"], b.status()["role"], a.status()["epoch"], b.status()["epoch"]), ("primary", "backup", 3, 3))
    assert "dup to" in b.sh("nft list table ip takeover")
    b.ctl("abandon", "web")
    equal((b.state(), b.ops()[-1]), ("abandoned", "abandon"))
    end(a, b)


def gone() -> None:
    """The peer is gone, or its takeoverd: this host goes on after `arbitrate` at most"""
    a, b = pair()
    b.kill()
    start = time.monotonic()
    assert "unanswered" in a.ctl("promote", "web")
    assert 0.25 < time.monotonic() - start < 0.7
    equal((a.state(), a.ops()[-1]), ("alone", "promote"))
    # A host that comes up again does not take part until it is asked to
    (b.place / "web.state").unlink()
    b.start()
    time.sleep(2.5)
    equal((a.state(), b.state()), ("alone", "waiting"))
    # The address is at a by now: it is the muted one
    a.ctl("protect", "web")
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    equal((a.status()["role"], b.status()["role"]), ("backup", "primary"))
    equal((a.ops()[-1], b.ops()[-1]), ("set 2", "set 1"))
    cables(b, False)
    start = time.monotonic()
    assert "unanswered" in a.ctl("promote", "web")
    assert 0.25 < time.monotonic() - start < 0.7
    cables(b, True)
    end(a, b)
    # One that is just being started anew has something to say
    a, b = pair("arbitrate = 10s")
    a.kill()
    statuses: dict[str, int] = {}
    thread = promote(b, statuses)
    time.sleep(0.5)
    equal(statuses, {})
    a.start()
    thread.join()
    equal((statuses, a.state(), b.state()), ({"b": 0}, "abandoned", "alone"))
    assert "yielded: the peer claims it" in a.text()
    end(a, b)


def other_way() -> None:
    """One cable is cut: the peer is asked over the other one"""
    a, b = pair()
    cables(b, False, 0)
    assert "agreed" in b.ctl("promote", "web")
    equal((a.state(), b.state()), ("abandoned", "alone"))
    cables(b, True)
    end(a, b)


def healed() -> None:
    """The hosts lose each other, one is promoted, and they meet again: the other one gives way"""
    a, b = pair()
    cables(b, False)
    b.ctl("promote", "web")
    equal((a.state(), b.state()), ("protected", "alone"))
    cables(b, True)
    wait("the other one knows it", lambda: a.state() == "abandoned")
    equal((a.ops()[-1], a.status()["epoch"]), ("abandon", 2))
    end(a, b)


def split() -> None:
    """Both are promoted, since nobody fenced: both say so"""
    a, b = pair()
    cables(b, False)
    b.ctl("promote", "web")
    a.ctl("promote", "web")
    cables(b, True)
    wait("they see it", lambda: a.status()["split"] and b.status()["split"])
    assert "both hosts have been promoted" in a.text(), a.text()
    a.ctl("abandon", "web")
    wait("it is over", lambda: not b.status()["split"])
    end(a, b)


def both() -> None:
    """Both are told to go on at the same moment: one does"""
    a, b = pair()
    for _ in range(10):
        statuses: dict[str, int] = {}
        for thread in [promote(host, statuses) for host in (a, b)]:
            thread.join()
        states = {host.name: host.state() for host in (a, b)}
        equal(sorted(states.values()), ["abandoned", "alone"])
        equal({name: status == 0 for name, status in statuses.items()}, {name: state == "alone" for name, state in states.items()})
        winner = a if states["a"] == "alone" else b
        winner.ctl("protect", "web")
        wait("both are protected", lambda: a.state() == b.state() == "protected")
    end(a, b)


def stood_still() -> None:
    """A host that stood still asks before it goes on, for long enough"""
    a, b = pair()
    assert a.process
    a.process.send_signal(signal.SIGSTOP)
    time.sleep(1)
    assert "unanswered" in b.ctl("promote", "web")
    cables(b, False)
    a.process.send_signal(signal.SIGCONT)
    statuses: dict[str, int] = {}
    thread = promote(a, statuses)
    time.sleep(0.45)
    equal(statuses, {})         # without having stood still, it would have gone on by now
    cables(b, True)
    thread.join()
    equal((statuses, a.state(), b.state()), ({"a": 3}, "abandoned", "alone"))
    assert "has stood still" in a.text()
    b.ctl("protect", "web")
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    # In the middle of it
    cables(b, False)
    statuses = {}
    thread = promote(a, statuses)
    time.sleep(0.1)
    a.process.send_signal(signal.SIGSTOP)
    time.sleep(1)
    assert "unanswered" in b.ctl("promote", "web")
    a.process.send_signal(signal.SIGCONT)
    time.sleep(0.45)
    equal(statuses, {})
    cables(b, True)
    thread.join()
    equal((statuses, a.state(), b.state()), ({"a": 3}, "abandoned", "alone"))
    end(a, b)


def where() -> None:
    """The muted one is where the address is; two primaries say so, and one of them gets it; when nobody goes on, it is said"""
    a, b = pair(protected=False)
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    equal(b.ctl("check"), "")
    b.sh("ip address flush dev eth0 to 192.0.2.10/32")
    assert "has not got the address" in b.ctl("check", ok=1)
    a.ctl("abandon", "web")
    wait("it is said", lambda: b.status()["silent"])
    assert "has not been promoted" in b.ctl("check", ok=1)
    assert 'takeover_silent{service="web"} 1' in b.sh("curl -s http://127.0.0.1:9090/metrics")
    b.ctl("promote", "web")
    equal(b.status()["silent"], False)
    # The address comes a moment later
    assert "the address is not on this host yet" in b.ctl("protect", "web")
    time.sleep(1.5)
    equal((a.state(), b.state()), ("abandoned", "alone"))
    b.sh("ip address replace 192.0.2.10/32 dev eth0")
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    b.sh("ip address flush dev eth0 to 192.0.2.10/32")
    said = b.ctl("protect", "web", ok=1)
    assert "it is asked at the host that the address points to" in said, said
    b.sh("ip address replace 192.0.2.10/32 dev eth0")
    # A state of another start of the host is none
    b.kill()
    state = b.place / "web.state"
    state.write_text(state.read_text().replace("/", "0/"))
    b.start()
    wait("they agree anew", lambda: a.status()["epoch"] == b.status()["epoch"] == 4)
    end(a, b)
    a, b = Host("a", 1, "primary"), Host("b", 2, "primary")
    for host in (a, b):
        host.start()
    wait("both say so", lambda: all("both hosts are the primary" in host.text() for host in (a, b)))
    statuses: dict[str, int] = {}
    for thread in [promote(host, statuses) for host in (a, b)]:
        thread.join()
    equal(sorted(host.state() for host in (a, b)), ["alone", "waiting"])
    end(a, b)


def goes_back() -> None:
    """The address goes back to a host that has come back: the other one says so, and is the primary again"""
    a, b = pair()
    b.kill()
    (b.place / "web.state").unlink()
    b.sh("ip address flush dev eth0 to 192.0.2.10/32")
    # It has not come here yet: nobody is to take what this host is to have
    a.sh("ip address flush dev eth0 to 192.0.2.10/32")
    a.ctl("promote", "web")
    b.start()
    b.sh("ip address replace 192.0.2.10/32 dev eth0")
    time.sleep(2.5)
    equal((a.state(), a.status()["displaced"], b.state()), ("alone", False, "waiting"))
    b.kill()
    b.sh("ip address flush dev eth0 to 192.0.2.10/32")
    a.sh("ip address replace 192.0.2.10/32 dev eth0")
    time.sleep(1.5)
    a.sh("ip address flush dev eth0 to 192.0.2.10/32")
    wait("it is said", lambda: a.status()["displaced"])
    assert "the address has left this host, which is alone" in a.text() and "nopreempt" in a.text(), a.text()
    assert "the address has left this host" in a.ctl("check", ok=1)
    assert ", displaced" in a.ctl("status")
    assert 'takeover_displaced{service="web"} 1' in a.sh("curl -s http://127.0.0.1:9090/metrics")
    b.start()
    b.sh("ip address replace 192.0.2.10/32 dev eth0")
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    equal((a.status()["role"], b.status()["role"], a.status()["displaced"]), ("primary", "backup", False))
    end(a, b)


def started_anew() -> None:
    """takeoverd is started anew, and knows; a host is, and does not, and is taken in again"""
    a, b = pair()
    for host in (a, b):
        host.kill()
    a.start()
    equal((a.state(), a.status()["epoch"], a.ops()[-1]), ("protected", 1, "set 1"))
    b.start()
    equal((b.state(), b.status()["epoch"], b.ops()[-1]), ("protected", 1, "set 2"))
    # What the file does not have any more is not left muted; what it has, is
    services = "service service={0}:{1} peer=10.0.1.1:0 role=muted patience_ms=1000 now_primary=0 now_muted={2} promoted=3\n"
    b.kill()
    (b.place / "proc").write_text("".join(services.format("192.0.2.10", *which) for which in ((80, 7), (81, 8)))
                                  + services.format("[2001:db8::1]", 80, 9) + services.format("192.0.2.12", 80, 0).replace("muted", "off"))
    b.start()
    equal([line for line in b.text().splitlines() if "any more" in line],
          [f"takeoverd: {at} is not in the file any more, and was muted: this host goes on with those that it shares, and cannot tell the peer; "
           "its new connections are ordinary ones" for at in ("192.0.2.10:81", "[2001:db8::1]:80")])
    equal((b.ops()[-5:], b.status()["kernel"]["now_muted"], b.status()["kernel"]["promoted"]), (["set 2", "promote", "set 0", "promote", "set 0"], 7, 3))
    (b.place / "proc").unlink()
    # The primary's host; then the backup's
    for host in (a, b):
        epoch = a.status()["epoch"]
        host.kill()
        (host.place / "web.state").unlink()
        host.start()
        wait("both agree", lambda: a.state() == b.state() == "protected" and a.status()["epoch"] == b.status()["epoch"] == epoch + 1)
    equal((a.status()["role"], b.status()["role"]), ("primary", "backup"))
    end(a, b)


def told(host: Host) -> list[list[str]]:
    """What the kernel has been told of each port: the operation, the role, the port"""
    return [line.split()[:3] for line in (host.place / "log").read_text().splitlines() if not line.startswith("join")]


def asked_for() -> None:
    """A host that is alone and has been asked to find a peer still does when takeoverd is started anew; one that has not says so"""
    a, b = pair()
    b.kill()
    a.ctl("promote", "web")
    (b.place / "web.state").unlink()
    b.start()
    wait("the peer is there", lambda: a.status()["peer"]["state"] == "waiting")
    assert "waiting, not asked" in a.ctl("status")
    equal((a.status()["asked"], a.state()), (False, "alone"))
    b.kill()
    a.ctl("protect", "web")
    a.kill()
    a.start()
    equal((a.status()["asked"], a.state()), (True, "alone"))
    b.start()
    wait("the peer is there", lambda: a.status()["peer"]["alive"])
    assert "not asked" not in a.ctl("status")
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    # It has been done
    b.kill()
    a.ctl("promote", "web")
    a.kill()
    a.start()
    equal((a.status()["asked"], a.state()), (False, "alone"))
    end(a)


def taken_out() -> None:
    """A service is taken out of the file, or is another one there: the muted host goes on with it, and its peer knows; nothing is left before"""
    for port in "80", "81":
        a, b = pair()
        right = b.config.read_text()
        changed = right.replace("port = 80", "port = 81")
        if port == "80":
            changed = changed.replace("[service web]", "[service other]")
        b.config.write_text(changed)
        assert b.process
        b.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        equal((b.state(), b.ops()), ("protected", ["set 3", "set 2"]))
        # With nobody to ask, it stays what it was
        cables(b, False)
        b.kill()
        b.start()
        time.sleep(1.5)
        equal(told(b)[2:], [["set", "3", "81"], ["set", "2", "80"]])
        name = "web" if port == "80" else "web.left1"
        equal((b.place / f"{name}.kept").stat().st_mode & 0o777, 0o600)
        assert "dport 80 dup to 10.0.1.1" in b.sh("nft list table ip takeover") and "dport 81" not in b.sh("nft list table ip takeover")
        assert f"{name}, port 80 of 192.0.2.10, is not in the file any more: both hosts have its connections" in b.text(), b.text()
        assert "not in the file any more, and both hosts have" in b.ctl("check", ok=1) and "not in the file" in b.ctl("status")
        assert "not in the file any more" in b.ctl("protect", name, ok=1)
        cables(b, True)
        wait("the peer knows", lambda: a.state() == "abandoned")
        wait("it has been left", lambda: f"{name}: it has been left" in b.text())
        equal(told(b)[4:], [["promote", "0", "80"], ["set", "0", "80"]])
        equal((len(b.host_status()["services"]), (b.place / f"{name}.claim").read_text()), (1, "2\n"))
        assert not list(b.place.glob(f"{name}.kept")) and not list(b.place.glob(f"{name}.state"))
        wait("nothing is copied", lambda: "dport 80" not in b.sh("nft list table ip takeover"))
        # It has gone for good, and can come back
        b.config.write_text(right)
        b.kill()
        b.start()
        wait("both are protected", lambda: a.state() == b.state() == "protected")
        end(a, b)
    # A host that is alone, and whose peer does not know, tells it; a cluster manager need not wait; another name is the same service
    a, b = pair()
    b.config.write_text(b.config.read_text().replace("[service web]", "[service shop]"))
    b.kill()
    b.start()
    equal((b.status()["name"], b.state(), told(b)[-1]), ("shop", "protected", ["set", "2", "80"]))
    b.config.write_text(b.config.read_text().replace("port = 80", "port = 81").replace("[service shop]", "[service other]"))
    cables(b, False)
    b.kill()
    b.start()
    start = time.monotonic()
    assert "shop: this host goes on: unanswered" in b.ctl("promote", "shop")
    assert time.monotonic() - start < 1
    wait("no service in the kernel", lambda: told(b)[-1] == ["set", "0", "80"])
    b.kill()
    b.start()
    cables(b, True)
    wait("the peer knows", lambda: a.state() == "abandoned")
    wait("it has been left", lambda: "shop: it has been left" in b.text())
    end(a, b)


def taken_out_primary() -> None:
    """The primary's: it stays what it was until the peer goes on; and one whose peer is another one in the file keeps the old one"""
    a, b = pair()
    right = a.config.read_text()
    a.config.write_text(right.replace("port = 80", "port = 81").replace("[service web]", "[service other]"))
    a.kill()
    a.start()
    a.client(PRIMARY, 1).reply(1, 1, "still")
    equal(b.client(BACKUP, 1).do("wait", 1, 1)[::3], ["REPLY", "still"])
    time.sleep(1.2)
    equal(told(a)[2:], [["set", "3", "81"], ["set", "1", "80"]])
    assert "stays until the peer goes on" in a.text(), a.text()
    assert "agreed with the peer" in b.ctl("promote", "web")
    wait("it has been left", lambda: "web: it has been left" in a.text())
    equal(told(a)[4:], [["abandon", "0", "80"], ["set", "0", "80"]])
    end(a, b)
    a, b = pair()
    b.config.write_text(b.config.read_text().replace("peer = 10.0.1.1", "peer = 10.0.1.77"))
    b.place.joinpath("busy").write_text("10.0.1.1")
    b.kill()
    b.start()
    assert "dup to 10.0.1.1" in b.sh("nft list table ip takeover"), b.sh("nft list table ip takeover")
    assert "which it keeps" in b.text() and "is not the file's" in b.ctl("check", ok=1), b.text()
    b.place.joinpath("busy").unlink()
    assert "agreed with the peer" in b.ctl("promote", "web")
    b.kill()
    b.start()
    equal(b.status()["peer"]["address"], "10.0.1.77")
    end(a, b)


def full() -> None:
    """The directory of the states is full: where the address belongs is right all the same, or as soon as there is room"""
    a, b = pair()
    claims = [host.place / "web.claim" for host in (a, b)]
    equal([claim.read_text() for claim in claims], ["0\n", "1\n"])
    used = os.statvfs("/run")
    run("mount", "-o", f"remount,size={(used.f_blocks - used.f_bfree) * used.f_frsize // 1024 + 64}k", "/run")
    fill = PLACE / "fill"

    def fill_up() -> None:
        try:
            with fill.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        except OSError:
            pass

    fill_up()
    b.ctl("promote", "web")
    equal([claim.read_text() for claim in claims], ["0\n", "2\n"])
    equal(b.text().count("No space left"), 0)
    # One that is not there needs room
    claims[1].unlink()
    fill_up()
    b.ctl("protect", "web")
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    equal((claims[1].exists(), b.text().count("No space left")), (False, 1))
    time.sleep(1.5)
    equal(b.text().count("No space left"), 1)
    fill.unlink()
    run("mount", "-o", "remount,size=50%", "/run")
    wait("it is there", claims[1].exists)
    equal(claims[1].read_text(), "1\n")
    end(a, b)


def clocks() -> None:
    """Hosts whose times of day differ by more than a second say so, once, and when they are alike again"""
    a, b = pair()
    (a.place / "clock").write_text("1")
    time.sleep(2.5)
    assert not a.status()["clocks_differ"] and not b.status()["clocks_differ"], (a.status(), b.status())
    (a.place / "clock").write_text("5")
    wait("that is seen", lambda: a.status()["clocks_differ"] and b.status()["clocks_differ"])
    for host, sign, words in (a, -1, r"\[service web\]: the peer\'s clock is late by [45]\.\d s"), (b, 1, r"\[service web\]: the peer\'s clock is ahead by [45]\.\d s"):
        assert 4000 < sign * host.status()["clock_ms"] <= 5000, host.status()
        assert re.search(words, host.ctl("check", ok=1)) and ", clock" in host.ctl("status")
        assert 'takeover_clocks_differ{service="web"} 1' in host.sh("curl -s http://127.0.0.1:9090/metrics")
    time.sleep(2.5)
    (a.place / "clock").unlink()
    wait("that is seen", lambda: not a.status()["clocks_differ"] and not b.status()["clocks_differ"])
    for host in a, b:
        equal((host.text().count("the peer's clock is"), host.text().count("the peer's clock is as ours again")), (2, 1))
        equal(host.ctl("check"), "")
    end(a, b)


def refused() -> None:
    """A kernel that refuses, a peer with another key, another peer, settings that differ"""
    a, b = Host("a", 1, "primary"), Host("b", 2, "backup", key="ff112233445566778899aabbccddeeff")
    for host in (a, b):
        host.start()
    time.sleep(1.5)
    equal((a.state(), b.state()), ("waiting", "waiting"))
    assert "the peer has another key" in a.text() + b.text(), (a.text(), b.text())
    end(a, b)
    a, b = pair(protected=False)
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    end(a, b)
    a, b = Host("a", 1, "primary"), Host("b", 2, "backup")
    (a.place / "fail").write_text("16")
    for host in (a, b):
        host.start()
    time.sleep(1.5)
    equal((a.state(), b.state()), ("waiting", "waiting"))
    assert "connections of another peer or key are still there" in a.text(), a.text()
    (a.place / "fail").unlink()
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    a.sh("sysctl -qw net.ipv4.tcp_sack=0")
    wait("that is seen", lambda: a.status()["settings_differ"] and b.status()["settings_differ"])
    assert "net/ipv4/tcp_sack is 0 here, and 1 at the peer" in a.text(), a.text()
    assert "TCP's settings are not those of the peer" in a.ctl("check", ok=1)
    a.sh("sysctl -qw net.ipv4.tcp_sack=1 net.ipv4.conf.eth0.rp_filter=1")
    wait("that is seen", lambda: not a.status()["settings_differ"])
    assert "rp_filter of eth0 is strict" in a.ctl("check", ok=1)
    a.sh("sysctl -qw net.ipv4.conf.eth0.rp_filter=0")
    equal(a.ctl("check"), "")
    b.ctl("protect", "web", "--peer", "10.0.0.1", ok=1)
    b.ctl("promote", "web")
    b.ctl("protect", "web", "--peer", "nonsense", ok=1)
    b.ctl("protect", "web", "--peer", "10.0.0.1", "--peer-log", "10.0.1.1:7550")
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    equal(b.status()["peer"] | {"alive": 1, "state": ""}, {"address": "10.0.0.1", "log": "10.0.1.1:7550", "alive": 1, "state": ""})
    assert "dup to 10.0.0.1" in b.sh("nft list table ip takeover")
    end(a, b)


def flushed() -> None:
    """Somebody loads the firewall anew: the rules are set again; without nft, nobody becomes mute"""
    a, b = pair()
    equal(b.ctl("check"), "")
    for command in "flush ruleset", "delete table ip takeover", "flush chain ip takeover arrive":
        lost = b.host_status()["rules"]["lost"]
        b.sh(f"nft {command}")
        wait("they are there again", lambda: b.sh("nft list ruleset").count("dup to 10.0.1.1") == 2, 3)
        wait("it is counted", lambda: b.host_status()["rules"] == {"wrong": False, "lost": lost + 1}, 3)
    assert "somebody has flushed or changed them" in b.text(), b.text()
    assert f"takeover_rules_lost_total {lost + 1}" in b.sh("curl -s http://127.0.0.1:9090/metrics")
    end(a, b)
    nft, path, broken = a.sh("command -v nft").strip(), os.environ["PATH"], PLACE / "broken"
    (PLACE / "bin").mkdir()
    (PLACE / "bin/nft").write_text(f"""#!/bin/sh
[ "$*" = "-f -" ] || exec {nft} "$@"
text=$(cat)
case $text in *"dup to"*) test -e {broken} && exit 7 ;; esac
echo "$text" | {nft} -f -
""")
    (PLACE / "bin/nft").chmod(0o755)
    os.environ["PATH"] = f"{PLACE}/bin:{path}"
    a, b = pair()
    broken.touch()
    b.sh("nft flush ruleset")
    wait("it is seen", lambda: b.host_status()["rules"]["wrong"])
    assert "rules of takeoverd are not there" in b.ctl("check", ok=1)
    broken.unlink()
    wait("it is mended", lambda: not b.host_status()["rules"]["wrong"])
    end(a, b)
    broken.touch()
    a, b = pair(protected=False)
    wait("it is said", lambda: "rules cannot be set" in b.text())
    wait("it has gone back", lambda: b.ops() == ["set 3", "set 2", "promote"])
    equal(b.state(), "waiting")
    broken.unlink()
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    end(a, b)
    os.environ["PATH"] = path


def kernel_refuses() -> None:
    """A kernel that refuses, or takes its time: promotion is not said to be done, or is not waited for"""
    a, b = pair()
    b.place.joinpath("fail").write_text("12")
    assert "the kernel does not promote it" in b.ctl("promote", "web", ok=1)
    equal(b.state(), "protected")
    assert "does not abandon" in b.ctl("abandon", "web", ok=1)
    b.place.joinpath("fail").unlink()
    b.place.joinpath("hang").write_text("promote")
    start = time.monotonic()
    text = b.ctl("promote", "web")
    assert time.monotonic() - start < 1
    assert "agreed with the peer; the kernel is still at its connections" in text, text
    equal((a.state(), b.state()), ("abandoned", "promoting"))
    assert "promoting" in b.ctl("status") and "still at its connections" in b.ctl("promote", "web")
    assert 'takeover_state{service="web",state="promoting"} 1' in b.sh("curl -s http://127.0.0.1:9090/metrics")
    wait("it is done", lambda: b.state() == "alone", 5)
    assert time.monotonic() - start > 2.9
    assert re.search("the kernel is done with all connections, after 3[0-9]{3} ms", b.text()), b.text()
    b.ctl("protect", "web")
    b.place.joinpath("hang").write_text("join")
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    time.sleep(1.5)
    start = time.monotonic()
    b.place.joinpath("hang").unlink()
    b.ctl("promote", "web")
    assert time.monotonic() - start < 1
    end(a, b)


def joins() -> None:
    """Old connections are offered a copy several times a second; or not at all"""
    for service, least, most in ("", 6, 14), ("join = no", 0, 0):
        a, b = pair(service=service)
        before = len((a.place / "log").read_text().splitlines())
        time.sleep(2.5)
        said = (a.place / "log").read_text().splitlines()[before:]
        assert least <= len(said) <= most and all(line.startswith("join ") for line in said), said
        end(a, b)


def restarting() -> None:
    """A takeoverd that is just being started anew, or has no descriptor left, is asked again: nobody else will"""
    a, b = pair()
    statuses: dict[str, int] = {}
    b.kill()
    thread = promote(b, statuses)
    time.sleep(1)
    equal(statuses, {})
    assert "is takeoverd running?" in b.ctl("status", ok=1)
    b.start()
    thread.join()
    equal((statuses, a.state(), b.state()), ({"b": 0}, "abandoned", "alone"))
    b.ctl("protect", "web")
    wait("both are protected", lambda: a.state() == b.state() == "protected")
    assert b.process
    run("prlimit", "--pid", b.process.pid, "--nofile=60:60")
    crowd = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(100)]
    for one in crowd:
        one.connect(str(b.socket))
    wait("it says so", lambda: "no descriptors left" in b.text())
    statuses = {}
    thread = promote(b, statuses)
    time.sleep(0.5)
    equal(statuses, {})
    for one in crowd:
        one.close()
    thread.join()
    equal((statuses, a.state(), b.state()), ({"b": 0}, "abandoned", "alone"))
    end(a, b)
    # What is only of use does not keep it from being there; nor does an interface that comes later
    a.config.write_text(a.config.read_text().replace("metrics = 127.0.0.1:9090", "metrics = 192.0.2.99:9090").replace("= eth0", "= eth9").replace(
        "peer_log = 10.0.0.2", "peer_log = 10.0.0.1"))
    a.start()
    assert "metrics = 192.0.2.99:9090: there are none" in a.text(), a.text()
    wait("it knows itself", lambda: "is this host itself" in a.text())
    end(a)


def figures() -> None:
    """Prometheus is told, and the service manager"""
    a, b = pair()
    text = b.sh("curl -s http://127.0.0.1:9090/metrics")
    for line in ('takeover_state{service="web",state="protected"} 1', 'takeover_state{service="web",state="alone"} 0', "takeover_store_bytes 0",
                 'takeover_peer_alive{service="web"} 1', 'takeover_epoch{service="web"} 1', "# TYPE takeover_replies_total counter"):
        assert line in text.splitlines(), (line, text)
    equal(b.sh("curl -s http://127.0.0.1:9090/other"), "GET /metrics\n")
    end(a, b)


def address() -> None:
    """takeoverd moves addresses, when it is asked to, and the neighbours are told"""
    six = "2001:db8::10"
    hosts = []
    for name, number, role in ("a", 1, "primary"), ("b", 2, "backup"):
        host = Host(name, number, role, service=f"""manage_address = yes
[service six]
address = {six}
port = 80
role = {role}
peer = fd00::{3 - number}
peer_log = 10.0.0.{3 - number}:7550
interface = eth0
key_file = /run/key-six
manage_address = yes""")
        host.sh(f"ip address replace fd00::{number}/64 dev eth0 nodad; ip address flush dev lo to 192.0.2.10/32")
        hosts.append(host)
    a, b = hosts
    (PLACE / "key-six").write_text("11" * 16)
    (PLACE / "key-six").chmod(0o600)
    for host in hosts:
        host.start()

    def states(host: Host) -> list[str]:
        return [line.split()[3] for line in host.ctl("status").splitlines()[1:]]

    def addresses(host: Host, interface: str) -> list[bool]:
        text = host.sh(f"ip address show dev {interface}")
        return [f"{address} " in text for address in ("192.0.2.10/32", f"{six}/128")]

    wait("both are protected", lambda: states(a) == states(b) == ["protected"] * 2)
    equal((addresses(a, "eth0"), addresses(a, "lo"), addresses(b, "eth0")), ([False] * 2, [True] * 2, [True] * 2))
    assert f"ip6 daddr {six} tcp dport 80 dup to fd00::1" in b.sh("nft list table ip6 takeover")
    b.kill()
    b.sh(f"ip address flush dev eth0 to 192.0.2.10/32; ip address flush dev eth0 to {six}/128")
    for neighbour in "192.0.2.10", six:
        b.sh(f"ip neighbour replace {neighbour} lladdr 02:00:00:00:00:99 dev eth0 nud stale")
    a.ctl("promote", "all")
    wait("it has them", lambda: addresses(a, "eth0") == [True] * 2)
    mac = a.sh("ip -br link show dev eth0").split()[2]
    wait("the neighbours know", lambda: b.sh("ip neighbour show dev eth0").count(mac) >= 2 and "00:99" not in b.sh("ip neighbour show dev eth0"))
    # Who gives way does not answer for it any more
    b.start()
    wait("it has given way", lambda: states(b) == ["abandoned"] * 2 and addresses(b, "eth0") == [False] * 2)
    for host in hosts:
        host.sh("ip address flush dev eth0 to 192.0.2.10/32; ip address flush dev eth0 scope global to 2001:db8::/32")
    end(a, b)


main(at_first, switched, gone, other_way, healed, split, both, stood_still, where, goes_back, started_anew, asked_for, taken_out, taken_out_primary, full, clocks, refused, flushed, kernel_refuses, joins, restarting, figures, address)
