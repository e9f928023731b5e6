#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""In the guest, once it is up: says which kernel runs, and what becomes of a download when its server faults."""

import glob
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


def restarts(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/restart") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("restarts:"))
    except (OSError, StopIteration):
        return 0


def unit() -> str:
    """A service that knows nothing of a restart, with the drop-in of the manual: the kernel first, then systemd."""
    example = glob.glob("/usr/share/doc/perdure*/**/perdure.conf", recursive=True)[0]
    os.makedirs("/etc/systemd/system/unaware.service.d", exist_ok=True)
    with open(example) as source, open("/etc/systemd/system/unaware.service.d/perdure.conf", "w") as drop_in:
        # Emulated, five faults can take longer than a minute
        text = source.read().replace("/usr/sbin/NAME --its --options", "/usr/bin/sleep 1000").replace(" 60000 ", " 600000 ")
        drop_in.write(text)
    with open("/etc/systemd/system/unaware.service", "w") as file:
        file.write("[Service]\nExecStart=/usr/bin/sleep 1000\n")
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    subprocess.run(["systemctl", "start", "unaware"], check=True)

    def shown(what: str) -> int:
        return int(subprocess.run(["systemctl", "show", "-p", what, "--value", "unaware"], stdout=subprocess.PIPE, text=True).stdout)

    def name(pid: int) -> str:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()

    pid, kept, end = shown("MainPID"), 0, time.monotonic() + 300
    while name(pid) != "sleep":     # until perdurectl has started it
        time.sleep(0.1)
    while kept < 10:
        subprocess.run(["systemctl", "kill", "-s", "SEGV", "unaware"], check=True)
        # When it dies, systemd waits a little before it starts another one
        while restarts(pid) != kept + 1 and not shown("NRestarts"):
            if time.monotonic() > end:
                return f"unit: nobody restarts it after {kept} restarts"
            time.sleep(0.1)
        if shown("NRestarts"):
            break
        kept += 1
    second = shown("NRestarts")     # which a stop resets
    subprocess.run(["systemctl", "stop", "unaware"], check=True)
    return f"unit: {kept} restarts by the kernel, {second} by systemd"


try:
    say(f"kernel {os.uname().release}")
    if shutil.which("zhttpd"):
        say(download())
        say(unit())
    say("done")
except Exception as error:
    say(f"error {error!r}")
finally:
    subprocess.run(["systemctl", "poweroff", "--force"])
