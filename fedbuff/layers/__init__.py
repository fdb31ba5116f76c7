"""The layers of a `fedbuff.Network`, as PyTorch has them; each takes rows of the shape that the one before it gives.

A row is an image (channels, height, width), a sequence (time, features) or a vector (features). `Conv2d` and the pools
take images, `Dense` takes vectors; `Flatten` makes a vector of the others. `Embedding` makes a sequence of tokens,
`LSTM` and `GRU` one of a sequence.

>>> import fedbuff as fb
>>> fb.layers.Conv2d(16, 3, padding="same")
Conv2d(out_channels=16, kernel_size=(3, 3), stride=(1, 1), padding='same', groups=1, bias=True)
"""

from ._augment import RandomCrop, RandomFlip
from ._image import AvgPool2d, Conv2d, Flatten, GlobalAvgPool2d, MaxPool2d
from ._norm import BatchNorm, GroupNorm, LayerNorm
from ._pointwise import GELU, Dense, Dropout, LeakyReLU, ReLU, Sigmoid, SiLU, Tanh
from ._sequence import GRU, LSTM, Embedding, LastStep, MeanOverTime
from ._stack import Residual

__all__ = [
    "GELU",
    "GRU",
    "LSTM",
    "AvgPool2d",
    "BatchNorm",
    "Conv2d",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAvgPool2d",
    "GroupNorm",
    "LastStep",
    "LayerNorm",
    "LeakyReLU",
    "MaxPool2d",
    "MeanOverTime",
    "RandomCrop",
    "RandomFlip",
    "ReLU",
    "Residual",
    "SiLU",
    "Sigmoid",
    "Tanh",
]
