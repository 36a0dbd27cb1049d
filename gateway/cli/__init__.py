"""The command `hocket`."""
