"""Finds the commands that clients use and a user may not run."""

from __future__ import annotations

import re
import secrets
from typing import Any

from redis.exceptions import ResponseError


def missing_rights(client: Any) -> list[str]:
    """Return the commands that clients use and this user may not run. Changes nothing."""
    key = f"shardkit:preflight:{secrets.token_hex(8)}"  # none of these commands creates it
    pipe = client.pipeline(transaction=False)
    for words in (
        ("GET", key),
        ("SET", key, "1", "XX"),
        ("DEL", key),
        ("SREM", key, "1"),
        ("ZADD", key, "XX", "1", "1"),
        ("HDEL", key, "1"),
        ("LPUSHX", key, "1"),
        ("EVAL", "return 1", "0"),
        ("SCRIPT", "EXISTS", "0" * 40),
    ):
        pipe.execute_command(*words)
    missing = []
    for answer in pipe.execute(raise_on_error=False):
        match = re.search(r"permissions to run the '(\S+)'", str(answer))
        if isinstance(answer, ResponseError) and match:
            missing.append(match[1].upper().replace("|", " "))
    return missing
