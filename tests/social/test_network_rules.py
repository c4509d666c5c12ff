"""What a network refuses, what it says, and what pages show."""

from __future__ import annotations

from typing import Any

import pytest
from faces import Face, faced, keys_of
from social_helpers import USER, compare, drain, opened, populate, seen

from shardkit import ShardKit, ShardMap
from shardkit.errors import InvalidArgumentError, ParameterMismatchError, ShardCountError
from shardkit.social import BlockResult, FollowResult, MuteResult, TimelineCursor


@pytest.fixture
def network(face: Face) -> Any:
    return opened(face)


def test_a_login_is_taken_once_however_it_is_written(face: Face, network: Any) -> None:
    run = face.run
    first = run(network.create_user("Straße", "A"))
    for same in ("STRASSE", "strasse", "straße"):
        assert run(network.create_user(same, "B")) is None
        assert run(network.get_user_by_login(same)).id == first
    composed = run(network.create_user("caf\u00e9", "C"))
    assert run(network.get_user_by_login("CAFE\u0301")).id == composed
    assert run(network.get_user_by_login("nobody")) is None
    user = run(network.get_user(str(first)))
    assert (user.id, user.login, user.name, user.extras) == (first, "Straße", "A", {})
    for login in ("", " a", "a\n", "x" * 201, "\ud800", 7):
        with pytest.raises(InvalidArgumentError, match="login"):
            run(network.create_user(login, "D"))


def test_extras_come_back_and_override_nothing(face: Face, network: Any) -> None:
    run = face.run
    uid = run(network.create_user("ada", "Ada", city="London", born=1815))
    assert run(network.get_user(uid)).extras == {"city": "London", "born": "1815"}
    status = run(network.post(uid, "Hello", lang="en", stars=4.5))
    assert run(network.get_status(status)).extras == {"lang": "en", "stars": "4.5"}
    with pytest.raises(TypeError, match="'uid'"):  # Python says so itself
        run(network.post(uid, "x", uid=1))
    for name in ("id", "login", "posted"):
        with pytest.raises(InvalidArgumentError, match=f"extra field '{name}'"):
            run(network.post(uid, "x", **{name: "admin"}))
    for name in ("id", "followers", "posts", "signup", ":mode", ""):
        with pytest.raises(InvalidArgumentError, match="extra field"):
            run(network.create_user("eve", "Eve", **{name: "1"}))
    with pytest.raises(InvalidArgumentError, match="extra flag=True"):
        run(network.post(uid, "x", flag=True))
    many = {f"n{n}": n for n in range(101)}
    with pytest.raises(InvalidArgumentError, match="101 extras; give at most 100"):
        run(network.post(uid, "x", **many))
    del many["n100"]
    assert len(run(network.get_status(run(network.post(uid, "x", **many)))).extras) == 100
    assert run(network.get_user(uid)).posts == 2


def test_a_list_s_name_has_one_to_200_characters(face: Face, network: Any) -> None:
    run = face.run
    ada = run(network.create_user("ada", "Ada"))
    for wrong, length in (("", 0), ("x" * 201, 201)):
        with pytest.raises(InvalidArgumentError, match=f"name of {length} characters; give 1 to"):
            run(network.create_list(ada, wrong))
    assert run(network.lists(ada)) == []
    names = ["x", "é" * 200]
    for name in names:
        run(network.create_list(ada, name))
    assert [each.name for each in run(network.lists(ada))] == names


def test_an_unknown_user_does_nothing_and_takes_no_id(
    face: Face, network: Any, kit: ShardKit
) -> None:
    run = face.run
    uid = run(network.create_user("ada", "Ada"))
    before = keys_of(kit, "many")
    unknown = uid + 4 * 1000
    assert run(network.post(unknown, "x")) is None
    assert run(network.follow(uid, unknown)) is FollowResult.NO_SUCH_USER
    assert run(network.follow(unknown, uid)) is FollowResult.NO_SUCH_USER
    assert run(network.unfollow(unknown, uid)) is False
    assert run(network.block(uid, unknown)) is BlockResult.NO_SUCH_USER
    assert run(network.mute(uid, unknown)) is MuteResult.NO_SUCH_USER
    assert run(network.create_list(unknown, "l")) is None
    assert run(network.delete_status(unknown, 7)) is False
    assert run(network.get_user(unknown)) is None
    assert run(network.home(unknown)) == []
    assert run(network.reconcile(unknown)) is None
    assert keys_of(kit, "many") == before
    assert run(network.post(uid, "x")) == uid + 4


def test_nobody_follows_himself_and_ids_are_ids(face: Face, network: Any) -> None:
    run = face.run
    uid = run(network.create_user("ada", "Ada"))
    for call in (network.follow, network.block, network.mute):
        with pytest.raises(InvalidArgumentError, match="itself"):
            run(call(uid, str(uid)))
    for call in (network.unfollow, network.unblock, network.unmute):
        assert run(call(uid, str(uid))) is False
    wrong_jobs: list[tuple[Any, ...]] = [(), ("mark", 1), ("mark", 1, 2, 3, 4, 5, 6, 7)]
    for job in wrong_jobs:
        with pytest.raises(InvalidArgumentError, match="give the fields that its task has"):
            run(network.resume_fan_out(*job))
    for wrong in (0, -1, 2**53, "ada", "", True, None, 1.5):
        with pytest.raises(InvalidArgumentError, match="uid="):
            run(network.post(wrong, "x"))
    for timeline in (network.home, network.profile, network.list_timeline):
        for page, limit in ((0, 30), (-1, 30), (1, 0), (1, 1001), (1000, 30), (True, 1)):
            with pytest.raises(InvalidArgumentError, match="give an integer, 1 to"):
                run(timeline(uid, page, limit))
        with pytest.raises(InvalidArgumentError, match="cursor"):
            run(timeline(uid, 2, cursor=TimelineCursor(1, 1)))


def test_an_account_follows_and_mutes_no_more_than_its_limit(face: Face) -> None:
    network = opened(face, following_limit=2)
    model = populate(face, network, users=4, lists=1)
    run, (ada, *others) = face.run, model.users
    for follow, first in ((network.follow, ada), (network.follow_into_list, model.lists[0])):
        followed = [run(follow(first, uid)) for uid in (*others, others[0])]
        assert followed[:2] == [FollowResult.FOLLOWED] * 2
        assert followed[2:] == [FollowResult.LIMIT_REACHED, FollowResult.ALREADY_FOLLOWING]
    assert run(network.unfollow(ada, others[0])) is True
    assert run(network.follow(ada, others[2])) is FollowResult.FOLLOWED
    muted = [run(network.mute(ada, uid)) for uid in (*others, others[0])]
    assert muted[:2] == [MuteResult.MUTED] * 2
    assert muted[2:] == [MuteResult.LIMIT_REACHED, MuteResult.ALREADY_MUTED]
    assert [run(network.create_list(ada, "l")) is None for _ in range(2)] == [False, True]


def test_other_parameters_are_refused(face: Face, network: Any) -> None:
    face.run(network.create_user("ada", "Ada"))
    with pytest.raises(ParameterMismatchError, match="parts is '4', not '8'"):
        face.run(opened(face, parts=8).get_user(7))
    with pytest.raises(ShardCountError, match="this call says 4: it would look up keys on"):
        face.run(opened(face, name="other", relation_parts=4).following(7))
    for wrong, said in (
        ({"fan_out_limit": 3}, "fan_out_limit=3; give 5 or more"),
        ({"fan_out_limit": -1}, "social: fan_out_limit=-1; give an integer"),
        ({"home_limit": 0}, "home_limit=0; give an integer"),
        ({"name": "a{b}"}, "of a network; leave out { and }"),
        ({"home_limit": 9, "profile_limit": 8}, "profile_limit=8; give an integer, 9 to"),
        ({"pass_size": 0}, "pass_size=0; give an integer"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            opened(face, **wrong)


PAIRS = "block blocks delete_status follow follow_into_list follows mute unblock unfollow unmute"
SINGLES = "followers following get_list get_status get_user home list_timeline lists profile"
CALLS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys([*PAIRS.split(), "unfollow_from_list"], (1, 2)),
    **dict.fromkeys([*SINGLES.split(), "reconcile", "reconcile_list"], (1,)),
    **dict.fromkeys(("get_statuses", "get_users"), ([1],)),
    **dict.fromkeys(("open", "pending", "rebuild", "repair"), ()),
    "backfill": ("user", 1),
    "create_list": (1, "list"),
    "create_user": ("ada", "Ada"),
    "get_user_by_login": ("ada",),
    "post": (1, "x"),
}


def test_every_method_compares_the_parameters(face: Face, network: Any) -> None:
    face.run(network.create_user("ada", "Ada"))
    for name, args in CALLS.items():
        with pytest.raises(ParameterMismatchError, match="parts is '4', not '8'"):
            face.run(getattr(opened(face, parts=8), name)(*args))


def test_a_refill_from_more_profiles_than_one_step_reads_goes_on_as_a_task(face: Face) -> None:
    queues = face.kit.queues(component="one")
    network = opened(face, queues=queues, home_limit=100, fan_out_limit=0)
    run, users = face.run, populate(face, network, users=72, lists=0).users
    for uid in users[1:]:
        run(network.follow(users[0], uid))
    posts = [run(network.post(uid, "x")) for uid in users[1:]]
    drain(face, queues, network)
    assert run(network.unfollow(users[0], users[1])) is True
    assert run(queues.length("social")) == 1
    drain(face, queues, network)
    home = run(network.home(users[0], limit=100))
    assert [status.id for status in home] == posts[:0:-1]


def test_without_a_queue_a_refill_from_many_profiles_is_done_in_the_call(face: Face) -> None:
    network = opened(face, "one", fan_out_limit=0, home_limit=100)
    run, users = face.run, populate(face, network, users=72, lists=0).users
    for uid in users[1:]:
        run(network.follow(users[0], uid))
    posts = [run(network.post(uid, "x")) for uid in users[1:]]
    home = network.layout.timeline(USER, users[0])
    run(face.kit.driver.run(_at(network, home, "DEL")))
    run(network.backfill("user", users[0]))
    assert [each.id for each in run(network.home(users[0], limit=100))] == posts[::-1]


def test_pages_are_full_and_complete_while_posts_come_and_go(face: Face, network: Any) -> None:
    # the first one's posts are fetched
    run, users = face.run, populate(face, network, users=9, lists=0, followers=range(1, 9)).users
    run(network.follow(users[1], users[2]))
    posts = [run(network.post(users[n % 2 * 2], f"{n}")) for n in range(40)][::-1]
    first = run(network.home(users[1], limit=10))
    assert [status.id for status in first] == posts[:10]
    run(network.post(users[0], "new"))
    for status in posts[3:30:3]:
        run(network.delete_status(users[0] if posts.index(status) % 2 else users[2], status))
    left = [n for n in posts[10:] if n not in posts[3:30:3]]
    second = run(network.home(users[1], limit=10, cursor=first.cursor))
    assert [status.id for status in second] == left[:10]
    third = run(network.home(users[1], limit=100, cursor=second.cursor))
    assert [status.id for status in third] == left[10:]
    assert third.cursor is None


def test_passes_reach_all_when_followers_came_at_the_same_moment(face: Face, kit: ShardKit) -> None:
    """As data is that another program has written: many followers with one score."""
    network = opened(face, fan_out_limit=0, pass_size=2, relation_parts=16)
    run, users = face.run, populate(face, network, users=40, lists=0).users
    layout = network.layout
    for uid in users[1:]:
        part = layout.part(uid, users[0])
        client = kit.client("many", part)
        client.zadd(layout.relation("followers", part, users[0]), {str(uid): 1000.0})
        client.zadd(layout.relation("following", part, uid), {str(users[0]): 1000.0})
    status = run(network.post(users[0], "to all"))
    homes = [run(network.home(uid)) for uid in users[1:]]
    assert [[each.id for each in home] for home in homes] == [[status]] * 39
    found, cursor = [], None
    while True:
        page = run(network.followers(users[0], 7, cursor=cursor))
        found += [relation.id for relation in page]
        cursor = page.cursor
        if cursor is None:
            break
        assert len(page) == 7
    assert sorted(found) == sorted(users[1:])
    assert run(network.reconcile(users[0])).followers == 39
    assert [run(network.reconcile(uid)).following for uid in users[1:]] == [1] * 39
    compare(face, network, seen(face, network, users, []))


def test_a_task_that_is_done_twice_changes_nothing(face: Face) -> None:
    queues = face.kit.queues(component="one")
    network = opened(face, queues=queues, fan_out_limit=0)
    run, users = face.run, populate(face, network, users=20, lists=0, followers=range(1, 20)).users
    run(network.post(users[0], "to all"))
    for task in drain(face, queues, network):
        run(network.callbacks[task.name](*task.args))
    compare(face, network, seen(face, network, users, []))


def test_pages_far_back_look_at_all_before_them(shard_map: ShardMap) -> None:
    """More than one exchange takes."""
    with faced("blocking", shard_map) as face:
        network = opened(face, "one", home_limit=1200)
        ada, alan = populate(face, network, users=2, lists=0).users
        posts = []
        for _ in range(11):
            new = [network.deferred.post(alan, "x") for _ in range(100)]
            posts += face.kit.together(*new)
        network.delete_status(alan, posts[500])
        network.follow(ada, alan)
        newest = [status.id for status in network.profile(alan, limit=1000)]
        newest += [status.id for status in network.profile(alan, 11, 100)]
        assert set(newest) == set(posts) - {posts[500]}
        for page in (1, 4):
            found = [status.id for status in network.home(ada, page, 300)]
            assert found == newest[(page - 1) * 300 : page * 300]


def test_a_lower_limit_trims_long_timelines_in_several_posts(face: Face, kit: ShardKit) -> None:
    """Trimming many of them at once would hold the server for a second."""
    network = opened(face, "one", home_limit=10)
    ada, alan = (face.run(network.create_user(login, login)) for login in ("ada", "alan"))
    assert face.run(network.follow(ada, alan))
    face.run(network.post(alan, "0"))
    [key] = [key for key in keys_of(kit, "one") if key.startswith("home:")]
    kit.client("one").zadd(key, {str(n): n for n in range(1000, 31_000)})
    counts = []
    for text in ("a", "b", "c"):
        face.run(network.post(alan, text))
        counts.append(kit.client("one").zcard(key))
    assert counts == [10_002, 10, 11]
    assert [status.message for status in face.run(network.home(ada, limit=3))] == ["c", "b", "a"]


def test_a_mark_that_came_late_is_removed_by_reconcile(face: Face) -> None:
    network = opened(face)
    run, users = face.run, populate(face, network, users=9, lists=0, followers=range(1, 9)).users
    for uid in users[3:]:
        run(network.unfollow(uid, users[0]))
    status = run(network.post(users[0], "pushed again"))
    layout = network.layout
    key = layout.pulled(users[1])
    link = face.kit.driver.link
    run(link.send([layout.at_timeline(key, "ZADD", key, 1, users[0])]))
    assert [each.id for each in run(network.home(users[1]))] == [status]
    run(network.reconcile(users[1]))
    assert run(link.send([layout.at_timeline(key, "EXISTS", key)])) == [0]
    assert [each.id for each in run(network.home(users[1]))] == [status]


def _at(network: Any, key: str, name: str, *args: int) -> Any:
    yield [network.layout.at_timeline(key, name, key, *args)]


def test_a_result_is_true_if_the_call_changed_something() -> None:
    assert [result for result in FollowResult if result] == [FollowResult.FOLLOWED]
    assert [result for result in BlockResult if result] == [BlockResult.BLOCKED]
    assert [result for result in MuteResult if result] == [MuteResult.MUTED]
