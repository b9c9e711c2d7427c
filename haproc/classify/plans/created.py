"""DataFrames that ``spark.catalog.createTable`` gave: that call again, in what is made of them.

Spark remembers in its session that it made the call, and takes the table that it gave. HAProc makes
it on every cluster, by the log, so what stands below other relations, or is only asked about, means
the table and nothing else: where that is not there, Spark says so.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import Message

from haproc.classify.plans.members import members

_CREATES: Final = members("create_table create_external_table")


def as_tables(message: Any) -> bool:
    """Put reads of tables in the place of calls that made them; return whether any was there."""
    if message.DESCRIPTOR.full_name == "spark.connect.Relation":
        kind = message.WhichOneof("rel_type") == "catalog" and message.catalog.WhichOneof(
            "cat_type"
        )
        if kind in _CREATES:
            name = getattr(message.catalog, kind).table_name
            message.read.named_table.unparsed_identifier = name
            return True
    found = False
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if isinstance(value, Message):
            parts = [value]
        elif field.message_type.GetOptions().map_entry:
            parts = [part for part in value.values() if isinstance(part, Message)]
        else:
            parts = list(value)
        for part in parts:
            found = as_tables(part) or found
    return found
