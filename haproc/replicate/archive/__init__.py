"""Reads operations that all clusters have applied from the log again, as rows for an archive."""
