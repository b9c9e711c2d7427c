"""Memory that was used for a short time goes back to the system."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading
import pyarrow as pa
from pathlib import Path
from haproc.cli import serving

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

def pass_through(block):
    kept = []
    for number in range(12):
        data = bytes(block + number)
        kept.append(bytes(100_000))  # what stays lies between the blocks
        part = pa.py_buffer(data).slice(1).to_pybytes()
        copies = pa.allocate_buffer(block), data + part
        del data, part, copies
    return kept

serving.give_back_blocks()
before, kept = resident_mib(), []
threads = [
    threading.Thread(target=lambda size=size: kept.append(pass_through(size << 20)))
    for size in (2, 8, 4, 8)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(resident_mib() - before)
"""
KEPT_MIB = 5
"""The memory that the program keeps, in twelve pieces on each of four threads."""


def test_large_blocks_of_several_threads_are_returned_to_the_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60
    )
    assert int(done.stdout) <= 2 * KEPT_MIB
