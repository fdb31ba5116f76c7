"""sum|terms| of the problems' values and gradients: what backward(c) multiplies by c n eps.

A running error analysis in float64: beside every quantity goes the size of what was summed to make it, plus what the
errors of its inputs become. Beyond that it knows two dangers: a relu whose input may have either sign, and two scores
that may change places.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from networks import Passing
from numpy.typing import NDArray
from problems import cast, densify

from fedbuff.backends.spec import ProblemSpec

Array = NDArray[Any]


@dataclass
class Bounds:
    value: float  # terms of the mean loss, regularisers included
    gradient: Array  # terms of its gradient
    safe: float  # c n eps must stay below this, or a relu may switch
    margin: Array  # (rows): c n eps must stay below this, or a row may change its class


def bounds(spec: ProblemSpec, w: Array, rows: Array, client: int = 0) -> Bounds:
    """Of the mean over the rows (counted over all clients), or of a quadratic's client."""
    spec = cast(spec, np.float64)
    w = w.astype(np.float64)
    if spec.family == "quadratic":
        found = _quadratic(spec, w, client)
    elif spec.family == "layers":
        found = _network(spec, w, rows)
    else:
        found = _net(densify(spec) if spec.family == "sparse" else spec, w, rows)
    squares = w * w
    found.value += 4 * float(spec.l2 * squares.sum() + spec.nonconvex * (squares / (1 + squares)).sum())
    found.gradient = found.gradient + spec.l2 * np.abs(w) + 8 * spec.nonconvex * np.abs(w) / (1 + squares) ** 2
    return found


def _quadratic(spec: ProblemSpec, w: Array, client: int) -> Bounds:
    assert spec.center is not None and spec.curvature is not None
    away = np.abs(w) + np.abs(spec.center[client])
    curvature = np.abs(spec.curvature[client if len(spec.curvature) > 1 else 0])
    curved = curvature.reshape(spec.dim, spec.dim) @ away if spec.curvature_form == "dense" else curvature * away
    return Bounds(float(2 * away @ curved), 2 * curved, np.inf, np.empty(0))


def _net(spec: ProblemSpec, w: Array, rows: Array) -> Bounds:
    assert spec.x is not None
    h, e_h = spec.x[rows], np.zeros((len(rows), spec.sizes[0]))
    inputs = []
    layers = _layers(spec, w)
    safe = np.inf
    for depth, (weight, bias) in enumerate(layers):
        inputs.append((h, e_h))
        z = h @ weight.T + bias
        e_z = (e_h + np.abs(h)) @ np.abs(weight).T + np.abs(bias)
        if depth < len(layers) - 1:
            h = np.tanh(z) if spec.activation == "tanh" else np.maximum(z, 0)
            e_h = e_z + np.abs(h)
            if spec.activation == "relu":
                safe = min(safe, float(np.min(np.abs(z) / np.maximum(e_z, 1e-300), where=e_z > 0, initial=np.inf)))
    d, e_d, e_loss, margin = _head(spec, z, e_z, rows)
    parts = []
    for depth in reversed(range(len(layers))):
        weight, bias = layers[depth]
        h, e_h = inputs[depth]
        if spec.intercept:
            parts.append((e_d + np.abs(d)).mean(axis=0))
        parts.append((((e_d + np.abs(d)).T @ np.abs(h) + np.abs(d).T @ e_h) / len(rows)).ravel())
        if depth > 0:
            e_d = (e_d + np.abs(d)) @ np.abs(weight)
            d = d @ weight
            if spec.activation == "tanh":
                slope = 1 - h * h
                e_d = e_d * slope + np.abs(d) * (2 * np.abs(h) * e_h + 1 + slope)
                d = d * slope
            else:
                e_d, d = e_d * (h > 0), d * (h > 0)
    return Bounds(float(e_loss.mean()), np.concatenate(parts[::-1]), safe, margin)


def _network(spec: ProblemSpec, w: Array, rows: Array) -> Bounds:
    (z, e_z, back), passing = Passing.through(spec, w, rows)
    d, e_d, e_loss, margin = _head(spec, z, e_z, rows)
    _, _, terms = back(d / len(rows), e_d / len(rows))
    gradient = np.concatenate([term.ravel() for term in terms])
    return Bounds(float(e_loss.mean()), gradient, passing.safe, margin)


def _head(spec: ProblemSpec, z: Array, e_z: Array, rows: Array) -> tuple[Array, Array, Array, Array]:
    """Slope, its terms, the loss's terms and the margin of each row."""
    if spec.head == "softmax":
        assert spec.label is not None
        pick = np.arange(len(rows)), spec.label[rows]
        top = z.max(axis=1, keepdims=True)
        p = np.exp(z - top)
        total = p.sum(axis=1, keepdims=True)
        p /= total
        e_power = e_z + e_z.max(axis=1, keepdims=True) + (top - z) + 1
        e_p = p * (e_power + (p * e_power).sum(axis=1, keepdims=True) + 1)
        smoothing = 0.0 if spec.network is None else spec.network.label_smoothing
        d = p - smoothing / p.shape[1]
        d[pick] -= 1 - smoothing
        e_loss = (p * e_power).sum(axis=1) + np.log(total[:, 0]) + e_power[pick] + 1 + smoothing * e_power.mean(axis=1)
        second = np.sort(z, axis=1)[:, -2]
        return d, e_p + np.abs(d) + p, e_loss, (top[:, 0] - second) / np.maximum(2 * e_z.max(axis=1), 1e-300)
    assert spec.target is not None
    y = spec.target[rows].reshape(len(rows), -1)
    margin = np.abs(z[:, 0]) / np.maximum(e_z[:, 0], 1e-300)
    if spec.head == "squared":
        d = z - y
        e_d = e_z + np.abs(z) + np.abs(y)
        return d, e_d, (np.abs(d) * e_d + d * d).sum(axis=1), margin
    p = 1 / (1 + np.exp(-np.clip(z, -700, 700)))
    e_p = p * (1 - p) * (e_z + np.abs(z)) + p
    loss_terms = np.logaddexp(0, z) + np.abs(y * z) + e_z + 1
    return p - y, e_p + p + y, loss_terms.sum(axis=1), margin


def _layers(spec: ProblemSpec, w: Array) -> list[tuple[Array, Array]]:
    views = []
    position = 0
    for n_in, n_out in pairwise(spec.sizes):
        weight = w[position : position + n_out * n_in].reshape(n_out, n_in)
        position += n_out * n_in
        bias = w[position : position + n_out] if spec.intercept else np.zeros(n_out)
        position += n_out if spec.intercept else 0
        views.append((weight, bias))
    return views
