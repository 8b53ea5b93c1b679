# The README's two commands, `make demo` and `make test`, need Python >= 3.11 and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := ax,optuna,plot,excel,benchmarks,distributed,dev
# What is never imported need not be compiled, which is half of the time that an installation takes;
# but what is imported is compiled once, also where the environment forbids it.
export PYTHONDONTWRITEBYTECODE :=
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check \
	-c constraints.txt

.PHONY: demo test setup lint docs tutorials bench-timing bench-gpu test-device test-oldest \
	test-newest release-check clean

# One thread a test process: the tests run in parallel, and the matrices are small.
test: $(VENV)/.test-installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

# The contract of all models, pre-training and Ax on CUDA, or on the simulated device without a GPU.
test-device: $(VENV)/.test-installed
	OMP_NUM_THREADS=1 TEST_DEVICE=accelerator $(BIN)/python -m pytest -n auto --dist worksteal \
		tests/models/test_contract_*.py tests/ax tests/test_pretraining_on_a_device.py \
		tests/test_simulated_device.py

# The oldest and the newest versions that pyproject.toml allows, but for EXCEPT="torch ...", without
# Ax and Optuna, which have ranges of their own. With CUDA, an environment takes 6 GB.
RANGE_TESTS ?= tests/models tests/gp tests/suggestion/test_next_rows.py tests/test_acquisition.py
test-oldest test-newest: test-%:
	$(PYTHON) -m venv .venv-$*
	$(PYTHON) .ci/minimum_versions.py $(EXCEPT) > .venv-$*/oldest.txt
	.venv-$*/bin/python -m pip install --quiet --no-compile --upgrade --upgrade-strategy=eager \
		$(if $(filter oldest,$*),-c .venv-oldest/oldest.txt) -e ".[plot,benchmarks]" pytest \
		pytest-xdist hypothesis
	OMP_NUM_THREADS=1 .venv-$*/bin/python -m pytest $(RANGE_TESTS)

demo: $(VENV)/.demo-installed
	$(BIN)/python -m benchmarks.demo

# All that CI needs, by one installation: two at once, under `make -j`, would disturb each other.
setup: $(VENV)/bin/python
	$(PIP_INSTALL) -e ".[$(EXTRAS),docs]"
	touch $(VENV)/.test-installed $(VENV)/.docs-installed

lint: $(VENV)/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Warnings are errors; nothing outside of this machine is asked for.
docs: $(VENV)/.docs-installed
	$(BIN)/python -m sphinx -b html -E -W --keep-going -q docs docs/_build/html

# The tutorials in full, a few minutes each; `make test` runs them shortly.
tutorials: $(VENV)/.test-installed
	TUTORIALS_IN_FULL=1 $(BIN)/python -m pytest tests/test_tutorials.py --durations=0

release-check: $(VENV)/.test-installed
	.ci/release-check $(BIN)/python

bench-timing: $(VENV)/.demo-installed
	$(BIN)/python -m benchmarks.timing

# Says so where there is no GPU.
bench-gpu: $(VENV)/.demo-installed
	$(BIN)/python -m benchmarks.timing.gpu

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo-installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e ".[plot,benchmarks]"
	touch $@

$(VENV)/.test-installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e ".[$(EXTRAS)]"
	touch $@

$(VENV)/.docs-installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e ".[ax,optuna,plot,docs]"
	touch $@

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest out build dist docs/_build docs/tutorials *.egg-info
