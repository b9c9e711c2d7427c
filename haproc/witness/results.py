"""What functions of Spark 4.2.1 give, whatever they are given."""

from __future__ import annotations

from typing import Final

INTEGERS: Final = frozenset(
    {"count", "count_if", "length", "char_length", "character_length", "octet_length", "bit_length"}
    | {"size", "array_size", "cardinality", "json_array_length", "array_position", "bit_count"}
    | {"year", "quarter", "month", "day", "dayofmonth", "dayofyear", "dayofweek", "weekday"}
    | {"weekofyear", "hour", "minute", "second", "datediff", "date_diff", "timestampdiff"}
    | {"unix_timestamp", "to_unix_timestamp", "unix_seconds", "unix_millis", "unix_micros"}
    | {"unix_date", "instr", "locate", "position", "ascii", "find_in_set", "levenshtein"}
    | {"regexp_count", "regexp_instr", "hash", "xxhash64", "crc32"}
)
TEXTS: Final = frozenset(
    {"upper", "lower", "initcap", "trim", "ltrim", "rtrim", "btrim", "lpad", "rpad", "repeat"}
    | {"concat_ws", "substring", "substr", "left", "right", "replace", "translate", "format_string"}
    | {"regexp_replace", "regexp_extract", "split_part", "md5", "sha1", "sha2", "hex", "base64"}
    | {"date_format", "from_unixtime", "get_json_object", "to_json"}
)
"""A text, or binary where they are given such."""
DATES: Final = frozenset(
    {"to_date", "try_to_date", "date_add", "date_sub", "add_months", "make_date", "last_day"}
    | {"next_day", "trunc", "date_from_unix_date", "current_date"}
)
MOMENTS: Final = frozenset(
    {"to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz", "try_to_timestamp", "timestampadd"}
    | {"make_timestamp", "make_timestamp_ltz", "make_timestamp_ntz", "timestamp_seconds"}
    | {"timestamp_millis", "timestamp_micros", "from_utc_timestamp", "to_utc_timestamp"}
    | {"convert_timezone", "date_trunc", "now"}
)
"""A TIMESTAMP, with a time zone or without."""
NUMBERS: Final = (
    INTEGERS | {"abs", "round", "bround", "floor", "ceil", "sum", "avg"} | {"months_between"}
)
"""A number, or an interval where they are given such."""
CONDITIONS: Final = frozenset({"isnull", "isnotnull"})
KEEPING: Final = frozenset(
    {"max", "min", "coalesce", "greatest", "least", "ifnull", "nvl", "nullif", "first", "last"}
    | {"any_value", "outer", "lag", "lead", "element", "knownnotnull"}
)
"""Of the type of what they are given."""
