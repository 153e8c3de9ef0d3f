# Everything happens in a virtual environment that the first command makes, with what that command needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: run pictures demo test lint types tests docs benchmark clean

run: $(VENV)/.train  ## fetch MNIST, train a small ET network beside a plain CNN, draw what its layers do
	$(BIN)/python examples/quickstart.py --out out

pictures: $(VENV)/.train  ## draw the coordinate systems of the paper, each group acting on a digit, and predicted poses
	$(BIN)/python examples/first_look.py --out out
	$(BIN)/python examples/pose_plot.py --out out

demo: $(VENV)/.demo  ## a page on which one distorts digits and sees what each layer does
	$(BIN)/et demo

test: lint types tests  ## everything a change must pass

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

tests: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist loadgroup -q

docs: $(VENV)/.docs  ## the documentation site, into out/site (the tests build it too)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

benchmark: $(VENV)/.benchmark  ## warping beside kornia
	$(BIN)/python benchmarks/warp.py

$(VENV)/.%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) out
