"""Offline work that survives anything: files, batches and their rows. docs/offline.md tells the whole story.

    store/store.py     OfflineStore, what everybody else uses: async methods, blocking work on threads of its own
    store/records.py   what it takes and returns; BatchStatus
    store/lines.py     lines of output and error files
    store/directory.py the data directory: its lock, and files that are there whole or not at all
    store/files.py, batches.py, rows.py   SQL, one noun each
    store/leases.py    which gateway works on what, where several share a store
    store/finalization.py   results -> output and error file
    database/          SQLite (WAL, synchronous=FULL) or PostgreSQL: its tables, migrations that bring older databases
                       to them (Alembic), the threads where blocking work happens, what its failures mean

For whoever runs rows: `open_batches()`, `pending_rows()`, `finish_rows()`, `finalize()`; `store.changed` is set
whenever a batch has begun, was cancelled or ended.
"""
