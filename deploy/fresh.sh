#!/usr/bin/env bash
# Runs the README's commands on bare machines: each in a new copy of a bare Debian root, one root per release, and `make
# demo` once more on a host that resolves no name. What set-up forgets to install is found here and nowhere else.
#
#   deploy/fresh.sh [-r RELEASE]... [-o REGEX]    releases: bookworm and trixie, unless named; REGEX picks of the commands
#   deploy/fresh.sh -l                            lists the commands
#
# What is tried is what is committed. Needs root; see deploy/bare.sh. Each command's output is kept in a file that is named;
# the summary at the end says what failed, and then the exit code is 1.
set -euo pipefail
cd "$(dirname "$0")/.."
SHOWN_S=60

say() { printf 'fresh: %s\n' "$*"; }

commands() { sed '1,/^## Commands/d; /^## /,$d' README.md | sed -n 's/^\(make [^#]*[^# ]\).*/\1/p'; }

# Once a minute, the last line of the log: a run takes long.
watch_log() {  # LOG
  while sleep "$SHOWN_S" > /dev/null 2>&1; do say "  … $(tail -n 1 "$1" | tr -d '\r' | cut -c 1-120)"; done
}

try() {  # RELEASE OPTION COMMAND...: one line for the summary; what failed counts
  local release=$1 option=$2; shift 2
  local what="$*${option:+ (no names)}" log code=0 begun=$SECONDS outcome
  log=$logs/$release-$(tr -cs 'A-Za-z0-9\n' - <<< "$what" | sed 's/-$//').log
  say "$release: $what  ($log)"
  : > "$log"
  watch_log "$log" & watcher=$!
  # shellcheck disable=SC2086
  deploy/bare.sh $option "$release" "$@" > "$log" 2>&1 & running=$!
  wait "$running" || code=$?
  running=; kill "$watcher"; wait "$watcher" 2>/dev/null || true; watcher=
  outcome=ok
  if [ "$code" != 0 ]; then
    outcome="exit $code"; failed=$((failed + 1))
    tail -n 15 "$log" | sed 's/^/    /'
  fi
  summary+=$(printf '%-9s  %-34s  %-8s  %3d min  %s' "$release" "$what" "$outcome" $(((SECONDS - begun + 30) / 60)) "$log")$'\n'
}

end() {
  local id
  for id in $watcher $running; do kill "$id" 2>/dev/null || true; done
  [ -z "$running" ] || wait "$running" || true
}

releases=() only=.
while getopts 'r:o:l' option; do
  case $option in
    r) releases+=("$OPTARG") ;;
    o) only=$OPTARG ;;
    l) commands; exit 0 ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
[ ${#releases[@]} -gt 0 ] || releases=(bookworm trixie)
mapfile -t chosen < <(commands | grep -E -- "$only")
[ ${#chosen[@]} -gt 0 ] || { say "no command of the README is like '$only'"; exit 2; }
[ -z "$(git status --porcelain 2>/dev/null)" ] || say "what is not committed is left out"
logs=$(mktemp -d "${TMPDIR:-/tmp}/penstock-fresh.XXXXXX")
watcher='' running='' summary='' failed=0
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for release in "${releases[@]}"; do
  for command in "${chosen[@]}"; do
    # shellcheck disable=SC2086
    try "$release" '' $command
    [ "$command" != 'make demo' ] || try "$release" -n make demo
  done
done
printf '\n%s' "$summary"
[ "$failed" = 0 ] || { say "$failed failed"; exit 1; }
say "all of them ran on bare machines"
