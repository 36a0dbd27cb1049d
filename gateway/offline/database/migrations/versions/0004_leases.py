"""Gateways that share a store, and which rows and batches each of them works on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "runners",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("sequence"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "leases",
        sa.Column("batch_sequence", sa.BigInteger(), nullable=False),
        sa.Column("row_index", sa.Integer(), nullable=False),
        sa.Column("runner", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["batch_sequence"], ["batches.sequence"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["runner"], ["runners.sequence"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("batch_sequence", "row_index"),
        sqlite_with_rowid=False,
    )
    op.create_index("leases_by_runner", "leases", ["runner"], unique=False)
