"""Largest resident memory (VmHWM) of the processes given by id and of all their children, until the processes end.

Prints one JSON object after every new peak, so that the last line counts whenever this is stopped.
"""
import json
import os
import sys
import time


def status(pid):
    try:
        with open(f"/proc/{pid}/status") as text:
            return dict(line.split(":", 1) for line in text if ":" in line)
    except OSError:
        return {}


def kib(facts, name):
    return int(facts.get(name, "0 kB").split()[0])


def main():
    roots = [int(pid) for pid in sys.argv[1:]]
    peak = {"process_bytes": 0, "together_bytes": 0}
    while any(os.path.exists(f"/proc/{pid}") for pid in roots):
        facts = {int(p): status(p) for p in os.listdir("/proc") if p.isdigit()}
        parents = {pid: int(f.get("PPid", "0")) for pid, f in facts.items()}

        def ours(pid):
            while pid and pid not in roots:
                pid = parents.get(pid, 0)
            return bool(pid)

        family = [f for pid, f in facts.items() if ours(pid)]
        now = {
            "process_bytes": max((kib(f, "VmHWM") for f in family), default=0) * 1024,
            "together_bytes": sum(kib(f, "VmRSS") for f in family) * 1024,
        }
        best = {key: max(peak[key], value) for key, value in now.items()}
        if best != peak:
            peak = best
            print(json.dumps(peak), flush=True)
        time.sleep(0.5)


main()
