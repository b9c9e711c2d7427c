"""HAProc: the process beside each Spark cluster that makes a ring of them behave like one."""

__version__ = "0.1.0"
