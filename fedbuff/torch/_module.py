"""`Module`: anybody's `nn.Module` as a problem."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import model_dtype
from .._base.checks import choice
from .._base.files import optional
from .._problems.base import ClientWeights
from .._problems.framework import FrameworkProblem, Program, Task
from ..backends.spec import LocalSpec

__all__ = ["Module"]

Floats = NDArray[np.floating[Any]]
Loss = Literal["cross_entropy", "binary_cross_entropy", "squared_error"]
Buffers = Literal["refuse", "average", "constant", "per_client"]


class Module(FrameworkProblem):
    """A PyTorch module trained by local SGD, as built-in problems are.

    >>> import fedbuff as fb                                                            # doctest: +SKIP
    >>> problem = fb.torch.Module(make_model, X, y, clients)                            # doctest: +SKIP
    >>> run = fb.replay(problem, schedule, fb.LocalSGD(steps=10, lr=0.05, batch_size=32))  # doctest: +SKIP
    >>> problem.to_torch(run.w)                                                         # doctest: +SKIP

    model_fn  makes the module. It is called with PyTorch's generator at the replay's seed for the first model, and at
              seed 0 for the module that is trained in, in every process that needs one
    X, y      rows and targets, as arrays; `clients` is a client number per row, or offsets
    loss      "cross_entropy", "binary_cross_entropy" (of one logit a row), "squared_error" (half of it), or a function
              of outputs and targets that gives the mean over its rows
    buffers   what becomes of BatchNorm's statistics and other buffers. "refuse": a module with some is refused;
              "average": they are numbers of the model like its weights, so the server averages what the clients have;
              "per_client", for BatchNorm: each client has its own, those of its rows under the model at hand, and sends
              none; "constant": they stay as model_fn made them, and a training that changes one is an error
    device    where the module and the rows are
    batch     how many tasks are run together, by torch.func.vmap; None: one at a time
    workers   how many processes run the tasks, one thread each; 0: this one

    Weights lie in the order of `parameters()`, then the buffers. Batches are drawn as for built-in problems; PyTorch's
    generator is at a seed that depends on (seed, client, task) alone while a task runs.
    """

    def __init__(
        self,
        model_fn: Callable[[], Any],
        X: Any,
        y: Any,
        clients: Any,
        *,
        loss: Loss | Callable[[Any, Any], Any] = "cross_entropy",
        buffers: Buffers = "refuse",
        device: str = "cpu",
        client_weights: ClientWeights = "equal",
        batch: int | None = None,
        workers: int = 0,
        copy: bool = True,
    ) -> None:
        optional("torch", "torch", "fb.torch.Module")
        if not callable(model_fn):
            raise TypeError(f"model_fn: expected a function that makes a module, got {type(model_fn).__name__}")
        if not callable(loss):
            choice("loss", loss, get_args(Loss))
        choice("buffers", buffers, get_args(Buffers))
        if not isinstance(device, str):
            raise TypeError(f"device: expected a name such as 'cpu', got {type(device).__name__}")
        self._function, self._loss, self._buffers, self._device = model_fn, loss, buffers, device
        self._set(X, y, clients, client_weights, batch, workers, copy)
        self._by_client = buffers == "per_client"
        if loss == "cross_entropy":
            self._y = _labels(self._y)
        self._make_first_program()

    @property
    def digest(self) -> str:
        loss = self._loss if isinstance(self._loss, str) else self._loss.__qualname__
        return f"{super().digest} {loss} {self._buffers}"

    def _make_program(self) -> _Program:
        return _Program(
            self._function, self._X, self._y, self._offsets, self._loss, self._buffers, self._device, self.batch
        )

    def to_torch(self, w: Any, client: int | None = None) -> Any:
        """A module of its own with the weights of w; `.state_dict()` of it saves them.

        client  with buffers="per_client", whose buffers it has; None: the means over the clients
        """
        if client is not None and not self._by_client:
            raise ValueError(f"client: expected None, since buffers={self._buffers!r} gives all clients the same")
        program: Any = self.program
        return program.exported(self._model(w), None if client is None else self._client(client))

    def from_torch(self, source: Any) -> Floats:
        """The vector of a module, or of a state_dict, with the names and shapes of model_fn's."""
        program: Any = self.program
        state = source.state_dict() if hasattr(source, "state_dict") else source
        if not isinstance(state, Mapping):
            raise TypeError(f"source: expected a module or a state_dict, got {type(source).__name__}")
        w: Floats = program.imported(state)
        return w


def _labels(y: NDArray[Any]) -> NDArray[np.int64]:
    whole = y.astype(np.int64) if y.dtype.kind in "fiub" else None
    if y.ndim != 1 or whole is None or not (whole == y).all() or whole.min() < 0:
        raise ValueError(f"y: cross_entropy wants labels 0, 1, ..., one per row, got {y.dtype} of shape {y.shape}")
    return whole


class _Program(Program):
    """A module in this process. One task, or group of tasks, runs at a time, on one thread of PyTorch's."""

    def __init__(
        self,
        model_fn: Callable[[], Any],
        X: NDArray[Any],
        y: NDArray[Any],
        offsets: NDArray[np.int64],
        loss: str | Callable[[Any, Any], Any],
        buffers: str,
        device: str,
        batch: int | None,
    ) -> None:
        self.torch = torch = optional("torch", "torch", "fb.torch.Module")
        self._lock = threading.RLock()
        self._model_fn, self._device = model_fn, device
        self._cross_entropy = loss == "cross_entropy"
        self._binary = loss == "binary_cross_entropy"
        self._loss = loss if callable(loss) else _named_loss(torch, loss)
        self._module = self._made(0)
        self._names = [name for name, p in self._module.named_parameters() if p.requires_grad]
        self._parameters = [p for p in self._module.parameters() if p.requires_grad]
        self._carried = self._check_buffers(buffers, batch)
        self._offsets = offsets.tolist()
        self._norms = self._batch_norms() if buffers == "per_client" else []
        self._constant = {name: b.clone() for name, b in self._module.named_buffers()} if buffers == "constant" else {}
        self.dtype = self._check_dtype()
        self.n_weights = sum(p.numel() for p in self._parameters)
        self.dim = self.n_weights + sum(b.numel() for b in self._carried)
        # Weights and gradients lie in one vector each, of which the module's are views.
        self._flat = torch.zeros(self.n_weights, dtype=self._parameters[0].dtype, device=device)
        self._gradient = torch.zeros_like(self._flat)
        self._bounds = np.cumsum([0, *(p.numel() for p in self._parameters)]).tolist()
        for parameter, part, gradient in zip(
            self._parameters, self._parts(self._flat), self._parts(self._gradient), strict=True
        ):
            part.copy_(parameter.data)
            parameter.data, parameter.grad = part, gradient
        self._X, self._y = (_tensor(torch, array, device) for array in (X, y))
        if y.dtype.kind == "f":
            self._y = self._y.to(self._flat.dtype)

    def _made(self, seed: int) -> Any:
        with self._alone(seed):
            module = self._model_fn()
        if not isinstance(module, self.torch.nn.Module):
            raise TypeError(f"model_fn: expected it to make an nn.Module, got {type(module).__name__}")
        return module.to(self._device)

    def _check_buffers(self, buffers: str, batch: int | None) -> list[Any]:
        """The buffers that are numbers of the model."""
        named = dict(self._module.named_buffers())
        if named and buffers == "refuse":
            shown = ", ".join(list(named)[:3]) + (", ..." if len(named) > 3 else "")
            raise ValueError(
                f"buffers: the module has {shown}, which are no weights; pass buffers='average' to have the server "
                "average them, 'per_client' to give each client its own, 'constant' to keep them as they are, or use "
                "GroupNorm in the place of BatchNorm"
            )
        if named and batch is not None and buffers != "constant":
            raise ValueError("buffers: tasks of a batch cannot change them; leave batch out")
        if buffers != "average":
            return []
        if wrong := [name for name, b in named.items() if b.dtype == self.torch.bool or b.is_complex()]:
            raise ValueError(f"buffers: {wrong[0]} is {named[wrong[0]].dtype}, which cannot be averaged")
        return list(named.values())

    def _batch_norms(self) -> list[Any]:
        """The modules whose statistics are each client's own; there must be no other buffers."""
        kind = self.torch.nn.modules.batchnorm._BatchNorm
        norms = {name: module for name, module in self._module.named_modules() if isinstance(module, kind)}
        for name, _ in self._module.named_buffers():
            if name.rpartition(".")[0] not in norms:
                raise ValueError(f"buffers: {name} is no statistic of a BatchNorm, which 'per_client' is for")
        return list(norms.values())

    def _check_dtype(self) -> np.dtype[np.floating[Any]]:
        dtypes = {p.dtype for p in self._parameters}
        known = {self.torch.float32: "float32", self.torch.float64: "float64"}
        if len(dtypes) != 1 or not dtypes <= set(known):
            shown = ", ".join(sorted(map(str, dtypes))) or "none"
            raise TypeError(f"model_fn: expected parameters that are all float32 or all float64, got {shown}")
        return model_dtype("model_fn", known[dtypes.pop()])

    def _parts(self, flat: Any) -> list[Any]:
        return [
            flat[begin:end].view(p.shape)
            for begin, end, p in zip(self._bounds, self._bounds[1:], self._parameters, strict=False)
        ]

    @contextmanager
    def _alone(self, seed: int) -> Iterator[None]:
        """One at a time and on one thread: threads neither fight nor share the generator, which is at the seed."""
        torch = self.torch
        with self._lock, torch.random.fork_rng(enabled=True):
            threads = torch.get_num_threads()
            torch.manual_seed(seed)
            if threads != 1:
                torch.set_num_threads(1)
            try:
                yield
            finally:
                if threads != 1:
                    torch.set_num_threads(threads)

    # Models in and out

    def _load(self, w: Floats) -> None:
        vector = self.torch.from_numpy(np.array(w)).to(self._device)
        with self.torch.no_grad():
            self._flat.copy_(vector[: self.n_weights])
            at = self.n_weights
            for buffer in self._carried:
                part = vector[at : at + buffer.numel()].view(buffer.shape)
                buffer.copy_(part if buffer.is_floating_point() else part.round())
                at += buffer.numel()

    def _vector(self) -> Floats:
        parts = [self._flat, *(buffer.detach().to(self._flat.dtype).reshape(-1) for buffer in self._carried)]
        vector: Floats = self.torch.cat(parts).detach().cpu().numpy()
        return vector

    def start(self, seed: int) -> Floats:
        return self.imported(self._made(seed).state_dict(keep_vars=True))

    def exported(self, w: Floats, client: int | None) -> Any:
        module = self._made(0)
        with self._evaluated(w):
            if self._norms:
                self._take_statistics(client)
            state = {name: tensor.detach().clone() for name, tensor in self._module.state_dict().items()}
        module.load_state_dict(state)
        return module

    def imported(self, state: Mapping[str, Any]) -> Floats:
        with self._lock:
            own = dict(self._module.named_parameters()) | dict(self._module.named_buffers())
            carried = [name for name, _ in self._module.named_buffers()] if self._carried else []
            for name in [*self._names, *carried]:
                if name not in state:
                    raise ValueError(f"source: {name} is missing")
                if state[name].shape != own[name].shape:
                    raise ValueError(
                        f"source: {name} has shape {tuple(state[name].shape)}, expected {tuple(own[name].shape)}"
                    )
                with self.torch.no_grad():
                    own[name].copy_(state[name])
            return self._vector()

    # Training

    def deltas(self, W: Floats, tasks: Sequence[Task], local: LocalSpec) -> Floats:
        if len(tasks) == 1:
            return self._steps(W[0], tasks[0], local)[None]
        out = np.empty_like(W)
        sizes = np.array([len(task.rows[0]) for task in tasks])
        for size in np.unique(sizes):  # vmap wants batches of one size
            chosen = np.flatnonzero(sizes == size)
            out[chosen] = self._steps_together(W[chosen], [tasks[i] for i in chosen.tolist()], local)
        return out

    def _steps(self, w: Floats, task: Task, local: LocalSpec) -> Floats:
        torch = self.torch
        with self._alone(task.seed):
            self._load(w)
            start, flat, velocity = self._flat.clone(), self._flat, torch.zeros_like(self._flat)
            self._module.train()
            for rows in task.rows:
                chosen = torch.from_numpy(rows).to(self._device)
                self._gradient.zero_()
                self._loss(self._module(self._X[chosen]), self._y[chosen]).backward()
                self._advance(flat, self._gradient, velocity, start, local)
            self._require_constant()
            return w - self._vector()

    def _advance(self, flat: Any, gradient: Any, velocity: Any, start: Any, local: LocalSpec) -> None:
        with self.torch.no_grad():
            if local.weight_decay:
                gradient.add_(flat, alpha=local.weight_decay)
            if local.prox:
                gradient.add_(flat - start, alpha=local.prox)
            if local.momentum:
                gradient = velocity.mul_(local.momentum).add_(gradient)
            flat.add_(gradient, alpha=-local.lr)

    def _steps_together(self, W: Floats, tasks: Sequence[Task], local: LocalSpec) -> Floats:
        torch = self.torch

        def loss_of(vector: Any, X: Any, y: Any) -> Any:
            weights = dict(zip(self._names, self._parts(vector), strict=True))
            return self._loss(torch.func.functional_call(self._module, weights, (X,)), y)

        gradients = torch.func.vmap(torch.func.grad(loss_of), randomness="different")
        with self._alone(tasks[0].seed):
            self._module.train()
            flat = torch.from_numpy(np.array(W)).to(self._device)
            start, velocity = flat.clone(), torch.zeros_like(flat)
            for step in range(local.steps):
                rows = torch.from_numpy(np.stack([task.rows[step] for task in tasks])).to(self._device)
                self._advance(flat, gradients(flat, self._X[rows], self._y[rows]), velocity, start, local)
            self._require_constant()
            moved: Floats = flat.cpu().numpy()
            return W - moved

    def _require_constant(self) -> None:
        for name, buffer in self._module.named_buffers():
            if name in self._constant and not self.torch.equal(buffer, self._constant[name]):
                buffer.copy_(self._constant[name])
                raise ValueError(f"buffers: {name} changes in training; pass buffers='average', or do without it")

    # Evaluation

    @contextmanager
    def _evaluated(self, w: Floats) -> Iterator[None]:
        """Whole clients go through the module: BatchNorms of each client's own take the statistics of its rows."""
        with self._alone(0):
            self._load(w)
            self._module.eval()
            for norm in self._norms:
                norm.train()
            yield

    def _take_statistics(self, client: int | None) -> None:
        """Has the BatchNorms hold the statistics of a client's rows, or the means over clients of theirs."""
        torch = self.torch
        which = range(len(self._offsets) - 1) if client is None else [client]
        momenta = [norm.momentum for norm in self._norms]
        try:
            for norm in self._norms:
                norm.reset_running_stats()
                norm.momentum = None  # the mean of all batches
                norm.train()
            with torch.no_grad():
                for one in which:
                    self._module(self._X[self._offsets[one] : self._offsets[one + 1]])
        finally:
            for norm, momentum in zip(self._norms, momenta, strict=True):
                norm.momentum = momentum
                norm.eval()

    def loss(self, w: Floats, offsets: NDArray[np.int64]) -> NDArray[np.float64]:
        with self._evaluated(w), self.torch.no_grad():
            bounds = zip(offsets.tolist(), offsets[1:].tolist(), strict=False)
            return np.array([float(self._loss(self._module(self._X[a:b]), self._y[a:b])) for a, b in bounds])

    def gradient(self, w: Floats, offsets: NDArray[np.int64], weight: NDArray[np.float64]) -> Floats:
        with self._evaluated(w):
            self._gradient.zero_()
            for a, b, share in zip(offsets.tolist(), offsets[1:].tolist(), weight.tolist(), strict=False):
                (share * self._loss(self._module(self._X[a:b]), self._y[a:b])).backward()
            out = np.zeros_like(w)
            out[: self.n_weights] = self._gradient.cpu().numpy()
            return out

    def n_correct(self, w: Floats, X: NDArray[Any], y: NDArray[Any], *, whole: bool) -> int:
        with self._evaluated(w), self.torch.no_grad():
            if self._norms and not whole:
                self._take_statistics(None)
            outputs = self._module(_tensor(self.torch, X, self._device))
            if self._binary:
                found = (outputs.reshape(-1) > 0).cpu().numpy()
            elif outputs.ndim == 2 and y.ndim == 1:
                found = outputs.argmax(dim=1).cpu().numpy()
            else:
                shape = tuple(outputs.shape)
                raise ValueError(f"accuracy: expected a score per class for each row, got outputs of shape {shape}")
            return int((found == y).sum())


def _tensor(torch: Any, array: NDArray[Any], device: str) -> Any:
    return torch.from_numpy(np.array(array)).to(device)


def _named_loss(torch: Any, name: str) -> Callable[[Any, Any], Any]:
    functional = torch.nn.functional
    if name == "cross_entropy":
        return lambda outputs, targets: functional.cross_entropy(outputs, targets)
    if name == "binary_cross_entropy":
        return lambda outputs, targets: functional.binary_cross_entropy_with_logits(
            outputs.reshape(targets.shape), targets.to(outputs.dtype)
        )
    return lambda outputs, targets: 0.5 * functional.mse_loss(outputs.reshape(targets.shape), targets)
