"""One HAProc process as a whole: its parts, its start and end, its membership of the ring."""
