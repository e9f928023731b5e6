#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""adder [PORT]: answers each line, a number, with the sum of the client's numbers so far, and outlives its faults.

The lines "crash" and "abort" make it fault, once, at the worst instant: the sum is changed and recorded, the answer is
half sent, and the line is not released. One client at a time.
"""

import ctypes
import os
import socket
import stat
import struct
import sys

import perdure

# What it must know of its client: which socket; bytes of the lines in the sum and of the answers; sum; last answer
STATE = struct.Struct("<QQQq32s")


def sockets() -> list[socket.socket]:
    """Those that the old generation left."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode) and int(name) > 2:
                found.append(socket.socket(fileno=int(name)))
        except OSError:
            pass                    # listdir's own
    return found


def fault(line: bytes) -> None:
    if line == b"crash":
        ctypes.string_at(0)
    if line == b"abort":
        os.abort()


def serve(client: socket.socket, state: perdure.State, restarted: bool) -> None:
    me = os.fstat(client.fileno()).st_ino
    if STATE.unpack(state.data)[0] != me:
        state.update(0, STATE.pack(me, 0, 0, 0, b""))
    line = b""
    # Whatever is behind is done next: what the state says, or what the kernel says of the socket.
    while True:
        _, taken, given, total, answer = STATE.unpack(state.data)
        log = perdure.iolog(client)
        if left := given - log.written:
            answer = answer.rstrip(b"\0")
            half = left // 2 if line in (b"crash\n", b"abort\n") and not restarted else left
            perdure.lwrite(client, answer[len(answer) - left:][:half])
            if half != left:
                fault(line.strip())
        elif done := taken - log.released:
            if log.unread:          # not by this generation
                perdure.hread(client, done, done)
            else:
                perdure.release(client, done)
            line, restarted = b"", False
        else:
            more = perdure.hread(client, 1)
            line += more
            if not more:
                return
            if more == b"\n":
                try:
                    total += int(line)
                except ValueError:
                    pass
                answer = b"%d\n" % total
                state.update(0, STATE.pack(me, taken + len(line), given + len(answer), total, answer))


def main() -> None:
    info = perdure.info()
    restarted = info is not None and info.is_restarted
    if info and restarted:
        left = sockets()
        listener = next(s for s in left if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        clients = [s for s in left if s is not listener]
        print(f"generation {info.generation}: signal {info.signo}, {len(clients)} client", flush=True)
    else:
        perdure.register()
        listener = socket.create_server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 7008))
        clients = []
    state = perdure.State("adder", STATE.size)
    while True:
        with clients.pop() if clients else listener.accept()[0] as client:
            try:
                serve(client, state, restarted)
            except ConnectionError:
                pass                # it has gone, with an answer on its way perhaps: the next one, please
        restarted = False


if __name__ == "__main__":
    main()
