#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""In a guest: attach.py PORT COMMAND... has the host's disk at that port as /dev/nbd0 while COMMAND runs."""

import fcntl
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from nbd import SECTOR, receive

SET_SOCK, SET_BLKSIZE, DO_IT, CLEAR_SOCK, SET_SIZE_BLOCKS, SET_FLAGS = 0xAB00, 0xAB01, 0xAB03, 0xAB04, 0xAB07, 0xAB0A


def connect(port: int) -> tuple[socket.socket, int, int]:
    """A connection, the disk's size and flags. Refused: by one that somebody else has."""
    s = socket.create_connection(("10.0.2.2", port), 60)
    s.settimeout(None)
    receive(s, 18)
    s.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 0))
    size, flags = struct.unpack(">QH", receive(s, 10))
    return s, size, flags


def main() -> None:
    s, size, flags = connect(int(sys.argv[1]))
    device = os.open("/dev/nbd0", os.O_RDWR)
    for number, value in ((SET_BLKSIZE, SECTOR), (SET_SIZE_BLOCKS, size // SECTOR), (SET_FLAGS, flags), (SET_SOCK, s.fileno())):
        fcntl.ioctl(device, number, value)
    if not os.fork():
        try:
            fcntl.ioctl(device, DO_IT)
        except OSError as error:
            print(f"attach: the disk has gone: {error.strerror}", flush=True)
        fcntl.ioctl(device, CLEAR_SOCK)
        os._exit(0)
    os.close(device)
    s.close()
    while Path("/sys/block/nbd0/size").read_text() != f"{size // 512}\n":
        time.sleep(0.01)
    sys.exit(subprocess.run(sys.argv[2:]).returncode)


main()
