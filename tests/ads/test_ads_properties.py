"""Ads over one part and over many are chosen, counted and estimated as by a model."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from ads_model import ModelAds
from faces import Face, drawn
from hypothesis import HealthCheck, given, settings, strategies as st

from shardkit import ServerClock, ShardKit
from shardkit.ads import Ads
from shardkit.errors import InvalidArgumentError

# Words of texts that are a place's too, that are no words, or that are spelled in several ways.
PLACES = st.lists(st.sampled_from("xyz"), min_size=1, max_size=2, unique=True)
WORDS = st.sampled_from(["red", "Café", "CAFE 東京", "x", "the"])
TEXTS = st.lists(WORDS, max_size=3).map(" ".join)
AD_IDS = st.sampled_from([f"ad {n}" for n in range(12)])
KINDS = st.sampled_from(["cpm", "cpc", "cpa"])
VALUES = st.sampled_from([0, 0.1, 0.25, 1, 3.7])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("index"), AD_IDS, PLACES, TEXTS, KINDS, VALUES),
        st.tuples(st.just("show"), PLACES, TEXTS, st.sampled_from([None, "click", "act", "both"])),
        st.tuples(st.just("show"), PLACES, TEXTS, st.sampled_from(["both", "twice"])),
        st.tuples(st.just("click"), st.integers(0, 20), st.booleans()),
        st.tuples(st.sampled_from(["remove", "update"]), AD_IDS),
    ),
    min_size=5,
    max_size=60,
)


class Both:
    """Ads of several layouts and the model: the same operations must have the same results."""

    def __init__(self, face: Face) -> None:
        numbers = count()
        self.run = face.run
        self.model = ModelAds()
        self.ads: list[Any] = [
            Ads(
                face.kit.driver,
                component,
                f"ads{shards}",
                shards,
                averages_ttl=0,
                clock=ServerClock(new_id=lambda: f"t{next(numbers)}"),
                chunk=8,
            )
            for component, shards in (("one", 1), ("one", 3), ("few", 4))
        ]
        self.shown: list[tuple[list[str], str]] = []

    def index(self, *ad: Any) -> None:
        expected = self.model.index(*ad)
        assert [self.run(ads.index(*ad)) for ads in self.ads] == [expected] * 3

    def remove(self, ad_id: str) -> None:
        expected = self.model.remove(ad_id)
        assert [self.run(ads.remove(ad_id)) for ads in self.ads] == [expected] * 3

    def update(self, ad_id: str) -> None:
        expected = self.model.update(ad_id)
        assert [self.run(ads.update(ad_id)) for ads in self.ads] == [expected] * 3

    def show(self, places: list[str], text: str, then: str | None) -> None:
        served = [self.run(ads.target(places, text)) for ads in self.ads]
        number = len(self.shown)
        expected = self.model.target(set(places), text, str(number))
        assert [one and one.ad for one in served] == [expected] * 3
        if expected is None:
            return
        self.shown.append(([one.target for one in served], expected))
        if then in ("click", "both", "twice"):
            self.click(number, action=False)
        if then in ("act", "both"):
            self.click(number, action=True)
        if then == "twice":
            self.click(number, action=False)

    def click(self, number: int, action: bool) -> None:
        if not self.shown:
            return
        number %= len(self.shown)
        targets, ad_id = self.shown[number]
        expected = self.model.click(str(number), action=action)
        for ads, target in zip(self.ads, targets, strict=True):
            if expected is None:
                with pytest.raises(InvalidArgumentError, match="was removed"):
                    self.run(ads.record_click(target, ad_id, action=action))
            else:
                assert self.run(ads.record_click(target, ad_id, action=action)) is expected

    def weigh(self, text: str) -> None:
        """Show what the best ad is worth on a page, by a rival that is worth a little less or more.

        The rival shares no word with the page.
        """
        words = set(self.model.terms(text))
        best = max(
            ad.score(words)
            for ad_id, ad in self.model.ads.items()
            if "x" in ad.locations and ad_id != "rival"
        )
        for part in (0.99, 1.01):
            self.index("rival", ["x"], "", "cpm", best * part)
            self.show(["x"], text, None)

    def check(self) -> None:
        if any("x" in ad.locations for ad in self.model.ads.values()):
            for text in ("red", "red café", "café x", ""):
                self.weigh(text)
        for ads in self.ads:
            assert self.run(ads.count()) == len(self.model.ads)
            assert self.run(ads.averages()) == self.model.averages()
            for ad_id, ad in self.model.ads.items():
                found = self.run(ads.get(ad_id))
                assert (found.ecpm, found.type, found.value) == (ad.ecpm, ad.type, ad.value)
                assert set(found.locations) == ad.locations
                totals = (found.views, found.clicks, found.actions)
                assert totals == tuple(ad.counts[w][""] for w in ("views", "clicks", "actions"))
                words = {
                    word: (w.views, w.clicks, w.actions, w.bonus) for word, w in found.words.items()
                }
                assert words == {
                    word: (
                        ad.counts["views"][word],
                        ad.counts["clicks"][word],
                        ad.counts["actions"][word],
                        ad.bonuses.get(word, 0.0),
                    )
                    for word in ad.counts["views"]
                    if word
                }


def empty(kit: ShardKit) -> None:
    kit.client("one").flushdb()
    for shard in range(4):
        kit.client("few", shard).flushdb()


@pytest.mark.long(2)
@pytest.mark.parametrize("work", [None, 1])
@settings(max_examples=drawn(3, 8), suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_one_part_and_many_choose_count_and_estimate_as_the_model(
    face: Face,
    kit: ShardKit,
    lower: Any,
    work: int | None,
    steps: list[tuple[Any, ...]],
) -> None:
    if work:
        lower(ads_work=work)
    empty(kit)
    both = Both(face)
    for ad_id, kind in (("ad 1", "cpc"), ("ad 2", "cpa"), ("ad 3", "cpm")):
        both.index(ad_id, ["x", "y"], "red café x", kind, 0.25)
    for name, *arguments in steps:
        getattr(both, name)(*arguments)
    both.check()


@pytest.mark.long(1)
def test_after_hundreds_of_views_too(face: Face) -> None:
    both = Both(face)
    both.index("a", ["x"], "red green", "cpc", 0.5)
    both.index("b", ["x"], "green blue", "cpa", 0.4)
    for n in range(drawn(60, 150)):
        text = ("red", "green blue", "grey", "red blue")[n % 4]
        both.show(["x"], text, (None, "click", None, None, "both")[n % 5] if n < 30 else None)
    both.check()
