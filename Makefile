# Everything a machine with Python and make needs: `make demo`, `make check` while you work, `make test` before you push.
PYTHON ?= python3
BIN := .venv/bin
PIP := pip install -q --disable-pip-version-check --no-compile
# One thread per process: idle threads of numpy's libraries would spin while others have work.
# A file stays with one worker, so that what its tests share is made once; tests/conftest.py says which come first.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
# Flower's processes mostly wait for each other, so their tests run beside all others.
DEPLOYMENT := tests/flower/test_deployment.py tests/test_example_pages.py
# Modules are compiled when they are first imported, most never; many processes import the same ones.
unexport PYTHONDONTWRITEBYTECODE
# Side by side, but each with its output in one piece, if this make can.
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync)

.PHONY: demo check test test-browser test-data test-faults test-flower test-full test-lowest test-unpinned lint types quick unit
.PHONY: deployment wheel coverage docs gpu benchmark numbers hooks clean

demo: .venv/installed
	$(BIN)/wafl run
	$(BIN)/wafl next-client runs/digits/wafl --metric error

# A minute and a half on two cores: the short tests that start no Python processes, without the examples of docstrings.
check: .venv/installed-dev
	$(MAKE) -j3 $(SYNC) lint types quick

# What CI calls: all but the slow tests, and of those that take long (tests/long.txt) one case each.
# Side by side: two cores have no idle minute, and the processes of a deployment mostly wait.
test: .venv/installed-dev
	$(MAKE) -j3 unit types wheel lint docs deployment

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	git ls-files -z | xargs -0 $(BIN)/codespell --check-hidden
	git ls-files -z ':(glob)*.md' '.github/*.md' 'docs/*.md' 'examples/*.md' | xargs -0 $(BIN)/proselint check
	$(BIN)/python tools/phrases.py
	$(BIN)/lint-imports

types: .venv/installed-dev
	$(BIN)/pyright

# pytest takes 20 seconds per worker to prepare what a failed assertion says: only for those that fail, which run again.
quick: TESTS := tests --one-case=listed -m 'not processes and not long and not slow and not data'
unit: TESTS := --one-case=long $(DEPLOYMENT:%=--ignore=%)
quick unit: .venv/installed-dev
	$(PYTEST) $(TESTS) --assert=plain || { $(PYTEST) $(TESTS) --last-failed; exit 1; }

deployment: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -p no:xdist --one-case=long $(DEPLOYMENT)

# The real data sets, from the folder $$WAFL_DATA (default ../shared/data); skipped if it is missing.
test-data: .venv/installed-full
	WAFL_DATA="$${WAFL_DATA:-../shared/data}" $(BIN)/pytest -m data tests/data -rs

# Kill runs, flip bytes, fill the disk, train 100,000 rounds: prints how often, and what was lost.
test-faults: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak

# Flower's own processes: everything that goes wrong out there, and 20 nodes; prints survived or lost for each.
test-flower: .venv/installed-dev
	$(BIN)/python -m tests.flower_matrix

# The page in a real browser: the Chromium of this system, which must be there (apt-get install chromium).
test-browser: .venv/installed-full
	OMP_NUM_THREADS=1 $(BIN)/pytest -p no:xdist tests/browser.py

# The longer checks, on top of `make test`.
test-full: test test-data test-faults test-flower test-unpinned coverage .venv/installed-full
	$(PYTEST) -m 'long or slow'
	$(BIN)/python -m tests.mutants
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.checkpoint
	$(BIN)/python -m benchmarks.transport --points 500
	$(BIN)/python -m research bounds

# The lowest versions that pyproject.toml promises, without Flower, which needs higher ones.
LOWEST := autoattack,data,mlflow,onnx,pandas,parquet,report,tensorboard,transport
test-lowest:
	$(PYTHON) -m venv --upgrade-deps .venv-lowest
	$(PYTHON) tools/lowest.py > .venv-lowest/constraints.txt
	.venv-lowest/bin/$(PIP) -c .venv-lowest/constraints.txt \
		-e '.[$(LOWEST)]' foolbox hypothesis onnxruntime pytest pytest-xdist
	OMP_NUM_THREADS=1 .venv-lowest/bin/pytest -n 2 -m 'not processes and not slow and not data' --one-case=long \
		-W ignore::DeprecationWarning -k 'not flower and not flwr' --ignore=src/wafl/flower --ignore=tests/flower \
		--ignore=tests/cli/test_flower.py --ignore=tests/test_examples.py --ignore=tests/test_example_pages.py \
		--ignore=tests/flower_matrix.py --ignore-glob='tests/oracles/flower*'

# What a newcomer gets today: an empty environment, and the newest version of every package.
test-unpinned:
	$(PYTHON) -m venv --clear --upgrade-deps .venv-unpinned
	.venv-unpinned/bin/$(PIP) '.[data,pandas,report,sign,transport]' hypothesis pytest
	cd .venv-unpinned && bin/wafl --version
	cd .venv-unpinned && bin/wafl run --method wafl --rounds 1 --seeds 1 > /dev/null
	OMP_NUM_THREADS=1 .venv-unpinned/bin/pytest -m 'not processes and not long and not slow' -W ignore::DeprecationWarning \
		tests/cli tests/sklearn tests/results --ignore=tests/cli/test_flower.py --ignore=tests/results/test_export.py

# Which lines of src/wafl the short tests reach: CONTRIBUTING.md has the number.
coverage: .venv/installed-full
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest tests --one-case=listed -m 'not processes and not long and not slow and not data'
	$(BIN)/coverage report --skip-covered --sort=cover | tail -30

# Built, with its bill of materials; installed with what it declares and nothing else, and run.
wheel: .venv/installed-dev
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . > /dev/null
	$(BIN)/python tools/sbom.py dist/*.whl
	$(BIN)/python tools/wheel_environment.py .venv-wheel dist/*.whl
	cd .venv-wheel && bin/wafl run --method wafl --rounds 1 --seeds 1 > /dev/null
	cd .venv-wheel && ! bin/python -c 'import research' 2> /dev/null
	cd .venv-wheel && bin/wafl --version

# The pages as a site that opens from disk: site/index.html. A warning is an error, and so is what only a network has.
docs: .venv/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	! grep -rlE '<(script|img)[^>]* src="https?:|<link rel="stylesheet" href="https?:' site --include='*.html'

# The tests that need a GPU, with whatever Python has PyTorch for it (docs/gpu.md says how it went last).
gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -o addopts= -q tests/train/test_cuda.py tests/train/test_live_copies.py tests/tasks/test_side_by_side.py tests/tasks/test_fused.py

# The pages' claims about speed, each with its last and its current figure; fails where one is a third worse.
benchmark: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.claims

# Every table of the README and of docs/ again, which takes hours; `.venv/bin/python -m research tables --list` says how.
numbers: .venv/installed-dev
	$(BIN)/python -m research tables

# Check what is committed, before it is.
hooks: .venv/installed-dev
	$(BIN)/pre-commit install

.venv/bin/pip:
	$(PYTHON) -m venv --upgrade-deps .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/pip
	$(BIN)/$(PIP) -c constraints.txt -e '.[report]'
	touch $@

# Two at a time, since pip uses one core; the last line adds what this machine needs besides.
.venv/installed-dev: pyproject.toml constraints.txt | .venv/bin/pip
	sed '1d;/^#/,$$d' constraints.txt | sort -r | tr '\n' '\0' | xargs -0 -n 25 -P 2 $(BIN)/$(PIP) --no-deps
	$(BIN)/$(PIP) --no-build-isolation -c constraints.txt -e '.[dev]'
	touch .venv/installed $@

# Peers, natural data, polars and what drives a browser: half a gigabyte that only the longer checks need.
.venv/installed-full: .venv/installed-dev
	$(BIN)/$(PIP) -c constraints.txt -e '.[natural,peers]' coverage playwright polars
	touch $@

clean:
	rm -rf .venv .venv-wheel .venv-lowest .venv-unpinned dist site .coverage
