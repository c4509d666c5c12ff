# ruff: noqa: E402 - imports need settings
"""Runs Django's own tests of caches and sessions with ours; the map is read from stdin."""

from __future__ import annotations

import os
import sys
import unittest

import django
from django.conf import settings

import shardkit
from shardkit import ShardMap

BACKEND = "shardkit.integrations.django.cache.ShardKitCache"

sys.path.insert(0, os.environ["DJANGO_TESTS"])
shardkit.configure(ShardMap.parse(sys.stdin.read()))
settings.configure(
    CACHES={"default": {"BACKEND": BACKEND, "LOCATION": "few"}},
    SECRET_KEY="only for tests",
    INSTALLED_APPS=[
        "django.contrib.sessions",
        "django.contrib.contenttypes",
        "cache",
        "sessions_tests",
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    ROOT_URLCONF=[],
    ALLOWED_HOSTS=["testserver"],
    USE_TZ=True,
)
django.setup()

from cache.tests import BaseCacheTests, caches_setting_for_tests
from django.core.management import call_command
from django.test import SimpleTestCase, TestCase, override_settings
from sessions_tests.tests import SessionTestsMixin

from shardkit.integrations.django.sessions import SessionStore


@override_settings(CACHES=caches_setting_for_tests(BACKEND=BACKEND, LOCATION="few"))
class Caches(BaseCacheTests, TestCase):
    """As Django's own backend for Redis: culling is the servers' business."""

    incr_decr_type_error = ValueError

    def test_cull(self) -> None:
        self.skipTest("the servers expire and evict")

    test_zero_cull = test_cull
    test_cull_delete_when_store_empty = test_cull


class Sessions(SessionTestsMixin, SimpleTestCase):
    backend = SessionStore


call_command("migrate", verbosity=0, run_syncdb=True)
suite = unittest.TestSuite(
    unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in (Caches, Sessions)
)
result = unittest.TextTestRunner(verbosity=1).run(suite)
sys.exit(not result.wasSuccessful())
