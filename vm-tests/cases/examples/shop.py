# SPDX-License-Identifier: GPL-2.0-or-later
"""The examples shop and stock, whose connection lets the stock go back with the shop."""

import os
import socket
import subprocess
import time
from pathlib import Path

BUILD = Path(os.environ["PERDURE_BUILD"])
EXAMPLES = BUILD / "userspace/userspace/examples"
RESCUECTL = BUILD / "userspace/userspace/rescue/rescuectl"
SHOP = EXAMPLES / "shop"
STOCK_PORT, SHOP_PORT = 7010, 7011


def connect(port: int) -> socket.socket:
    for _ in range(300):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise RuntimeError(f"nobody listens at port {port}")


class Shop:
    """Both, in their first states. `runner` is what the shop is run by."""

    def __init__(self, *runner: str) -> None:
        self.servers = [subprocess.Popen([RESCUECTL, "cascade", EXAMPLES / "stock", str(STOCK_PORT)])]
        try:
            connect(STOCK_PORT).close()
            self.start(RESCUECTL, "cascade", *runner)
        except BaseException:
            self.stop()
            raise

    def start(self, *runner: str | Path) -> None:
        """Once more, when it has ended"""
        self.process = subprocess.Popen([*runner, SHOP, str(SHOP_PORT), str(STOCK_PORT)])
        self.servers.append(self.process)
        self.connect()

    def connect(self) -> None:
        self.lines = connect(SHOP_PORT).makefile("rwb")

    def ask(self, what: str) -> str:
        """"": no answer"""
        self.lines.write(f"{what}\n".encode())
        self.lines.flush()
        return self.lines.readline().decode().strip()

    def stop(self) -> None:
        for server in self.servers:
            server.kill()
            server.wait()
