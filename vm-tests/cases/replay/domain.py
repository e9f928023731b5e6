#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What may come to the listener for the other members of a domain: with a wrong key, from nobody, malformed, lies; and fuzz. domain.py REQUESTS"""

import http.client
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from replay import KEY, Server, Session, domain_of, equal, free_port, main, until

FUZZ = int(sys.argv[1])

front, back = domain_of("front", "back", special={"back": "batch = 10s"})
front.start()
back.start()


class Member:
    """Who has the domain's key, and says that it is member @number."""

    def __init__(self, number: object = 1, key: str = KEY, server: Server = front) -> None:
        self.server, self.patience = server, 30
        self.headers = {"Replay-Domain-Key": key, "Replay-From": str(number)}

    def say(self, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.domain_port, timeout=self.patience)
        try:
            connection.request("POST", path, body, self.headers | (headers or {}))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def session(self) -> str:
        status, headers, body = self.say("/replay/sessions")
        equal((status, body), (201, b""))
        return headers["Replay-Session"]


def clients_are_served() -> None:
    """Within the time that a client has; and what they get is right."""
    s = Session(front)
    begin = time.monotonic()
    for i in range(3):
        equal(s.call("add", "served 0"), (200, f"0 {i + 1}\n"))
    assert time.monotonic() - begin < 10


def history(epoch: int, *endings: tuple[int, int, int]) -> bytes:
    return struct.pack("<II", epoch, len(endings)) + b"".join(struct.pack("<IIQ", *one) for one in endings)


def epoch_of(server: Server) -> int:
    epoch = server.figures()["epoch"]
    assert isinstance(epoch, int)
    return epoch


def keys() -> None:
    """Who does not have the key is told nothing, and changes nothing"""
    before = front.figures()["counts"], front.figures()["sessions"], front.figures()["log"]["end"]
    for key in None, "", KEY[:-1], KEY + "0", KEY * 2, KEY.upper(), "x", "y" * 5000, "f" + KEY[1:], KEY[:-1] + "0":
        member = Member()
        member.headers.pop("Replay-Domain-Key")
        if key is not None:
            member.headers["Replay-Domain-Key"] = key
        for path in "/add", "/replay/sessions", "/replay/flush", "/replay/history", "/replay/recovered":
            status, headers, body = member.say(path, {"Replay-State": "0/1/1", "Idempotency-Key": "k"}, history(2 ** 32 - 1))
            equal((status, headers["Replay-Answer"]), (400, "refused"))
            assert b"key is another" in body and "Replay-Endings" not in headers, (key, body)
    equal((front.figures()["counts"], front.figures()["sessions"], front.figures()["log"]["end"]), before)


def numbers() -> None:
    """Who says no member's number is refused; one that is not in the file, or is the server's own, does no harm"""
    for number in 64, -1, "", "x", "1 ", "0x1", 2 ** 32 + 1, 2 ** 64 + 1:
        status, headers, body = Member(number).say("/replay/sessions")
        if (status, number) != (201, "1 "):
            equal((status, headers["Replay-Answer"]), (400, "refused"))
    member = Member()
    del member.headers["Replay-From"]
    equal(member.say("/replay/sessions")[0], 400)
    for nobody in Member(50), Member(0):
        number = nobody.headers["Replay-From"]
        nobody.say("/replay/recovered", body=history(7, (1, 6, 5)))
        name = nobody.session()
        epoch = 7 if number == "50" else epoch_of(front)
        status, headers, _ = nobody.say("/add", {"Replay-Session": name, "Replay-Sequence": "1",
                                                 "Replay-Depends": f"{number}/{epoch}/1000"}, f"of{number} 1".encode())
        assert (status, headers["Replay-Answer"]) in ((200, "ok"), (503, "retry")), (status, headers)
        # A session of another member cannot be used
        equal(Member(1).say("/add", {"Replay-Session": name, "Replay-Sequence": "2"}, b"of 1")[0], 410)
        # What came with it must not keep a client from an answer
        status, text = Session(front).call("look", f"of{number}", patience=10)
        assert status in (200, 404), (status, text)
    clients_are_served()


def malformed() -> None:
    """Malformed and huge headers: refused, and nothing is executed"""
    member = Member()
    name = member.session()
    bad = ("1", "1/", "1/2", "1/2/", "1/2/3,", ",1/2/3", "1/2/3;1/2/3", "64/1/1", "1/4294967296/1", "1/1/18446744073709551616", "-1/1/1",
           "1/ 1/1", "1/1/1 ,1/1/1", "x", "1/1/1/1", "0x1/1/1")
    for text in bad:
        status, headers, body = member.say("/add", {"Replay-Session": name, "Replay-Sequence": "1", "Replay-Depends": text}, b"bad 1")
        equal((status, headers["Replay-Answer"]), (400, "refused"))
        assert b"malformed" in body, body
    for text in (*bad, "", "1/1/1,1/1/1"):
        for path in "/replay/flush", "/replay/history":
            status, headers, body = member.say(path, {"Replay-State": text})
            equal((status, headers["Replay-Answer"]), (400, "refused"))
    equal(member.say("/replay/flush")[0], 400)
    # The same member ten thousand times is one; more than there is room for is refused
    many = ",".join(["1/1/1"] * 10000)
    assert member.say("/add", {"Replay-Session": name, "Replay-Sequence": "1", "Replay-Depends": many}, b"bad 1")[0] == 503
    got = front.raw(b"POST /replay/sessions HTTP/1.1\r\nHost: x\r\nReplay-Depends: " + b"1/1/1," * 100000 + b"1/1/1\r\n\r\n", front.domain_port)
    assert not got or got.startswith((b"HTTP/1.1 431", b"HTTP/1.1 413")), got[:200]
    # Endings are what an answer says: in a request they mean nothing
    for text in "zz", "0", "00" * 30000, history(2 ** 32 - 1).hex():
        status, _, _ = member.say("/replay/flush", {"Replay-State": f"0/{epoch_of(front)}/1", "Replay-Endings": text})
        equal(status, 204)
    equal(Session(front).call("look", "bad")[0], 404)
    clients_are_served()


def flushes() -> None:
    """A state that was never there is lost, and one that is there is flushed; no wait"""
    member = Member()
    epoch = epoch_of(front)
    for lsn in 2 ** 64 - 1, 2 ** 63, front.figures()["log"]["end"] + 1000000:
        status, headers, _ = member.say("/replay/flush", {"Replay-State": f"0/{epoch}/{lsn}"})
        equal((status, headers["Replay-Answer"]), (409, "orphan"))
        assert "Replay-Endings" in headers
    for other in epoch + 1, 2 ** 32 - 1, 0, 1:
        status, headers, _ = member.say("/replay/flush", {"Replay-State": f"0/{other}/1"})
        equal((status, headers["Replay-Answer"]), (409, "orphan"))
    equal(member.say("/replay/flush", {"Replay-State": f"0/{epoch}/1"})[0], 204)
    end = front.figures()["log"]["end"]
    equal(member.say("/replay/flush", {"Replay-State": f"0/{epoch}/{end - 1}"})[0], 204)
    assert front.figures()["log"]["durable"] >= end
    clients_are_served()


def clients_listener() -> None:
    """What only members may say has no effect on the clients' listener, with the domain's key, too"""
    s = Session(front)
    domain = {"Replay-Domain-Key": KEY, "Replay-From": "1", "Replay-Depends": "1/4294967295/5", "Replay-State": f"0/{epoch_of(front)}/1",
              "Replay-Endings": history(2 ** 32 - 1).hex()}
    for path in "/replay/flush", "/replay/history", "/replay/recovered":
        status, headers, _ = front.ask("POST", path, domain, history(2 ** 32 - 1))
        equal((status, headers["Replay-Answer"]), (400, "refused"))
    status, headers, text = front.ask("POST", "/add", domain | {"Replay-Session": s.name, "Replay-Sequence": "1"}, "plain 1")
    equal((status, text), (200, "1 1\n"))
    assert not {"Replay-Depends", "Replay-Endings"} & set(headers), headers
    s.next = 2
    equal(s.call("add", "plain 1"), (200, "2 2\n"))
    # Sessions of a member are its own
    name = Member(1).session()
    equal(front.ask("POST", "/add", domain | {"Replay-Session": name, "Replay-Sequence": "1"}, "plain 1")[0], 410)
    # And a client's are not the domain's
    equal(Member(1).say("/add", {"Replay-Session": s.name, "Replay-Sequence": "3"}, b"plain 1")[0], 410)


def without_key() -> None:
    """A listener for a domain wants a key"""
    server = Server("keyless")
    with server.config.open("a") as f:
        f.write("[domain]\nlisten = 127.0.0.1:0\n")
    assert "wants a key" in server.fails()


def removed() -> None:
    """A member that is taken out of the file, while something depends on what it has not made durable"""
    s = Session(front)
    equal(s.call("add", "before 1"), (200, "1 1\n"))
    got: list[int] = []

    def ask() -> None:
        try:
            got.append(s.once("keep", "kept back values")[0])
        except OSError:
            pass

    thread = threading.Thread(target=ask)
    thread.start()
    # It has the reply, and its own log has it; the other's log does not, for ten seconds
    until(lambda: "kept" in front.log.read_bytes().decode("latin-1") and b"values of back" in front.log.read_bytes())
    back.kill()
    front.kill()
    thread.join()
    equal(got, [])
    whole = front.config.read_text()
    front.config.write_text(whole[:whole.index("[member back]")])
    front.start()
    # The value is taken back, and the request comes to another end
    equal(s.call("keep", "kept back values", patience=20)[0], 500)
    equal(Session(front).call("show", "kept")[0], 404)
    clients_are_served()
    front.kill()
    front.config.write_text(whole)
    back.start()
    front.start()
    clients_are_served()


def lies() -> None:
    """A member that says it has lost everything, in any epoch, in any words: who does not depend on it goes on"""
    other = Session(front)
    equal(other.call("add", "lied 1"), (200, "1 1\n"))
    liar = Member()
    big = 2 ** 32 - 1
    many = [(3 * i, 3 * i + 1, 2 ** 63 + i) for i in range(3000)]
    bodies = [b"", b"\0", history(5)[:-1], history(5, (1, 4, 0))[:-1], struct.pack("<II", 5, big), struct.pack("<II", big, big) + b"\xff" * 1000,
              history(0, (0, 0, 0)), history(big, (0, big, 0)), history(big - 1, (big - 5, 3, 7)), b"\xff" * 1048576, random.Random(1).randbytes(200000)]
    for body in bodies:
        # It may be told to say it again
        until(lambda: liar.say("/replay/recovered", body=body)[0] == 204)
        clients_are_served()
    thread = threading.Thread(target=lambda: liar.say("/replay/recovered", body=history(big, *many)))
    thread.start()
    clients_are_served()
    thread.join()
    equal(other.call("add", "lied 1"), (200, "2 2\n"))
    for epoch in 1, 77, epoch_of(front) - 1, big:
        status, headers, _ = liar.say("/replay/history", {"Replay-State": f"0/{epoch}/1"})
        equal(status, 204)
    front.again()
    equal(other.call("add", "lied 1"), (200, "3 3\n"))
    clients_are_served()


def in_place_of_front(name: str, options: str) -> Server:
    """Another server in a domain of the same kind, whose other member is the same."""
    server = Server(name, options, size="8M")
    server.domain_port = free_port()
    with server.config.open("a") as f:
        f.write(front.config.read_text()[front.config.read_text().index("[domain]"):].replace("member front", f"member {name}")
                .replace(f":{front.domain_port}", f":{server.domain_port}"))
    return server


def flood() -> None:
    """More than the log holds, at once: the server keeps room for itself, and says that it is to be said again"""
    server = in_place_of_front("flooded", "").start()
    s = Session(server)
    equal(s.call("add", "flood 1"), (200, "1 1\n"))
    server.stop()
    # Of what comes within ten seconds nothing is written, and no room becomes free
    plain = server.config.read_text()
    server.config.write_text(plain.replace("[server]\n", "[server]\nbatch = 10s\n"))
    server.start()
    liar = Member(server=server)
    liar.patience = 8

    def say(body: bytes) -> int:
        """What it is told; 0 if it is told nothing: that it is in the log, it would be."""
        try:
            return liar.say("/replay/recovered", body=body)[0]
        except TimeoutError:
            return 0

    bodies = [history(2 ** 31 + i, (1, 2, i)) + b"x" * 900000 for i in range(16)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        said = list(pool.map(say, bodies))
    assert set(said) <= {0, 204, 503} and said.count(503) >= 4, said
    assert server.process and server.process.poll() is None
    server.kill()
    server.config.write_text(plain)
    server.start()
    until(lambda: say(history(2 ** 32 - 1) + b"x" * 900000) == 204)
    equal(s.call("add", "flood 1"), (200, "2 2\n"))
    server.stop()


WORDS = (b"POST", b"GET", b"DELETE", b"PATCH", b"/add", b"/look", b"/replay/sessions", b"/replay/flush", b"/replay/history", b"/replay/recovered",
         b"/replay/sessions/0123456789abcdef-0123456789abcdef0123456789abcdef", b"/..", b"/%00", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"\r\n", b"\r\n\r\n",
         b" ", b":", b"Host: x", b"Replay-Session: ", b"Replay-Sequence: ", b"Replay-Depends: ", b"Replay-State: ", b"Replay-From: ",
         b"Replay-Domain-Key: ", b"Idempotency-Key: ", b"Content-Length: ", b"Transfer-Encoding: chunked", b"Expect: 100-continue",
         b"Connection: close", b"0/1/1", b"0/4294967295/18446744073709551615", b"-1", b"0", b"1", b"18446744073709551616", b"ffffffff\r\n", b"\0", b"\xff",
         b"fuzz 1", b"x" * 3000, KEY.encode())


def request(draw: random.Random, member: bool) -> tuple[bytes, bool]:
    """Sensible in most of it, with something drawn; or rubbish. And whether it is whole HTTP, which has an answer."""
    if not draw.randrange(5):
        return b"".join(draw.choice(WORDS) for _ in range(draw.randrange(30))), False
    often = 9 if draw.randrange(2) else 2
    whole = True

    def value(good: bytes, needed: bool = False) -> bytes:
        nonlocal whole
        if draw.randrange(often):
            return good
        whole &= not needed
        return draw.choice(WORDS).replace(b"\r\n", b"").replace(b"\0", b"")

    lines = [value(b"POST", True) + b" " + value(draw.choice((b"/look", b"/add", b"/replay/flush", b"/replay/history", b"/replay/recovered", b"/replay/sessions")), True)
             + b" HTTP/1.1", b"Host: x"]
    if member and draw.randrange(10):
        lines += [b"Replay-Domain-Key: " + KEY.encode(), b"Replay-From: " + value(b"1")]
    for name, good in ((b"Replay-Session", b"0" * 49), (b"Replay-Sequence", b"1"), (b"Replay-Depends", b"1/1/1,2/1/1"), (b"Replay-State", b"0/1/1"),
                       (b"Replay-Endings", b"00"), (b"Idempotency-Key", b"fuzz-%d" % draw.randrange(50))):
        if draw.randrange(2):
            lines.append(name + b": " + value(good))
    body = draw.choice((b"", b"fuzz 1", draw.randbytes(draw.randrange(200)), history(5, (1, 2, 3))))
    lines.append(b"Content-Length: " + value(str(len(body)).encode(), True))
    text = b"\r\n".join(lines) + b"\r\n\r\n" + body
    if not draw.randrange(6):
        return text[:draw.randrange(len(text))], False
    return text, whole


def fuzz() -> None:
    """Thousands of requests, drawn, to both listeners: it stays up, does not grow, and answers others as before"""
    target = in_place_of_front("fuzzed", "session_ttl = 2s\nkey_ttl = 2s\nserver_checkpoint = 256k\nsession_checkpoint = 16k")
    target.start({"MALLOC_ARENA_MAX": "2"})
    draw = random.Random(20)
    count = 0

    def ask(method: str, key: str) -> tuple[int, str]:
        status, _, text = target.ask("POST", f"/{method}", {"Idempotency-Key": key}, "mine 1" if method == "add" else "mine")
        return status, text

    statuses: dict[bytes, int] = {}
    sizes: list[int] = []
    for number in range(FUZZ):
        member = bool(number % 2)
        text, whole = request(draw, member)
        with socket.create_connection(("127.0.0.1", target.domain_port if member else target.port)) as c:
            c.settimeout(20 if whole else 0.01)
            got = b""
            try:
                c.sendall(text)
                got = c.recv(1000)
            except TimeoutError:
                assert not whole, f"no answer to {text!r}"
            except ConnectionError:
                assert not whole, f"hung up on {text!r}"
        statuses[got[9:12]] = statuses.get(got[9:12], 0) + 1
        if number % 20 == 0:
            count += 1
            equal(ask("add", f"mine-{count}"), (200, f"{count} 1\n"))
        if number % (FUZZ // 3) == FUZZ // 3 - 1:
            # Those that were begun end
            until(lambda: target.figures()["sessions"] < 5)
            sizes.append(target.resident() >> 10)
    print(f"# {sorted(statuses.items())}; KiB: {sizes}", flush=True)
    assert all(statuses.get(status, 0) >= 5 for status in (b"200", b"400", b"410", b"409", b"204", b"503")), statuses
    assert sizes[-1] - sizes[0] < 512, sizes
    equal(ask("look", "before"), (200, f"{count}\n"))
    target.again()
    equal(ask("look", "after"), (200, f"{count}\n"))
    target.stop()


def up() -> None:
    """Both are up all the time, and stop when they are told to"""
    for server in front, back:
        server.stop()


# What takes half a minute is for the long run
LONG: tuple[Callable[[], None], ...] = (flood,) if FUZZ > 10000 else ()
main(keys, numbers, malformed, flushes, clients_listener, without_key, removed, lies, *LONG, fuzz, up)
