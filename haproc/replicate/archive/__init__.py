"""The operations that all clusters have applied, read again from the log as rows for an archive."""
