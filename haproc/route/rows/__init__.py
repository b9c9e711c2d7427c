"""Rows of a request: read from their form, fitted to their table, in Spark's plain form."""
