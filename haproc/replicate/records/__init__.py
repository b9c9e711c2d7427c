"""The records of the log: what HAProcs say to each other in it. Values only."""
