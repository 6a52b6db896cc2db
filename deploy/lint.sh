#!/usr/bin/env bash
# Checks everything under deploy/ with the tools of its kind: scripts, units, containers, compose, Kubernetes, Terraform,
# dstack, alert rules and the dashboard. Installs the tools it lacks from Debian and PyPI; needs root for Debian's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

declare -A packages=([shellcheck]=shellcheck [promtool]=prometheus [docker-compose]=docker-compose [systemd-analyze]=systemd [file]=file)
missing=()
for tool in "${!packages[@]}"; do command -v "$tool" >/dev/null || missing+=("${packages[$tool]}"); done
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if ((${#missing[@]})); then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
tools=${XDG_CACHE_HOME:-$HOME/.cache}/cipherhop/lint-$(sha256sum lint-requirements.txt | cut -c 1-12)
if [[ ! -e $tools/ready ]]; then
  rm -rf "$tools"
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check --retries 10 --requirement lint-requirements.txt
  touch "$tools/ready"
fi
export PATH=$tools/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf -- '-- %s\n' "$1"; }
# systemd-analyze warns with exit code 0: a word about our units is a failure; other units are this machine's own.
verified() {
  local said
  if ! said=$(systemd-analyze verify --man=no "$@" 2>&1) || [[ $said == *cipherhop* ]]; then
    printf '%s\n' "$said" >&2
    return 1
  fi
}

say "scripts"
shellcheck --external-sources --source-path=SCRIPTDIR/.. ./*.sh ../.ci/run
for script in *.py; do python3 -m py_compile "$script"; done

say "YAML"
yamllint --strict --config-file yamllint.yaml .

say "systemd units"
# a root with this machine's own units, the installed files and programs that exist
mkdir -p "$work/programs" "$work/root/usr/lib/systemd/system"
for program in coordinator worker; do install -m 0755 /bin/true "$work/programs/cipherhop-$program"; done
cp -r /usr/lib/systemd/system/. "$work/root/usr/lib/systemd/system/"
./install.sh --root "$work/root" --programs "$work/programs" coordinator worker
verified --root="$work/root" \
  cipherhop-coordinator.service cipherhop-worker.service cipherhop-backup.service cipherhop-backup.timer
for unit in coordinator worker backup; do
  # 0 is fully shut in, 10 open to everything
  systemd-analyze security --offline=true --no-pager --threshold=20 "systemd/cipherhop-$unit.service" >"$work/security" || {
    cat "$work/security" >&2; exit 1; }
  grep -o 'Overall exposure.*' "$work/security"
done
systemd-sysusers --root="$work/root" "$work/root/usr/lib/sysusers.d/cipherhop.conf" 2>/dev/null
systemd-tmpfiles --root="$work/root" --create "$work/root/usr/lib/tmpfiles.d/cipherhop.conf"
[[ -d $work/root/var/backups/cipherhop ]]

say "container files"
hadolint --config hadolint.yaml container/Containerfile.*

say "compose"
POSTGRES_PASSWORD=x S3_PASSWORD=x GRAFANA_PASSWORD=x docker-compose --file compose/compose.yaml \
  --profile backup --profile monitoring config --quiet

say "Kubernetes"
find kubernetes -name '*.yaml' ! -name kustomization.yaml -exec kubernetes-validate --strict --quiet {} +

say "Prometheus"
promtool check rules prometheus/alerts.yaml
promtool test rules prometheus/alerts_test.yaml
promtool check config prometheus/prometheus.yaml >/dev/null

say "what only this project knows"
python lint.py
say "deploy/ is in order"
