"""The names besides tables that statements may contain: harmless options, properties and files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from haproc.classify.model import RefusedError
from haproc.failure import ErrorClass

# The options and properties in a statement: only those known to be harmless.
#
# HAProc's transaction markers are in Delta's commits and in the table's own list of transactions.
# An option of one INSERT can overwrite the first, and a property of the table can make Delta forget
# the second. Other options let a write read another version of a table than on the other clusters.
# So this is a list of allowed names. Names are compared as Spark reads them, in any spelling.


_WRITE_OPTIONS = frozenset(
    ["compression", "maxrecordsperfile", "mergeschema", "optimizewrite", "partitionoverwritemode"]
)
"""The allowed options of Delta's writer, in lower case: for the form of an INSERT's files, and
whether it may add columns."""
_MARKS = frozenset(["usermetadata", "txnappid", "txnversion"])
"""Options of Delta's writer that HAProc itself sets, to recognise its writes later."""
_OF_FORMATS = re.compile(
    r"(?:avro|collection|colelction|delta|escape|field|input|line|mapkey|orc|parquet|quote|serialization)"
    r"\.(?!crypto|encryption)",
    re.IGNORECASE,
)
"""The beginnings of allowed read options with a dot; all others with a dot are settings of
Hadoop's."""
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
"""The allowed properties of tables of Delta 4.4, written behind ``delta.``. Left out are
setTransactionRetentionDuration, by which Delta forgets a table's writes, and properties that hand a
table's commits to others."""
_FEATURES = """allowcolumndefaults appendonly changedatafeed checkconstraints clustering
    columnmapping deletionvectors domainmetadata generatedcolumns incommittimestamp invariants
    rowtracking timestampntz typewidening v2checkpoint vacuumprotocolcheck varianttype"""
_DELTA_FEATURES = frozenset(_FEATURES.split())


def check_write_option(key: str) -> None:
    """Raise RefusedError if a write's option is not known to be harmless.

    ``key``: the option's name in lower case.
    """
    if key in _MARKS:
        raise _reserved(key)
    if key not in _WRITE_OPTIONS:
        known = ", ".join(sorted(_WRITE_OPTIONS))
        raise RefusedError(
            ErrorClass.OPTION,
            f"{key[:80]!r} is not an option that is known to do the same on every cluster",
            f"those that are known: {known}",
        )


def check_read_option(key: str) -> None:
    """Raise RefusedError if a read option is a setting of Hadoop's, such as ``fs.file.impl``.

    Such a setting could change where files are found, or which code reads them.
    """
    if "." in key and not _OF_FORMATS.match(key):
        raise RefusedError(
            ErrorClass.OPTION,
            f"the option {key[:80]} may change where files are found, or which code reads them",
            "leave it out",
        )


def check_property(key: str) -> None:
    """Raise RefusedError if a table property could remove the table's transaction markers.

    ``key``: the property's name in lower case. A property that hides a CHECK is refused, too.
    """
    if key.startswith("option."):
        key = key.removeprefix("option.")
        check_read_option(key)
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


# The files that statements name: the operator allows some.
#
# Files lie outside the ring's tables: their content differs between clusters, rules for tables do
# not apply, and every cluster in turn may write them. So a statement that names files is refused,
# unless each path lies below one of the prefixes in ``paths``. Paths are compared in a normal form;
# a path without one is below no prefix.


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
# File systems read these as patterns or escapes; ``*`` and ``?`` are fine, they match names only.
_UNCLEAR = re.compile(r"[\x00-\x1f\\%#\[\]{}^;]")
# Options of a source that name a place: path, basePath, avroSchemaUrl …
_LOCATING = re.compile(r"(?:path|paths|location|uri|url|dir|directory)$", re.IGNORECASE)


def locates(option: str) -> bool:
    """True if the value of the option with this name is a path or a URL."""
    return _LOCATING.search(option) is not None


class NormalPath(NamedTuple):
    """A path in its normal form: the scheme in lower case, and the names from the root on."""

    scheme: str
    authority: str
    names: tuple[str, ...]


def place_of(path: str) -> NormalPath | None:
    """Return an absolute path in its normal form; None if it is relative, or has no clear meaning.

    ``/x`` is on the cluster's default file system, so it is another path than ``file:/x``.
    """
    if _UNCLEAR.search(path) or path != path.strip():
        return None
    match = _SCHEME.fullmatch(path)
    scheme, rest = (match[1].lower(), match[2]) if match else ("", path)
    authority = ""
    if scheme and rest.startswith("//"):
        authority, slash, rest = rest[2:].partition("/")
        rest = slash + rest
    if not rest.startswith("/"):
        return None
    names: list[str] = []
    for name in rest.split("/"):
        if name == ".." and not names:
            return None
        if name == "..":
            names.pop()
        elif name not in ("", "."):
            names.append(name)
    if ".." in rest.split("/") and ("*" in rest or "?" in rest):
        return None
    return NormalPath(scheme, authority, tuple(names))


@dataclass(frozen=True, slots=True)
class Paths:
    """The prefixes of paths below which statements may name files; without prefixes, none may."""

    prefixes: tuple[str, ...] = ()

    def allow(self, path: str) -> bool:
        """True if the path is one of the prefixes, or lies below one."""
        place = place_of(path)
        return place is not None and any(_below(place, place_of(each)) for each in self.prefixes)

    def check(self, paths: frozenset[str]) -> None:
        """Raise RefusedError if any of these paths is not allowed."""
        for path in sorted(paths):
            if not self.allow(path):
                raise RefusedError(
                    ErrorClass.PATH,
                    f"the statement names files, at {path}, that belong to no table of the ring",
                    "name a table (catalog.schema.table if its schema is called like a format), or "
                    "have the operator allow the path's beginning in paths",
                )


def _below(place: NormalPath, prefix: NormalPath | None) -> bool:
    if prefix is None or place[:2] != prefix[:2]:
        return False
    return place.names[: len(prefix.names)] == prefix.names


NO_PATHS = Paths()
