"""`/v1/files`: uploads go to the disk as they come, contents come from there."""

from __future__ import annotations

import asyncio
from typing import cast
from urllib.parse import quote

import msgspec
from aiohttp import BodyPartReader, MultipartReader, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.http.form_stream import FormStream
from gateway.http.request_record import RequestRecord
from gateway.offline.store.records import FileRecord
from gateway.offline.store.upload import Upload
from gateway.protocol.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    InvalidRequestError,
    MediaTypeError,
    NotFoundError,
    RangeError,
)
from gateway.protocol.files import (
    FileDeleted,
    FileList,
    FileObject,
    check_purpose,
    decode_list_files,
    expiry_seconds,
)
from gateway.routes.common import json_response
from gateway.routes.offline_work.store import offline_store
from gateway.services import SERVICES

_PIECE_BYTES = 2**16  # looked through at once, while somebody's token waits
_MAX_FIELD_BYTES = 1024
_MAX_FIELDS = 32
_MAX_FILENAME = 255
_MIN_BYTES_PER_SECOND = 4096
_BROKEN = (ValueError, AssertionError, RuntimeError, LookupError, HttpProcessingError)  # aiohttp's for a broken form


async def create_file(request: web.Request) -> web.Response:
    store = offline_store(request)
    tenant = RequestRecord.of(request).tenant
    _check_form(request)
    async with store.upload(tenant) as upload:
        form = _Form(request, upload)
        await form.read()
        purpose = check_purpose(form.fields)
        _check_size(request, upload.num_bytes, purpose)
        record = await store.create_file(
            upload,
            tenant=tenant,
            purpose=purpose,
            filename=form.filename,
            expires_after=expiry_seconds(form.fields, purpose),
        )
    return json_response(_object(record))


def _check_form(request: web.Request) -> None:
    if request.content_type != "multipart/form-data":
        raise MediaTypeError("The body must be a form: send 'Content-Type: multipart/form-data'.")


def _check_size(request: web.Request, num_bytes: int, purpose: str | None) -> None:
    config = request.app[SERVICES].config
    limit = config.max_file_bytes
    if purpose == "batch":
        limit = min(limit, config.max_batch_file_bytes)
    if num_bytes > limit:
        raise BodyTooLargeError(f"The file is larger than {limit} bytes.", param="file", code="file_too_large")


class _Form:
    """The parts of a form, in any order: one file, and fields."""

    def __init__(self, request: web.Request, upload: Upload) -> None:
        self.fields: dict[str, str] = {}
        self.filename = ""
        self._has_file = False
        self._request = request
        self._upload = upload
        self._seconds = request.app[SERVICES].config.body_timeout_ms / 1e3
        self._began = asyncio.get_running_loop().time()

    async def read(self) -> None:
        """Raises InvalidRequestError, BodyTooLargeError, BodyTimeoutError, StorageFullError."""
        try:
            stream = FormStream(self._request.content)
            await self._read_parts(MultipartReader(self._request.headers, cast(StreamReader, stream)), stream)
        except _BROKEN as error:
            raise InvalidRequestError(f"The form is malformed: {error}.", code="invalid_form") from None
        except TimeoutError:
            raise BodyTimeoutError(f"Nothing arrived for {self._seconds:g} seconds, or too little.") from None
        if not self._has_file:
            message = "Missing required parameter: 'file', a part with a filename."
            raise InvalidRequestError(message, param="file", code="missing_parameter")

    async def _read_parts(self, form: MultipartReader, stream: FormStream) -> None:
        for _ in range(_MAX_FIELDS):
            stream.begin_part()
            async with asyncio.timeout(self._seconds):
                part = await form.next()
            if part is None:
                return
            if not isinstance(part, BodyPartReader) or part.name is None:
                raise InvalidRequestError("A part of the form has no name.", code="invalid_form")
            _check_text(part.name)
            if part.name == "file":
                await self._read_file(part)
            else:
                self.fields[part.name] = await self._read_field(part)
        raise InvalidRequestError(f"The form has more than {_MAX_FIELDS} parts.", code="invalid_form")

    async def _read_file(self, part: BodyPartReader) -> None:
        if self._has_file:
            raise InvalidRequestError("The form has more than one file.", param="file")
        self._has_file = True
        _check_text(part.filename or "")
        self.filename = (part.filename or "upload").replace("\0", "")[:_MAX_FILENAME]
        while piece := await self._piece(part):
            await self._upload.write(piece)
            _check_size(self._request, self._upload.num_bytes, self.fields.get("purpose"))
            await self._request.app[SERVICES].upload_pace.take(len(piece))

    async def _read_field(self, part: BodyPartReader) -> str:
        value = b""
        while piece := await self._piece(part):
            value += piece
            if len(value) > _MAX_FIELD_BYTES:
                raise InvalidRequestError(f"'{part.name}' is too long.", param=part.name)
        return value.decode()

    async def _piece(self, part: BodyPartReader) -> bytes:
        """Raises TimeoutError, also for a client that drips its file."""
        owed = self._seconds + self._upload.num_bytes / _MIN_BYTES_PER_SECOND
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(min(loop.time() + self._seconds, self._began + owed)):
            return await part.read_chunk(_PIECE_BYTES)


def _check_text(name: str) -> None:
    """Raises InvalidRequestError where bytes that are no UTF-8 were sent for a name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("A name in the form is not valid UTF-8.", code="invalid_form") from None


async def list_files(request: web.Request) -> web.Response:
    asked = decode_list_files(request.query)
    found, has_more = await offline_store(request).list_files(
        RequestRecord.of(request).tenant, **msgspec.structs.asdict(asked)
    )
    objects = [_object(record) for record in found]
    ids = (objects[0].id, objects[-1].id) if objects else (None, None)
    return json_response(FileList(objects, has_more, *ids))


async def get_file(request: web.Request) -> web.Response:
    return json_response(_object(await _record(request)))


async def delete_file(request: web.Request) -> web.Response:
    file_id = request.match_info["file"]
    await offline_store(request).delete_file(RequestRecord.of(request).tenant, file_id)
    return json_response(FileDeleted(file_id))


async def file_content(request: web.Request) -> web.StreamResponse:
    """Ranges are aiohttp's matter, but for the refusal of a wrong one."""
    record = await _record(request)
    _check_range(request, record.num_bytes)
    path = offline_store(request).path(record.id)
    if not path.exists():
        raise NotFoundError(f"The content of {record.id} is gone.", param="id")
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(record.filename, safe='')}",
        "X-Content-Type-Options": "nosniff",
    }
    return web.FileResponse(path, headers=headers)


def _check_range(request: web.Request, num_bytes: int) -> None:
    try:
        start = request.http_range.start
    except ValueError:
        start = num_bytes
    if start is not None and start >= max(num_bytes, 1):
        raise RangeError(
            f"The file has {num_bytes} bytes; the range asked for is not among them.",
            headers={"Content-Range": f"bytes */{num_bytes}"},
        )


async def _record(request: web.Request) -> FileRecord:
    return await offline_store(request).file(RequestRecord.of(request).tenant, request.match_info["file"])


def _object(record: FileRecord) -> FileObject:
    return FileObject(
        id=record.id,
        bytes=record.num_bytes,
        created_at=record.created_at,
        expires_at=record.expires_at,
        filename=record.filename,
        purpose=record.purpose,
    )


ROUTES = [
    web.post("/v1/files", create_file),
    web.get("/v1/files", list_files),
    web.get("/v1/files/{file}", get_file),
    web.get("/v1/files/{file}/content", file_content),
    web.delete("/v1/files/{file}", delete_file),
]
