"""The facts that follow from the records that this cluster has read from the log. No I/O here."""
