"""Why a function's result may differ, as a sentence with the function in it."""

from __future__ import annotations

from haproc.pin.functions import Nature

REASONS = {
    Nature.CLOCK: "{} reads the clock, which is different on every cluster",
    Nature.IDENTITY: "{} depends on the session",
    Nature.CONTEXT: "{} depends on the server",
    Nature.RANDOM: "{} gives other values on every cluster",
    Nature.PLACEMENT: "{} depends on how each cluster has laid out its files and partitions",
    Nature.FOREIGN: "{} runs code that HAProc cannot look into",
    Nature.ORDER: "{} depends on the order of rows or on how ties fall",
    Nature.EXACT_OR_FLOAT: "{} of floating point values depends on the order of rows",
    Nature.FLOAT: "{} computes in floating point, where the order of rows shows",
    Nature.APPROXIMATE: "{} approximates, depending on the order of rows",
    Nature.UNKNOWN: "the function {} is not one of Spark's own, so its results may differ",
}
