"""What a batch stores, counted; a webhook's receiver; errors of old batches cut to what is shown today."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

# As they were when this was written: a migration does not change with the code.
_RECORD_BYTES, _ROW_BYTES, _CUSTOM_ID_TIMES = 12_288, 2560, 13
_MAX_ERRORS, _MAX_CHARACTERS, _MAX_BYTES = 100, 500, 32_768


def upgrade() -> None:
    op.add_column("batches", sa.Column("stored_bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("webhooks", sa.Column("receiver", sa.Text(), nullable=False, server_default=""))
    connection = op.get_bind()
    _cut_errors(connection)
    _count_bytes(connection)
    for sequence, url in connection.execute(sa.text("SELECT sequence, url FROM webhooks")).all():
        receiver = urlsplit(url).netloc.lower()
        connection.execute(
            sa.text("UPDATE webhooks SET receiver = :receiver WHERE sequence = :sequence"),
            {"receiver": receiver, "sequence": sequence},
        )


def _cut_errors(connection: sa.Connection) -> None:
    query = sa.text("SELECT sequence FROM batches WHERE length(errors) > :most")
    for sequence in connection.scalars(query, {"most": _MAX_BYTES}).all():
        found = sa.text("SELECT errors FROM batches WHERE sequence = :sequence")
        errors = connection.scalar(found, {"sequence": sequence})
        connection.execute(
            sa.text("UPDATE batches SET errors = :errors WHERE sequence = :sequence"),
            {"errors": _cut(msgspec.json.decode(errors)), "sequence": sequence},
        )


def _cut(errors: list[dict[str, Any]]) -> str:
    shown: list[dict[str, Any]] = []
    num_bytes = 0
    for error in errors[:_MAX_ERRORS]:
        short = {name: text[:_MAX_CHARACTERS] if isinstance(text, str) else text for name, text in error.items()}
        num_bytes += len(msgspec.json.encode(short))
        if num_bytes > _MAX_BYTES:
            break
        shown.append(short)
    message = f"{len(errors) - len(shown)} more lines have errors: the batch's error file names all of them."
    more = {"code": "more_errors", "message": message, "param": None, "line": None}
    return msgspec.json.encode([*shown, more]).decode()


def _count_bytes(connection: sa.Connection) -> None:
    connection.execute(
        sa.text(
            "UPDATE batches SET stored_bytes = :record + coalesce(length(metadata), 0) + coalesce(length(errors), 0)"
            " + coalesce((SELECT sum(:row + :times * coalesce(length(custom_id), 0)) FROM rows"
            " WHERE rows.batch_sequence = batches.sequence), 0)"
            " + coalesce((SELECT sum(2 * length(line)) FROM results"
            " WHERE results.batch_sequence = batches.sequence), 0)"
        ),
        {"record": _RECORD_BYTES, "row": _ROW_BYTES, "times": _CUSTOM_ID_TIMES},
    )
