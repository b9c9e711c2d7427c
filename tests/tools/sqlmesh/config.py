"""The project's configuration: PySpark's own session, which SPARK_REMOTE connects to the ring."""

from __future__ import annotations

import os

from sqlmesh.core.config import (
    Config,
    DuckDBConnectionConfig,
    GatewayConfig,
    ModelDefaultsConfig,
    SparkConnectionConfig,
)

config = Config(
    gateways={
        "ring": GatewayConfig(
            connection=SparkConnectionConfig(concurrent_tasks=2),
            state_connection=DuckDBConnectionConfig(database=os.environ["SHOP_STATE"]),
        )
    },
    default_gateway="ring",
    model_defaults=ModelDefaultsConfig(dialect="spark", start="2024-01-01"),
    disable_anonymized_analytics=True,
    variables={"schema": os.environ["SHOP_SCHEMA"]},
)
