"""What commands that talk to a server share: where it is, and what to do when it does not answer as hoped."""

from __future__ import annotations

import argparse

from hocket import APIConnectionError, AuthenticationError, Client, HocketError


def add_client_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument("--url", help="where the server is (default: $HOCKET_BASE_URL or http://127.0.0.1:8000)")
    parser.add_argument("--api-key", metavar="KEY", help="default: $HOCKET_API_KEY")


def explain(error: HocketError, client: Client) -> str:
    """What to do about it, where that is known."""
    url = client.options.base_url
    if isinstance(error, APIConnectionError):
        return f"no server answers at {url}. Start one with `hocket serve`, or name another with --url. ({error})"
    if isinstance(error, AuthenticationError):
        return f"the server at {url} wants an API key: --api-key, or $HOCKET_API_KEY. ({error})"
    return str(error)
