# SPDX-License-Identifier: GPL-2.0-or-later
"""What must be true of all that two hosts of a service have sent: Documentation/networking/tcp_replica.rst of the patched tree."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from net import Frame
from tcp_replica import FAREWELLS, OPTION, Report, ahead, report_in

Service = tuple[str, int]


def report(frame: Frame) -> Report | None:
    return None if frame.flags else report_in(next((value for kind, value in frame.options if kind == OPTION), None))


@dataclass
class Phase:
    """Both hosts have had the service from `start` on, until something was done to them. Then the survivor is free, if there is one;
    without one, both are."""
    service: Service
    start: int              # ns
    primary: str
    end: int = 1 << 62
    survivor: str = ""

    def bound(self, host: str, time: int) -> bool:
        return time < self.end or bool(self.survivor) and host != self.survivor


@dataclass
class Flow:
    isn: int
    phase: Phase | None     # None: not bound, or not any more
    stored: int
    scale: int = 0
    start: int | None = None
    generated: int | None = None
    fin: int | None = None
    client_fin: int | None = None
    said: Report | None = None      # the other host's last report
    text: bytearray = field(default_factory=bytearray)


class Judge:
    """
    Nobody resets a client, and what is sent twice is the same bytes, by whichever host. Connections that begin in a phase: the primary
    acknowledges and sends no more than the other host has reported, and that one says nothing but reports, until a survivor is free.
    """

    def __init__(self, frames: Iterable[Frame], services: Iterable[Service], phases: list[Phase], ungated: Container[int] = (),
                 client: str = "client") -> None:
        self.services, self.phases, self.ungated, self.client = set(services), phases, ungated, client
        self.flows: dict[tuple[str, int, str, int], Flow] = {}
        self.judged = self.bytes = 0
        for frame in frames:
            if frame.sent and frame.protocol == 6:
                try:
                    self.frame(frame)
                except AssertionError as error:
                    flow = next((flow for key, flow in self.flows.items() if frame.dport == key[1]), None)
                    raise AssertionError(f"{error}\n{flow and (flow.phase, flow.said)}") from None

    def frame(self, f: Frame) -> None:
        if (f.src, f.sport) in self.services:
            self.answer((f.dst, f.dport, f.src, f.sport), f)
        elif (f.dst, f.dport) in self.services:
            self.question((f.src, f.sport, f.dst, f.dport), f)

    def question(self, key: tuple[str, int, str, int], f: Frame) -> None:
        flow = self.flows.get(key)
        if f.host == self.client:
            if "S" in f.flags and (flow is None or flow.isn != f.seq):
                phase = next((p for p in self.phases if p.service == key[2:] and p.start <= f.time < p.end), None)
                scaled = any(kind == 3 for kind, _ in f.options)
                self.flows[key] = Flow(f.seq, phase, f.seq + 1 & 0xffffffff, 7 if scaled else 0)
            elif flow and "F" in f.flags:
                flow.client_fin = f.seq + len(f.payload) + 1 & 0xffffffff
        elif flow and (said := report(f)):
            if flow.phase and f.host != flow.phase.primary:
                flow.said = said
            # Of a primary nothing has to be known
            if flow.phase and f.host != flow.phase.primary and not said.flags & FAREWELLS:
                if ahead(said.rcv_nxt, flow.stored) > 0:
                    flow.stored = said.rcv_nxt
                if flow.generated is None or ahead(said.write_seq, flow.generated) > 0:
                    flow.generated = said.write_seq
        elif flow and "S" in f.flags and ahead(f.seq, flow.isn) != 0:
            flow.phase = None       # one that was alone is offered to the other host again

    def answer(self, key: tuple[str, int, str, int], f: Frame) -> None:
        flow = self.flows.get(key)
        over = flow is not None and flow.fin is not None and flow.client_fin is not None
        assert "R" not in f.flags or over, f"a reset: {f}"
        if flow is None or "R" in f.flags:
            return
        end = f.seq + len(f.payload) + ("S" in f.flags) + ("F" in f.flags) & 0xffffffff
        if "S" in f.flags:
            assert flow.start in (None, f.seq), f"another initial sequence number than {flow.start}: {f}"
            flow.start = f.seq
        if flow.start is None:
            return
        if f.payload:
            at = ahead(f.seq, flow.start + 1 & 0xffffffff) % (1 << 32)
            assert at <= len(flow.text), f"{at - len(flow.text)} bytes have been left out: {f}"
            known = flow.text[at:at + len(f.payload)]
            assert known == f.payload[:len(known)], f"other bytes than before: {f}"
            flow.text += f.payload[len(known):]
            self.bytes += len(f.payload)
        if "F" in f.flags:
            flow.fin = end
        if not flow.phase or not flow.phase.bound(f.host, f.time):
            return
        assert f.host == flow.phase.primary, f"the muted host speaks: {f}"
        self.judged += 1
        generated = flow.start + 1 & 0xffffffff if flow.generated is None else flow.generated
        # What is in TIME_WAIT does not wait for the other host
        if "A" in f.flags and not (over and f.ack == flow.client_fin):
            assert ahead(f.ack, flow.stored) <= 0, f"acknowledges {ahead(f.ack, flow.stored)} bytes that the muted host does not have: {f}"
        assert ahead(end, generated) <= 0 or f.dport in self.ungated, f"sends {ahead(end, generated)} bytes that the muted host does not have: {f}"
