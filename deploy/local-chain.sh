#!/usr/bin/env bash
# One encrypted chain on this machine, from keys to next token: a coordinator (SQLite, local blobs), two volunteers
# with accounts of their own, quorum 2, and the key holder. Used by demo.sh and smollm2.sh.
#
#   local-chain.sh --params SET --model (FILE.gguf | tiny-llama | tiny-qwen3) --tokens MAX --prompt TEXT
#                  [--sha256 HEX] [--calibration FILE] [--threads N] [--memory SIZE] [--keep DIR] [--json]
#
# --tokens is the longest prompt that the calibration is made for. Calibrations are kept in ~/.cache/cipherhop and used
# again. --threads: threads of each volunteer, 1 by default. --memory: most memory a volunteer's computation
# may use, for example 8GiB; by default each takes what is free when it starts, which two at once may not have.
# Exit code 0 only if the chain completes and the decrypted result is accepted. With --json the last line is one
# summary object.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

params="" model="" sha256="" tokens="" calibration="" prompt="" keep="" threads=1 memory=() json=0
while (($#)); do
  case $1 in
    --params) params=$2; shift 2 ;;
    --model) model=$2; shift 2 ;;
    --sha256) sha256=$2; shift 2 ;;
    --tokens) tokens=$2; shift 2 ;;
    --calibration) calibration=$2; shift 2 ;;
    --prompt) prompt=$2; shift 2 ;;
    --threads) threads=$2; shift 2 ;;
    --memory) memory=(--memory "$2"); shift 2 ;;
    --keep) keep=$2; shift 2 ;;
    --json) json=1; shift ;;
    *) echo "local-chain.sh: unknown argument '$1' (see the head of the script)" >&2; exit 2 ;;
  esac
done
[[ -n $params && -n $prompt && -n $model && -n $tokens ]] || {
  echo "local-chain.sh: needs --params, --model, --tokens and --prompt" >&2; exit 2; }

say() { printf '%s\n' "$*" >&2; }
field() { python3 -c 'import json,sys; print(json.loads(sys.stdin.read().strip().splitlines()[-1])[sys.argv[1]])' "$1"; }

say "building (release)"
cargo build --manifest-path "$root/Cargo.toml" --release --locked --bins >&2
bin="${CARGO_TARGET_DIR:-$root/target}/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}release"

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

owner() { "$bin/cipherhop-owner" "$@"; }
# A prompt that is too long is refused before anything is made for it.
if [[ -n $calibration ]]; then limit=(--calibration "$calibration"); else limit=(--tokens "$tokens"); fi
owner prompt check "$model" --params "$params" --prompt "$prompt" "${limit[@]}" >&2
insecure=()
[[ $params == *INSECURE* ]] && insecure=(--allow-insecure)

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

coordinator() { "$bin/cipherhop-coordinator" "$@" --coordinator "$url" --data "$work/coordinator" --json; }
(umask 077; coordinator token create --role owner --account key-holder | field token >"$work/owner.token")
for who in alice bob; do
  invite=$(coordinator token create --role invite --account "$who" | field token)
  "$bin/cipherhop-worker" enroll --coordinator "$url" --invite "$invite" --name "$who" --data "$work/$who" >&2
done

say "key holder: keys, model, calibration, chain"
export CIPHERHOP_TOKEN_FILE=$work/owner.token CIPHERHOP_COORDINATOR=$url
owner keygen --params "$params" "${insecure[@]}" --out "$work/keys" >&2
owner model import "$model" ${sha256:+--sha256 "$sha256"} >&2
if [[ -z $calibration ]]; then
  calibration=$(owner --json model calibrate "$model" --tokens "$tokens" | field calibration)
fi
name=local-$(date +%s)
owner --json chain create --name "$name" --keys "$work/keys" --model "$model" --calibration "$calibration" \
  --prompt "$prompt" --quorum 2 "${insecure[@]}" --out "$work/chain" >"$work/created.json" || {
    cat "$work/created.json" >&2; exit 1; }

say "two volunteers claim, run and submit the hops"
workers=()
for who in alice bob; do
  "$bin/cipherhop-worker" --json run --data "$work/$who" --until-done "$name" --threads "$threads" "${memory[@]}" "${insecure[@]}" \
    >"$work/$who.out" 2>"$work/$who.log" &
  pids+=($!) workers+=($!)
done
python3 "$root/deploy/peak_memory.py" "${workers[@]}" >"$work/memory.json" 2>"$work/memory.log" &
pids+=($!)
# In the background, so that a signal to this script ends it at once.
owner chain wait --chain "$work/chain" >&2 &
pids+=($!)
wait $!

say "key holder: decrypting and comparing with the plaintext model"
owner --json chain result --chain "$work/chain" >"$work/result.json" || { cat "$work/result.json" >&2; exit 1; }
python3 "$root/deploy/chain_summary.py" "$work" "$started" "$json"
