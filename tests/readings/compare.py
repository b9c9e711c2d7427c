"""Two judges side by side: what each says of the corpus, and where they disagree.

    python -m tests.readings.compare OUTCOMES MODULE:FUNCTION [examples of each pattern]

OUTCOMES is a file of `outcomes_of`'s, in JSON; FUNCTION takes a statement's text and its reading
(`haproc.reading.tree.Reading`) and returns an `Outcome`, or raises RefusedError. Statements that
Spark does not analyze are left out: no judge is asked about them.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeAlias

from haproc.classify.model import RefusedError
from haproc.reading.tree import Reading, UnreadableError
from tests.readings import corpus, golden

ANY: Final = "?"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a judge says of a statement.

    ``treatment``: ``query``, ``session``, ``text``, ``rows``, ``refused``, or ``error`` for
    Spark's own. ``reads``, ``writes``: full names, sorted; only ``?`` if they are not all known.
    ``text``: what is replicated in its place. ``reason``: why it is not its text, or is refused.
    """

    treatment: str
    operation_class: str = ""
    kind: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    text: str = ""
    reason: str = ""


Judge: TypeAlias = Callable[[str, Reading], Outcome]
_COMPARED: Final = ("treatment", "operation_class", "kind", "reads", "writes")


def judged(judge: Judge, statement: str, recorded: golden.Recorded) -> Outcome | None:
    """Return what a judge says; None if Spark has no reading of the statement."""
    if recorded.error:
        return None
    try:
        return judge(statement, recorded.reading(statement))
    except RefusedError as error:
        return Outcome("refused", reason=error.message)
    except UnreadableError as error:
        return Outcome("refused", reason=f"unreadable: {error}")
    except Exception as error:  # a judge has no accidents: each is a disagreement
        return Outcome("accident", reason=repr(error))


def everything() -> Iterator[tuple[str, golden.Recorded]]:
    """Yield all statements of the corpus with what was recorded, each once."""
    seen = set[str]()
    for name in corpus.names():
        for statement, recorded in golden.part(name).items():
            if statement not in seen:
                seen.add(statement)
                yield statement, recorded


def disagreements(
    old: Mapping[str, Outcome], judge: Judge
) -> dict[tuple[str, ...], list[tuple[str, Outcome, Outcome]]]:
    """Return where a judge says something else than ``old``, by patterns, the frequent first."""
    found = defaultdict[tuple[str, ...], list[tuple[str, Outcome, Outcome]]](list)
    for statement, recorded in everything():
        new = judged(judge, statement, recorded)
        before = old.get(statement)
        if new is None or before is None or before.treatment == "error":
            continue
        pattern = _pattern(before, new)
        if pattern:
            found[pattern].append((statement, before, new))
    return dict(sorted(found.items(), key=lambda each: -len(each[1])))


def _pattern(old: Outcome, new: Outcome) -> tuple[str, ...]:
    """Return in what they differ: names of fields, and values where these are few."""
    if old.treatment != new.treatment:
        return (f"{old.treatment} -> {new.treatment}", new.kind or old.kind, *_shape(old, new))
    if old.treatment == "refused":
        return ()
    different = []
    for field in _COMPARED:
        before, after = getattr(old, field), getattr(new, field)
        if before != after and ANY not in (*before, *after):
            is_tables = isinstance(before, tuple)
            different.append(field if is_tables else f"{field} {before} -> {after}")
    return (*different, new.kind) if different else ()


def _shape(old: Outcome, new: Outcome) -> tuple[str, ...]:
    reasons = (old.reason, new.reason)
    return tuple(" ".join(each.split()[:4]) for each in reasons)


def save(outcomes: Mapping[str, Outcome], file: Path) -> None:
    """Write outcomes as JSON."""
    said = {statement: asdict(each) for statement, each in outcomes.items()}
    file.write_text(json.dumps(said, indent=0, ensure_ascii=False), encoding="utf-8")


def load(file: Path) -> dict[str, Outcome]:
    """Return what `save` wrote."""
    said = json.loads(file.read_text(encoding="utf-8"))
    for each in said.values():
        each["reads"], each["writes"] = tuple(each["reads"]), tuple(each["writes"])
    return {statement: Outcome(**each) for statement, each in said.items()}


def main() -> None:
    """Print the disagreements."""
    file, judge = sys.argv[1:3]
    examples = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    module, _, function = judge.partition(":")
    found = disagreements(load(Path(file)), getattr(importlib.import_module(module), function))
    for pattern, cases in found.items():
        print(f"{len(cases)} x", " | ".join(each for each in pattern if each))
        for statement, old, new in cases[:examples]:
            print(f"    {statement!r}\n        old {old}\n        new {new}")
    print(sum(map(len, found.values())), "disagreements of", len(found), "patterns")


if __name__ == "__main__":
    main()
