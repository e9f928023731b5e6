#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A connection that two hosts hold: the client sees one server, and goes on with the other one."""

from hosts import FAMILIES, MUTED, PRIMARY, equal, main, nothing, read, service, state


def question_and_answer() -> None:
    """Both hosts get the question; the answer leaves when both have it"""
    for family in FAMILIES:
        with service(family) as hosts:
            client, a, b = hosts.pair(family)
            equal(state(a)["role"], PRIMARY)
            equal(state(b)["role"], MUTED)
            equal(state(a)["id"], state(b)["id"])
            client.sendall(b"question")
            equal(read(a, 8), b"question")
            equal(read(b, 8), b"question")
            a.sendall(b"answer")
            nothing(client)
            equal(state(a)["unsent"], 6)
            b.sendall(b"answer")
            equal(read(client, 6), b"answer")
            equal(state(a)["unsent"], 0)
            for s in (a, b):
                s.close()
            equal(client.recv(1), b"")
            client.close()


if __name__ == "__main__":
    main(question_and_answer)
