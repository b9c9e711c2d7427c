"""The facts that follow from all records that this cluster has read. Nothing here does I/O."""
