"""The tables. A change here needs a migration; a test compares the two."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)

metadata = MetaData()

_Sequence = BigInteger().with_variant(Integer, "sqlite")  # only an INTEGER key counts up by itself in SQLite

store = Table(
    "store",
    metadata,
    Column("id", String(64), primary_key=True),  # also in the data directory: the two belong together
)

files = Table(
    "files",
    metadata,
    Column("sequence", _Sequence, primary_key=True),  # order of creation, for cursors
    Column("id", String(64), nullable=False, unique=True),
    Column("tenant", String(64), nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("filename", Text, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Index("files_by_tenant", "tenant", "sequence"),
    Index("files_by_expiry", "expires_at"),
    sqlite_autoincrement=True,
)

batches = Table(
    "batches",
    metadata,
    Column("sequence", _Sequence, primary_key=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("tenant", String(64), nullable=False),
    Column("endpoint", String(64), nullable=False),
    Column("input_file_id", String(64), nullable=False),
    Column("completion_window", String(32), nullable=False),
    Column("window_seconds", BigInteger, nullable=False),
    Column("status", String(16), nullable=False),
    Column("outcome", String(16)),  # set when finalisation begins: the status that it ends in
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("in_progress_at", BigInteger),
    Column("finalizing_at", BigInteger),
    Column("completed_at", BigInteger),
    Column("failed_at", BigInteger),
    Column("expired_at", BigInteger),
    Column("cancelling_at", BigInteger),
    Column("cancelled_at", BigInteger),
    Column("metadata", Text),  # JSON
    Column("errors", Text),  # JSON
    Column("num_rows", Integer, nullable=False, default=0),
    Column("num_completed", Integer, nullable=False, default=0),
    Column("num_failed", Integer, nullable=False, default=0),
    Column("input_tokens", BigInteger, nullable=False, default=0),
    Column("cached_tokens", BigInteger, nullable=False, default=0),
    Column("output_tokens", BigInteger, nullable=False, default=0),
    Column("model", Text),
    Column("output_file_id", String(64)),  # chosen when finalisation begins, so that a repeated one writes the same
    Column("error_file_id", String(64)),
    Column("output_expires_after", BigInteger),
    Column("stored_bytes", BigInteger, nullable=False, server_default="0"),  # accounts.py says what counts
    Column("has_rows", Boolean, nullable=False, default=True),  # False: ended, and its rows were dropped
    Index("batches_by_tenant", "tenant", "sequence"),
    Index("batches_by_status", "status"),
    Index("batches_by_input_file", "input_file_id"),
    sqlite_autoincrement=True,
)

rows = Table(
    "rows",
    metadata,
    Column("batch_sequence", BigInteger, ForeignKey("batches.sequence"), primary_key=True),
    Column("row_index", Integer, primary_key=True),
    Column("custom_id", Text),
    Column("body_offset", BigInteger, nullable=False),  # of the request's body in the input file
    Column("body_length", Integer, nullable=False),
    Column("state", SmallInteger, nullable=False),  # RowState
    sqlite_with_rowid=False,
)

results = Table(
    "results",
    metadata,
    Column("sequence", _Sequence, primary_key=True),  # the order in which rows finished
    Column("batch_sequence", BigInteger, ForeignKey("batches.sequence"), nullable=False),
    Column("row_index", Integer, nullable=False),
    Column("is_error", Boolean, nullable=False),
    Column("line", LargeBinary, nullable=False),
    Index("results_by_row", "batch_sequence", "row_index", unique=True),
    Index("results_by_landing", "batch_sequence", "sequence"),
    sqlite_autoincrement=True,
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("sequence", _Sequence, primary_key=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("tenant", String(64), nullable=False),
    Column("url", Text, nullable=False),
    Column("receiver", Text, nullable=False, server_default=""),  # host and port of the URL
    Column("is_trusted", Boolean, nullable=False),  # the operator named it
    Column("body", LargeBinary, nullable=False),
    Column("num_attempts", Integer, nullable=False),
    Column("due_at", BigInteger, nullable=False),  # when to try next
    Index("webhooks_by_time", "due_at"),
    sqlite_autoincrement=True,
)

runners = Table(
    "runners",
    metadata,
    Column("sequence", _Sequence, primary_key=True),  # never given twice: a gateway that was given up comes as another
    Column("name", Text, nullable=False),  # for the log
    Column("expires_at", Double, nullable=False),  # Unix seconds on the database's clock
    sqlite_autoincrement=True,
)

leases = Table(
    "leases",
    metadata,
    Column("batch_sequence", BigInteger, ForeignKey("batches.sequence", ondelete="CASCADE"), primary_key=True),
    Column("row_index", Integer, primary_key=True),  # leases.WHOLE: the batch itself
    Column("runner", BigInteger, ForeignKey("runners.sequence", ondelete="CASCADE"), nullable=False),
    Index("leases_by_runner", "runner"),
    sqlite_with_rowid=False,
)
