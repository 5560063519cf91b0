# Every target sets up what it needs by itself; the first run takes a few minutes.
SOURCE ?= flights
SPARK ?= local
SINK ?= $(if $(filter mysql tidb standalone,$(SOURCE) $(SPARK)),mysql,sqlite)
ONLY ?=
RELEASE ?=
MINUTES ?= 60
COPIES ?= 2
SEED ?=
BIN := .venv/bin

.PHONY: help setup proto proto-check fmt check test test-all test-slow test-tidb demo chaos bench dist docs fresh clean

help:  ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

GO := tidb conformance helm obinlog versitygw
JARS := kafka connect flink delta-spark

# What a goal needs beside Python's packages, by the names of deploy/packages.txt: all of it is there before anything starts.
NEEDS_demo := $(if $(filter mysql,$(SINK)),mariadb) $(filter kafka,$(SINK)) $(if $(filter mysql tidb,$(SOURCE)),sysbench) $(filter tidb,$(SOURCE))
NEEDS_test := mariadb clients tests servers
NEEDS_chaos := mariadb chaos
NEEDS_test-all := $(NEEDS_test)
NEEDS_test-slow := $(NEEDS_test) suite sysbench conformance helm obinlog versitygw $(JARS)
NEEDS_test-tidb := mariadb sysbench tidb
NEEDS_bench := mariadb clients sysbench $(if $(filter outputs% peers%,$(or $(ONLY),outputs)),kafka) $(if $(filter peers%,$(ONLY)),connect)
WANTED = $(sort $(foreach goal,$(MAKECMDGOALS),$(NEEDS_$(goal))))

# The demo alone needs no tools of development.
comma := ,
EXTRAS := $(if $(filter-out demo,$(or $(MAKECMDGOALS),help)),dev,demo$(if $(filter kafka,$(SINK)),$(comma)kafka))

setup:  ## Virtual environment, packages, etcd, a JRE if there is no Java 17+
	@deploy/setup.sh -x $(EXTRAS) $(WANTED)
	$(if $(filter $(GO),$(WANTED)),@deploy/go.sh .venv/servers $(filter $(GO),$(WANTED)))
	$(if $(filter $(JARS),$(WANTED)),@deploy/jars.sh .venv/servers $(filter $(JARS),$(WANTED)))

demo: setup  ## The whole main job on real data; SINK=mysql: into a MariaDB, SINK=files: into files and back, SINK=kafka: into topics, SINK=delta: into a lake, SOURCE=mysql: from one too, SOURCE=tidb: from a TiDB, SPARK=standalone: on a Spark master and two workers, into a MariaDB over parallel connections
	@$(BIN)/python -m penstock.local.demo --source $(SOURCE) --sink $(SINK) --spark $(SPARK)

test: check  ## All checks, and the tests of every main path on real etcd, Spark, MariaDB and MySQL
	$(BIN)/python -m tests

test-all: check  ## All checks and all tests but the long sweeps
	$(BIN)/python -m tests --all

test-slow: setup  ## The long sweeps that `make test-all` leaves out
	$(BIN)/python -m tests --slow

test-tidb: setup  ## The tests against a real TiDB, which is built the first time
	$(BIN)/python -m tests --tidb

chaos: setup  ## The whole cluster under random faults for MINUTES=60; SEED= repeats a plan, COPIES=1 loses no disks; exit code 1 keeps everything
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) --copies $(COPIES) $(SEED:%=--seed %)

bench: setup  ## Measure; JSON lines on stdout; ONLY=spine (or a name's beginning) picks
	@$(BIN)/python -m tests.bench $(ONLY)

docs: setup  ## Build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

dist: setup  ## Build the wheel and the sdist into dist/, and try them outside of the clone
	@deploy/dist.sh

fresh:  ## The README's commands on bare Debian machines; RELEASE=trixie, ONLY='demo$$' (a pattern) pick. Needs root
	@deploy/fresh.sh $(RELEASE:%=-r %) $(if $(ONLY),-o '$(ONLY)')

check: setup proto-check  ## Style, types, import rules and commit subjects
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m deploy.commit_subjects

fmt: setup  ## Format, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: setup  ## Generate proto/penstock/pb from proto/*.proto
	$(BIN)/python -m deploy.generated

proto-check: setup  ## Fail when the generated code is not that of proto/*.proto
	@$(BIN)/python -m deploy.generated --check

clean:  ## Remove the virtual environment and all caches
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
