"""The ring's own data pipeline: programs that reach the ring only by its doors, as any client."""
