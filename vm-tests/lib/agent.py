#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
In a guest: agent.py HOSTNAME [NETWORK=MAC=ADDRESS/LENGTH,...]... sets its interfaces up, then runs the commands that net.py
sends to its stdin, several at once, and says on stdout what they say. It ends with its stdin.
"""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

# Of each message: the command's number, what it is, and the length of the rest
HEAD = struct.Struct(">IcI")
READY, RUN, SIGNAL, OUTPUT, END = b"r", b"x", b"k", b"o", b"e"

speaking = threading.Lock()
running: dict[int, int] = {}


def tell(number: int, kind: bytes, data: bytes = b"") -> None:
    message = HEAD.pack(number, kind, len(data)) + data
    with speaking:
        while message:
            message = message[os.write(1, message):]


def set_up(nics: list[str]) -> None:
    settings = Path("/proc/sys/net/ipv6/conf")
    for name, value in (("accept_dad", "0"), ("accept_ra", "0"), ("router_solicitations", "0")):
        (settings / "default" / name).write_text(value)
    devices = {path.parent.name: path.read_text().strip() for path in Path("/sys/class/net").glob("*/address")}
    commands = []
    for nic in nics:
        name, mac, addresses = nic.split("=")
        device = next(device for device, address in devices.items() if address == mac)
        for setting in ("accept_dad", "accept_ra", "router_solicitations"):
            (settings / device / setting).write_text((settings / "default" / setting).read_text())
        commands.append(f"link set dev {device} name {name}")
        commands += [f"address add {address} dev {name}" for address in addresses.split(",") if address]
        commands.append(f"link set dev {name} up")
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)


def follow(number: int, process: "subprocess.Popen[bytes]") -> None:
    """Says what it says, also what it leaves behind, and how it ends."""
    assert process.stdout
    pipe, watch = process.stdout.fileno(), os.pidfd_open(process.pid)
    waiting = {pipe, watch}
    while waiting:
        ready, _, _ = select.select(waiting, [], [])
        if pipe in ready:
            if data := os.read(pipe, 65536):
                tell(number, OUTPUT, data)
            else:
                waiting.discard(pipe)
        elif watch in ready:
            waiting.discard(watch)
            del running[number]
            tell(number, END, str(process.wait()).encode())
    process.stdout.close()
    os.close(watch)


def run(number: int, data: bytes) -> None:
    header, _, given = data.partition(b"\n")
    wish = json.loads(header)
    stdin = os.memfd_create("stdin")
    with os.fdopen(stdin, "wb") as f:
        f.write(given)
        f.seek(0)
        try:
            process = subprocess.Popen(wish["argv"], cwd="/", env=os.environ | wish["env"], stdin=stdin, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            tell(number, OUTPUT, f"{wish['argv'][0]}: {error.strerror}\n".encode())
            tell(number, END, b"127")
            return
    running[number] = process.pid
    threading.Thread(target=follow, args=(number, process), daemon=True).start()


def main() -> None:
    socket.sethostname(sys.argv[1])
    set_up(sys.argv[2:])
    tell(0, READY)
    while head := sys.stdin.buffer.read(HEAD.size):
        number, kind, length = HEAD.unpack(head)
        data = sys.stdin.buffer.read(length)
        if kind == RUN:
            run(number, data)
        elif pid := running.get(number):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.Signals(int(data)))


if __name__ == "__main__":
    main()
