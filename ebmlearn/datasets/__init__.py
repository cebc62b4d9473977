"""Data sets, their splits and binarisations as in the papers, and corruptions of binary images.

All but `digits` and `shifted_digits` are read from the folder that the environment variable
`EBMLEARN_DATA` names.
`python -m ebmlearn.datasets list` says what is there, and `python -m ebmlearn.datasets convert`
makes the files from those of the original distributions.
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
