"""log, exp, pow and sincos of + - * / and bit operations only: the same bits as csrc/core/numbers/portable_math.hpp.

The functions of the first part work elementwise on float64 arrays; Numba compiles the same source for scalars
(numba/random.py teaches it `bits_of`, `double_of` and `select`). Every expression has the order of the C++ one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .philox import (
    STREAM_DELAYS,
    key_words,
    multiply_high,
    philox_words,
    unit_double,
)

COMPONENT_WAIT, COMPONENT_DOWNLOAD, COMPONENT_COMPUTE, COMPONENT_UPLOAD = range(4)
COMPONENT_SPEED, COMPONENT_START, COMPONENT_SERVER = range(4, 7)
KINDS = (
    "constant",
    "uniform",
    "exponential",
    "half_normal",
    "truncated_normal",
    "log_normal",
    "pareto",
    "weibull",
    "empirical",
)

_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_EXPONENT_OFFSET = np.uint64(0x3FF0000000000000 - 0x3FE6A09E00000000)
_ROOT_HALF = np.uint64(0x3FE6A09E00000000)
_MANTISSA = np.uint64(0x000FFFFFFFFFFFFF)
_TWO_52 = np.uint64(0x4330000000000000)
_HIGH_26 = np.uint64(0xFFFFFFFFF8000000)
_LOW_16 = np.uint64(0xFFFF)
_U1, _U2, _U3, _U52 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(52)
_U32 = np.uint64(32)
_U2048 = np.uint64(2048)
_U0 = np.uint64(0)


def bits_of(x: Any) -> Any:
    return np.asarray(x, np.float64).view(np.uint64)


def double_of(bits: Any) -> Any:
    return np.asarray(bits, np.uint64).view(np.float64)


def select(condition: Any, yes: Any, no: Any) -> Any:
    return np.where(condition, yes, no)


def reduce_argument(x: Any) -> Any:
    """x = 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); returns k and f, for normal x > 0."""
    shifted = bits_of(x) + _EXPONENT_OFFSET
    k = double_of((shifted >> _U52) | _TWO_52) - 4503599627371519.0
    m = double_of((shifted & _MANTISSA) + _ROOT_HALF)
    return k, m - 1.0


def log_positive(x: Any) -> Any:
    """log(x) for normal x > 0."""
    k, f = reduce_argument(x)
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    t1 = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    t2 = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    half_square = 0.5 * f * f
    return k * _LN2_HIGH - ((half_square - (s * (half_square + (t1 + t2)) + k * _LN2_LOW)) - f)


def exp_sum(x: Any, tail: Any) -> Any:
    """exp(x + tail) for |tail| far below |x|."""
    x = select(x > 710.0, 710.0, x)
    x = select(x < -746.0, -746.0, x)
    shifted = x * 1.44269504088896338700e00 + 6755399441055744.0
    k = shifted - 6755399441055744.0
    high = x - k * _LN2_HIGH
    low = k * _LN2_LOW - tail
    r = high - low
    t = r * r
    c = r - t * (
        1.66666666666666019037e-01
        + t
        * (
            -2.77777777770155933842e-03
            + t * (6.61375632143793436117e-05 + t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08))
        )
    )
    y = 1.0 - ((low - (r * c) / (2.0 - c)) - high)
    biased = ((bits_of(shifted) & _LOW_16) + _U2048) & _LOW_16
    half = biased >> _U1
    return y * double_of((half - _U1) << _U52) * double_of((biased - half - _U1) << _U52)


def exact_product(a: Any, b: Any) -> Any:
    """Dekker's product: the rounded product and its rounding error."""
    pa = a * 134217729.0
    pb = b * 134217729.0
    a1 = pa - (pa - a)
    b1 = pb - (pb - b)
    a2 = a - a1
    b2 = b - b1
    p = a * b
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def log_two_doubles(x: Any) -> Any:
    """log(x) as an unevaluated sum of two doubles, for normal x > 0."""
    k, f = reduce_argument(x)
    d1 = 2.0 + f
    d2 = f - (d1 - 2.0)
    s1 = f / d1
    back, back_low = exact_product(s1, d1)
    s2 = (((f - back) - back_low) - s1 * d2) / d1
    z, z_low = exact_product(s1, s1)
    z_low = z_low + 2.0 * s1 * s2
    cube, cube_low = exact_product(s1, z)
    cube_low = cube_low + (s1 * z_low + s2 * z)
    third, third_low = exact_product(cube, 0.33333333333333331483)
    third_low = third_low + (cube * 1.8503717077085943e-17 + cube_low * 0.33333333333333331483)
    tail = (
        z
        * z
        * s1
        * (
            1.0 / 5
            + z
            * (
                1.0 / 7
                + z
                * (
                    1.0 / 9
                    + z
                    * (
                        1.0 / 11
                        + z
                        * (
                            1.0 / 13
                            + z * (1.0 / 15 + z * (1.0 / 17 + z * (1.0 / 19 + z * (1.0 / 21 + z * (1.0 / 23)))))
                        )
                    )
                )
            )
        )
    )
    a = k * _LN2_HIGH
    b = 2.0 * s1
    sum1 = a + b
    from_b = sum1 - a
    error1 = (a - (sum1 - from_b)) + (b - from_b)
    c = 2.0 * third
    sum2 = sum1 + c
    from_c = sum2 - sum1
    error2 = (sum1 - (sum2 - from_c)) + (c - from_c)
    low = (error1 + error2) + (2.0 * (s2 + third_low + tail) + k * _LN2_LOW)
    high = sum2 + low
    return high, low - (high - sum2)


def log(x: Any) -> Any:
    subnormal = (x > 0.0) & (x < 2.2250738585072014e-308)
    normal = (x > 0.0) & (x < np.inf)
    scaled = x * select(subnormal, 18014398509481984.0, 1.0)
    value = log_positive(select(normal, scaled, 1.0))
    value = select(subnormal, value - 54.0 * 6.93147180559945286227e-01, value)
    special = select(x == 0.0, -np.inf, select(x > 0.0, x, np.nan))
    return select(normal, value, special)


def exp(x: Any) -> Any:
    return exp_sum(x, 0.0)


def pow(x: Any, y: Any) -> Any:
    """x^y for normal x > 0 and finite y."""
    high, low = log_two_doubles(x)
    y = select(y > 1e30, 1e30, y)
    y = select(y < -1e30, -1e30, y)
    p, p_low = exact_product(y, high)
    return exp_sum(p, p_low + y * low)


def sincos2pi(u: Any) -> Any:
    """sin and cos of 2 pi u for u in [0, 1)."""
    shifted = 4.0 * u + 6755399441055744.0
    q = bits_of(shifted) & _U3
    v = u - (shifted - 6755399441055744.0) * 0.25
    v1 = double_of(bits_of(v) & _HIGH_26)
    v2 = v - v1
    a = v1 * 6.28318524360656738281e00
    b = v1 * 6.35730190941127842192e-08 + v2 * 6.28318530717958623200e00
    x = a + b
    y = (a - x) + b
    z = x * x
    w = z * z
    rs = (
        8.33333333332248946124e-03
        + z * (-1.98412698298579493134e-04 + z * 2.75573137070700676789e-06)
        + z * w * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)
    )
    cube = z * x
    s = x - ((z * (0.5 * y - cube * rs) - y) - cube * -1.66666666666666324348e-01)
    rc = z * (
        4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * 2.48015872894767294178e-05)
    ) + w * w * (-2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11))
    half = 0.5 * z
    one = 1.0 - half
    c = one + (((1.0 - one) - half) + (z * rc - x * y))
    odd = (q & _U1) != _U0
    sin_size = select(odd, c, s)
    cos_size = select(odd, s, c)
    sine = select((q & _U2) != _U0, -sin_size, sin_size)
    cosine = select(((q + _U1) & _U2) != _U0, -cos_size, cos_size)
    return sine, cosine


def standard_normal(w0: Any, w1: Any, w2: Any, w3: Any) -> Any:
    """One standard normal from the four words of a block (Box-Muller, the cosine)."""
    radius = np.sqrt(-2.0 * log_positive(1.0 - unit_double(w0, w1)))
    _, cosine = sincos2pi(unit_double(w2, w3))
    return radius * cosine


def draw_words(kind: int, p0: float, p1: float, samples: Any, w0: Any, w1: Any, w2: Any, w3: Any) -> Any:
    """A draw of every kind but truncated_normal from the words of one block; `kind` is an index into KINDS."""
    if kind == 0:
        return p0 + unit_double(w0, w1) * 0.0
    if kind == 1:
        return p0 + (p1 - p0) * unit_double(w0, w1)
    if kind == 2:
        return (0.0 - log_positive(1.0 - unit_double(w0, w1))) * p0
    if kind == 3:
        return p1 + np.abs(standard_normal(w0, w1, w2, w3)) * p0
    if kind == 5:
        return exp_sum(p0 + p1 * standard_normal(w0, w1, w2, w3), 0.0)
    if kind == 6:
        return p1 * pow(1.0 - unit_double(w0, w1), -1.0 / p0)
    if kind == 7:
        e = 0.0 - log_positive(1.0 - unit_double(w0, w1))
        return p1 * select(e > 0.0, pow(select(e > 0.0, e, 1.0), 1.0 / p0), 0.0)
    return samples[multiply_high((w0 << _U32) | w1, np.uint64(len(samples)))]


TRUNCATED_NORMAL_ATTEMPTS = 4096


def draw(kind: str, params: Any, samples: Any, seed: int, client: Any, task: Any, component: int) -> Any:
    """Delays as the resolver draws them: float64, one for each pair of `client` and `task` (broadcast together).

    `kind`, `params` and `samples` (empirical only, sorted) are those of a distribution; `component` is 0 wait,
    1 download, 2 compute, 3 upload, 4 client speed. A truncated normal takes the first of its blocks 0, 1, 2, ... that
    falls inside; after 4096 misses, the nearest bound.
    """
    shape = np.broadcast_shapes(np.shape(client), np.shape(task))
    c, k = np.broadcast_arrays(*(np.atleast_1d(np.asarray(a)).astype(np.uint64) for a in (client, task)))
    k0, k1 = key_words(seed)
    code = KINDS.index(kind)
    p = [float(value) for value in params]
    if code != 4:
        p = [*p, 0.0, 0.0][:2]
        words = philox_words(k0, k1, c, k, np.uint64(component), STREAM_DELAYS)
        return np.asarray(draw_words(code, p[0], p[1], samples, *words), np.float64).reshape(shape)
    loc, scale, low, high = p
    out = np.full(c.shape, np.nan)
    left = np.arange(c.size)
    for block in range(TRUNCATED_NORMAL_ATTEMPTS):
        word = STREAM_DELAYS | np.uint64(block)
        words = philox_words(k0, k1, c.ravel()[left], k.ravel()[left], np.uint64(component), word)
        x = loc + scale * standard_normal(*words)
        inside = (x >= low) & (x <= high)
        out.ravel()[left[inside]] = x[inside]
        left = left[~inside]
        if left.size == 0:
            break
    else:
        out.ravel()[left] = low if loc < low else high
    return out.reshape(shape)
