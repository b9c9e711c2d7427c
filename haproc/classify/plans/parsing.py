"""From bytes to protocol buffers, bounded, and with nothing in them that is not known here.

Spark goes into a plan by recursion, as into a statement (`haproc.classify.bounds`), so how deep it
may nest is bounded here, for queries, too. What a newer client sends in fields that the messages of
this version do not have would be passed over, here but perhaps not by Spark: a message that holds
any is refused.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from haproc import protos, wire
from haproc.classify.model import RefusedError
from haproc.classify.plans import refusals
from haproc.failure import ErrorClass

DEPTH_MAX = 400
"""Messages inside each other: 198 steps of a DataFrame or calls of functions, two for each."""
OPENED_BYTES_MAX = 128 << 20
"""A compressed plan's size when it is opened: as large as any message that comes."""

_Compressed = protos.base.Plan.CompressedOperation


def parse(kind: Any, data: bytes) -> Any:
    """Return the message of class ``kind`` in ``data``; RefusedError if it can't be told wholly."""
    message = _parsed(kind, data)
    message.DiscardUnknownFields()
    if message.ByteSize() != len(data):
        _check_known(kind, data, message)
    return message


def opened(plan: Any) -> Any:
    """Return the plan as it was before its client compressed it."""
    if plan.WhichOneof("op_type") != "compressed_operation":
        return plan
    packed = plan.compressed_operation
    if packed.compression_codec != protos.base.COMPRESSION_CODEC_ZSTD:
        raise refusals.unknown(f"a compression of kind {packed.compression_codec}")
    data = _decompressed(packed.data)
    whole = protos.base.Plan()
    if packed.op_type == _Compressed.OP_TYPE_RELATION:
        whole.root.CopyFrom(parse(protos.relations.Relation, data))
    elif packed.op_type == _Compressed.OP_TYPE_COMMAND:
        whole.command.CopyFrom(parse(protos.commands.Command, data))
    else:
        raise refusals.unknown(f"a compressed plan of kind {packed.op_type}")
    return whole


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        return wire.parsed(kind, data, DEPTH_MAX)
    except wire.TooDeepError as error:
        raise _too_deep() from error
    except wire.MalformedError as error:
        raise _malformed() from error


def _check_known(kind: Any, data: bytes, known: Any) -> None:
    """Refuse unless the sizes differ only because another writer spelt the same otherwise."""
    if _parsed(kind, data).ByteSize() != known.ByteSize():
        raise refusals.unknown("a field of a newer version of Spark Connect")


def _decompressed(data: bytes) -> bytes:
    try:
        with pa.CompressedInputStream(pa.py_buffer(data), "zstd") as stream:
            opened = bytes(stream.read(OPENED_BYTES_MAX + 1))
    except OSError as error:
        raise _malformed() from error
    if len(opened) > OPENED_BYTES_MAX:
        raise RefusedError(
            ErrorClass.STATEMENT_TOO_COMPLEX,
            f"the plan is more than {OPENED_BYTES_MAX} bytes long once it is decompressed",
            "give large rows to spark.createDataFrame in several calls, or write it in parts",
        )
    return opened


def _too_deep() -> RefusedError:
    return RefusedError(
        ErrorClass.STATEMENT_TOO_COMPLEX,
        f"the plan is nested more than {DEPTH_MAX} messages deep: steps of a DataFrame (two each) "
        "and expressions inside each other",
        "use one select(…) or withColumns({…}) in place of many withColumn(…), or write "
        "a part of it to a table",
    )


def _malformed() -> RefusedError:
    return RefusedError(
        ErrorClass.BAD_REQUEST, "the message is no protocol buffer of its kind", "see the client"
    )
