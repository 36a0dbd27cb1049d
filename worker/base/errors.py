"""What the worker raises for a wrong checkpoint or configuration; bugs raise something else."""

from __future__ import annotations


class WorkerError(Exception):
    """Root. The message is for the operator: it names what is wrong and what would be right."""


class UnsupportedModelError(WorkerError):
    """The checkpoint needs something that this worker does not have."""


class CheckpointError(WorkerError):
    """The checkpoint is incomplete, damaged or not in the expected format."""


class MemoryPlanError(WorkerError):
    """The cache cannot hold even one request, or max_model_len asks for more than there is."""
