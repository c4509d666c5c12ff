"""Which keys of a server have changed, for who copies them."""

from __future__ import annotations

import pytest

from shardkit.growth.capture import KeyCapture, turn_on_notifications
from shardkit.growth.servers import GrowthError
from shardkit.local import LocalServer


def test_changes_are_not_taken_for_complete_after_the_connection_was_lost() -> None:
    with LocalServer() as server, server.client() as client:
        turn_on_notifications(client)
        capture = KeyCapture(client, [0])
        try:
            client.set("told", 1)
            capture.wait_until_told()
            assert capture.take() == {(0, b"told"): True}
            client.set("told", 2)
            client.client_kill_filter(_type="pubsub")
            with pytest.raises(GrowthError, match="that tells of changes was lost"):
                capture.wait_until_told()
            with pytest.raises(GrowthError, match="that tells of changes was lost"):
                capture.take()
        finally:
            capture.close()
