"""The records of the log: operations and control records. Values only."""
