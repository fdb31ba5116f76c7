"""FedBuff for Flower, and Flower's apps in virtual time: docs/flower.md."""

from .._base.files import optional

optional("flwr.serverapp.strategy", "flower", "fedbuff.flower")

from ._strategy import FedBuff  # noqa: E402  (after the word on what is missing)
from ._virtual import VirtualGrid  # noqa: E402

__all__ = ["FedBuff", "VirtualGrid"]
