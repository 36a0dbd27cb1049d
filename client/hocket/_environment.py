"""The environment, read here and nowhere else, when a client is made and not at import."""

from __future__ import annotations

import os

BASE_URL_VARIABLE = "HOCKET_BASE_URL"
API_KEY_VARIABLE = "HOCKET_API_KEY"


def base_url() -> str | None:
    return os.environ.get(BASE_URL_VARIABLE) or None


def api_key() -> str | None:
    """The first, if there are several with commas between them: the server reads the same variable that way."""
    return os.environ.get(API_KEY_VARIABLE, "").split(",")[0].strip() or None
