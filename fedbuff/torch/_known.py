"""Modules and functions of PyTorch as layers of `fedbuff.layers`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import layers as L
from ..layers._layer import Layer, Shape

__all__ = ["functions_of", "layer_of", "methods_of", "recurrent_of"]

Make = Callable[..., Any]


def layer_of(nn: Any, module: Any, shape: Shape) -> Layer | None:
    """The layer that does what the module does with rows of this shape; None where it changes nothing."""
    if isinstance(module, nn.Identity):
        return None
    if isinstance(module, Layer):
        return module
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm):
        L.BatchNorm()  # which says why not
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
        nn.LayerNorm: lambda m: _layer_norm(m, shape),
        nn.Embedding: _embedding,
    }
    if type(module) in (nn.Softmax, nn.LogSoftmax):
        raise ValueError("cross_entropy, the default loss, has it in itself; end with scores")
    if type(module) not in kinds:
        known = ", ".join(kind.__name__ for kind in (*kinds, nn.LSTM, nn.GRU))
        raise ValueError(f"not a layer that fedbuff.Network has; it has {known}, Identity and Sequential")
    _check_hooks(module)
    layer: Layer = kinds[type(module)](module)
    return layer


def recurrent_of(nn: Any, module: Any, shape: Shape) -> list[Layer]:
    """The layers of an LSTM or a GRU, with what it drops between them; none of another module."""
    kind: Any = {nn.LSTM: L.LSTM, nn.GRU: L.GRU}.get(type(module))
    if kind is None:
        return []
    _want(module.batch_first, "with batch_first=True")
    _want(not module.bidirectional and not module.proj_size, "without bidirectional and proj_size")
    _check_hooks(module)
    if len(shape) == 2 and module.input_size != shape[1]:
        raise ValueError(f"its input_size is {module.input_size}, sequences of shape {shape} reach it")
    between = [L.Dropout(module.dropout)] if module.dropout else []
    layers: list[Layer] = [kind(module.hidden_size, bias=module.bias)]
    for _ in range(module.num_layers - 1):
        layers += [*between, kind(module.hidden_size, bias=module.bias)]
    return layers


def functions_of(torch: Any) -> dict[Any, Make]:
    """For each function the module, or the layer, that does the same, made of the arguments behind the first."""
    nn, F = torch.nn, torch.nn.functional
    makers: dict[Any, Make] = {}
    for name, make in _makers(nn).items():
        for place in (F, torch):
            for called in (name, f"{name}_"):
                if hasattr(place, called):
                    makers[getattr(place, called)] = make
    return makers


def methods_of(torch: Any) -> dict[str, Make]:
    """The same for methods of tensors."""
    makers = {name: make for name, make in _makers(torch.nn).items() if hasattr(torch.Tensor, name)}
    makers |= {f"{name}_": make for name, make in makers.items() if hasattr(torch.Tensor, f"{name}_")}
    return makers | {"contiguous": lambda: torch.nn.Identity()}


def _makers(nn: Any) -> dict[str, Make]:
    def max_pool2d(
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        return nn.MaxPool2d(kernel_size, stride, padding, dilation, return_indices, ceil_mode)

    def mean(dim: Any, keepdim: bool = False) -> Any:
        if dim in (1, -2) and not keepdim:
            return L.MeanOverTime()
        dims = sorted(d % 4 for d in (dim if isinstance(dim, tuple | list) else (dim,)))
        _want(dims == [2, 3], "over height and width, or over time,")
        return nn.AdaptiveAvgPool2d(1)

    def dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return nn.Dropout(p) if training else nn.Identity()

    return {
        "relu": lambda inplace=False: nn.ReLU(),
        "leaky_relu": lambda negative_slope=0.01, inplace=False: nn.LeakyReLU(negative_slope),
        "gelu": lambda approximate="none": nn.GELU(approximate),
        "silu": lambda inplace=False: nn.SiLU(),
        "tanh": lambda: nn.Tanh(),
        "sigmoid": lambda: nn.Sigmoid(),
        "max_pool2d": max_pool2d,
        "avg_pool2d": lambda *args, **named: nn.AvgPool2d(*args, **named),
        "adaptive_avg_pool2d": lambda output_size: nn.AdaptiveAvgPool2d(output_size),
        "flatten": lambda start_dim=0, end_dim=-1: nn.Flatten(start_dim, end_dim),
        "mean": mean,
        "dropout": dropout,
        "softmax": lambda *args, **named: nn.Softmax(),
        "log_softmax": lambda *args, **named: nn.LogSoftmax(),
    }


def _check_hooks(module: Any) -> None:
    if module._forward_hooks or module._forward_pre_hooks:
        raise ValueError("it has hooks, which fedbuff.Network would not call")


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
    _want((m.start_dim, m.end_dim) in ((1, -1), (1, 3)), "with start_dim 1 and end_dim -1")
    return L.Flatten()


def _gelu(m: Any) -> Any:
    _want(m.approximate == "none", "with approximate='none'")
    return L.GELU()


def _embedding(m: Any) -> Any:
    _want(m.padding_idx is None and m.max_norm is None, "without padding_idx and max_norm")
    _want(not m.scale_grad_by_freq, "without scale_grad_by_freq")
    return L.Embedding(m.num_embeddings, m.embedding_dim)


def _layer_norm(m: Any, shape: Shape) -> Any:
    _want(m.weight is None or m.bias is not None, "with bias, or without elementwise_affine,")
    if tuple(m.normalized_shape) != shape:
        raise ValueError(f"its normalized_shape is {tuple(m.normalized_shape)}, rows of shape {shape} reach it")
    return L.LayerNorm(m.eps, m.elementwise_affine)
