"""Messaging on a component that is a cluster: nothing changes for it, waiting included."""

from __future__ import annotations

import io
import json
import threading
import time

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalCluster
from shardkit.messaging import RecordTally, Total


def test_mailboxes_chats_files_and_totals_work_on_a_cluster() -> None:
    with LocalCluster() as cluster:
        components = {"c": {"entry": dict(cluster.entry.fields)}}
        shard_map = ShardMap.parse(json.dumps({"components": components}))
        with shardkit.connect(shard_map) as kit, shardkit.connect(shard_map) as other:
            mail, sender = kit.mailboxes(component="c"), other.mailboxes(component="c")
            for user in ("anna", "ben", "cleo", "dora"):  # on several nodes
                timer = threading.Timer(0.1, sender.send, (user, "root", "hello"))
                timer.start()
                began = time.monotonic()
                [message] = mail.fetch(user, timeout=30)
                assert time.monotonic() - began < 8
                timer.join()
                assert mail.acknowledge(user, [message]) == 1
            sender.send_many([(f"u{n}", "root", n) for n in range(50)])
            assert mail.unread_many([f"u{n}" for n in range(50)]) == [1] * 50

            chats = kit.chats(component="c")
            chat = chats.create("anna", ["ben", "cleo"], "hello")
            assert chat is not None
            assert chats.send(chat, "ben", "hi") == 2
            for user in ("anna", "ben", "cleo"):
                [news] = chats.fetch(user)
                assert chats.acknowledge(chat, user, news.messages[-1])
            assert not list(chats.check(chat))

            files = kit.files(component="c")
            files.create("logs", ["x"], chunk_size=1000)
            content = b"".join(b"line %d\n" % n for n in range(3000))
            files.publish("logs", io.BytesIO(content), name="a")
            file = files.take("logs", "x")
            assert file is not None
            tally = RecordTally(lambda line: line[:6], lambda k: [Total("d", "w", k.decode())])
            tally.add(files.lines(file))
            totals = kit.totals(component="c")
            assert totals.flush("a", tally)
            files.done(file)
            assert files.status("logs").held == 0
            assert sum(count for _, count in totals.all("d", "w")) == 3000
