"""Checks a network while it is in use: see `shardkit.structures.base.check`.

Users are listed by their logins, part by part; with each user its lists, counters, relations and
timelines are checked. A difference that a note in ``pending`` explains is not damage: ``repair()``
finishes the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from shardkit.errors import DamagedDataError, InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Command
from shardkit.operations.operation import Cursor, Operation, Stream, pages
from shardkit.social.keys import FOLLOWING, LARGEST_ID, LIST, USER, KeyLayout, RelationKind, is_id
from shardkit.social.models import T, list_of, login_key, read_record, user_of
from shardkit.social.relations import PART_FIELDS, counters_of
from shardkit.social.status_cache import Statuses
from shardkit.structures.base.check import (
    KEYS_CHECKED,
    Damage,
    Suspicion,
    Suspicions,
    confirmed,
    contents,
    lengths,
    read_or_note,
    suspected,
)
from shardkit.structures.base.damage import damage, is_whole, stored_integer, whole_or_0

_AT_ONCE = 1000
_RECONCILE = "rebuild() reconciles the account"
_UNUSED = "none is needed: ids continue at unused numbers"


@dataclass(frozen=True)
class NetworkCheck:
    """Checks a network."""

    layout: KeyLayout
    statuses: Statuses
    profile_limit: int

    def all(self) -> Stream[Damage]:
        """Check all parts, and all users and lists."""
        layout = self.layout
        for page in pages(range(layout.parts), KEYS_CHECKED):
            yield from confirmed(self._check_parts, page)
        for page in pages(range(layout.relation_parts), KEYS_CHECKED):
            yield from confirmed(self._check_relation_parts, page)
        for part in range(layout.parts):
            key = layout.of_part("logins", part)
            cursor = Cursor(layout.users, key)
            while (yield from cursor.more()):
                scan = ("HSCAN", key, cursor.at, "COUNT", KEYS_CHECKED)
                [reply] = yield from read_or_note([layout.at_user(key, *scan)], [])
                cursor.at, flat = reply or (b"0", ())
                logins = list(zip(flat[::2], flat[1::2], strict=True))
                yield from confirmed(self._check_logins, part, logins)
                for id_ in self._ids(part, logins):
                    yield from self._check_account(USER, id_)

    def accounts(self, part: int) -> Operation[list[tuple[RelationKind, int]]]:
        """Return a part's users and lists, as far as logins and lists of lists can be read."""
        layout = self.layout
        key = layout.of_part("logins", part)
        [logins] = yield from contents(layout.users, "HASH", [key], [])
        users = list(self._ids(part, logins))
        accounts = [(USER, uid) for uid in users]
        for page in pages(users, KEYS_CHECKED):
            keys = [layout.owned("lists", uid) for uid in page]
            lists = yield from contents(layout.users, "ZSET", keys, [])
            accounts += [(LIST, int(member)) for of in lists for member, _ in of if is_id(member)]
        return accounts

    def _ids(self, part: int, logins: Iterable[tuple[bytes, bytes]]) -> Iterator[int]:
        for _, text in logins:
            if is_id(text) and int(text) % self.layout.parts == part:
                yield int(text)

    # ---- parts

    def _check_parts(self, parts: Sequence[int]) -> Operation[Suspicions]:
        layout, notes = self.layout, Suspicions()
        logins = [layout.of_part("logins", part) for part in parts]
        pending = [layout.of_part("pending", part) for part in parts]
        ids = [layout.of_part("ids", part) for part in parts]
        many = yield from lengths(layout.users, "HASH", logins, notes)
        yield from lengths(layout.users, "ZSET", pending, notes, "delete the key", "its notes")
        counts = yield from read_or_note(
            [layout.at_user(key, "GET", key) for key in ids], notes, _UNUSED
        )
        for key, logins_, count in zip(ids, many, counts, strict=True):
            if count is None and logins_:
                notes.append(Suspicion(damage(layout.users, key, "nothing", "a count"), _UNUSED))
            elif count is not None:
                try:
                    stored_integer(layout.users, key, "count", count, 1, LARGEST_ID)
                except DamagedDataError as error:
                    notes.append(Suspicion(error, _UNUSED))
        return notes

    def _check_relation_parts(self, parts: Sequence[int]) -> Operation[Suspicions]:
        layout, notes = self.layout, Suspicions()
        for part in parts:
            to, key = layout.relations(part), layout.of_relations("pending", part)
            yield from lengths(to, "ZSET", [key], notes, "delete the key", "its notes")
            clock = layout.of_relations("clock", part)
            [time] = yield from read_or_note([Command(to, clock, ("GET", clock))], notes)
            if time is not None and not (time.isdigit() and len(time) < 17):
                error = damage(to, clock, shown(time), "microseconds")
                notes.append(Suspicion(error, "delete the key: the server's time replaces it"))
        return notes

    def _check_logins(
        self, part: int, logins: Sequence[tuple[bytes, bytes]]
    ) -> Operation[Suspicions]:
        layout, notes = self.layout, Suspicions()
        key = layout.of_part("logins", part)
        known = []
        for login, text in logins:
            if is_id(text) and int(text) % layout.parts == part:
                known.append((login, int(text)))
            else:
                actual = f"{shown(login)}={shown(text)}"
                notes.append(Suspicion(damage(layout.users, key, actual, "an id of this part")))
        keys = [layout.owned("user", uid) for _, uid in known]
        users = yield from self._records(keys, user_of, notes)
        for (login, _), user_key in zip(known, keys, strict=True):
            if user_key not in users:
                continue
            user = users[user_key]
            if user is None:
                expected = f"the user with the login {shown(login)}"
                missing = damage(layout.users, user_key, "nothing", expected)
                notes.append(Suspicion(missing, "HDEL the login: the user is gone", "the user"))
            elif not _is_login(layout.name, user.login, login):
                other = f"the login {shown(user.login)}"
                notes.append(Suspicion(damage(layout.users, user_key, other, shown(login))))
        return notes

    def _records(
        self, keys: Sequence[str], parse: Callable[[Sequence[bytes]], T | None], notes: Suspicions
    ) -> Operation[dict[str, T | None]]:
        """Return the records of users or lists by key, and note those that cannot be read."""
        to, at_user, records = self.layout.users, self.layout.at_user, dict[str, T | None]()
        replies = yield from read_or_note([at_user(key, "HGETALL", key) for key in keys], notes)
        for key, flat in zip(keys, replies, strict=True):
            try:
                if flat is not None:  # else it is of another type
                    records[key] = read_record(to, key, parse, flat)
            except DamagedDataError as error:
                notes.append(Suspicion(error, _RECONCILE))
        return records

    # ---- accounts

    def _check_account(self, kind: RelationKind, id_: int) -> Stream[Damage]:
        """Check a user or list: its relations, counters and timelines; of a user also its lists."""
        layout = self.layout
        yield from confirmed(self._check_counters, kind, id_)
        yield from confirmed(self._check_timelines, kind, id_)
        for part in range(layout.relation_parts):
            for name in counters_of(kind):
                yield from confirmed(self._check_mirror, kind, name, part, id_)
        if kind is LIST:
            return
        yield from confirmed(self._check_posts, id_)
        lists = layout.owned("lists", id_)
        notes: Suspicions = []
        [own] = yield from contents(layout.users, "ZSET", [lists], notes)
        if notes or not all(is_id(member) for member, _ in own):
            yield from confirmed(self._check_ids_of_lists, lists)
        for page in pages((int(text) for text, _ in own if is_id(text)), KEYS_CHECKED):
            yield from confirmed(self._check_lists, id_, page)
            for list_id in page:
                yield from self._check_account(LIST, list_id)

    def _check_ids_of_lists(self, key: str) -> Operation[Suspicions]:
        notes: Suspicions = []
        [members] = yield from contents(self.layout.users, "ZSET", [key], notes)
        for strange in [member for member, _ in members if not is_id(member)][:1]:
            notes.append(Suspicion(damage(self.layout.users, key, shown(strange), "ids of lists")))
        return notes

    def _check_lists(self, owner: int, lists: Sequence[int]) -> Operation[Suspicions]:
        layout, notes = self.layout, Suspicions()
        keys = [layout.owned("list", list_id) for list_id in lists]
        for key, stored in (yield from self._records(keys, list_of, notes)).items():
            if stored is None or stored.owner != owner:
                seen = "nothing" if stored is None else f"a list of {stored.owner}"
                notes.append(Suspicion(damage(layout.users, key, seen, f"a list of {owner}")))
        return notes

    def _check_counters(self, kind: RelationKind, id_: int) -> Operation[Suspicions]:
        """Check an account's counters against its relations, unless notes explain a difference."""
        layout, notes = self.layout, Suspicions()
        key, names = layout.owned(kind.account, id_), counters_of(kind)
        places = [(name, part) for name in names for part in range(layout.relation_parts)]
        fields = [f"{PART_FIELDS[name]}{part}" for name, part in places]
        [counted] = yield from read_or_note([layout.at_user(key, "HMGET", key, *fields)], [])
        totals = yield from read_or_note([layout.at_user(key, "HMGET", key, *names)], [])
        if counted is None or totals[0] == [None] * len(names):  # reported where its record is read
            return notes
        reads = []
        for name, part in places:
            relation = layout.relation(name, part, id_)
            reads.append(Command(layout.relations(part), relation, ("ZCARD", relation)))
        sizes = yield from read_or_note(reads, notes, "delete the key", "these relations")
        sums = dict.fromkeys(names, 0)
        for (name, part), field, text, size in zip(places, fields, counted, sizes, strict=True):
            if size is None:
                continue
            sums[name] += size
            count = (text or b"0 0").partition(b" ")[2]
            if count == b"%d" % size:
                continue
            to, pending = layout.relations(part), layout.of_relations("pending", part)
            read = Command(to, pending, ("ZRANGE", pending, 0, -1))
            [texts] = yield from read_or_note([read], [])
            if any(b"%d" % id_ in text.split(b":") for text in texts or ()):
                return notes
            error = damage(layout.users, key, f"{field}={shown(text)}", f"{size} relations")
            notes.append(Suspicion(error, _RECONCILE))
        for name, text in zip(names, totals[0], strict=True):
            if (text or b"0") != b"%d" % sums[name] and not notes:
                error = damage(layout.users, key, f"{name}={shown(text)}", f"{sums[name]}")
                notes.append(Suspicion(error, _RECONCILE))
        return notes

    def _check_mirror(
        self, kind: RelationKind, name: str, part: int, id_: int
    ) -> Operation[Suspicions]:
        """Check that each relation of an account in a part is also at the other account."""
        layout, notes = self.layout, Suspicions()
        to, key = layout.relations(part), layout.relation(name, part, id_)
        [relations] = yield from contents(to, "ZSET", [key], [])
        other = kind.incoming if name == FOLLOWING else FOLLOWING
        for member, version in relations:
            if not is_whole(version):
                entry = f"{shown(member)} at {version:g}"
                notes.append(Suspicion(damage(to, key, entry, "versions")))
                break
        for page in pages((member for member, _ in relations), _AT_ONCE):
            ids = [int(member) for member in page if is_id(member)]
            if len(ids) < len(page):
                strange = next(member for member in page if not is_id(member))
                notes.append(Suspicion(damage(to, key, shown(strange), "ids of accounts")))
            keys = [layout.relation(other, part, other_id) for other_id in ids]
            reads = [Command(to, mirror, ("ZSCORE", mirror, id_)) for mirror in keys]
            versions = yield from read_or_note(reads, [])
            for other_id, mirror, version in zip(ids, keys, versions, strict=True):
                if version is None:
                    error = damage(to, mirror, f"no relation with {id_}", f"the relation in {key}")
                    repair = f"unfollow and follow again: {other_id} and {id_}"
                    notes.append(Suspicion(error, repair))
        return notes

    def _check_timelines(self, kind: RelationKind, id_: int) -> Operation[Suspicions]:
        layout, notes = self.layout, Suspicions()
        keys = [layout.timeline(kind, id_), layout.pulled(id_)]
        all_entries = yield from contents(
            layout.timelines, "ZSET", keys, notes, "delete the key, and reconcile", "the entries"
        )
        for key, entries in zip(keys, all_entries, strict=True):
            for member, score in entries:
                if not is_id(member) or not is_whole(score):
                    entry = f"{shown(member)} at {score:g}"
                    notes.append(Suspicion(damage(layout.timelines, key, entry, "ids and times")))
                    break
        if kind is USER:
            yield from lengths(layout.users, "SET", [layout.owned("muted", id_)], notes)
        return notes

    def _check_posts(self, uid: int) -> Operation[Suspicions]:
        """Check a profile, and the counter of posts against it, unless notes explain it."""
        layout, notes = self.layout, Suspicions()
        user, profile = layout.owned("user", uid), layout.profile(uid)
        pending = layout.near("pending", uid)
        stored = layout.at_user(user, "HMGET", user, "id", "posts", ":trimmed")
        [counts] = yield from read_or_note([stored], [])
        [entries] = yield from contents(layout.timelines, "ZSET", [profile], notes)
        if notes or counts is None or counts[0] is None:
            return notes
        statuses = [int(member) for member, at in entries if is_id(member) and is_whole(at)]
        if len(statuses) < len(entries):
            return [Suspicion(damage(layout.timelines, profile, "members of another kind", "ids"))]
        if (yield from suspected(self.statuses.get(statuses))):  # as posts are read
            for status in statuses:
                notes += yield from suspected(self.statuses.get([status]), "delete the key", "it")
            return notes
        authors = yield from self.statuses.authors(statuses)
        [texts] = yield from read_or_note([layout.at_user(pending, "ZRANGE", pending, 0, -1)], [])
        if any(text.endswith(b":%d" % uid) for text in texts or ()):
            return notes
        for status, author in zip(statuses, authors, strict=True):
            if author not in (uid, None):
                other = f"status {status} of {author}"
                notes.append(Suspicion(damage(layout.timelines, profile, other, f"those of {uid}")))
                break
        posts, total = whole_or_0(counts[1]), authors.count(uid)
        read = (counts[1] or b"0") == b"%d" % posts  # else it was reported with the record
        fits = read and max(posts, len(entries)) < self.profile_limit
        if fits and counts[2] is None and posts != total:
            error = damage(layout.users, user, f"posts={posts}", f"{total}, as in the profile")
            notes.append(Suspicion(error, _RECONCILE))
        return notes


def _is_login(owner: str, login: str, compared: bytes) -> bool:
    try:
        return login_key(owner, login).encode() == compared
    except InvalidArgumentError:
        return False
