# mypy: allow-untyped-defs, allow-untyped-calls
"""Server steps of the optimizers beside SGD and Adam."""

from __future__ import annotations

import math

import numpy as np

from ..._rule.optimizers import Adagrad, AMSGrad, DelayedNesterov, Nesterov, Yogi
from ..spec import Moments, StepNumbers, Vector
from .compile import compiled, reads

_ADAGRAD, _YOGI, _AMSGRAD = Adagrad.code, Yogi.code, AMSGrad.code


@compiled
def _nesterov(w, total, lr, norm, momentum, velocity, out):
    for j in range(len(w)):
        gradient = total[j] / norm
        velocity[j] = momentum * velocity[j] + gradient
        out[j] = w[j] - lr * (gradient + momentum * velocity[j])


@compiled
def _delayed_nesterov(w, total, lr, norm, momentum, share, period, last, first, pending, out):
    for j in range(len(w)):
        gradient = total[j] / norm
        pending[j] += gradient
        if last:
            first[j] = momentum * first[j] + pending[j] / period
            pending[j] = 0
        out[j] = w[j] - lr * (share * first[j] + gradient / period)


@compiled
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


def optimizer_step(code: int, w: Vector, total: Vector, numbers: StepNumbers, moments: Moments, out: Vector) -> None:
    t = w.dtype.type
    first, *others = moments
    lr, norm, momentum = t(numbers.lr), t(numbers.norm), t(numbers.momentum)
    if code == Nesterov.code:
        _nesterov(reads(w), reads(total), lr, norm, momentum, first, out)
    elif code == DelayedNesterov.code:
        last = numbers.step % numbers.period == 0
        active = 1 - numbers.activation * (numbers.period - 1) if last else numbers.activation
        share = t(active * numbers.momentum)
        _delayed_nesterov(
            reads(w), reads(total), lr, norm, momentum, share, t(numbers.period), last, first, others[0], out
        )
    else:
        b1, b2 = numbers.beta1, numbers.beta2
        values = tuple(
            map(t, (numbers.lr, numbers.norm, b1, 1 - b1, b2, 1 - b2, numbers.epsilon, numbers.weight_decay))
        )
        second, largest = (*others, np.empty(0, w.dtype))[:2]
        _adaptive(code, reads(w), reads(total), values, first, second, largest, out)
