#!/usr/bin/env bash
# Installs programs and systemd units on this machine; run as root. What is there is replaced, settings are kept.
#
#   install.sh [--root DIR] [--programs DIR] coordinator|worker...
#
# --programs: folder with the built programs, dist/ of release.sh by default. --root: install below this folder, for
# packages and tests; users are then not made.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

root="" programs=$here/../dist roles=()
while (($#)); do
  case $1 in
    --root) root=$2; shift 2 ;;
    --programs) programs=$2; shift 2 ;;
    coordinator | worker) roles+=("$1"); shift ;;
    *) echo "install.sh: unknown argument '$1' (see the head of the script)" >&2; exit 2 ;;
  esac
done
((${#roles[@]})) || { echo "install.sh: say coordinator, worker or both" >&2; exit 2; }

put() { install -D -m "$1" "$2" "$root$3"; }
for role in "${roles[@]}"; do
  put 0755 "$programs/cipherhop-$role" "/usr/bin/cipherhop-$role"
  put 0644 "$here/systemd/cipherhop-$role.service" "/usr/lib/systemd/system/cipherhop-$role.service"
  if [[ $role == coordinator ]]; then
    for unit in cipherhop-backup.service cipherhop-backup.timer; do put 0644 "$here/systemd/$unit" "/usr/lib/systemd/system/$unit"; done
    for script in backup.sh restore.sh; do put 0755 "$here/$script" "/usr/lib/cipherhop/$script"; done
    [[ -e $root/etc/cipherhop/coordinator.toml ]] || put 0644 "$here/config/coordinator.toml" /etc/cipherhop/coordinator.toml
  fi
done
put 0644 "$here/systemd/sysusers.conf" /usr/lib/sysusers.d/cipherhop.conf
put 0644 "$here/systemd/tmpfiles.conf" /usr/lib/tmpfiles.d/cipherhop.conf
if [[ -z $root ]]; then
  systemd-sysusers cipherhop.conf
  systemd-tmpfiles --create cipherhop.conf
  systemctl daemon-reload
  echo "next: systemctl enable --now cipherhop-${roles[0]}"
fi
