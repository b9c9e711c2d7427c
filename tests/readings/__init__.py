"""Spark's recorded readings of the tests' statements, and programs that record and compare them."""
