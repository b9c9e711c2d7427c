"""The doors: they read HTTP and gRPC requests, pass them to the service, and send its answers."""
