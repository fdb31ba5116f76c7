"""What torch.fx sees of a module, as layers in sequence with residual additions."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..layers import Flatten, LastStep, Residual
from ..layers._layer import Layer, Shape
from ._known import functions_of, layer_of, methods_of, recurrent_of

__all__ = ["Chain", "chain_of"]

_PARTS = {"lstm": ("", "last and cells"), "gru": ("", "last"), "last and cells": ("last", "cells")}  # "": all states
_BATCH = object()  # the number of rows, where a forward reads it


@dataclass(frozen=True, slots=True)
class Chain:
    """Layers in sequence, and the names of the module's parameters in the order in which they have them."""

    layers: tuple[Layer, ...] = ()
    names: tuple[str, ...] = ()

    def __add__(self, other: Chain) -> Chain:
        return Chain(self.layers + other.layers, self.names + other.names)


@dataclass(slots=True)
class _Rows:
    """The value of a node: rows of a shape, made of the values of one node by a chain, or of two by adding them."""

    shape: Shape
    made_of: tuple[Any, ...] = ()
    chain: Chain = field(default_factory=Chain)
    depth: int = 0  # in the tree of dominators
    above: Any = None  # the nearest node through which every way to this one leads
    returned: str = ""  # of torch.nn.LSTM and GRU: a tuple of _PARTS, or the last states or cells of their layers
    single: bool = False  # whether that is of one layer


def chain_of(torch: Any, module: Any, shape: Shape) -> Chain:
    """The layers that do with rows of this shape what the module does; it is left alone."""

    class Holder(torch.nn.Module):  # type: ignore[misc]
        """Makes paths begin with `module`, and a layer by itself a node."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Any) -> Any:
            return self.module(x)

    modes = [part.training for part in module.modules()]
    try:
        graphs = [_traced(torch, Holder().train(mode)) for mode in (False, True)]
    finally:
        for part, mode in zip(module.modules(), modes, strict=True):
            part.training = mode
    _compare(*graphs)
    return _Reader(torch, Holder(), shape).read(graphs[1])


def _traced(torch: Any, holder: Any) -> Any:
    try:
        return torch.fx.Tracer().trace(holder)
    except Exception as error:  # whatever a forward raises where it finds no numbers
        raise ValueError(
            f"module: torch.fx cannot follow its forward ({type(error).__name__}: {error}); "
            "fedbuff.torch.Module takes it as it is"
        ) from error


def _compare(evaluated: Any, trained: Any) -> None:
    """Refuses a forward that does something else in training than in evaluation, beside dropout."""
    pairs = list(zip(evaluated.nodes, trained.nodes, strict=False))
    if len(evaluated.nodes) != len(trained.nodes) or any(a.target != b.target for a, b in pairs):
        raise ValueError("module: its forward does something else in training than in evaluation")
    for node, _ in pairs:
        if getattr(node.target, "__name__", node.target) == "dropout" and _argument(node, 2, "training", True):
            raise ValueError(
                f"{_path(node)} (dropout): it drops in evaluation too; pass training=self.training, or use nn.Dropout"
            )


def _argument(node: Any, at: int, name: str, default: Any) -> Any:
    return node.args[at] if len(node.args) > at else node.kwargs.get(name, default)


def _path(node: Any) -> str:
    """Of the module whose forward has the node."""
    return str(list(node.meta.get("nn_module_stack", {"module": None}))[-1])


class _Reader:
    """Follows the graph from the rows that go in to the scores that come out."""

    def __init__(self, torch: Any, holder: Any, shape: Shape) -> None:
        self._nn, self._node, self._holder, self._shape = torch.nn, torch.fx.Node, holder, shape
        self._functions, self._methods = functions_of(torch), methods_of(torch)
        self._additions = (operator.add, operator.iadd, torch.add, "add", "add_")
        self._order = {name: at for at, (name, _) in enumerate(holder.named_parameters(remove_duplicate=False))}
        self._values: dict[Any, Any] = {}
        self._taken: set[Any] = set()

    def read(self, graph: Any) -> Chain:
        start = result = None
        for node in graph.nodes:
            if node.op == "placeholder":
                start = node
                self._values[node] = _Rows(self._shape)
            elif node.op == "output":
                result = node.args[0]
            else:
                try:
                    self._values[node] = self._value(node)
                except ValueError as error:
                    raise ValueError(f"{self._name(node)}: {error}") from None
        value = self._values.get(result) if isinstance(result, self._node) else None
        if not isinstance(value, _Rows) or value.returned:
            raise ValueError("module: expected a forward that returns one array of scores")
        chain = self._chain(result, start)
        self._check_parameters(chain)
        return Chain(chain.layers, tuple(name.removeprefix("module.") for name in chain.names))

    def _name(self, node: Any) -> str:
        if node.op == "call_module":
            return f"{node.target} ({type(self._holder.get_submodule(node.target)).__name__})"
        return f"{_path(node)} ({getattr(node.target, '__name__', node.target)})"

    # Forward: the shape of each value, and the layer that makes it

    def _value(self, node: Any) -> Any:
        args, named = [self._given(a) for a in node.args], {k: self._given(a) for k, a in node.kwargs.items()}
        if node.op == "get_attr":
            raise ValueError("it is used by itself, not by a layer of torch.nn")
        inputs = [a for a in node.all_input_nodes if isinstance(self._values[a], _Rows)]
        if node.target is operator.getitem and inputs and args[0] is self._values[inputs[0]]:
            return self._item(inputs[0], args[1])
        if any(self._values[a].returned for a in inputs):
            raise ValueError("expected the states of all steps, the first that an LSTM or a GRU returns, or the last")
        if node.op == "call_module" and len(args) == 1 and not named:
            module, path = self._holder.get_submodule(node.target), f"{node.target}."
            layers = recurrent_of(self._nn, module, self._values[inputs[0]].shape)
            return self._recurrent(module, layers, inputs[0], path) if layers else self._layer(module, inputs[0], path)
        if node.target in self._additions:
            return self._sum(node, inputs)
        if args and isinstance(args[0], _Rows):
            if node.target in ("size", getattr):
                return self._sizes(args[0].shape, args[1:])
            if node.target in ("view", "reshape"):
                return self._reshaped(inputs[0], args[1:])
            make = (self._methods if node.op == "call_method" else self._functions).get(node.target)
            if make is not None and len(inputs) == 1:
                try:
                    made = make(*args[1:], **named)
                except TypeError:
                    raise ValueError("it is called with arguments that fedbuff.layers does not have") from None
                return self._layer(made, inputs[0], "")
        elif node.target is operator.getitem and isinstance(args[0], tuple) and isinstance(args[1], int):
            if -len(args[0]) <= args[1] < len(args[0]):
                return args[0][args[1]]
        raise ValueError("not among what fedbuff.Network has; fedbuff.torch.Module takes the module as it is")

    def _item(self, node: Any, at: Any) -> _Rows:
        """The states of an LSTM or a GRU, or its last; or the last step of a sequence."""
        rows = self._values[node]
        if rows.returned in _PARTS and at in (0, 1):
            chosen = self._rows(rows.shape, Chain(), node)
            chosen.returned, chosen.single = _PARTS[rows.returned][at], rows.single
            return chosen
        of_last = rows.returned == "last" and (at == -1 or (at == 0 and rows.single))
        everything = slice(None)
        if of_last or (not rows.returned and at in ((everything, -1), (everything, -1, everything))):
            return self._rows(LastStep()._part(rows.shape, "").shape, Chain((LastStep(),)), node)
        raise ValueError("not among what fedbuff.Network has, which is the last step of a sequence, x[:, -1]")

    def _recurrent(self, module: Any, layers: list[Layer], node: Any, path: str) -> _Rows:
        shape = self._values[node].shape
        for layer in layers:
            shape = layer._part(shape, "").shape
        made = self._rows(
            shape, Chain(tuple(layers), tuple(path + name for name, _ in module.named_parameters())), node
        )
        made.returned = "lstm" if isinstance(module, self._nn.LSTM) else "gru"
        made.single = module.num_layers == 1
        return made

    def _given(self, argument: Any) -> Any:
        if isinstance(argument, tuple | list):
            return type(argument)(self._given(a) for a in argument)
        return self._values[argument] if isinstance(argument, self._node) else argument

    def _rows(self, shape: Shape, chain: Chain, node: Any) -> _Rows:
        return _Rows(shape, (node,), chain, self._values[node].depth + 1, node)

    def _layer(self, module: Any, node: Any, path: str) -> _Rows:
        shape = self._values[node].shape
        layer = layer_of(self._nn, module, shape)
        if layer is None:
            return self._rows(shape, Chain(), node)
        part = layer._part(shape, "")
        wanted = [weight.shape for weights in part.weights for weight in weights]
        own = {} if module is layer else dict(module.named_parameters(recurse=False))
        if [tuple(p.shape) for p in own.values()] != wanted or not set(own) <= {"weight", "bias"}:
            has = ", ".join(f"{name} {tuple(p.shape)}" for name, p in own.items())
            raise ValueError(f"it has {has}, but rows of shape {shape} reach it, which want {wanted}")
        return self._rows(part.shape, Chain((layer,), tuple(path + name for name in own)), node)

    def _sum(self, node: Any, inputs: list[Any]) -> _Rows:
        if len(inputs) != 2 or len(node.args) != 2 or node.kwargs:
            raise ValueError("expected two different values that are added")
        shapes = [self._values[value].shape for value in inputs]
        if shapes[0] != shapes[1]:
            raise ValueError(f"it adds rows of shape {shapes[0]} and {shapes[1]}")
        fork = self._fork(*inputs)
        return _Rows(shapes[0], tuple(inputs), depth=self._values[fork].depth + 1, above=fork)

    def _fork(self, a: Any, b: Any) -> Any:
        """The nearest node through which every way to a and to b leads."""
        while a is not b:
            if self._values[a].depth < self._values[b].depth:
                a, b = b, a
            a = self._values[a].above
        return a

    @staticmethod
    def _sizes(shape: Shape, args: list[Any]) -> Any:
        sizes = (_BATCH, *shape)
        if not args or args == ["shape"]:
            return sizes
        if len(args) == 1 and isinstance(args[0], int) and -len(sizes) <= args[0] < len(sizes):
            return sizes[args[0]]
        raise ValueError("not among what fedbuff.Network has")

    def _reshaped(self, node: Any, args: list[Any]) -> _Rows:
        shape = self._values[node].shape
        part = Flatten()._part(shape, "")
        wanted = list(args[0]) if len(args) == 1 and isinstance(args[0], tuple | list) else args
        features = part.shape[0]
        if wanted not in ([_BATCH, -1], [_BATCH, features], [-1, features]):
            raise ValueError(f"fedbuff.layers has it as Flatten only, which makes {part.shape} of {shape}")
        return self._rows(part.shape, Chain((Flatten(),)), node)

    # Backward: the chain from one node to another, through which every way leads

    def _chain(self, end: Any, begin: Any) -> Chain:
        chain = Chain()
        while end is not begin:
            if end in self._taken:
                raise ValueError(f"{self._name(end)}: its output is used twice, and not by a residual addition")
            self._taken.add(end)
            rows = self._values[end]
            if len(rows.made_of) == 1:
                chain = rows.chain + chain
            else:
                chain = self._residual([self._chain(value, rows.above) for value in rows.made_of]) + chain
            end = rows.above
        return chain

    def _residual(self, branches: list[Chain]) -> Chain:
        """The branch whose parameters the module has first is the layers, so that models lie as the module has them."""
        branches.sort(key=lambda branch: (not branch.layers, min((self._order[n] for n in branch.names), default=0)))
        body, shortcut = branches
        if not body.layers:
            raise ValueError("module: its forward adds a value to itself")
        return Chain((Residual(body.layers, shortcut.layers),), body.names + shortcut.names)

    def _check_parameters(self, chain: Chain) -> None:
        parameters = dict(self._holder.named_parameters(remove_duplicate=False))
        for name in chain.names:
            if chain.names.count(name) > 1:
                raise ValueError(f"{name}: its layer is called twice; fedbuff.Network does not share weights")
            if not parameters[name].requires_grad:
                raise ValueError(
                    f"{name}: requires_grad is False, but fedbuff.Network trains all weights; "
                    "fedbuff.torch.Module keeps some frozen"
                )
        for first, second in self._shared(chain.names, parameters):
            raise ValueError(f"{second}: it is also {first}; fedbuff.Network does not share weights")
        for name in parameters.keys() - set(chain.names):
            raise ValueError(f"{name}: the module's forward does not use it")

    @staticmethod
    def _shared(names: tuple[str, ...], parameters: dict[str, Any]) -> Iterator[tuple[str, str]]:
        seen: dict[int, str] = {}
        for name in names:
            if id(parameters[name]) in seen:
                yield seen[id(parameters[name])], name
            seen[id(parameters[name])] = name
