# SPDX-License-Identifier: GPL-2.0-or-later
"""What must be true of all that two hosts of a service have sent: Documentation/networking/tcp_replica.rst of the patched tree."""

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from net import Frame
from tcp_replica import (ASK, FAREWELLS, FROM_PRIMARY, GONE, LEFT_ALONE, NONE, OPTION, UNKNOWN, Offer, Report, ahead,
                         offer_in, report_in)

Service = tuple[str, int]
Key = tuple[str, int, str, int]     # the client's end, the service's


def option(frame: Frame) -> bytes | None:
    return next((value for kind, value in frame.options if kind == OPTION), None)


def report(frame: Frame) -> Report | None:
    return None if frame.flags else report_in(option(frame))


def offer(frame: Frame) -> Offer | None:
    return offer_in(option(frame)) if frame.flags == "S" else None


def end(f: Frame) -> int:
    return f.seq + len(f.payload) + ("S" in f.flags) + ("F" in f.flags) & 0xffffffff


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
        return self.start <= time and (time < self.end or bool(self.survivor) and host != self.survivor)


@dataclass
class Copy:
    """
    What a host that has a connection alone has offered to the other one; it stays the one that talks to the client.
    It takes the copy by the first report on it, and says nothing of that. It has taken it if it acknowledges what came
    to it after that report, for it reads all in the order in which it comes, and says so at once if the copy is none.
    What it sent in between was bound as well, then.
    """
    host: str
    rcv_nxt: int
    write_seq: int
    id: tuple[int, int] | None = None   # by the report behind the offer
    reported: bool = False  # it has been made
    given: bool = False     # the host that has offered it has got a report on it
    taken: bool = False     # for sure
    wrong: str = ""         # if it is


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
    copy: Copy | None = None        # since it was alone
    came: dict[str, int] = field(default_factory=dict)  # to a host, from the client
    closing: int = 1 << 62          # ns: the first FIN


class Judge:
    """
    Nobody resets a client, and what is sent twice is the same bytes, by whichever host. Connections that begin in a
    phase, or have a copy again in it: the primary acknowledges and sends no more than the other host has reported, and
    that one says nothing but reports, until a survivor is free.
    """

    def __init__(self, frames: Iterable[Frame], services: Iterable[Service], phases: list[Phase], ungated: Container[int] = (),
                 client: str = "client") -> None:
        self.services, self.phases, self.ungated, self.client = set(services), phases, ungated, client
        self.flows: dict[Key, Flow] = {}
        self.judged = self.bytes = 0
        # Of each connection that has a copy again: the segments since
        self.again: Counter[tuple[Key, int]] = Counter()
        for frame in frames:
            if frame.protocol == 6:
                try:
                    self.frame(frame)
                except AssertionError as error:
                    flow = next((flow for key, flow in self.flows.items() if frame.dport == key[1]), None)
                    raise AssertionError(f"{error}\n{flow and (flow.phase, flow.said, flow.copy)}") from None

    def frame(self, f: Frame) -> None:
        if (f.src, f.sport) in self.services and f.sent:
            self.answer((f.dst, f.dport, f.src, f.sport), f)
        elif (f.dst, f.dport) in self.services:
            (self.question if f.sent else self.given)((f.src, f.sport, f.dst, f.dport), f)

    def question(self, key: Key, f: Frame) -> None:
        flow = self.flows.get(key)
        if f.host == self.client:
            if "S" in f.flags and (flow is None or flow.isn != f.seq):
                phase = next((p for p in self.phases if p.service == key[2:] and p.start <= f.time < p.end), None)
                scaled = any(kind == 3 for kind, _ in f.options)
                self.flows[key] = Flow(f.seq, phase, f.seq + 1 & 0xffffffff, 7 if scaled else 0)
            elif flow and "F" in f.flags:
                flow.client_fin = end(f)
                flow.closing = min(flow.closing, f.time)
        elif flow and (offered := offer(f)):
            # One that was alone is offered to the other host, for nothing if it has not read all that came to it
            rcv_nxt, write_seq = f.seq + 1 & 0xffffffff, offered.isn + 1 & 0xffffffff
            flow.phase, flow.said, flow.stored, flow.generated = None, None, rcv_nxt, write_seq
            read = ahead(flow.came.get(f.host, rcv_nxt), rcv_nxt) <= 0
            flow.copy = Copy(f.host, rcv_nxt, write_seq) if read else None
        elif flow and (said := report(f)):
            if flow.copy:
                self.of_copy(flow, flow.copy, f, said)
            elif flow.phase and f.host != flow.phase.primary:
                flow.said = said
                self.report(flow, said)

    def report(self, flow: Flow, said: Report) -> None:
        """Of the muted host's. Of a primary nothing has to be known."""
        if not said.flags & FAREWELLS:
            if ahead(said.rcv_nxt, flow.stored) > 0:
                flow.stored = said.rcv_nxt
            if flow.generated is None or ahead(said.write_seq, flow.generated) > 0:
                flow.generated = said.write_seq

    def of_copy(self, flow: Flow, copy: Copy, f: Frame, said: Report) -> None:
        own = f.host == copy.host
        if own and copy.id is None and said.flags == FROM_PRIMARY | ASK:
            copy.id = f.seq, f.ack
        elif (f.seq, f.ack) == copy.id or said.flags & UNKNOWN:
            if said.flags & (GONE | UNKNOWN | NONE) and (own or copy.reported) or own and said.flags & LEFT_ALONE:
                flow.copy = flow.phase = None       # one of them goes on alone
            elif own:
                copy.taken |= copy.given
            elif not said.flags & FAREWELLS:
                copy.reported, flow.said = True, said
                self.report(flow, said)

    def given(self, key: Key, f: Frame) -> None:
        """To a host."""
        flow = self.flows.get(key)
        if flow is None or f.host == self.client:
            return
        copy = flow.copy if flow.copy and flow.copy.host == f.host else None
        if said := report(f):
            if copy and not copy.given and not said.flags and (f.seq, f.ack) == copy.id and \
                    (said.rcv_nxt, said.write_seq) == (copy.rcv_nxt, copy.write_seq):
                copy.given = True
                flow.phase = next((p for p in self.phases if p.service == key[2:] and f.time < p.end), None)
        elif ahead(end(f), flow.came.get(f.host, flow.isn)) > 0:
            flow.came[f.host] = end(f)
            if copy and not copy.given and ahead(end(f), copy.rcv_nxt) > 0:
                flow.copy = None

    def answer(self, key: Key, f: Frame) -> None:
        flow = self.flows.get(key)
        over = flow is not None and flow.fin is not None and flow.client_fin is not None
        assert "R" not in f.flags or over, f"a reset: {f}"
        if flow is None or "R" in f.flags:
            return
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
            flow.fin = end(f)
            flow.closing = min(flow.closing, f.time)
        copy = flow.copy
        if copy and f.host == copy.host and ahead(f.ack, copy.rcv_nxt) > 0:
            copy.taken |= copy.given
        # Only of what is established is it known that it has its copy when a phase begins
        if not flow.phase or not flow.phase.bound(f.host, f.time) or copy and flow.closing < flow.phase.start:
            return
        wrong = self.wrong(flow, f, flow.start, over)
        if copy and not copy.taken:
            copy.wrong = copy.wrong or wrong
            return
        assert not (copy and copy.wrong), copy and copy.wrong
        assert not wrong, wrong
        self.judged += 1
        if copy:
            self.again[key, flow.isn] += 1

    def wrong(self, flow: Flow, f: Frame, start: int, over: bool) -> str:
        if flow.phase and f.host != (flow.copy.host if flow.copy else flow.phase.primary):
            return f"the muted host speaks: {f}"
        # What is in TIME_WAIT does not wait for the other host
        if "A" in f.flags and not (over and f.ack == flow.client_fin) and (more := ahead(f.ack, flow.stored)) > 0:
            return f"acknowledges {more} bytes that the muted host does not have: {f}"
        generated = start + 1 & 0xffffffff if flow.generated is None else flow.generated
        if (more := ahead(end(f), generated)) > 0 and f.dport not in self.ungated:
            return f"sends {more} bytes that the muted host does not have: {f}"
        return ""
