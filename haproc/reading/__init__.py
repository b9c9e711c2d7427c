"""Plan reading: Spark reads a statement, and code without side effects judges the result."""
