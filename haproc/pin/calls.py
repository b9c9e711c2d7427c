"""Single calls: which literal one becomes, and whether its order is settled where it stands."""

from __future__ import annotations

from haproc.classify.tokens import TokenKind
from haproc.pin.functions import Nature
from haproc.pin.literals import integer_literal
from haproc.pin.model import Moment
from haproc.pin.moment import (
    RANDSTR_LENGTH_MAX,
    Chance,
    clock_literal,
    identity_literal,
    special_datetime_literal,
)
from haproc.pin.scan import Call, Scan

DATETIMES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
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
_INTEGER_BITS = {"Y": 8, "S": 16, "": 32, "L": 64}
_INTEGER_NAMES = {"Y": "TINYINT", "S": "SMALLINT", "": "INT", "L": "BIGINT"}


def call_literal(scan: Scan, call: Call, moment: Moment, chance: Chance | None) -> str | None:
    """Return the literal that the call becomes, or None.

    ``chance`` is given only in a VALUES list, where every call runs once.
    """
    if call.nature is Nature.DETERMINISTIC:
        return _deterministic(scan, call, moment)
    if call.nature is Nature.CLOCK:
        return _clock(scan, call, moment, plain=chance is not None)
    if call.nature is Nature.IDENTITY and not call.has_arguments:
        return identity_literal(call.name, moment)
    if call.nature is Nature.RANDOM and chance is not None:
        return _random(scan, call, chance)
    return None


def _clock(scan: Scan, call: Call, moment: Moment, *, plain: bool) -> str | None:
    if not call.has_arguments:
        return clock_literal(call.name, moment, plain=plain)
    digits = scan.text(call.open + 1, call.close - 1)
    if call.name == "current_time" and digits in "0123456":
        return f"CAST({clock_literal(call.name, moment)} AS TIME({digits}))"
    return None


def _deterministic(scan: Scan, call: Call, moment: Moment) -> str | None:
    """Functions of other arguments that read the clock with these ones."""
    if call.name == "unix_timestamp" and not call.has_arguments:
        return clock_literal(call.name, moment)
    if scan.kind(call.open + 1) is not TokenKind.STRING:
        return None
    text, behind = scan.string_value(call.open + 1), call.open + 2
    if call.name in _CASTING and behind == call.close:
        return special_datetime_literal(text, _CASTING[call.name], moment)
    is_cast = call.name in ("cast", "try_cast") and scan.word(behind) == "AS"
    target = scan.word(behind + 1)
    if is_cast and target in DATETIMES and behind + 2 == call.close:
        return special_datetime_literal(text, target, moment)
    return None


def _random(scan: Scan, call: Call, chance: Chance) -> str | None:
    """Literals for calls without a seed; a seed asks for one certain value, which only
    Spark knows.
    """
    place = scan.tokens[call.first].start
    if call.name == "uuid" and not call.has_arguments:
        return chance.uuid(place)
    if call.name in ("rand", "random") and not call.has_arguments:
        return chance.uniform_double(place)
    if call.name == "randn" and not call.has_arguments:
        return chance.normal_double(place)
    if call.name == "randstr":
        length = _integers(scan, call)
        if len(length) == 1 and 0 <= length[0][0] <= RANDSTR_LENGTH_MAX:
            return chance.text(place, length[0][0])
    if call.name == "uniform":
        ends = _integers(scan, call)
        if len(ends) == 2:
            suffix = max((ends[0][1], ends[1][1]), key=lambda s: _INTEGER_BITS[s])
            value = chance.integer(place, ends[0][0], ends[1][0])
            return integer_literal(value, _INTEGER_NAMES[suffix])
    return None


def _integers(scan: Scan, call: Call) -> list[tuple[int, str]]:
    """Return the arguments with their suffixes if all are integer literals, else nothing."""
    found = []
    for text in scan.text(call.open + 1, call.close - 1).split(","):
        digits = text.strip().upper()
        suffix = digits[-1:] if digits[-1:] in ("Y", "S", "L") else ""
        digits = digits.removesuffix(suffix)
        if not digits.removeprefix("-").isdecimal() or len(digits) > 19:
            return []
        found.append((int(digits), suffix))
    return found


def is_ordered(scan: Scan, call: Call) -> bool:
    """Whether a call that depends on order is put into one: sort_array(collect_list(x))."""
    if call.name in ("collect_list", "collect_set", "array_agg"):
        outside = scan.word(call.first - 2)
        if scan.symbol(call.first - 1) != "(":
            return False
        if outside == "SORT_ARRAY":
            return scan.symbol(call.close + 1) in (")", ",")
        return outside == "ARRAY_SORT" and scan.symbol(call.close + 1) == ")"
    if call.name in ("listagg", "string_agg"):
        return _is_ordered_by_itself(scan, call)
    return False


def _is_ordered_by_itself(scan: Scan, call: Call) -> bool:
    """Whether this is ``listagg(x, …) WITHIN GROUP (ORDER BY x …)``: ties are then equal."""
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
