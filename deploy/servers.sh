#!/usr/bin/env bash
# Unpacks servers beside the machine's own packages: those that this Debian release does not have, or that its package would
# start as a service. And axe-core, with which the console's tests look for barriers, out of a package of PyPI, by its checksum.
#
#   deploy/servers.sh FOLDER NAME...    NAME: etcd, mysql, mariadb, prometheus or axe-core
#
# Each goes to FOLDER/NAME with every library it needs, its own loader and C library included, so that nothing of the
# machine is used or changed: apt works on a state of its own, and `dpkg -x` only unpacks. Run it again: it does nothing
# where the server is there. `proto/penstock/local/` starts what is unpacked.
set -euo pipefail
SUITE=sid
AXE=4.12.1
AXE_PACKAGE=axe-playwright-python==0.1.8
AXE_SHA256=84494fec757e4710dc751c8d7a636e457f4532f08f85c86dc9070133fbff53bc
folder=$1; shift
say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

mirror() {
  local found
  found=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m1 'debian/\?$' || true)
  echo "${found:-http://deb.debian.org/debian}"
}

# A mirror may lag behind the unstable suite by more than the days its Release file is valid for; its signature is
# checked all the same.
own_state() {
  local apt=$1
  mkdir -p "$apt"/etc/{apt.conf.d,preferences.d} "$apt"/state/lists/partial "$apt"/cache/archives/partial
  touch "$apt/state/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) $SUITE main" > "$apt/etc/sources.list"
  cat > "$apt/apt.conf" <<CONF
Dir::Etc "$apt/etc";
Dir::Etc::sourcelist "$apt/etc/sources.list";
Dir::Etc::sourceparts "-";
Dir::State "$apt/state";
Dir::State::status "$apt/state/status";
Dir::Cache "$apt/cache";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::Check-Valid-Until "false";
APT::Sandbox::User "root";
CONF
  # The machine's proxies and authorities count, as they do for its own packages.
  apt-config dump | grep -iE '^Acquire::https?::' >> "$apt/apt.conf" || true
  retried env APT_CONFIG="$apt/apt.conf" apt-get update -qq -o APT::Update::Error-Mode=any >&2 \
    || die "not all servers for the tests: $(mirror) does not give its suite $SUITE (is there a network?)"
}

retried() {  # COMMAND...
  local pause_s
  for pause_s in 5 20; do
    "$@" && return
    sleep "$pause_s"
  done
  "$@"
}

unpack() {
  local name=$1 apt=$2 package=$1
  case $name in
    prometheus) ;;
    etcd) package="etcd-server etcd-client" ;;
    *) package=$name-server-core ;;
  esac
  local at=$folder/$name packages
  say "unpacking Debian $SUITE's $package into $at (nothing is installed)"
  export APT_CONFIG=$apt/apt.conf
  if [ "$name" = etcd ]; then
    packages=$package  # It needs only the C library, and runs with any of the last years.
  else
    packages=$(apt-get install -s --no-install-recommends -t "$SUITE" "$package" libc6 \
      | awk '/^Inst/ {print $2}' | grep -vE '^(perl|libperl)') \
      || die "Debian $SUITE has no $package that can be installed"
  fi
  rm -rf "$at" "$at.new" "$apt/debs"; mkdir -p "$at.new" "$apt/debs"
  # shellcheck disable=SC2086
  (cd "$apt/debs" && retried apt-get download -qq -t "$SUITE" $packages >&2) || die "could not fetch $package; run it again"
  for deb in "$apt"/debs/*.deb; do dpkg -x "$deb" "$at.new"; done
  mv "$at.new" "$at"
  unset APT_CONFIG
}

fetch_axe() {
  local at=$folder/axe-core python
  python=$(dirname "$0")/../.venv/bin/python
  say "fetching axe-core $AXE, which $AXE_PACKAGE has in it, into $at"
  rm -rf "$at.new"; mkdir -p "$at.new"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$at.new" "$AXE_PACKAGE" \
    || die "could not fetch $AXE_PACKAGE (is there a network?); run it again"
  "$python" -m zipfile -e "$at.new"/*.whl "$at.new"
  mv "$at.new/axe_playwright_python/axe.min.js" "$at.new"
  sha256sum --check --quiet <<< "$AXE_SHA256  $at.new/axe.min.js" || die "axe-core $AXE is not what it was: not used"
  rm -r "$at.new"/axe_playwright_python* "$at.new"/*.whl 2>/dev/null || true
  mv "$at.new" "$at"
}

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
apt=
trap '[ -z "$apt" ] || rm -rf "$apt"' EXIT
for name; do
  case $name in etcd|mysql|mariadb|prometheus|axe-core) ;; *) die "no $name: etcd, mysql, mariadb, prometheus or axe-core" ;; esac
  [ ! -d "$folder/$name" ] || continue
  if [ "$name" = axe-core ]; then
    fetch_axe
    continue
  fi
  if [ -z "$apt" ]; then
    "$(dirname "$0")/packages.sh" servers
    apt=$(mktemp -d)
    own_state "$apt"
  fi
  unpack "$name" "$apt"
done
