"""The clients' wing: statements, rows and sessions."""
