"""Write shardkit/routing/command_keys.json from what servers say of their own commands.

::

    valkey-server --port 7001 & redis-server --port 7002 &
    python tools/command_keys.py redis://127.0.0.1:7001 redis://127.0.0.1:7002

Each server is asked for COMMAND; its key specifications become the rules that
shardkit/routing/command_keys.py explains. The commands of all servers are united: where two
differ in the least number of words, the smaller counts; where they differ in the keys, this stops
and says so. What they flag as ``readonly`` may go to replicas, except what is listed below. What a
server cannot describe, or none of those at hand has, is written below.

With ``--check`` nothing is written; the exit code says whether the file is up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import redis

Commands: TypeAlias = dict[str, tuple[int, str]]

TARGET = Path(__file__).parent.parent / "shardkit" / "routing" / "command_keys.json"

INSTEAD = {
    "GEORADIUS": "1 store:6",
    "GEORADIUSBYMEMBER": "1 store:5",
    "MIGRATE": "migrate",
    "SORT": "1 store:2",
    "SORT_RO": "1",
    "SPUBLISH": "1",  # the channel is no key, but its shard is where the subscribers are
    "XREAD": "streams",
    "XREADGROUP": "streams",
}
"""Rules for commands that key specifications describe incompletely, or for other purposes."""

SCRIPTS = {"EVAL", "EVALSHA", "EVALSHA_RO", "EVAL_RO", "FCALL", "FCALL_RO"}
"""Commands that may be sent with no keys, although they say how many."""

MORE: dict[str, dict[int, str]] = {
    # Redis 8, as far as Valkey has no command of that name
    "": {
        2: "BACKUP|ABORT BACKUP|CLEANUP BACKUP|HELP BACKUP|LIST BACKUP|SEAL BACKUP|START "
        "BACKUP|STATUS CLUSTER|MIGRATION HIMPORT|DISCARDALL HOTKEYS|GET HOTKEYS|RESET "
        "HOTKEYS|START HOTKEYS|STOP",
        3: "CLUSTER|SLOT-STATS HIMPORT|DISCARD",
        4: "HIMPORT|PREPARE",
    },
    "1": {
        2: "ARCOUNT ARINFO ARLEN ARNEXT DELEX DIGEST INCREX XCFGSET",
        3: "ARDEL ARGET ARLASTITEMS ARMGET ARSEEK",
        4: "ARDELRANGE ARGETRANGE ARINSERT ARMSET ARRING ARSCAN ARSET XDELEX",
        5: "ARGREP AROP",
        6: "XACKDEL XNACK",
    },
    "1 2": {5: "LMOVEM", 6: "BLMOVEM"},
    "2": {
        3: "DEBUG|HTSTATS-KEY DEBUG|LISTPACK DEBUG|OBJECT DEBUG|QUICKLIST DEBUG|SDSLEN "
        "DEBUG|ZIPLIST JSON.DEBUG|MEMORY",
        5: "HIMPORT|SET",
    },
    "2:-1": {3: "DEBUG|DIGEST-VALUE"},
    "#1": {3: "SDIFFCARD SUNIONCARD"},
    # before Redis 7
    "stralgo": {5: "STRALGO"},
}
MODULES: dict[str, dict[int, str]] = {
    "": {
        1: "FT._LIST",
        2: "FT.ALIASDEL FT.ALIASLIST FT.DICTDUMP FT.DROP FT.DROPINDEX FT.INFO FT.SYNDUMP "
        "JSON.DEBUG SENTINEL TS.QUERYINDEX TS.QUERYLABELS",
        3: "FT.ADDHASH FT.AGGREGATE FT.ALIASADD FT.ALIASUPDATE FT.CONFIG FT.CREATE FT.DEL "
        "FT.DICTADD FT.DICTDEL FT.EXPLAIN FT.EXPLAINCLI FT.GET FT.MGET FT.SEARCH FT.SPELLCHECK "
        "FT.TAGVALS TS.MGET",
        4: "FT.ADD FT.ALTER FT.CURSOR FT.HYBRID FT.PROFILE FT.SYNUPDATE TS.MRANGE TS.MREVRANGE",
    },
    "1": {
        2: "BF.CARD BF.INFO CF.COMPACT CF.INFO CMS.INFO FT.SUGLEN JSON.ARRLEN JSON.ARRPOP "
        "JSON.CLEAR JSON.DEL JSON.FORGET JSON.GET JSON.OBJKEYS JSON.OBJLEN JSON.RESP JSON.STRLEN "
        "JSON.TOGGLE JSON.TYPE TDIGEST.CREATE TDIGEST.INFO TDIGEST.MAX TDIGEST.MIN TDIGEST.RESET "
        "TOPK.INFO TOPK.LIST TS.ALTER TS.CREATE TS.GET TS.INFO VCARD VDIM VINFO VRANDMEMBER",
        3: "BF.ADD BF.EXISTS BF.INSERT BF.MADD BF.MEXISTS BF.RESERVE BF.SCANDUMP CF.ADD CF.ADDNX "
        "CF.COUNT CF.DEL CF.EXISTS CF.INSERT CF.INSERTNX CF.MEXISTS CF.RESERVE CF.SCANDUMP "
        "CMS.QUERY FT.SUGDEL FT.SUGGET JSON.ARRAPPEND JSON.NUMINCRBY JSON.NUMMULTBY "
        "JSON.NUMPOWBY JSON.STRAPPEND TDIGEST.ADD TDIGEST.BYRANK TDIGEST.BYREVRANK TDIGEST.CDF "
        "TDIGEST.QUANTILE TDIGEST.RANK TDIGEST.REVRANK TOPK.ADD TOPK.COUNT TOPK.QUERY "
        "TOPK.RESERVE TS.DECRBY TS.INCRBY TS.READ VEMB VGETATTR VISMEMBER VLINKS VREM VSIM",
        4: "BF.LOADCHUNK CF.LOADCHUNK CMS.INCRBY CMS.INITBYDIM CMS.INITBYPROB FT.SUGADD "
        "JSON.ARRINDEX JSON.ARRINSERT JSON.MERGE JSON.SET TDIGEST.TRIMMED_MEAN TOPK.INCRBY "
        "TS.ADD TS.DEL TS.RANGE TS.REVRANGE VADD VRANGE VSETATTR",
        5: "JSON.ARRTRIM",
    },
    "1 2": {3: "TS.DELETERULE", 6: "TS.CREATERULE"},
    "1 #2": {4: "CMS.MERGE TDIGEST.MERGE"},
    "1:-2": {3: "JSON.MGET"},
    "1:-1:3": {4: "JSON.MSET TS.MADD"},
    "#1": {5: "TS.NRANGE TS.NREVRANGE"},
}
"""By rule and least number of words: commands of modules, and Sentinel's, which has no keys."""


NOT_ON_REPLICAS = {
    *("SCAN", "HSCAN", "SSCAN", "ZSCAN", "CLUSTERSCAN"),  # a cursor belongs to one server
    "TOUCH",  # it is the master that evicts
    *("EVAL_RO", "EVALSHA_RO", "FCALL_RO"),  # they may scan
    "LOLWUT",
}
"""Commands that only read, and still are the master's."""


class Unclear(Exception):
    """What the servers say cannot be made a rule."""


def main() -> int:
    """Ask the servers, write or check the file, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("url", nargs="+", help="a running server, redis://host:port")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    servers: list[str] = []
    commands: Commands = {}
    reads: set[str] = set()
    try:
        for url in options.url:
            version, reply = ask(url)
            servers.append(version)
            unite(commands, dict(described(reply)), version)
            reads |= reading(reply) - NOT_ON_REPLICAS
        written = {name: entry for rules in (MORE, MODULES) for name, entry in by_hand(rules)}
        unite(commands, written, "what is written by hand")
    except Unclear as error:
        print(f"command_keys: {error}", file=sys.stderr)
        return 2
    text = as_json(servers, commands, reads)
    if options.check:
        return 0 if TARGET.exists() and TARGET.read_text("utf-8") == text else 1
    TARGET.write_text(text, "utf-8")
    print(f"{len(commands)} commands of {', '.join(servers)} in {TARGET.name}")
    return 0


def ask(url: str) -> tuple[str, list[Any]]:
    """Return a server's name and version, and its reply to COMMAND as it came."""
    with redis.Redis.from_url(url, protocol=2) as client:
        info: dict[str, Any] = client.info("server")
        pool = client.connection_pool
        connection = pool.get_connection()
        connection.send_command("COMMAND")
        reply = connection.read_response()
        pool.release(connection)
    version = info.get("valkey_version")
    return f"valkey {version}" if version else f"redis {info['redis_version']}", reply


def described(reply: list[Any]) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield each command's name, and its least number of words and rule."""
    for entry in reply:
        name, arity, specs, parts = entry[0].decode().upper(), entry[1], entry[8], entry[9]
        if not parts or arity == -1:  # COMMAND is a command also without a sub-command
            yield name, (abs(arity), rule_of(name, specs))
        for part in parts:
            name = part[0].decode().upper().replace("|", " ")
            yield name, (abs(part[1]), rule_of(name, part[8]))


def reading(reply: list[Any]) -> set[str]:
    """Return the commands that only read."""
    found = set()
    for entry in reply:
        for each in (entry, *entry[9]):
            if b"readonly" in each[2]:
                found.add(each[0].decode().upper().replace("|", " "))
    return found


def rule_of(name: str, specs: list[Any]) -> str:
    """Turn the key specifications of a command into a rule."""
    if name in INSTEAD:
        return INSTEAD[name]
    parts: list[str] = []
    for spec in map(as_dict, specs):
        flags = {flag.decode().lower() for flag in spec["flags"]}
        if "not_key" in flags:
            continue
        begin, find = as_dict(spec["begin_search"]), as_dict(spec["find_keys"])
        if "incomplete" in flags or begin["type"] != b"index":
            raise Unclear(f"{name} is described incompletely; write a rule into INSTEAD")
        start = as_dict(begin["spec"])["index"]
        how = as_dict(find["spec"])
        if find["type"] == b"range" and not how["limit"]:
            parts += span(start, how["lastkey"], how["keystep"])
        elif find["type"] == b"keynum" and how["firstkey"] == how["keynumidx"] + 1:
            step = f":{how['keystep']}" if how["keystep"] > 1 else ""
            may_be_none = "?" if name in SCRIPTS else ""
            parts.append(f"#{start + how['keynumidx']}{may_be_none}{step}")
        else:
            raise Unclear(f"{name} has a key specification of a new kind; write a rule for it")
    return joined(parts)


def span(start: int, last: int, step: int) -> list[str]:
    """A range of keys; ``last`` is as a specification has it, from the start or from the end."""
    if last >= 0:
        return [str(at) for at in range(start, start + last + 1, step)]
    return [f"{start}:{last}" + (f":{step}" if step > 1 else "")]


def joined(parts: list[str]) -> str:
    """Write ``1 2:-1`` as the one range that it is, ``1:-1``."""
    if len(parts) == 2 and parts[0].isdigit() and parts[1].startswith(f"{int(parts[0]) + 1}:-"):
        _, last, *step = parts[1].split(":")
        if not step:
            return f"{parts[0]}:{last}"
    return " ".join(parts)


def by_hand(rules: dict[str, dict[int, str]]) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield the commands written above, as `described` does those of a server."""
    for rule, groups in rules.items():
        for least, names in groups.items():
            for name in names.split():
                yield name.replace("|", " "), (least, rule)


def unite(commands: Commands, more: Commands, source: str) -> None:
    """Add the commands of another source."""
    for name, (least, rule) in more.items():
        if name in commands:
            known, same = commands[name]
            if rule != same:
                raise Unclear(f"{name} has the keys {same!r}, and {rule!r} in {source}")
            least = min(least, known)
        commands[name] = least, rule


def as_dict(pairs: list[Any]) -> dict[str, Any]:
    """A RESP2 map."""
    return {key.decode(): value for key, value in zip(pairs[::2], pairs[1::2], strict=True)}


def as_json(servers: list[str], commands: Commands, reads: set[str]) -> str:
    """Return the file's text: one command a line, so that changes can be read."""
    lines = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(commands.items())
    )
    names = ",\n".join(f"    {json.dumps(name)}" for name in sorted(reads))
    return (
        '{\n  "written by": "tools/command_keys.py",\n'
        f'  "servers": {json.dumps(servers)},\n'
        f'  "commands": {{\n{lines}\n  }},\n'
        f'  "reads": [\n{names}\n  ]\n}}\n'
    )


if __name__ == "__main__":
    sys.exit(main())
