"""What is raised for a checkpoint's directory that a gateway cannot work with."""

from __future__ import annotations


class CheckpointError(Exception):
    """The directory does not hold what a gateway needs; one line that says what is missing or wrong."""
