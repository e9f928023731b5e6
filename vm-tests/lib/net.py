# SPDX-License-Identifier: GPL-2.0-or-later
"""
Several guests on networks of their own (switch.c), and what a test does to them and to their cables:

    with Network("example") as net:
        a = net.host("a", {"lan": "192.0.2.1/24 2001:db8::1/64"})
        b = net.host("b", {"lan": "192.0.2.2/24 2001:db8::2/64", "link": "10.0.0.2/24"})
        net.set("lan", "a", loss=5, delay=20)
        a.run("ip address show lan")
        frames = net.capture("lan")

At the end all hosts must be up, and none may have complained: but those that the test has killed.
"""

import json
import os
import queue
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import guests
import vm
from agent import END, HEAD, OUTPUT, READY, RUN, SIGNAL

SWITCH = vm.BUILD / "userspace/vm-tests/lib/switch"
AGENT = Path(__file__).resolve().parent / "agent.py"
LOG = vm.LOG / "test"
CRASH = "sysrq: Trigger a crash"


class Process:
    """A command in a guest: what it has said until now, and its status (a signal's is below 0) when it has ended."""

    def __init__(self, guest: "Guest", number: int, what: str) -> None:
        self.guest, self.number, self.what = guest, number, what
        self.output = bytearray()
        self.status: int | None = None

    def text(self) -> str:
        return self.output.decode(errors="replace")

    def signal(self, number: int) -> None:
        self.guest.send(self.number, SIGNAL, str(int(number)).encode())

    def wait(self, timeout: float = 60) -> int:
        self.until(lambda: self.status is not None, "does not end", timeout)
        assert self.status is not None
        return self.status

    def says(self, text: str, timeout: float = 60) -> None:
        self.until(lambda: text.encode() in self.output, f"does not say {text!r}", timeout)

    def until(self, done: Callable[[], bool], problem: str, timeout: float) -> None:
        end = time.monotonic() + timeout
        with self.guest.news:
            while not done():
                # The last news can come just before its end
                assert not self.guest.result, f"{self.guest.name} has ended while it ran {self.what!r}: {self.guest.result}"
                assert time.monotonic() < end and self.status is None, \
                    f"{self.guest.name}: {self.what!r} {problem} (status {self.status}): {self.text()[-2000:]}"
                self.guest.news.wait(0.5)


class Guest(guests.Guest):
    """One boot of a host, with agent.py in it."""

    def __init__(self, name: str, nics: list[str], **more: object) -> None:
        self.news, self.sending = threading.Condition(), threading.Lock()
        self.buffer, self.ready = bytearray(), False
        self.processes: dict[int, Process] = {}
        self.to_agent, from_test = socket.socketpair()
        self.fed = from_test        # vm.run() reads it by its number
        self.to_agent.settimeout(120)
        super().__init__(name, vm.Job([sys.executable, str(AGENT), name, *nics], "/", vm.environment(PERDURE_GUEST="1")), timeout=None,
                         stdin=from_test.fileno(), **more)      # type: ignore[arg-type]

    def run(self) -> None:
        super().run()
        self.to_agent.close()
        with self.news:
            self.news.notify_all()

    def hear(self, data: bytes) -> None:
        self.buffer += data
        with self.news:
            while len(self.buffer) >= HEAD.size:
                number, kind, length = HEAD.unpack_from(self.buffer)
                if len(self.buffer) < HEAD.size + length:
                    break
                content = bytes(self.buffer[HEAD.size:HEAD.size + length])
                del self.buffer[:HEAD.size + length]
                if kind == READY:
                    self.ready = True
                elif kind == OUTPUT:
                    self.processes[number].output += content
                elif kind == END:
                    self.processes[number].status = int(content)
            self.news.notify_all()

    def up(self) -> None:
        def there() -> bool:
            self.alive()
            return self.ready

        guests.wait(f"{self.name} is up", there)

    def send(self, number: int, kind: bytes, data: bytes) -> None:
        self.alive()
        with self.sending:
            self.to_agent.sendall(HEAD.pack(number, kind, len(data)) + data)

    def spawn(self, command: str | list[str], data: bytes, env: dict[str, str]) -> Process:
        self.up()
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
        with self.news:
            number = len(self.processes) + 1
            process = self.processes[number] = Process(self, number, " ".join(argv))
        self.send(number, RUN, json.dumps({"argv": argv, "env": env}).encode() + b"\n" + data)
        return process

    def finish(self) -> None:
        """Asks it to end."""
        with suppress(OSError):
            self.to_agent.shutdown(socket.SHUT_WR)


class Host:
    """A machine of a network, that can die and be started again."""

    def __init__(self, net: "Network", name: str, nics: dict[str, str], **more: object) -> None:
        self.net, self.name, self.more, self.boots = net, name, more, 0
        self.devices: list[str] = []
        self.nics: list[str] = []
        for network, addresses in nics.items():
            path = net.port(network, name)
            mac = f"52:54:00:00:{list(net.networks).index(network):02x}:{len(net.hosts) + 1:02x}"
            self.devices += ["-netdev", f"stream,id={network},server=off,addr.type=unix,addr.path={vm.value(path)}",
                             "-device", f"virtio-net-pci,netdev={network},mac={mac},romfile="]
            self.nics.append(f"{network}={mac}={','.join(addresses.split())}")
        self.start()

    def start(self) -> None:
        """Begins to boot; the first command waits until it is up."""
        self.boots += 1
        self.stopped = self.dead = False
        self.guest = Guest(self.name, self.nics, place=self.net.place, more=self.devices,
                           console=LOG / f"{self.net.name}-{self.name}-{self.boots}.console", **self.more)

    def up(self) -> "Host":
        self.guest.up()
        return self

    def spawn(self, command: str | list[str], input: bytes = b"", env: dict[str, str] | None = None) -> Process:
        """Begins a command: a line for the shell, or its words."""
        return self.guest.spawn(command, input, env or {})

    def run(self, command: str | list[str], check: bool = True, timeout: float = 60, input: bytes = b"",
            env: dict[str, str] | None = None) -> str:
        """What it said, errors included."""
        process = self.spawn(command, input, env)
        status = process.wait(timeout)
        assert not check or not status, f"{self.name}: {process.what!r}: status {status}\n{process.text()[-3000:]}"
        return process.text()

    def python(self, program: str, *args: object) -> Process:
        return self.spawn([sys.executable, "-c", program, *(str(a) for a in args)])

    def put(self, path: Path | str, data: bytes) -> None:
        self.run(["/bin/sh", "-c", 'cat >"$0"', str(path)], input=data)

    def get(self, path: Path | str) -> bytes:
        process = self.spawn(["cat", str(path)])
        assert process.wait() == 0, process.text()
        return bytes(process.output)

    def kill(self) -> None:
        """As without power"""
        self.dead = True
        self.guest.cut()

    def stop(self) -> None:
        """All of it stands still, as when the host of a virtual machine is busy, while its clock goes on."""
        self.stopped = True
        self.guest.signal(signal.SIGSTOP)

    def cont(self) -> None:
        self.stopped = False
        self.guest.signal(signal.SIGCONT)

    def panic(self) -> None:
        self.dead = True
        self.spawn("echo c >/proc/sysrq-trigger")
        self.guest.gone(until=CRASH)
        text = self.guest.console.read_text(errors="replace")
        assert CRASH in text, f"{self.name}: {self.guest.result}, and no panic"

    def end(self) -> None:
        """An orderly end."""
        self.guest.finish()
        self.dead = True
        self.guest.end(60)


@dataclass
class Trigger:
    """Of the switch: what happens at a certain frame."""
    fired: threading.Event = field(default_factory=threading.Event)
    time: int = 0           # of the frame, as in the capture

    def wait(self, timeout: float = 60) -> int:
        assert self.fired.wait(timeout), f"no such frame within {timeout:g} seconds"
        return self.time


class Network:
    """The switch and its hosts; `name` is in the names of the captures and consoles. Networks are made when they are named."""

    def __init__(self, name: str, seed: int | None = None) -> None:
        self.name = name
        self.seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
        # Short, as names of sockets have to be
        self.directory = tempfile.TemporaryDirectory(prefix="perdure-net-")
        self.place = Path(self.directory.name)
        self.networks: dict[str, Path] = {}
        self.hosts: dict[str, Host] = {}
        self.triggers: list[Trigger] = []
        self.answers: "queue.SimpleQueue[str]" = queue.SimpleQueue()
        self.asking = threading.Lock()

    def __enter__(self) -> "Network":
        print(f"# {self.name}: seed {self.seed}", flush=True)
        LOG.mkdir(parents=True, exist_ok=True)
        self.switch = subprocess.Popen([SWITCH, str(self.seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        threading.Thread(target=self.listen, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        try:
            left = [host for host in self.hosts.values() if not host.dead]
            if error and not isinstance(error, SystemExit):
                for host in left:
                    try:
                        host.kill()
                    except Exception as more:       # beside the first one
                        error.add_note(f"and {more}")
                return
            for host in left:
                assert not host.stopped, f"{host.name} is stopped still"
                host.up()
                host.guest.finish()
            for host in left:
                host.end()
        finally:
            for host in self.hosts.values():
                if not host.guest.result:
                    host.guest.signal(signal.SIGKILL)
                    host.guest.thread.join(60)
            assert self.switch.stdin
            self.switch.stdin.close()
            status = self.switch.wait(10)
            self.directory.cleanup()
            assert not status, f"the switch has ended with {status}"

    def listen(self) -> None:
        assert self.switch.stdout
        for line in self.switch.stdout:
            words = line.split()
            if words[0] == "event":
                trigger = self.triggers[int(words[1])]
                trigger.time = int(words[2])
                trigger.fired.set()
            else:
                self.answers.put(line.strip())
        self.answers.put("error: the switch has ended")

    def ask(self, *words: object) -> list[str]:
        with self.asking:
            assert self.switch.stdin
            print(*words, file=self.switch.stdin, flush=True)
            answer = self.answers.get(timeout=60)
        assert answer.startswith("ok"), f"{words}: {answer}"
        return answer.split()[1:]

    def port(self, network: str, name: str) -> Path:
        """The socket of a new port, for a process of its own too: a stream, with four bytes of length before each frame."""
        if network not in self.networks:
            self.networks[network] = LOG / f"{self.name}-{network}.pcapng"
            self.ask("network", network, self.networks[network])
        path = self.place / f"{network}-{name}"
        self.ask("port", network, name, path)
        return path

    def host(self, name: str, nics: dict[str, str], vmlinux: Path | None = None, memory: str = "256M", cpus: int = 1,
             slow: int | None = None) -> Host:
        """`nics`: for each network, which is the interface's name too, its addresses. `slow`: of vm.Machine."""
        kernel = vmlinux or Path(os.environ.get("PERDURE_VMLINUX") or vm.BUILD / "kernel/perdure-vm/vmlinux")
        self.hosts[name] = Host(self, name, nics, vmlinux=kernel, memory=memory, cpus=cpus, slow=slow)
        return self.hosts[name]

    def up(self) -> None:
        """All have booted, and can be reached."""
        for host in self.hosts.values():
            host.up()

    def set(self, network: str, host: str, leg: str = "both", **values: float) -> None:
        """Of its cable's leg from the host, to it, or both: loss, duplicate, reorder (%), delay, jitter (ms), rate (bits/s),
        queue (bytes), cut, hold (0 or 1). What is not named stays as it is."""
        self.ask("set", network, host, leg, *(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value:d}"
                                              for key, value in values.items()))

    def cut(self, network: str, host: str, leg: str = "both") -> None:
        self.set(network, host, leg, cut=1)

    def mend(self, network: str, host: str, leg: str = "both") -> None:
        self.set(network, host, leg, cut=0)

    def trigger(self, network: str, do: str = "tell", *, after: bool = False, n: int = 1, source: str = "", to: str = "", tcp: int = 0,
                set: str = "", unset: str = "", payload: int = 0, contains: bytes = b"") -> Trigger:
        """
        Before the n-th frame like that, or with `after` after it, once: "tell", "drop" it, "cut:HOST" or "hold:HOST". `source`, `to`:
        hosts; `tcp`: either port; `set`, `unset`: flags of "FSRPAU"; `payload`: at least so many bytes; `contains`: these in the payload.
        """
        keys = {"do": do, "after": int(after), "n": n, "from": source, "to": to, "tcp": tcp, "set": set, "unset": unset,
                "payload": payload, "bytes": contains.hex()}
        self.triggers.append(Trigger())
        self.ask("trigger", len(self.triggers) - 1, network, *(f"{key}={value}" for key, value in keys.items() if value))
        return self.triggers[-1]

    def count(self, network: str, host: str) -> dict[str, dict[str, int]]:
        """Frames of each leg that arrived, that were lost (or cut), and that were dropped for lack of room."""
        numbers = [int(n) for n in self.ask("count", network, host)]
        return {leg: dict(zip(("passed", "lost", "dropped"), numbers[i:i + 3])) for leg, i in (("from", 0), ("to", 3))}

    def capture(self, network: str) -> list["Frame"]:
        """All frames until now: once as a host has sent them, even into a cut cable, and once for each host that got them."""
        return list(capture(self.networks[network]))


# ---- The capture

@dataclass(slots=True)
class Frame:
    time: int               # ns, as time.monotonic_ns() says
    host: str
    sent: bool              # by this host; else it was given to it
    data: bytes
    ethertype: int
    src: str = ""           # addresses of IP
    dst: str = ""
    protocol: int = 0       # of IP
    # Of TCP; the ports of UDP too
    sport: int = 0
    dport: int = 0
    flags: str = ""         # of "FSRPAU", in this order
    seq: int = 0
    ack: int = 0
    window: int = 0         # as it stands in the header
    options: list[tuple[int, bytes]] = field(default_factory=list)
    payload: bytes = b""    # of TCP and UDP; else of IP

    def __str__(self) -> str:
        what = f"{self.flags or '-'} seq {self.seq} ack {self.ack} window {self.window}" if self.protocol == socket.IPPROTO_TCP \
            else f"protocol {self.protocol}" if self.protocol else f"type {self.ethertype:#x}"
        return (f"{self.time / 1e9:.6f} {self.host} {'sends' if self.sent else 'gets'} {self.src}:{self.sport} > "
                f"{self.dst}:{self.dport} {what} ({len(self.payload)})")


def dissect(frame: Frame) -> Frame:
    data = frame.data
    if frame.ethertype == 0x0800 and len(data) >= 34:
        start, length = 14 + (data[14] & 15) * 4, struct.unpack_from(">H", data, 16)[0]
        body, frame.protocol = data[start:14 + length], data[23]
        frame.src, frame.dst = socket.inet_ntop(socket.AF_INET, data[26:30]), socket.inet_ntop(socket.AF_INET, data[30:34])
    elif frame.ethertype == 0x86dd and len(data) >= 54:
        body, frame.protocol = data[54:54 + struct.unpack_from(">H", data, 18)[0]], data[20]
        frame.src, frame.dst = socket.inet_ntop(socket.AF_INET6, data[22:38]), socket.inet_ntop(socket.AF_INET6, data[38:54])
    else:
        return frame
    frame.payload = body
    if frame.protocol == socket.IPPROTO_UDP and len(body) >= 8:
        frame.sport, frame.dport = struct.unpack_from(">HH", body)
        frame.payload = body[8:]
    elif frame.protocol == socket.IPPROTO_TCP and len(body) >= 20:
        frame.sport, frame.dport, frame.seq, frame.ack, head, bits, frame.window = struct.unpack_from(">HHIIBBH", body)
        frame.flags = "".join(letter for i, letter in enumerate("FSRPAU") if bits >> i & 1)
        end = (head >> 4) * 4
        frame.payload, at = body[end:], 20
        while at < end and body[at]:
            length = 1 if body[at] == 1 else max(body[at + 1], 2)
            if length > 1:
                frame.options.append((body[at], body[at + 2:at + length]))
            at += length
    return frame


def capture(path: Path) -> Iterator[Frame]:
    """The frames of a file that the switch has written, or is writing."""
    data, at, names = path.read_bytes(), 0, list[str]()
    while at + 12 <= len(data):
        kind, length = struct.unpack_from("<II", data, at)
        if at + length > len(data):
            break
        if kind == 1:
            size = struct.unpack_from("<H", data, at + 26)[0]
            names.append(data[at + 28:at + 28 + size].decode())
        elif kind == 6:
            number, high, low, size = struct.unpack_from("<IIII", data, at + 8)
            frame = data[at + 28:at + 28 + size]
            direction = struct.unpack_from("<I", data, at + length - 12)[0]
            yield dissect(Frame(high << 32 | low, names[number], direction == 1, frame, struct.unpack_from(">H", frame, 12)[0]))
        at += length
