"""Duplicate people in a table are found by splink: ``python splink_dedupe.py SCHEMA HOW``.

``HOW``: its way to keep intermediate results, delta_lake_table or persist.
"""

from __future__ import annotations

import sys

import pandas as pd
import splink.comparison_library as cl
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from splink import Linker, SettingsCreator, SparkAPI, block_on

schema, how = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
spark.catalog.setCurrentDatabase(schema)

FIRST = ("anna", "bob", "cem", "dana", "emil", "fay", "gus", "hana")
LAST = ("ames", "bell", "cole", "dunn", "eads", "ford")
CITIES = ("york", "lund", "bern")


def people() -> pd.DataFrame:
    """Return people, every third of them a second time with a wrong letter."""
    rows: list[list[object]] = []
    for first in FIRST:
        for last in LAST:
            number = len(rows)
            row = [number, first, last, CITIES[number % 3], f"19{70 + number % 20}"]
            rows.append(row)
            if number % 3 == 0:
                rows.append([len(rows), first, last[:-1] + "x", *row[3:]])
    return pd.DataFrame(rows, columns=["unique_id", "first_name", "surname", "city", "born"])


spark.createDataFrame(people()).write.mode("overwrite").saveAsTable("people")
settings = SettingsCreator(
    link_type="dedupe_only",
    comparisons=[
        cl.LevenshteinAtThresholds("surname", [1]),
        cl.ExactMatch("city"),
        cl.ExactMatch("born"),
    ],
    blocking_rules_to_generate_predictions=[block_on("first_name")],
    probability_two_random_records_match=0.01,
    retain_intermediate_calculation_columns=False,
)
database = SparkAPI(spark_session=spark, break_lineage_method=how)
linker = Linker(database.register(spark.table("people")), settings)
linker.training.estimate_u_using_random_sampling(max_pairs=1e5, seed=1)
linker.training.estimate_parameters_using_expectation_maximisation(block_on("first_name"))
pairs = linker.inference.predict(threshold_match_probability=0.5)
clusters = linker.clustering.cluster_pairwise_predictions_at_threshold(pairs, 0.5)
found = clusters.as_spark_dataframe().select("cluster_id", "unique_id", "surname")
found.write.mode("overwrite").saveAsTable("found")
print(found.groupBy("cluster_id").count().where(F.col("count") > 1).count(), "stand twice")
for row in spark.catalog.listTables(schema):
    if row.name.startswith("__splink"):
        spark.sql(f"DROP VIEW {row.name}" if row.isTemporary else f"DROP TABLE {schema}.{row.name}")
