#!/usr/bin/env bash
# A data folder from a backup, checked before and after.
#
#   restore.sh --from BACKUP --data DIR [--config FILE]
#
# --config: settings of the new coordinator; where its blobs are in a bucket, they are put there. BACKUP is one backup, or a folder of them made by backup.sh: then the newest. DIR must be new or empty. A backup of a PostgreSQL
# database needs CIPHERHOP_DATABASE_URL with the address of an empty one, and pg_restore. Then start the coordinator on
# DIR: volunteers hand in again what they finished since, tokens made since are unknown, the admin token is a new one. Put your copy of
# ledger.key into DIR before the start, or the archive is signed with a new key from then on.
set -euo pipefail

from="" data="" config=()
while (($#)); do
  case $1 in
    --from) from=$2; shift 2 ;;
    --data) data=$2; shift 2 ;;
    --config) config=(--config "$2"); shift 2 ;;
    *) echo "restore.sh: unknown argument '$1' (see the head of the script)" >&2; exit 2 ;;
  esac
done
[[ -n $from && -n $data ]] || { echo "restore.sh: needs --from BACKUP and --data DIR" >&2; exit 2; }
program=${CIPHERHOP_COORDINATOR_PROGRAM:-cipherhop-coordinator}

if [[ ! -f $from/manifest.sha256 ]]; then
  newest=$(find "$from" -mindepth 2 -maxdepth 2 -name manifest.sha256 -not -path '*/.partial-*' | sort | tail -n 1)
  [[ -n $newest ]] || { echo "restore.sh: $from is no finished backup and holds none" >&2; exit 1; }
  from=${newest%/manifest.sha256}
fi
(cd "$from" && sha256sum --check --quiet manifest.sha256) >&2 || { echo "restore.sh: $from is damaged; take another backup" >&2; exit 1; }
umask 077
"$program" restore --from "$from" --data "$data" "${config[@]}" >&2
"$program" doctor --data "$data" "${config[@]}" >&2
echo "$data"
