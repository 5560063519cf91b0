#!/bin/sh
# The image's second stage: what Penstock runs on, an account for it, and a folder that this account may write.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3 libleveldb1d openjdk-21-jre-headless
rm -rf /var/lib/apt/lists/*
groupadd --gid 10001 penstock
useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin penstock
install -d -o penstock -g penstock -m 700 /data
