#!/usr/bin/env bash
# Runs every test of the workspace; extra arguments go to cargo test.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo test --workspace --locked "$@"
