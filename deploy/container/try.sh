#!/bin/sh
# Runs the steps of the image in a bare root of the image's release, and then each role as the image's account. As root, in a clone:
#
#   deploy/bare.sh trixie deploy/container/try.sh
set -eu
cd "$(dirname "$0")"
./build.sh
./runtime.sh
PATH=/opt/penstock/bin:$PATH
cd /data
as() { setpriv --reuid 10001 --regid 10001 --clear-groups -- "$@"; }
for role in pump drainer source ctl console verify; do
  as penstock "$role" --help > /dev/null
  echo "penstock $role: it starts"
done
as python -c "from pathlib import Path; from drainer.spark.jvm import use_java; print('Java:', use_java(Path('java')))"
as python -c "import os; from pyspark import SparkConf, SparkContext; s = SparkContext(conf=SparkConf().setMaster('local[1]')); print('Spark:', s.parallelize([1]).count())"
