#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Strangers, and a member that lies: their connection ends, and nothing else does."""

import ctypes
import hashlib
import hmac
import random
import socket
import struct
import time

from takeover import ADDRESS, BACKUP, LOG, PORT, PRIMARY, Host, end, equal, main, pair

libc = ctypes.CDLL(None, use_errno=True)
draw = random.Random(7)
KEY = bytes.fromhex("00112233445566778899aabbccddeeff")
LOGS, PEER = 1, 2
BEGIN, DATA, END, END_SAY, ABORT, STORED, REFUSED = range(1, 8)
HEAD = struct.Struct("!IIQQ")
WORDS = struct.Struct("!IIQII6I")


def at(host: Host) -> socket.socket:
    """From the other host's network"""
    other = {"a": "b", "b": "a"}[host.name]
    with open("/proc/self/ns/net") as home, open(f"/run/netns/{other}") as there:
        equal(libc.setns(there.fileno(), 0), 0)
        try:
            return socket.create_connection((f"10.0.0.{host.number}", LOG), 5)
        finally:
            libc.setns(home.fileno(), 0)


def hello(kind: int = LOGS, magic: bytes = b"TAKEOVER", version: int = 1, port: int = PORT) -> bytes:
    return magic + struct.pack("!HHH", version, kind, 4) + struct.pack("!H", port) + socket.inet_aton(ADDRESS).ljust(16, b"\0") + draw.randbytes(32)


def read(s: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := s.recv(size - len(data))):
        data += more
    return data


def ended(s: socket.socket) -> bool:
    s.settimeout(5)
    try:
        while s.recv(100):
            pass
        return True
    except ConnectionError:
        return True


def greeted(host: Host, kind: int = LOGS) -> socket.socket:
    return greet(host, kind)[0]


def greet(host: Host, kind: int) -> tuple[socket.socket, bytes]:
    """And what all that is signed on it begins with."""
    s, mine = at(host), hello(kind)
    s.sendall(mine)
    challenge = read(s, 64)
    equal(challenge[32:], hmac.new(KEY, b"listener" + mine + challenge[:32], hashlib.sha256).digest())
    s.sendall(hmac.new(KEY, b"dialler\0" + mine + challenge[:32], hashlib.sha256).digest())
    equal(read(s, 4), bytes(4))
    return s, mine + challenge[:32]


def seal(what: bytes, session: bytes, message: bytes) -> bytes:
    return hmac.new(KEY, what + session + message, hashlib.sha256).digest()


def works(a: Host, b: Host, number: int) -> None:
    a.client(PRIMARY, 999).reply(999, number, "works")
    equal(b.client(BACKUP, 999).do("wait", 999, number)[::3], ["REPLY", "works"])


def strangers() -> None:
    """Who does not know the key learns nothing, and is hung up on; who says nothing is not waited for"""
    a, b = pair()
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n" * 8, hello(magic=b"TAKEUNDE"), hello(version=2), hello(port=81), draw.randbytes(64)):
        s = at(b)
        s.sendall(nonsense)
        assert ended(s)
    for proof in (bytes(32), draw.randbytes(32)):
        s = at(b)
        s.sendall(hello())
        read(s, 64)
        s.sendall(proof)
        assert ended(s)
    # What it said itself is no proof
    s, mine = at(b), hello()
    s.sendall(mine)
    s.sendall(read(s, 64)[32:])
    assert ended(s)
    assert "another key" in b.text()
    # Nor what another has said before: a challenge is used once
    silent = [at(b) for _ in range(400)]
    start = time.monotonic()
    works(a, b, 1)
    assert all(ended(s) for s in silent) and time.monotonic() - start < 8
    works(a, b, 2)
    end(a, b)


def not_the_protocol() -> None:
    """One that has the key, and does not keep to the protocol, is hung up on"""
    a, b = pair()
    begin = HEAD.pack(BEGIN, 0, 5, 1)
    for data in (HEAD.pack(DATA, 5, 5, 1) + b"12345", HEAD.pack(END, 0, 5, 1), HEAD.pack(99, 0, 5, 1), HEAD.pack(0, 0, 0, 0), HEAD.pack(BEGIN, 1, 5, 1),
                 begin + begin, begin + HEAD.pack(DATA, 5, 6, 1), begin + HEAD.pack(DATA, 5, 5, 2), begin + HEAD.pack(DATA, (1 << 20) + 1, 5, 1),
                 begin + HEAD.pack(DATA, 0xffffffff, 5, 1), begin + HEAD.pack(END, 7, 5, 1), begin + HEAD.pack(STORED, 0, 5, 1)):
        s = greeted(b)
        s.sendall(data)
        assert ended(s), data
    for _ in range(100):
        s = greeted(b)
        s.sendall((begin if draw.random() < 0.5 else b"") + draw.randbytes(draw.randrange(1, 3000)))
        s.close()
    s = greeted(b, PEER)
    s.sendall(bytes([255]) * 80)
    assert ended(s)
    works(a, b, 1)
    equal(b.status()["state"], "protected")
    end(a, b)


def changed() -> None:
    """What members say cannot be changed on its way, nor said again, nor in the other direction"""
    a, b = pair()
    b.kill()
    protect, other = (WORDS.pack(2, 0, epoch, 1, 0, *[0] * 6) for epoch in (1, 9))
    sessions = [greet(a, PEER) for _ in range(4)]
    seals = [seal(b"question", session, protect) for _, session in sessions]
    # Another message, an answer, no seal, and what was said on another connection
    for (s, session), said in zip(sessions, (other + seals[0], protect + seal(b"answer__", sessions[1][1], protect), protect + bytes(32), protect + seals[0])):
        s.sendall(said)
        assert ended(s), said
    assert "was changed on its way" in a.text(), a.text()
    equal((a.state(), a.status()["epoch"]), ("protected", 1))
    end(a)


def slow() -> None:
    """Byte by byte it is understood"""
    a, b = pair()
    s = greeted(b)
    for byte in HEAD.pack(BEGIN, 0, 5, 1) + HEAD.pack(DATA, 3, 5, 1) + b"abc" + HEAD.pack(DATA, 0, 5, 1) + HEAD.pack(END_SAY, 0, 5, 1):
        s.sendall(bytes([byte]))
        time.sleep(0.002)
    equal(HEAD.unpack(read(s, 24)), (STORED, 0, 5, 1))
    equal(b.client(BACKUP, 5).do("wait", 5, 1)[::3], ["REPLY", "abc"])
    # What has been answered is not logged again
    for number in (1, 0):
        s.sendall(HEAD.pack(BEGIN, 0, 5, number))
        equal(HEAD.unpack(read(s, 24)), (REFUSED, 0, 5, number))
        s.sendall(HEAD.pack(END_SAY, 0, 5, number))
        equal(HEAD.unpack(read(s, 24)), (REFUSED, 0, 5, number))
    # Nor by two at once
    other = greeted(b)
    s.sendall(HEAD.pack(BEGIN, 0, 5, 2))
    time.sleep(0.1)
    other.sendall(HEAD.pack(BEGIN, 0, 5, 2))
    equal(HEAD.unpack(read(other, 24)), (REFUSED, 0, 5, 2))
    end(a, b)


def crowds() -> None:
    """Replies that nobody fetches take no more than store_limit"""
    a, b = pair(options="store_limit = 2M")
    s = greeted(b)
    refused = 0
    for number in range(1, 1001):
        s.sendall(HEAD.pack(BEGIN, 0, number, 1) + HEAD.pack(DATA, 1, number, 1) + b"x" + HEAD.pack(END_SAY, 0, number, 1))
        answer = HEAD.unpack(read(s, 24))[0]
        if answer == REFUSED:
            refused += 1
            s.settimeout(0.05)
            try:
                read(s, 24)     # it says so at the beginning, and at the end
            except TimeoutError:
                pass
            s.settimeout(5)
            if refused > 10:
                break
    assert refused > 10 and number > 400, (refused, number)
    equal(b.client(BACKUP, 1).do("wait", 1, 1)[::3], ["REPLY", "x"])
    end(a, b)


def here() -> None:
    """A process of this host that does not keep to the protocol is hung up on"""
    a, b = pair()
    request = struct.Struct("=IIQQHH16sI")
    for data in (b"", b"x", request.pack(1, 77, 0, 0, 0, 0, b"", 0), request.pack(2, 1, 0, 0, 0, 0, b"", 0), bytes(560),
                 request.pack(1, 1, 1, 1, 2, 80, bytes(16), 0)[:-8]):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(5)
        s.connect(str(b.socket))
        if data:
            s.sendall(data)
            equal(s.recv(100), b"")
        s.close()
    service = (socket.AF_INET, socket.htons(PORT), socket.inet_aton(ADDRESS).ljust(16, b"\0"))
    # Two that wait for the same: the second one is refused. One that asks twice at once is hung up on.
    waits = []
    for _ in range(2):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(5)
        s.connect(str(b.socket))
        s.sendall(request.pack(1, 1, 4, 1, *service, 0) + bytes(4))
        waits.append(s)
    equal(struct.unpack("=I", waits[1].recv(100)[:4])[0], 6)
    waits[0].sendall(request.pack(1, 1, 4, 2, *service, 0) + bytes(4))
    equal(waits[0].recv(100), b"")
    # Many that go away
    for i in range(300):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.connect(str(b.socket if i % 2 else a.socket))
        s.sendall(request.pack(1, draw.randrange(4), i, 1, *service, draw.randrange(2)) + bytes(4))
        s.close()
    works(a, b, 1)
    end(a, b)


def old_news() -> None:
    """A peer that has been promoted is right, though its answers were lost; one that tells what it was before is not"""
    a, b = pair()
    b.kill()

    def ask(host: Host, verb: int, state: int, epoch: int) -> int:
        s, session = greet(host, PEER)
        message = WORDS.pack(verb, state, epoch, 1, 0, *[0] * 6)
        s.sendall(message + seal(b"question", session, message))
        answer = read(s, WORDS.size + 32)
        equal(answer[WORDS.size:], seal(b"answer__", session, answer[:WORDS.size]))
        return int(WORDS.unpack(answer[:WORDS.size])[0])

    asks, protects, answers, yes, no = 0, 2, 3, 4, 5
    waits, alone = 0, 2
    for epoch in 2, 3, 4:
        equal(ask(a, protects, waits, 1), yes)
        equal(a.status()["epoch"], epoch)
    equal((ask(a, asks, alone, 1), a.state()), (answers, "protected"))
    equal((ask(a, asks, alone, 2), a.state()), (answers, "abandoned"))
    # What is answered by no has changed nothing
    b.start()
    a.kill()
    equal((ask(b, protects, alone, 0), b.state(), b.ops()[-1]), (no, "protected", "set 2"))
    end(b)


main(strangers, not_the_protocol, changed, slow, crowds, here, old_news)
