#!/usr/bin/env bash
# A backup of a running coordinator in a folder of its own, checked, with old ones removed.
#
#   backup.sh --data DIR --to FOLDER [--keep N] [--config FILE] [--without-blobs]
#
# --config: the coordinator's settings, where blobs are in a bucket; --without-blobs: of a bucket that is kept by other
# means, see docs/storage.md. Makes FOLDER/2026-01-31T033000Z (UTC) and prints its path. A database in PostgreSQL: set CIPHERHOP_DATABASE_URL; needs
# pg_dump. --keep removes all but the newest N finished backups, 14 by default, 0 removes none. The exit code is 0 only if the
# backup is complete and every byte of it was read again and has its digest.
set -euo pipefail

data="" to="" keep=14 more=()
while (($#)); do
  case $1 in
    --data) data=$2; shift 2 ;;
    --to) to=$2; shift 2 ;;
    --keep) keep=$2; shift 2 ;;
    --config) more+=(--config "$2"); shift 2 ;;
    --without-blobs) more+=(--without-blobs); shift ;;
    *) echo "backup.sh: unknown argument '$1' (see the head of the script)" >&2; exit 2 ;;
  esac
done
[[ -n $data && -n $to && $keep =~ ^[0-9]+$ ]] || { echo "backup.sh: needs --data DIR and --to FOLDER; --keep is a number" >&2; exit 2; }
program=${CIPHERHOP_COORDINATOR_PROGRAM:-cipherhop-coordinator}

umask 077
mkdir -p "$to"
exec 9>"$to/.lock"
flock --nonblock 9 || { echo "backup.sh: another backup into $to is running" >&2; exit 1; }

# What an interrupted run left; nobody else writes here while the lock is held.
rm -rf "$to"/.partial-*
name=$(date -u +%Y-%m-%dT%H%M%SZ)
partial=$to/.partial-$name
trap 'rm -rf "$partial"' EXIT
"$program" backup --data "$data" --to "$partial" "${more[@]}" >&2
(cd "$partial" && sha256sum --check --quiet manifest.sha256) >&2
[[ ! -e $to/$name ]] || { echo "backup.sh: $to/$name exists already" >&2; exit 1; }
mv "$partial" "$to/$name"
sync -f "$to"

if ((keep > 0)); then
  # names sort by time
  find "$to" -mindepth 1 -maxdepth 1 -type d -regextype posix-extended -regex '.*/[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{6}Z' | sort | head -n "-$keep" |
    while IFS= read -r old; do rm -rf "$old"; done
fi
echo "$to/$name"
