"""The features that SQLAlchemy's suite may ask for and Spark has."""

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

HAS = """
    datetime_historic date_historic datetime_timezone datetime_literals except_
    infinity_floats intersect
    nullsordering precision_numerics_many_significant_digits
    precision_numerics_retains_significant_digits
    regexp_match schemas supports_bitwise_and supports_bitwise_not supports_bitwise_or
    supports_bitwise_shift supports_bitwise_xor table_ddl_if_exists timestamp_microseconds
    tuple_in views window_functions window_range comment_reflection
    comment_reflection_full_unicode create_or_replace_view create_table_as
    precision_numerics_enotation_small
"""
HAS_NOT = """
    autoincrement_insert autoincrement_without_sequence ctes duplicate_key_raises_integrity_error
    empty_inserts fetch_null_from_numeric foreign_keys foreign_key_constraint_reflection
    foreign_key_ddl implements_get_lastrowid implicitly_named_constraints index_reflection
    indexes_with_ascdesc named_constraints on_update_cascade primary_key_constraint_reflection
    reflect_indexes_with_ascdesc self_referential_foreign_keys temporary_tables
    temp_table_reflection tuple_in_w_empty unique_constraint_reflection
"""


def _fixed(made: object) -> property:
    return property(lambda _: made)


class Requirements(SuiteRequirements):
    """The suite's own requirements, except those named above."""


for _name in HAS.split():
    assert hasattr(SuiteRequirements, _name), _name
    setattr(Requirements, _name, _fixed(exclusions.open()))  # type: ignore[no-untyped-call]
for _name in HAS_NOT.split():
    assert hasattr(SuiteRequirements, _name), _name
    setattr(Requirements, _name, _fixed(exclusions.closed()))  # type: ignore[no-untyped-call]
