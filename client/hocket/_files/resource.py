"""`client.files`: what the server keeps for offline work."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

from hocket._calls import Call
from hocket._connection import AsyncConnection, Connection
from hocket._flows import Emit, Flow, aiterate, arun, fetch, iterate, run
from hocket._upload import FileInput, OnUpload, UploadBody

from .content import OnDownload, collect, emit_lines, file_path, save
from .types import Deleted, FileObject, FilePage

Order = Literal["asc", "desc"]
PathInput = str | os.PathLike[str]
_MAX_PAGE = 1000


class Files:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self,
        file: FileInput,
        *,
        purpose: str = "batch",
        filename: str | None = None,
        expires_after: int | None = None,
        on_progress: OnUpload | None = None,
    ) -> FileObject:
        """Uploads a path, bytes, or a file opened in binary mode, piece by piece.

        `expires_after`: seconds; the server deletes it then. `on_progress(bytes_sent, bytes_in_all)`.
        """
        return self._connection.fetch(create_call(file, purpose, filename, expires_after, on_progress))

    def retrieve(self, file_id: str) -> FileObject:
        return self._connection.fetch(Call("GET", file_path(file_id), FileObject))

    def list(
        self,
        *,
        purpose: str | None = None,
        order: Order | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Iterator[FileObject]:
        """The newest first; further pages are asked for as needed. `limit` is of all, not of a page."""
        return iterate(self._connection, list_flow(purpose, order, limit, after))

    def delete(self, file_id: str) -> bool:
        return self._connection.fetch(Call("DELETE", file_path(file_id), Deleted)).deleted

    def content(self, file_id: str) -> bytes:
        """All of it, in memory; `download` and `lines` need less."""
        return run(self._connection, collect(file_id))

    def download(self, file_id: str, path: PathInput, *, on_progress: OnDownload | None = None) -> Path:
        """Into a file, which appears when it is whole. After a failure the next call goes on where this one ended.

        `on_progress(bytes_so_far, bytes_in_all)`. Raises HocketError, OSError.
        """
        return run(self._connection, save(file_id, Path(path), on_progress))

    def lines(self, file_id: str) -> Iterator[str]:
        """Line by line as they arrive; a connection that breaks is taken up where it broke."""
        return iterate(self._connection, emit_lines(file_id))


class AsyncFiles:
    """`Files`, awaited; `list` and `lines` are asynchronous iterators."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(
        self,
        file: FileInput,
        *,
        purpose: str = "batch",
        filename: str | None = None,
        expires_after: int | None = None,
        on_progress: OnUpload | None = None,
    ) -> FileObject:
        """See `Files.create`."""
        return await self._connection.fetch(create_call(file, purpose, filename, expires_after, on_progress))

    async def retrieve(self, file_id: str) -> FileObject:
        return await self._connection.fetch(Call("GET", file_path(file_id), FileObject))

    def list(
        self,
        *,
        purpose: str | None = None,
        order: Order | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> AsyncIterator[FileObject]:
        """See `Files.list`."""
        return aiterate(self._connection, list_flow(purpose, order, limit, after))

    async def delete(self, file_id: str) -> bool:
        return (await self._connection.fetch(Call("DELETE", file_path(file_id), Deleted))).deleted

    async def content(self, file_id: str) -> bytes:
        """All of it, in memory; `download` and `lines` need less."""
        return await arun(self._connection, collect(file_id))

    async def download(self, file_id: str, path: PathInput, *, on_progress: OnDownload | None = None) -> Path:
        """See `Files.download`."""
        return await arun(self._connection, save(file_id, Path(path), on_progress))

    def lines(self, file_id: str) -> AsyncIterator[str]:
        """See `Files.lines`."""
        return aiterate(self._connection, emit_lines(file_id))


def create_call(
    file: FileInput, purpose: str, filename: str | None, expires_after: int | None, on_progress: OnUpload | None
) -> Call[FileObject]:
    fields = {"purpose": purpose}
    if expires_after is not None:
        fields |= {"expires_after[anchor]": "created_at", "expires_after[seconds]": str(expires_after)}
    return Call("POST", "/v1/files", FileObject, upload=UploadBody(fields, file, filename, on_progress))


def query(path: str, **params: str | int | None) -> str:
    given = {name: value for name, value in params.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def list_flow(purpose: str | None, order: Order | None, limit: int | None, after: str | None) -> Flow[None]:
    """Emits files, page by page, up to `limit` in all."""
    num_left = limit
    while num_left is None or num_left > 0:
        size = None if num_left is None else min(num_left, _MAX_PAGE)
        path = query("/v1/files", purpose=purpose, order=order, limit=size, after=after)
        page = yield from fetch(Call("GET", path, FilePage))
        for file in page.data[:num_left]:
            yield Emit(file)
        num_left = None if num_left is None else num_left - len(page.data)
        if not page.has_more or not page.data:
            return
        after = page.last_id or page.data[-1].id
