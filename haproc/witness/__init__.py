"""Spark's own analysis of a statement, read as the second witness of what it is and rests on."""
