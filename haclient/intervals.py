"""Year-month intervals, which Arrow has and pyarrow has no class for, in a form that it can show.

Their bytes are those of int32, as which only Arrow's C interface gives them (`_Retyped`); from
there they become intervals of months, days and nanoseconds, whose values are
`pyarrow.MonthDayNano`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def readable_schema(schema: Any) -> Any:
    """Return the schema that `readable` gives batches of this one."""
    return _with_types(schema, pa.month_day_nano_interval())


def readable(batch: Any) -> Any:
    """Return the batch with its year-month intervals, nested ones too, in the other form."""
    target = readable_schema(batch.schema)
    if target == batch.schema:
        return batch
    numbers = pa.record_batch(_Retyped(batch, _with_types(batch.schema, pa.int32())))
    columns = [
        column
        if field.type == wanted.type
        else pa.array([_value(v, field.type) for v in column.to_pylist()], wanted.type)
        for column, field, wanted in zip(numbers.columns, batch.schema, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


class _Retyped:
    """A batch's memory under another schema, by Arrow's PyCapsule interface."""

    def __init__(self, batch: Any, schema: Any) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


def _is_months(kind: Any) -> bool:
    return bool(kind.id == pa.lib.Type_INTERVAL_MONTHS)


def _with_types(schema: Any, months: Any) -> Any:
    """Return the schema with this type in place of year-month intervals."""
    fields = [field.with_type(_with_type(field.type, months)) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _with_type(kind: Any, months: Any) -> Any:
    if _is_months(kind):
        return months
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    if all(_with_type(each, months) == each for each in inner):
        return kind  # a map's key of type void is one that pyarrow reads, and does not make
    if pa.types.is_map(kind):
        return pa.map_(_with_type(kind.key_type, months), _with_type(kind.item_type, months))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_type(kind.value_type, months)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_type(field.type, months)) for field in kind])
    return kind


def _value(value: Any, kind: Any) -> Any:
    """Return a value of numbers as one with intervals; ``kind`` is its type before."""
    if value is None:
        return None
    if _is_months(kind):
        return pa.MonthDayNano((value, 0, 0))
    if pa.types.is_map(kind):
        return [(_value(k, kind.key_type), _value(v, kind.item_type)) for k, v in value]
    if pa.types.is_list(kind):
        return [_value(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    return value
