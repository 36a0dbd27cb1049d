"""What is told to who runs `hocket fleet`: each in one line that says what to do."""

from __future__ import annotations


class FleetFileError(Exception):
    """The fleet.toml is wrong."""


class NoRayError(Exception):
    """Ray is not installed."""


class RayFleetError(Exception):
    """Of the cluster, or the fleet on it."""
