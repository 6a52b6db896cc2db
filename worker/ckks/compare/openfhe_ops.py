"""One CKKS operation timed in OpenFHE; prints one JSON object in the form of `cipherhop-worker bench --json`.

    python openfhe_ops.py OPERATION [--runs 3]      (Python 3.10 with openfhe 1.6.1 and numpy; see compare.py)

One operation per process, so that keys are freed in between and the peak memory is the operation's own.
"""

import argparse
import functools
import json
import math
import os
import resource
import statistics
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import openfhe as fhe  # noqa: E402

FULL_RING = 1 << 16
# The longest chain of 59-bit primes that OpenFHE accepts as 128-bit secure at this ring, with as many digits
# of key switching as the engine uses: 23 limbs, 1358 bits (the engine: 29 limbs, 1306 bits).
DEPTH, SCALE_BITS, FIRST_BITS, DIGITS = 22, 59, 60, 4
# CoeffsToSlots and SlotsToCoeffs in three levels each, as in the engine.
BUDGET = [3, 3]
MATRIX_LIMBS = 10
COPIES = 16
BABIES = 16


def log(text):
    print(text, file=sys.stderr, flush=True)


class Scheme:
    def __init__(self, ring, technique):
        self.ring, self.slots = ring, ring // 2
        parameters = fhe.CCParamsCKKSRNS()
        # The same trick as the engine's: a ternary secret everywhere, a sparse one only at the bootstrap's
        # smallest modulus.
        parameters.SetSecretKeyDist(fhe.SPARSE_ENCAPSULATED)
        # smaller rings are for trying this script
        secure = ring >= FULL_RING
        parameters.SetSecurityLevel(fhe.HEStd_128_classic if secure else fhe.HEStd_NotSet)
        parameters.SetRingDim(ring)
        parameters.SetBatchSize(self.slots)
        parameters.SetScalingModSize(SCALE_BITS)
        parameters.SetFirstModSize(FIRST_BITS)
        parameters.SetScalingTechnique(technique)
        parameters.SetNumLargeDigits(DIGITS)
        parameters.SetMultiplicativeDepth(DEPTH)
        self.cc = fhe.GenCryptoContext(parameters)
        for feature in (fhe.PKE, fhe.KEYSWITCH, fhe.LEVELEDSHE, fhe.ADVANCEDSHE, fhe.FHE):
            self.cc.Enable(feature)
        self.keys = self.cc.KeyGen()
        self.random = np.random.default_rng(2026)

    def values(self):
        return self.random.uniform(-1, 1, self.slots)

    def plain(self, values, level=0):
        return self.cc.MakeCKKSPackedPlaintext(list(values), 1, level, None, self.slots)

    def encrypt(self, values, level=0):
        return self.cc.Encrypt(self.keys.publicKey, self.plain(values, level))

    def decrypt(self, ciphertext):
        plain = self.cc.Decrypt(ciphertext, self.keys.secretKey)
        plain.SetLength(self.slots)
        return np.array(plain.GetRealPackedValue())


def bits(have, want):
    error = np.abs(have - want)
    return -np.log2(error.max()), -np.log2(error.mean())


def measure(operation, runs):
    """Warm-up, then `runs` runs of half a second or more, as `cipherhop-worker bench` does: processor seconds and wall
    seconds of one operation, sorted."""
    begin = time.perf_counter()
    operation()
    repeats = max(1, math.ceil(0.5 / (time.perf_counter() - begin)))
    cpu, wall = [], []
    for _ in range(runs):
        begin = (time.process_time(), time.perf_counter())
        for _ in range(repeats):
            operation()
        cpu.append((time.process_time() - begin[0]) / repeats)
        wall.append((time.perf_counter() - begin[1]) / repeats)
    return sorted(cpu), sorted(wall)


def rotate(ring, runs):
    s = Scheme(ring, fhe.FIXEDMANUAL)
    s.cc.EvalRotateKeyGen(s.keys.secretKey, [1])
    x = s.encrypt(s.values())
    return measure(lambda: s.cc.EvalRotate(x, 1), runs), {"limbs": DEPTH + 1}


def rotate_hoisted(ring, runs):
    s = Scheme(ring, fhe.FIXEDMANUAL)
    steps = list(range(1, 9))
    s.cc.EvalRotateKeyGen(s.keys.secretKey, steps)
    x = s.encrypt(s.values())

    def eight():
        digits = s.cc.EvalFastRotationPrecompute(x)
        return [s.cc.EvalFastRotation(x, r, 2 * ring, digits) for r in steps]

    return measure(eight, runs), {"limbs": DEPTH + 1}


def keyswitch(ring, runs):
    s = Scheme(ring, fhe.FIXEDMANUAL)
    other = s.cc.KeyGen()
    key = s.cc.KeySwitchGen(s.keys.secretKey, other.secretKey)
    x = s.encrypt(s.values())
    return measure(lambda: s.cc.KeySwitch(x, key), runs), {"limbs": DEPTH + 1}


def multiply(ring, runs):
    s = Scheme(ring, fhe.FIXEDMANUAL)
    s.cc.EvalMultKeyGen(s.keys.secretKey)
    x, y = s.encrypt(s.values()), s.encrypt(s.values())
    return measure(lambda: s.cc.Rescale(s.cc.EvalMult(x, y)), runs), {"limbs": DEPTH + 1}


def matvec(parts, ring, runs):
    """A dense matrix in diagonals that fill all slots: of the interleaved copies of the vector, copy c lies shifted
    by c*n and serves diagonals c*n to c*n + n - 1. Hoisted baby steps, giant steps, the sum over the copies."""
    copies, rows = COPIES, ring // 2 // COPIES
    inputs = rows // parts
    diagonals = max(inputs // copies, 1)
    babies = min(BABIES, diagonals)
    giants = diagonals // babies
    level = DEPTH + 1 - MATRIX_LIMBS
    s = Scheme(ring, fhe.FIXEDMANUAL)
    folds = [1 << i for i in range(copies.bit_length() - 1)]
    baby = [copies * b for b in range(1, babies)]
    giant = [copies * babies * g for g in range(giants)]
    steps = baby + giant[1:] + folds
    s.cc.EvalRotateKeyGen(s.keys.secretKey, steps)
    matrix = s.random.uniform(-1, 1, (rows, inputs)) / inputs
    vector = s.random.uniform(-1, 1, inputs)
    row_numbers = np.arange(rows)
    shifted = [np.resize(np.roll(vector, -diagonals * c), rows) for c in range(copies)]
    x = s.encrypt(np.stack(shifted, axis=1).ravel(), level)
    plains = []
    for g in range(giants):
        line = []
        for b in range(babies):
            k = g * babies + b
            parts = [matrix[row_numbers, (row_numbers + k + diagonals * c) % inputs] for c in range(copies)]
            line.append(s.plain(np.roll(np.stack(parts, axis=1).ravel(), giant[g]), level))
        plains.append(line)

    def product():
        digits = s.cc.EvalFastRotationPrecompute(x)
        turned = [x] + [s.cc.EvalFastRotation(x, b, 2 * ring, digits) for b in baby]
        total = None
        for g, line in enumerate(plains):
            inner = s.cc.EvalMult(turned[0], line[0])
            for y, p in zip(turned[1:], line[1:]):
                s.cc.EvalAddInPlace(inner, s.cc.EvalMult(y, p))
            if g:
                inner = s.cc.EvalRotate(inner, giant[g])
            total = inner if total is None else s.cc.EvalAdd(total, inner)
        total = s.cc.Rescale(total)
        for step in folds:
            total = s.cc.EvalAdd(total, s.cc.EvalRotate(total, step))
        return total

    worst, average = bits(s.decrypt(product())[::copies], matrix @ vector)
    if worst < 20:
        sys.exit(f"the product is wrong: {worst:.1f} bits")
    return measure(product, runs), {"limbs": MATRIX_LIMBS, "diagonals": diagonals, "worst_bits": worst, "average_bits": average}


def bootstrap(ring, runs):
    s = Scheme(ring, fhe.FLEXIBLEAUTO)
    s.cc.EvalBootstrapSetup(BUDGET, [0, 0], s.slots)
    s.cc.EvalMultKeyGen(s.keys.secretKey)
    s.cc.EvalBootstrapKeyGen(s.keys.secretKey, s.slots)
    log("keys made")
    values = s.values()
    x = s.encrypt(values, DEPTH - 1)
    out = []
    times = measure(lambda: out.append(s.cc.EvalBootstrap(x)), runs)
    worst, average = bits(s.decrypt(out[0]), values)
    left = DEPTH - out[0].GetLevel() - (out[0].GetNoiseScaleDeg() - 1)
    return times, {"limbs": DEPTH + 1, "worst_bits": worst, "average_bits": average, "levels_left": left}


OPERATIONS = {
    "rotate": rotate,
    "rotate-8-hoisted": rotate_hoisted,
    "keyswitch": keyswitch,
    "multiply": multiply,
    "matvec-512x2048": functools.partial(matvec, 4),
    "matvec-2048x2048": functools.partial(matvec, 1),
    "bootstrap": bootstrap,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operation", choices=OPERATIONS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ring", type=int, default=FULL_RING, help="smaller ones are not secure; for trying this script")
    args = parser.parse_args()
    (cpu, wall), more = OPERATIONS[args.operation](args.ring, args.runs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {
        "name": args.operation,
        "library": "openfhe 1.6.1",
        "ring": args.ring,
        "threads": 1,
        "runs": args.runs,
        "min_s": wall[0],
        "median_s": statistics.median(wall),
        "max_s": wall[-1],
        "cpu_min_s": cpu[0],
        "cpu_median_s": statistics.median(cpu),
        "cpu_max_s": cpu[-1],
        "peak_rss_bytes": peak,
        **more,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
