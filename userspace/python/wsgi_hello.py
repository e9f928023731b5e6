# SPDX-License-Identifier: GPL-2.0-or-later
"""An application for python3 -m perdure.wsgi wsgi_hello: greets, says in which generation it is, and at /crash faults
whenever it is asked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import perdure


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/crash":
        ctypes.string_at(0)             # twice, then the client is answered 500
    info = perdure.info() if perdure.available() else None
    start_response("200 OK", [("Content-Type", "text/plain; charset=utf-8")])
    return [f"Hello from generation {info.generation if info else 1}.\n".encode()]
