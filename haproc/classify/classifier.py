"""From a statement to its class: its kind, then rules, then the request's own choice.

An INSERT of literals is recognised by its words, and so is a possible query: Spark runs it only if
it is one. For any other statement Spark's parser gives its kind and its writes
(`haproc.reading.summary`), the analyzer its reads.

It fails closed: an unrecognised statement, or one that hides another statement, is refused.
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
"""Kinds without a table that Spark could report."""
_LOOKS: Final = {
    "SHOW": Kind.SHOW,
    "DESCRIBE": Kind.DESCRIBE,
    "DESC": Kind.DESCRIBE,
    "EXPLAIN": Kind.EXPLAIN,
}
_MAY_WRITE: Final = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
"""Words without which no text that begins like a query writes; if one occurs, Spark is asked."""


@dataclass(frozen=True, slots=True)
class Unparsed:
    """One statement, without its closing semicolon, with words that do not show its kind."""

    sql: str


def classify(
    sql: str,
    context: Context,
    rules: Rules,
    override: OperationClass | None = None,
    bounds: Bounds = _BOUNDS,
) -> Classified | Unparsed:
    """Return the kind and the class of ``sql``, one statement; raises RefusedError."""
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
    """Return the kind of a possible query, as far as its words show it; None for others."""
    begins = tokens[0].upper
    if begins in _LOOKS:
        return _LOOKS[begins]
    if not _begins_query(tokens[0]) or not _MAY_WRITE.isdisjoint(token.upper for token in tokens):
        return None
    return Kind.VALUES if begins == "VALUES" else Kind.SELECT


def _begins_query(token: Token) -> bool:
    return token.upper in QUERY_BEGINS or token.is_symbol("(")


def gives_rows(found: Classified | Unparsed) -> bool:
    """True if a query's text reads rows of tables, and is not SHOW or similar."""
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
    """Return the recognised statement with its class, by the rules; raises RefusedError.

    ``text``: the text for matching rules; ``sql``: the statement, if it differs. If the deciding
    rule rests on the tables that Spark reads, the decision is left open, see `ruled`.
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
    """Return a statement as decided by the first of its rules that fits its names.

    ``refusal``: the error of the statement unless a rule gives it a class. Raises RefusedError.
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
    """Return the one statement in ``sql`` and its tokens; raises RefusedError if it isn't one."""
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
    """Return the refusal of a statement that its sender's rights do not include."""
    return RefusedError(
        ErrorClass.FORBIDDEN,
        f"the statement ({kind.value}) touches {rights.outside(kind, touched)}, and this user may "
        f"touch {', '.join(rights.tables)}",
        "name tables that the user may touch, or have an operator change tables of the user",
    )


def _decide(
    statement: Classified, rule: Rule | None, refusal: RefusedError | None
) -> tuple[OperationClass, str]:
    """Return the class that the rules give, and the name of the rule; raises RefusedError."""
    if rule is not None and rule.operation_class is not None:
        return rule.operation_class, rule.name
    if rule is not None and rule.refuse:
        raise RefusedError(ErrorClass.REFUSED_BY_RULE, rule.refuse, f"see {rule.name} of the rules")
    if refusal is not None:
        raise RefusedError(refusal.error_class, refusal.message, refusal.hint)
    return statement.operation_class, rule.name if rule is not None else statement.rule


def _overridden(decided: OperationClass, override: OperationClass | None) -> OperationClass:
    """Return the class that the request asks for, if it may; raises RefusedError."""
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
    """True if a rule makes a seeming query a write; its tables are unknown."""
    return kind in QUERY_KINDS and decided is not OperationClass.QUERY
