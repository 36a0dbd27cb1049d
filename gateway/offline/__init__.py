"""Offline work that survives anything: files, batches and their rows. docs/offline.md tells the whole story.

    store.py          OfflineStore, what everybody else uses: async methods, blocking work on threads of its own
    records.py        what it takes and returns; BatchStatus
    lines.py          lines of output and error files
    schema.py         tables; migrations/ brings older databases to them (Alembic)
    database.py       the connection: SQLite (WAL, synchronous=FULL) or PostgreSQL; what its failures mean
    directory.py      the data directory: its lock, and files that are there whole or not at all
    threads.py        where blocking work happens
    files.py, batches.py, rows.py   SQL, one noun each
    finalization.py   results -> output and error file

For whoever runs rows: `open_batches()`, `pending_rows()`, `finish_rows()`, `finalize()`; `store.changed` is set
whenever a batch has begun, was cancelled or ended.
"""
