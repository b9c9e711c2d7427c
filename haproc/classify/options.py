"""The options and properties that a statement gives: only those known to be harmless.

HAProc's marks live in Delta's commits and in the table's own memory of transactions; an option of
one INSERT can overwrite the first, a property of the table makes Delta forget the second. Others
let a write read another version of a table than the other clusters have. So this is a list of what
is allowed. Names are compared as Spark reads them, whatever way they are spelt.
"""

from __future__ import annotations

from collections.abc import Iterator

from haproc.classify.model import Kind, RefusedError
from haproc.classify.reader import Reader
from haproc.classify.relations import name_at
from haproc.classify.rules import QUERY_KINDS, SESSION_KINDS
from haproc.classify.strings import adjacent
from haproc.classify.tokens import TokenKind
from haproc.failure import ErrorClass

_DEFINING = frozenset(
    {Kind.CREATE_TABLE, Kind.CREATE_TABLE_AS, Kind.ALTER_TABLE, Kind.OTHER_DDL, Kind.UNKNOWN}
)
_NAMES = (TokenKind.WORD, TokenKind.QUOTED_NAME)
_WRITE_OPTIONS = frozenset(
    ["compression", "maxrecordsperfile", "mergeschema", "optimizewrite", "partitionoverwritemode"]
)
"""Of Delta's writer: how the files of an INSERT are made, and whether its columns may be new."""
_MARKS = frozenset(["usermetadata", "txnappid", "txnversion"])
"""Of Delta's writer: by these HAProc knows its writes again."""
_DELTAS = """appendonly autooptimize autooptimize.autocompact autooptimize.optimizewrite
    checkpoint.writestatsasjson checkpoint.writestatsasstruct checkpointinterval checkpointpolicy
    checkpointretentionduration columnmapping.mode dataskippingnumindexedcols
    dataskippingstatscolumns dataskippingstringprefixlength deletedfileretentionduration
    enablechangedatafeed enabledeletionvectors enableexpiredlogcleanup enablefullretentionrollback
    enableincommittimestamps enablerowtracking enabletypewidening enablevariantshredding
    isolationlevel logretentionduration minreaderversion minwriterversion
    parquet.compression.codec parquet.format.version randomizefileprefixes randomprefixlength
    sampleretentionduration targetfilesize tunefilesizesforrewrites
    writepartitioncolumnstoparquet"""
_DELTA_PROPERTIES = frozenset(_DELTAS.split())
"""Delta 4.4's own, behind ``delta.``. Not among them: setTransactionRetentionDuration, by which
Delta forgets which writes a table has, and what hands a table's commits to somebody else."""
_FEATURES = """allowcolumndefaults appendonly changedatafeed checkconstraints clustering
    columnmapping deletionvectors domainmetadata generatedcolumns incommittimestamp invariants
    rowtracking timestampntz typewidening v2checkpoint vacuumprotocolcheck varianttype"""
_DELTA_FEATURES = frozenset(_FEATURES.split())


def check_options(reader: Reader, kind: Kind) -> None:
    """Refuse a write that gives an option which is not known as harmless."""
    if kind in QUERY_KINDS or kind in SESSION_KINDS:
        return
    for index in range(reader.end - 1):
        if not reader.tokens[index + 1].is_symbol("("):
            continue
        word = reader.tokens[index].upper
        if word == "WITH":
            for key in _keys(reader, index + 1):
                check_write_option(key)
        elif word in ("OPTIONS", "TBLPROPERTIES") and kind in _DEFINING:
            for key in _keys(reader, index + 1):
                check_property(key)


def check_write_option(key: str) -> None:
    """Refuse an option of a write, its name in lower case, that is not known as harmless."""
    if key in _MARKS:
        raise _reserved(key)
    if key not in _WRITE_OPTIONS:
        known = ", ".join(sorted(_WRITE_OPTIONS))
        raise RefusedError(
            ErrorClass.OPTION,
            f"{key[:80]!r} is not an option that is known to do the same on every cluster",
            f"those that are known: {known}",
        )


def check_property(key: str) -> None:
    """Refuse a property of a table, its name in lower case, that could cost it its marks."""
    key = key.removeprefix("option.")
    if key in _MARKS:
        raise _reserved(key)
    space, _, name = key.partition(".")
    if name.startswith("constraints."):
        raise RefusedError(
            ErrorClass.OPTION,
            f"the property {key[:80]} is a CHECK whose expression is hidden in a text",
            "write ALTER TABLE … ADD CONSTRAINT … CHECK (…) instead",
        )
    if space != "delta" or name in _DELTA_PROPERTIES:
        return
    if name.removeprefix("feature.") in _DELTA_FEATURES and name.startswith("feature."):
        return
    raise RefusedError(
        ErrorClass.OPTION,
        f"the property {key[:80]} is not one that is known to leave HAProc's marks in the table",
        "leave it out; properties that don't begin with delta. may be any",
    )


def _reserved(key: str) -> RefusedError:
    return RefusedError(
        ErrorClass.RESERVED_OPTION,
        f"the option {key} belongs to HAProc, which marks each write with it",
        "leave it out; a request id makes a write happen once",
    )


def _keys(reader: Reader, opening: int) -> Iterator[str]:
    """Yield, in lower case, all that Spark may take for a key of the list that opens there."""
    tokens, close = reader.tokens, reader.closing[opening]
    index = opening + 1
    while index < close:
        if tokens[index].kind is TokenKind.STRING:
            _, behind = adjacent(tokens, index)
            # Without an equals sign the last ones are the value: which, Spark decides.
            shortest = behind if _is_equals(reader, behind) else index + 1
            for end in range(shortest, min(behind, index + _PIECES_MAX) + 1):
                yield adjacent(tokens[:end], index)[0].lower()
            if behind - index > _PIECES_MAX:
                raise _unreadable(tokens[index].text)
        elif tokens[index].kind in _NAMES:
            name, behind = name_at(tokens, index)
            yield ".".join(name).lower()
        else:
            raise _unreadable(tokens[index].text)
        index = _next_item(reader, behind, close)


_PIECES_MAX = 8
"""Strings side by side that make up one key, or a key and its value; chosen, not measured."""


def _is_equals(reader: Reader, index: int) -> bool:
    return reader.tokens[index].is_symbol("=") or reader.tokens[index].is_symbol("==")


def _next_item(reader: Reader, index: int, close: int) -> int:
    """Return where the item behind the next comma begins."""
    if index < close and reader.tokens[index].is_symbol("("):
        raise _unreadable(reader.tokens[index - 1].text)  # the key is computed
    while index < close and not reader.tokens[index].is_symbol(","):
        index = reader.closing.get(index, index) + 1
    return index + 1


def _unreadable(text: str) -> RefusedError:
    return RefusedError(
        ErrorClass.OPTION,
        f"the name of an option cannot be told at {text[:40]}",
        "write 'name' = value, the name as one string",
    )
