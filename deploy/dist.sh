#!/usr/bin/env bash
# Builds the wheel and the sdist into dist/, and tries them as someone who has no clone: installed with each extra into an
# environment of its own, started from a folder of its own, and with the demo at the end. Beside them are an SBOM of the extra
# `all` and the licences of its packages.
set -euo pipefail
cd "$(dirname "$0")/.."
project=$PWD
home=$(mktemp -d "${TMPDIR:-/tmp}/penstock-dist.XXXXXX")
trap 'rm -rf "$home"' EXIT

say() { printf 'dist: %s\n' "$*"; }
die() { say "$@" >&2; exit 1; }

install() {  # NAME WHAT: an environment of that name
  .venv/bin/python -m venv "$home/$1"
  "$home/$1/bin/python" -m pip install --quiet --disable-pip-version-check --constraint deploy/constraints.txt "$2"
}

starts() {  # NAME PROGRAM...: each shows its help
  local name=$1 program; shift
  for program; do
    (cd "$home" && "$home/$name/bin/penstock" "$program" --help) > "$home/help" || die "[$name] penstock $program does not start"
  done
  say "[$name] starts $*"
}

lacks() {  # NAME PROGRAM EXTRA: one line says what to install
  local said code=0
  said=$(cd "$home" && "$home/$1/bin/penstock" "$2" --help 2>&1) || code=$?
  case $code:$(wc -l <<< "$said"):$said in
    2:1:*"install Penstock with the extra $3"*) say "[$1] $said" ;;
    *) die "[$1] penstock $2 is to name the extra $3, and says: $said" ;;
  esac
}

rm -rf dist
.venv/bin/python -m hatchling build -d "$project/dist" > "$home/built" 2>&1 || { cat "$home/built"; exit 1; }
wheel=$(echo "$project"/dist/*.whl) sdist=$(echo "$project"/dist/*.tar.gz)
say "built $(basename "$wheel") and $(basename "$sdist")"
[ "$(.venv/bin/python -m zipfile --list "$wheel" | sed -nE 's|^([^/ ]+)/.*|\1|p' | grep -v '\.dist-info$' | sort -u | xargs)" = "drainer penstock pump pumpclient" ] \
  || die "the wheel has other top-level packages than drainer, penstock, pump and pumpclient"

install writer "$wheel"
starts writer ctl init
lacks writer pump pump
lacks writer drainer drainer
lacks writer source mysql
lacks writer console console
lacks writer demo demo
install pump "$wheel[pump]" && starts pump pump ctl
install stream "$wheel[stream]"
(cd "$home" && stream/bin/python -c 'import penstock.stream') || die "[stream] penstock.stream cannot be imported"
say "[stream] imports penstock.stream"
install mysql "$sdist[mysql]" && starts mysql source verify ctl
install console "$sdist[console]" && starts console console ctl
"$home/console/bin/python" -c 'from importlib.resources import files; files("penstock.ctl.console").joinpath("static/console.js").read_text(); from penstock.ctl.console import page; page.login()' \
  || die "[console] the page's files are not in the package"
install all "$wheel[all]" && starts all pump drainer source ctl console verify init
"$home/all/bin/python" deploy/sbom.py "${wheel%-py3-none-any.whl}"
say "[all] lists its packages and their licences: $(basename -a dist/*.cdx.json dist/*.licences.txt | tr '\n' ' ')"
install demo "$wheel[demo,jre]"
(cd "$home" && demo/bin/penstock init shop > /dev/null && demo/bin/penstock demo --rows 5000 --transactions 500)
deploy/beside.sh "$wheel"
say "dist/ has what can be uploaded"
