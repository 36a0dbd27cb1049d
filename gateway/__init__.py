"""The HTTP server. Knows HTTP and time, never torch."""

__version__ = "0.1.0"
