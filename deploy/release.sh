#!/usr/bin/env bash
# Static release programs: they run on any Linux kernel of this architecture, in an empty container image too.
#
#   release.sh [--out DIR]            dist/ by default: three programs and SHA256SUMS
#
# Takes musl where rustup has its target and a musl C compiler is installed, otherwise glibc linked statically. Each program is checked to need no
# loader and no library, and to start in an empty folder.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

out=$root/dist
while (($#)); do
  case $1 in
    --out) out=$2; shift 2 ;;
    *) echo "release.sh: unknown argument '$1' (see the head of the script)" >&2; exit 2 ;;
  esac
done
command -v file >/dev/null || { echo "release.sh: needs the program 'file' (Debian package file)" >&2; exit 1; }

# shellcheck source=deploy/static.env.sh
. "$root/deploy/static.env.sh"
cargo build --manifest-path "$root/Cargo.toml" --release --locked --bins
built=${CARGO_TARGET_DIR:-$root/target}/$CARGO_BUILD_TARGET/release

mkdir -p "$out"
for program in coordinator worker owner; do
  install -m 0755 "$built/cipherhop-$program" "$out/cipherhop-$program"
  strip "$out/cipherhop-$program"
  what=$(file --brief "$out/cipherhop-$program")
  case $what in
    *"statically linked"* | *"static-pie linked"*) ;;
    *) echo "release.sh: cipherhop-$program is not static: $what" >&2; exit 1 ;;
  esac
  if readelf --wide --dynamic "$out/cipherhop-$program" | grep -q NEEDED || readelf --wide --program-headers "$out/cipherhop-$program" | grep -q INTERP; then
    echo "release.sh: cipherhop-$program needs a library or a loader" >&2
    exit 1
  fi
  "$out/cipherhop-$program" --version
done
(cd "$out" && sha256sum cipherhop-coordinator cipherhop-worker cipherhop-owner >SHA256SUMS)
echo "static programs for $CARGO_BUILD_TARGET in $out"
