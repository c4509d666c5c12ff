"""What a user may not do: one warning for each right and feature; see docs/rights.md."""

from __future__ import annotations

import logging

from shardkit import log_records
from shardkit.operations.server_errors import meaning

logger = logging.getLogger("shardkit")

_told = log_records.Once()


def missing_right(error: Exception, feature: str, address: str, shard: object) -> str:
    """Log that a feature lacks a right, once for each server; return what is missing."""
    known = meaning(error)
    text, remedy = known or (str(error), "see docs/rights.md")
    if _told.first(feature, address, text):
        about = log_records.fields(
            "right-missing", feature=feature, shard=str(shard), server=address, cause=text
        )
        message = "%s (%s): %s lacks details: %s; %s"
        logger.warning(message, shard, address, feature, text, remedy, extra=about)
    return text
