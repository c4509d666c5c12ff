"""docs/leaving.md: data are found, read and exported without shardkit."""

from __future__ import annotations

import ast
import json
import re
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis
from click.testing import CliRunner

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.cli.app import app
from shardkit.local import LocalServer

PAGE = Path(__file__).parents[2] / "docs" / "leaving.md"
FIELDS = {str(n): f"value {n}" for n in range(500)} | {f"name {n}": f"{n}" for n in range(50)}
FIELDS["007"] = "agent"


def read_all(clients: list[Any], name: str) -> dict[str, str]:
    """Read a hash as the page's table says: HGETALL of each part."""
    found: dict[str, str] = {}
    sizes = [each.hget(f"{name}:meta", "part_size") for each in clients]
    size = next(int(each) for each in sizes if each)
    for client in clients:
        for key in client.scan_iter(f"{name}:*"):
            part = re.fullmatch(rf"{name}:(?:{{.*}}:)?(\d+)", key.decode())
            if part is None:
                continue
            assert client.type(key) == b"hash"
            for field, value in client.hgetall(key).items():
                text = field.decode()
                if text.isdigit() and str(int(text)) == text:
                    text = str(int(part[1]) * size + int(text))
                found[text] = value.decode()
    return found


def test_what_is_stored_is_found_read_and_exported_without_shardkit(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with LocalServer() as config, LocalServer() as a, LocalServer() as b:
        shards = [{"host": "127.0.0.1", "port": each.port, "db": 1} for each in (a, b, a)]
        shards[2]["db"] = 2
        components = {"timelines": {"shards": shards}}
        where = f"redis://{config.address}"
        with config.client() as client:
            push(client, ShardMap.parse(json.dumps({"components": components})))
        with shardkit.connect(where) as kit:
            users = kit.key_sharded("timelines")
            users["home:42"].zadd("home:42", {"7": 1.0})
            planned = kit.hash("planned", component="timelines", total=500)
            planned.hset(mapping=FIELDS)
            growing = kit.hash("growing", component="timelines")
            growing.hset(mapping=FIELDS)
            kit.set("ids", component="timelines", total=500, members=int).sadd(*range(500))
        # Where a key lives
        own: dict[str, Any] = {}
        *statements, last = ast.parse(code.replace("redis://127.0.0.1:7100", where)).body
        exec(compile(ast.Module(statements, []), "leaving.md", "exec"), own)
        assert isinstance(last, ast.Expr)
        shown = eval(compile(ast.Expression(last.value), "leaving.md", "eval"), own)
        assert shown == [b"7"]
        own["config"].close()
        # What is in a key
        clients = [redis.Redis(port=each["port"], db=each["db"]) for each in shards]
        assert read_all(clients, "planned") == FIELDS
        assert read_all(clients, "growing") == FIELDS
        parts = [
            client.smembers(key) for client in clients for key in client.scan_iter("ids:[0-9]*")
        ]
        assert sorted(int(each) for part in parts for each in part) == list(range(500))
        kinds = {client.type(key) for client in clients for key in client.scan_iter("*:meta")}
        assert kinds == {b"hash"}
        # Export
        target = tmp_path / "backup"
        done = CliRunner().invoke(app, ["backup", str(target), "-c", where])
        assert done.exit_code == 0, done.output
        with ExitStack() as stack:
            copies = []
            for n, file in enumerate(sorted(target.glob("server-*.rdb"))):
                folder = tmp_path / f"plain-{n}"
                folder.mkdir()
                shutil.copyfile(file, folder / "dump.rdb")
                plain = stack.enter_context(LocalServer(data_dir=folder))
                copies += [stack.enter_context(plain.client(db=number)) for number in (1, 2)]
            assert read_all(copies, "growing") == FIELDS
            assert read_all(copies, "planned") == FIELDS
        for client in clients:
            client.close()
