#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The job of bench replay on DBOS: dbos-service.py PORT DATABASE_URL.

A request is a workflow, whose id is its Idempotency-Key, of one transaction, which DBOS makes
exactly-once. Threads, since DBOS was slower with coroutines, and READ COMMITTED, since its default,
SERIALIZABLE, has all but one of the transactions that add to the same number fail and try again."""

import asyncio
import sys

import sqlalchemy as sa
import uvicorn
from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource

PORT, URL = int(sys.argv[1]), sys.argv[2]
DBOS(
    config={
        "name": "bench", "system_database_url": URL, "sys_db_pool_size": 20, "log_level": "WARNING",
        "executor_id": "bench", "application_version": "1"
    })
data = SQLAlchemyDatasource.create(URL, engine_kwargs={"pool_size": 20, "max_overflow": 0})
TABLES = ("CREATE TABLE IF NOT EXISTS sessions_of_bench (id text PRIMARY KEY, asked bigint NOT NULL)",
          "CREATE TABLE IF NOT EXISTS shared (name text PRIMARY KEY, value bigint NOT NULL)",
          "INSERT INTO shared VALUES ('sum', 0) ON CONFLICT DO NOTHING")
READ = sa.text("SELECT asked FROM sessions_of_bench WHERE id = :id")
WRITE = sa.text("INSERT INTO sessions_of_bench VALUES (:id, :asked) ON CONFLICT (id) DO UPDATE SET asked = :asked")
ADD = sa.text("UPDATE shared SET value = value + 1 WHERE name = 'sum' RETURNING value")


@data.transaction(isolation_level="READ COMMITTED")
def execute(session: str) -> str:
    sql = data.sql_session()
    asked = (sql.execute(READ, {"id": session}).scalar() or 0) + 1
    sql.execute(WRITE, {"id": session, "asked": asked})
    # Last: its lock is held until the transaction is on the disk
    return f"{sql.execute(ADD).scalar_one()} {asked} ".ljust(200, ".")


@DBOS.workflow()
def job(session: str) -> str:
    return execute(session)


def run(key: str, session: str) -> bytes:
    with SetWorkflowID(key):
        return job(session).encode()


async def app(scope, receive, send):    # type: ignore[no-untyped-def]
    if scope["type"] == "lifespan":
        await receive()
        with data.engine.begin() as connection:
            for statement in TABLES:
                connection.execute(sa.text(statement))
        DBOS.launch()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        DBOS.destroy()
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    key = dict(scope["headers"])[b"idempotency-key"].decode()
    answer = await asyncio.to_thread(run, key, scope["path"].rpartition("/")[2])
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(answer)).encode())]})
    await send({"type": "http.response.body", "body": answer})


uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning", access_log=False)
