#!/usr/bin/env bash
# Runs a command on a bare machine: the committed project in a new copy of a Debian root that has Python, its venv module,
# make and git, and nothing that this machine has gathered. Needs root.
#
#   deploy/bare.sh [-n] RELEASE COMMAND...    in /src of the new root; its output and its exit code are passed through
#   deploy/bare.sh RELEASE                    makes the root and tries it: 0 when a command could run here
#
# RELEASE is bookworm (Debian 12), trixie (13) or sid. `-n`: a host whose own name does not resolve, nor does `localhost`.
# The roots are kept in BARE_HOME (/var/tmp/penstock-bare) for a week; the copy that a command ran in is removed after it.
# 125: the machine cannot make such a root, or cannot enter it; a line says why.
set -euo pipefail
PROJECT=$(cd "$(dirname "$0")/.." && pwd)
CANNOT=125
KEPT_DAYS=7
FREE_MIB_MIN=8192
CARRIED='^((http|https|ftp|no|all)_proxy|(HTTP|HTTPS|FTP|NO|ALL)_PROXY|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|CI|TERM'
CARRIED+='|GOPROXY|GOSUMDB|GONOSUMDB|PIP_(INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|NO_INDEX|TRUSTED_HOST|CERT|CLIENT_CERT|PROXY|CONFIG_FILE|DEFAULT_TIMEOUT|RETRIES))='

say() { printf 'bare: %s\n' "$*" >&2; }
cannot() { say "$@"; exit "$CANNOT"; }

site() {  # SUFFIX: where this machine gets a Debian archive from, if it says so
  apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | grep "/$1/\?\$" | sort -u | head -n 1 || true
}

# What the machine knows of mirrors, proxies and authorities is no part of what is tried: without it there is no network.
carry_network() {  # ROOT
  local root=$1 file
  [ ! -e /etc/resolv.conf ] || cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  apt-config dump 2>/dev/null | grep -iE '^Acquire::https?::' > "$root/etc/apt/apt.conf.d/90network" || true
  for file in /etc/pip.conf "${HOME:-/root}"/.config/pip/pip.conf "${HOME:-/root}"/.pip/pip.conf; do
    [ ! -e "$file" ] || install -D -m 644 "$file" "$root/${file/#${HOME:-/root}//root}"
  done
  mkdir -p "$root/usr/local/share/ca-certificates"
  cp -rL /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
}

suites() {  # RELEASE MAIN SECURITY: the lines of its sources.list
  printf 'deb %s %s main\n' "$2" "$1"
  [ "$1" = sid ] || printf 'deb %s %s main\n' "$2" "$1-updates" "$3" "$1-security"
}

make_root() {  # RELEASE: a root as an installer leaves it
  local release=$1 root=$HOME_OF_ROOTS/$1 main security log=$HOME_OF_ROOTS/$1.log
  [ -z "$(find "$root/made" -mtime -$KEPT_DAYS 2>/dev/null)" ] || return 0
  main=$(site debian); security=$(site debian-security)
  main=${main:-http://deb.debian.org/debian}; security=${security:-http://deb.debian.org/debian-security}
  say "making a bare root of $release in $root from $main"
  rm -rf --one-file-system "$root"
  debootstrap --variant=minbase --include=ca-certificates "$release" "$root" "$main" > "$log" 2>&1 \
    || cannot "debootstrap failed: $(tail -n 1 "$log")"
  suites "$release" "$main" "$security" > "$root/etc/apt/sources.list"
  carry_network "$root"
  # A mirror may lag behind the unstable suite by more than the days that its list is valid for.
  [ "$release" != sid ] || echo 'Acquire::Check-Valid-Until "false";' > "$root/etc/apt/apt.conf.d/91valid"
  enter "$root" sh -c 'update-ca-certificates && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-venv make git \
    && apt-get clean' >> "$log" 2>&1 || cannot "the root cannot be entered, or gets no packages: $(tail -n 1 "$log")"
  touch "$root/made"
}

# A root of its own by pivot_root: the kernel refuses user namespaces, which tests make, to a process in a chroot. All
# that the command starts ends with it, because it has its own process ids, and so do its mounts.
enter() {  # ROOT COMMAND...
  local root=$1 environment code=0; shift
  mapfile -t environment < <(env | grep -E "$CARRIED")
  # shellcheck disable=SC2016
  unshare --mount --propagation private --uts --pid --fork --kill-child bash -c '
    set -e; root=$1 name=$2; shift 2
    hostname "$name"
    mount --bind "$root" "$root"; cd "$root"
    mount -t tmpfs -o mode=755 dev dev
    for node in null zero full random urandom tty; do touch dev/$node; mount --bind /dev/$node dev/$node; done
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
    mount -t tmpfs -o mode=1777 shm dev/shm
    ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd
    ln -s /proc/self/fd/0 dev/stdin; ln -s /proc/self/fd/1 dev/stdout; ln -s /proc/self/fd/2 dev/stderr
    mount -t proc proc proc
    mount --rbind /sys sys 2>/dev/null || mount -t sysfs sysfs sys
    mkdir -p .old src; pivot_root . .old; umount -l /.old; rmdir /.old; cd /src
    code=0; "$@" || code=$?; exit $code
  ' enter "$root" "$HOST" env -i HOME=/root LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${environment[@]}" "$@" < /dev/null &
  child=$!
  wait "$child" || code=$?
  child=
  return "$code"
}

copy_root() {  # RELEASE: sets `run`
  local variable path
  run=$HOME_OF_ROOTS/run.$$
  mkdir "$run"
  cp -a "$HOME_OF_ROOTS/$1/." "$run"
  carry_network "$run"
  while IFS= read -r variable; do  # Such as PIP_CERT=/opt/ca.pem or PIP_FIND_LINKS=/opt/wheels.
    path=${variable#*=}
    case $path in /*) [ ! -e "$path" ] || [ -e "$run$path" ] || { mkdir -p "$run${path%/*}"; cp -aL "$path" "$run$path"; } ;; esac
  done < <(env | grep -E "$CARRIED")
  if [ "$HOST" = "$NAMELESS" ]; then : > "$run/etc/hosts"
  else
    { printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$HOST"; cat /etc/hosts 2>/dev/null || true; } > "$run/etc/hosts"
  fi
  mkdir -p "$run/src"
  git -c safe.directory="$PROJECT" -C "$PROJECT" archive HEAD | tar -x -C "$run/src"
}

remove_old_runs() {
  local old
  for old in "$HOME_OF_ROOTS"/run.*; do
    [ ! -d "$old" ] || [ -d "/proc/${old##*.}" ] || rm -rf --one-file-system "$old"
  done
}

end() {
  [ -z "$child" ] || kill -KILL "$child" 2>/dev/null || true
  [ -z "$run" ] || rm -rf --one-file-system "$run" || { sleep 2; rm -rf --one-file-system "$run"; }
}

NAMELESS=no-such-host
HOST=$(uname -n)
if [ "${1:-}" = -n ]; then HOST=$NAMELESS; shift; fi
[ $# -gt 0 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2; }
release=$1; shift
HOME_OF_ROOTS=${BARE_HOME:-/var/tmp/penstock-bare}
child='' run=''
[ "$(id -u)" = 0 ] || cannot "a bare root needs root"
"$PROJECT/deploy/packages.sh" fresh || cannot "a bare root needs these programs"
mkdir -p "$HOME_OF_ROOTS"
free_mib=$(df --output=avail -m "$HOME_OF_ROOTS" | tail -n 1)
[ "$free_mib" -ge "$FREE_MIB_MIN" ] || cannot "$HOME_OF_ROOTS has $((free_mib)) MiB left; a run takes up to $FREE_MIB_MIN"
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
remove_old_runs
make_root "$release"
[ $# -gt 0 ] || set -- sh -c 'python3 -m venv /tmp/try && /tmp/try/bin/pip download -q --no-deps -d /tmp/try iniconfig'
copy_root "$release"
enter "$run" "$@"
