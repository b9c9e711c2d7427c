"""A stretch of a statement: which parts become literals, and what still could differ.

`Examination` goes over the tokens of a stretch once for calls and once for the rest. What it can
replace becomes a `Replacement`; everything else that could differ from cluster to cluster becomes
a `Finding`, and the caller decides what that means for its kind of statement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from haproc.classify.moments import SPECIAL_DATETIME, is_time_of_day
from haproc.classify.tokens import TokenKind
from haproc.pin.calls import DATETIMES, call_literal, is_ordered
from haproc.pin.functions import BARE, Nature, nature
from haproc.pin.literals import string_literal
from haproc.pin.model import Moment, Replacement
from haproc.pin.moment import (
    Chance,
    clock_literal,
    identity_literal,
    special_datetime_literal,
)
from haproc.pin.names import Columns, has_meaning_in_rows, is_declared
from haproc.pin.reasons import REASONS
from haproc.pin.scan import Call, Scan

_FILE_FORMATS = frozenset(
    {"parquet", "csv", "json", "orc", "text", "avro", "delta", "binaryfile", "xml", "iceberg"}
)
_WORD_RULES = frozenset(
    {"LIMIT", "OFFSET", "TABLESAMPLE", "ROWS", "USING", "WITH", "IDENTIFIER"}
    | {"VERSION", "SYSTEM_VERSION", "TIMESTAMP", "SYSTEM_TIME"}
)


class Doubt(StrEnum):
    """What a finding rests on, where a closer look may dispel it."""

    CERTAIN = "certain"
    SUM = "sum"
    """Exact if its argument is an integer or a decimal."""
    LIMIT = "limit"
    """Exact if the order is total."""
    ANALYSIS = "analysis"
    """Spark's analysis tells what a name or a text came to."""


DOUBTS = {
    Nature.EXACT_OR_FLOAT: Doubt.SUM,
    Nature.ORDER: Doubt.ANALYSIS,
    Nature.UNKNOWN: Doubt.ANALYSIS,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of the statement that could differ; ``reason`` is a sentence."""

    reason: str
    doubt: Doubt = Doubt.CERTAIN


@dataclass(slots=True)
class Examination:
    """Collects what a statement's stretches hold."""

    scan: Scan
    moment: Moment
    vouched: bool = False
    """Somebody vouches for functions that are not known: they give the same everywhere."""
    replacements: list[Replacement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    """Functions that are called and not Spark's own, without their schemas."""
    _found: set[Finding] = field(default_factory=set)
    _taken: set[int] = field(default_factory=set)
    _columns: Columns = field(init=False)

    def __post_init__(self) -> None:
        self._columns = Columns(self.scan)

    def stretch(self, start: int, end: int, *, rows: bool = False) -> None:
        """Examine the tokens from ``start`` to before ``end``.

        ``rows``: it is a VALUES list, whose expressions are evaluated once each and see no column.
        """
        # In a lambda a call runs for each element, and names are parameters.
        plain = rows and not self._has_lambda(start, end)
        chance = Chance(self.moment.random) if plain else None
        for call in self.scan.calls(start, end):
            if call.first not in self._taken:
                self._call(call, chance)
        for at in range(start, end):
            if at not in self._taken:
                self._token(at, rows=rows, plain=plain)

    def _replace(self, first: int, last: int, literal: str) -> None:
        tokens = self.scan.tokens
        self.replacements.append(Replacement(tokens[first].start, tokens[last].end, literal))
        self._taken.update(range(first, last + 1))

    def _find(self, reason: str, doubt: Doubt = Doubt.CERTAIN) -> None:
        finding = Finding(reason, doubt)
        if finding not in self._found:
            self._found.add(finding)
            self.findings.append(finding)

    def _has_lambda(self, start: int, end: int) -> bool:
        return any(self.scan.symbol(at) == "->" for at in range(start, end))

    # Calls

    def _call(self, call: Call, chance: Chance | None) -> None:
        name, nature = call.name, call.nature
        if nature is Nature.UNKNOWN and self.vouched:
            return
        literal = call_literal(self.scan, call, self.moment, chance)
        if literal is None and is_ordered(self.scan, call):
            return
        if literal is not None:
            self._replace(call.first, call.close, literal)
        elif nature is not Nature.DETERMINISTIC:
            if nature is Nature.UNKNOWN:
                self.unknown.add(name.rpartition(".")[2])
            doubt = DOUBTS.get(nature, Doubt.CERTAIN)
            self._find(REASONS[nature].format(f"{name}()"), doubt)

    # Everything else

    def _token(self, at: int, *, rows: bool, plain: bool) -> None:
        scan = self.scan
        kind = scan.kind(at)
        if kind is TokenKind.STRING:
            self._string(at, rows=rows)
        elif kind is TokenKind.WORD or kind is TokenKind.QUOTED_NAME:
            self._name(at, rows=rows, plain=plain)
        elif scan.symbol(at) == "@":
            self._find("@ reads an older version of a table, and versions differ")

    def _string(self, at: int, *, rows: bool) -> None:
        scan = self.scan
        if scan.kind(at - 1) is TokenKind.STRING:
            return  # part of the string before
        text = scan.string_value(at)
        if not SPECIAL_DATETIME.fullmatch(text):
            self._time_of_day(at, text)
            return
        last = at
        while scan.kind(last + 1) is TokenKind.STRING:
            last += 1
        before, cast = scan.word(at - 1), scan.word(last + 2)
        literal: str | None = None
        first = at
        if before in DATETIMES:
            literal, first = special_datetime_literal(text, before, self.moment), at - 1
        elif scan.symbol(last + 1) == "::" and cast in DATETIMES:
            literal, last = special_datetime_literal(text, cast, self.moment), last + 2
        elif rows and self._is_row_item(at, last):
            return  # a value as it stands: no cast turns it into a moment
        if literal is not None:
            self._replace(first, last, literal)
        else:
            self._find(
                f"Spark may read {string_literal(text)} as a moment, which is another one on "
                "every cluster",
                # Spark reads a literal with its type before it analyzes anything.
                Doubt.CERTAIN if before in DATETIMES else Doubt.ANALYSIS,
            )

    def _time_of_day(self, at: int, text: str) -> None:
        before = self.scan.word(at - 1)
        if not is_time_of_day(text) or before in ("TIME", "INTERVAL", "DATE", "TIMESTAMP_NTZ"):
            return
        self._find(
            f"Spark completes {string_literal(text)} by today's date where it makes a TIMESTAMP "
            "of it",
            Doubt.CERTAIN if before in DATETIMES else Doubt.ANALYSIS,
        )

    def _is_row_item(self, first: int, last: int) -> bool:
        scan = self.scan
        is_between = scan.symbol(first - 1) in ("(", ",") and scan.symbol(last + 1) in (")", ",")
        return is_between and scan.depth[first] == 1

    def _name(self, at: int, *, rows: bool, plain: bool) -> None:
        scan = self.scan
        word, name = scan.word(at), scan.name(at)
        if scan.symbol(at - 1) == ".":
            self._qualified(at)
            return
        if word in _WORD_RULES:
            self._keyword(at, word)
        elif name in ("session", "system") and scan.symbol(at + 1) == ".":
            if "session" in (name, scan.name(at + 2) if scan.is_name(at + 2) else ""):
                self._find("session variables are not the same on the other clusters")
        elif name in BARE and scan.symbol(at + 1) not in ("(", ".", "=>"):
            self._bare(at, name, rows=rows)
        elif plain and not has_meaning_in_rows(scan, at):
            self._find(
                f"{name} can only be a session variable, which the other clusters do not have"
            )

    def _qualified(self, at: int) -> None:
        scan = self.scan
        if scan.kind(at) is not TokenKind.QUOTED_NAME or not scan.is_name(at - 2):
            return
        text = scan.name(at)
        is_path = "/" in text or ":" in text
        if is_path and scan.name(at - 2) in _FILE_FORMATS:
            self._find(f"the files at {text} belong to no table of the ring")

    def _keyword(self, at: int, word: str) -> None:
        scan = self.scan
        behind, symbol = scan.word(at + 1), scan.symbol(at + 1)
        if word in ("LIMIT", "OFFSET"):
            is_count = scan.kind(at + 1) in (TokenKind.NUMBER, TokenKind.PARAMETER)
            is_column = symbol in (",", ")", "=", ".", "") and not is_count and not behind
            if not is_column and behind not in ("ALL", "FROM", "AS", "IS", "IN", "AND", "OR"):
                self._find(f"{word} takes any rows unless their order is total", Doubt.LIMIT)
        elif word == "TABLESAMPLE":
            self._find("TABLESAMPLE depends on how each cluster has laid out its files")
        elif word in ("VERSION", "SYSTEM_VERSION", "TIMESTAMP", "SYSTEM_TIME"):
            if behind == "AS" and scan.word(at + 2) == "OF":
                self._find(f"{word} AS OF: each cluster numbers and dates its versions itself")
        elif word == "ROWS":
            frame = [scan.word(at + i) for i in range(1, 7)]
            if frame == ["BETWEEN", "UNBOUNDED", "PRECEDING", "AND", "UNBOUNDED", "FOLLOWING"]:
                return
            if behind in ("BETWEEN", "UNBOUNDED", "CURRENT") or scan.word(at + 2) == "PRECEDING":
                self._find("a window of ROWS depends on how ties in its order fall", Doubt.ANALYSIS)
        elif word == "WITH" and symbol == "(":
            self._find("options of a table that is read may choose one of its versions")
        elif word == "IDENTIFIER" and symbol == "(":
            self._identifier(at)
        elif word == "USING" and scan.kind(at + 1) is TokenKind.STRING:
            self._find("a script runs code that HAProc cannot look into")

    def _identifier(self, at: int) -> None:
        """``IDENTIFIER('name')(…)`` calls a function, whatever the text in it comes to."""
        scan = self.scan
        close = scan.closing[at + 1]
        if scan.symbol(close + 1) != "(":
            return
        is_literal = scan.kind(at + 2) is TokenKind.STRING
        text = scan.string_value(at + 2).lower() if is_literal else ""
        behind = at + 2
        while scan.kind(behind) is TokenKind.STRING:
            behind += 1
        name = text.rpartition(".")[2].strip("`")
        of = nature(name) if is_literal and behind == close else None
        if of is None:
            self._find("IDENTIFIER(…) calls a function whose name is computed")
        elif name == "range":  # its arguments are told by its name (`inline`)
            self._find("IDENTIFIER(…) calls range(), which has to be called by its name")
        elif of is not Nature.DETERMINISTIC:
            if of is Nature.UNKNOWN:
                self.unknown.add(name)
            self._find(REASONS[of].format(f"{name}()"), DOUBTS.get(of, Doubt.CERTAIN))

    def _bare(self, at: int, name: str, *, rows: bool) -> None:
        scan = self.scan
        if is_declared(scan, at):
            return
        quoted = scan.kind(at) is TokenKind.QUOTED_NAME
        if not rows and (quoted or name == "user" or self._columns.is_elsewhere(at, name)):
            self._find(f"{name} may be the function {name}() or a column", Doubt.ANALYSIS)
        elif name == "current_path":
            self._find(REASONS[Nature.CONTEXT].format(name))
        elif name in ("current_user", "user", "session_user"):
            self._replace(at, at, identity_literal(name, self.moment))
        else:
            self._replace(at, at, clock_literal(name, self.moment, plain=rows))
