from shardkit.structures.encodings.limits import (
    check as check,
    inspect_keys as inspect_keys,
    limits_at as limits_at,
    recommend as recommend,
)
