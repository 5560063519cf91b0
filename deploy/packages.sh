#!/usr/bin/env bash
# Installs the Debian packages of all programs that are wanted and missing, at once, before anything starts.
#
#   deploy/packages.sh WANTED...    WANTED: names of deploy/packages.txt; PYTHON: whose Python.h is meant (python3)
#
# Needs root only when something is missing; says what it does; safe to run again.
set -euo pipefail
table=$(dirname "$0")/packages.txt

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

# A file is looked for where Debian has it, so elsewhere only programs are. `type -P` sees no function of ours.
is_there() {
  case $1 in
    Python.h) [ -e "$("${PYTHON:-python3}" -c 'import sysconfig; print(sysconfig.get_path("include"))')/$1" ] ;;
    /*) [ -e "$1" ] || ! type -P dpkg >/dev/null ;;
    *) PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin type -P "$1" >/dev/null ;;
  esac
}

is_wanted() {  # NAMES WANTED...
  local names=,$1, name; shift
  for name; do case $names in *,"$name",*) return 0 ;; esac; done
  return 1
}

for name; do
  grep -qE "^[^#].*[ ,]$name(,|\$)" "$table" || die "no $name in $table to be wanted"
done
missing=() packages=()
while read -r what package names; do
  case $what in ''|'#'*) continue ;; esac
  is_wanted "$names" "$@" || continue
  is_there "$what" || { missing+=("${what#/usr/include/}"); packages+=("$package"); }
done < "$table"
[ ${#missing[@]} -gt 0 ] || exit 0

list=$(printf '%s\n' "${packages[@]}" | sort -u | tr '\n' ' ')
apt="apt-get install --no-install-recommends ${list% }"
type -P apt-get >/dev/null || die "missing here: ${missing[*]}; Debian has them in ${list% }"
[ "$(id -u)" = 0 ] || die "missing here: ${missing[*]}; as root: $apt"
say "installing the Debian packages ${list% }, for ${missing[*]}"
apt-get update -qq >&2 || say "apt-get update failed; trying with the lists that are here"
# shellcheck disable=SC2086
output=$(DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 \
  -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 $list 2>&1) \
  || { printf '%s\n' "$output" >&2; die "could not install them; see the lines above, then: $apt"; }
