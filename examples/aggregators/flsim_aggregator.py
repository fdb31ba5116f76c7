"""FLSim's asynchronous trainer (flsim.trainers.async_trainer) with fedbuff.Server as its aggregator.

The class has what AsyncTrainer calls of FLSim's AsyncAggregator. FLSim works a client's staleness into its weight.
"""

from __future__ import annotations

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fedbuff as fb


class ServerAggregator:
    """trainer.aggregator = ServerAggregator(trainer.global_model(), fb.FedBuff.preset("flsim", buffer_size=10, ...))"""

    is_private, privacy_budget = False, None

    def __init__(self, global_model, strategy) -> None:
        self.global_model, self.global_seqnum = global_model, 0
        self.server = fb.Server(self._vector(global_model), strategy)

    @staticmethod
    def _vector(model) -> torch.Tensor:
        return parameters_to_vector(model.fl_get_module().parameters()).detach()

    def set_num_total_users(self, num_total_users: int) -> None: ...

    def zero_grad(self) -> None: ...

    def model_staleness(self, model_seqnum: int) -> int:
        return self.global_seqnum - model_seqnum

    def on_client_training_end(self, client_delta, final_local_model, weight: float) -> bool:
        version, _ = self.server.download()
        stepped = self.server.upload(self._vector(client_delta), version, weight)
        if stepped:
            vector_to_parameters(torch.tensor(self.server.w), self.global_model.fl_get_module().parameters())
            self.global_seqnum = self.server.version
        return stepped

    def on_training_epoch_end(self) -> bool:
        return False  # what is left stays in the buffer
