"""MLServer's side: a model that answers at once. Runs in MLServer's environment."""

from __future__ import annotations

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Instant(MLModel):  # type: ignore[misc]  # mlserver is installed elsewhere
    """Answers."""

    async def load(self) -> bool:
        """Be ready."""
        self._values = np.arange(10, dtype=np.float32)[None]
        return True

    async def predict(self, _: InferenceRequest) -> InferenceResponse:
        """Answer at once."""
        output = NumpyCodec.encode_output("y", self._values)  # MLServer takes it apart: a new one
        return InferenceResponse(model_name=self.name, model_version="1", outputs=[output])
