# mypy: allow-untyped-defs, allow-untyped-calls
"""Convolutions and pools.

A tensor of images is (channels, rows, height, width), so that a convolution of several rows is one product: weights
(outputs, numbers of a window) by windows (numbers of a window, places). The windows are written out for a panel of rows
at a time, which stays in the cache, and not kept: the way back writes them again.
"""

from __future__ import annotations

from .compile import FAST, helper, inlined
from .program import (
    BIAS,
    GROUPS,
    KERNEL_H,
    KERNEL_W,
    LEFT,
    OUT_C,
    OUT_H,
    OUT_W,
    STRIDE_H,
    STRIDE_W,
    TOP,
    WEIGHT,
    C,
    H,
    W,
    rows_of_panel,
)

__all__ = [
    "avg_pool_backward",
    "avg_pool_forward",
    "conv_backward",
    "conv_forward",
    "max_pool_backward",
    "max_pool_forward",
]


@inlined
def _quad(vector, at, step, n):
    """Four stretches of n numbers, a step apart."""
    return (
        vector[at : at + n], vector[at + step : at + step + n], vector[at + 2 * step : at + 2 * step + n],
        vector[at + 3 * step : at + 3 * step + n],
    )  # fmt: skip


def _add_lines(x, x_at, x_step, n_x, factor, y, y_at, y_step, n_y, n):
    """y[k] += sum over i < n_x of factor[i, k] x[i], for k < n_y: lines of n numbers, a step apart."""
    whole_x, whole_y = n_x - n_x % 4, n_y - n_y % 4
    for k in range(0, whole_y, 4):
        y0, y1, y2, y3 = _quad(y, y_at + k * y_step, y_step, n)
        for i in range(0, whole_x, 4):
            x0, x1, x2, x3 = _quad(x, x_at + i * x_step, x_step, n)
            a0, a1, a2, a3 = factor[i, k], factor[i + 1, k], factor[i + 2, k], factor[i + 3, k]
            b0, b1, b2, b3 = factor[i, k + 1], factor[i + 1, k + 1], factor[i + 2, k + 1], factor[i + 3, k + 1]
            c0, c1, c2, c3 = factor[i, k + 2], factor[i + 1, k + 2], factor[i + 2, k + 2], factor[i + 3, k + 2]
            d0, d1, d2, d3 = factor[i, k + 3], factor[i + 1, k + 3], factor[i + 2, k + 3], factor[i + 3, k + 3]
            for j in range(n):
                v0, v1, v2, v3 = x0[j], x1[j], x2[j], x3[j]
                y0[j] += a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3
                y1[j] += b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3
                y2[j] += c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3
                y3[j] += d0 * v0 + d1 * v1 + d2 * v2 + d3 * v3
        for i in range(whole_x, n_x):
            x0 = x[x_at + i * x_step :][:n]
            a0, b0, c0, d0 = factor[i, k], factor[i, k + 1], factor[i, k + 2], factor[i, k + 3]
            for j in range(n):
                y0[j] += a0 * x0[j]
                y1[j] += b0 * x0[j]
                y2[j] += c0 * x0[j]
                y3[j] += d0 * x0[j]
    for k in range(whole_y, n_y):
        y0 = y[y_at + k * y_step :][:n]
        for i in range(n_x):
            x0, a0 = x[x_at + i * x_step :][:n], factor[i, k]
            for j in range(n):
                y0[j] += a0 * x0[j]


def _add_dots(x, x_at, x_step, n_x, y, y_at, y_step, n_y, n, target):
    """target[k, i] += the product of lines x[i] and y[k], of n numbers."""
    whole_x, whole_y = n_x - n_x % 4, n_y - n_y % 4
    for k in range(0, n_y, 4):
        if k == whole_y:
            break
        y0, y1, y2, y3 = _quad(y, y_at + k * y_step, y_step, n)
        for i in range(0, whole_x, 4):
            x0, x1, x2, x3 = _quad(x, x_at + i * x_step, x_step, n)
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = target.dtype.type(0)
            c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = target.dtype.type(0)
            for j in range(n):
                v0, v1, v2, v3 = x0[j], x1[j], x2[j], x3[j]
                u = y0[j]
                a0 += u * v0
                a1 += u * v1
                a2 += u * v2
                a3 += u * v3
                u = y1[j]
                b0 += u * v0
                b1 += u * v1
                b2 += u * v2
                b3 += u * v3
                u = y2[j]
                c0 += u * v0
                c1 += u * v1
                c2 += u * v2
                c3 += u * v3
                u = y3[j]
                d0 += u * v0
                d1 += u * v1
                d2 += u * v2
                d3 += u * v3
            _add_four(target, k, i, a0, a1, a2, a3)
            _add_four(target, k + 1, i, b0, b1, b2, b3)
            _add_four(target, k + 2, i, c0, c1, c2, c3)
            _add_four(target, k + 3, i, d0, d1, d2, d3)
    for k in range(n_y):
        line = y[y_at + k * y_step :][:n]
        for i in range(whole_x if k < whole_y else 0, n_x):
            other = x[x_at + i * x_step :][:n]
            a0 = target.dtype.type(0)
            for j in range(n):
                a0 += line[j] * other[j]
            target[k, i] += a0


@inlined
def _add_four(target, k, i, a, b, c, d):
    target[k, i] += a
    target[k, i + 1] += b
    target[k, i + 2] += c
    target[k, i + 3] += d


def _sum_of(line):
    total = line.dtype.type(0)
    for j in range(len(line)):
        total += line[j]
    return total


add_lines = helper(_add_lines, fastmath=FAST)
add_dots = helper(_add_dots, fastmath=FAST)
sum_of = helper(_sum_of, fastmath=FAST)


@inlined
def _inside(offset, stride, n_in, n_out):
    """The first and the end of the outputs whose input, output * stride + offset, is there."""
    first = 0 if offset >= 0 else (-offset + stride - 1) // stride
    end = 0 if offset >= n_in else (n_in - 1 - offset) // stride + 1
    end = min(end, n_out)
    return min(first, end), end


@helper
def _write_windows(op, x, first, m, panel, windows):
    """The windows of `panel` rows from `first` on, of the channels that x begins with: (numbers, rows, places)."""
    h, w, out_h, out_w = op[H], op[W], op[OUT_H], op[OUT_W]
    n, line = panel * out_h * out_w, 0
    zero = windows.dtype.type(0)
    for channel in range(op[C] // op[GROUPS]):
        for v in range(op[KERNEL_H]):
            top, bottom = _inside(v - op[TOP], op[STRIDE_H], h, out_h)
            for u in range(op[KERNEL_W]):
                begin, end = _inside(u - op[LEFT], op[STRIDE_W], w, out_w)
                made = windows[line * n : line * n + n]
                line += 1
                if top > 0 or bottom < out_h or begin > 0 or end < out_w:
                    made[:] = zero
                for row in range(panel):
                    for y in range(top, bottom):
                        at = ((channel * m + first + row) * h + y * op[STRIDE_H] + v - op[TOP]) * w
                        source = x[at : at + w][begin * op[STRIDE_W] + u - op[LEFT] :]
                        to = made[(row * out_h + y) * out_w + begin :][: end - begin]
                        if op[STRIDE_W] == 1:
                            for i in range(end - begin):
                                to[i] = source[i]
                        else:
                            for i in range(end - begin):
                                to[i] = source[i * op[STRIDE_W]]


@helper
def _add_windows(op, windows, first, m, panel, x):
    """Adds what the windows have to the pixels that they are made of."""
    h, w, out_h, out_w = op[H], op[W], op[OUT_H], op[OUT_W]
    n, line = panel * out_h * out_w, 0
    for channel in range(op[C] // op[GROUPS]):
        for v in range(op[KERNEL_H]):
            top, bottom = _inside(v - op[TOP], op[STRIDE_H], h, out_h)
            for u in range(op[KERNEL_W]):
                begin, end = _inside(u - op[LEFT], op[STRIDE_W], w, out_w)
                made = windows[line * n : line * n + n]
                line += 1
                for row in range(panel):
                    for y in range(top, bottom):
                        at = ((channel * m + first + row) * h + y * op[STRIDE_H] + v - op[TOP]) * w
                        to = x[at : at + w][begin * op[STRIDE_W] + u - op[LEFT] :]
                        source = made[(row * out_h + y) * out_w + begin :][: end - begin]
                        if op[STRIDE_W] == 1:
                            for i in range(end - begin):
                                to[i] += source[i]
                        else:
                            for i in range(end - begin):
                                to[i * op[STRIDE_W]] += source[i]


@inlined
def _sizes(op):
    """Input and output channels of a group, numbers of a window, and places of an output."""
    inputs = op[C] // op[GROUPS]
    return inputs, op[OUT_C] // op[GROUPS], inputs * op[KERNEL_H] * op[KERNEL_W], op[OUT_H] * op[OUT_W]


@helper
def conv_forward(op, x, w, m, windows, factor, y):
    """y = the convolution of x, m rows; `factor` is room for the weights of a group."""
    inputs, outputs, depth, places = _sizes(op)
    panel = rows_of_panel(places)
    for o in range(op[OUT_C]):
        bias = w[op[BIAS] + o] if op[BIAS] >= 0 else w.dtype.type(0)
        y[o * m * places : (o + 1) * m * places] = bias
    for group in range(op[GROUPS]):
        weight = w[op[WEIGHT] + group * outputs * depth :][: outputs * depth].reshape((outputs, depth))
        turned = factor[: outputs * depth].reshape((depth, outputs))
        for o in range(outputs):
            for i in range(depth):
                turned[i, o] = weight[o, i]
        images = x[group * inputs * m * op[H] * op[W] :]
        for first in range(0, m, panel):
            n = min(panel, m - first)
            _write_windows(op, images, first, m, n, windows)
            n *= places
            at = (group * outputs * m + first) * places
            add_lines(windows, 0, n, depth, turned, y, at, m * places, outputs, n)


@helper
def conv_backward(op, x, w, m, windows, by_y, by_x, passes, gradient):
    """Adds to the gradient by the weights and, where it passes on, to that by the input."""
    inputs, outputs, depth, places = _sizes(op)
    panel = rows_of_panel(places)
    if op[BIAS] >= 0:
        for o in range(op[OUT_C]):
            gradient[op[BIAS] + o] += sum_of(by_y[o * m * places : (o + 1) * m * places])
    for group in range(op[GROUPS]):
        here = op[WEIGHT] + group * outputs * depth
        weight = w[here : here + outputs * depth].reshape((outputs, depth))
        target = gradient[here : here + outputs * depth].reshape((outputs, depth))
        begin = group * inputs * m * op[H] * op[W]
        for first in range(0, m, panel):
            n_rows = min(panel, m - first)
            n = n_rows * places
            at = (group * outputs * m + first) * places
            _write_windows(op, x[begin:], first, m, n_rows, windows)
            add_dots(windows, 0, n, depth, by_y, at, m * places, outputs, n, target)
            if passes:
                windows[: depth * n] = 0
                add_lines(by_y, at, m * places, outputs, weight, windows, 0, n, depth, n)
                _add_windows(op, windows, first, m, n_rows, by_x[begin:])


@helper
def max_pool_forward(op, x, n_planes, choice, y):
    """The largest of each window, of equal ones the first, and its place in the plane."""
    h, w, out_h, out_w = op[H], op[W], op[OUT_H], op[OUT_W]
    for plane in range(n_planes):
        image, at = x[plane * h * w : (plane + 1) * h * w], plane * out_h * out_w
        for v in range(out_h):
            top = v * op[STRIDE_H] - op[TOP]
            for u in range(out_w):
                left = u * op[STRIDE_W] - op[LEFT]
                best, place = x.dtype.type(0), -1
                for i in range(max(top, 0), min(top + op[KERNEL_H], h)):
                    for j in range(max(left, 0), min(left + op[KERNEL_W], w)):
                        here = image[i * w + j]
                        if place < 0 or here > best or (here != here and best == best):
                            best, place = here, i * w + j
                y[at], choice[at] = best, place
                at += 1


@helper
def max_pool_backward(op, n_planes, choice, by_y, by_x):
    inside, outside = op[OUT_H] * op[OUT_W], op[H] * op[W]
    for plane in range(n_planes):
        for i in range(plane * inside, (plane + 1) * inside):
            by_x[plane * outside + choice[i]] += by_y[i]


@inlined
def _share(op, like):
    return like.dtype.type(1.0 / (op[KERNEL_H] * op[KERNEL_W]))


@helper
def avg_pool_forward(op, x, n_planes, y):
    """The mean of each window; padding counts as zeros."""
    h, w, out_h, out_w, share = op[H], op[W], op[OUT_H], op[OUT_W], _share(op, x)
    for plane in range(n_planes):
        image, at = x[plane * h * w : (plane + 1) * h * w], plane * out_h * out_w
        for v in range(out_h):
            top = v * op[STRIDE_H] - op[TOP]
            for u in range(out_w):
                left = u * op[STRIDE_W] - op[LEFT]
                total = x.dtype.type(0)
                for i in range(max(top, 0), min(top + op[KERNEL_H], h)):
                    for j in range(max(left, 0), min(left + op[KERNEL_W], w)):
                        total += image[i * w + j]
                y[at] = share * total
                at += 1


@helper
def avg_pool_backward(op, n_planes, by_y, by_x):
    h, w, out_h, out_w, share = op[H], op[W], op[OUT_H], op[OUT_W], _share(op, by_y)
    for plane in range(n_planes):
        image, at = by_x[plane * h * w : (plane + 1) * h * w], plane * out_h * out_w
        for v in range(out_h):
            top = v * op[STRIDE_H] - op[TOP]
            for u in range(out_w):
                left = u * op[STRIDE_W] - op[LEFT]
                slope = share * by_y[at]
                at += 1
                for i in range(max(top, 0), min(top + op[KERNEL_H], h)):
                    for j in range(max(left, 0), min(left + op[KERNEL_W], w)):
                        image[i * w + j] += slope
