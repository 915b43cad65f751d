"""The digits' classifiers of scikit-learn, exported to ONNX: imported only to train them."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from threadpoolctl import threadpool_limits

from services.local.demo.digits import split

_OPSET: Final = 21

_CLASSIFIERS: Final[Mapping[str, Callable[[], Any]]] = {
    "tree": lambda: DecisionTreeClassifier(random_state=0),
    "linear": lambda: LogisticRegression(max_iter=500),
    "mlp-64": lambda: MLPClassifier((64,), max_iter=300, random_state=0),
    "mlp-512": lambda: MLPClassifier((512, 512), max_iter=30, random_state=0),
    "svc": lambda: SVC(C=10),
}


def build(name: str) -> bytes:
    """Train one of `model_family.FAMILY` and return it as a serialized ONNX model."""
    classifier = _CLASSIFIERS[name]()
    pipeline: Pipeline = make_pipeline(MaxAbsScaler(), classifier)
    with warnings.catch_warnings():
        # A fixed number of epochs is the recipe, and skl2onnx reads attributes on their way out.
        warnings.simplefilter("ignore")
        # For matrices this small a second thread only waits for the first: on a busy machine, for
        # minutes, as threads of OpenBLAS spin.
        with threadpool_limits(limits=1):
            pipeline.fit(split().training_images, split().training_labels)
        return _as_onnx(pipeline, classifier)


def _as_onnx(pipeline: Pipeline, classifier: Any) -> bytes:
    options = {"zipmap": False} | ({"raw_scores": True} if isinstance(classifier, SVC) else {})
    model = to_onnx(
        pipeline,
        initial_types=[("image", FloatTensorType([None, 64]))],
        final_types=[
            ("label", Int64TensorType([None])),
            ("scores", FloatTensorType([None, 10])),
        ],
        options={id(classifier): options},
        target_opset=_OPSET,
    )
    serialized: bytes = model.SerializeToString()
    return serialized
