"""Servers that run already, as `--engine` names them."""

from __future__ import annotations

from urllib.parse import urlsplit

SCHEMES = ("http", "https")


def is_urls(engine: str) -> bool:
    """Rather than a name."""
    return "://" in engine


def parse_engine_urls(text: str) -> tuple[str, ...]:
    """Separated by commas; a path /v1 is taken off. Raises ValueError."""
    urls = tuple(_base(part.strip()) for part in text.split(",") if part.strip())
    if len(set(urls)) < len(urls):
        raise ValueError("engine names a server twice")
    return urls


def _base(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_address = False
    if not is_address:
        raise ValueError(f"engine {url!r} is no address such as http://10.0.0.7:8000")
    if parts.username is not None or parts.password is not None:
        raise ValueError("engine: no keys in an address; HOCKET_ENGINE_API_KEY holds the servers' key")
    if parts.path.rstrip("/") not in ("", "/v1") or parts.query or parts.fragment:
        raise ValueError(f"engine {url!r} must end behind the port")
    return f"{parts.scheme}://{parts.netloc}"
