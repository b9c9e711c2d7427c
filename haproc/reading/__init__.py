"""The reading of a statement, and its way: Spark reads it, pure code judges the reading."""
