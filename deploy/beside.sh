#!/usr/bin/env bash
# Installs a wheel with the extra `all` beside popular packages that also use protobuf and gRPC, without constraints, once with
# their newest versions and once with the oldest protobuf and gRPC that Penstock permits. Each time everything is imported in one
# process, the programs start, and pip finds no conflict; with the oldest versions the demo must also run.
#
#   deploy/beside.sh dist/penstock_binlog-0.2.0-py3-none-any.whl
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$(realpath "$1") python=$PWD/.venv/bin/python
home=$(mktemp -d "${TMPDIR:-/tmp}/penstock-beside.XXXXXX")
trap 'rm -rf "$home"' EXIT

unset PYTHONPATH  # What runs is the wheel.

oldest() { "$python" -c "from deploy.generated import $1; print($1)"; }

beside() {  # NAME PACKAGE...: an environment of that name, with Penstock and the packages
  local name=$1; shift
  "$python" -m venv "$home/$name"
  (
    cd "$home"
    PATH=$home/$name/bin:$PATH
    pip install --quiet --disable-pip-version-check "$@"
    pip check
    python -W error::UserWarning -c '
import penstock.stream, penstock.pb.penstock_pb2_grpc, pump.build, drainer.build, pumpclient.mysql.source.service
import streamlit, temporalio.client, opentelemetry.sdk.trace
import opentelemetry.exporter.otlp.proto.grpc.trace_exporter, opentelemetry.exporter.otlp.proto.http.trace_exporter'
    for program in '' ctl pump drainer source; do penstock $program --help > help; done
    pip list | grep -E '^(grpcio|protobuf|streamlit|temporalio|opentelemetry-exporter-otlp) ' | tr -s ' \n' ' '
  )
  printf '\nbeside: [%s] Penstock works beside them\n' "$name"
}

beside newest "$wheel[all]" streamlit temporalio opentelemetry-sdk opentelemetry-exporter-otlp
beside oldest "$wheel[demo,kafka,console,jre]" 'streamlit<1.55' 'temporalio<1.25' 'opentelemetry-sdk<1.41' \
  'opentelemetry-exporter-otlp<1.41' "protobuf==$(oldest PROTOBUF)" "grpcio==$(oldest GRPC)"
(cd "$home" && oldest/bin/penstock demo --rows 5000 --transactions 500)
