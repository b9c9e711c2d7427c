"""All fields of Spark Connect's requests, as text: ``python -m tests.unit.plan_fields > FILE``.

The fields in the golden file have been reviewed for their effect on a plan. A new one must be
reviewed first, in `haproc/classify/plans`; then the file is written anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from haproc import protos

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "plan_fields.txt"
_ROOTS = (protos.base.Plan, protos.base.AnalyzePlanRequest, protos.base.ConfigRequest)


def fields() -> str:
    """Return a line for each field of each message, and for each value of each enum."""
    lines: set[str] = set()
    stack, seen = [each.DESCRIPTOR for each in _ROOTS], set()
    while stack:
        kind = stack.pop()
        if kind.full_name in seen:
            continue
        seen.add(kind.full_name)
        for field in kind.fields:
            lines.add(f"{kind.full_name}.{field.name} = {field.number} {_type(field)}")
            if field.message_type is not None:
                stack.append(field.message_type)
            if field.enum_type is not None:
                lines |= {
                    f"{field.enum_type.full_name}.{value.name} = {value.number}"
                    for value in field.enum_type.values
                }
    return "\n".join(sorted(lines)) + "\n"


def _type(field: Any) -> str:
    many = " repeated" if field.is_repeated else ""
    of = field.message_type or field.enum_type
    return f"{of.full_name if of else field.type}{many}"


if __name__ == "__main__":
    print(fields(), end="")
