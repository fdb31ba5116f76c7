"""JAX's convolutions on a CPU, by where they stand: in a compiled step, in a loop inside the compiled function, under
vmap. What docs/frameworks.md says of them comes from here.

    .venv-frameworks/bin/python benches/jax_convolution.py [--batch 32]    # after make .venv-frameworks/.made

The same ten steps of SGD on a network of two convolutions each time, on one thread; operations are those of the
convolutions and the dense layer, forward and backward. The answers are compared.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

STEPS, LR, REPEATS = 10, 0.05, 5
CHANNELS, SIDE, CLASSES = (1, 16, 32), 28, 10
Params = dict[str, jax.Array]


def start(generator: np.random.Generator) -> Params:
    shapes = {
        "first": (CHANNELS[1], CHANNELS[0], 3, 3),
        "second": (CHANNELS[2], CHANNELS[1], 3, 3),
        "dense": (CLASSES, CHANNELS[2] * (SIDE // 4) ** 2),
    }
    return {
        name: jnp.asarray(generator.standard_normal(shape, np.float32) * np.prod(shape[1:]) ** -0.5)
        for name, shape in shapes.items()
    }


def by_lax(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.conv(x, kernel, (1, 1), "SAME")


def by_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The same convolution as a product with the shifted pictures side by side."""
    n, channels, height, width = x.shape
    padded = jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    shifted = [padded[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    columns = jnp.stack(shifted, axis=2).reshape(n, channels * 9, height * width)
    return (kernel.reshape(len(kernel), -1) @ columns).reshape(n, len(kernel), height, width)


def pooled(x: jax.Array) -> jax.Array:
    n, channels, height, width = x.shape
    return x.reshape(n, channels, height // 2, 2, width // 2, 2).max((3, 5))


def step_of(convolution: Callable[..., jax.Array]) -> Callable[..., Params]:
    def loss(p: Params, x: jax.Array, y: jax.Array) -> jax.Array:
        for name in ("first", "second"):
            x = pooled(jax.nn.relu(convolution(x, p[name])))
        scores = x.reshape(len(x), -1) @ p["dense"].T
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], 1).mean()

    def step(p: Params, x: jax.Array, y: jax.Array) -> Params:
        gradient = jax.grad(loss)(p, x, y)
        return {name: p[name] - LR * gradient[name] for name in p}

    return step


def flops(batch: int) -> float:
    """Multiplications and additions of STEPS steps; there is no gradient of the pictures."""
    first = 2 * SIDE**2 * 9 * CHANNELS[0] * CHANNELS[1]
    second = 2 * (SIDE // 2) ** 2 * 9 * CHANNELS[1] * CHANNELS[2]
    dense = 2 * CLASSES * CHANNELS[2] * (SIDE // 4) ** 2
    return float(STEPS * batch * (2 * first + 3 * second + 3 * dense))


def ways(X: jax.Array, Y: jax.Array) -> dict[str, tuple[int, Callable[[Params], Any]]]:
    """For each way how many clients it trains, and the training."""

    def one_by_one(convolution: Callable[..., jax.Array]) -> Callable[[Params], Params]:
        step = jax.jit(step_of(convolution))

        def train(p: Params) -> Params:
            for x, y in zip(X, Y, strict=True):
                p = step(p, x, y)
            return p

        return train

    def in_scan(convolution: Callable[..., jax.Array]) -> Callable[[Params], Params]:
        step = step_of(convolution)
        return jax.jit(lambda p: jax.lax.scan(lambda q, rows: (step(q, *rows), None), p, (X, Y))[0])

    def together(n: int) -> Callable[[Params], Params]:
        step = jax.jit(jax.vmap(step_of(by_lax), in_axes=(0, None, None)))

        def train(p: Params) -> Params:
            many = {name: jnp.stack([part] * n) for name, part in p.items()}
            for x, y in zip(X, Y, strict=True):
                many = step(many, x, y)
            return {name: part[0] for name, part in many.items()}

        return train

    return {
        "lax.conv, a compiled step": (1, one_by_one(by_lax)),
        "lax.conv, ten steps in lax.scan": (1, in_scan(by_lax)),
        "lax.conv, a compiled step under vmap of 4": (4, together(4)),
        "as a product, a compiled step": (1, one_by_one(by_product)),
        "as a product, ten steps in lax.scan": (1, in_scan(by_product)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    batch = parser.parse_args().batch
    generator = np.random.default_rng(0)
    X = jnp.asarray(generator.standard_normal((STEPS, batch, CHANNELS[0], SIDE, SIDE), np.float32))
    Y, p = jnp.asarray(generator.integers(0, CLASSES, (STEPS, batch))), start(generator)
    print(f"jax {jax.__version__}, {STEPS} steps, batches of {batch}, one thread\n")
    expected = None
    for name, (n, train) in ways(X, Y).items():
        made = jax.block_until_ready(train(p))  # compiles
        expected = expected or made
        for part in p:
            np.testing.assert_allclose(made[part], expected[part], rtol=1e-3, atol=1e-4)
        times = []
        for _ in range(REPEATS):
            begin = time.process_time()
            jax.block_until_ready(train(p))
            times.append(time.process_time() - begin)
        print(f"{name:45} {1e3 * min(times) / n:8.1f} ms a client {1e-9 * n * flops(batch) / min(times):8.1f} GFLOP/s")


if __name__ == "__main__":
    main()
