"""Spark's functions, by what makes their results differ from cluster to cluster.

The names are those that SHOW FUNCTIONS gives on Spark 4.2.1 with what the grammar itself adds, the
keywords those of sql_keywords(). A function that is in no list here is unknown, and an unknown one
counts as nondeterministic.
"""

from __future__ import annotations

from enum import StrEnum


class Nature(StrEnum):
    """Why a function's result may differ."""

    DETERMINISTIC = "deterministic"
    CLOCK = "clock"
    IDENTITY = "identity"
    CONTEXT = "context"
    RANDOM = "random"
    PLACEMENT = "placement"
    FOREIGN = "foreign"
    ORDER = "order"
    EXACT_OR_FLOAT = "exact_or_float"
    FLOAT = "float"
    APPROXIMATE = "approximate"
    UNKNOWN = "unknown"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


CLOCK = _names(
    """
    curdate current_date current_time current_timestamp localtimestamp now
    """
)
"""The time of the statement."""

IDENTITY = _names(
    """
    current_catalog current_database current_schema current_timezone current_user
    session_user user
    """
)
"""Who runs the statement, and where; pinned from the session."""

CONTEXT = _names(
    """
    collations current_path sql_keywords version
    """
)
"""What differs with the server itself."""

RANDOM = _names(
    """
    aes_encrypt rand randn random randstr shuffle uniform uuid
    """
)
"""Other values at every call."""

PLACEMENT = _names(
    """
    input_file_block_length input_file_block_start input_file_name
    monotonically_increasing_id spark_partition_id
    """
)
"""How the data happens to be laid out in files and partitions."""

FOREIGN = _names(
    """
    java_method python_worker_logs reflect try_reflect
    """
)
"""Code outside SQL."""

ORDER = _names(
    """
    any_value array_agg collect_list collect_set first first_value lag last last_value lead
    listagg max_by measure min_by mode nth_value ntile row_number schema_of_variant_agg
    string_agg
    """
)
"""Depends on the order in which rows arrive, or on how ties fall."""

EXACT_OR_FLOAT = _names(
    """
    avg mean sum try_avg try_sum
    """
)
"""Depends on the order of rows unless the values are integers or decimals."""

FLOAT = _names(
    """
    corr covar_pop covar_samp kurtosis regr_avgx regr_avgy regr_intercept regr_r2 regr_slope
    regr_sxx regr_sxy regr_syy skewness std stddev stddev_pop stddev_samp var_pop var_samp
    variance vector_avg vector_sum
    """
)
"""Computed in floating point, whose last digits depend on the order of rows."""

APPROXIMATE = _names(
    """
    approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate
    approx_top_k_combine approx_top_k_estimate count_min_sketch histogram_numeric
    hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double
    kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float
    kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float percentile_approx
    theta_intersection_agg theta_sketch_agg theta_union_agg tuple_intersection_agg_double
    tuple_intersection_agg_integer tuple_sketch_agg_double tuple_sketch_agg_integer
    tuple_union_agg_double tuple_union_agg_integer
    """
)
"""Sketches, whose content depends on the order of rows."""

DETERMINISTIC = _names(
    """
    abs acos acosh add_months aes_decrypt aggregate and any array array_append array_compact
    array_contains array_distinct array_except array_insert array_intersect array_join
    array_max array_min array_position array_prepend array_remove array_repeat array_size
    array_sort array_union arrays_overlap arrays_zip ascii asin asinh assert_true atan atan2
    atanh base64 between bigint bin binary bit_and bit_count bit_get bit_length bit_or
    bit_xor bitmap_and_agg bitmap_bit_position bitmap_bucket_number bitmap_construct_agg
    bitmap_count bitmap_or_agg bool_and bool_or boolean bround btrim cardinality case cast
    cbrt ceil ceiling char char_length character_length chr coalesce collate collation
    concat concat_ws contains conv convert_timezone cos cosh cot count count_if crc32 csc
    cume_dist date date_add date_diff date_format date_from_unix_date date_part date_sub
    date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear decimal
    decode degrees dense_rank div double e element_at elt encode endswith equal_null every
    exists exp explode explode_outer expm1 extract factorial filter find_in_set flatten
    float floor forall format_number format_string from_avro from_csv from_json
    from_protobuf from_unixtime from_utc_timestamp from_xml get get_json_object getbit
    greatest grouping grouping_id hash hex hll_sketch_estimate hll_union hour hypot if
    ifnull ilike in initcap inline inline_outer instr int is_valid_utf8 is_valid_variant
    is_variant_null isnan isnotnull isnull json_array_length json_object_keys json_tuple
    kll_sketch_get_n_bigint kll_sketch_get_n_double kll_sketch_get_n_float
    kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
    kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double
    kll_sketch_get_rank_float kll_sketch_to_string_bigint kll_sketch_to_string_double
    kll_sketch_to_string_float last_day lcase least left len length levenshtein like ln
    locate log log10 log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval
    make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz
    make_valid_utf8 make_ym_interval map map_concat map_contains_key map_entries map_filter
    map_from_arrays map_from_entries map_keys map_values map_zip_with mask max md5 median
    min minute mod month monthname months_between named_struct nanvl negative next_day not
    nullif nullifzero nvl nvl2 octet_length or overlay parse_json parse_url percent_rank
    percentile percentile_cont percentile_disc pi pmod posexplode posexplode_outer position
    positive pow power printf quarter quote radians raise_error range rank reduce regexp
    regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace
    regexp_substr regr_count repeat replace reverse right rint rlike round rpad rtrim
    schema_of_avro schema_of_csv schema_of_json schema_of_variant schema_of_xml sec second
    sentences sequence session_window sha sha1 sha2 shiftleft shiftright shiftrightunsigned
    sign signum sin sinh size slice smallint some sort_array soundex space split split_part
    sqrt st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid stack startswith
    str_to_map string struct substr substring substring_index tan tanh theta_difference
    theta_intersection theta_sketch_estimate theta_union time time_bucket time_diff
    time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis
    time_to_seconds time_trunc timediff timestamp timestamp_micros timestamp_millis
    timestamp_seconds timestampadd timestampdiff tinyint to_avro to_binary to_char to_csv
    to_date to_json to_number to_protobuf to_time to_timestamp to_timestamp_ltz
    to_timestamp_ntz to_unix_timestamp to_utc_timestamp to_varchar to_variant_object to_xml
    transform transform_keys transform_values translate trim trunc try_add try_aes_decrypt
    try_cast try_divide try_element_at try_make_interval try_make_timestamp
    try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply try_parse_json
    try_parse_url try_subtract try_to_binary try_to_date try_to_number try_to_time
    try_to_timestamp try_url_decode try_validate_utf8 try_variant_get
    tuple_difference_double tuple_difference_integer tuple_difference_theta_double
    tuple_difference_theta_integer tuple_intersection_double tuple_intersection_integer
    tuple_intersection_theta_double tuple_intersection_theta_integer
    tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_summary_double
    tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer
    tuple_union_double tuple_union_integer tuple_union_theta_double
    tuple_union_theta_integer typeof ucase unbase64 unhex unix_date unix_micros unix_millis
    unix_seconds unix_timestamp upper url_decode url_encode validate_utf8 variant_explode
    variant_explode_outer variant_get vector_cosine_similarity vector_inner_product
    vector_l2_distance vector_norm vector_normalize weekday weekofyear when width_bucket
    window window_time xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long
    xpath_number xpath_short xpath_string xxhash64 year zeroifnull zip_with
    """
)
"""The same result everywhere for the same arguments and settings."""

SYNTAX = _names(
    """
    all anti as by character check cluster clustered columns cross cube dec default distinct
    distribute else except exclude extend for from full group having identifier include
    inner insert intersect interval into is join lateral limit matched minus natural numeric
    offset on options outer over partition partitioned pivot qualify repeatable return
    rollup select semi set sets sorted table tablesample tblproperties then to union unpivot
    update using values varchar where with within
    """
)
"""Words that stand before a parenthesis without being a function."""

KEYWORDS = _names(
    """
    add after aggregate all alter always analyze and anti any any_value approx archive array
    as asc asensitive at atomic authorization begin bernoulli between bigint binary binding
    boolean both bucket buckets by byte cache call called cascade case cast catalog catalogs
    change changes char character check clear close cluster clustered codegen collate
    collation collations collection column columns comment commit compact compactions
    compensation compute concatenate condition constraint contains continue cost create
    cross cube current current_database current_date current_path current_schema
    current_time current_timestamp current_user cursor data database databases date date_add
    date_diff dateadd datediff day dayofyear days dbproperties dec decimal declare default
    default_path defined definer delay delete delimited desc describe deterministic dfs
    directories directory distance distinct distribute div do double drop else elseif end
    enforced escape escaped evolution exact except exchange exclude exclusive execute exists
    exit explain export extend extended external extract false fetch fields fileformat
    filter first float flow following for foreign format formatted found from full function
    functions generated geography geometry global grant group grouping handler having hour
    hours identified identifier identity if ignore ilike immediate import in include
    inclusive increment index indexes inner inpath input inputformat insensitive insert int
    integer intersect interval into invoker is items iterate join json key keys language
    last lateral lazy leading leave left level like limit lines list load local location
    lock locks logical long loop macro map matched materialized max measure merge metrics
    microsecond microseconds millisecond milliseconds minus minute minutes modifies month
    months msck name namespace namespaces nanosecond nanoseconds natural nearest next no
    none norely not null nulls numeric of offset on only open option options or order out
    outer outputformat over overlaps overlay overwrite partition partitioned partitions path
    percent pivot regexp rlike placing position preceding primary principals procedure procedures
    properties purge qualify quarter query range read reads real recordreader recordwriter
    recover recursion recursive reduce references refresh rely rename repair repeat
    repeatable replace reset respect restrict return returns revoke right role roles
    rollback rollup row rows schema schemas second seconds security select semi separated
    serde serdeproperties session_user set sets short show similarity single skewed smallint
    some sort sorted source specific sql sqlexception sqlstate start statistics stored
    stratify stream streaming string struct substr substring sync system system_path
    system_time system_version table tables tablesample target tblproperties terminated then
    time timediff timestamp timestamp_ltz timestamp_ntz timestampadd timestampdiff tinyint
    to touch trailing transaction transactions transform trim true truncate try_cast type
    unarchive unbounded uncache union unique unknown unlock unpivot unset until update use
    user using value values var varchar variable variant version view views void watermark
    week weeks when where while window with within without x year years zone
    """
)
"""The grammar's words; a name in front of a parenthesis behind any other word is an alias."""

BARE = _names(
    "current_date current_timestamp current_time current_user user session_user current_path"
)
"""Functions that Spark calls without parentheses too, unless a column has the name."""

_NATURES = {
    name: nature
    for nature, names in (
        (Nature.DETERMINISTIC, DETERMINISTIC),
        (Nature.CLOCK, CLOCK),
        (Nature.IDENTITY, IDENTITY),
        (Nature.CONTEXT, CONTEXT),
        (Nature.RANDOM, RANDOM),
        (Nature.PLACEMENT, PLACEMENT),
        (Nature.FOREIGN, FOREIGN),
        (Nature.ORDER, ORDER),
        (Nature.EXACT_OR_FLOAT, EXACT_OR_FLOAT),
        (Nature.FLOAT, FLOAT),
        (Nature.APPROXIMATE, APPROXIMATE),
    )
    for name in names
}


def nature(name: str) -> Nature:
    """Return what is known of a function by its name in lower case, without its namespace."""
    return _NATURES.get(name, Nature.UNKNOWN)
