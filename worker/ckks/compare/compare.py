#!/usr/bin/env python3
"""Times the engine beside OpenFHE and tfhe-ntt, on this machine, one thread, one run: one command for all.

    worker/ckks/compare/compare.py                   a table, and the ratio of each operation
    worker/ckks/compare/compare.py --markdown        the same as the tables of docs/benchmarks.md

It builds the release programs, makes a virtual environment with OpenFHE's Python wheel (CPython 3.10), and runs
every operation of both sides in a process of its own, one after another: nothing else should run meanwhile.
Needs about 11 GiB of memory for OpenFHE's bootstrap. Seconds are processor time of one thread unless said otherwise.
"""

import argparse
import datetime
import glob
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
WHEELS = ["openfhe==1.6.1.0.22.4", "numpy>=1.26,<3"]

# operation of openfhe_ops.py: (benchmark, its line, limbs of that line or None, how many times faster is wanted)
OPERATIONS = {
    "rotate": ("rotate", "rotate", 29, 4),
    "rotate-8-hoisted": ("rotate", "rotate-8-hoisted", 29, None),
    "keyswitch": ("keyswitch", "keyswitch", 29, None),
    "multiply": ("multiply", "multiply", 29, None),
    "matvec-512x2048": ("matvec", "matvec-512x2048", 10, None),
    "matvec-2048x2048": ("matvec", "matvec-2048x2048", 10, 5),
    "bootstrap": ("bootstrap", "bootstrap-real", None, 5),
}
SCALED = [("rotate", "rotate", 29), ("bootstrap", "bootstrap-real", None), ("hop-smollm2", "hop-smollm2", None)]


def log(text):
    print(text, file=sys.stderr, flush=True)


def run(command, **options):
    log("+ " + " ".join(command))
    return subprocess.run(command, check=True, **options)


def output_of(command, threads=1):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), RAYON_NUM_THREADS=str(threads))
    out = run(command, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def python310():
    """A CPython 3.10, the only version the wheel is made for."""
    wanted = [os.environ.get("PYTHON310"), shutil.which("python3.10")]
    wanted += sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.10*/bin/python3.10")))
    test = "import sys; sys.exit(sys.version_info[:2] != (3, 10) or sys.implementation.name != 'cpython')"
    for python in filter(None, wanted):
        try:
            if subprocess.run([python, "-c", test], capture_output=True).returncode == 0:
                return python
        except OSError:
            pass
    sys.exit(
        "No CPython 3.10 found; OpenFHE's wheel needs it. Install it (for example `pyenv install 3.10` or your"
        " distribution's python3.10 with venv), or name it: PYTHON310=/path/to/python3.10.\n"
        "Without OpenFHE: --skip-openfhe."
    )


def environment(folder):
    python = os.path.join(folder, "bin", "python")
    ready = [python, "-c", "import openfhe, numpy"]
    if not os.path.exists(python) or subprocess.run(ready, capture_output=True).returncode:
        run([python310(), "-m", "venv", "--clear", folder])
        run([python, "-m", "pip", "install", "--quiet", *WHEELS], stdout=sys.stderr)
        run(ready)
    return python


class Bench:
    """Results of `cipherhop-worker bench`, each benchmark run once."""

    def __init__(self, program, params, runs, isa):
        self.command = [program, "--json", "bench"]
        self.options = ["--params", params, "--runs", str(runs)] + (["--isa", isa] if isa else [])
        self.done = {}

    def lines(self, name, threads=1):
        if (name, threads) not in self.done:
            command = [*self.command, name, *self.options, "--threads", str(threads)]
            self.done[name, threads] = output_of(command, threads)
        return self.done[name, threads]

    def line(self, name, line, limbs, threads=1):
        for result in self.lines(name, threads):
            if result["name"] == line and limbs in (None, result.get("limbs")):
                return result
        raise KeyError(f"bench {name} printed no line {line} with {limbs} limbs")


def duration(seconds):
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def spread(line, clock="cpu_"):
    low, middle, high = (line[f"{clock}{which}_s"] for which in ("min", "median", "max"))
    return f"{duration(middle)} ({duration(low)} to {duration(high)})"


def gib(count):
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 29 else f"{count / (1 << 20):.1f} MiB"


class Table:
    def __init__(self, markdown):
        self.markdown = markdown

    def print(self, title, heads, rows):
        rows = [[str(cell) for cell in row] for row in rows]
        if self.markdown:
            print(f"\n### {title}\n\n| " + " | ".join(heads) + " |")
            print("|" + "---|" * len(heads))
            for row in rows:
                print("| " + " | ".join(row) + " |")
        else:
            widths = [max(map(len, column)) for column in zip(heads, *rows)]
            print(f"\n{title}")
            for row in [heads, *rows]:
                print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        sys.stdout.flush()


def against_openfhe(table, bench, python, args):
    rows = []
    for name in args.only or OPERATIONS:
        benchmark, line, limbs, wanted = OPERATIONS[name]
        try:
            theirs = output_of([python, os.path.join(HERE, "openfhe_ops.py"), name, "--runs", str(args.runs)])[-1]
            ours = bench.line(benchmark, line, limbs)
        except subprocess.CalledProcessError as error:
            # OpenFHE's bootstrap is killed where memory is short
            rows.append([name, f"failed: {os.path.basename(error.cmd[0])} ended with {error.returncode}", "", "", ""])
            continue
        ratio = theirs["cpu_median_s"] / ours["cpu_median_s"]
        log(f"  {name}: {duration(ours['cpu_median_s'])}, OpenFHE {duration(theirs['cpu_median_s'])}: {ratio:.2f} times faster")
        what = name + (f", {limbs} limbs" if limbs else "")
        beside = spread(theirs) + f", {theirs['limbs']} limbs"
        if "bootstrap" in name:
            bits = [ours.get("worst_bits"), theirs["worst_bits"], ours["levels_left"], theirs["levels_left"]]
            worst = [f"{b:.1f} bits" if b else "bits unknown" for b in bits[:2]]
            what += f" ({worst[0]} worst, {bits[2]} levels left)"
            beside += f" ({worst[1]} worst, {bits[3]} levels left)"
        target = f"{wanted}" if wanted else ""
        rows.append([what, spread(ours), beside, f"{ratio:.2f}", target])
    heads = ["operation", "Cipherhop", "OpenFHE 1.6.1", "times faster", "wanted"]
    table.print("One thread beside OpenFHE, ring 2^16, 128 bits; processor time, median (least to most)", heads, rows)


def against_tfhe_ntt(table, args):
    manifest = os.path.join(HERE, "ntt", "Cargo.toml")
    command = ["cargo", "run", "--release", "--quiet", "--manifest-path", manifest, "--", "15"]
    ours, theirs, ratio = output_of(command + ([args.isa] if args.isa else []))
    rows = [
        [f"{line['name']} ({line['kernel']})", spread(line, "")] for line in (ours, theirs)
    ] + [["Cipherhop's time / tfhe-ntt's", f"{ratio['cipherhop_over_tfhe_ntt']:.2f} (wanted with AVX-512 IFMA: at most 1.25)"]]
    table.print("Forward NTT of one limb, N = 2^16, 50-bit prime", ["program", "median (least to most)"], rows)


def own_figures(table, bench):
    rows = []
    for name in ("ntt", "keyswitch", "rotate", "multiply", "matvec", "bootstrap", "hop-smollm2", "hop-qwen3", "keys"):
        try:
            lines = bench.lines(name)
        except subprocess.CalledProcessError as error:
            rows.append([name, f"failed with code {error.returncode}", "", ""])
            continue
        for line in lines:
            more = []
            if line.get("worst_bits") is not None:
                more.append(f"{line['worst_bits']:.1f} bits worst, {line['average_bits']:.1f} average")
            if "levels_left" in line:
                more.append(f"{line['levels_left']} levels left")
            if "tokens" in line:
                more.append(f"T={line['tokens']}")
            if "download_bytes" in line:
                more.append(f"{line['keys']} keys: download {gib(line['download_bytes'])}, expanded {gib(line['expanded_bytes'])}")
            if name == "bootstrap":
                more.append(", ".join(f"{stage[:-2]} {duration(s)}" for stage, s in line["profile"].items()))
            what = line["name"] + (f", {line['limbs']} limbs" if line.get("limbs", 1) > 1 else "")
            rows.append([what, spread(line), gib(line["peak_rss_bytes"]), "; ".join(more)])
    heads = ["benchmark", "processor time, median (least to most)", "peak memory", ""]
    table.print("`cipherhop-worker bench`, one thread", heads, rows)


def scaling(table, bench):
    rows = []
    for name, line, limbs in SCALED:
        try:
            one, two = (bench.line(name, line, limbs, threads) for threads in (1, 2))
        except subprocess.CalledProcessError as error:
            rows.append([line, f"failed with code {error.returncode}", "", "", ""])
            continue
        ratio = one["median_s"] / two["median_s"]
        wanted = "1.8" if name.startswith("hop") else ""
        rows.append([line, spread(one, ""), spread(two, ""), f"{ratio:.2f}", wanted])
    heads = ["benchmark", "1 thread", "2 threads", "times faster", "wanted"]
    table.print("Two threads against one; time on the wall, median (least to most)", heads, rows)


def describe(args, bench):
    def quiet(command):
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        return done.stdout.strip() if done.returncode == 0 else "unknown"

    with open("/proc/cpuinfo") as info:
        cpu = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown")
    isa = args.isa or bench.lines("ntt")[0]["isa"]
    day = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    load = os.getloadavg()[0]
    print(f"{day}, commit {quiet(['git', 'rev-parse', '--short', 'HEAD'])}, {cpu}, kernel {isa}, {args.params}, "
          f"{args.runs} runs after a warm-up; load average {load:.1f} at the start.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--params", default="n16-128")
    parser.add_argument("--isa", help="vector instructions of the engine; the best of this machine by default")
    parser.add_argument("--only", nargs="+", choices=OPERATIONS, metavar="OPERATION", help="of " + ", ".join(OPERATIONS))
    parser.add_argument("--part", nargs="+", choices=["openfhe", "ntt", "bench", "scaling"],
                        default=["openfhe", "ntt", "bench", "scaling"], help="which tables; all by default")
    parser.add_argument("--skip-openfhe", action="store_true", help="the other tables only")
    parser.add_argument("--worker", help="a cipherhop-worker built before, with cipherhop-owner beside it")
    parser.add_argument("--venv", default=os.path.join(HERE, ".venv"), help="virtual environment to use or make")
    args = parser.parse_args()
    parts = [part for part in args.part if part != "openfhe" or not args.skip_openfhe]
    python = environment(args.venv) if "openfhe" in parts else None
    worker = args.worker
    if not worker:
        run(["cargo", "build", "--release", "--locked", "-p", "cipherhop-worker", "-p", "cipherhop-owner"], cwd=ROOT)
        target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
        worker = os.path.join(target, "release", "cipherhop-worker")
    table = Table(args.markdown)
    bench = Bench(worker, args.params, args.runs, args.isa)
    describe(args, bench)
    if "openfhe" in parts:
        against_openfhe(table, bench, python, args)
    if "ntt" in parts:
        against_tfhe_ntt(table, args)
    if "bench" in parts:
        own_figures(table, bench)
    if "scaling" in parts:
        scaling(table, bench)


if __name__ == "__main__":
    main()
