"""One HAProc as a whole: its parts, from start to end, and its membership of the ring."""
