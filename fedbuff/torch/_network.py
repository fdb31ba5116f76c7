"""A module of PyTorch as a `fedbuff.Network` that starts from the module's weights."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from .._base.checks import instance
from .._base.files import optional
from .._problems.base import Floats
from .._problems.network import Network
from .._problems.network_rows import row_shape
from .._problems.to_torch import module_of
from ..layers import Embedding
from ._graph import Chain, chain_of

__all__ = ["network"]

_CLOSE = 1e-8  # of scores in float64, relative to the largest


def network(module: Any, X: Any, y: Any, clients: Any, **options: Any) -> Network:
    """The layers of a module, compiled. `init` of what is returned gives the module's weights.

    `options` are those of `fedbuff.Network`: loss, label_smoothing, l2, client_weights, copy. The module's forward is
    followed by torch.fx: a chain of layers of torch.nn and of functions that do the same, with residual additions, in
    modules within modules; a ResNet is one. What is not known is an error that names its path. Cross-entropy, the
    default, has softmax in it, as torch.nn.CrossEntropyLoss: the module ends with scores.

    `to_torch` of what is returned gives a copy of the module with the weights of a model.

    >>> import numpy as np, fedbuff as fb
    >>> from torch import nn  # doctest: +SKIP
    >>> module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))  # doctest: +SKIP
    >>> fb.torch.network(module, np.zeros((4, 8, 8), np.float32), [0, 1, 0, 1], clients=[0, 0, 1, 1])  # doctest: +SKIP
    <Network: 2 clients, 330 float32 weights>
    """
    torch = optional("torch", "torch", "fedbuff.torch.network")
    instance("module", module, torch.nn.Module, "a torch.nn.Module")
    kinds = {type(part) for part in module.modules()}
    tokens = torch.nn.Embedding in kinds
    shape = row_shape(X, tokens=tokens, sequences=not tokens and bool(kinds & {torch.nn.LSTM, torch.nn.GRU}))
    chain = chain_of(torch, module, shape)
    made = Network(X, y, clients, layers=chain.layers, **options)
    origin = Origin(module, chain.names, made.dtype)
    made._start, made._origin = origin.weights(), origin
    _compare(torch, origin, chain, shape)
    return made


class Origin:
    """The module that a network was made of, and the names of its parameters in the network's order."""

    def __init__(self, module: Any, names: tuple[str, ...], dtype: np.dtype[Any]) -> None:
        self._module = copy.deepcopy(module).to("cpu", getattr(optional("torch", "torch", "to_torch"), str(dtype)))
        self._names, self._dtype = names, dtype

    def weights(self) -> Floats:
        parameters = dict(self._module.named_parameters())
        parts = [parameters[name].detach().numpy().ravel() for name in self._names]
        return np.concatenate(parts) if parts else np.empty(0, self._dtype)

    def with_weights(self, w: Floats) -> Any:
        torch = optional("torch", "torch", "to_torch")
        module = copy.deepcopy(self._module)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(torch.from_numpy(w.copy()), [parameters[name] for name in self._names])
        return module


def _compare(torch: Any, origin: Origin, chain: Chain, shape: tuple[int, ...]) -> None:
    """Refuses a module that computes what its graph does not show, such as work in place on a value used again."""
    w = origin.weights().astype(np.float64)
    rng = np.random.default_rng(0)
    first = chain.layers[0]
    if isinstance(first, Embedding):
        rows = torch.from_numpy(rng.integers(0, first.n_words, (2, *shape)))
    else:
        rows = torch.from_numpy(rng.standard_normal((2, *shape)))
    with torch.no_grad():
        ours = module_of(chain.layers, shape, w).eval()(rows)
        theirs = origin.with_weights(w).double().eval()(rows)
    scale = 1 + float(theirs.abs().max())
    if ours.shape != theirs.shape or not float((ours - theirs).abs().max()) <= _CLOSE * scale:
        raise ValueError(
            "module: its forward does more than torch.fx can see, such as work in place on a value that is used again; "
            "fedbuff.torch.Module takes it as it is"
        )
