"""The connection to a Spark with TLS, and the certificates that are trusted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from haproc import protos
from haproc.engine.channel import Channel, EngineLimits
from haproc.engine.interface import EngineAddress
from tests.certificates import Authority


@asynccontextmanager
async def spark(authority: Authority) -> AsyncIterator[int]:
    """Run a server with TLS that answers a Config call; yield its port."""

    async def config(request: bytes, context: Any) -> bytes:
        return b""

    pair = authority.issue("spark")
    files = [(pair.key.read_bytes(), pair.certificate.read_bytes())]
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(config)
    service = "spark.connect.SparkConnectService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Config": handler}),)
    )
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(files))
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


async def call_config(port: int, ca_file: Path | None) -> None:
    """Call the server; raises grpc.aio.AioRpcError."""
    address = EngineAddress("127.0.0.1", port, "token", tls=True, ca_file=ca_file)
    channel = Channel(address, EngineLimits())
    try:
        await channel.unary("Config", protos.base.ConfigRequest(), 10.0)
    finally:
        await channel.aclose()


async def test_certificate_of_spark_is_trusted_only_by_the_ca_of_its_address(
    tmp_path: Path,
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    async with spark(authority) as port:
        await call_config(port, authority.file)
        for ca_file in (None, other.file):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call_config(port, ca_file)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
