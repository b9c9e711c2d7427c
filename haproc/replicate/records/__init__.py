"""The records of the log as Python values: operations and control records."""
