"""A model of ad targeting in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardkit.search import Analyzer

PAID = {"cpc": "clicks", "cpa": "actions"}


@dataclass
class ModelAd:
    """An ad with its counts by word, those of the whole ad under the empty word."""

    locations: set[str]
    words: set[str]
    type: str
    value: float
    ecpm: float
    counts: dict[str, Counter[str]] = field(
        default_factory=lambda: {what: Counter() for what in ("views", "clicks", "actions")}
    )
    bonuses: dict[str, float] = field(default_factory=dict)

    def worth(self, word: str) -> float:
        paid = self.counts[PAID[self.type]][word]
        return 1000 * self.value * paid / max(self.counts["views"][word], 1)

    def estimate(self) -> None:
        paid = self.counts[PAID[self.type]] if self.type in PAID else Counter[str]()
        if paid[""] < 1:
            return
        self.ecpm = self.worth("")
        for word in self.words:
            if paid[word] >= 1:
                self.bonuses[word] = self.worth(word) - self.ecpm

    def score(self, words: set[str]) -> float:
        bonuses = [self.bonuses.get(word, 0.0) for word in self.words & words]
        if not bonuses:
            return self.ecpm
        return self.ecpm + min(bonuses) / 2 + max(bonuses) / 2


class ModelAds:
    """The same operations as `shardkit.ads.ads.Ads`."""

    def __init__(self) -> None:
        self.ads: dict[str, ModelAd] = {}
        self.types: Counter[tuple[str, str]] = Counter()
        self.targets: dict[str, tuple[str, ModelAd, set[str], set[str]]] = {}
        self.terms = Analyzer().terms

    def averages(self) -> dict[str, float]:
        found = {}
        for kind, what in PAID.items():
            views, paid = self.types[kind, "views"], self.types[kind, what]
            found[kind] = 1000 * paid / views if views and paid else 1.0
        return found

    def index(
        self, ad_id: str, locations: Iterable[str], text: str, kind: str, value: float
    ) -> bool:
        ecpm = value
        if kind != "cpm":
            ecpm = 1000 * value * self.averages()[kind] / 1000
        before = self.ads.get(ad_id)
        if before is None:
            self.ads[ad_id] = ModelAd(set(locations), set(self.terms(text)), kind, value, ecpm)
            return True
        before.locations, before.words = set(locations), set(self.terms(text))
        before.type, before.value, before.ecpm = kind, value, ecpm
        before.bonuses = {}
        for counts in before.counts.values():
            for word in counts.keys() - before.words - {""}:
                del counts[word]
        before.estimate()
        return False

    def remove(self, ad_id: str) -> bool:
        return self.ads.pop(ad_id, None) is not None

    def update(self, ad_id: str) -> bool:
        if ad_id in self.ads:
            self.ads[ad_id].estimate()
        return ad_id in self.ads

    def target(self, locations: set[str], text: str, target: str) -> str | None:
        words = set(self.terms(text))
        ranked = sorted(
            (-ad.score(words), ad_id)
            for ad_id, ad in self.ads.items()
            if ad.locations & set(locations)
        )
        if not ranked:
            return None
        ad_id = ranked[0][1]
        ad = self.ads[ad_id]
        matched = ad.words & words
        self._count(ad, "views", matched)
        if ad.counts["views"][""] % 100 == 0:
            ad.estimate()
        self.targets[target] = ad_id, ad, matched, set()
        return ad_id

    def click(self, target: str, *, action: bool) -> bool | None:
        """Return whether it was counted; None if the ad was removed."""
        ad_id, ad, matched, done = self.targets[target]
        what = "actions" if action else "clicks"
        if what in done:
            return False
        if self.ads.get(ad_id) is not ad:
            return None
        done.add(what)
        self._count(ad, what, matched & ad.words)
        ad.estimate()
        return True

    def _count(self, ad: ModelAd, what: str, words: set[str]) -> None:
        ad.counts[what].update(["", *words])
        self.types[ad.type, what] += 1
