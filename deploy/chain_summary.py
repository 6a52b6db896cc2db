"""Summary of a local chain from what its programs printed: chain_summary.py FOLDER STARTED JSON(0|1).

STARTED is the start in seconds since 1970. Seconds per hop are the computing times of every volunteer's results.
"""
import json
import pathlib
import statistics
import sys
import time

MIB = 1 << 20


def last(path):
    lines = path.read_text().strip().splitlines() if path.exists() else []
    return json.loads(lines[-1]) if lines else {}


def spread(values):
    if not values:
        return None
    return {"min": round(min(values), 2), "median": round(statistics.median(values), 2), "max": round(max(values), 2)}


def events(path):
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def main():
    work, started, as_json = pathlib.Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "1"
    result, created, memory = (last(work / name) for name in ("result.json", "created.json", "memory.json"))
    done = [e for who in ("alice", "bob") for e in events(work / f"{who}.out") if e.get("event") == "finished"]
    stages = ("lay", "boot", "stc", "modraise", "cts", "evalmod")
    summary = result | {
        "seconds": round(time.time() - started, 1),
        "parameter_set": created.get("parameter_set"),
        "private_tokens": created.get("private_tokens"),
        "hop_seconds": spread([e["seconds"] for e in done]),
        "stage_seconds": {s: spread([e["profile"][s] for e in done]) for s in stages},
        "bootstraps_per_hop": spread([e["profile"]["bootstraps"] for e in done]),
        "hop_results": [
            {"hop": e["hop"], "seconds": round(e["seconds"], 2), "bootstraps": e["profile"]["bootstraps"]} for e in done
        ],
        "worker_peak_bytes": memory.get("process_bytes"),
        "workers_together_peak_bytes": memory.get("together_bytes"),
        "evaluation_keys": created.get("evaluation_keys"),
        "key_bytes": created.get("key_bytes"),
        "key_bytes_expanded": created.get("key_bytes_expanded"),
        "create_seconds": created.get("seconds"),
    }
    if as_json:
        print(json.dumps(summary))
        return
    for hop in result["per_hop"]:
        print(f"hop {hop['hop']:2}  max|err|/F {hop['max_err_over_f']:.1e}  relative rms {hop['worst_rel_rms']:.1e}")
    span = lambda s: "unknown" if s is None else f"{s['min']} / {s['median']} / {s['max']}"
    print(f"seconds per hop (min / median / max): {span(summary['hop_seconds'])}")
    print(f"  of these in the final refresh: {span(summary['stage_seconds']['boot'])}; bootstraps per hop: {span(summary['bootstraps_per_hop'])}")
    mib = lambda n: "unknown" if n is None else f"{n / MIB:.0f} MiB"
    print(f"peak memory of a worker process: {mib(summary['worker_peak_bytes'])}; all together: {mib(summary['workers_together_peak_bytes'])}")
    print(f"{summary['evaluation_keys']} evaluation keys: {mib(summary['key_bytes'])} to download, {mib(summary['key_bytes_expanded'])} expanded")
    print(f"next token {result['next_token_id']} {result['next_token']!r}; plaintext model {result['expected_token_id']} {result['expected_token']!r} (margin {result['expected_margin']:.3f})")
    print(f"accepted: all errors are within the limits; {summary['seconds']} s in all" if result["accepted"] else "NOT accepted")


main()
