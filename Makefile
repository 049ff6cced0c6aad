# Every target does its own set-up: a virtual environment in .venv with what pyproject.toml lists, as constraints.txt pins it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: playbook test lint lab setup clean

playbook: setup  ## run all notebooks headless; results and an index page are left in runs/playbook
	$(BIN)/lfhelpers playbook

test: setup lint  ## all tests, two at a time, since most wait for processes of their own; then those that measure
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist worksteal -m 'not alone'
	$(BIN)/python -m pytest -m alone

lint: setup  ## style, types, imports that only go downwards, notebooks without outputs
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/lfhelpers lint

lab: setup  ## JupyterLab on the notebooks
	$(BIN)/jupyter lab --notebook-dir notebooks

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,adapters]'
	touch $@

clean:
	rm -rf $(VENV)
