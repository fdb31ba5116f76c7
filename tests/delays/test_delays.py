"""Distributions and DelayModel: parameters, refusals, and the moments of what is drawn from them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import fedbuff as fb
from fedbuff.backends.python.portable_math import draw

EXAMPLES = {
    "constant": fb.Constant(2.0),
    "uniform": fb.Uniform(1.0, 3.0),
    "exponential": fb.Exponential(2.0),
    "half_normal": fb.HalfNormal(1.5, low=0.5),
    "truncated_normal": fb.TruncatedNormal(1.0, 2.0, low=0.5, high=4.0),
    "log_normal": fb.LogNormal(0.3, 0.5),
    "pareto": fb.Pareto(4.0, 2.0),
    "weibull": fb.Weibull(1.7, 3.0),
    "empirical": fb.Empirical([3.0, 1.0, 2.0, 2.0]),
}


def normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def truncated_mean(d: fb.TruncatedNormal) -> float:
    a, b = (d.low - d.loc) / d.scale, (d.high - d.loc) / d.scale
    density = (math.exp(-a * a / 2) - math.exp(-b * b / 2)) / math.sqrt(2 * math.pi)
    return d.loc + d.scale * density / (normal_cdf(b) - normal_cdf(a))


MEANS = {
    "constant": 2.0,
    "uniform": 2.0,
    "exponential": 2.0,
    "half_normal": 0.5 + 1.5 * math.sqrt(2 / math.pi),
    "truncated_normal": truncated_mean(fb.TruncatedNormal(1.0, 2.0, low=0.5, high=4.0)),
    "log_normal": math.exp(0.3 + 0.125),
    "pareto": 2.0 * 4 / 3,
    "weibull": 3.0 * math.gamma(1 + 1 / 1.7),
    "empirical": 2.0,
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_kind_and_the_mean_of_draws(kind: str) -> None:
    law = EXAMPLES[kind]
    assert law.kind == kind
    values = draw(law.kind, law.params, getattr(law, "samples", None), 3, np.arange(400)[:, None], np.arange(100), 2)
    error = values.std() / math.sqrt(values.size)
    assert values.min() >= 0
    assert abs(values.mean() - MEANS[kind]) <= 4.5 * error + 1e-12
    assert values.max() <= law._largest() if kind != "empirical" else values.max() == 3.0


@pytest.mark.parametrize("law", EXAMPLES.values(), ids=EXAMPLES)
def test_described_as_json_and_compared_by_content(law: fb.Distribution) -> None:
    assert json.loads(json.dumps(law.describe()))["kind"] == law.kind
    same = fb.Empirical([1.0, 2.0, 2.0, 3.0]) if isinstance(law, fb.Empirical) else type(law)(*law.params)
    assert law == same
    assert hash(law) == hash(same)
    assert law != fb.Constant(17.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fb.Constant(-1.0),
        lambda: fb.Constant(math.nan),
        lambda: fb.Constant(math.inf),
        lambda: fb.Uniform(-0.1, 1.0),
        lambda: fb.Uniform(2.0, 1.0),
        lambda: fb.Exponential(-1.0),
        lambda: fb.HalfNormal(1.0, low=-1.0),
        lambda: fb.TruncatedNormal(1.0, 1.0, low=-1.0),
        lambda: fb.TruncatedNormal(1.0, 0.0),
        lambda: fb.TruncatedNormal(-10.0, 1.0),
        lambda: fb.LogNormal(0.0, -1.0),
        lambda: fb.LogNormal(0.0, 100.0),
        lambda: fb.Pareto(0.0),
        lambda: fb.Pareto(0.01),
        lambda: fb.Weibull(0.0),
        lambda: fb.Weibull(0.001),
        lambda: fb.Empirical([]),
        lambda: fb.Empirical([1.0, -1.0]),
        lambda: fb.Empirical([1.0, math.nan]),
    ],
)
def test_parameters_that_could_give_bad_delays_are_refused(make) -> None:
    with pytest.raises(ValueError):
        make()


@pytest.mark.parametrize("make", [lambda: fb.Constant("1"), lambda: fb.Constant(True), lambda: fb.Empirical(["a"])])
def test_what_is_not_a_number_is_a_type_error(make) -> None:
    with pytest.raises(TypeError):
        make()


def test_empirical_keeps_a_sorted_read_only_copy() -> None:
    source = np.array([3.0, 1.0, 2.0])
    law = fb.Empirical(source)
    source[0] = 9.0
    assert law.samples.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError):
        law.samples[0] = 0.0


def test_delay_model_checks_what_it_is_given() -> None:
    model = fb.DelayModel(3, client_speed=[1, 2.5, 3], n_samples=[10, 20, 30])
    assert model.client_speed.tolist() == [1.0, 2.5, 3.0]
    assert model.n_samples.dtype == np.int64
    with pytest.raises(TypeError, match=r"Constant\(1.0\)"):
        fb.DelayModel(3, compute=1.0)
    with pytest.raises(ValueError, match=r"client_speed: expected finite numbers >= 0, got -1.0 for client 1"):
        fb.DelayModel(3, client_speed=[1.0, -1.0, 1.0])
    with pytest.raises(ValueError, match="one value per client"):
        fb.DelayModel(3, client_speed=[1.0])
    with pytest.raises(TypeError, match="n_samples: expected integers"):
        fb.DelayModel(3, n_samples=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError):
        fb.DelayModel(0)
    with pytest.raises(TypeError):
        fb.DelayModel(2.0)
    with pytest.raises(ValueError, match="availability: expected 3 clients, got 2"):
        fb.DelayModel(3, availability=fb.Availability([0], [0.0], [1.0], n_clients=2))


def test_delay_model_description_tells_content_apart() -> None:
    a = fb.DelayModel(2, client_speed=[1.0, 2.0]).describe()
    assert a == fb.DelayModel(2, client_speed=[1.0, 2.0]).describe()
    assert a != fb.DelayModel(2, client_speed=[1.0, 3.0]).describe()
    assert json.loads(json.dumps(a)) == a
