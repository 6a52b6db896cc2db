#!/usr/bin/env bash
# The main job on a tiny built-in model: three encrypted hops, two volunteers, one decrypted next token.
#   ./deploy/demo.sh [--json] [--shape llama|qwen3] [PROMPT]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
shape=llama prompt="abc" args=()
while (($#)); do
  case $1 in
    --json) args+=(--json); shift ;;
    --shape) shape=$2; shift 2 ;;
    --keep) args+=(--keep "$2"); shift 2 ;;
    -*) echo "demo.sh: unknown option '$1'; usage: demo.sh [--json] [--shape llama|qwen3] [--keep DIR] [PROMPT]" >&2; exit 2 ;;
    *) prompt=$1; shift ;;
  esac
done
exec "$here/local-chain.sh" --params n11-INSECURE --model "tiny-$shape" --tokens 3 --prompt "$prompt" "${args[@]}"
