"""The status page: its files, and the stream of events that keeps it up to date."""
