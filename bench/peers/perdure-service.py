#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The job of bench replay on libreplay, in Python: perdure-service.py CONFIG. In C it is in bench/replay-service.c."""

import sys

from perdure import replay

server = replay.Server()


@server.method
def job(call: replay.Call) -> str:
    asked = call.session.get("asked", 0) + 1
    call.session["asked"] = asked
    return f"{call.shared.add('sum')} {asked} ".ljust(200, ".")


server.run(sys.argv[1])
