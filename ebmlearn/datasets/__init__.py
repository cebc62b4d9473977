"""Data sets, their splits and binarisations as in the papers, and corruptions of binary images.

`digits` and `shifted_digits` come with scikit-learn. All others are read from the folder in the
environment variable `EBMLEARN_DATA`. `python -m ebmlearn.datasets list` shows which files are
there, and `python -m ebmlearn.datasets convert` makes them from the original distributions.
"""

from ._border import (
    border_ownership as border_ownership,
    BorderOwnership as BorderOwnership,
    Segmentation as Segmentation,
)
from ._convolution import (
    binary_convolution as binary_convolution,
    Convolution as Convolution,
    convolved as convolved,
)
from ._corrupt import flip as flip, occlude as occlude
from ._load import (
    caltech_silhouettes as caltech_silhouettes,
    Dataset as Dataset,
    digits as digits,
    frey_faces as frey_faces,
    mnist as mnist,
    mnist_zeros as mnist_zeros,
    nade as nade,
    shifted_digits as shifted_digits,
    Split as Split,
)
