"""What every cluster has applied, told from the log again: rows for whoever keeps it for longer."""
