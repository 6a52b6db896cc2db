#!/usr/bin/env bash
# Takes over into corpus/ what work/ has found and the corpus does not reach: ./minimise.sh [TARGET...]
set -euo pipefail
cd "$(dirname "$0")"
target_dir=${FUZZ_TARGET_DIR:-../target/fuzz}
export TMPDIR=${FUZZ_TMPDIR:-/dev/shm} RAYON_NUM_THREADS=1
targets=("$@")
((${#targets[@]})) || for file in libfuzzer/src/bin/*.rs; do targets+=("$(basename "$file" .rs)"); done
for target in "${targets[@]}"; do
  small=$(mktemp -d)
  "$target_dir/$(rustc --print host-tuple)/debug/$target" -set_cover_merge=1 -max_len="${MAX_LEN:-4096}" "$small" "corpus/$target" "work/$target" >"work/$target.merge.log" 2>&1
  rm -rf "corpus/$target"
  mv "$small" "corpus/$target"
  echo "$target: $(ls "corpus/$target" | wc -l) inputs, $(du -sk "corpus/$target" | cut -f1) KiB"
done
