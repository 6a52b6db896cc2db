#!/usr/bin/env bash
# Runs what an operator deploys, without a container engine: the container images' contents in empty read-only roots,
# under the users they name; backup and restore of a running coordinator; settings; pages; the system calls that the
# systemd units allow. Needs root for the roots; needs built programs:
#
#   ops_test.sh [PROGRAMS]            by default those of release.sh, dist/
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dist=$(cd "${1:-$here/../dist}" && pwd)

# Not every container lets its root mount and trace.
# shellcheck disable=SC2016
if ((EUID != 0)) || ! unshare --mount bash -c 'mount --bind /usr /usr && mount -o remount,bind,ro /usr && mount -t proc proc /proc' 2>/dev/null; then
  echo "SKIPPED: ops_test.sh needs to be root and to be allowed to mount" >&2
  [[ ${CIPHERHOP_NO_SKIPS:-} != 1 ]] || exit 1
  exit 0
fi
missing=()
command -v strace >/dev/null || missing+=(strace)
command -v curl >/dev/null || missing+=(curl)
if ((${#missing[@]})); then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

traces=1
strace -o /dev/null true 2>/dev/null || traces=0

work=$(mktemp -d)
chmod 755 "$work"
pids=()
cleanup() {
  local code=$?
  trap - EXIT INT TERM
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  if ((code != 0)); then
    for log in "$work"/*.log; do echo "--- ${log##*/}"; tail -n 15 "$log"; done >&2
  fi
  rm -rf "$work"
  exit "$code"
}
trap cleanup EXIT INT TERM
say() { printf -- '-- %s\n' "$1"; }
fail() { echo "ops_test.sh: $1" >&2; exit 1; }
field() { python3 -c 'import json,sys; print(json.loads(sys.stdin.read().strip().splitlines()[-1])[sys.argv[1]])' "$1"; }

say "the images' contents"
for role in coordinator worker owner; do
  python3 "$here/rootfs.py" "$here/container/Containerfile.$role" "$dist" "$work/$role" >"$work/$role.start"
done
# A program of an image: read-only root, its user and environment, /proc, and a folder $work/ROLE.data at /data. A file in
# TRACE gets the system calls.
image() {
  local role=$1 user="" entrypoint="" env=() trace=()
  shift
  # shellcheck source=/dev/null
  . "$work/$role.start"
  [[ -z ${TRACE:-} || $traces == 0 ]] || trace=(strace --daemonize --follow-forks --quiet=all --output "$TRACE")
  # shellcheck disable=SC2016
  exec unshare --mount -- bash -euc '
    root=$1; shift
    mount --bind "$root" "$root"
    mount -o remount,bind,ro "$root"
    mount --bind "$root.data" "$root/data"
    mount -t proc proc "$root/proc"
    exec "$@"' image "$work/$role" env --ignore-environment "${env[@]}" "${trace[@]}" \
    /usr/bin/setpriv --no-new-privs /usr/sbin/chroot --userspec="$user" "$work/$role" "$entrypoint" "$@"
}
coordinator() { (image coordinator --json "$@"); }
for role in coordinator worker owner; do
  # shellcheck source=/dev/null
  (. "$work/$role.start" && install -d -m 0700 -o "${user%:*}" -g "${user#*:}" "$work/$role.data")
done
give() { install -m 0600 -o "$(stat -c %u "$work/$2.data")" "$1" "$work/$2.data/"; }

say "settings"
for settings in config compose; do
  "$dist/cipherhop-coordinator" config check --config "$here/$settings/coordinator.toml" >/dev/null
done
python3 - "$here/kubernetes/coordinator.yaml" >"$work/kubernetes.toml" <<'END'
import re, sys, textwrap
print(textwrap.dedent(re.search(r"coordinator\.toml: \|\n(.*?)\n---", open(sys.argv[1]).read(), re.S).group(1)))
END
"$dist/cipherhop-coordinator" config check --config "$work/kubernetes.toml" >/dev/null

say "a coordinator from its image, over TLS"
coordinator dev-cert --out /data/tls --host localhost >/dev/null
TRACE=$work/coordinator.trace image coordinator --json serve --data /data --listen 127.0.0.1:0 --http 127.0.0.1:0 \
  --tls-cert /data/tls/server.pem --tls-key /data/tls/server.key >"$work/coordinator.out" 2>"$work/coordinator.log" &
pids+=($!)
wait_for() { # FILE PATTERN
  for _ in $(seq 300); do
    grep -qE "$2" "$1" && return
    sleep 0.1
  done
  fail "no '$2' within 30 s"
}
wait_for "$work/coordinator.out" ready
wait_for "$work/coordinator.log" "HTTP pages"
port=$(field url <"$work/coordinator.out" | grep -o '[0-9]*$')
pages=http://$(grep -m 1 "HTTP pages" "$work/coordinator.log" | grep -oE '127\.0\.0\.1:[0-9]+' | head -n 1)
url=https://localhost:$port
admin=(--coordinator "$url" --ca /data/tls/ca.pem --data /data)
for role in worker owner; do give "$work/coordinator.data/tls/ca.pem" "$role"; done

say "pages and metrics"
[[ $(curl -fsS "$pages/healthz") == ok && $(curl -fsS "$pages/readyz") == ready ]]
curl -fsS "$pages/metrics" >"$work/metrics"
while read -r name; do
  grep -q "^# TYPE $name " "$work/metrics" || fail "/metrics lacks $name of docs/metrics.md"
done < <(sed -nE 's/^\| .(cipherhop_\w+).*/\1/p' "$here/../docs/metrics.md")

say "key holder and volunteer from their images"
coordinator token create --role owner --account key-holder "${admin[@]}" | field token >"$work/owner.token"
give "$work/owner.token" owner
owner() { (image owner --json "$@" 2>>"$work/owner.log"); }
at=(--coordinator "$url" --token-file /data/owner.token --ca /data/ca.pem)
owner keygen --params n11-INSECURE --allow-insecure --out /data/keys >/dev/null
owner model calibrate tiny-llama --tokens 3 --out /data/calibration.json >/dev/null
owner chain create "${at[@]}" --name ops --keys /data/keys --model tiny-llama --calibration /data/calibration.json \
  --prompt abc --allow-insecure --out /data/chain >"$work/created.log"
invite=$(coordinator token create --role invite --account alice "${admin[@]}" | field token)
worker() { (image worker --json "$@"); }
for _ in 1 2; do # as often as a machine starts
  worker enroll --if-needed --coordinator "$url" --ca /data/ca.pem --name alice --invite - <<<"$invite" >>"$work/enrolled"
done
[[ $(sort -u "$work/enrolled" | wc -l) == 1 ]] || fail "the second enrolment made another device"
worker doctor >"$work/doctor.log" 2>&1
TRACE=$work/worker.trace image worker run --once --allow-insecure --threads 2 >"$work/run.log" 2>&1 &
wait $!
coordinator chain show ops "${admin[@]}" >"$work/before"
grep -qE '"results_waiting": ?1' "$work/before" || fail "the result did not arrive: $(cat "$work/before")"

say "backup of the running coordinator, and a restore"
export CIPHERHOP_COORDINATOR_PROGRAM=$dist/cipherhop-coordinator
for _ in 1 2; do
  backup=$("$here/backup.sh" --data "$work/coordinator.data" --to "$work/backups" --keep 1 2>>"$work/backup.log")
  sleep 1
done
[[ $(find "$work/backups" -mindepth 1 -maxdepth 1 -name '2*') == "$backup" ]] || fail "--keep 1 left other backups"
"$here/restore.sh" --from "$work/backups" --data "$work/restored" >"$work/restore.log" 2>&1
cp -r "$backup" "$work/damaged"
find "$work/damaged/blobs" -type f | head -n 1 | xargs -I{} sh -c 'printf x >>"{}"'
! "$here/restore.sh" --from "$work/damaged" --data "$work/other" >"$work/damaged.log" 2>&1 || fail "a damaged backup was restored"
[[ ! -e $work/other ]] || fail "a damaged backup left a data folder"

kill "${pids[0]}"
wait "${pids[0]}" || fail "the coordinator ended with $?"
"$dist/cipherhop-coordinator" --json serve --data "$work/restored" --listen 127.0.0.1:0 >"$work/again.out" 2>"$work/again.log" &
pids=($!)
wait_for "$work/again.out" ready
"$dist/cipherhop-coordinator" --json chain show ops --data "$work/restored" --coordinator "$(field url <"$work/again.out")" >"$work/after"
python3 - "$work/before" "$work/after" <<'END'
import json, sys

def state(path):
    chain = json.load(open(path))
    hops = chain["hops"]
    return chain.get("chain", {}).get("chain_id"), [(h["hop"], h["state"], h["attempts"], h["results_waiting"]) for h in hops]

before, after = map(state, sys.argv[1:])
assert before == after, (before, after)
END

say "system calls that the units allow"
if ((traces == 0)); then
  echo "SKIPPED: tracing is not allowed here" >&2
  [[ ${CIPHERHOP_NO_SKIPS:-} != 1 ]] || exit 1
  exit 0
fi
python3 "$here/syscalls.py" "$here/systemd/cipherhop-coordinator.service" "$work/coordinator.trace" /cipherhop-coordinator
python3 "$here/syscalls.py" "$here/systemd/cipherhop-worker.service" "$work/worker.trace" /cipherhop-worker
say "what operators deploy runs"
