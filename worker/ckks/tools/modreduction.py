"""Writes the tables of the modular reduction under worker/ckks/src/boot/ (needs mpmath):

    python3 worker/ckks/tools/modreduction.py default > worker/ckks/src/boot/reduction_table.rs
    python3 worker/ckks/tools/modreduction.py precise > worker/ckks/src/boot/reduction_table_precise.rs

Wanted: p((I + m) / A) = m for integers |I| <= 13 and |m| <= EPS, A = 13 + 1/128.

default: EPS = 2^-10, one odd polynomial of degree 95. A Chebyshev expansion of the slope-corrected sine needs degree 115
for the same error, because it also follows the sine between the intervals, where nothing ever lies. Here the coefficients
are the least-squares solution on Chebyshev nodes of the 14 intervals, with a small weight on their size so that p stays
below 0.2 in between. The error is what is left of a cubic after its best line, 2^-19.2 of the bound on m: at this density
of degrees of freedom (fewer than four per interval) no polynomial below degree 160 does better.

precise: EPS = 12 * 2^-10, so every noise of the bootstrap weighs 12 times less, and the product of an odd polynomial of
degree 95 and an even one of degree 94, one level more. Start: f = sin(2 pi m) / 2 pi and g = (4 - cos(2 pi m)) / 3, whose
product is m up to the fifth power: (8 sin x - sin 2x) / 6 = x - x^5/30 + .. Then each factor in turn is the least-squares
solution for the other one.
"""
import struct
import sys

from mpmath import cos, lu_solve, matrix, mp, mpf, pi, sin

mp.prec = 240
A = 13 + mpf(1) / 128
INTERVALS = 14


def points(eps, nodes):
    """(I, m) at the Chebyshev nodes of every interval"""
    ms = [cos(pi * (k + mpf(1) / 2) / nodes) * eps for k in range(nodes)]
    return [(i, m) for i in range(INTERVALS) for m in ms]


def rows(pts, degree):
    """T_k of every point for the k of the degree's parity"""
    out = []
    for i, m in pts:
        x = (i + m) / A
        t = [mpf(1), x]
        while len(t) <= degree:
            t.append(2 * x * t[-1] - t[-2])
        out.append(t[degree % 2 : degree + 1 : 2])
    return out


def least_squares(basis, wanted, weights, penalty):
    size = len(basis[0])
    normal, right = matrix(size, size), matrix(size, 1)
    for row, y, w in zip(basis, wanted, weights):
        for a in range(size):
            right[a] += w * w * row[a] * y
            scaled = w * w * row[a]
            for b in range(a, size):
                normal[a, b] += scaled * row[b]
    for a in range(size):
        normal[a, a] += penalty**2
        for b in range(a):
            normal[a, b] = normal[b, a]
    return [float(c) for c in lu_solve(normal, right)]


def values(basis, coefficients):
    return [sum(t * c for t, c in zip(row, coefficients)) for row in basis]


def table(name, what, coefficients, first):
    print()
    print("/// Bits of the f64 coefficients of T_%d, T_%d, .. T_%d%s." % (first, first + 2, first + 2 * len(coefficients) - 2, what))
    print("#[rustfmt::skip]")
    print("pub(super) const %s: [u64; %d] = [" % (name, len(coefficients)))
    for k, c in enumerate(coefficients):
        print("    0x%016x, // T_%d: %.6e" % (struct.unpack("<Q", struct.pack("<d", c))[0], 2 * k + first, c))
    print("];")


def default():
    pts = points(mpf(2) ** -10, 9)
    c = least_squares(rows(pts, 95), [m for _, m in pts], [1] * len(pts), mpf(10) ** -7)
    table("ODD_COEFFICIENT_BITS", "", c, 1)


def precise():
    eps = 12 * mpf(2) ** -10
    penalty = mpf(3) * mpf(10) ** -6
    pts = points(eps, 15)
    odd, even = rows(pts, 95), rows(pts, 94)
    flat = [1 / eps] * len(pts)
    f = least_squares(odd, [sin(2 * pi * m) / (2 * pi) for _, m in pts], flat, penalty)
    g = least_squares(even, [(4 - cos(2 * pi * m)) / 3 for _, m in pts], [1] * len(pts), penalty)
    for _ in range(8):
        by = values(even, g)
        f = least_squares(odd, [m / y for (_, m), y in zip(pts, by)], [y / eps for y in by], penalty)
        by = values(odd, f)
        # the node at m = 0 says nothing about the even factor
        ratio = [m / y if m != 0 else mpf(1) for (_, m), y in zip(pts, by)]
        weight = [y / eps if m != 0 else mpf(0) for (_, m), y in zip(pts, by)]
        g = least_squares(even, ratio, weight, penalty)
    table("ODD_FACTOR_BITS", " in the odd factor", f, 1)
    table("EVEN_FACTOR_BITS", " in the even factor", g, 0)


print("//! Chebyshev coefficients of the modular reduction, written by tools/modreduction.py.")
print("//! The test in `reduction.rs` checks what they approximate.")
{"default": default, "precise": precise}[sys.argv[1]]()
