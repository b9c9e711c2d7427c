"""Spark's type text (``decimal(10,2)``, ``array<bigint>``) from the protocol's type messages."""

from __future__ import annotations

from typing import Any

_PLAIN = {
    "null": "void",
    "binary": "binary",
    "boolean": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "calendar_interval": "interval",
    "variant": "variant",
}
_YEAR_MONTH = ("year", "month")
_DAY_TIME = ("day", "hour", "minute", "second")


def type_text(data_type: Any) -> str:
    """Return the type as Spark writes it in DESCRIBE."""
    kind = data_type.WhichOneof("kind")
    if kind in _PLAIN:
        return _PLAIN[kind]
    detail: Any = getattr(data_type, kind) if kind else None
    match kind:
        case "string":
            default = detail.collation in ("", "UTF8_BINARY")
            return "string" if default else f"string collate {detail.collation}"
        case "char" | "var_char":
            return f"{'char' if kind == 'char' else 'varchar'}({detail.length})"
        case "decimal":
            precision = detail.precision if detail.HasField("precision") else 10
            return f"decimal({precision},{detail.scale})"
        case "array":
            return f"array<{type_text(detail.element_type)}>"
        case "map":
            return f"map<{type_text(detail.key_type)},{type_text(detail.value_type)}>"
        case "struct":
            fields = (
                f"{_name(field.name)}:{type_text(field.data_type)}" for field in detail.fields
            )
            return f"struct<{','.join(fields)}>"
        case "year_month_interval":
            return _interval(detail, _YEAR_MONTH)
        case "day_time_interval":
            return _interval(detail, _DAY_TIME)
        case "time":
            return f"time({detail.precision if detail.HasField('precision') else 6})"
        case _:
            return kind.replace("_", " ") if kind else "unknown"


def _name(name: str) -> str:
    return name if name.isidentifier() else "`" + name.replace("`", "``") + "`"


def _interval(detail: Any, units: tuple[str, ...]) -> str:
    start = detail.start_field if detail.HasField("start_field") else 0
    end = detail.end_field if detail.HasField("end_field") else len(units) - 1
    return f"interval {units[start]}" + (f" to {units[end]}" if end != start else "")
