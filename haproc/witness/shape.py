"""A statement's shape: its text with neutral literals, so that many statements share one analysis.

A literal is replaced only where its value has no say in what Spark makes of the statement: behind
an operator, in an IN list, in an assignment, behind THEN and ELSE, and texts that are arguments of
most functions. Others stay as they are: parts of types, ordinals, limits, formats, options, names.
Texts that Spark may read as a moment ('today') always stay. Where the neutral form does not pass
the analysis, the statement is analyzed as it stands: that costs time and never an answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from haproc.classify.moments import is_time_of_day
from haproc.classify.tokens import Token, TokenKind
from haproc.pin.scan import Scan


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OPERATORS = frozenset(
    {"=", "==", "<>", "!=", "<", ">", "<=", ">=", "<=>", "+", "-", "*", "/", "%", "||"}
)
_BEFORE_VALUE = frozenset({"THEN", "ELSE", "LIKE", "ILIKE", "RLIKE", "REGEXP"})
_BEFORE_ITEM = frozenset({"SELECT", "DISTINCT", "WHEN", "AND", "OR", "NOT", "BETWEEN", "VALUES"})
HARD_TO_READ = re.compile(r"[\u0000-\u001f#§()\[\]{}]|, | (?:as|AS|[-+*%/]|div) ")
_SPECIAL = re.compile(r"[\s\x00-\x20\x7f]*(?:epoch|now|today|tomorrow|yesterday)", re.IGNORECASE)
_TYPED = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"})
_BY_VALUE = _names(
    """
    from_json from_csv from_xml from_avro schema_of_json schema_of_csv schema_of_xml to_char
    to_varchar to_number try_to_number extract date_part datepart date_trunc trunc window
    session_window window_time named_struct get_json_object json_tuple variant_get
    try_variant_get collate identifier timestampadd timestampdiff dateadd datediff date_add
    date_diff to_avro to_json to_csv to_xml approx_percentile percentile_approx percentile
    aes_encrypt aes_decrypt try_aes_decrypt make_timestamp time_trunc variant_explode parse_url
    xpath options map cast try_cast date timestamp to_date to_timestamp to_timestamp_ntz
    to_timestamp_ltz try_to_timestamp try_to_date position in substring overlay trim
    """
)
"""Functions whose arguments' values have a say in the analysis."""
_DATE = re.compile(r"'\d{4}-\d{2}-\d{2}'")
_TIME = re.compile(
    r"'\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?(?P<zone>[+-]\d{2}:?\d{2}|Z)?'"
)
_INTEGER = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[LSY]|BD)?", re.IGNORECASE)
_FLOATING = re.compile(r"[0-9.]+(?:E|[DF]\Z)", re.IGNORECASE)


def shape(scan: Scan) -> str:
    """Return the statement with neutral literals."""
    sql, position = scan.sql, 0
    parts: list[str] = []
    at, count = 0, len(scan.tokens)
    calls = _enclosing_calls(scan)
    while at < count:
        last, neutral = _neutral(scan, at, calls)
        between = sql[position : scan.tokens[at].start].strip()
        if neutral is not None and calls[at] == "in" and between == "," and parts[-1:] == [neutral]:
            position = scan.tokens[last].end  # one of the list is enough
        elif neutral is not None:
            parts += [sql[position : scan.tokens[at].start], neutral]
            position = scan.tokens[last].end
        at = last + 1
    return "".join([*parts, sql[position:]])


def writes_floats(tokens: Sequence[Token]) -> bool:
    """Whether a number stands there that is no integer and no decimal."""
    return any(
        token.kind is TokenKind.NUMBER and _FLOATING.match(token.text) is not None
        for token in tokens
        if not token.text.upper().endswith("BD")
    )


def misleading_texts(scan: Scan) -> frozenset[str]:
    """Return the texts in it that would be hard to tell from a plan around them.

    Spark shows texts without quotes: their brackets look like those of calls.
    """
    texts = (
        scan.string_value(at)
        for at, token in enumerate(scan.tokens)
        if token.kind is TokenKind.STRING
    )
    return frozenset(text for text in texts if HARD_TO_READ.search(text) is not None)


def _neutral(scan: Scan, at: int, calls: Sequence[str]) -> tuple[int, str | None]:
    """Return the last token of the literal at a place, and what stands for it (None: itself)."""
    kind = scan.kind(at)
    if kind is TokenKind.NUMBER:
        text = scan.tokens[at].text
        if _stands_free(scan, at, calls) and _NUMBER.fullmatch(text):
            return at, "1" if _INTEGER.fullmatch(text) else re.sub(r"[0-9]", "1", text)
        return at, None
    if kind is not TokenKind.STRING:
        return at, None
    last = at
    while scan.kind(last + 1) is TokenKind.STRING:
        last += 1
    text = scan.string_value(at)
    if _SPECIAL.match(text):
        return last, None
    if scan.word(at - 1) in _TYPED and last == at:
        return last, _moment(scan.tokens[at].text)
    free = _stands_free(scan, at, calls) or _is_argument(scan, at, last, calls)
    free = free or (HARD_TO_READ.search(text) is not None and _may_go(scan, at, calls))
    return last, _neutral_text(text) if free else None


def _may_go(scan: Scan, at: int, calls: Sequence[str]) -> bool:
    """Whether a text that would be hard to tell from a plan around it may be left out of it."""
    if calls[at] in _BY_VALUE or calls[at] in ("options", "tblproperties", "partition", "with"):
        return False
    return scan.symbol(at - 1) in ("(", ",") or scan.word(at - 1) in _BEFORE_ITEM


def _neutral_text(text: str) -> str:
    if is_time_of_day(text):
        return "'12:30'"
    if text.strip().isdecimal():
        return "'1'"
    return "'2001-01-01'" if _DATE.match(f"'{text[:10]}'") else "'a'"


def _moment(literal: str) -> str | None:
    if _DATE.fullmatch(literal):
        return "'2001-01-01'"
    time = _TIME.fullmatch(literal)
    if time is None:
        return None
    return "'2001-01-01 00:00:00+00:00'" if time["zone"] else "'2001-01-01 00:00:00'"


def _stands_free(scan: Scan, at: int, calls: Sequence[str]) -> bool:
    """Whether a literal stands behind an operator, in an assignment, or in a list of values."""
    before = at - 1
    if scan.symbol(before) == "-" and not scan.ends_operand(before - 1):
        before -= 1
    if scan.symbol(before) in _OPERATORS:
        return calls[at] not in ("with", "options", "tblproperties", "partition")
    if scan.word(before) in _BEFORE_VALUE:
        return True
    return calls[at] == "in" and scan.symbol(before) in ("(", ",")


def _is_argument(scan: Scan, at: int, last: int, calls: Sequence[str]) -> bool:
    """Whether a text is an argument of a function for which its value does not matter."""
    name = calls[at]
    alone = scan.symbol(at - 1) in ("(", ",") and scan.symbol(last + 1) in (")", ",")
    return alone and name.isidentifier() and name not in _BY_VALUE and name not in _NO_FUNCTIONS


_NO_FUNCTIONS = _names(
    """
    values in with options tblproperties partition select over as on using and or not
    """
)


def _enclosing_calls(scan: Scan) -> list[str]:
    """Return, for each token, the word in front of the parenthesis that directly encloses it."""
    calls: list[str] = []
    stack = [""]
    for at, token in enumerate(scan.tokens):
        if token.is_symbol(")") and len(stack) > 1:
            stack.pop()
        calls.append(stack[-1])
        if token.is_symbol("("):
            stack.append(scan.name(at - 1) if at and scan.is_name(at - 1) else "")
    return calls
