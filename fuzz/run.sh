#!/usr/bin/env bash
# Fuzzes every parser of foreign bytes: ./run.sh SECONDS [TARGET...]
# Two at a time; findings are left in findings/, new inputs in work/ (./minimise.sh takes the useful ones over).
set -uo pipefail
cd "$(dirname "$0")"
seconds=$1
shift
target_dir=${FUZZ_TARGET_DIR:-../target/fuzz}
export CARGO_INCREMENTAL=0 TMPDIR=${FUZZ_TMPDIR:-/dev/shm}
# With a target named, build scripts are built apart from it, and without counters that nothing would take.
triple=$(rustc --print host-tuple)
targets=("$@")
bins=()
for target in "${targets[@]}"; do bins+=(--bin "$target"); done
(cd libfuzzer && RUSTC_WRAPPER=$PWD/../instrument.sh cargo build --locked --target "$triple" --target-dir "../$target_dir" "${bins[@]}") || exit 1
if ((${#targets[@]} == 0)); then
  for file in libfuzzer/src/bin/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
mkdir -p findings work

fuzz() {
  mkdir -p "work/$1" "corpus/$1"
  local dict=()
  [[ -f dict/$1 ]] && dict=(-dict="dict/$1")
  # RAYON_NUM_THREADS: one input, one thread. Stops at the first finding.
  RAYON_NUM_THREADS=1 "$target_dir/$triple/debug/$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1500 \
    -max_len="${2:-16384}" -print_final_stats=1 -artifact_prefix="findings/$1-" "${dict[@]}" "work/$1" "corpus/$1" \
    >"work/$1.log" 2>&1
  local status=$?
  echo "$1: $(grep -o 'stat::number_of_executed_units: .*' "work/$1.log" | grep -o '[0-9]*$') executions, exit $status"
  return $status
}
export -f fuzz
export seconds target_dir triple

for target in "${targets[@]}"; do
  case $target in
  calibration | program) echo "$target 131072" ;;
  *) echo "$target 16384" ;;
  esac
done | xargs -P "${FUZZ_JOBS:-2}" -L 1 bash -c 'fuzz "$0" "$1"'
