"""A network in plain Python and a real one, driven by the same operations, are the same."""

from __future__ import annotations

import random
import threading
from itertools import permutations
from typing import Any

import pytest
from faces import Face, drawn, faced
from social_helpers import Model, act, compare, drain, opened, populate, seen

from shardkit import ShardMap


@pytest.mark.parametrize("component", ["many", "few", "one"])
def test_a_network_is_as_its_model(face: Face, component: str) -> None:
    network = opened(face, component)
    model = populate(face, network)
    dice = random.Random(component)
    for _ in range(2):
        for _ in range(drawn(25, 60)):
            act(face, network, model, dice)
        compare(face, network, model, pages=component == "many")
        pairs = list(permutations(model.users, 2))
        assert {pair for pair in pairs if face.run(network.blocks(*pair))} == model.blocks


def test_many_threads_leave_what_relations_and_statuses_say(shard_map: ShardMap) -> None:
    with faced("blocking", shard_map) as face:
        network = opened(face)
        model = populate(face, network, users=9)
        errors: list[BaseException] = []

        def work(seed: int) -> None:
            dice = random.Random(seed)
            try:
                for _ in range(drawn(15, 40)):
                    roam(network, model, dice)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        compare(face, network, seen(face, network, model.users, model.lists))


def test_operations_in_lock_step_leave_what_relations_and_statuses_say(face: Face) -> None:
    """All of them take their first exchange together, then their second, and so on."""
    network = opened(face, "few")
    model = populate(face, network, users=9)
    dice, new = random.Random(0), network.deferred
    for _ in range(8):
        operations = []
        for _ in range(20):
            first, second = dice.sample(model.users[:6], 2)
            what = dice.choice([new.follow, new.follow, new.unfollow, new.block, new.unblock])
            operations.append(dice.choice([what(first, second), new.post(second, "")]))
        face.run(face.kit.together(*operations))
    compare(face, network, seen(face, network, model.users, model.lists))


def roam(network: Any, model: Model, dice: random.Random) -> None:
    """Do something at random, whatever it says."""
    first, second = dice.sample(model.users, 2)
    if dice.random() < 0.5:  # much goes on about one account
        second = model.users[0] if first != model.users[0] else model.users[1]
    what = dice.randrange(6)
    if what == 0:
        network.post(second, "")
    elif what == 1:
        for status in network.profile(second, limit=1):
            network.delete_status(second, status.id)
    elif what == 2:
        network.unfollow(first, second)
    elif what == 3:
        change = dice.choice([network.follow_into_list, network.unfollow_from_list])
        change(dice.choice(model.lists), second)
    else:
        network.follow(first, second)


def test_passes_are_tasks_and_the_drained_queue_leaves_the_model(face: Face) -> None:
    queues = face.kit.queues(component="one")
    network = opened(face, queues=queues, pass_size=2)
    model = populate(face, network, users=12)
    dice = random.Random(12)
    for _ in range(drawn(40, 80)):
        act(face, network, model, dice)
    assert face.run(queues.length("social")) > 0
    drain(face, queues, network)
    compare(face, network, model)
