#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""In the guest, once it is up: says which kernel runs, and what becomes of a download when its server faults."""

import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time

# More than the buffers of a connection hold: a server that dies early leaves a download that is not whole
SIZE = 24_000_000


def say(text: str) -> None:
    with open("/dev/console", "w") as console:
        console.write(f"\nPERDURE: {text}\n")


def download() -> str:
    os.makedirs("/srv/www", exist_ok=True)
    data = os.urandom(SIZE)
    with open("/srv/www/big.bin", "wb") as f:
        f.write(data)
    server = subprocess.Popen(["zhttpd", "-a", "127.0.0.1", "-p", "0", "-d", "/srv/www"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    port = next(int(found[1]) for line in server.stdout if (found := re.search(r"port (\d+)$", line.strip())))
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(b"GET /big.bin HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        got = bytearray()
        while len(got) < SIZE // 5:
            got += client.recv(65536)
        os.kill(server.pid, signal.SIGSEGV)
        try:
            while part := client.recv(65536):
                got += part
        except OSError:
            pass
    time.sleep(1)
    body = bytes(got).partition(b"\r\n\r\n")[2]
    same = hashlib.sha256(body).digest() == hashlib.sha256(data).digest()
    alive = server.poll() is None
    server.kill()
    return f"download {'equal' if same else 'damaged'}, server {'alive' if alive else 'dead'}"


try:
    say(f"kernel {os.uname().release}")
    if shutil.which("zhttpd"):
        say(download())
    say("done")
except Exception as error:
    say(f"error {error!r}")
finally:
    subprocess.run(["systemctl", "poweroff", "--force"])
