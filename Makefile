# Everything a machine with Python and make needs: `make demo`, `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-data test-faults test-flower test-full lint types unit wheel benchmark clean

demo: .venv/installed
	$(BIN)/wafl run

# What CI calls.
test: lint types unit wheel

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/installed-dev
	$(BIN)/pyright

# One thread a process: idle threads of numpy's libraries would spin where others have work.
unit: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

# The real data sets, from the folder $$WAFL_DATA (default ../shared/data); skipped where it is missing.
test-data: .venv/installed-dev
	WAFL_DATA="$${WAFL_DATA:-../shared/data}" $(BIN)/pytest -m data tests/data -rs

# Kill runs, flip bytes, fill the disk, let clients fail: prints how often, and what was lost.
test-faults: .venv/installed-dev
	$(BIN)/python -m tests.soak

# Flower's own processes: everything that goes wrong out there, and 20 nodes; prints survived or lost for each.
test-flower: .venv/installed-dev
	$(BIN)/python -m tests.flower_matrix

# The longer checks, on top of `make test`.
test-full: test test-data test-faults test-flower
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m slow
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/bounds.py
	$(BIN)/python benchmarks/transport.py --points 500

wheel: .venv/installed-dev .venv-wheel/installed
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . > /dev/null
	.venv-wheel/bin/pip install -q --no-deps --force-reinstall dist/*.whl
	cd dist && ../.venv-wheel/bin/python -c "import wafl; print('wheel imports: wafl', wafl.__version__)"
	cd dist && ../.venv-wheel/bin/wafl --help > /dev/null

benchmark: .venv/installed
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/memory.py

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# The package's own dependencies and nothing else, to import the built wheel from.
.venv-wheel/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-wheel
	sed -n '/^dependencies = \[/,/^\]/s/^ *"\(.*\)",$$/\1/p' pyproject.toml > .venv-wheel/requirements.txt
	.venv-wheel/bin/pip install -q --disable-pip-version-check -c constraints.txt -r .venv-wheel/requirements.txt
	touch $@

clean:
	rm -rf .venv .venv-wheel dist
