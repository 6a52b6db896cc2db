#!/usr/bin/env bash
# One encrypted chain on this machine, from keys to next token: a coordinator (SQLite, local blobs), two volunteers
# with accounts of their own, quorum 2, and the key holder. Used by demo.sh and smollm2.sh.
#
#   local-chain.sh --params SET (--builtin NAME | --gguf FILE) [--calibration FILE] --prompt TEXT
#                  [--keep DIR] [--json]
#
# Exit code 0 only if the chain completes and the decrypted result is accepted. With --json the last line is one
# summary object.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

params="" builtin="" gguf="" calibration="" prompt="" keep="" json=0
while (($#)); do
  case $1 in
    --params) params=$2; shift 2 ;;
    --builtin) builtin=$2; shift 2 ;;
    --gguf) gguf=$2; shift 2 ;;
    --calibration) calibration=$2; shift 2 ;;
    --prompt) prompt=$2; shift 2 ;;
    --keep) keep=$2; shift 2 ;;
    --json) json=1; shift ;;
    *) echo "local-chain.sh: unknown argument '$1' (see the head of the script)" >&2; exit 2 ;;
  esac
done
[[ -n $params && -n $prompt && ( -n $builtin || -n $gguf ) ]] || {
  echo "local-chain.sh: needs --params, --prompt and --builtin or --gguf" >&2; exit 2; }

say() { printf '%s\n' "$*" >&2; }
field() { python3 -c 'import json,sys; print(json.loads(sys.stdin.read().strip().splitlines()[-1])[sys.argv[1]])' "$1"; }

say "building (release)"
cargo build --manifest-path "$root/Cargo.toml" --release --locked --bins >&2
bin="${CARGO_TARGET_DIR:-$root/target}/release"

if [[ -n $keep ]]; then mkdir -p "$keep"; work=$(cd "$keep" && pwd); else work=$(mktemp -d); fi
pids=()
cleanup() {
  local code=$?
  trap - EXIT INT TERM
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  if ((code != 0)); then
    say "failed (exit $code); last log lines:"
    for log in "$work"/*.log; do [[ -f $log ]] && { say "--- ${log##*/}"; tail -n 15 "$log" >&2; }; done
  fi
  [[ -n $keep ]] || rm -rf "$work"
  exit "$code"
}
trap cleanup EXIT INT TERM

started=$(date +%s.%N)
say "starting a coordinator in $work"
"$bin/cipherhop-coordinator" serve --data "$work/coordinator" --listen 127.0.0.1:0 \
  >"$work/coordinator.out" 2>"$work/coordinator.log" &
pids+=($!)
url=""
for _ in $(seq 100); do
  url=$(grep -o 'http://[0-9.]*:[0-9]*' "$work/coordinator.out" | head -n 1 || true)
  [[ -n $url ]] && break
  kill -0 "${pids[0]}" 2>/dev/null || { say "the coordinator did not start"; exit 1; }
  sleep 0.1
done
[[ -n $url ]] || { say "the coordinator gave no address within 10 s"; exit 1; }

token() { "$bin/cipherhop-coordinator" token create --coordinator "$url" --data "$work/coordinator" --role "$1" --account "$2" --json | field token; }
owner_token=$(token owner key-holder)
for who in alice bob; do
  "$bin/cipherhop-worker" enroll --coordinator "$url" --invite "$(token invite "$who")" --name "$who" --data "$work/$who" >&2
done

say "key holder: keys, model, calibration, chain"
export CIPHERHOP_TOKEN=$owner_token CIPHERHOP_COORDINATOR=$url
"$bin/cipherhop-owner" keygen --params "$params" --allow-insecure --out "$work/keys" >&2
if [[ -n $builtin ]]; then
  "$bin/cipherhop-owner" model import --builtin "$builtin" --out "$work/model" >&2
else
  "$bin/cipherhop-owner" model import --gguf "$gguf" --out "$work/model" >&2
fi
if [[ -z $calibration ]]; then
  calibration=$work/calibration.json
  "$bin/cipherhop-owner" model calibrate --model "$work/model" --out "$calibration" >&2
fi
chain=local-$(date +%s)
"$bin/cipherhop-owner" chain create --name "$chain" --keys "$work/keys" --model "$work/model" \
  --calibration "$calibration" --prompt "$prompt" --quorum 2 --allow-insecure --state "$work/chain" >&2

say "two volunteers claim, run and submit the hops"
for who in alice bob; do
  "$bin/cipherhop-worker" run --data "$work/$who" --until-done "$chain" --threads 1 \
    >"$work/$who.out" 2>"$work/$who.log" &
  pids+=($!)
done
"$bin/cipherhop-owner" chain wait --name "$chain" >&2

say "key holder: decrypting and comparing with the plaintext model"
if ((json)); then
  seconds=$(python3 -c 'import sys,time; print(round(time.time()-float(sys.argv[1]),1))' "$started")
  "$bin/cipherhop-owner" chain result --state "$work/chain" --keys "$work/keys" --model "$work/model" --json \
    >"$work/result.json" || { cat "$work/result.json" >&2; exit 1; }
  python3 - "$work/result.json" "$seconds" <<'PY'
import json, sys
result = json.loads(open(sys.argv[1]).read().strip().splitlines()[-1])
result["seconds"] = float(sys.argv[2])
print(json.dumps(result))
PY
else
  "$bin/cipherhop-owner" chain result --state "$work/chain" --keys "$work/keys" --model "$work/model"
fi
