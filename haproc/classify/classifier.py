"""Finds the class of a statement: by its kind, by the rules, and by what the request asks for.

An INSERT of literals is recognised by its words. So is what looks like a query: Spark then runs it
only if it is one. For any other statement Spark's parser gives its kind and its writes
(`haproc.reading.summary`), and Spark's analyzer its reads.

In doubt a statement is refused: if it is not recognised, or if it hides another statement.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from haproc.classify.bounds import QUERY_BEGINS, Bounds, bounded_tokens, check_shape, check_text
from haproc.classify.insert import plain_insert
from haproc.classify.model import (
    Classified,
    Kind,
    OperationClass,
    Recognised,
    RefusedError,
    Touched,
)
from haproc.classify.names import Context
from haproc.classify.rights import Rights
from haproc.classify.rules import (
    CACHEABLE_KINDS,
    DEFAULT_CLASSES,
    QUERY_KINDS,
    Rule,
    Rules,
    about,
    first,
)
from haproc.classify.tokens import LexicalError, Token, tokenize
from haproc.failure import ErrorClass

_BOUNDS = Bounds()
_OF_NO_TABLE = frozenset({Kind.SET, Kind.RESET, Kind.USE, Kind.UNKNOWN})
"""Kinds of statements in which Spark's reading names no table, so rules need not wait for it."""
_LOOKS: Final = {
    "SHOW": Kind.SHOW,
    "DESCRIBE": Kind.DESCRIBE,
    "DESC": Kind.DESCRIBE,
    "EXPLAIN": Kind.EXPLAIN,
}
_MAY_WRITE: Final = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
"""Words one of which is in every write that begins like a query. If a text has one of them, Spark's
parser decides what it is."""


@dataclass(frozen=True, slots=True)
class Unparsed:
    """One statement, without its closing semicolon, whose kind its words do not show."""

    sql: str


def classify(
    sql: str,
    context: Context,
    rules: Rules,
    override: OperationClass | None = None,
    bounds: Bounds = _BOUNDS,
) -> Classified | Unparsed:
    """Return the one statement in ``sql`` with its kind and its class; raises RefusedError.

    `Unparsed` if its words do not show its kind, so that Spark's parser must read it.
    ``override``: the class that the request asks for.
    """
    check_text(sql, bounds)
    insert = plain_insert(sql, context)
    if insert is not None:
        check_shape(insert.shape, bounds)
        text = insert.sql
        table = frozenset({insert.table})
        bare = table if insert.bare else frozenset()
        recognised = Recognised(Kind.INSERT, writes=table, insert=insert.shape, bare=bare)
        return decided(recognised, text, context, rules, override)
    text, tokens = _one_statement(sql, bounds)
    kind = _kind(tokens)
    if kind is None:
        return Unparsed(text)
    return decided(Recognised(kind), text, context, rules, override)


def _kind(tokens: list[Token]) -> Kind | None:
    """Return the kind of a statement that begins like a query; None if Spark's parser must tell."""
    begins = tokens[0].upper
    if begins in _LOOKS:
        return _LOOKS[begins]
    if not _begins_query(tokens[0]) or not _MAY_WRITE.isdisjoint(token.upper for token in tokens):
        return None
    return Kind.VALUES if begins == "VALUES" else Kind.SELECT


def _begins_query(token: Token) -> bool:
    return token.upper in QUERY_BEGINS or token.is_symbol("(")


def gives_rows(found: Classified | Unparsed) -> bool:
    """True if a query's text is SELECT, VALUES or the like, and not SHOW or similar."""
    if isinstance(found, Classified):
        return found.kind in CACHEABLE_KINDS
    return _begins_query(next(tokenize(found.sql)))


def decided(
    recognised: Recognised,
    text: str,
    context: Context,
    rules: Rules,
    override: OperationClass | None = None,
    *,
    sql: str | None = None,
) -> Classified:
    """Return a recognised statement with the class that the rules give; raises RefusedError.

    ``text``: the text with which rules are matched; ``sql``: the statement, if it is another text.
    If the rules depend on the tables that Spark's reading shows, `ruled` has to decide later.
    """
    kind = recognised.kind
    statement = Classified(
        sql=text if sql is None else sql,
        kind=kind,
        operation_class=DEFAULT_CLASSES.get(kind, OperationClass.SYNCHRONOUS),
        reads=recognised.reads,
        writes=recognised.writes,
        tables_known=recognised.tables_known,
        rule=f"default for {kind.value}",
        insert=recognised.insert,
        bare=recognised.bare,
        rules=about(rules, kind, text, context.user, context.rights),
    )
    by_reading = any(rule.by_reading for rule in statement.rules)
    if by_reading and recognised.insert is None and kind not in _OF_NO_TABLE:
        return statement
    return ruled(statement, statement.touched, override, recognised.refusal)


def ruled(
    statement: Classified,
    touched: Touched,
    override: OperationClass | None = None,
    refusal: RefusedError | None = None,
) -> Classified:
    """Return a statement with the class that the first matching rule gives; raises RefusedError.

    ``touched``: the names with which rules are matched. ``refusal``: raised unless a rule gives the
    statement a class.
    """
    rule = first(statement.rules, statement.kind, touched)
    if rule is not None and rule.rights is not None:
        raise _forbidden(statement.kind, rule.rights, touched)
    chosen, why = _decide(statement, rule, refusal)
    return replace(
        statement,
        operation_class=_overridden(chosen, override),
        tables_known=statement.tables_known and not _widened(statement.kind, chosen),
        rule=why if override in (None, chosen) else f"the request, over {why}",
        write_concern=rule.write_concern if rule is not None else None,
        apply_budget_s=rule.apply_budget_s if rule is not None else None,
        cache=rule.cache if rule is not None else None,
        rules=(),
    )


def _one_statement(sql: str, bounds: Bounds) -> tuple[str, list[Token]]:
    """Return the one statement in ``sql`` and its tokens; RefusedError if none or several."""
    tokens = _tokens(sql, bounds)
    while tokens and tokens[-1].is_symbol(";"):
        tokens.pop()
    if not tokens:
        raise RefusedError(ErrorClass.EMPTY, "there is no statement in the text", "send one")
    if any(token.is_symbol(";") for token in tokens):
        if tokens[0].upper == "BEGIN":
            raise RefusedError(
                ErrorClass.HIDDEN_STATEMENT,
                "BEGIN … END hides the statements that it runs",
                "send each statement by itself",
            )
        raise RefusedError(
            ErrorClass.MULTIPLE_STATEMENTS,
            "there is more than one statement in the text",
            "send them one by one, each as a request of its own",
        )
    return sql[tokens[0].start : tokens[-1].end], tokens


def _tokens(sql: str, bounds: Bounds) -> list[Token]:
    try:
        return bounded_tokens(sql, bounds)
    except LexicalError as error:
        raise RefusedError(ErrorClass.SYNTAX, str(error), "correct the SQL") from error


def _forbidden(kind: Kind, rights: Rights, touched: Touched) -> RefusedError:
    """Return the error for a statement that its sender's rights do not include."""
    return RefusedError(
        ErrorClass.FORBIDDEN,
        f"the statement ({kind.value}) touches {rights.outside(kind, touched)}, and this user may "
        f"touch {', '.join(rights.tables)}",
        "name tables that the user may touch, or have an operator change tables of the user",
    )


def _decide(
    statement: Classified, rule: Rule | None, refusal: RefusedError | None
) -> tuple[OperationClass, str]:
    """Return the class that the rules give, and the name of what decided. Raises RefusedError."""
    if rule is not None and rule.operation_class is not None:
        return rule.operation_class, rule.name
    if rule is not None and rule.refuse:
        raise RefusedError(ErrorClass.REFUSED_BY_RULE, rule.refuse, f"see {rule.name} of the rules")
    if refusal is not None:
        raise RefusedError(refusal.error_class, refusal.message, refusal.hint)
    return statement.operation_class, rule.name if rule is not None else statement.rule


def _overridden(decided: OperationClass, override: OperationClass | None) -> OperationClass:
    """Return the class that the request asks for; RefusedError if the statement can't have it.

    ``decided``: the class by the rules; the result if ``override`` is None.
    """
    if override is None or override is decided:
        return decided
    if decided is OperationClass.SESSION:
        reason = "it changes the session alone"
    elif override is OperationClass.SESSION:
        reason = "it does more than change the session"
    elif decided is OperationClass.QUERY:
        reason = "it only reads, so there is nothing to replicate"
    elif override is OperationClass.QUERY:
        reason = "it writes"
    else:
        return override
    raise RefusedError(
        ErrorClass.OVERRIDE_REFUSED,
        f"the statement can't run as {override.value}: {reason}",
        f"leave the class out, it is {decided.value}",
    )


def _widened(kind: Kind, decided: OperationClass) -> bool:
    """True if a rule makes a write of what looks like a query; then its tables are unknown."""
    return kind in QUERY_KINDS and decided is not OperationClass.QUERY
