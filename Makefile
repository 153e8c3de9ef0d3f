# Everything happens in a virtual environment that the first command makes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: run pictures test lint types tests docs benchmark clean

run: $(INSTALLED)  ## fetch MNIST, train a small ET network beside a plain CNN, draw what its layers do
	$(BIN)/python examples/quickstart.py --out out

pictures: $(INSTALLED)  ## draw the coordinate systems of the paper, each group acting on a digit, and predicted poses
	$(BIN)/python examples/first_look.py --out out
	$(BIN)/python examples/pose_plot.py --out out

test: lint types tests  ## everything a change must pass

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(INSTALLED)
	$(BIN)/mypy

tests: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --dist loadgroup -q

docs: $(INSTALLED)  ## the documentation site, into out/site (the tests build it too)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

benchmark: $(INSTALLED)  ## warping beside kornia
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[benchmark]"
	$(BIN)/python benchmarks/warp.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) out
