"""An nn.Sequential as a `fedbuff.Network` that starts from the module's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import layers as L
from .._base.checks import instance
from .._base.files import optional
from .._problems.network import Network

__all__ = ["network"]


def network(module: Any, X: Any, y: Any, clients: Any, **options: Any) -> Network:
    """The layers of an nn.Sequential, compiled. `init` of what is returned gives the module's weights.

    `options` are those of `fedbuff.Network`: loss, label_smoothing, l2, client_weights, copy. Sequentials may stand in
    each other. A layer that is not known is an error that names its path. Cross-entropy, the default, has softmax in
    it, as torch.nn.CrossEntropyLoss: the module ends with scores.

    >>> import numpy as np, fedbuff as fb
    >>> from torch import nn  # doctest: +SKIP
    >>> module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))  # doctest: +SKIP
    >>> fb.torch.network(module, np.zeros((4, 8, 8), np.float32), [0, 1, 0, 1], clients=[0, 0, 1, 1])  # doctest: +SKIP
    <Network: 2 clients, 330 float32 weights>
    """
    torch = optional("torch", "torch", "fedbuff.torch.network")
    instance("module", module, torch.nn.Sequential, "a torch.nn.Sequential")
    made = Network(X, y, clients, layers=list(_layers(torch.nn, module, "module")), **options)
    parameters = [parameter.detach().cpu().numpy().ravel() for parameter in module.parameters()]
    w = np.concatenate(parameters) if parameters else np.empty(0)
    if w.size != made.dim:
        raise ValueError(f"module: it has {w.size} weights, its layers want {made.dim}; a layer stands in it twice?")
    made._start = w.astype(made.dtype)
    return made


def _layers(nn: Any, module: Any, path: str) -> Iterator[Any]:
    for name, child in module.named_children():
        here = f"{path}.{name}"
        if isinstance(child, nn.Sequential):
            yield from _layers(nn, child, here)
        elif not isinstance(child, nn.Identity):
            try:
                yield _layer(nn, child)
            except ValueError as error:
                raise ValueError(f"{here} ({type(child).__name__}): {error}") from None


def _layer(nn: Any, module: Any) -> Any:
    kinds: dict[Any, Callable[[Any], Any]] = {
        nn.Conv2d: _conv2d,
        nn.MaxPool2d: _max_pool2d,
        nn.AvgPool2d: _avg_pool2d,
        nn.AdaptiveAvgPool2d: _global_avg_pool2d,
        nn.Flatten: _flatten,
        nn.Linear: lambda m: L.Dense(m.out_features, m.bias is not None),
        nn.ReLU: lambda m: L.ReLU(),
        nn.LeakyReLU: lambda m: L.LeakyReLU(m.negative_slope),
        nn.GELU: _gelu,
        nn.SiLU: lambda m: L.SiLU(),
        nn.Tanh: lambda m: L.Tanh(),
        nn.Sigmoid: lambda m: L.Sigmoid(),
        nn.Dropout: lambda m: L.Dropout(m.p),
        nn.GroupNorm: lambda m: L.GroupNorm(m.num_groups, m.eps, m.affine),
    }
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm):
        return L.BatchNorm(module.num_features)  # which says why not
    if type(module) not in kinds:
        known = ", ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"not a layer that fedbuff.Network has; it has {known}, Identity and Sequential")
    return kinds[type(module)](module)


def _want(true: bool, what: str) -> None:
    if not true:
        raise ValueError(f"fedbuff.layers has it {what} only")


def _conv2d(m: Any) -> Any:
    _want(m.padding_mode == "zeros", "with padding_mode='zeros'")
    _want(tuple(m.dilation) == (1, 1), "with dilation 1")
    padding = 0 if m.padding == "valid" else m.padding
    return L.Conv2d(m.out_channels, m.kernel_size, m.stride, padding, m.groups, m.bias is not None)


def _max_pool2d(m: Any) -> Any:
    _want(m.dilation in (1, (1, 1)), "with dilation 1")
    _want(not m.ceil_mode and not m.return_indices, "without ceil_mode and return_indices")
    return L.MaxPool2d(m.kernel_size, m.stride, m.padding)


def _avg_pool2d(m: Any) -> Any:
    _want(not m.ceil_mode and m.divisor_override is None, "without ceil_mode and divisor_override")
    _want(m.count_include_pad or m.padding in (0, (0, 0)), "with count_include_pad")
    return L.AvgPool2d(m.kernel_size, m.stride, m.padding)


def _global_avg_pool2d(m: Any) -> Any:
    _want(m.output_size in (1, (1, 1)), "with output_size 1, followed by Flatten")
    return L.GlobalAvgPool2d()


def _flatten(m: Any) -> Any:
    _want((m.start_dim, m.end_dim) == (1, -1), "with start_dim 1 and end_dim -1")
    return L.Flatten()


def _gelu(m: Any) -> Any:
    _want(m.approximate == "none", "with approximate='none'")
    return L.GELU()
