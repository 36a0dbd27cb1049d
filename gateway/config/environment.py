"""The only place where the gateway reads the environment."""

from __future__ import annotations

import os
from pathlib import Path


def api_keys() -> tuple[str, ...]:
    """HOCKET_API_KEY: one key, or several separated by commas."""
    return _several("HOCKET_API_KEY")


def engine_api_key() -> str:
    """HOCKET_ENGINE_API_KEY: that servers named by --engine ask for."""
    return os.environ.get("HOCKET_ENGINE_API_KEY", "").strip()


def typing_webhook_secrets() -> tuple[str, ...]:
    """HOCKET_TYPING_WEBHOOK_SECRET: one, or several separated by commas."""
    return _several("HOCKET_TYPING_WEBHOOK_SECRET")


def _several(name: str) -> tuple[str, ...]:
    value = os.environ.get(name, "")
    return tuple(key for key in (part.strip() for part in value.split(",")) if key)


def data_directory() -> Path:
    """Where the user's own data belongs: $XDG_DATA_HOME/hocket, ~/.local/share/hocket."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "share") / "hocket"


def use_ray_token() -> None:
    """Ray asks for its token unless the environment says otherwise: whoever reaches its ports may run anything."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")


def ray_variables(storage: str | None) -> dict[str, str]:
    """For `ray start`: dead machines are noticed in seconds, tokens are asked for; storage: a folder for its state."""
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
    }
    if storage is not None:
        variables |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": storage}
    return variables
