"""Record the readings anew: ``python -m tests.readings [port token]``.

Without a port it starts its own Spark, and stops it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import uuid
from pathlib import Path

from haproc.ring.process import free_port
from haproc.ring.spark import LocalSpark
from tests.readings.record import record
from tests.readings.spark import Spark
from tests.rig import SPARK_SETTINGS


def main() -> None:
    """Record at a running server, or at its own."""
    if len(sys.argv) == 3:
        port, token = int(sys.argv[1]), sys.argv[2]
        record(lambda: Spark(port, token), print)
        return
    with tempfile.TemporaryDirectory() as folder:
        server = LocalSpark(
            "readings", Path(folder), free_port(), uuid.uuid4().hex, settings=SPARK_SETTINGS
        )
        try:
            asyncio.run(server.start(warm=False))
            record(lambda: Spark(server.port, server.token), print)
        finally:
            asyncio.run(server.stop())


if __name__ == "__main__":
    main()
