#!/bin/sh
# The image's first stage: Penstock with all its packages in /opt/penstock, from the clone that this file is in.
set -eu
cd "$(dirname "$0")/../.."
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# plyvel has no wheel for Python 3.13 and later: it is built.
apt-get install -y -qq --no-install-recommends python3 python3-venv python3-dev g++ libleveldb-dev ca-certificates
python3 -m venv /opt/penstock
/opt/penstock/bin/pip install --quiet --disable-pip-version-check --constraint deploy/constraints.txt '.[all]'
