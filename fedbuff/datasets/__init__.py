"""Rows from the files that others publish: MNIST and EMNIST, CIFAR, LEAF, CelebA, NPZ. Nothing is downloaded.

Each function takes a path to what you have and gives a `Dataset`: X, y, and the client of each row where the files know
it. A file that is damaged, or declares more than it holds, is a `fedbuff.FileError` that names it.
"""

from ._celeba import read_celeba
from ._cifar import read_cifar
from ._dataset import Dataset
from ._leaf import read_leaf
from ._mnist import read_idx, read_mnist
from ._npz import read_npz

__all__ = ["Dataset", "read_celeba", "read_cifar", "read_idx", "read_leaf", "read_mnist", "read_npz"]
