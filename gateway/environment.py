"""The only place where the gateway reads the environment."""

from __future__ import annotations

import os


def api_keys() -> tuple[str, ...]:
    """HOCKET_API_KEY: one key, or several separated by commas."""
    value = os.environ.get("HOCKET_API_KEY", "")
    return tuple(key for key in (part.strip() for part in value.split(",")) if key)
