"""Layers of sequences: what makes one of a row of tokens, and what makes a vector of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .._base.checks import flag
from ..backends.spec import LayerSpec
from ._layer import Layer, Part, Shape, Tokens, Weight, check_row, described, sequence_of, size

__all__ = ["GRU", "LSTM", "Embedding", "LastStep", "MeanOverTime"]


@dataclass(frozen=True, slots=True)
class Embedding(Layer):
    """A row of weights for each token, as torch.nn.Embedding: a row of tokens (time,) becomes a sequence (time, width).

    It is the first layer of a network whose X has whole numbers from 0 to n_words - 1.
    """

    n_words: int
    width: int
    kind: ClassVar[str] = "embedding"
    _takes: ClassVar[str] = "tokens"

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_words", size("n_words", self.n_words))
        object.__setattr__(self, "width", size("width", self.width))

    def _part(self, shape: Shape, path: str) -> Part:
        if not isinstance(shape, Tokens):
            raise ValueError(f"expected rows of tokens, which only the first layer gets, got {described(shape)}")
        record = LayerSpec(kind="embedding", out=self.width, vocabulary=self.n_words)
        weight = Weight("weight", (self.n_words, self.width), "normal")
        return Part((record,), check_row((*shape, self.width)), ((weight,),))


@dataclass(frozen=True, slots=True)
class MeanOverTime(Layer):
    """The mean of each feature over the steps of a sequence, which makes a vector of it."""

    kind: ClassVar[str] = "mean_over_time"
    _takes: ClassVar[str] = "sequence"

    def _part(self, shape: Shape, path: str) -> Part:
        _, features = sequence_of(shape)
        return Part((LayerSpec(kind="mean_over_time"),), (features,))


@dataclass(frozen=True, slots=True)
class LastStep(Layer):
    """The last step of a sequence, which makes a vector of it."""

    kind: ClassVar[str] = "last_step"
    _takes: ClassVar[str] = "sequence"

    def _part(self, shape: Shape, path: str) -> Part:
        _, features = sequence_of(shape)
        return Part((LayerSpec(kind="last_step"),), (features,))


@dataclass(frozen=True, slots=True)
class _Recurrent(Layer):
    """What goes through a sequence step by step with a state of `width` numbers, which is zero at the start."""

    width: int
    last: bool = False
    bias: bool = True
    _takes: ClassVar[str] = "sequence"
    _gates: ClassVar[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", size("width", self.width))
        object.__setattr__(self, "last", flag("last", self.last))
        object.__setattr__(self, "bias", flag("bias", self.bias))

    def _part(self, shape: Shape, path: str) -> Part:
        steps, features = sequence_of(shape)
        width, gates = self.width, self._gates * self.width
        weights = [
            Weight("weight_ih", (gates, features), "recurrent", width),
            Weight("weight_hh", (gates, width), "recurrent", width),
            *([Weight("bias_ih", (gates,)), Weight("bias_hh", (gates,))] if self.bias else []),
        ]
        record = LayerSpec(kind=self.kind, out=width, bias=self.bias)
        check_row((steps, width))
        if self.last:
            return Part((record, LayerSpec(kind="last_step")), (width,), (tuple(weights), ()))
        return Part((record,), (steps, width), (tuple(weights),))


@dataclass(frozen=True, slots=True)
class LSTM(_Recurrent):
    """A long short-term memory, as torch.nn.LSTM of one layer; it gives the states of all steps.

    width  numbers of the state
    last   gives the last state alone, a vector
    bias   whether gates have biases: two each, as PyTorch has them
    """

    kind: ClassVar[str] = "lstm"
    _gates: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class GRU(_Recurrent):
    """A gated recurrent unit, as torch.nn.GRU of one layer: the reset gate works on what the last state adds.

    Arguments as for `LSTM`.
    """

    kind: ClassVar[str] = "gru"
    _gates: ClassVar[int] = 3
