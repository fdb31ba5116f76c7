"""sum|terms| of what passes through an LSTM or a GRU, by numbers that carry theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbuff.backends.python.network import LAYERS, Weights, as_sequence
from fedbuff.backends.spec import LayerSpec

__all__ = ["recurrent"]

Array = NDArray[Any]
Backward = Callable[[Array, Array], tuple[Array, Array, list[Array]]]


@dataclass
class Term:
    """Values, and the sizes of what was summed to make them."""

    v: Array
    e: Array

    def __add__(self, other: Term) -> Term:
        v = self.v + other.v
        return Term(v, self.e + other.e + np.abs(v))

    def __sub__(self, other: Term) -> Term:
        return self + Term(-other.v, other.e)

    def __mul__(self, other: Term) -> Term:
        v = self.v * other.v
        return Term(v, self.e * np.abs(other.v) + np.abs(self.v) * other.e + np.abs(v))

    def times(self, matrix: Array) -> Term:
        return Term(self.v @ matrix, (self.e + np.abs(self.v)) @ np.abs(matrix))

    def less_than_one(self) -> Term:
        """1 - v."""
        return Term(1 - self.v, self.e + 1)


def sigmoid(x: Term) -> Term:
    v = 1 / (1 + np.exp(-x.v))
    return Term(v, 0.25 * x.e + np.abs(x.v) + v)


def tanh(x: Term) -> Term:
    v = np.tanh(x.v)
    return Term(v, x.e + np.abs(x.v) + np.abs(v))


def parts(x: Term, n: int) -> list[Term]:
    return [Term(v, e) for v, e in zip(np.split(x.v, n, 1), np.split(x.e, n, 1), strict=True)]


class _Affine:
    def __init__(self, layer: LayerSpec, features: int, w: Array, gates: int) -> None:
        weights, n = Weights(w), gates * layer.out
        self.input, self.hidden = weights.take(n, features), weights.take(n, layer.out)
        self.input_bias, self.hidden_bias = (weights.take(n) if layer.bias else np.zeros(n) for _ in range(2))
        self.used, self.has_bias = len(w) - weights.left, layer.bias

    def by_input(self, x: Term) -> Term:
        return x.times(self.input.T) + Term(self.input_bias, np.zeros_like(self.input_bias))

    def by_state(self, h: Term) -> Term:
        return h.times(self.hidden.T) + Term(self.hidden_bias, np.zeros_like(self.hidden_bias))


def recurrent(layer: LayerSpec, x: Array, e: Array, w: Array) -> tuple[Array, Array, Backward, int]:
    value, e_value = as_sequence(x), as_sequence(e)
    own = _Affine(layer, value.shape[2], w, 4 if layer.kind == "lstm" else 3)
    _, true_back = LAYERS[layer.kind](layer, x, Weights(w))
    inputs = [Term(value[:, t], e_value[:, t]) for t in range(value.shape[1])]
    zero = Term(np.zeros((len(x), layer.out)), np.zeros((len(x), layer.out)))
    states, step_back = (_lstm if layer.kind == "lstm" else _gru)(own, inputs, zero)

    def back(d: Array, e_d: Array) -> tuple[Array, Array, list[Array]]:
        by_x, _ = true_back(d)
        carried = (zero, zero)
        terms = np.zeros(value.shape)
        by_weights = [np.zeros_like(own.input), np.zeros_like(own.hidden)]
        by_biases = [np.zeros_like(own.input_bias), np.zeros_like(own.input_bias)]
        for t in reversed(range(len(inputs))):
            by_line, by_hidden, carried = step_back(t, Term(d[:, t], e_d[:, t]), carried)
            terms[:, t] = by_line.times(own.input).e
            for at, (line, rows) in enumerate(((by_line, inputs[t]), (by_hidden, states[t]))):
                size = line.e + np.abs(line.v)
                by_weights[at] += size.T @ np.abs(rows.v) + np.abs(line.v).T @ rows.e
                by_biases[at] += size.sum(axis=0)
        return by_x, terms.reshape(x.shape), by_weights + by_biases if own.has_bias else by_weights

    stacked = [np.stack([getattr(state, name) for state in states[1:]], axis=1) for name in ("v", "e")]
    return stacked[0], stacked[1], back, own.used


def _lstm(own: _Affine, inputs: list[Term], zero: Term) -> tuple[list[Term], Callable[..., Any]]:
    states, cells, gates = [zero], [zero], []
    for x in inputs:
        i, f, g, o = parts(own.by_input(x) + own.by_state(states[-1]), 4)
        i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
        cells.append(f * cells[-1] + i * g)
        states.append(o * tanh(cells[-1]))
        gates.append((i, f, g, o))

    def back(t: int, slope: Term, carried: tuple[Term, Term]) -> tuple[Term, Term, tuple[Term, Term]]:
        (i, f, g, o), y = gates[t], tanh(cells[t + 1])
        by_h = slope + carried[0]
        by_c = carried[1] + by_h * o * (y * y).less_than_one()
        gradients = [
            by_c * g * i * i.less_than_one(),
            by_c * cells[t] * f * f.less_than_one(),
            by_c * i * (g * g).less_than_one(),
            by_h * y * o * o.less_than_one(),
        ]
        line = Term(np.hstack([part.v for part in gradients]), np.hstack([part.e for part in gradients]))
        return line, line, (line.times(own.hidden), by_c * f)

    return states, back


def _gru(own: _Affine, inputs: list[Term], zero: Term) -> tuple[list[Term], Callable[..., Any]]:
    states, gates = [zero], []
    for x in inputs:
        (a, b, c), (d, e, q) = parts(own.by_input(x), 3), parts(own.by_state(states[-1]), 3)
        r, z = sigmoid(a + d), sigmoid(b + e)
        n = tanh(c + r * q)
        states.append(z.less_than_one() * n + z * states[-1])
        gates.append((r, z, n, q))

    def back(t: int, slope: Term, carried: tuple[Term, Term]) -> tuple[Term, Term, tuple[Term, Term]]:
        r, z, n, q = gates[t]
        by_h = slope + carried[0]
        by_n = by_h * z.less_than_one() * (n * n).less_than_one()
        by_z = by_h * (states[t] - n) * z * z.less_than_one()
        by_r = by_n * q * r * r.less_than_one()
        line, hidden = (
            Term(np.hstack([part.v for part in three]), np.hstack([part.e for part in three]))
            for three in ((by_r, by_z, by_n), (by_r, by_z, by_n * r))
        )
        return line, hidden, (by_h * z + hidden.times(own.hidden), zero)

    return states, back
