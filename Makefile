# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What `make test` installs besides the base: a Python that an engine has no wheel for yet leaves the engines, and checkpoint/, out (EXTRAS=dev).
EXTRAS ?= dev,engines
BENCH_EXTRAS ?= optuna,smac,boosted,deepspeed,syne-tune
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

# Measured runs, for the tests and figures that need them; without them those are skipped.
export ZENITHTUNE_DATA ?= $(abspath $(wildcard ../shared/data))

.PHONY: demo test test-all coverage check dist docs site bench scoreboard replay leaderboard calibrations published image clean

demo: $(VENV)/.base  ## tune a Megatron-LM command that only pretends to train, and write the study's page: half a minute
	export PATH="$(CURDIR)/$(BIN):$$PATH" name=demo-$$(date +%Y%m%d-%H%M%S) && \
	zenithtune optimize --cluster examples/demo/cluster.toml --study-name $$name -- bash examples/demo/train.sh

# Many tests wait for processes, so that six workers keep two cores busy; compiled modules are kept for all of them.
# Each test is in one of the two: storms, whole crossings, browsers and benchmarks are marked `slow`, and
# `test` still has one real path of every engine that is installed.
# Of random examples `test` draws a few, and CI, which sets ZENITHTUNE_REQUIRE=all, twice as many. Of a long list of cases
# `test` has the first few, and `test-all` the others.
PYTEST := PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONDONTWRITEBYTECODE= python -m pytest --workers 6

test: $(VENV)/.dev  ## what everybody runs: minutes, on two cores
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.dev  ## the rest, which CI runs beside it
	$(PYTEST) -m slow

coverage: $(VENV)/.dev  ## the lines of src that `make test` runs, also in the processes that it starts
	$(BIN)/coverage erase
	-PATH="$(CURDIR)/$(BIN):$$PATH" coverage run -m pytest --workers 6 -m "not slow"
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --skip-covered --sort=miss | tail -40

check: $(VENV)/.dev  ## lint, types and documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/generate_cli.py --check
	$(BIN)/python docs/generate_levers.py --check
	$(BIN)/python docs/generate_schemas.py --check
	$(BIN)/python docs/generate_results.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs: $(VENV)/.dev  ## regenerate docs/cli.md, the tables of levers and the measured results
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python docs/generate_levers.py
	$(BIN)/python docs/generate_schemas.py
	$(BIN)/python docs/generate_results.py

site: $(VENV)/.dev build/plan.html  ## the documentation as a site, in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

build/plan.html: docs/build_planner.py $(shell find src/zenith_tune -name '*.py' -o -name '*.toml' -o -name '*.js' -o -name '*.css')
	$(BIN)/python $< $@  # minutes

bench: $(VENV)/.base  ## what the tuner itself costs per trial, and how fast the planner is
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/planner_rate.py

scoreboard: $(VENV)/.base  ## judge the planner on measured runs it was not fitted to, and write benchmarks/results/scoreboard.md
	$(BIN)/python benchmarks/scoreboard.py

replay: $(VENV)/.base  ## replay every strategy on measured landscapes, and write benchmarks/results/replay.md and its plot
	$(BIN)/python benchmarks/replay.py

TUNERS ?= random grid optuna-tpe optuna-gp optuna-cmaes smac boosted-ranker deepspeed-grid deepspeed-model \
	two-stage-heuristic=layoutbench_zenith:TwoStageHeuristic \
	zenithtune-guided=layoutbench_zenith:Guided zenithtune-uncalibrated=layoutbench_zenith:GuidedUncalibrated
leaderboard: $(VENV)/.dev  ## run every tuner on LayoutBench's landscapes, and write benchmarks/results/layoutbench-DATE.md, .html, .json
	$(BIN)/layoutbench build --output build/landscapes
	PYTHONPATH=benchmarks OMP_NUM_THREADS=1 $(BIN)/layoutbench run $(addprefix --tuner ,$(TUNERS)) --seeds 3 --trials 50 \
		--landscapes layoutbench/src/layoutbench/landscapes --landscapes build/landscapes --jobs $$(nproc) --output build/layoutbench.json
	$(BIN)/layoutbench leaderboard build/layoutbench.json --output benchmarks/results/layoutbench-$$(date +%Y-%m-%d)

calibrations: $(VENV)/.base  ## fit the calibrations that come with the package anew, from the measured runs
	$(BIN)/zenithtune calibrate --rows "$$ZENITHTUNE_DATA" $(addprefix --rows ,$(wildcard benchmarks/results/h200-*.csv)) $(addprefix --probes ,$(wildcard benchmarks/results/h200-probes-*/*.json)) --all --output src/zenith_tune/calibrate/defaults

published: $(VENV)/.base  ## write the catalog of published runs anew, which `zenithtune doctor --against published` reads
	$(BIN)/python benchmarks/published_runs.py

PACKAGES := pyproject.toml layoutbench/pyproject.toml calibration/pyproject.toml checkpoint/pyproject.toml kubernetes/pyproject.toml mimo/pyproject.toml rl/pyproject.toml

$(VENV)/.base: $(PACKAGES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -e . -e ./calibration -e ./layoutbench
	touch $@

$(VENV)/.dev: $(PACKAGES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --no-compile -e '.[$(EXTRAS)]' -e ./mimo $(if $(findstring engines,$(EXTRAS)),-e ./checkpoint) \
		-e ./calibration -e ./kubernetes -e ./rl \
		-e './layoutbench$(if $(BENCH_EXTRAS),[$(BENCH_EXTRAS)])'
	touch $@ $(VENV)/.base

dist: $(VENV)/.base  ## build the wheel and the source of every package into build/dist, and check them as an index would
	$(PIP) install build twine
	rm -rf build/dist
	for package in . layoutbench calibration checkpoint kubernetes mimo rl; do $(BIN)/python -m build --outdir build/dist $$package || exit 1; done
	$(BIN)/twine check --strict build/dist/*

image:  ## a Docker image of ZenithTune, without torch
	docker build --tag zenithtune .
	docker run --rm zenithtune doctor --self

clean:
	rm -rf $(VENV) zenithtune-out .pytest_cache .mypy_cache .ruff_cache .hypothesis
