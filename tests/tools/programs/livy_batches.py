"""A job and a missing session through pylivy: ``python livy_batches.py URL FILE TABLE``.

The job is a program of the ring's folder that takes a table and a day.
"""

from __future__ import annotations

import sys

import requests
from livy import LivyBatch, LivySession, SessionState
from livy.client import LivyClient

url, file, table = sys.argv[1:]
client = LivyClient(url)
with requests.Session() as session:
    session.headers["Authorization"] = "Bearer a token that a ring without users ignores"
    options = {"requests_session": session, "spark_conf": {"haproc.restart": "1"}}
    batch = LivyBatch.create(url, file, args=[table, "2026-01-31"], name="load", **options)
    assert batch.wait() is SessionState.SUCCESS, batch.log()
    assert "wrote 2026-01-31" in batch.log()
    assert batch.batch_id in [each.batch_id for each in client.list_batches()]

    failing = LivyBatch.create(url, file, args=["nowhere", "2026-01-31"], requests_session=session)
    assert failing.wait() is SessionState.DEAD
    assert any("TABLE_OR_VIEW_NOT_FOUND" in line for line in failing.log(size=1000))

    endless = LivyBatch.create(url, file, args=[table, "for ever"], requests_session=session)
    endless.kill()
    assert endless.wait() is SessionState.KILLED

    try:
        LivySession.create(url, requests_session=session)
    except requests.HTTPError as error:
        print(error, error.response.json()["msg"], sep="\n")
    else:
        raise AssertionError("it has no sessions")
client.close()
