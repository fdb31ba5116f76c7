# mypy: allow-untyped-defs, allow-untyped-calls
"""Server steps of the optimizers beside SGD and Adam."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..._rule.optimizers import Adagrad, AMSGrad, DelayedNesterov, Nesterov, Yogi
from ..spec import Moments, StepNumbers, Vector
from .compile import compiled, helper, reads

_NESTEROV, _DELAYED, _ADAGRAD, _YOGI, _AMSGRAD = (
    kind.code for kind in (Nesterov, DelayedNesterov, Adagrad, Yogi, AMSGrad)
)


class Optimizer(NamedTuple):
    """Its code and its numbers, as in `StepNumbers`."""

    code: int
    momentum: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    period: int
    activation: float


@helper
def _nesterov(w, total, lr, norm, momentum, velocity, out):
    for j in range(len(w)):
        gradient = total[j] / norm
        velocity[j] = momentum * velocity[j] + gradient
        out[j] = w[j] - lr * (gradient + momentum * velocity[j])


@helper
def _delayed_nesterov(w, total, lr, norm, momentum, share, period, last, first, pending, out):
    for j in range(len(w)):
        gradient = total[j] / norm
        pending[j] += gradient
        if last:
            first[j] = momentum * first[j] + pending[j] / period
            pending[j] = 0
        out[j] = w[j] - lr * (share * first[j] + gradient / period)


@helper
def _adaptive(code, w, total, numbers, first, second, third, out):
    lr, norm, b1, one_less_b1, b2, one_less_b2, epsilon, weight_decay = numbers
    for j in range(len(w)):
        gradient = total[j] / norm + weight_decay * w[j]
        first[j] = b1 * first[j] + one_less_b1 * gradient
        square, moment = gradient * gradient, second[j]
        if code == _ADAGRAD:
            moment += square
        elif code == _YOGI:
            if moment < square:
                moment += one_less_b2 * square
            elif square < moment:
                moment -= one_less_b2 * square
        else:
            moment = b2 * moment + one_less_b2 * square
        second[j] = moment
        if code == _AMSGRAD:
            third[j] = max(third[j], moment)
            moment = third[j]
        out[j] = w[j] - lr * first[j] / (math.sqrt(moment) + epsilon)


@helper
def optimize(by, w, total, lr, norm, step, first, second, third, out):
    """One step of an optimizer. The moments that it does not have are empty, the others are changed in place."""
    t = w.dtype.type
    if by.code == _NESTEROV:
        _nesterov(w, total, t(lr), t(norm), t(by.momentum), first, out)
    elif by.code == _DELAYED:
        last = step % by.period == 0
        active = 1 - by.activation * (by.period - 1) if last else by.activation
        share = t(active * by.momentum)
        _delayed_nesterov(w, total, t(lr), t(norm), t(by.momentum), share, t(by.period), last, first, second, out)
    else:
        numbers = (
            t(lr), t(norm), t(by.beta1), t(1 - by.beta1), t(by.beta2), t(1 - by.beta2), t(by.epsilon),
            t(by.weight_decay),
        )  # fmt: skip
        _adaptive(by.code, w, total, numbers, first, second, third, out)


@compiled
def _optimize(by, w, total, lr, norm, step, first, second, third, out):
    optimize(by, w, total, lr, norm, step, first, second, third, out)


def optimizer_step(code: int, w: Vector, total: Vector, numbers: StepNumbers, moments: Moments, out: Vector) -> None:
    none = np.empty(0, w.dtype)
    first, second, third = (*moments, none, none)[:3]
    by = Optimizer(
        code, numbers.momentum, numbers.beta1, numbers.beta2, numbers.epsilon, numbers.weight_decay, numbers.period,
        numbers.activation,
    )  # fmt: skip
    _optimize(by, reads(w), reads(total), numbers.lr, numbers.norm, numbers.step, first, second, third, out)
