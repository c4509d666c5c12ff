"""What a cached function and its invalidations are called with, if that is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from faces import Face

from shardkit import InvalidArgumentError
from shardkit.errors import InvalidKeyError


def cached(face: Face, **options: Any) -> Any:
    """A function on a face, whose key does not name all of its arguments."""
    decorate = face.kit.cached("many", ttl=60, key="k:{name}", **options)
    if face.runner is None:
        return decorate(lambda name, other=None: name)

    async def function(name: Any, other: Any = None) -> Any:
        return name

    return decorate(function)


def test_a_tag_that_is_no_text_is_refused_by_name(face: Face) -> None:
    for invalidate in (
        cached(face).invalidate_tag,
        face.kit.cached("many", ttl=1, key="").invalidate_tag,
    ):
        with pytest.raises(InvalidArgumentError, match=r"invalidate_tag: tag 5; give a text"):
            face.run(invalidate("t", 5))


@pytest.mark.parametrize("near", [0, 10_000])
def test_a_key_that_is_no_utf_8_is_refused_by_name(face: Face, near: int) -> None:
    load = cached(face, near=near)
    assert face.run(load("a")) == "a"  # so its entries have been read
    for call in (load, load.refresh, load.invalidate):
        with pytest.raises((InvalidArgumentError, InvalidKeyError), match="udc80"):
            face.run(call("\udc80"))
