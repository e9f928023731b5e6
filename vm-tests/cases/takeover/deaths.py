#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A download goes on when either host dies."""

import hashlib
import sys
import time

from pair import ADDRESS, OTHER, PORT, SEED, Network, Pair, equal, main, wait

SERVER = """
import random, socket, socketserver, sys, time
text = random.Random(7).randbytes(int(sys.argv[1]))
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            self.wfile.write(text)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024
s = Server(("0.0.0.0", 80), Handler)
print("listens", flush=True)
s.serve_forever()
"""
CLIENT = """
import hashlib, socket, sys, time
size = int(sys.argv[2])
s = socket.create_connection((sys.argv[1], 80), 30)
s.settimeout(30)
print("connected", flush=True)
number = 0
while True:
    s.sendall(b"GET\\n")
    got, longest, last = hashlib.sha256(), 0, time.monotonic()
    left = size
    while left:
        data = s.recv(min(left, 65536))
        assert data, "ended"
        got.update(data)
        left -= len(data)
        now = time.monotonic()
        longest = max(longest, now - last)
        last = now
    number += 1
    print("got", number, got.hexdigest(), round(longest * 1000), flush=True)
    time.sleep(0.05)
"""
SIZE = 4_000_000


def dies(which: str, how: str) -> None:
    import random
    want = hashlib.sha256(random.Random(7).randbytes(SIZE)).hexdigest()
    with Network(f"takeover-{which}-{how}", SEED) as net:
        pair = Pair(net)
        for name in OTHER:
            pair.hosts[name].python(SERVER, SIZE).says("listens")
        pair.watch()
        client = pair.client.python(CLIENT, ADDRESS, SIZE)
        client.says("got 2 ")
        print(pair.kernel("one"), pair.kernel("two"), file=sys.stderr)
        time.sleep(0.35)
        getattr(pair.hosts[which], how)()
        start = time.monotonic()
        count = client.text().count("got")
        try:
            wait("downloads go on", lambda: client.text().count("got") > count + 3, 40)
        finally:
            other = OTHER[which]
            print(client.text(), pair.status(other), pair.kernel(other), pair.said(other)[-3000:], sep="\n", file=sys.stderr)
        print(f"# {client.text()}".replace("\n", "\n# "))
        assert all(line.split()[2] == want for line in client.text().splitlines() if line.startswith("got"))


def primary() -> None:
    """The primary's host is killed"""
    dies("one", "kill")


def backup() -> None:
    """The backup's host is killed"""
    dies("two", "kill")


main(primary, backup)
