#!/usr/bin/env bash
# Fetches programs that only tests, benchmarks and the demo need and that run on a Java: their jars, from Maven's central repository.
#
#   deploy/jars.sh FOLDER NAME...    fetches, unless that is done; FOLDER/NAME leads to the jars. NAME is one of
#       kafka    a Kafka broker and its command-line tools; `proto/penstock/local/kafka.py` starts them
#       connect  Kafka Connect with Debezium's JDBC sink and its MariaDB connector; it needs those of kafka too
#       flink    Flink's own readers of canal-json, Debezium JSON and Maxwell JSON, without a Flink to run them in
#       delta-spark  a Spark with Delta's own reader, which is made for another Spark than a Drainer's
#
# deploy/NAME/jars.txt names each jar with its SHA-256. What is fetched is kept in ${XDG_CACHE_HOME:-~/.cache}/penstock.
# MAVEN_CENTRAL names a mirror.
set -euo pipefail
cd "$(dirname "$0")/.."
CENTRAL=${MAVEN_CENTRAL:-https://repo.maven.apache.org/maven2}

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

folder=$1; shift
cache=${XDG_CACHE_HOME:-$HOME/.cache}/penstock
mkdir -p "$folder" "$cache"
new=
trap '[ -z "$new" ] || rm -rf "$new"' EXIT
for name in "$@"; do
  list=deploy/$name/jars.txt
  [ -f "$list" ] || die "deploy/jars.sh fetches kafka, connect, flink and delta-spark, not $name"
  home=$cache/$name-$(sha256sum "$list" | cut -c 1-16)
  exec 9> "$cache/$name.lock"
  flock 9
  if [ ! -d "$home" ]; then
    say "fetching the $(grep -vc '^#' "$list") jars of $name from $CENTRAL"
    new=$(mktemp -d "$cache/$name.new.XXXXXX")
    while read -r sum path; do
      jar=$new/${path##*/}
      curl --fail --silent --show-error --location --retry 3 --output "$jar" "$CENTRAL/$path" \
        || die "could not fetch $path from $CENTRAL; run it again"
      echo "$sum  $jar" | sha256sum --quiet --check || die "$path is not what deploy/$name/jars.txt says"
    done < <(grep -v '^#' "$list")
    chmod 755 "$new"
    mv "$new" "$home"
    new=
  fi
  ln -sfn "$home" "$folder/$name"
done
