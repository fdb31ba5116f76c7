"""`fb.Server` in the aggregator slots of NVFlare and FLSim: the models of their own aggregators."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

FOLDER = Path(__file__).parents[2] / "examples" / "aggregators"
SHAPES = {"weight": (3, 4), "bias": (3,)}


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_the_page_shows_the_files() -> None:
    page = (Path(__file__).parents[2] / "docs" / "embedding" / "nvflare-flsim.md").read_text(encoding="utf-8")
    for path in sorted(FOLDER.glob("*.py")):
        assert f"```py\n{path.read_text(encoding='utf-8')}```" in page, path.name


@pytest.mark.parametrize("staleness_weight", [False, True])
def test_nvflares_models(staleness_weight: bool) -> None:
    manager = pytest.importorskip("nvflare.edge.assessors.buff_model_manager", reason="nvflare is not installed")
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.edge.mud import ModelUpdate
    from nvflare_model_manager import ServerModelManager

    rng = np.random.default_rng(0)

    def record() -> dict[str, np.ndarray[Any, Any]]:
        return {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}

    options = {"staleness": lambda tau: 1 / (1 + (tau + 1) ** 0.5)} if staleness_weight else {}
    strategy = fb.FedBuff.preset("nvflare", buffer_size=3, **options)
    theirs, ours = manager.BuffModelManager(3, staleness_weight=staleness_weight), ServerModelManager(strategy, 40)
    context, start = FLContext(), record()
    for each in (theirs, ours):
        each.initialize_model(DXO(DataKind.WEIGHTS, data=dict(start)), context)
        each.generate_new_model(context)
    for number in range(30):
        version = max(1, theirs.current_model_version - number % 3)
        diff = record()
        for each in (theirs, ours):
            update = DXO(DataKind.WEIGHT_DIFF, data={"dict": dict(diff), "count": 1}).to_shareable()
            assert each.process_updates({version: ModelUpdate(version, update, {f"device{number}": 0.0})}, context)
        assert ours.current_model_version == theirs.current_model_version
        for name in SHAPES:
            np.testing.assert_allclose(
                ours.current_model.data[name], theirs.current_model.data[name], rtol=1e-12, atol=1e-14
            )
    assert theirs.current_model_version == 11
    ours.prune_model_versions({11}, context)
    assert ours.server.outstanding == 40
    late = DXO(DataKind.WEIGHT_DIFF, data={"dict": record(), "count": 1}).to_shareable()
    assert not ours.process_updates({3: ModelUpdate(3, late, {"late": 0.0})}, context)


def test_flsims_models() -> None:
    """FLSim 0.1.0 does not import on Python 3.11, so its step is written out: SGD on the weighted sum of a buffer."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from flsim_aggregator import ServerAggregator

    torch.manual_seed(0)

    def model() -> Any:
        module = torch.nn.Linear(4, 3)
        return SimpleNamespace(fl_get_module=lambda: module)

    def vector(of: Any) -> np.ndarray[Any, Any]:
        return np.concatenate([each.detach().numpy().ravel() for each in of.fl_get_module().parameters()])

    shared = model()
    aggregator = ServerAggregator(shared, fb.FedBuff(buffer_size=3, server_lr=0.5, weights="samples", norm="one"))
    w, total = vector(shared), np.zeros(15)
    for number in range(9):
        delta, weight = model(), 1.0 / (1 + number % 2)
        aggregator.zero_grad()
        stepped = aggregator.on_client_training_end(delta, shared, weight)
        total = total + weight * vector(delta)
        assert stepped == (number % 3 == 2)
        if stepped:
            w, total = w - 0.5 * total, np.zeros(15)
        np.testing.assert_allclose(vector(shared), w, rtol=1e-5, atol=1e-6)
    assert aggregator.global_seqnum == 3 and aggregator.model_staleness(1) == 2
    assert not aggregator.on_training_epoch_end() and "torch" in sys.modules
