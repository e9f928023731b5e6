#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""shop: three servers that call each other, killed while a client buys. No order is lost, and none is paid twice.

    shop.py                       the whole show: starts them, buys for ten seconds, kills them at random, counts
    shop.py serve NAME CONFIG     one of the servers: cart, prices or payment

The cart and the prices trust each other's recovery: they are a domain. The payment is somebody else's. A client talks to the
cart, which asks the prices and calls the payment.
"""

import argparse
import contextlib
import http.client
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from perdure import replay

PRICES = {"tea": 320, "coffee": 450, "cocoa": 510}      # cents


# ---- the servers ----

def prices() -> replay.Server:
    server = replay.Server()

    @server.method
    def price(call: replay.Call, item: str) -> replay.Result:
        """Every tenth customer who asks gets it cheaper: so the answer depends on all who asked before."""
        if item not in PRICES:
            return replay.Reply(b"no such item\n", 404)
        asked = call.shared.add(f"asked for {item}")
        return PRICES[item] * (9 if asked % 10 == 0 else 10) // 10

    return server


def payment() -> replay.Server:
    server = replay.Server()

    @server.method
    def pay(call: replay.Call, customer: str, cents: int) -> replay.Result:
        call.shared.add("turnover", cents)
        call.shared.add("payments")
        return {"receipt": str(call.uuid()), "customer": customer, "cents": cents}

    @server.method
    def books(call: replay.Call) -> replay.Result:
        return {"turnover": call.shared.number("turnover"), "payments": call.shared.number("payments")}

    return server


def cart() -> replay.Server:
    server = replay.Server()

    @server.method
    def add(call: replay.Call, item: str, count: int = 1) -> replay.Result:
        reply = call.request("prices", "price", item=item)
        if reply.status != 200:
            return reply
        lines = call.session.get("lines", [])
        lines.append([item, count, reply.json()])
        call.session["lines"] = lines
        return {"lines": len(lines), "cents": sum(count * cents for _, count, cents in lines)}

    @server.method
    def order(call: replay.Call, customer: str) -> replay.Result:
        lines = call.session.get("lines", [])
        if not lines:
            return replay.Reply(b"the cart is empty\n", 409)
        cents = sum(count * cents for _, count, cents in lines)
        receipt = call.request("payment", "pay", customer=customer, cents=cents).json()
        del call.session["lines"]
        number = call.shared.add("orders")
        return {"order": number, "at": call.time(), **receipt}

    return server


# ---- a client ----

class Client:
    """Sends each request again until it is answered. That is all that it takes."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sequence = 1
        self.session = self._until_answered("/replay/sessions", {}, b"")[1]["Replay-Session"]

    def _until_answered(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            try:
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                found = dict(answer.getheaders())
                # One that does not say is a proxy's
                if found.get("Replay-Answer", "retry") != "retry":
                    return answer.status, found, answer.read()
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            time.sleep(0.05)

    def call(self, method: str, **arguments: Any) -> Any:
        headers = {"Replay-Session": self.session, "Replay-Sequence": str(self.sequence)}
        status, found, body = self._until_answered(f"/{method}", headers, json.dumps(arguments).encode())
        if found["Replay-Answer"] != "ok" or status != 200:
            raise RuntimeError(f"{method}: {status} {found['Replay-Answer']}: {body.decode()}")
        self.sequence += 1
        return json.loads(body)


# ---- the show ----

DOMAIN = """
[domain]
listen = 127.0.0.1:{own_domain}
key = {place}/shop.key
[member prices]
number = 1
url = http://127.0.0.1:{prices_domain}
[member cart]
number = 2
url = http://127.0.0.1:{cart_domain}
"""
CONFIGS = {"prices": DOMAIN, "cart": DOMAIN + "[service payment]\nurl = http://127.0.0.1:{payment}\n", "payment": ""}


class Shop:
    """The three processes, and their files in a directory."""

    def __init__(self, place: Path) -> None:
        names = ("prices", "cart", "payment", "prices_domain", "cart_domain")
        # Held until all are known, so that none is given twice
        with contextlib.ExitStack() as held:
            sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
            self.ports = {name: int(s.getsockname()[1]) for name, s in zip(names, sockets)}
        self.place = place
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (place / "shop.key").write_text(f"{random.SystemRandom().getrandbits(128):032x}\n")
        for name, more in CONFIGS.items():
            server = (f"[server]\nname = {name}\nlog = {place}/{name}.log\nlisten = 127.0.0.1:{self.ports[name]}\n"
                      f"control = {place}/{name}.sock\n")
            own = self.ports.get(f"{name}_domain")
            (place / f"{name}.conf").write_text(server + more.format(place=place, own_domain=own, **self.ports))
            subprocess.run(["replayctl", "format", f"{place}/{name}.log", "--size", "16M"], check=True, stdout=subprocess.DEVNULL)
            self.start(name)

    def start(self, name: str) -> None:
        with (self.place / f"{name}.journal").open("ab") as journal:
            self.processes[name] = subprocess.Popen([sys.executable, __file__, "serve", name, f"{self.place}/{name}.conf"],
                                                    stdin=subprocess.DEVNULL, stderr=journal)

    def crash(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()
        self.start(name)

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait()


def buy(port: int, until: float, customer: str, orders: list[dict[str, Any]]) -> None:
    client = Client(port)
    while time.monotonic() < until:
        wanted = 0
        for item in random.sample(sorted(PRICES), random.randint(1, 3)):
            wanted = client.call("add", item=item, count=random.randint(1, 3))["cents"]
        order = client.call("order", customer=customer)
        if order["cents"] != wanted:
            raise RuntimeError(f"order {order['order']} is {order['cents']} cents, and the cart said {wanted}")
        orders.append(order)


def show(seconds: float, customers: int) -> int:
    if not shutil.which("replayctl"):
        print("shop: replayctl is not installed: it is in the package of the same name", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="shop-") as name:
        shop = Shop(Path(name))
        print(f"shop: cart, prices and payment are started; their files are in {name}", flush=True)
        orders: list[dict[str, Any]] = []
        end = time.monotonic() + seconds
        buyers = [threading.Thread(target=buy, args=(shop.ports["cart"], end, f"customer {i}", orders), daemon=True)
                  for i in range(customers)]
        for buyer in buyers:
            buyer.start()
        crashes = 0
        while time.monotonic() < end:
            time.sleep(random.uniform(0.3, 1))
            victim = random.choice(sorted(CONFIGS))
            shop.crash(victim)
            crashes += 1
            print(f"shop: {len(orders)} orders; {victim} is killed and started again", flush=True)
        for buyer in buyers:
            buyer.join(60)
        books = Client(shop.ports["payment"]).call("books")
        shop.stop()
    numbers = sorted(order["order"] for order in orders)
    receipts = {order["receipt"] for order in orders}
    turnover = sum(order["cents"] for order in orders)
    print(f"\n{'crashes':<20} {crashes}\n{'orders confirmed':<20} {len(orders)}\n{'payments booked':<20} {books['payments']}\n"
          f"{'cents confirmed':<20} {turnover}\n{'cents booked':<20} {books['turnover']}")
    right = (not any(buyer.is_alive() for buyer in buyers) and numbers == list(range(1, len(orders) + 1)) and
             len(receipts) == len(orders) == books["payments"] and turnover == books["turnover"] and orders)
    print("shop: each order is there once, and is paid once" if right else "shop: SOMETHING IS WRONG")
    return 0 if right else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10, help="how long to buy (10)")
    parser.add_argument("--customers", type=int, default=4, help="how many buy at a time (4)")
    commands = parser.add_subparsers(dest="command", metavar="serve NAME CONFIG")
    serve = commands.add_parser("serve")
    serve.add_argument("name", choices=sorted(CONFIGS))
    serve.add_argument("config")
    arguments = parser.parse_args()
    if arguments.command == "serve":
        {"cart": cart, "prices": prices, "payment": payment}[arguments.name]().run(arguments.config)
    return show(arguments.seconds, arguments.customers)


if __name__ == "__main__":
    sys.exit(main())
