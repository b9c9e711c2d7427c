"""Days written by jobs of a ring: one task waits for its job, one is deferred, one fails."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from airflow.providers.apache.livy.operators.livy import LivyOperator
from airflow.sdk import DAG

FILE, TABLE = os.environ["DAYS_FILE"], os.environ["DAYS_TABLE"]

with DAG("days", start_date=datetime(2026, 1, 1), schedule=None) as dag:

    def job(name: str, table: str, **more: Any) -> LivyOperator:
        request_id = f"{TABLE}-{name}-" + "{{ ds }}-{{ ti.try_number }}"
        conf = {"haproc.restart": 1, "haproc.request_id": request_id}
        args = [table, "{{ ds }}"]
        options = {"livy_conn_id": "ring", "polling_interval": 1, "conf": conf, **more}
        return LivyOperator(task_id=name, file=FILE, args=args, **options)

    waits, deferred = job("waits", TABLE), job("deferred", TABLE, deferrable=True)
    waits >> deferred >> job("fails", "nowhere", conf={}, deferrable=True)
