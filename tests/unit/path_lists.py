"""Paths, and whether they are below PREFIXES: HAProc and its Spark plugin must agree."""

from __future__ import annotations

PREFIXES = ("/data/in", "s3a://bucket/in/", "FILE:/srv")
ALLOWED = [
    "/data/in",
    "/data/in/",
    "/data//in/./x.csv",
    "/data/x/../in/y",
    "/data/in/*/part-?.parquet",
    "S3A://bucket/in/x",
    "s3a://bucket//in/x",
    "file:/srv/x",
    "File:///srv/x",
]
REFUSED = [
    "",
    "/",
    "/data",
    "/data/input",
    "/data/in/../out",
    "/data/in/../../etc/passwd",
    "/../data/in",
    "/data/in/*/../../../etc",
    "/data/in/{x,../../../etc}",
    "/data/in/[.][.]/x",
    "/data/in/%2e%2e/%2e%2e/etc",
    "/data/in\\..\\..",
    "/data/in\x00",
    " /data/in",
    "data/in",
    "file:/data/in",
    "file://host/srv/x",
    "/srv/x",
    "s3a://other/in/x",
    "s3a://bucket@evil/in",
    "s3://bucket/in",
    "s3a:bucket/in",
    "hdfs:///data/in",
]
