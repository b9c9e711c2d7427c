"""Delta's own statements, which Spark cannot explain: told by their words, from first to last.

Delta's parser takes them before Spark's does, but not behind EXPLAIN. None of them computes a value
that is stored: their conditions choose files to be written anew, or are checks that are looked at
by themselves (`haproc.witness.probes`). What has none of these forms as a whole goes to Spark.
"""

from __future__ import annotations

from haproc.classify.tokens import TokenKind
from haproc.pin.scan import Scan


def is_deltas_own(scan: Scan) -> bool:
    """Whether the whole statement is one of Delta's own."""
    form = _FORMS.get(scan.word(0))
    return form is not None and form(_Words(scan))


class _Words:
    """Steps over a statement's tokens."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self.at = 1

    def take(self, *words: str) -> bool:
        if any(self.scan.word(self.at + ahead) != word for ahead, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def name(self) -> bool:
        """Step over ``a.b.c``, or a path as a string."""
        if self.scan.kind(self.at) is TokenKind.STRING:
            self.at += 1
            return True
        if not self.scan.is_name(self.at):
            return False
        self.at += 1
        while self.scan.symbol(self.at) == "." and self.scan.is_name(self.at + 1):
            self.at += 2
        return True

    def group(self) -> bool:
        """Step over what stands in parentheses."""
        if self.scan.symbol(self.at) != "(":
            return False
        self.at = self.scan.closing[self.at] + 1
        return True

    def number(self) -> bool:
        is_number = self.scan.kind(self.at) is TokenKind.NUMBER
        self.at += is_number
        return is_number

    def until(self, *words: str) -> bool:
        """Step to one of these words outside parentheses, or to the end."""
        while self.at < len(self.scan.tokens) and self.scan.word(self.at) not in words:
            self.at = self.scan.closing.get(self.at, self.at) + 1
        return True

    @property
    def ended(self) -> bool:
        return self.at >= len(self.scan.tokens)


def _optimize(words: _Words) -> bool:
    if words.scan.word(words.at) == "TABLE" and words.scan.is_name(words.at + 1):
        words.take("TABLE")
    if not words.name():
        return False
    words.take("FULL")
    if words.take("WHERE"):
        words.until("ZORDER")
    if words.take("ZORDER", "BY"):
        return (words.group() and words.ended) or words.until()
    return words.ended


def _vacuum(words: _Words) -> bool:
    if words.scan.word(words.at) == "TABLE" and words.scan.is_name(words.at + 1):
        words.take("TABLE")
    if not words.name():
        return False
    while not words.ended:
        retained = words.take("RETAIN") and words.number() and words.take("HOURS")
        if not (retained or words.take("DRY", "RUN") or words.take("LITE") or words.take("FULL")):
            return False
    return True


def _reorg(words: _Words) -> bool:
    if not (words.take("TABLE") and words.name()):
        return False
    if words.take("WHERE"):
        words.until("APPLY")
    return words.take("APPLY") and words.group() and words.ended


def _convert(words: _Words) -> bool:
    if not (words.take("TO", "DELTA") and words.name()):
        return False
    words.take("NO", "STATISTICS")
    if words.take("PARTITIONED", "BY"):
        words.group()
    words.take("NO", "STATISTICS")
    return words.ended


def _generate(words: _Words) -> bool:
    return words.name() and words.take("FOR", "TABLE") and words.name() and words.ended


def _clone(words: _Words) -> bool:
    words.take("OR", "REPLACE")
    if not words.take("TABLE"):
        return False
    words.take("IF", "NOT", "EXISTS")
    if not (words.name() and words.take("SHALLOW", "CLONE") and words.name()):
        return False
    if words.take("TBLPROPERTIES"):
        words.group()
    return words.ended


def _alter(words: _Words) -> bool:
    if not (words.take("TABLE") and words.name()):
        return False
    if words.take("ADD", "CONSTRAINT"):
        return words.name() and words.take("CHECK") and words.group() and words.ended
    if words.take("DROP", "CONSTRAINT"):
        words.take("IF", "EXISTS")
        return words.name() and words.ended
    if words.take("DROP", "FEATURE"):
        return words.name() and (words.take("TRUNCATE", "HISTORY") or words.ended) and words.ended
    if words.take("CLUSTER", "BY"):
        return (words.take("NONE") or words.group()) and words.ended
    return False


_FORMS = {
    "OPTIMIZE": _optimize,
    "VACUUM": _vacuum,
    "REORG": _reorg,
    "CONVERT": _convert,
    "GENERATE": _generate,
    "CREATE": _clone,
    "REPLACE": _clone,
    "ALTER": _alter,
}
