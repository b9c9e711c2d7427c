"""The common parts of doors over HTTP: listeners, access, bodies and errors."""
