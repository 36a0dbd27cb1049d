"""What a tenant stores, byte by byte, against its quota: nothing that reaches the disk for it is free.

    a file          its bytes and FILE_BYTES: input, output and error files alike
    an upload       the same, from its first byte on
    a batch         its record, with metadata and errors, until it is forgotten
    a row           ROW_BYTES and its custom id several times: its record, and an error line if it never runs
    a result        its line twice: in the database, and in the output file that will be written

What a batch will need for its files is taken before they are written, so a batch can always end. Rows of a tenant that
has less than a sixteenth of its quota left do not start: their results may not fit any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection

from gateway.offline.store import batches, files
from gateway.offline.store.records import BatchRecord, CheckedRow, RowResult
from gateway.protocol.errors import QuotaError

FILE_BYTES = 4096  # a file's record, and what its last block leaves unused
RECORD_BYTES = 4096  # of a batch, with its index entries, its webhooks and FREE_ERROR_BYTES
FREE_ERROR_BYTES = 1536  # of a batch's errors: why it failed can always be said
ROW_BYTES = 2560  # its record, and a short error line twice
_CUSTOM_ID_TIMES = 13  # in the row's record; as JSON, where a character may take six, twice in an error line
_FREE_RESULT_BYTES = 1024  # a line that the row's own bytes have room for: that it failed can be said
_TIGHT_SHARE = 16


@dataclass(frozen=True, slots=True)
class Quota:
    """Of one tenant."""

    max_bytes: int
    max_pending_rows: int

    @property
    def tight_bytes(self) -> int:
        """Beyond it nothing begins that will need more."""
        return self.max_bytes - self.max_bytes // _TIGHT_SHARE


def record_bytes(batch: BatchRecord) -> int:
    return RECORD_BYTES + len(msgspec.json.encode(batch.metadata or {})) + error_bytes(batch.errors)


def error_bytes(errors: bytes | None) -> int:
    """Of a batch's errors, beyond what its record has."""
    return max(0, len(errors or b"") - FREE_ERROR_BYTES)


def batch_bytes(batch: BatchRecord) -> int:
    """Of its record, and of the files that it will have."""
    return record_bytes(batch) + 2 * FILE_BYTES


def row_bytes(row: CheckedRow) -> int:
    line = 0 if row.error_line is None else line_bytes(len(row.error_line))
    return ROW_BYTES + _CUSTOM_ID_TIMES * len((row.custom_id or "").encode()) + line


def line_bytes(num_bytes: int) -> int:
    """Of a result's line, beyond what its row has."""
    return 2 * max(0, num_bytes - _FREE_RESULT_BYTES)


class Accounts:
    """Checks are made in the transaction that stores, and there is one at a time: all of it but `begin_upload` and
    `end_upload`, which are the event loop's, belongs to the writer's thread.
    """

    def __init__(self, quota: Quota, *, is_shared: bool = False) -> None:
        """is_shared: other gateways store, too, and nothing is known without a look."""
        self.quota = quota
        self._is_shared = is_shared
        self._uploads: Counter[str] = Counter()  # bytes of open uploads, by tenant
        self._at_most: dict[str, int] = {}  # in the database and in files of a tenant, never less than it is

    def stored(self, connection: Connection, tenant: str) -> int:
        """Bytes, open uploads among them."""
        return self._kept(connection, tenant) + self._uploads[tenant]

    def check(self, connection: Connection, tenant: str, num_bytes: int, limit: int | None = None) -> None:
        """Takes so many more, if the tenant may store them. Raises QuotaError."""
        limit = self.quota.max_bytes if limit is None else limit
        kept = self._kept(connection, tenant)
        stored = kept + self._uploads[tenant]
        self._at_most[tenant] = kept + num_bytes
        if stored + num_bytes > limit:
            more = f", and this would be {num_bytes} more" if num_bytes else ""
            raise QuotaError(
                f"You store {stored} bytes (files, uploads, batches, rows and results){more}; {limit} may be stored. "
                "Delete files that you no longer need. Rows and results leave ten minutes after their batch's end.",
                param="file",
                code="storage_quota_exceeded",
            )

    def check_batch(self, connection: Connection, batch: BatchRecord) -> None:
        """Raises QuotaError."""
        self.check(connection, batch.tenant, batch_bytes(batch), self.quota.tight_bytes)

    def fitting_errors(self, connection: Connection, batch: BatchRecord, errors: bytes | None) -> bytes | None:
        """As many of a batch's errors as the tenant may store; the first one in any case, if it is short."""
        try:
            if more := error_bytes(errors):
                self.check(connection, batch.tenant, more)
        except QuotaError:
            first = msgspec.json.encode(msgspec.json.decode(errors or b"[]")[:1])
            return first if len(first) <= FREE_ERROR_BYTES else b"[]"
        return errors

    def check_rows(self, connection: Connection, tenant: str, rows: Iterable[CheckedRow]) -> None:
        """Raises QuotaError."""
        self.check(connection, tenant, sum(map(row_bytes, rows)))

    def check_results(self, connection: Connection, results: Iterable[RowResult], tenants: dict[str, str]) -> None:
        """tenants: by batch. Cheap as long as there is room. Raises QuotaError."""
        more: Counter[str] = Counter()
        for result in results:
            if result.batch_id in tenants:
                more[tenants[result.batch_id]] += line_bytes(len(result.line))
        for tenant, num_bytes in more.items():
            if num_bytes and not self._surely_has_room(tenant, num_bytes):
                self.check(connection, tenant, num_bytes)

    def add_file(self, connection: Connection, tenant: str, num_bytes: int) -> None:
        """An upload becomes a file: what it took stays taken. Raises QuotaError if uploads to other gateways, of which
        this one did not know, have taken the room meanwhile."""
        if self._is_shared:
            self.check(connection, tenant, 0)
        self._at_most[tenant] = self._kept(connection, tenant) + num_bytes + FILE_BYTES

    def is_short_of_space(self, connection: Connection, tenant: str) -> bool:
        """Whether its rows should wait."""
        kept = self._at_most[tenant] = self._kept(connection, tenant)
        return kept + self._uploads[tenant] > self.quota.tight_bytes

    def cannot_be_counted(self, tenant: str) -> None:
        """What it stores lies on damaged pages: that stops no one's work."""
        self._at_most[tenant] = 0

    def begin_upload(self, tenant: str, num_bytes: int) -> None:
        self._uploads[tenant] += num_bytes

    def end_upload(self, tenant: str, num_bytes: int) -> None:
        self._uploads[tenant] -= num_bytes
        if not self._uploads[tenant]:
            del self._uploads[tenant]

    def _surely_has_room(self, tenant: str, num_bytes: int) -> bool:
        """Without a look at the database; then they are taken."""
        if self._is_shared:
            return False
        at_most = self._at_most.get(tenant, self.quota.max_bytes) + num_bytes
        if at_most + self._uploads[tenant] > self.quota.max_bytes:
            return False
        self._at_most[tenant] = at_most
        return True

    def _kept(self, connection: Connection, tenant: str) -> int:
        """In the database and in files."""
        num_files, num_bytes = files.total(connection, tenant)
        return num_bytes + FILE_BYTES * num_files + batches.stored_bytes(connection, tenant)
