"""Writes worker/ckks/src/boot/reduction_table.rs: the Chebyshev coefficients of the modular reduction.

    python3 worker/ckks/tools/modreduction.py > worker/ckks/src/boot/reduction_table.rs      (needs mpmath)

Wanted: an odd polynomial p of degree 95 on [-1, 1] with p((I + m) / A) = m for integers |I| <= 13 and |m| <= 2^-10,
A = 13 + 1/128. A Chebyshev expansion of the slope-corrected sine needs degree 115 for the same error, because it also
follows the sine between the intervals, where nothing ever lies. Here the coefficients are the least-squares solution
on Chebyshev nodes of the 14 intervals, with a small weight on their size so that p stays below 0.2 in between. The error is
what is left of a cubic after its best line, 2^-19.2 of the bound on m: at this density of degrees of freedom (fewer
than four per interval) no polynomial does better.
"""
import struct
import sys

from mpmath import cos, matrix, mp, mpf, lu_solve, pi

mp.prec = 240
A = 13 + mpf(1) / 128
DEGREE, INTERVALS, NODES = 95, 14, 9
EPS = mpf(2) ** -10
LAMBDA = mpf(10) ** -7


def chebyshev_row(x):
    t = [mpf(1), x]
    while len(t) <= DEGREE:
        t.append(2 * x * t[-1] - t[-2])
    return t[1::2]


nodes = [cos(pi * (k + mpf(1) / 2) / NODES) * EPS for k in range(NODES)]
size = (DEGREE + 1) // 2
normal, right = matrix(size, size), matrix(size, 1)
for i in range(INTERVALS):
    for m in nodes:
        row = chebyshev_row((i + m) / A)
        for a in range(size):
            right[a] += row[a] * m
            for b in range(a, size):
                normal[a, b] += row[a] * row[b]
for a in range(size):
    normal[a, a] += LAMBDA**2
    for b in range(a):
        normal[a, b] = normal[b, a]
solution = [float(c) for c in lu_solve(normal, right)]

print("//! Chebyshev coefficients of the modular reduction, written by tools/modreduction.py.")
print("//! The test in `reduction.rs` checks what they approximate.")
print()
print("/// Bits of the f64 coefficients of T_1, T_3, .. T_95.")
print("#[rustfmt::skip]")
print("pub(super) const ODD_COEFFICIENT_BITS: [u64; %d] = [" % size)
for k, c in enumerate(solution):
    print("    0x%016x, // T_%d: %.6e" % (struct.unpack("<Q", struct.pack("<d", c))[0], 2 * k + 1, c))
print("];")
