"""The public names are a promise; this list changes only together with the changelog."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import hocket
import hocket._exceptions as exceptions

PUBLIC = [
    "APIConnectionError",
    "APIResponseError",
    "APIStatusError",
    "APITimeoutError",
    "AdvisoryParams",
    "AsyncBatchRun",
    "AsyncClient",
    "AsyncSession",
    "AsyncStream",
    "AuthenticationError",
    "BadRequestError",
    "Batch",
    "BatchError",
    "BatchErrors",
    "BatchParams",
    "BatchResult",
    "BatchRun",
    "BatchUsage",
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatDelta",
    "ChatLogprobs",
    "ChatParams",
    "Client",
    "ClientOptions",
    "Completion",
    "CompletionChoice",
    "CompletionChunk",
    "CompletionLogprobs",
    "CompletionParams",
    "FileObject",
    "Health",
    "HocketError",
    "Message",
    "Model",
    "NotFoundError",
    "PermissionDeniedError",
    "PromptTokensDetails",
    "RateLimitError",
    "RequestCounts",
    "RowError",
    "RowResponse",
    "RunParams",
    "ServerError",
    "ServiceUnavailableError",
    "Session",
    "SessionStatus",
    "Stream",
    "StreamError",
    "TierUse",
    "Tiers",
    "Timeout",
    "Timings",
    "TokenLogprob",
    "Tokens",
    "TopLogprob",
    "Usage",
    "__version__",
]


def test_the_public_names_are_these_and_no_others() -> None:
    visible = {name for name in vars(hocket) if not name.startswith("_")} | {"__version__"}
    assert sorted(hocket.__all__) == sorted(PUBLIC) == sorted(visible)


def test_a_client_has_these_verbs() -> None:
    verbs = {name for name in dir(hocket.Client) if not name.startswith("_")}
    nouns = {"batches", "chat", "completions", "files", "models", "session"}
    assert verbs == nouns | {"advise", "close", "detokenize", "health", "tokenize", "with_options"}


def test_sync_and_async_offer_the_same() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(hocket.Client) == public(hocket.AsyncClient)
    assert public(hocket.Stream) == public(hocket.AsyncStream)
    assert public(hocket.BatchRun) == public(hocket.AsyncBatchRun)
    for noun in ("batches", "files"):
        kinds = [type(getattr(client, noun)) for client in (hocket.Client(), hocket.AsyncClient())]
        assert public(kinds[0]) == public(kinds[1])
    assert public(hocket.Session) == public(hocket.AsyncSession)


def test_the_tree_at_the_top_of_the_exceptions_is_the_real_one() -> None:
    drawn = {}
    path: list[str] = []
    for line in (exceptions.__doc__ or "").splitlines():
        if match := re.match(r"([│├└─ ]*)([A-Z]\w+Error)\b", line):
            depth = len(match[1]) // 4
            path = [*path[:depth], match[2]]
            drawn[match[2]] = path[-2] if depth else "Exception"
    for name, parent in drawn.items():
        mro = [kind.__name__ for kind in getattr(hocket, name).__mro__[1:] if not kind.__name__.startswith("_")]
        assert mro[0] == parent
    kinds = {name: getattr(hocket, name) for name in PUBLIC if name.endswith("Error")}
    assert set(drawn) == {name for name, kind in kinds.items() if issubclass(kind, Exception)}


def test_the_sdk_is_typed_and_depends_on_httpx_alone() -> None:
    package = Path(hocket.__file__).parent
    assert (package / "py.typed").exists()
    sources = "\n".join(file.read_text() for file in package.rglob("*.py"))
    imported = set(re.findall(r"^(?:from|import) (\w+)", sources, re.MULTILINE))
    assert imported - sys.stdlib_module_names - {"hocket"} == {"httpx"}
