"""Closed lists: the classes of operators and expressions whose results are known.

The names are those of Spark 4.2.1 and Delta 4.4.0, as a reading has them. A class that is not
listed is unknown, and counts as differing from cluster to cluster.
"""

from __future__ import annotations

import re
from typing import Final


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPERATORS: Final = _names(
    """
    Aggregate CTERelationDef CTERelationRef CollectMetrics Distinct Except Expand Filter Generate
    Intersect Join LateralJoin OneRowRelation PipeOperator Project Range RebalancePartitions
    Repartition RepartitionByExpression ResolvedHint ResolvedInlineTable SQLFunctionNode Sort
    SubqueryAlias Union UnionLoop UnionLoopRef UnresolvedHint View WithCTE
    """
)
"""Operators whose rows depend only on their input; `order` checks the order of the rows."""
WRITING: Final = _names(
    """
    AppendData CreateTableAsSelect DeleteCommand DeleteFromTable MergeIntoCommand
    OverwriteByExpression OverwritePartitionsDynamic ReplaceTableAsSelect UpdateCommand
    CreateDataSourceTableAsSelectCommand InsertIntoHadoopFsRelationCommand InsertIntoHiveTable
    DeltaMergeIntoMatchedDeleteClause DeltaMergeIntoMatchedUpdateClause
    DeltaMergeIntoNotMatchedBySourceDeleteClause DeltaMergeIntoNotMatchedBySourceUpdateClause
    DeltaMergeIntoNotMatchedInsertClause DeltaMergeAction ResolvedIdentifier
    """
)
"""Classes that write rows; the expressions and queries in their clauses are examined as well."""
SIDE: Final[dict[str, frozenset[str]]] = {
    each: _names(
        "catalogTable tahoeFileIndex targetFileIndex table name writeOptions tableSpec partitioning"
        " migratedSchema targetColNameParts identifier desc function hint hints joinType"
        " evalContext analyzedQuery outputPath partitionColumns bucketSpec options fileFormat"
        " outputColumnNames catalog staticPartitions fileIndex partitionSpec hadoopConf deltaLog"
        " func inputEncoders outputEncoder"
    )
    for each in WRITING
    | {"SubqueryAlias", "View", "SQLScalarFunction", "SQLFunctionNode", "Join"}
    | {"ResolvedHint", "UnresolvedHint", "LateralJoin"}
    | {"PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF"}
}
"""For each of these classes, the fields that hold no expressions, but a place, a name or code."""
OBJECTS: Final = _names(
    """
    AliasIdentifier CommonExpressionId HintInfo JoinHint NumericEvalContext ScriptInputOutputSchema
    """
)
"""Neither operators nor expressions, but names, or how something is computed (their class is
examined)."""

SUMS: Final = _names("Average Sum")
MERGING: Final = _names("Max Min")
COLLECTING: Final = _names("CollectList CollectSet")
RANKING: Final = _names("CumeDist DenseRank PercentRank Rank")
NUMBERING: Final = _names("AnyValue First Lag Last Lead NTile NthValue RowNumber")
COUNTING: Final = _names(
    """
    Average BitAndAgg BitOrAgg BitXorAgg BoolAnd BoolOr Count CountIf Max Min RegrCount Sum
    """
)
READING: Final = _names("CsvToStructs JsonToStructs VariantGet XmlToStructs")
"""Classes that may make TIMESTAMPs of parts of a text or a variant; their type shows whether they
do."""
COMPARING: Final = _names("PivotFirst")
"""Classes that compare a column with given values, which the analyzer converts to the column's
type."""
CONDITIONS: Final = {
    "of integers and decimals, where what overflows is an error": SUMS,
    "where values that compare equal are the same value (not 0.0 and -0.0), since they show the "
    "first to come": MERGING,
    "where `sort_array()` sorts their values at once": COLLECTING,
    "in a window, since rows that tie get the same": RANKING,
    "in a window, where rows that tie are equal": NUMBERING,
    "in a window, where rows that tie come into the frame together": COUNTING,
    "where the frame's order is total, or nothing in it depends on the order": _names("Window"),
    "where the rows below are in a total order": _names("GlobalLimit LocalLimit Offset Tail"),
    "where texts are not compared by a collation": _names("Aggregate Distinct Except Intersect"),
    "where no TIMESTAMP is made of a part of a text without a format": READING,
    "where the column is no TIMESTAMP, of which a value may be a time of day": COMPARING,
}
"""The classes that give the same everywhere under a condition, by that condition. Each is worded as
the end of a sentence."""

REASONS: Final = {
    "depends on the order of rows or on how ties fall": NUMBERING
    | COLLECTING
    | _names("ListAgg MaxBy Measure MinBy Mode SchemaOfVariantAgg"),
    "gives other values on every cluster": _names(
        "AesEncrypt Rand RandStr Randn Shuffle Uniform Uuid"
    ),
    "depends on how each cluster has laid out its files and partitions": _names(
        """
        InputFileBlockLength InputFileBlockStart InputFileName MonotonicallyIncreasingID Sample
        SparkPartitionID
        """
    ),
    "depends on the server": _names("Collations CurrentPath SQLKeywords SparkVersion"),
    "reads the clock, which is different on every cluster": _names("CurrentBatchTimestamp"),
    "computes in floating point, where the order of rows shows": _names(
        """
        Corr CovPopulation CovSample Kurtosis RegrAvgX RegrAvgY RegrIntercept RegrR2 RegrSXX RegrSXY
        RegrSYY RegrSlope Skewness StddevPop StddevSamp VariancePop VarianceSamp VectorAvg VectorSum
        """
    ),
    "approximates, depending on the order of rows": _names(
        """
        ApproxTopK ApproxTopKAccumulate ApproxTopKCombine ApproxTopKEstimate ApproximatePercentile
        CountMinSketchAgg HistogramNumeric HllSketchAgg HllUnionAgg HyperLogLogPlusPlus
        KllMergeAggBigint KllMergeAggDouble KllMergeAggFloat KllSketchAggBigint KllSketchAggDouble
        KllSketchAggFloat KllSketchMergeBigint KllSketchMergeDouble KllSketchMergeFloat
        ThetaIntersectionAgg ThetaSketchAgg ThetaUnionAgg TupleIntersectionAggDouble
        TupleIntersectionAggInteger TupleSketchAggDouble TupleSketchAggInteger TupleUnionAggDouble
        TupleUnionAggInteger
        """
    ),
    "runs code of the session, which may give other values on every cluster": _names(
        """
        HiveGenericUDF HiveSimpleUDF HiveUDAFFunction PythonUDAF PythonUDF PythonUDTF
        ScalaAggregator ScalaUDAF ScalaUDF
        """
    ),
}
"""The classes that give something else on every cluster, by the reason. Each is worded as the end
of a sentence."""
NATURE: Final = {each: reason for reason, classes in REASONS.items() for each in classes}
FOREIGN: Final = _names(
    """
    CallMethodViaReflection PythonWorkerLogs ScriptTransformation TryReflect
    """
)
"""Classes of code that is not SQL and may do anything: it never runs, not even for its rows."""

CLOCK: Final[dict[str, frozenset[str]]] = {
    "CurrentDate": _names("curdate current_date"),
    "CurrentTime": _names("current_time"),
    "CurrentTimestamp": _names("current_timestamp"),
    "LocalTimestamp": _names("localtimestamp"),
    "Now": _names("now"),
}
IDENTITY: Final[dict[str, frozenset[str]]] = {
    "CurrentCatalog": _names("current_catalog"),
    "CurrentDatabase": _names("current_database current_schema"),
    "CurrentTimeZone": _names("current_timezone"),
    "CurrentUser": _names("current_user session_user user"),
}
"""Classes that have one value for a statement, with the names of their functions. The class decides
the value; the name proves that the text at its place is only the call, and nothing around it."""

PARSING: Final = _names(
    """
    CsvToStructs GetTimestamp JsonToStructs ParseToDate ParseToTimestamp ToUnixTimestamp
    UnixTimestamp XmlToStructs
    """
)
"""Classes that read texts by a format. With Spark's legacy parser the clock completes a year of two
digits."""
INVOKED: Final = frozenset(
    ("org.apache.spark.sql.catalyst.util.CharVarcharCodegenUtils", method)
    for method in _names("charTypeWriteSideCheck readSidePadding varcharTypeWriteSideCheck")
)
"""The methods that a StaticInvoke may call: those of Spark that read and write CHAR and VARCHAR."""
KEEPING: Final = _names(
    """
    AggregateExpression Alias AnyValue CaseWhen Coalesce Collate CommonExpressionDef First Greatest
    If KnownNotNull KnownNullable Lag Last Lead Least Max Min NullIf Nvl Nvl2 OuterReference
    SQLScalarFunction ScalarSubquery With
    """
)
"""Classes whose result is one of their arguments."""

EXPRESSIONS: Final = _names(
    """
    Abs Acos Acosh Add AddMonths AesDecrypt AggregateExpression Alias And ArrayAggregate ArrayAppend
    ArrayCompact ArrayContains ArrayDistinct ArrayExcept ArrayExists ArrayFilter ArrayForAll
    ArrayInsert ArrayIntersect ArrayJoin ArrayMax ArrayMin ArrayPosition ArrayPrepend ArrayRemove
    ArrayRepeat ArraySize ArraySort ArrayTransform ArrayUnion ArraysOverlap ArraysZip Ascii Asin
    Asinh AssertNotNull AssertTrue AtLeastNNonNulls Atan Atan2 Atanh AttributeReference BRound
    Base64 Between Bin BinaryPad BinaryPredicate BitAndAgg BitLength BitOrAgg BitXorAgg BitmapAndAgg
    BitmapBitPosition BitmapBucketNumber BitmapConstructAgg BitmapCount BitmapOrAgg BitwiseAnd
    BitwiseCount BitwiseGet BitwiseNot BitwiseOr BitwiseXor BoolAnd BoolOr CaseWhen Cast Cbrt Ceil
    CheckOverflow CheckOverflowInSum CheckOverflowInTableInsert CheckOverflowInTableWrite Chr
    Coalesce Collate Collation CommonExpressionDef CommonExpressionRef Concat ConcatWs Contains Conv
    ConvertTimezone Cos Cosh Cot Count CountIf Crc32 CreateArray CreateMap CreateNamedStruct Csc
    CsvToStructs CurrentRow DateAdd DateAddInterval DateAddYMInterval DateDiff DateFormatClass
    DateFromUnixDate DateSub DatetimeSub DayName DayOfMonth DayOfWeek DayOfYear
    DecimalAddNoOverflowCheck DecimalDivideWithOverflowCheck Decode Divide DivideDTInterval
    DivideInterval DivideYMInterval DropField ElementAt Elt Empty2Null Encode EndsWith EqualNull
    EqualNullSafe EqualTo EulerNumber Exists Exp Explode Expm1 Extract ExtractANSIIntervalDays
    ExtractANSIIntervalHours ExtractANSIIntervalMinutes ExtractANSIIntervalMonths
    ExtractANSIIntervalSeconds ExtractANSIIntervalYears ExtractIntervalDays ExtractIntervalHours
    ExtractIntervalMinutes ExtractIntervalMonths ExtractIntervalSeconds ExtractIntervalYears
    Factorial FindInSet Flatten Floor FormatNumber FormatString FromUTCTimestamp FromUnixTime Get
    GetArrayItem GetArrayStructFields GetJsonObject GetMapValue GetStructField GetTimestamp
    GreaterThan GreaterThanOrEqual Greatest Grouping GroupingID Hex HllSketchEstimate HllUnion Hour
    HoursOfTime Hypot ILike If IfNull In InSet InSubquery InitCap Inline IntegralDivide IsNaN
    IsNotNull IsNull IsValidUTF8 IsValidVariant IsVariantNull JsonObjectKeys JsonToStructs JsonTuple
    KllSketchGetNBigint KllSketchGetNDouble KllSketchGetNFloat KllSketchGetQuantileBigint
    KllSketchGetQuantileDouble KllSketchGetQuantileFloat KllSketchGetRankBigint
    KllSketchGetRankDouble KllSketchGetRankFloat KllSketchToStringBigint KllSketchToStringDouble
    KllSketchToStringFloat KnownNotContainsNull KnownNotNull KnownNullable LambdaFunction LastDay
    LateralSubquery Least Left Length LengthOfJsonArray LessThan LessThanOrEqual Levenshtein Like
    LikeAll LikeAny ListQuery Literal Log Log10 Log1p Log2 Logarithm Lower Luhncheck MakeDTInterval
    MakeDate MakeDecimal MakeInterval MakeTime MakeTimestamp MakeTimestampFromDateTime
    MakeTimestampNTZ MakeTimestampNTZFromDateTime MakeValidUTF8 MakeYMInterval MapConcat
    MapContainsKey MapEntries MapFilter MapFromArrays MapFromEntries MapKeys MapSort MapValues
    MapZipWith Mask Max Md5 Median MicrosToTimestamp MillisToTimestamp Min Minute MinutesOfTime
    Month MonthName MonthsBetween MultiAlias Multiply MultiplyDTInterval MultiplyInterval
    MultiplyYMInterval Murmur3Hash NaNvl NamedLambdaVariable NextDay NormalizeNaNAndZero Not
    NotLikeAll NotLikeAny NullIf NullIfZero Nvl Nvl2 OctetLength Or OuterReference Overlay ParseJson
    ParseToDate ParseToTimestamp ParseUrl Percentile PercentileCont PercentileDisc Pi PivotFirst
    Pmod PosExplode Pow PreciseTimestampConversion PromotePrecision Quarter Quote RLike RaiseError
    RegExpCount RegExpExtract RegExpExtractAll RegExpInStr RegExpReplace RegExpSubStr RegrCount
    Remainder ResolvedCollation Reverse Right Rint Round RoundCeil RoundFloor SQLScalarFunction
    ST_AsBinary ST_GeogFromWKB ST_GeomFromWKB ST_SetSrid ST_Srid ScalarSubquery SchemaOfAvro
    SchemaOfCsv SchemaOfJson SchemaOfVariant SchemaOfXml Sec Second SecondWithFraction SecondsOfTime
    SecondsOfTimeWithFraction SecondsToTimestamp Sentences Sequence Sha1 Sha2 ShiftLeft ShiftRight
    ShiftRightUnsigned Signum Sin Sinh Size Slice SortArray SortOrder SoundEx SpecifiedWindowFrame
    SplitPart Sqrt Stack StartsWith StringDecode StringInstr StringLPad StringLocate StringRPad
    StringRepeat StringReplace StringSpace StringSplit StringToMap StringTranslate StringTrim
    StringTrimBoth StringTrimLeft StringTrimRight StructsToCsv StructsToJson StructsToXml Substring
    SubstringIndex Subtract SubtractDates SubtractTimes SubtractTimestamps Tan Tanh
    TempResolvedColumn ThetaDifference ThetaIntersection ThetaSketchEstimate ThetaUnion
    TimeAddInterval TimeBucket TimeDiff TimeFromMicros TimeFromMillis TimeFromSeconds TimeToMicros
    TimeToMillis TimeToSeconds TimeTrunc TimestampAdd TimestampAddInterval TimestampAddYMInterval
    TimestampDiff ToBinary ToCharacter ToDegrees ToNumber ToRadians ToTime ToUTCTimestamp
    ToUnixTimestamp ToVariantObject TransformKeys TransformValues TruncDate TruncTimestamp TryAdd
    TryAesDecrypt TryDivide TryElementAt TryEval TryMakeInterval TryMakeTimestamp
    TryMakeTimestampFromDateTime TryMod TryMultiply TryParseUrl TrySubtract TryToBinary TryToNumber
    TryUrlDecode TryValidateUTF8 TupleDifferenceDouble TupleDifferenceInteger
    TupleDifferenceThetaDouble TupleDifferenceThetaInteger TupleIntersectionDouble
    TupleIntersectionInteger TupleIntersectionThetaDouble TupleIntersectionThetaInteger
    TupleSketchEstimateDouble TupleSketchEstimateInteger TupleSketchSummaryDouble
    TupleSketchSummaryInteger TupleSketchThetaDouble TupleSketchThetaInteger TupleUnionDouble
    TupleUnionInteger TupleUnionThetaDouble TupleUnionThetaInteger TypeOf TypedNullLiteral UnBase64
    UnaryMinus UnaryPositive UnboundedFollowing UnboundedPreceding Unhex UnixDate UnixMicros
    UnixMillis UnixSeconds UnixTimestamp UnscaledValue UnspecifiedFrame UpCast UpdateFields Upper
    UrlDecode UrlEncode ValidateUTF8 VariantExplode VariantGet VectorCosineSimilarity
    VectorInnerProduct VectorL2Distance VectorNorm VectorNormalize WeekDay WeekOfYear WidthBucket
    WindowExpression WindowSpecDefinition With WithField XPathBoolean XPathDouble XPathFloat
    XPathInt XPathList XPathLong XPathShort XPathString XmlToStructs XxHash64 Year ZeroIfNull
    ZipWith
    """
)
"""Expressions that give the same everywhere for the same arguments and settings."""

_QUOTED = re.compile(r"`(?:[^`]|``)*`")
_FIELD = re.compile(r"[^\s<>(),:]+\s*:")
_WORD = re.compile(r"[A-Za-z_]+")
_FIRM = _names(
    """
    ARRAY BIGINT BINARY BOOLEAN CHAR DATE DAY DECIMAL HOUR INT INTERVAL MINUTE MONTH NOT NULL SECOND
    SMALLINT STRING STRUCT TIME TIMESTAMP TIMESTAMP_NTZ TINYINT TO VARCHAR VOID YEAR
    """
)
_INTEGERS = _names("BIGINT INT SMALLINT TINYINT")


def words_of(kind: str) -> frozenset[str]:
    """Return the words of a SQL type, such as ARRAY and INT, without fields' names and comments."""
    plain = _FIELD.sub(" ", _QUOTED.sub("x", re.sub(r"COMMENT '(?:[^'\\]|\\.)*'", "", kind)))
    return frozenset(_WORD.findall(plain))


def is_firm(kind: str | None) -> bool:
    """True if two values of a type that compare as equal are always the same value.

    That is not so for floats (0.0 and -0.0), strings with a collation, variants, maps, and types
    that contain these; nor if the type is None (unknown).
    """
    return kind is not None and words_of(kind) <= _FIRM


def is_collated(kind: str | None) -> bool:
    """True if a type's strings are compared by a collation, or if it is None (unknown)."""
    return kind is None or "COLLATE" in words_of(kind)


def is_integer(kind: str | None) -> bool:
    """True if a type counts in whole units: an integer, or an interval of months or seconds."""
    return kind is not None and (kind in _INTEGERS or kind.startswith("INTERVAL "))


def is_decimal(kind: str | None) -> bool:
    """True if a type is a DECIMAL."""
    return kind is not None and kind.startswith("DECIMAL")


def holds_text(kind: str | None) -> bool:
    """True if values of a type are or contain texts, or if the type is None (unknown)."""
    return kind is None or bool(words_of(kind) & {"STRING", "CHAR", "VARCHAR", "VARIANT"})


def is_text(kind: str | None) -> bool:
    """True if values of a type are texts, of any collation."""
    return kind is not None and kind.startswith(("STRING", "CHAR", "VARCHAR"))


def holds_timestamp(kind: str | None) -> bool:
    """True if values of a type are or contain TIMESTAMPs with a time zone, or if it is None."""
    return kind is None or "TIMESTAMP" in words_of(kind)


def called(cls: str) -> str:
    """Return a class's name in a function's form: ``CollectList`` as ``collect_list``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls).lower()
