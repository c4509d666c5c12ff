# One word per chore. Everything happens in .venv; `make setup` is done by whatever needs it.
PYTHON ?= python3
BIN := .venv/bin

OTHERS := rq celery huey dramatiq saq 'taskiq<0.13' limits python-redis-lock pottery walrus cachelib \
  Flask-Caching Flask-Session django-redis cashews channels_redis aiogram sentry-sdk

.PHONY: events apply audit celery smoke operators secrets browser week walk others originals setup check lua test exhaustive coverage random examples fuzz mutants lowest lowest-quick second-quick systems soak damage golden growth simulate schedules bench docs man dist try-dist demo clean

setup: .venv/ready

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e '.[dev]'
	touch $@

.venv/bin/uv: .venv/ready
	$(BIN)/pip install -q uv
	touch $@

check: setup lua  ## the linters, the formatter and the type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lua:  ## luacheck on every script (Debian's package lua-check)
	$(PYTHON) tools/check_lua.py

# Tests start hundreds of Python processes: each would compile all that it imports.
test smoke exhaustive coverage random examples: export PYTHONDONTWRITEBYTECODE :=
exhaustive coverage random examples: export CASES := all

test: setup  ## the tests, on real servers that they start themselves; some cases of those that take long
	$(BIN)/python -m pytest -n 5

smoke: setup  ## one test of each promise of docs/guarantees.md, in a minute: tests/smoke.txt lists them
	$(BIN)/python -m pytest -q -n 2 @tests/smoke.txt

exhaustive: setup  ## the tests, with all cases
	$(BIN)/python -m pytest -n 5

browser: setup  ## the chat page and the dashboard in Debian's chromium, in several sizes; pictures in build/browser
	mkdir -p build/browser
	BROWSER_SHOTS=$(CURDIR)/build/browser $(BIN)/python -m pytest -q tests/examples/test_chat_page.py tests/dashboard/test_page.py

# It interrupts what measures coverage too, which holds a lock then and hangs: all would be lost.
INTERRUPTS = tests/network/links/test_link_hygiene.py::test_interrupts_leave_no_replies_behind

coverage: setup  ## the tests, and which branches of shardkit/ none of them takes
	$(BIN)/pip install -q -e '.[bench]'  # plots have tests
	$(BIN)/python -m pytest -n 5 --cov --cov-context=test \
	  --cov-report=term-missing:skip-covered \
	  --deselect $(INTERRUPTS)

random: setup  ## the tests three times, each in another order
	for n in 1 2 3; do $(BIN)/python -m pytest -n 5 --random-order || exit 1; done

examples: setup  ## the tests that make up examples, with a thousand where they name no number; EXAMPLES=100 for fewer
	EXAMPLES=$(or $(EXAMPLES),1000) $(BIN)/python -m pytest -n 4 -m hypothesis

secrets: setup  ## secrets planted in 20,000 URLs and 20,000 entries: none is shown; EXAMPLES=1000 for fewer
	EXAMPLES=$(or $(EXAMPLES),20000) $(BIN)/python -m pytest -n 2 --timeout=0 tests/config/test_planted_secrets.py

fuzz: setup  ## random calls while a server kills and refuses, a minute a face: no value strays; SECONDS=600 SEED=7 for others
	FUZZ_SECONDS=$(or $(SECONDS),60) FUZZ_SEED=$(SEED) $(BIN)/python -m pytest -q -n 2 tests/network/connections/test_selects_fuzzed.py

mutants: setup  ## changes of one place each that a test should notice; COUNT=1000 SEED=1 FILES=… for others
	mkdir -p build/mutants
	$(BIN)/python tools/mutants.py . $(or $(FILES),'shardkit/**/*.py' 'shardkit/**/*.lua') \
	  --tests tests --count $(or $(COUNT),1000) --seed $(or $(SEED),1) --budget 60 \
	  --python $(CURDIR)/$(BIN)/python --work build/mutants $(if $(wildcard .coverage),--coverage .coverage)

soak: setup  ## everything under changing entries and closing kits, ten minutes; SECONDS=60 for less
	PYTHONPATH=.:tests $(BIN)/python tools/soak.py $(SECONDS) $(if $(CHANGES),--changes $(CHANGES))

week: setup  ## an operator's week: the runbook of docs/operations.md under load, five minutes
	PYTHONPATH=.:tests/docs $(BIN)/python tools/week.py $(SECONDS)

walk: setup  ## a reader walks the README and the site, page after page, on servers of which one dies
	$(BIN)/python -m pytest -q -x tests/docs/test_pages.py

others: .venv/bin/uv  ## other libraries on our clients, and their own suites; LIBRARIES='rq huey' for some
	$(BIN)/uv venv -q --clear .venv-others
	$(BIN)/uv pip install -q --python .venv-others/bin/python $(OTHERS)
	$(BIN)/uv pip install -q --python .venv-others/bin/python --no-deps taskiq-redis==1.2.2 arq
	$(BIN)/uv pip install -q --python .venv-others/bin/python -e '.[dev]'
	$(BIN)/uv pip install -q --python .venv-others/bin/python pip channels huey aiocache==0.12.3 \
	  aiohttp async_timeout dirty-equals freezegun hiro marshmallow msgpack numpy process-tests psutil \
	  pydantic-settings pymemcache pymongo pytest-asyncio pytest-benchmark pytest-lazy-fixtures pytest-mock \
	  pytest-timeout starlette time-machine valkey 'psycopg[binary,pool]'
	.venv-others/bin/python -m pytest -q tests/other_libraries
	.venv-others/bin/python tests/other_libraries/suites.py build/others $(LIBRARIES)

# Its docstring says what Debian has of them, and which checkouts it needs.
originals: setup  ## other programs write keys for tests/docs/originals, and read ours; JEDIS=… GO_REDIS=… RENDEZVOUS=…
	$(PYTHON) -m venv build/originals
	build/originals/bin/pip install -q django-redis
	build/originals/bin/pip install -q --target build/originals/rb rb 'redis<5'
	npm install --silent --prefix build/originals ioredis
	$(BIN)/python tools/originals build/originals $(JEDIS) $(GO_REDIS) $(RENDEZVOUS)

.venv-lowest: pyproject.toml .venv/bin/uv
	$(BIN)/uv venv -q --clear --python $(BIN)/python .venv-lowest
	$(BIN)/uv pip install -q --python .venv-lowest/bin/python --resolution lowest-direct -e '.[dev]'

# Tests that failed run once more, by themselves, as in .ci/run.
once_more = || $(1)/bin/python -m pytest -q -o cache_dir=$(1)/cache --last-failed --last-failed-no-failures none

lowest-quick: .venv-lowest  ## the same in half a minute: a few tests of each kind
	.venv-lowest/bin/python -m pytest -q -n 2 -o cache_dir=.venv-lowest/cache \
	  tests/routing/test_placement.py tests/kit/test_misuse.py \
	  tests/golden/test_grounds.py tests/network/links/test_link_columns.py \
	  tests/structures/set/test_sharded_set.py tests/structures/unique/test_unique_visitors.py \
	  $(call once_more,.venv-lowest)

lowest: setup .venv-lowest  ## the core's tests with the lowest versions that pyproject.toml allows
	.venv-lowest/bin/python -m pytest -q tests/routing tests/config tests/testing tests/kit \
	  tests/network/links tests/kit tests/structures

SECOND ?= $(lastword $(shell ls /usr/bin/python3.1[2-9] ~/.pyenv/versions/3.1[2-9]*/bin/python3 2> /dev/null | sort -V))

ifeq ($(SECOND),)
.venv-second second-quick:
	@echo "no Python from 3.12 on was found"
else
.venv-second: pyproject.toml .venv/bin/uv
	$(BIN)/uv venv -q --clear --python $(SECOND) .venv-second
	$(BIN)/uv pip install -q --python .venv-second/bin/python -e '.[dev]'

second-quick: .venv-second  ## a few tests of the network and of kits on a second, newer Python, if there is one; SECOND=… for another, after rm -r .venv-second
	.venv-second/bin/python -m pytest -q -n 2 -o cache_dir=.venv-second/cache \
	  tests/kit/test_misuse.py tests/kit/test_closed.py tests/network/test_health.py tests/operations/test_deadlines.py \
	  tests/operations/test_operation.py tests/structures/codecs/test_codecs.py \
	  $(call once_more,.venv-second)
endif

systems: setup  ## the README's two commands in Debian's bookworm, trixie and sid, as root; SYSTEMS=trixie for one, JOBS=2
	tools/systems.sh

golden: setup  ## what this release stores, kept for later ones to read; done once a release
	PYTHONPATH=.:tests $(BIN)/python tests/golden/golden.py

damage: setup  ## every damage to what structures store, one at a time, and every call on it; every async call cancelled at each await; ONLY='ads jobs' for some
	PYTHONPATH=.:tests $(BIN)/python tests/damage/damages.py $(ONLY)
	PYTHONPATH=.:tests $(BIN)/python tests/damage/cancellations.py $(ONLY)

kills: setup  ## movers, failovers and servers killed at fifty moments each, under clients that write; KILLS=500 for more
	KILLS=$(or $(KILLS),50) $(BIN)/python -m pytest -q tests/admin/growth/test_operators.py \
	  tests/admin/growth/test_managed_failover.py tests/admin/growth/test_stopped_processes.py \
	  -k "killed or stopped or die"

celery: setup  ## 10,000 tasks of Celery while workers are killed and servers move, fail over and split; TASKS=1000 for fewer
	CELERY_TASKS=$(or $(TASKS),10000) $(BIN)/python -m pytest -q -s tests/integrations/test_celery.py -k survive

apply: setup  ## thirty random pairs of shard maps that are applied under load, by processes that are killed; PAIRS=100 SEED=7
	PAIRS=$(or $(PAIRS),30) $(BIN)/python -m pytest -q -s tests/admin/growth/test_apply.py -k random

events: setup  ## a million messages while servers are killed and shards move: each once or in a reported gap; EVENTS=50000 for fewer
	EVENTS=$(or $(EVENTS),1000000) $(BIN)/python -m pytest -q -s tests/kit/test_pubsub.py -k once_or_in_a_gap

operators: setup  ## two operators at random, whose commands and servers die, under clients that write, ten minutes; SECONDS=60 SEED=7 for others
	OPERATORS_SECONDS=$(or $(SECONDS),600) OPERATORS_SEED=$(SEED) $(BIN)/python -m pytest -q -s tests/admin/growth/test_operators.py -k at_random

growth: setup  ## 4 shards of another program become 64 on 16 servers under load, and 4 again; MEGABYTES=1000 SHARDS=64
	CASES=all MEGABYTES=$(or $(MEGABYTES),1000) $(BIN)/python -m pytest -s -q tests/admin/growth/test_growth_page.py -k to_$(or $(SHARDS),64)

simulate: setup  ## shardkit's protocols under ever new schedules until stopped, on all cores
	$(BIN)/python tools/simulate.py $(SECONDS)

schedules: setup  ## a thousand schedules of each of shardkit's protocols, on all cores; COUNT=100 for fewer
	$(BIN)/python tools/simulate.py --each $(or $(COUNT),1000)

bench: setup  ## the benchmarks; results as JSON in benchmarks/results, plots in docs/plots
	$(BIN)/pip install -q -e '.[bench]'
	for name in overhead memory memory_set codecs unique packed list sorted_set ip_to_city demo completion \
	  ads_and_jobs search social coordination config_server fleet growth heat cached celery_transport; do \
	  if [ -d benchmarks/$$name ]; then path=benchmarks/$$name; else path=benchmarks/$$name.py; fi; \
	  $(BIN)/python $$path || exit 1; done
	$(BIN)/python benchmarks/throughput/user_calls.py
	$(BIN)/python benchmarks/throughput/events.py
	$(BIN)/python benchmarks/throughput && $(BIN)/python benchmarks/throughput/threads.py
	$(BIN)/python benchmarks/throughput/by_shards.py
	$(BIN)/python benchmarks/throughput/peers.py

docs: setup  ## the documentation site, in site/; a link without a target fails
	$(BIN)/pip install -q -e '.[docs]'
	$(BIN)/zensical build --strict
	PYTHONPATH=. $(BIN)/python tools/search_index.py site/search.json

man: setup  ## a man page for each command, in man/
	rm -rf man
	$(BIN)/python tools/man_pages.py man

# The same commit gives the same bytes, whatever the umask: all files have its time and usual modes, a tar
# file has an order, and the wheel is built from the unpacked sdist.
dist try-dist: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct)
dist: man  ## the sdist, the wheel and what they depend on (an SBOM), in dist/
	$(BIN)/pip install -q build cyclonedx-bom
	rm -rf dist build/dist && mkdir -p dist build/dist
	$(BIN)/python -m build -s -o build/dist . > build/dist.log
	tar xf build/dist/*.tar.gz -C build/dist && chmod -R u=rwX,go=rX build/dist/*/
	cd build/dist && tar c --sort=name --mtime=@$(SOURCE_DATE_EPOCH) --owner=0 --group=0 --numeric-owner */ \
	  | gzip -n > $(CURDIR)/dist/$$(basename *.tar.gz)
	umask 022 && $(BIN)/python -m build -w -o dist build/dist/*/ >> build/dist.log
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o dist/sbom.json $(BIN)/python

audit: setup  ## whether a known vulnerability is in what the package and its extras need
	$(BIN)/pip install -q pip-audit
	$(BIN)/pip-audit --skip-editable

try-dist: dist .venv/bin/uv  ## the wheel with each extra alone, and tests of the unpacked sdist
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python tools/try_dist.py dist

demo: setup  ## replay a web access log on embedded servers
	$(BIN)/shardkit demo

clean:
	rm -rf .venv .venv-lowest .venv-second .venv-others build dist man *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
