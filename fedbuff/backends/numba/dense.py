# mypy: allow-untyped-defs, allow-untyped-calls
"""Products of dense rows and weights, in blocks of four rows by four outputs that stay in registers.

LLVM turns the innermost loops into vector code; sums are made in the order that suits the CPU, once for each build.
"""

from __future__ import annotations

from .compile import FAST, helper, inlined


def _scores(x, rows, m, weight, out):
    """out[i] = weight x[rows[i]] for i < m, a multiple of four."""
    n = weight.shape[1]
    quads = len(weight) - len(weight) % 4
    for i in range(0, m, 4):
        r0, r1, r2, r3 = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        for k in range(0, quads, 4):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = out.dtype.type(0)
            c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = out.dtype.type(0)
            for j in range(n):
                w0, w1, w2, w3 = weight[k, j], weight[k + 1, j], weight[k + 2, j], weight[k + 3, j]
                v = x[r0, j]
                a0 += v * w0
                a1 += v * w1
                a2 += v * w2
                a3 += v * w3
                v = x[r1, j]
                b0 += v * w0
                b1 += v * w1
                b2 += v * w2
                b3 += v * w3
                v = x[r2, j]
                c0 += v * w0
                c1 += v * w1
                c2 += v * w2
                c3 += v * w3
                v = x[r3, j]
                d0 += v * w0
                d1 += v * w1
                d2 += v * w2
                d3 += v * w3
            out[i, k], out[i, k + 1], out[i, k + 2], out[i, k + 3] = a0, a1, a2, a3
            out[i + 1, k], out[i + 1, k + 1], out[i + 1, k + 2], out[i + 1, k + 3] = b0, b1, b2, b3
            out[i + 2, k], out[i + 2, k + 1], out[i + 2, k + 2], out[i + 2, k + 3] = c0, c1, c2, c3
            out[i + 3, k], out[i + 3, k + 1], out[i + 3, k + 2], out[i + 3, k + 3] = d0, d1, d2, d3
        for k in range(quads, len(weight)):
            a0 = a1 = a2 = a3 = out.dtype.type(0)
            for j in range(n):
                w0 = weight[k, j]
                a0 += x[r0, j] * w0
                a1 += x[r1, j] * w0
                a2 += x[r2, j] * w0
                a3 += x[r3, j] * w0
            out[i, k], out[i + 1, k], out[i + 2, k], out[i + 3, k] = a0, a1, a2, a3


def _add_products(x, rows, m, factor, target):
    """target[k] += sum over i < m of factor[i, k] x[rows[i]]."""
    n = target.shape[1]
    quads, whole = len(target) - len(target) % 4, m - m % 4
    for k in range(0, quads, 4):
        for i in range(0, whole, 4):
            r0, r1, r2, r3 = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
            a0, a1, a2, a3 = factor[i, k], factor[i + 1, k], factor[i + 2, k], factor[i + 3, k]
            b0, b1, b2, b3 = factor[i, k + 1], factor[i + 1, k + 1], factor[i + 2, k + 1], factor[i + 3, k + 1]
            c0, c1, c2, c3 = factor[i, k + 2], factor[i + 1, k + 2], factor[i + 2, k + 2], factor[i + 3, k + 2]
            d0, d1, d2, d3 = factor[i, k + 3], factor[i + 1, k + 3], factor[i + 2, k + 3], factor[i + 3, k + 3]
            for j in range(n):
                v0, v1, v2, v3 = x[r0, j], x[r1, j], x[r2, j], x[r3, j]
                target[k, j] += a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
                target[k + 1, j] += b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3
                target[k + 2, j] += c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3
                target[k + 3, j] += d0 * v0 + d1 * v1 + d2 * v2 + d3 * v3
    for k in range(quads, len(target)):
        for i in range(0, whole, 4):
            r0, r1, r2, r3 = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
            a0, a1, a2, a3 = factor[i, k], factor[i + 1, k], factor[i + 2, k], factor[i + 3, k]
            for j in range(n):
                target[k, j] += a0 * x[r0, j] + a1 * x[r1, j] + a2 * x[r2, j] + a3 * x[r3, j]
    for i in range(whole, m):
        r0 = rows[i]
        for k in range(len(target)):
            a0 = factor[i, k]
            for j in range(n):
                target[k, j] += a0 * x[r0, j]


def _row_score(x, row, w, n):
    """The sum of x[row, j] w[j] over j < n."""
    total = w.dtype.type(0)
    for j in range(n):
        total += x[row, j] * w[j]
    return total


def _add_row(x, row, factor, target, n):
    for j in range(n):
        target[j] += factor * x[row, j]


def _inner(x, y):
    total = x.dtype.type(0)
    for j in range(len(x)):
        total += x[j] * y[j]
    return total


scores = helper(_scores, fastmath=FAST)
add_products = helper(_add_products, fastmath=FAST)
row_score = inlined(_row_score, fastmath=FAST)
add_row = inlined(_add_row, fastmath=FAST)
inner = helper(_inner, fastmath=FAST)
