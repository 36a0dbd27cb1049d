"""The HTTP server. Knows HTTP and time, never torch."""
