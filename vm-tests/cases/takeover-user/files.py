#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What is wrong with a file is said, and where; what has to be installed, too; keys, and the programs' own options."""

import re
import stat
import subprocess

from takeover import CTL, DAEMON, PLACE, Host, equal, main, run

GOOD = Host("a", 1, "primary").config.read_text()
FILE = PLACE / "wrong.conf"


def says(text: str, *argv: str) -> str:
    FILE.write_text(text)
    done = subprocess.run(["nsenter", "--net=/run/netns/a", "--", str(DAEMON), "--config", str(FILE), "--check", *argv], capture_output=True, text=True)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    return done.stderr


def each_line() -> None:
    """Each mistake in a line is told with the file, the line and what would be right"""
    key = re.search("key_file = (.*)", GOOD)
    assert key
    open_key, short_key, null_key = (PLACE / name for name in ("open", "short", "null"))
    for path, text, mode in (open_key, "00112233445566778899aabbccddeeff", 0o644), (short_key, "0011", 0o600), (null_key, "0" * 32, 0o600):
        path.write_text(text + "\n")
        path.chmod(mode)
    mistakes = {
        "log_listen = 0.0.0.0:7550": [("log_listen = 10.0.0.1", "not an address and a port"), ("log_listen = 10.0.0.1:0", "not an address and a port"),
                                      ("log_listen = ::1:80", "not an address and a port"), ("log_listen = name:80", "not an address and a port")],
        "address = 192.0.2.10": [("address = 192.0.2.300", "not an address"), ("address =", "not an address"), ("adress = 192.0.2.10", "no option adress"),
                                 ("address = 0.0.0.0", "no host's address"), ("address = 224.0.0.1", "address of many hosts"),
                                 ("address = 255.255.255.255", "address of many hosts"), ("address = ::", "no host's address"),
                                 ("address = ::ffff:192.0.2.10", "write it as an IPv4 address")],
        "peer = 10.0.1.2": [("peer = 0.0.0.0", "no host's address"), ("peer = ::", "no host's address"), ("peer = 224.0.0.1", "address of many hosts"),
                            ("peer = ::ffff:10.0.1.2", "write it as an IPv4 address"), ("peer = ff02::1", "address of many hosts")],
        "peer_log = 10.0.0.2:7550": [("peer_log = 0.0.0.0:7550", "no host's address"), ("peer_log = [ff02::1]:7550", "address of many hosts")],
        "port = 80": [("port = 0", "not from 1 to 65535"), ("port = 65536", "not from 1 to 65535"), ("port = http", "not from 1 to 65535")],
        "role = primary": [("role = main", "it is primary or backup")],
        "interface = eth0": [("interface = eth/9", "that is no name of an interface")],
        "patience = 1s": [("join = maybe", "it is yes or no"), ("manage_address = 1", "it is yes or no"), ("patience = 1", "not a time"),
                          ("patience = 10ms", "not a time"), ("patience = 2d", "not a time")],
        key[0]: [(f"key_file = {open_key}", "others can read or change it"), (f"key_file = {short_key}", "not 32 hexadecimal digits"),
                 (f"key_file = {null_key}", "not 32 hexadecimal digits"), ("key_file = /none", "No such file")],
        "[host]": [("[hosts]", "there is no section [hosts]"), ("[service all]", 'not "all"'), ("[service a/b]", "letters, digits"),
                   (f"[service {41 * 'n'}]", "up to 40 letters"), ("nonsense", "neither [section]"), ("x = y", "before any [section]")],
        "metrics = 127.0.0.1:9090": [("store_limit = 1", "not a size"), ("store_limit = 1T", "not a size"), ("control = run", "not a path"),
                                     ("arbitrate = 1ms", "not a time"), ("colour = red", "[host] has no option colour"), ("group =", "group has no value")],
    }
    for line, wrongs in mistakes.items():
        assert line in GOOD, line
        for wrong, why in wrongs:
            text = GOOD.replace(line, wrong, 1)
            number = text.split("\n").index(wrong) + 1
            said = says(text)
            assert f"{FILE}:" in said and why in said, (wrong, said)
            # A section is wrong where it is used first
            assert wrong.startswith("[") or f"{FILE}:{number}:" in said, (wrong, said)


def whole_file() -> None:
    """What is missing, and what does not fit together"""
    for name in ("address", "port", "role", "peer", "peer_log", "interface", "key_file"):
        said = says(re.sub(rf"(?m)^{name} = .*\n", "", GOOD))
        assert f"[service web] wants a {name}" in said, said
    assert "[host] wants a log_listen" in says(re.sub("log_listen.*", "", GOOD))
    assert "there is no [service NAME]" in says(GOOD.split("[service")[0])
    for line in GOOD.splitlines():
        name = line.split(" ")[0]
        if " = " in line:
            said = says(GOOD.replace(line, f"{line}\n{line}", 1))
            assert f"{name} is given twice" in said and f"{FILE}:{GOOD.splitlines().index(line) + 2}:" in said, said
    for line in "join = no", "manage_address = no":
        assert "is given twice" in says(GOOD.replace("role = primary", f"role = primary\n{line}\n{line}"))
    for line in "store_limit = 1M", "arbitrate = 1s", "group = root":
        assert "is given twice" in says(GOOD.replace("[host]", f"[host]\n{line}\n{line}"))
    assert "peer is the service's own address" in says(GOOD.replace("peer = 10.0.1.2", "peer = 192.0.2.10"))
    assert "peer_log is the service's own address" in says(GOOD.replace("peer_log = 10.0.0.2", "peer_log = 192.0.2.10"))
    assert "not of the same family" in says(GOOD.replace("peer = 10.0.1.2", "peer = 2001:db8::1"))
    service = "[service " + GOOD.split("[service ")[1]
    assert "the same address and port" in says(GOOD + service.replace("service web", "service other"))
    assert "No such file" in run(*Host("b", 2, "backup").inside(DAEMON, "--config", "/none"), ok=2)
    # And what is right is right
    FILE.write_text(GOOD + service.replace("service web", "service six").replace("192.0.2.10", "2001:db8::10").replace("10.0.1.2", "fe80::1%eth0"))
    said = run("nsenter", "--net=/run/netns/a", "--", DAEMON, "--config", FILE, "--check", ok=1)
    assert "TCP_REPLICA" in said and FILE.name not in said, said


def host() -> None:
    """What the host lacks"""
    done = subprocess.run(Host("a", 1, "primary").inside("env", "PATH=/nonexistent", DAEMON, "-c", Host("a", 1, "primary").config, "--check"),
                          capture_output=True, text=True)
    equal(done.returncode, 1)
    assert "nft is not there: install nftables" in done.stdout and "ip is not there: install iproute2" in done.stdout, done.stdout
    done = subprocess.run(Host("a", 1, "primary").inside("env", "PATH=/nonexistent", DAEMON, "-c", Host("a", 1, "primary").config), capture_output=True, text=True,
                          timeout=20)
    equal(done.returncode, 1)
    assert "nft: No such file or directory: it has to be installed" in done.stderr, done.stderr
    a = Host("a", 1, "primary", options="group = nobody-has-it")
    said = run(*a.inside(DAEMON, "-c", a.config), ok=1)
    assert "there is no such group" in said, said
    said = run(*a.inside(DAEMON, "-c", a.config, "--check"), ok=1)
    assert "group = nobody-has-it: there is no such group: takeoverd does not start" in said, said
    a = Host("a", 1, "primary", options="group = root").start()
    equal((stat.S_IMODE(a.socket.stat().st_mode), stat.S_IMODE(a.store.stat().st_mode)), (0o660, 0o2750))
    said = run(*a.inside(DAEMON, "-c", a.config), ok=1)
    assert "another takeoverd runs" in said, said
    a.stop()
    assert not a.socket.exists()


def keys() -> None:
    """takeoverctl makes keys, and says what it does not know"""
    one, two = PLACE / "one", PLACE / "two"
    for path in (one, two):
        run(CTL, "key", path)
        equal(stat.S_IMODE(path.stat().st_mode), 0o600)
        assert re.fullmatch(r"[0-9a-f]{32}\n", path.read_text())
    assert one.read_text() != two.read_text()
    assert "File exists" in run(CTL, "key", one, ok=1)
    assert f"{PLACE}/none/key: its directory is not there: make it first" in run(CTL, "key", PLACE / "none/key", ok=1)
    for argv in (), ("promote",), ("status", "x", "y"), ("unknown", "x"), ("--none",):
        run(CTL, *argv, ok=2)
    assert "No such file" in run(CTL, "--socket", "/none", "status", ok=1)
    for program in (CTL, DAEMON):
        assert re.fullmatch(r"takeover(ctl|d) [\d.]+\n", run(program, "--version"))
        assert "usage:" in run(program, "--help")
    run(DAEMON, "x", ok=2)


main(each_line, whole_file, host, keys)
