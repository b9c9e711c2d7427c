"""The command line: `haproc`."""
