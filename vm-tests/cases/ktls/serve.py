#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""zhttpd-tls: established connections outlive its faults, handshakes end at once, and nobody is harmed by what clients send."""

import hashlib
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "zhttpd"))
import web  # noqa: E402
from web import BIG, LIMIT_S, Client, Root, Server, Tls, case, main  # noqa: E402

SYSCTL = Path("/proc/sys/kernel/restart")
VERSIONS = ("1.2", "1.3")
QUICK = sys.argv[1:] == ["curl"]
ALERT_INTERNAL = b"\x15\x03\x03\x00\x02\x02\x50"
GET = b"GET /small.txt HTTP/1.1\r\nHost: t\r\n\r\n"


def faulty(root: Root, points: str, *options: str) -> Server:
    return Server(root, *options, program="zhttpd-faults", env={"ZHTTPD_FAULT": points})


def plain_socket(server: Server) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def rest(sock: socket.socket) -> bytes:
    """What comes until the end, which comes soon."""
    data, start = b"", time.monotonic()
    with suppress(ConnectionResetError):
        while more := sock.recv(65536):
            data += more
    assert time.monotonic() - start < LIMIT_S / 4, "the end came late"
    return data


def check(c: Client, root: Root, name: str) -> None:
    got = c.response()
    assert (got.status, got.body == root.files[name]) == (200, True), (name, got.status, len(got.body))


def files(server: Server) -> list[Path]:
    return [fd for fd in Path(f"/proc/{server.pid}/fd").iterdir() if fd.is_symlink()]


def works(server: Server, root: Root) -> None:
    with Client(server) as c:
        c.get("/small.txt")
        check(c, root, "small.txt")


def curl(server: Server, version: str, *options: str) -> list[str]:
    return ["curl", "-sSk", f"--tlsv{version}", "--tls-max", version, *options, server.url("/big.bin")]


@case
def downloads(root: Root) -> None:
    """curl gets 5 MB over one connection, over TLS 1.2 and 1.3 with each cipher, while the server faults three times"""
    wanted = hashlib.sha256(root.files["big.bin"]).hexdigest()
    ciphers = [("1.2", "--ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256"), ("1.2", "--ciphers", "ECDHE-ECDSA-AES256-GCM-SHA384"),
               ("1.2", "--ciphers", "ECDHE-ECDSA-CHACHA20-POLY1305"), ("1.3", "--tls13-ciphers", "TLS_AES_128_GCM_SHA256"),
               ("1.3", "--tls13-ciphers", "TLS_AES_256_GCM_SHA384"), ("1.3", "--tls13-ciphers", "TLS_CHACHA20_POLY1305_SHA256")]
    with Server(root) as s:
        for version, *cipher in ciphers[::3 if QUICK else 1]:
            out = root.keys / "got"
            out.write_bytes(b"")
            before = s.generations()
            get = subprocess.Popen(curl(s, version, *cipher, "--limit-rate", "4M", "-o", str(out), "-w", "%{num_connects} %{http_version}"),
                                   stdout=subprocess.PIPE, text=True)
            # Not by the clock: a fault within the handshake ends the connection, as it should
            for quarter in range(3):
                after = BIG * (quarter + random.random() / 2) / 4
                while get.poll() is None and out.stat().st_size <= after:
                    time.sleep(0.01)
                assert get.poll() is None, "too fast"
                s.fault()
            assert out.stat().st_size < BIG, "too fast"
            text = get.communicate(timeout=LIMIT_S)[0]
            assert (get.returncode, text) == (0, "1 1.1"), (version, cipher, get.returncode, text)
            assert hashlib.sha256(out.read_bytes()).hexdigest() == wanted, (version, cipher)
            assert s.generations() == before + 3


@case
def places(root: Root) -> None:
    """a fault at chosen bytes of an answer: about the edges of records, and of the file"""
    points = [1, 16383, 16384, 16385, 32768, 131071, 131072, 131073, BIG - 1, BIG]
    for web.TLS in VERSIONS:
        with faulty(root, ",".join(f"sent:{p}" for p in points)) as s, Client(s) as c:
            c.get("/big.bin")
            check(c, root, "big.bin")
            c.get("/small.txt", "Connection: close")
            check(c, root, "small.txt")
            assert c.at_end() and c.sock.clean, "no close_notify"
            assert s.generations() == len(points) + 1


@case
def random_instants(root: Root) -> None:
    """requests one after the other and several at once, under faults at random"""
    for web.TLS in VERSIONS:
        done = 0
        with Server(root) as s, ExitStack() as stack:
            clients = [stack.enter_context(Client(s)) for _ in range(4)]
            for c in clients:
                c.get("/index.html")
                check(c, root, "index.html")
            for _ in range(3 if web.DEBUG else 12):
                asked = [(c, [random.choice(["small.txt", "middle.bin", "empty.txt"]) for _ in range(random.randint(1, 3))])
                         for c in clients]
                for c, names in asked:
                    for name in names:
                        c.get("/" + name)
                time.sleep(random.uniform(0, 0.02))
                s.fault()
                for c, names in asked:
                    for name in names:
                        check(c, root, name)
                        done += 1
            assert s.generations() > 3 and done > 10
            # What is held of a request in parts, too
            clients[0].send(GET[:7])
            s.fault()
            clients[0].send(GET[7:])
            check(clients[0], root, "small.txt")


@case
def handshakes(root: Root) -> None:
    """a fault in a handshake: the client is told at once; one that has not begun is made by the next generation"""
    for web.TLS in VERSIONS:
        # Half of a hello: as much has been read
        with Server(root) as s, Client(s) as kept:
            kept.get("/small.txt")
            check(kept, root, "small.txt")
            with plain_socket(s) as sock, Client(s) as fresh:
                sock.sendall(b"\x16\x03\x01\x00\x80\x01\x00")
                time.sleep(0.1)
                s.fault()
                assert rest(sock) == ALERT_INTERNAL
                s.wait_for("was in its handshake")
                fresh.get("/small.txt")
                check(fresh, root, "small.txt")
            kept.get("/small.txt")
            check(kept, root, "small.txt")
        # The server's part is there, the client's end of it is not
        with Server(root) as s, plain_socket(s) as sock:
            tls = Tls(sock, web.TLS)
            with suppress(ssl.SSLWantReadError):
                tls.tls.do_handshake()
            tls.flush()
            first = sock.recv(1)
            assert first == b"\x16"
            s.fault()
            rest(sock)
        # All is done but for the record of it
        with faulty(root, "connection_accepted:1") as s:
            works(s, root)
            s.generation(2)
        # It hits a client that has not begun, in the midst of accept()
        with faulty(root, "tls_handshake:1") as s:
            works(s, root)
            s.generation(2)


@case
def many_handshakes(root: Root) -> None:
    """new connections under faults: each is answered, or ended at once; none hangs"""
    for web.TLS in VERSIONS:
        answered, cut, wrong = [], [], []
        stop = threading.Event()

        def connect(server: Server) -> None:
            while not stop.is_set():
                try:
                    with Client(server) as c:
                        c.sock.settimeout(LIMIT_S / 4)
                        c.get("/small.txt")
                        check(c, root, "small.txt")
                        answered.append(1)
                except TimeoutError:
                    wrong.append("a client hangs")
                except (OSError, ssl.SSLError):
                    cut.append(1)
                except AssertionError as e:
                    # The end came in the handshake, for a client whose own part of it was done
                    (cut if "within a header: b''" in str(e) else wrong).append(str(e))

        with Server(root) as s:
            threads = [threading.Thread(target=connect, args=(s,)) for _ in range(6)]
            for t in threads:
                t.start()
            for _ in range(4 if web.DEBUG else 10):
                time.sleep(random.uniform(0, 1))
                s.fault()
            stop.set()
            for t in threads:
                t.join(LIMIT_S)
            print(f"# TLS {web.TLS}: {len(answered)} answered, {len(cut)} cut")
            assert not wrong, wrong
            assert len(answered) > 3 and cut
            works(s, root)
            # Neither connections nor files are left
            end = time.monotonic() + LIMIT_S / 4
            while sum(os.readlink(fd).startswith("socket:") for fd in files(s)) > 1:
                assert time.monotonic() < end, [os.readlink(fd) for fd in files(s)]
                time.sleep(0.05)
            assert not any("small.txt" in os.readlink(fd) for fd in files(s))


@case
def ends(root: Root) -> None:
    """the end by close_notify, by either side, and without"""
    for web.TLS in VERSIONS:
        with Server(root) as s:
            with Client(s) as c:
                c.get("/small.txt")
                check(c, root, "small.txt")
                s.fault()
                with suppress(ssl.SSLWantReadError):
                    c.sock.tls.unwrap()
                c.sock.flush()
                assert c.at_end() and c.sock.clean, "no close_notify in answer"
            with Client(s) as c:
                c.get("/middle.bin", "Connection: close")
                check(c, root, "middle.bin")
                assert c.at_end() and c.sock.clean
            for reset in (False, True):
                with Client(s) as c:
                    c.get("/empty.txt")
                    check(c, root, "empty.txt")
                    c.send(GET[:9])
                    s.fault()
                    if reset:
                        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    else:
                        c.sock.shutdown(socket.SHUT_WR)
                        assert c.at_end()
            works(s, root)
            # A slow client gets its answer, and then the end: also one that makes no room for a while, near the end of it
            with ExitStack() as stack:
                clients = {left: stack.enter_context(Client(s, receive_buffer=4096)) for left in (BIG, 60_000)}
                for c in clients.values():
                    c.get("/big.bin", "Connection: close")
                    c.head()
                s.fault()
                got = {left: c.take(BIG - left) for left, c in clients.items()}
                time.sleep(4)       # more than it lingers
                for left, c in clients.items():
                    assert got[left] + c.take(left) == root.files["big.bin"], left
                    assert c.at_end() and c.sock.clean
            assert s.stop() == 0


def s_client(server: Server, version: str, letter: str) -> str:
    """A request, and then what s_client says after a letter, until it ends"""
    run = subprocess.Popen(["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", f"-tls{version.replace('.', '_')}"],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert run.stdin and run.stdout
    late = threading.Timer(LIMIT_S / 2, run.kill)
    late.start()
    run.stdin.write(GET)
    run.stdin.flush()
    text = b""
    while more := os.read(run.stdout.fileno(), 65536):
        text += more
        # Once, at the beginning of a line
        if letter and b"\r\n\r\n" in text:
            time.sleep(0.2)
            run.stdin.write(letter.encode() + b"\n")
            run.stdin.flush()
            letter = ""
    late.cancel()
    run.wait()
    return text[text.find(b"HTTP/1.1"):].decode(errors="replace")


@case
def other_keys(root: Root) -> None:
    """KeyUpdate by the client ends the connection with an alert, renegotiation is refused; others go on"""
    with Server(root) as s:
        for version, letter, say in (("1.3", "K", "internal error"), ("1.2", "R", "no renegotiation")):
            web.TLS = version
            with Client(s) as other:
                other.get("/small.txt")
                check(other, root, "small.txt")
                for fault in (False, True):
                    if fault:
                        s.fault()
                    text = s_client(s, version, letter)
                    assert "200 OK" in text and say in text, text
                other.get("/small.txt")
                check(other, root, "small.txt")


@case
def hostile(root: Root) -> None:
    """garbage instead of a handshake, in it, and afterwards harms nobody else, whether or not the server faults"""
    noise = random.randbytes
    for web.TLS in VERSIONS:
        with Server(root) as s, Client(s) as other, ExitStack() as stack:
            other.get("/index.html")
            check(other, root, "index.html")
            for number in range(40):
                sock = stack.enter_context(plain_socket(s))
                kind = number % 5
                with suppress(OSError, ssl.SSLError):
                    if kind == 0:
                        sock.sendall(noise(random.randint(1, 3000)))
                    elif kind == 1:
                        sock.sendall(GET)
                    else:
                        tls = Tls(sock, web.TLS)
                        with suppress(ssl.SSLWantReadError):
                            tls.tls.do_handshake()
                        if kind == 2:
                            tls.flush()
                            sock.sendall(noise(random.randint(1, 3000)))
                        else:
                            tls.step(tls.tls.do_handshake)
                            tls.tls.write(GET[:random.randint(1, len(GET))])
                            tls.flush()
                            if kind == 3:
                                sock.sendall(noise(random.randint(1, 40000)))
                            else:       # half of a record
                                tls.tls.write(noise(5000))
                                sock.sendall(tls._out.read()[:random.randint(1, 5000)])
                if number % 13 == 7:
                    s.fault()
                if number % 4 == 0:
                    other.get("/middle.bin")
                    check(other, root, "middle.bin")
            works(s, root)
            used = sum(map(int, Path(f"/proc/{s.pid}/stat").read_text().split()[13:15]))
            time.sleep(0.5)
            more = sum(map(int, Path(f"/proc/{s.pid}/stat").read_text().split()[13:15])) - used
            assert more < 25, f"{more} of 50 ticks for clients that wait"


@case
def poison(root: Root) -> None:
    """a request that brings a fault each time is answered with 500 at the second time; others go on"""
    for web.TLS in VERSIONS:
        with faulty(root, "path:small.txt") as s, Client(s) as c, Client(s, receive_buffer=4096) as other:
            other.get("/big.bin")
            other.head()
            c.get("/small.txt")
            assert c.response().status == 500
            assert c.at_end() and c.sock.clean
            s.generation(3)
            assert other.take(BIG) == root.files["big.bin"]


@case
def without(root: Root) -> None:
    """-n, and restarts that are switched off: an ordinary server with TLS; its faults end it"""
    for web.TLS, options in (("1.2", ["-n"]), ("1.3", ["-n"]), ("1.3", [])):
        if not options:
            (SYSCTL / "enabled").write_text("0")
        try:
            with Server(root, *options) as s, Client(s) as c:
                c.get("/big.bin")
                check(c, root, "big.bin")
                with suppress(ssl.SSLWantReadError):
                    c.sock.tls.unwrap()
                c.sock.flush()
                assert c.at_end() and c.sock.clean
                os.kill(s.pid, signal.SIGSEGV)
                assert s.process.wait(LIMIT_S) == -signal.SIGSEGV
        finally:
            (SYSCTL / "enabled").write_text("1")


@case
def refusals(root: Root) -> None:
    """what is missing is told: the certificate, its key, TLS in the kernel, TLS in the program"""
    cert, key = web.certificate(root.keys)[1::2]
    shim = root.keys / "no-tls.so"
    source = "#include <errno.h>\nint setsockopt(int f, int l, int o, const void *v, unsigned n)\n" \
             "{ (void)f; (void)v; (void)n; if (l == 6 && o == 31) { errno = ENOENT; return -1; } return 0; }\n"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", shim], input=source, text=True, check=True)
    for program, options, env, says in (
            ("zhttpd-tls", ["-C", "/none"], {}, "cannot use the certificate /none with the key /none: No such file"),
            ("zhttpd-tls", ["-C", cert], {}, f"cannot use the certificate {cert} with the key {cert}: "),
            ("zhttpd-tls", ["-C", cert, "-K", cert], {}, "cannot use the certificate"),
            ("zhttpd-tls", ["-K", key], {}, f"-K {key}: there is no certificate (-C)"),
            ("zhttpd-tls", ["-C", cert, "-K", key], {"LD_PRELOAD": str(shim)}, "this kernel has no TLS"),
            ("zhttpd", ["-C", cert, "-K", key], {}, "built without TLS: zhttpd-tls has it")):
        got = subprocess.run([program, "-p", "0", *options], env={**os.environ, **env}, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
        assert got.returncode == 1 and says in got.stderr, (program, options, got)
    # A key that is gone when it is needed: what is established goes on
    web.TLS = "1.3"
    with Server(root) as s, Client(s) as c:
        c.get("/small.txt")
        check(c, root, "small.txt")
        Path(key).rename(key + ".away")
        try:
            s.fault()
            c.get("/small.txt")
            check(c, root, "small.txt")
            with plain_socket(s) as sock:
                sock.sendall(b"\x16\x03\x01\x00\x80\x01\x00")
                assert rest(sock) == ALERT_INTERNAL
            s.wait_for("no new connections")
        finally:
            Path(key + ".away").rename(key)
        works(s, root)


if __name__ == "__main__":
    (SYSCTL / "min_interval_ms").write_text("0")
    web.TLS = "1.3"
    main()
