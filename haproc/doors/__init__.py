"""The doors: HTTP in, the service's requests out, and its answers back."""
