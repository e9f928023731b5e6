#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Logs, files and methods that are not as they should be: a clear error, and nothing is lost."""

import json
import os
import shutil
import struct
import subprocess

from replay import CTL, PLACE, SERVICE, Server, Session, ctl, equal, main, run

RING = 8192


def changed(server: Server, **options: str) -> str:
    """What it says to its file with these lines instead."""
    text = server.config.read_text()
    for name, value in options.items():
        lines = [line for line in text.splitlines() if not line.startswith(f"{name} ")]
        at = lines.index("[server]") + 1
        text = "\n".join(lines[:at] + ([f"{name} = {value}"] if value else []) + lines[at:]) + "\n"
    other = PLACE / "changed.conf"
    other.write_text(text)
    return other.name


def refusal(config: str) -> str:
    done = subprocess.run([SERVICE, PLACE / config], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=30)
    equal(done.returncode, 1)
    return done.stderr


def files() -> None:
    """A file of options that is wrong: which line, and what is possible"""
    s = Server("files")
    for options, want in (({"threads": "0"}, "threads = 0"), ({"threads": "many"}, "a number from 1"), ({"request_log": "1"}, "a size"),
                          ({"session_ttl": "1"}, "a time"), ({"threds": "4"}, "no option threds"), ({"name": ""}, "wants a name"),
                          ({"log": ""}, "wants a log"), ({"listen": ""}, "wants a listen"), ({"listen": "nowhere"}, "address:port"),
                          ({"listen": "127.0.0.1:999999"}, "127.0.0.1:999999"), ({"control": "/" + "x" * 150}, "at most"),
                          ({"control": str(PLACE / "no/where.sock")}, "No such file")):
        text = refusal(changed(s, **options))
        assert want in text, (options, text)
    for more, want in (("[member files]\nnumber = 64\n", "0 to 63"), ("[member other]\nnumber = 1\nurl = http://x\n", "not among the members"),
                       ("[service x]\nurl = ftp://x\n", "http://"), ("[service x]\n[service y]\nprotocol = soap\n", "protocol"),
                       ("[srever]\na = b\n", "there is no section"), ("rubbish\n", "neither [section]"),
                       ("[member files]\nnumber = 0\nurl = http://x\n", "[domain] wants a listen"),
                       (f"[domain]\nlisten = 127.0.0.1:0\nkey = {PLACE}/none\n", "No such file"),
                       (f"[domain]\nkey = {s.config}\n", "one line of 16"), ("[service x]\nprotocol = replay\n", "has no url")):
        (PLACE / "changed.conf").write_text(s.config.read_text() + more)
        text = refusal("changed.conf")
        assert want in text and "changed.conf" in text, (more, text)
    assert "No such file" in refusal("none.conf")
    run(SERVICE, ok=2)


def logs() -> None:
    """No log, another's, one in use, an old format, a smaller device: each says what to do"""
    s = Server("logs")
    moved = PLACE / "moved.log"
    os.rename(s.log, moved)
    assert "replayctl format" in s.fails()
    s.log.write_bytes(b"something" * 100000)
    assert "it is no log" in s.fails()
    assert "no log: --force" in ctl("format", s.log, ok=1)
    equal(s.log.read_bytes()[:9], b"something")
    os.mkdir(PLACE / "a-directory")
    assert "neither a file nor" in ctl("verify", PLACE / "a-directory", ok=1)
    os.rename(moved, s.log)
    s.start()
    assert "a server has this log open" in s.fails()
    assert "a server has this log open" in ctl("verify", s.log, ok=1)
    assert "a server has this log open" in ctl("format", s.log, "--force", ok=1)
    Session(s).call("add", "x 1")
    s.stop()
    assert "holds a log" in ctl("format", s.log, ok=1)
    whole = s.log.read_bytes()
    for slot in 0, 4096:
        with s.log.open("r+b") as f:
            f.seek(slot + 19)
            f.write(struct.pack("<I", 99))
    assert "another version" in s.fails()
    s.log.write_bytes(whole)
    os.truncate(s.log, len(whole) - 4096)
    assert "smaller than the log" in s.fails()
    s.log.write_bytes(whole)
    assert "eighth" in refusal(changed(s, request_log="4M"))
    for wrong in "--size", "--size x", "--size 5 k", "bad", "--bad":
        run("sh", "-c", f"{CTL} format {PLACE}/w.log {wrong}", ok=2)
    assert "at least" in ctl("format", PLACE / "w.log", "--size", "64k", ok=1)
    assert not (PLACE / "w.log").exists()
    ctl("format", s.log, "--force")
    assert ", 0 in use" in ctl("verify", s.log)


def last_block(server: Server) -> tuple[int, bytes]:
    """Where the device's last good block begins, and the whole of it."""
    data = server.log.read_bytes()
    used = json.loads(ctl("dump", server.log, "--json").splitlines()[-1])["lsn"]
    at = RING + used
    while data[at:at + 4] != b"RPBL":
        at -= 1
    return at, data


def torn() -> None:
    """A last block that is torn was never acknowledged, and is left out; one in the middle is damage, and is said"""
    s = Server("torn").start()
    client = Session(s)
    for _ in range(5):
        client.call("add", "x 1")
    s.kill()
    at, data = last_block(s)
    with s.log.open("r+b") as f:
        f.seek(at + 60)
        f.write(b"\xff" * 20)
    s.start()
    equal(client.once("look", "x", 5)[0], 200)
    s.kill()
    s.log.write_bytes(data)
    with s.log.open("r+b") as f:
        f.seek(data.index(b"RPBL") + 60)
        f.write(b"\xff" * 20)
    assert "damaged" in s.fails()
    assert "damaged" in ctl("verify", s.log, ok=1)
    s.log.write_bytes(data)
    s.start()
    equal(client.call("add", "x 1"), (200, "6 6\n"))
    # One of two anchors may be bad, whichever; both may not
    for slot in 0, 4096:
        s.stop()
        with s.log.open("r+b") as f:
            f.seek(slot + 100)
            f.write(b"\xff")
        s.start()
        client.call("add", "x 1")
    s.stop()
    with s.log.open("r+b") as f:
        for slot in 0, 4096:
            f.seek(slot + 100)
            f.write(b"\xff")
    assert "damaged" in s.fails()


def diverges() -> None:
    """A method that does something else when it is replayed: the session stops with what and where; others go on"""
    s = Server("diverges").start()
    bad, good = Session(s), Session(s)
    equal(bad.call("fickle")[0], 200)
    equal(good.call("add", "x 1"), (200, "1 1\n"))
    s.again()
    status, headers, text = bad.once("fickle", b"", 2)
    equal((status, headers["Replay-Answer"]), (500, "stuck"))
    assert "method fickle" in text and "pid-" in text and "record at" in text, text
    equal(good.call("add", "x 1"), (200, "2 2\n"))
    equal(s.figures()["stuck"], 1)
    assert "pid-" in ctl("sessions", s.control)
    s.stop()


def versions() -> None:
    """A method changes while sessions are in flight: without its old version they stop with a message"""
    s = Server("versions").start()
    client = Session(s)
    equal(client.call("add", "x 1")[0], 200)
    s.again({"ADD_VERSION": "2"})
    status, _, text = client.once("add", "x 1", 2)
    equal(status, 500)
    assert "version 1" in text and "add" in text, text
    s.again()
    equal(client.call("add", "x 1"), (200, "2 2\n"))
    s.stop()


def full() -> None:
    """A small log under much work: who cannot be served is told to ask again, and space is used again for ever"""
    s = Server("full", "request_log = 64k\nserver_checkpoint = 128k\nsession_checkpoint = 32k", size="1100k").start()
    clients = [Session(s) for _ in range(4)]
    for i in range(100):
        for client in clients:
            status, text = client.call("echo", b"z" * 20000)
            equal((status, len(text)), (200, 20000))
    figures = s.figures()
    assert figures["log"]["end"] > 4 * figures["log"]["size"], figures
    s.again()
    for client in clients:
        equal(client.call("add", "x 1")[0], 200)
    s.stop()


def limits() -> None:
    """A disk that is full when a log is made, and a directory that may not be written"""
    shutil.rmtree(PLACE / "ro", ignore_errors=True)
    assert "No such file" in ctl("format", PLACE / "ro/x.log", "--size", "2M", ok=1)
    script = f'mount -t tmpfs -o size=4m tmp "$1" && {CTL} format "$1/x.log" --size 64M; status=$?; ls "$1"; exit $status'
    (PLACE / "small").mkdir(exist_ok=True)
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", PLACE / "small"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    equal(done.returncode, 1)
    assert "No space left" in done.stdout and "x.log:" in done.stdout and "\nx.log\n" not in done.stdout, done.stdout


main(files, logs, torn, diverges, versions, full, limits)
