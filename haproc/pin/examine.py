"""A stretch of a statement: which parts become literals, and what still could differ.

`Examination` goes over the tokens of a stretch once for calls and once for the rest. What it can
replace becomes a `Replacement`; everything else that could differ from cluster to cluster becomes
a `Finding`, and the caller decides what that means for its kind of statement.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from haproc.classify.tokens import TokenKind
from haproc.pin.functions import BARE, KEYWORDS, Nature
from haproc.pin.literals import integer_literal, string_literal
from haproc.pin.model import Moment, Replacement
from haproc.pin.moment import (
    RANDSTR_LENGTH_MAX,
    SPECIAL_DATETIME,
    Chance,
    clock_literal,
    identity_literal,
    special_datetime_literal,
)
from haproc.pin.scan import Call, Scan

_DATETIMES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
_CASTING = {
    "date": "DATE",
    "to_date": "DATE",
    "try_to_date": "DATE",
    "timestamp": "TIMESTAMP",
    "to_timestamp": "TIMESTAMP",
    "try_to_timestamp": "TIMESTAMP",
    "to_timestamp_ltz": "TIMESTAMP_LTZ",
    "to_timestamp_ntz": "TIMESTAMP_NTZ",
}
_FROM_CALLS = frozenset({"extract", "trim", "ltrim", "rtrim", "substring", "substr", "overlay"})
_TABLE_WORDS = frozenset({"FROM", "JOIN", "INTO", "UPDATE", "TABLE", "VIEW", "USING"})
_INTEGER_BITS = {"Y": 8, "S": 16, "": 32, "L": 64}
_INTEGER_NAMES = {"Y": "TINYINT", "S": "SMALLINT", "": "INT", "L": "BIGINT"}
_FILE_FORMATS = frozenset(
    {"parquet", "csv", "json", "orc", "text", "avro", "delta", "binaryfile", "xml", "iceberg"}
)
_WORD_RULES = frozenset(
    {"LIMIT", "OFFSET", "TABLESAMPLE", "ROWS", "USING"}
    | {"VERSION", "SYSTEM_VERSION", "TIMESTAMP", "SYSTEM_TIME"}
)
_REASONS = {
    Nature.CLOCK: "{} reads the clock, which is different on every cluster",
    Nature.IDENTITY: "{} depends on the session",
    Nature.CONTEXT: "{} depends on the server",
    Nature.RANDOM: "{} gives other values on every cluster",
    Nature.PLACEMENT: "{} depends on how each cluster has laid out its files and partitions",
    Nature.FOREIGN: "{} runs code that HAProc cannot look into",
    Nature.ORDER: "{} depends on the order of rows or on how ties fall",
    Nature.EXACT_OR_FLOAT: "{} of floating point values depends on the order of rows",
    Nature.FLOAT: "{} computes in floating point, where the order of rows shows",
    Nature.APPROXIMATE: "{} approximates, depending on the order of rows",
    Nature.UNKNOWN: "the function {} is not one of Spark's own, so its results may differ",
}


class Doubt(StrEnum):
    """What a finding rests on, where a closer look may dispel it."""

    CERTAIN = "certain"
    SUM = "sum"
    """Exact if its argument is an integer or a decimal."""
    LIMIT = "limit"
    """Exact if the order is total."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of the statement that could differ; ``reason`` is a sentence."""

    reason: str
    doubt: Doubt = Doubt.CERTAIN


@dataclass(frozen=True, slots=True)
class Known:
    """What the caller knows beyond the statement's text. All names in lower case.

    ``session_names``: session variables and temporary functions. ``functions``: user-defined
    functions that are deterministic. ``columns``: columns of the tables involved, where known.
    """

    session_names: Collection[str] = frozenset()
    functions: Collection[str] = frozenset()
    columns: Collection[str] = frozenset()


@dataclass(slots=True)
class Examination:
    """Collects what a statement's stretches hold."""

    scan: Scan
    moment: Moment
    known: Known = field(default_factory=Known)
    replacements: list[Replacement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _taken: set[int] = field(default_factory=set)

    def stretch(self, start: int, end: int, *, rows: bool = False) -> None:
        """Examine the tokens from ``start`` to before ``end``.

        ``rows``: it is a VALUES list, whose expressions are evaluated once each and see no column.
        """
        chance = Chance(self.moment.random) if rows and not self._has_lambda(start, end) else None
        for call in self.scan.calls(start, end):
            if call.first not in self._taken:
                self._call(call, chance)
        for at in range(start, end):
            if at not in self._taken:
                self._token(at, rows=rows)

    def _replace(self, first: int, last: int, literal: str) -> None:
        tokens = self.scan.tokens
        self.replacements.append(Replacement(tokens[first].start, tokens[last].end, literal))
        self._taken.update(range(first, last + 1))

    def _find(self, reason: str, doubt: Doubt = Doubt.CERTAIN) -> None:
        finding = Finding(reason, doubt)
        if finding not in self.findings:
            self.findings.append(finding)

    def _has_lambda(self, start: int, end: int) -> bool:
        return any(self.scan.symbol(at) == "->" for at in range(start, end))

    # Calls

    def _call(self, call: Call, chance: Chance | None) -> None:
        name, nature = call.name, call.nature
        if name in self.known.session_names:
            nature = Nature.UNKNOWN
        elif nature is Nature.UNKNOWN and self._is_allowed(name):
            return
        if nature is Nature.DETERMINISTIC:
            literal = self._deterministic(call)
        elif nature is Nature.CLOCK:
            literal = self._clock(call)
        elif nature is Nature.IDENTITY:
            literal = None if call.has_arguments else identity_literal(name, self.moment)
        elif nature is Nature.RANDOM:
            literal = None if chance is None else self._random(call, chance)
        elif self._is_ordered(call):
            return
        else:
            literal = None
        if literal is not None:
            self._replace(call.first, call.close, literal)
        elif nature is not Nature.DETERMINISTIC:
            doubt = Doubt.SUM if nature is Nature.EXACT_OR_FLOAT else Doubt.CERTAIN
            self._find(_REASONS[nature].format(f"{name}()"), doubt)

    def _is_allowed(self, name: str) -> bool:
        return name in self.known.functions or name.rpartition(".")[2] in self.known.functions

    def _clock(self, call: Call) -> str | None:
        if not call.has_arguments:
            return clock_literal(call.name, self.moment)
        digits = self.scan.text(call.open + 1, call.close - 1)
        if call.name == "current_time" and digits in "0123456":
            return f"CAST({clock_literal(call.name, self.moment)} AS TIME({digits}))"
        return None

    def _deterministic(self, call: Call) -> str | None:
        """Functions of other arguments that read the clock with these ones."""
        scan = self.scan
        if call.name == "unix_timestamp" and not call.has_arguments:
            return clock_literal(call.name, self.moment)
        if scan.kind(call.open + 1) is not TokenKind.STRING:
            return None
        text, behind = scan.string_value(call.open + 1), call.open + 2
        if call.name in _CASTING and behind == call.close:
            return special_datetime_literal(text, _CASTING[call.name], self.moment)
        is_cast = call.name in ("cast", "try_cast") and scan.word(behind) == "AS"
        target = scan.word(behind + 1)
        if is_cast and target in _DATETIMES and behind + 2 == call.close:
            return special_datetime_literal(text, target, self.moment)
        return None

    def _random(self, call: Call, chance: Chance) -> str | None:
        """Literals for calls without a seed; a seed asks for one certain value, which only
        Spark knows.
        """
        place = self.scan.tokens[call.first].start
        if call.name == "uuid" and not call.has_arguments:
            return chance.uuid(place)
        if call.name in ("rand", "random") and not call.has_arguments:
            return chance.uniform_double(place)
        if call.name == "randn" and not call.has_arguments:
            return chance.normal_double(place)
        if call.name == "randstr":
            length = self._integers(call)
            if len(length) == 1 and 0 <= length[0][0] <= RANDSTR_LENGTH_MAX:
                return chance.text(place, length[0][0])
        if call.name == "uniform":
            ends = self._integers(call)
            if len(ends) == 2:
                suffix = max((ends[0][1], ends[1][1]), key=lambda s: _INTEGER_BITS[s])
                value = chance.integer(place, ends[0][0], ends[1][0])
                return integer_literal(value, _INTEGER_NAMES[suffix])
        return None

    def _integers(self, call: Call) -> list[tuple[int, str]]:
        """Return the arguments with their suffixes if all are integer literals, else nothing."""
        found = []
        for text in self.scan.text(call.open + 1, call.close - 1).split(","):
            digits = text.strip().upper()
            suffix = digits[-1:] if digits[-1:] in ("Y", "S", "L") else ""
            digits = digits.removesuffix(suffix)
            if not digits.removeprefix("-").isdecimal() or len(digits) > 19:
                return []
            found.append((int(digits), suffix))
        return found

    def _is_ordered(self, call: Call) -> bool:
        """Whether a call that depends on order is put into one: sort_array(collect_list(x))."""
        scan = self.scan
        if call.name in ("collect_list", "collect_set", "array_agg"):
            outside = scan.word(call.first - 2)
            if scan.symbol(call.first - 1) != "(":
                return False
            if outside == "SORT_ARRAY":
                return scan.symbol(call.close + 1) in (")", ",")
            return outside == "ARRAY_SORT" and scan.symbol(call.close + 1) == ")"
        if call.name in ("listagg", "string_agg"):
            return self._is_ordered_by_itself(call)
        return False

    def _is_ordered_by_itself(self, call: Call) -> bool:
        """Whether this is ``listagg(x, …) WITHIN GROUP (ORDER BY x …)``: ties are then equal."""
        scan = self.scan
        words = [scan.word(call.close + i) for i in (1, 2, 4, 5)]
        if words != ["WITHIN", "GROUP", "ORDER", "BY"]:
            return False
        start = call.open + 2 if scan.word(call.open + 1) == "DISTINCT" else call.open + 1
        length = next(
            (i for i in range(call.close - start) if scan.tokens[start + i].text == ","),
            call.close - start,
        )
        order = call.close + 6
        if scan.word(order + length) not in ("", "ASC", "DESC", "NULLS"):
            return False
        ours = [t.text.lower() for t in scan.tokens[start : start + length]]
        theirs = [t.text.lower() for t in scan.tokens[order : order + length]]
        return ours == theirs and (
            scan.word(order + length) != "" or scan.symbol(order + length) in (")", ",")
        )

    # Everything else

    def _token(self, at: int, *, rows: bool) -> None:
        scan = self.scan
        kind = scan.kind(at)
        if kind is TokenKind.STRING:
            self._string(at, rows=rows)
        elif kind is TokenKind.WORD or kind is TokenKind.QUOTED_NAME:
            self._name(at, rows=rows)
        elif scan.symbol(at) == "@":
            self._find("@ reads an older version of a table, and versions differ")

    def _string(self, at: int, *, rows: bool) -> None:
        scan = self.scan
        if scan.kind(at - 1) is TokenKind.STRING:
            return  # part of the string before
        text = scan.string_value(at)
        if not SPECIAL_DATETIME.fullmatch(text):
            return
        last = at
        while scan.kind(last + 1) is TokenKind.STRING:
            last += 1
        before, cast = scan.word(at - 1), scan.word(last + 2)
        literal: str | None = None
        first = at
        if before in _DATETIMES:
            literal, first = special_datetime_literal(text, before, self.moment), at - 1
        elif scan.symbol(last + 1) == "::" and cast in _DATETIMES:
            literal, last = special_datetime_literal(text, cast, self.moment), last + 2
        elif rows and self._is_row_item(at, last):
            return  # a value as it stands: no cast turns it into a moment
        if literal is not None:
            self._replace(first, last, literal)
        else:
            self._find(
                f"Spark may read {string_literal(text)} as a moment, which is another one on "
                "every cluster"
            )

    def _is_row_item(self, first: int, last: int) -> bool:
        scan = self.scan
        is_between = scan.symbol(first - 1) in ("(", ",") and scan.symbol(last + 1) in (")", ",")
        return is_between and scan.depth[first] == 1

    def _name(self, at: int, *, rows: bool) -> None:
        scan = self.scan
        word, name = scan.word(at), scan.name(at)
        if scan.symbol(at - 1) == ".":
            self._qualified(at)
            return
        if name in self.known.session_names and scan.symbol(at + 1) != "(":
            self._find(f"{name} is a session variable, which the other clusters do not have")
        elif word in _WORD_RULES:
            self._keyword(at, word)
        elif name in ("session", "system") and scan.symbol(at + 1) == ".":
            if "session" in (name, scan.name(at + 2) if scan.is_name(at + 2) else ""):
                self._find("session variables are not the same on the other clusters")
        elif name in BARE and scan.symbol(at + 1) not in ("(", ".", "=>"):
            self._bare(at, name, rows=rows)
        elif rows and word and not self._has_meaning_in_rows(at):
            self._find(f"{word.lower()} is not a value; a session variable differs by cluster")

    def _has_meaning_in_rows(self, at: int) -> bool:
        scan = self.scan
        behind = scan.symbol(at + 1)
        if scan.name(at) in KEYWORDS or behind in ("(", "->", "=>", "."):
            return True
        return bool(self._has_lambda(0, len(scan.tokens))) or scan.kind(at + 1) is TokenKind.STRING

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
                self._find("a window of ROWS depends on how ties in its order fall")
        elif word == "USING" and scan.kind(at + 1) is TokenKind.STRING:
            self._find("a script runs code that HAProc cannot look into")

    def _bare(self, at: int, name: str, *, rows: bool) -> None:
        scan = self.scan
        if self._is_declared(at):
            return
        quoted = scan.kind(at) is TokenKind.QUOTED_NAME
        if not quoted and name in self.known.columns:
            return
        unclear = quoted or name == "user" or self._is_column_elsewhere(at, name)
        if unclear and not rows:
            self._find(f"{name} may be the function {name}() or a column")
        elif name == "current_path":
            self._find(_REASONS[Nature.CONTEXT].format(name))
        elif name in ("current_user", "user", "session_user"):
            self._replace(at, at, identity_literal(name, self.moment))
        else:
            self._replace(at, at, clock_literal(name, self.moment))

    def _is_declared(self, at: int) -> bool:
        """Whether the name is an alias, a table or the target of an assignment."""
        scan = self.scan
        before = scan.word(at - 1)
        if before == "AS" or scan.ends_operand(at - 1):
            return True
        if before == "FROM":
            is_expression = scan.word(at - 2) == "DISTINCT"
            return not is_expression and scan.enclosing_call(at) not in _FROM_CALLS
        if before in _TABLE_WORDS:
            return True
        is_first = before == "SET" or (scan.symbol(at - 1) == "," and not scan.depth[at])
        if is_first and scan.symbol(at + 1) == "=" and scan.word(0) != "INSERT":
            return True
        return self._is_in_column_list(at)

    def _is_in_column_list(self, at: int) -> bool:
        """Whether the name stands in MERGE's ``INSERT (a, b)``."""
        scan = self.scan
        for opening in range(at - 1, -1, -1):
            if scan.symbol(opening) == "(" and scan.depth[opening] == scan.depth[at] - 1:
                return scan.word(opening - 1) == "INSERT"
        return False

    def _is_column_elsewhere(self, at: int, name: str) -> bool:
        """Whether the statement itself shows that there is a column of that name."""
        scan = self.scan
        for other in range(len(scan.tokens)):
            if other == at or not scan.is_name(other) or scan.name(other) != name:
                continue
            if scan.symbol(other - 1) == "." or scan.kind(other) is TokenKind.QUOTED_NAME:
                return scan.symbol(other + 1) != "("
            if scan.symbol(other + 1) not in ("(", ".") and self._is_declared(other):
                return scan.word(other - 1) not in _TABLE_WORDS
        return False
