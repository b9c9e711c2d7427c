"""One HAProc, put together: its parts, its life, and itself among its peers."""
