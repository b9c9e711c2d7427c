"""What a Spark error has besides its class, SQLSTATE and message; Spark's clients show it.

It travels with the error from the cluster that raised it through the log to the client. Therefore
its size is limited when it is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

CLASSES_MAX: Final = 16
PARAMETERS_MAX: Final = 32
CONTEXTS_MAX: Final = 4
"""The most classes, parameters and contexts that are kept. Chosen: Spark's own errors have up to 9
classes, 10 parameters and 2 contexts."""
NAME_CHARACTERS_MAX: Final = 256
TEXT_CHARACTERS_MAX: Final = 512
"""The most characters of a parameter's value, and of each text of a context."""


@dataclass(frozen=True, slots=True)
class Context:
    """The place that a Spark error points to.

    It is in a statement's text, or, with ``of_frame``, in a program that uses DataFrames.
    """

    of_frame: bool = False
    object_type: str = ""
    object_name: str = ""
    start: int = 0
    stop: int = 0
    fragment: str = ""
    call_site: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Details:
    """What a Spark error has besides its class, SQLSTATE and message.

    ``java_classes``: from the error's own Java class up to its ancestors.
    """

    java_classes: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    contexts: tuple[Context, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.java_classes or self.parameters or self.contexts)

    @property
    def weight(self) -> int:
        """The approximate number of characters in all texts."""
        texts = [*self.java_classes, *(text for pair in self.parameters for text in pair)]
        return sum(map(len, texts)) + sum(
            len(each.fragment) + len(each.call_site) + len(each.summary) for each in self.contexts
        )


NO_DETAILS: Final = Details()


def details(
    java_classes: Iterable[str],
    parameters: Mapping[str, str],
    contexts: Iterable[Context] = (),
) -> Details:
    """Return a `Details` of these parts, each cut to its limit."""
    return Details(
        tuple(cut(name, NAME_CHARACTERS_MAX) for name in [*java_classes][:CLASSES_MAX]),
        tuple(
            (cut(name, NAME_CHARACTERS_MAX), cut(value, TEXT_CHARACTERS_MAX))
            for name, value in sorted(parameters.items())[:PARAMETERS_MAX]
        ),
        tuple(map(_bounded, [*contexts][:CONTEXTS_MAX])),
    )


def cut(text: str, most: int) -> str:
    """Return a text, cut to ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _bounded(context: Context) -> Context:
    texts = {
        each.name: cut(value, TEXT_CHARACTERS_MAX)
        for each in fields(Context)
        if isinstance(value := getattr(context, each.name), str)
    }
    return Context(context.of_frame, start=context.start, stop=context.stop, **texts)
