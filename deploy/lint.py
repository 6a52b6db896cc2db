"""Checks of deploy/ that no general tool makes: names that must agree between files of different kinds.

Run by lint.sh, which installs what is imported here. Every complaint is printed; exit code 1 if there is one.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import hcl2
import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration

DEPLOY = Path(__file__).resolve().parent
ROOT = DEPLOY.parent
problems = []


def check(good, text):
    """Remembers a complaint."""
    if not good:
        problems.append(text)


def read(path):
    return (DEPLOY / path).read_text()


# --- metrics: alerts and dashboard against docs/metrics.md ---


def known_metrics():
    """Exposed name -> label ('' for none), from the table that a test compares with the program."""
    known = {}
    for line in (ROOT / "docs/metrics.md").read_text().splitlines():
        row = re.match(r"\| `(cipherhop_\w+)` \| (\w*) \| (.*?) \|", line)
        if row:
            name, label, what = row.groups()
            # OpenMetrics appends this to every counter's samples
            known[name + ("_total" if "(a counter)" in what else "")] = label
    return known


def known_values():
    """Label -> its values, from the sources."""
    code = (ROOT / "coordinator/src/metrics.rs").read_text()
    states = set()
    for table in re.findall(r"const (?:CHAINS|HOPS|DEVICES): &\[&str\] = &\[(.*?)\];", code, re.S):
        states |= set(re.findall(r'"(\w+)"', table)) | set(re.findall(r"State::(\w+)\.name", table))
    proto = (ROOT / "proto/proto/cipherhop/v1/volunteer_service.proto").read_text()
    return {"state": states, "outcome": set(re.findall(r"\b(OUTCOME_\w+) =", proto))}


def check_expression(where, text, known, values):
    """Names, labels and label values of one PromQL expression or series; the names used."""
    used = set()
    for name, selector in re.findall(r"\b(cipherhop_\w+)(?:\{(.*?)\})?", text):
        used.add(name)
        if name not in known:
            check(False, f"{where}: {name} is not in docs/metrics.md")
            continue
        for label, kind, value in re.findall(r'(\w+)(=~|=|!=)"([^"]*)"', selector or ""):
            if label in ("job", "instance"):
                continue
            check(label == known[name], f"{where}: {name} has no label {label}")
            if kind == "=~":
                matching = any(re.fullmatch(value, v) for v in values.get(label, ()))
                check(matching, f"{where}: no {label} matches {value}")
            else:
                check(value in values.get(label, ()), f"{where}: {label} is never {value}")
    return used


def check_metrics():
    known, values = known_metrics(), known_values()
    check(len(known) > 10 and all(values.values()), "docs/metrics.md or the sources are not read right")
    rules = [r for g in yaml.safe_load(read("prometheus/alerts.yaml"))["groups"] for r in g["rules"]]
    for rule in rules:
        check_expression(f"alert {rule['alert']}", rule["expr"], known, values)
        check({"summary", "action"} <= set(rule["annotations"]), f"alert {rule['alert']} lacks an annotation")
    tests = yaml.safe_load(read("prometheus/alerts_test.yaml"))["tests"]
    for series in (s["series"] for t in tests for s in t["input_series"]):
        check_expression("alerts_test.yaml", series, known, values)
    # each alert is silent in one test and fires in another
    silent = {a["alertname"] for t in tests for a in t.get("alert_rule_test", ()) if not a.get("exp_alerts")}
    firing = {
        re.search(r'alertname="(\w+)"', s["labels"]).group(1)
        for t in tests
        for e in t.get("promql_expr_test", ())
        for s in e["exp_samples"]
    }
    names = {r["alert"] for r in rules}
    check(silent == names, f"alerts_test.yaml: not shown to be silent: {sorted(names - silent)}")
    check(firing == names, f"alerts_test.yaml: not shown to fire: {sorted(names - firing)}")

    dashboard = json.loads(read("grafana/cipherhop.json"))
    panels, expressions, used = dashboard["panels"], [], set()
    check(len({p["id"] for p in panels}) == len(panels), "dashboard: panel ids are not unique")
    cells = set()
    for panel in panels:
        grid = panel["gridPos"]
        here = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        check(not here & cells and grid["x"] + grid["w"] <= 24, f"dashboard: {panel['title']} overlaps or is too wide")
        cells |= here
        for target in panel["targets"]:
            used |= check_expression(f"panel {panel['title']}", target["expr"], known, values)
            expressions.append(target["expr"].replace("$job", "cipherhop"))
    check(used == set(known), f"dashboard: not shown: {sorted(set(known) - used)}")
    # promtool parses PromQL in rule files only
    rules = [{"record": f"panel:{i}", "expr": e} for i, e in enumerate(expressions)]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}, file)
        file.flush()
        parsed = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True)
        check(parsed.returncode == 0, f"dashboard: {parsed.stdout}{parsed.stderr}")


# --- Kubernetes: selectors, ports and references between objects ---


def check_kubernetes():
    kustomization = yaml.safe_load(read("kubernetes/kustomization.yaml"))
    files = {p.name for p in (DEPLOY / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    check(files == set(kustomization["resources"]), f"kustomization.yaml does not name all of {sorted(files)}")
    objects = [o for f in sorted(files) for o in yaml.safe_load_all(read(f"kubernetes/{f}")) if o]
    by_kind = lambda *kinds: [o for o in objects if o["kind"] in kinds]
    names = {(o["kind"], o["metadata"]["name"]) for o in objects}
    # made by hand, with the commands in the head of kustomization.yaml
    made = re.findall(r"create (secret \w+|configmap) ([\w-]+)", read("kubernetes/kustomization.yaml"))
    names |= {("Secret" if kind.startswith("secret") else "ConfigMap", name) for kind, name in made}

    pods = []
    for o in by_kind("StatefulSet", "Deployment"):
        pods.append((o["metadata"]["name"], o["spec"]["template"]))
        wanted, labels = o["spec"]["selector"]["matchLabels"], o["spec"]["template"]["metadata"]["labels"]
        check(wanted.items() <= labels.items(), f"{o['metadata']['name']}: the selector misses its own pods")
    for o in by_kind("CronJob"):
        pods.append((o["metadata"]["name"], o["spec"]["jobTemplate"]["spec"]["template"]))

    def selected(labels):
        return [t for _, t in pods if labels.items() <= t["metadata"]["labels"].items()]

    for o in by_kind("Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec, name = o["spec"], f"{o['kind']} {o['metadata']['name']}"
        selector = spec.get("podSelector", spec.get("selector", {}))
        if o["kind"] != "Service":
            selector = selector.get("matchLabels", {})
        check(selected(selector), f"{name} selects no pod")
        for port in spec.get("ports", ()):
            ports = {p["name"] for t in selected(selector) for c in t["spec"]["containers"] for p in c.get("ports", ())}
            check(port["targetPort"] in ports, f"{name}: there is no port {port['targetPort']}")
    check(any(o["metadata"]["name"] == "deny-all" for o in by_kind("NetworkPolicy")), "no default NetworkPolicy")

    for name, template in pods:
        spec = template["spec"]
        check(spec["securityContext"].get("runAsNonRoot"), f"{name} may run as root")
        check(spec["automountServiceAccountToken"] is False, f"{name} gets a token of the cluster")
        volumes = {v["name"] for v in spec.get("volumes", ())} | {"data"}
        for volume in spec.get("volumes", ()):
            for kind, key, field in (("Secret", "secret", "secretName"), ("ConfigMap", "configMap", "name")):
                if key in volume:
                    check((kind, volume[key][field]) in names, f"{name}: there is no {kind} {volume[key][field]}")
        for container in spec["containers"] + spec.get("initContainers", []):
            secure = container["securityContext"]
            hard = secure["readOnlyRootFilesystem"] and not secure["allowPrivilegeEscalation"]
            check(hard and secure["capabilities"] == {"drop": ["ALL"]}, f"{name}/{container['name']} is not shut in")
            check({m["name"] for m in container["volumeMounts"]} <= volumes, f"{name}: a mount without a volume")
            for env in container.get("env", ()):
                ref = env.get("valueFrom", {}).get("secretKeyRef")
                check(not ref or ("Secret", ref["name"]) in names, f"{name}: there is no Secret for {env['name']}")
    served = [c for n, t in pods if n == "coordinator" for c in t["spec"]["containers"]][0]
    pages = (ROOT / "coordinator/src/http/mod.rs").read_text()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        path = served[probe]["httpGet"]["path"]
        check(f'.route("{path}"' in pages, f"{probe}: the coordinator has no page {path}")


# --- Terraform, dstack, compose, container files ---


def check_terraform():
    texts = {p.name: p.read_text() for p in (DEPLOY / "terraform").glob("*.tf")}
    for name, text in texts.items():
        try:
            hcl2.loads(text)
        except Exception as error:  # the parser has an exception for every rule
            check(False, f"terraform/{name}: {error}")
    everything = "\n".join(texts.values())
    declared = set(re.findall(r'^variable "(\w+)"', everything, re.M))
    used = set(re.findall(r"\bvar\.(\w+)", everything))
    check(declared == used, f"terraform: variables declared or used alone: {sorted(declared ^ used)}")
    things = set(re.findall(r'^(?:resource|data) "(\w+)" "(\w+)"', everything, re.M))
    for kind, name in re.findall(r"\b(aws_\w+)\.(\w+)", everything):
        check((kind, name) in things, f"terraform: there is no {kind}.{name}")
    template = read("terraform/cloud-init.yaml.tftpl")
    call = re.search(r"templatefile\(.*?\{(.*?)\}\)", texts["main.tf"], re.S).group(1)
    given = set(re.findall(r"^\s*(\w+)\s*=", call, re.M))
    wanted = set(re.findall(r"\$\{(?:base64encode\()?(\w+)\)?\}", template))
    check(given == wanted, f"cloud-init.yaml.tftpl: given and wanted differ: {sorted(given ^ wanted)}")
    rendered = yaml.safe_load(re.sub(r"\$\{.*?\}", "x", template))
    check(rendered["runcmd"] and rendered["write_files"], "cloud-init.yaml.tftpl does not render to cloud-config")


def check_others():
    parse_apply_configuration(yaml.safe_load(read("dstack/worker.dstack.yml")))
    compose = yaml.safe_load(read("compose/compose.yaml"))
    for name, service in compose["services"].items():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("."):
                check((DEPLOY / "compose" / source).exists(), f"compose: {name} mounts {source}, which is not there")
        build = service.get("build")
        check(not build or (ROOT / build["dockerfile"]).is_file(), f"compose: {name}: no file to build from")
    example = read("compose/.env.example")
    for variable in set(re.findall(r"\$\{(\w+)", read("compose/compose.yaml"))):
        check(f"{variable}=" in example, f"compose: .env.example lacks {variable}")
    for role in ("coordinator", "worker", "owner"):
        text = read(f"container/Containerfile.{role}")
        final = text[text.rindex("\nFROM ") + 1 :]
        check(final.startswith("FROM scratch\n"), f"Containerfile.{role}: the last stage is not empty")
        check(re.search(r"^USER \d+:\d+$", final, re.M), f"Containerfile.{role} runs as root")
        check("\nRUN " not in final, f"Containerfile.{role}: an empty image has no shell to RUN with")


check_metrics()
check_kubernetes()
check_terraform()
check_others()
for problem in problems:
    print(problem, file=sys.stderr)
sys.exit(bool(problems))
