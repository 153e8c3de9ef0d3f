# Each target runs in a virtual environment, which is created on first use with the dependencies of the target.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: run pictures demo test lint types tests docs benchmark clean

run: $(VENV)/.train  ## download MNIST, train a small ET network and a plain CNN, draw the output of the layers
	$(BIN)/python examples/quickstart.py --out out

pictures: $(VENV)/.train  ## draw the coordinate systems of the paper, each group acting on a digit, and predicted poses
	$(BIN)/python examples/first_look.py --out out
	$(BIN)/python examples/pose_plot.py --out out

demo: $(VENV)/.demo  ## open a page that shows the effect of each layer on a distorted digit
	$(BIN)/et demo

test: lint types tests  ## run all checks that a change must pass

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

tests: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist loadgroup -q

docs: $(VENV)/.docs  ## build the documentation site in out/site (the tests build it too)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

benchmark: $(VENV)/.benchmark  ## compare the speed of warps with kornia and with torch alone, on the CPU
	$(BIN)/python benchmarks/warp.py

$(VENV)/.%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) out
