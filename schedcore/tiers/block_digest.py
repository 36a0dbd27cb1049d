"""What a block's bytes are checked by, on disk and between machines."""

from __future__ import annotations

import hashlib

Key = bytes  # 16 bytes: BlockKey of cpp/core/base/block_key.h
KEY_BYTES = DIGEST_BYTES = 16


def block_digest(key: Key, block: memoryview | bytes | bytearray) -> bytes:
    """BLAKE2b over key and bytes: a block under another's key is as wrong as a damaged one."""
    return hashlib.blake2b(block, digest_size=DIGEST_BYTES, key=key).digest()
