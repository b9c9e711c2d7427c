"""Finds what a statement leaves in its session, and which journal entries a new one replaces.

Spark decides what a statement does; this module only reads the object's name from the statement's
first words. If the name is not certain, the entry replaces no other one: the journal then keeps
more than it must.

An older entry of the same name is deleted if nothing may depend on it. That is so if neither the
new entry nor a later one that stays mentions the name, or another name that may depend on it.
Mentions are found by text alone. So a word that only looks like the name keeps both entries, in
their order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from haproc import protos, wire
from haproc.classify.tokens import LexicalError, Token, TokenKind, tokenize
from haproc.pin.sqltypes import quote_name
from haproc.sessions.durable import Numbered
from haproc.sessions.journal import (
    ArtifactEntry,
    Effect,
    Kept,
    PlanEntry,
    SqlEntry,
    StateEntry,
    VariablesEntry,
)

WORDS_READ: Final = 12
"""How many of a statement's first words are read to find the object's name."""
RESTING_MAX: Final = 32
"""The most names that may depend on one name; if there are more, any name may depend on it.
Chosen."""


def effect_of_sql(text: str) -> Effect:
    """Return the `Effect` of a SQL statement that makes or drops a temporary object.

    The object is a view or function. The effect has no name if that cannot be read with certainty.
    """
    words = _Words(text)
    removes = words.take("DROP")
    if removes:
        words.take("TEMPORARY") or words.take("TEMP")
    elif words.take("CREATE"):
        words.take("OR", "REPLACE")
        if not (words.take("TEMPORARY") or words.take("TEMP")):
            return Effect()
    elif words.take("CACHE"):
        words.take("LAZY")
        name = words.name() if words.take("TABLE") else ""
        return Effect(f"view {name}" if name else "")
    else:
        return Effect()
    what = next((each for each in ("VIEW", "FUNCTION", "TABLE") if words.take(each)), "")
    # CREATE … IF NOT EXISTS may have left everything as it was.
    perhaps = not removes and words.take("IF", "NOT", "EXISTS")
    words.take("IF", "EXISTS")
    name = words.name()
    if perhaps or not name or not what or (what == "TABLE" and not removes):
        return Effect()
    kind = "function" if what == "FUNCTION" else "view"
    return Effect(f"{kind} {name}", removes)


def as_made(text: str) -> str:
    """Return the CREATE statement that does the same as an ``ALTER VIEW … AS``; others unchanged.

    Otherwise the view would need two entries, and if one failed, the session would be broken.
    """
    words = _Words(text)
    if not words.take("ALTER", "VIEW"):
        return text
    name = words.name()
    if not name or not words.take("AS"):
        return text
    return f"CREATE OR REPLACE TEMPORARY VIEW {quote_name(name)} AS{text[words.end :]}"


def with_columns(text: str, name: str, columns: Sequence[str]) -> str:
    """Return the SQL that makes the view ``name`` again with only some ``columns`` of its query.

    ``text``: the statement that made it. The view still looks its tables up at each use. Empty if
    the view is not made of a query, or ``text`` names the columns.
    """
    words = _Words(text, read=None)
    if words.take("CACHE"):
        words.take("LAZY")
        if not (words.take("TABLE") and words.name()):
            return ""
        if words.take("OPTIONS"):
            words.parentheses()
        words.take("AS")
    else:
        words.take("CREATE")
        words.take("OR", "REPLACE")
        words.take("TEMPORARY") or words.take("TEMP")
        if not (words.take("VIEW") and words.name()) or words.symbol("(") or not words.behind("AS"):
            return ""
    chosen = ", ".join(map(quote_name, columns))
    query = text[words.end : words.last].strip()
    return f"CREATE TEMPORARY VIEW {quote_name(name)} AS SELECT {chosen} FROM ({query})"


def effect_of_plan(plan: bytes) -> Effect:
    """Return the `Effect` of a plan that makes or drops a temporary view or function.

    The effect has no name if the plan does something else.
    """
    try:
        message: Any = wire.parsed(protos.base.Plan, plan)
    except ValueError:
        return Effect()
    command = message.command
    match command.WhichOneof("command_type"):
        case "create_dataframe_view" if not command.create_dataframe_view.is_global:
            return Effect(f"view {command.create_dataframe_view.name.lower()}")
        case "register_function":
            name = command.register_function.function_name.lower()
            return Effect(f"function {name}")
        case "register_table_function":
            name = command.register_table_function.function_name.lower()
            return Effect(f"function {name}")
    catalog = message.root.catalog
    if catalog.WhichOneof("cat_type") == "drop_temp_view":
        return Effect(f"view {catalog.drop_temp_view.view_name.lower()}", True)
    return Effect()


def makes_table_function(entry: SqlEntry | PlanEntry) -> bool:
    """True if the function that an entry makes returns rows."""
    if isinstance(entry, PlanEntry):
        plan: Any = wire.parsed(protos.base.Plan, entry.plan)
        return bool(plan.command.WhichOneof("command_type") == "register_table_function")
    words = [token.upper for token in tokenize(entry.text)]
    return ("RETURNS", "TABLE") in pairwise(words)


def declared(text: str) -> tuple[tuple[str, ...], str]:
    """Return the names of the variables in a DECLARE, and the expression of their default.

    Both are empty for other statements.
    """
    words = _Words(text, read=None)
    if not words.take("DECLARE"):
        return (), ""
    words.take("OR", "REPLACE")
    words.take("VARIABLE") or words.take("VAR")
    names = [words.name()]
    while words.symbol(","):
        names.append(words.name())
    return tuple(name for name in names if name), words.behind_default(text)


def dropped_variable(text: str) -> str:
    """Return the name of the variable that a statement drops; empty if it drops none."""
    words = _Words(text)
    if not (words.take("DROP") and (words.take("TEMPORARY") or words.take("TEMP"))):
        return ""
    if not (words.take("VARIABLE") or words.take("VAR")):
        return ""
    words.take("IF", "EXISTS")
    return words.name()


def superseded(entries: Sequence[Numbered], entry: Kept) -> list[Numbered]:
    """Return the entries of a journal that are not needed once ``entry`` follows them, in order."""
    found = _same(entries, entry)
    if found and _rests_on_its_name(entry, entries):
        found = []
    others = [(at, each) for at, each in enumerate(entries) if at not in found]
    gone = []
    for at in found:
        names = _resting(entries, names_in(entries[at].entry))
        behind = (other.entry for place, other in others if place > at)
        if names is not None and not any(mentions(other, names) for other in behind):
            gone.append(at)
    if len(gone) < len(found):  # removals after an entry that stays must stay, too
        gone = [at for at in gone if not removes(entries[at].entry)]
    left = [each.entry for at, each in enumerate(entries) if at not in gone]
    gone += [at for at, each in enumerate(entries) if at not in gone and _is_needless(each, left)]
    return [entries[at] for at in sorted(gone)]


def _same(entries: Sequence[Numbered], entry: Kept) -> list[int]:
    """Return the places of the journal's entries that are about the same names as ``entry``."""
    if isinstance(entry, StateEntry | VariablesEntry):
        return [at for at, each in enumerate(entries) if type(each.entry) is type(entry)]
    if isinstance(entry, ArtifactEntry) or not entry.effect.name:
        return []
    name = entry.effect.name
    return [at for at, each in enumerate(entries) if _name(each.entry) == name]


def _rests_on_its_name(entry: Kept, entries: Sequence[Numbered]) -> bool:
    """True if ``entry`` may use its own name in the meaning that an earlier entry gave it.

    That may be directly, or through other names.
    """
    own = names_in(entry)
    match entry:
        case SqlEntry(text):
            twice = any(len(re.findall(_word(name), text.lower())) > 1 for name in own)
        case PlanEntry(plan):
            twice = any(_text_of(plan).count(name) > 1 for name in own)
        case _:
            return False
    resting = _resting(entries, own)
    return twice or resting is None or mentions(entry, resting[len(own) :])


def _resting(entries: Sequence[Numbered], names: Sequence[str]) -> tuple[str, ...] | None:
    """Return ``names``, followed by all names that may depend on them; None: any name may."""
    found = [*names]
    left = [each.entry for each in entries if isinstance(each.entry, SqlEntry | PlanEntry)]
    for name in found:  # it grows meanwhile
        for entry in [each for each in left if mentions(each, (name,))]:
            left.remove(entry)
            found += [each for each in names_in(entry) if each not in found]
            if not names_in(entry) or len(found) > RESTING_MAX:
                return None
    return tuple(found)


def _text_of(plan: bytes) -> str:
    return plan.decode("utf-8", "replace").lower()


def _is_needless(numbered: Numbered, left: Sequence[Kept]) -> bool:
    """True if an entry only drops names that no entry in ``left`` makes any more."""
    entry = numbered.entry
    return removes(entry) and not any(
        other is not entry and (mentions(other, names_in(entry)) or _name(other) == _name(entry))
        for other in left
    )


def removes(entry: Kept) -> bool:
    """True if the entry drops an object."""
    return isinstance(entry, SqlEntry | PlanEntry) and entry.effect.removes


def _name(entry: Kept) -> str:
    return entry.effect.name if isinstance(entry, SqlEntry | PlanEntry) else ""


def names_in(entry: Kept) -> tuple[str, ...]:
    """Return the names of the objects that an entry makes or drops, in lower case."""
    if isinstance(entry, VariablesEntry):
        return tuple(each.name for each in entry.variables)
    name = _name(entry).partition(" ")[2]
    return (name,) if name else ()


def mentions(entry: Kept, names: Sequence[str]) -> bool:
    """True if an entry's text contains one of these names, so that the entry may depend on it."""
    match entry:
        case SqlEntry(text):
            return _holds(text.lower(), names)
        case PlanEntry(plan):
            # The bytes around a text in a message may look like letters.
            return _holds(_text_of(plan), names, words=False)
        case VariablesEntry(variables):
            return any(_holds(each.default.lower(), names) for each in variables)
        case StateEntry() | ArtifactEntry():
            return False


def _holds(text: str, names: Sequence[str], *, words: bool = True) -> bool:
    # A name that is computed, or spelt with its quotes doubled, cannot be looked for.
    if "identifier" in text or any("`" in name for name in names):
        return True
    return any(re.search(_word(name), text) if words else name in text for name in names)


def _word(name: str) -> str:
    return rf"(?<!\w){re.escape(name)}(?!\w)"


class _Words:
    """Reads the words of a statement in order; each method skips what it has read."""

    def __init__(self, text: str, read: int | None = WORDS_READ) -> None:
        self._tokens: list[Token] = []
        self._at = 0
        try:
            for token in tokenize(text):
                self._tokens.append(token)
                if read is not None and len(self._tokens) >= read:
                    break
        except LexicalError:
            self._tokens = []

    def take(self, *words: str) -> bool:
        """If these keywords come next, skip them and return True; else return False."""
        here = self._tokens[self._at : self._at + len(words)]
        if [token.upper for token in here] != [*words]:
            return False
        self._at += len(words)
        return True

    @property
    def end(self) -> int:
        """The position in the text after the last skipped word."""
        return self._tokens[self._at - 1].end if self._at else 0

    @property
    def last(self) -> int:
        """The position after the text's last word, before a semicolon if one follows."""
        return next((t.end for t in reversed(self._tokens) if not t.is_symbol(";")), 0)

    def parentheses(self) -> None:
        """Skip the next word; if it is an opening parenthesis, skip up to the closing one."""
        depth = 0
        for at, token in enumerate(self._tokens[self._at :], self._at + 1):
            depth += token.is_symbol("(") - token.is_symbol(")")
            if depth <= 0:
                self._at = at
                return

    def behind(self, word: str) -> bool:
        """Skip everything up to a keyword outside of parentheses, and the keyword.

        False if it is missing; then the whole text is skipped.
        """
        while self._at < len(self._tokens):
            if self.take(word):
                return True
            self.parentheses()
        return False

    def symbol(self, symbol: str) -> bool:
        """If this symbol comes next, skip it and return True; else return False."""
        found = self._at < len(self._tokens) and self._tokens[self._at].is_symbol(symbol)
        self._at += found
        return found

    def name(self) -> str:
        """Skip a name such as ``a.b``; return its last part in lower case, or an empty text."""
        last = ""
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.kind is TokenKind.QUOTED_NAME:
                last = token.text[1:-1].replace("``", "`").lower()
            elif token.kind is TokenKind.WORD and token.upper != "IDENTIFIER":
                last = token.text.lower()
            else:
                return ""
            self._at += 1
            if not self.symbol("."):
                return last
        return ""

    def behind_default(self, text: str) -> str:
        """Return the rest of the text after DEFAULT or an equals sign; empty if neither comes."""
        depth = 0
        for token in self._tokens[self._at :]:
            depth += token.is_symbol("(") + token.is_symbol("<")
            depth -= token.is_symbol(")") + token.is_symbol(">")
            if depth == 0 and (token.upper == "DEFAULT" or token.is_symbol("=")):
                return text[token.end :].strip().rstrip(";").strip()
        return ""
