"""Why a plan is not run, and what to do instead."""

from __future__ import annotations

from haproc.classify.model import RefusedError
from haproc.failure import ErrorClass


def unknown(what: str) -> RefusedError:
    """Return the error of a plan with a part that HAProc does not know."""
    return RefusedError(
        ErrorClass.PLAN_UNKNOWN,
        f"the plan holds {what}, which HAProc does not know: what it would do can't be told",
        "use a PySpark of the version that HAProc was made for, or write it as SQL",
    )


def streaming(what: str) -> RefusedError:
    """Return the error of whatever has to do with streams."""
    return RefusedError(
        ErrorClass.STREAMING,
        f"{what}: a stream runs on one cluster's server, beside the order of writes",
        "read the source in a program of your own and write each batch with df.write, which every "
        "cluster applies",
    )


def nested(what: str) -> RefusedError:
    """Return the error of what has an effect and stands where only queries may."""
    return RefusedError(
        ErrorClass.NESTED_WRITE,
        f"{what} stands inside another plan, where only what reads may stand",
        "run it by itself first, and go on from its result",
    )


def files(what: str) -> RefusedError:
    """Return the error of a write to files."""
    return RefusedError(
        ErrorClass.PATH,
        f"{what}: files belong to no table of the ring, so whether a write was applied could not "
        "be told",
        "write to a table by its name: df.write.saveAsTable(…), df.writeTo(…), insertInto(…)",
    )


def source(name: str, use: str) -> RefusedError:
    """Return the error of a data source that is not one of files."""
    return RefusedError(
        ErrorClass.SOURCE,
        f"HAProc doesn't know what {use} {name[:80]!r} reads or writes",
        "read it in your program and give its rows to spark.createDataFrame; tables are of delta, "
        "or another format of files",
    )


def jvm_code(what: str) -> RefusedError:
    """Return the error of code in the JVM."""
    return RefusedError(
        ErrorClass.JVM_CODE,
        f"{what} runs code in Spark's own process that HAProc cannot look into",
        "write the function in Python or SQL",
    )


def unreadable_name(text: str, use: str) -> RefusedError:
    """Return the error of a text that names nothing, where a name stands."""
    return RefusedError(
        ErrorClass.TABLE_NAME,
        f"{text[:100]!r}, which {use}, is not a name",
        "write [catalog.][schema.]name, and parts with other signs in them in `backquotes`",
    )


def hiding(function: str) -> RefusedError:
    """Return the error of a function that runs what its arguments name."""
    return RefusedError(
        ErrorClass.UNCLASSIFIED,
        f"{function}() runs arbitrary code",
        "write a function in Python or SQL",
    )
