"""AddArtifacts: the files in its messages, and which of them a session may add.

A file comes whole, in a batch with others, or as a beginning and further chunks. Messages in, files
out; pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from haproc import protos
from haproc.classify.plans.parsing import parse
from haproc.failure import ErrorClass, refused

_base = protos.base
_JVM: Final = ("jars/", "classes/")
_TO_FILES: Final = "forward_to_fs/"


@dataclass(slots=True)
class Arriving:
    """One file as it comes."""

    name: str
    chunks: list[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many bytes are there."""
        return sum(map(len, self.chunks))

    def pieces(self, bytes_max: int) -> Iterator[bytes]:
        """Yield what is there in pieces of this size, the last one shorter."""
        rest = bytearray()
        for chunk in self.chunks:
            rest += chunk
            while len(rest) >= bytes_max:
                yield bytes(rest[:bytes_max])
                del rest[:bytes_max]
        if rest:
            yield bytes(rest)


def files_of(requests: Sequence[bytes], *, allow_jars: bool) -> list[Arriving]:
    """Return the files in a call's messages; raises RequestError for one that may not come."""
    files: list[Arriving] = []
    for request in (parse(_base.AddArtifactsRequest, each) for each in requests):
        match request.WhichOneof("payload"):
            case "batch":
                files += [Arriving(each.name, [each.data.data]) for each in request.batch.artifacts]
            case "begin_chunk":
                begin = request.begin_chunk
                files.append(Arriving(begin.name, [begin.initial_chunk.data]))
            case "chunk" if files:
                files[-1].chunks.append(request.chunk.data)
            case _:
                raise refused(ErrorClass.BAD_REQUEST, "a message of AddArtifacts adds nothing")
    for each in files:
        _check(each.name, allow_jars=allow_jars)
    return files


def arrived(files: Sequence[Arriving], response: Any) -> list[Arriving]:
    """Return those that the server has whole, by its answer."""
    whole = {each.name for each in response.artifacts if each.is_crc_successful}
    return [each for each in files if each.name in whole]


def _check(name: str, *, allow_jars: bool) -> None:
    name = name.replace("\\", "/")  # which Spark takes for the same
    if name.startswith(_TO_FILES):
        raise refused(
            ErrorClass.PATH,
            "a file cannot be copied to where the clusters keep files",
            "add it to the session with spark.addArtifacts(…, file=True)",
        )
    if not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise refused(ErrorClass.BAD_REQUEST, f"{name[:100]!r} is no name of a session's file")
    is_jvm = name.startswith(_JVM) or name.endswith((".jar", ".class"))
    if is_jvm and not allow_jars:
        raise refused(
            ErrorClass.JVM_CODE,
            f"{name[:100]} is code for the JVM, which would run inside Spark's driver",
            "have it put on every cluster's class path, or set connect.allow_jars",
        )
