"""NVFlare's asynchronous server (nvflare.edge, ScatterAndGatherForEdge) with fedbuff.Server as its model manager."""

from __future__ import annotations

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.edge.assessors.model_manager import ModelManager

import fedbuff as fb


class ServerModelManager(ModelManager):
    """In the place of BuffModelManager; n_devices is how many devices may work on one version."""

    def __init__(self, strategy, n_devices: int) -> None:
        super().__init__()
        self.strategy, self.n_devices = strategy, n_devices

    def initialize_model(self, model: DXO, fl_ctx) -> None:
        self.shapes = {name: np.shape(values) for name, values in model.data.items()}
        self.server = fb.Server(self.vector(model.data), self.strategy)

    def vector(self, arrays: dict) -> np.ndarray:
        return np.concatenate([np.asarray(arrays[name], np.float64).ravel() for name in self.shapes])

    def generate_new_model(self, fl_ctx) -> None:
        """Publishes the server's model; NVFlare's version 1 is version 0 of the server."""
        self.current_model_version = self.server.version + 1
        self.updates[self.current_model_version] = self.n_devices  # downloads that may still come back
        for _ in range(self.n_devices):
            self.server.download()
        model, w = {}, self.server.w
        for name, shape in self.shapes.items():
            size = np.prod(shape, dtype=int)
            model[name], w = w[:size].reshape(shape).tolist(), w[size:]
        self.current_model = DXO(data_kind=DataKind.WEIGHTS, data=model)
        fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable(model, {}), private=True, sticky=True)
        fl_ctx.set_prop(AppConstants.CURRENT_ROUND, self.current_model_version, private=True, sticky=True)
        self.fire_event(AppEventType.GLOBAL_WEIGHTS_UPDATED, fl_ctx)

    def prune_model_versions(self, versions_to_keep: set[int], fl_ctx) -> None:
        for version in [each for each in self.updates if each not in versions_to_keep]:
            for _ in range(self.updates.pop(version)):
                self.server.cancel(version - 1)

    def process_updates(self, model_updates: dict, fl_ctx) -> bool:
        accepted = True
        for version, update in model_updates.items():
            if self.updates.get(version, 0) < len(update.devices):
                self.log_error(fl_ctx, f"dropped an update of version {version}: no device works on it")
                accepted = False
                continue
            delta = -self.vector(from_shareable(update.update).data["dict"]) / len(update.devices)
            for _ in update.devices:  # an edge node sends the sum of its devices
                self.updates[version] -= 1
                if self.server.upload(delta, version - 1):
                    self.generate_new_model(fl_ctx)
        return accepted
