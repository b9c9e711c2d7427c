"""The ring's own data pipeline: programs on its PySpark doors, which know nothing else of it."""
