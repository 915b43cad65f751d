"""Handwritten digits that ship inside scikit-learn: 1,797 images of 8x8 pixels, 0..16.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

TRAINING, HELD_OUT = 1078, 719


@dataclass(frozen=True, slots=True)
class Split:
    """Images, shape (n, 64), float32 of 0..16, and their labels, shape (n,), 0..9."""

    training_images: NDArray[np.float32]
    training_labels: NDArray[np.int64]
    held_out_images: NDArray[np.float32]
    held_out_labels: NDArray[np.int64]


@lru_cache(maxsize=1)
def split() -> Split:
    """Return the one split that everything here uses: stratified, seed 0, 1078 and 719 images."""
    # scikit-learn takes a second to import: only for those who need the images.
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    digits = load_digits()
    images, held_out_images, labels, held_out_labels = train_test_split(
        digits.data.astype(np.float32),
        digits.target.astype(np.int64),
        train_size=TRAINING,
        test_size=HELD_OUT,
        stratify=digits.target,
        random_state=0,
    )
    return Split(images, labels, held_out_images, held_out_labels)


def held_out() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the images that no model was trained on, and their labels."""
    return split().held_out_images, split().held_out_labels
