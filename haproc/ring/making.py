"""Makes a local ring in an empty folder: its configuration, users, secrets and ports."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from dmq.kafka_topic import parse_url
from haproc.config.check import NAME
from haproc.config.model import Config
from haproc.ring.broker import BROKERS_MAX, LocalKafka
from haproc.ring.process import free_ports
from haproc.ring.settings import RingError, copies_of, in_sync_of

# Users of a local ring: their tokens, and the certificate of its doors.
#
# PySpark sends a token over TLS only, also on loopback. So the doors of a ring with users have TLS.
# The certificate is self-signed: HAProcs trust it, and clients need it as their CA file.


CERTIFICATE: Final = Path("tls", "door.pem")
"""The certificate's path in the ring's folder."""
_KEY: Final = Path("tls", "door.key")
_DAYS: Final = 3650
_NAMES: Final = "subjectAltName=DNS:localhost,IP:127.0.0.1"
_TIMEOUT_S: Final = 30.0


def make_access(folder: Path, users: Sequence[str]) -> dict[str, Any]:
    """Make the users' tokens and the ring's certificate; raises RingError.

    Returns the keys for the configuration that name them.
    """
    if not users:
        return {}
    described = []
    for name in users:
        if not NAME.fullmatch(name):
            raise RingError(f"{name!r} is no user's name: letters, digits, '.', '_' and '-'")
        token = token_file(name)
        write_secret(folder / token)
        described.append({"name": name, "token": {"file": str(token)}})
    make_certificate(folder)
    return {"users": described, "tls": tls_keys()}


def tls_keys() -> dict[str, str]:
    """Return the configuration's section ``tls`` for the certificate of `make_certificate`."""
    return {
        "certificate_file": str(CERTIFICATE),
        "key_file": str(_KEY),
        "ca_file": str(CERTIFICATE),
    }


def token_file(user: str) -> Path:
    """Return the path of a user's token in the ring's folder."""
    return Path("secrets", f"user-{user}")


def write_secret(file: Path) -> None:
    """Write a new secret, which only the file's owner can read."""
    file.touch(mode=0o600)
    file.write_text(secrets.token_urlsafe(24))


def make_certificate(folder: Path) -> None:
    """Make the certificate of a ring's doors, and its key; raises RingError."""
    key, certificate = folder / _KEY, folder / CERTIFICATE
    key.parent.mkdir(mode=0o700, exist_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", str(key), "-out", str(certificate), "-days", str(_DAYS)]
    command += ["-subj", "/CN=localhost", "-addext", _NAMES]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
    except FileNotFoundError as error:
        raise RingError("a ring with users needs the command openssl, for TLS") from error
    except subprocess.SubprocessError as error:
        raise RingError(f"openssl made no certificate: {error}") from error
    key.chmod(0o600)


# The configuration of a local ring, its secrets and ports, written into an empty folder.
#
# Each start may name the wanted log again. If the folder's ring has another log, the start is
# refused and nothing is changed.


KAFKA_FOLDER = "kafka"
"""The path of the ring's own Kafka in the ring's folder; it exists if the ring has its own
brokers."""
CLUSTERS_MAX = 26
PORTS = 4
"""The number of ports of each cluster: for clients, operators, its Spark, and clients of Spark
Connect."""


@dataclass(frozen=True, slots=True)
class LogChoice:
    """The kind of log that a caller wants for a local ring.

    A field that is not given fits any existing log; a new ring gets SQLite.
    """

    kind: str = ""
    """``sqlite``, ``kafka``, or empty: the other fields decide."""
    brokers: int | None = None
    """The number of Kafka nodes that the ring runs itself; 1 if it is not given."""
    bootstrap_servers: str = ""
    """The addresses of a Kafka that runs already, as ``host:port,host:port``."""
    replication_factor: int | None = None
    """The number of copies of the topic in a Kafka that runs already; 3 if it is not given."""
    advertised_ports: Sequence[int] = ()
    """A port for each of the ring's brokers that is announced to clients instead of its own."""

    @property
    def given(self) -> str:
        """``sqlite`` or ``kafka``, also if only other fields imply it; empty without any."""
        follows = self.brokers is not None or self.bootstrap_servers or self.replication_factor
        return self.kind or ("kafka" if follows else "")

    def check(self) -> None:
        """Raise RingError if two fields contradict each other, or a value cannot be used."""
        if self.given not in ("", "sqlite", "kafka"):
            raise RingError(f"unknown kind of log {self.kind!r}; known are sqlite and kafka")
        if self.kind == "sqlite" and (self.brokers is not None or self.bootstrap_servers):
            raise RingError("a log in SQLite has no brokers: say --log kafka")
        if self.brokers is not None and self.bootstrap_servers:
            raise RingError("either brokers of the ring's own, or those at --bootstrap-servers")
        if self.brokers is not None and not 1 <= self.brokers <= BROKERS_MAX:
            raise RingError(f"a local ring has 1 to {BROKERS_MAX} brokers, not {self.brokers}")
        if self.replication_factor is not None and not self.bootstrap_servers:
            raise RingError("--replication-factor goes with --bootstrap-servers")
        if self.bootstrap_servers:
            try:
                parse_url(self._url("local"))
            except ValueError as error:
                raise RingError(str(error)) from error

    def check_fits(self, folder: Path, config: Config) -> None:
        """Raise RingError if the existing ring in the folder has another log than this choice."""
        kind = config.log.partition(":")[0]
        if self.given and self.given != kind:
            raise RingError(self._other(folder, f"its log in {kind}, not in {self.given}"))
        own = folder / KAFKA_FOLDER / "kafka.yaml"
        if self.brokers is not None:
            known = len(LocalKafka(own.parent).brokers) if own.exists() else 0
            if known != self.brokers:
                raise RingError(
                    self._other(folder, f"{known} broker{'s' * (known != 1)} of its own")
                )
        if self.bootstrap_servers and config.log != self._url(config.ring):
            raise RingError(self._other(folder, f"its log at {config.log}"))

    def make(self, folder: Path, ring: str, ports: Sequence[int]) -> dict[str, Any]:
        """Return the configuration's keys for this log; make the folder of own brokers."""
        if self.given != "kafka":
            return {"log": f"sqlite:///{str(folder / 'log.db').lstrip('/')}"}
        if self.bootstrap_servers:
            copies = self.replication_factor or 3
            log = self._url(ring)
        else:
            kafka = LocalKafka.open_or_create(
                folder / KAFKA_FOLDER,
                brokers=self.brokers or 1,
                ports=ports,
                advertised_ports=self.advertised_ports,
            )
            copies = copies_of(len(kafka.brokers))
            log = f"kafka://{kafka.bootstrap_servers}/{ring}"
        topic = {"replication_factor": copies, "min_insync_replicas": in_sync_of(copies)}
        return {"log": log, "kafka": topic}

    def ports_needed(self) -> int:
        """Return the number of ports for the ring's own brokers."""
        own = self.given == "kafka" and not self.bootstrap_servers
        return 3 * (self.brokers or 1) if own else 0

    def ring_name(self) -> str:
        """Return the new ring's name: a unique one if other rings may use the same Kafka."""
        return f"local-{secrets.token_hex(4)}" if self.bootstrap_servers else "local"

    def _url(self, ring: str) -> str:
        return f"kafka://{self.bootstrap_servers}/{ring}"

    def _other(self, folder: Path, what: str) -> str:
        return (
            f"the ring in {folder} has {what}: start it without saying so, or take another "
            "--folder (or remove this one, when the ring is down)"
        )


def make_ring(
    folder: Path,
    clusters: int,
    base_port: int | None,
    settings: Mapping[str, Any],
    log: LogChoice,
    users: Sequence[str] = (),
) -> None:
    """Write a new ring's configuration file and its secrets.

    ``base_port``: the first port; None: any free ports. ``settings``: further keys of the file.
    """
    if not 1 <= clusters <= CLUSTERS_MAX:
        raise RingError(f"a local ring has 1 to {CLUSTERS_MAX} clusters")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "secrets").mkdir(mode=0o700, exist_ok=True)
    names = [chr(ord("a") + n) for n in range(clusters)]
    ports = _ports(PORTS * clusters + log.ports_needed(), base_port)
    for secret in ("ring", *names):
        write_secret(folder / "secrets" / secret)
    name = log.ring_name()
    described = {
        "ring": name,
        **log.make(folder, name, ports[3 * clusters : -clusters]),
        "secret": {"file": "secrets/ring"},
        "state_dir": "state",
        "clusters": [
            _cluster(each, (*ports[3 * n : 3 * n + 3], ports[n - clusters]))
            for n, each in enumerate(names)
        ],
        **make_access(folder, users),
        **settings,
    }
    temporary = folder / "ring.yaml.new"
    temporary.write_text(yaml.safe_dump(described, sort_keys=False))
    temporary.replace(folder / "ring.yaml")


def new_cluster(folder: Path, name: str) -> dict[str, Any]:
    """Return the configuration of one more cluster: free ports, and a new secret of its Spark."""
    secret = folder / "secrets" / name
    if not secret.exists():
        write_secret(secret)
    return _cluster(name, _ports(PORTS, None))


def _cluster(name: str, ports: Sequence[int]) -> dict[str, Any]:
    clients, operators, spark, connect = ports
    return {
        "name": name,
        "listen": f"127.0.0.1:{clients}",
        "peer": f"127.0.0.1:{operators}",
        "connect": f"127.0.0.1:{connect}",
        "spark": {"url": f"sc://127.0.0.1:{spark}", "token": {"file": f"secrets/{name}"}},
    }


def _ports(count: int, base_port: int | None) -> list[int]:
    if base_port is not None:
        return list(range(base_port, base_port + count))
    return free_ports(count)
