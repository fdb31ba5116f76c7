"""The layers of a `fedbuff.Network`, as PyTorch has them; each takes rows of the shape that the one before it gives.

A row is an image (channels, height, width) or a vector (features). `Conv2d` and the pools take images, `Dense` takes
vectors, and `Flatten` makes a vector of an image.

>>> import fedbuff as fb
>>> fb.layers.Conv2d(16, 3, padding="same")
Conv2d(out_channels=16, kernel_size=(3, 3), stride=(1, 1), padding='same', groups=1, bias=True)
"""

from ._image import AvgPool2d, Conv2d, Flatten, GlobalAvgPool2d, MaxPool2d
from ._norm import BatchNorm, GroupNorm, LayerNorm
from ._pointwise import GELU, Dense, Dropout, LeakyReLU, ReLU, Sigmoid, SiLU, Tanh
from ._stack import Residual

__all__ = [
    "GELU",
    "AvgPool2d",
    "BatchNorm",
    "Conv2d",
    "Dense",
    "Dropout",
    "Flatten",
    "GlobalAvgPool2d",
    "GroupNorm",
    "LayerNorm",
    "LeakyReLU",
    "MaxPool2d",
    "ReLU",
    "Residual",
    "SiLU",
    "Sigmoid",
    "Tanh",
]
