"""Decoder of a language model by PyTorch; its weights are random, which costs the same.

Steps are as servers compute them: grouped attention over keys and values that are kept, one CUDA
graph for each shape of a step, and no sampling but the largest score.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_SPARE_RUNS: Final = 3
_BYTES: Final = 2  # bfloat16

Step = Callable[[], None]
"""Runs one step and does not wait for it."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """Shape of a dense decoder with grouped attention.

    Attributes:
        name: The published model of this shape.
        layers: Layers.
        width: Elements of a token between layers.
        heads: Heads of queries.
        kv_heads: Heads of keys and values; each serves `heads / kv_heads` of queries.
        head: Elements of a head.
        inner: Width within a layer's gated part.
        vocabulary: Tokens that an answer can have.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int

    @property
    def parameters_b(self) -> float:
        """Parameters that a step reads, 1e9: without the table of embeddings."""
        attention = self.width * self.head * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.width * self.inner
        return (self.layers * layer + self.width * self.vocabulary) / 1e9

    @property
    def kv_kib_per_token(self) -> float:
        """Keys and values of a token, KiB."""
        return self.layers * 2 * self.kv_heads * self.head * _BYTES / 1024

    @property
    def weights_bytes(self) -> float:
        """Memory of the weights."""
        return _BYTES * 1e9 * self.parameters_b


class Weights:
    """A decoder's weights in a GPU's memory.

    Args:
        shape: The decoder's.
        device: PyTorch's name of the device.
    """

    def __init__(self, shape: Decoder, device: str) -> None:
        import torch  # noqa: PLC0415 - the report runs without it

        def matrix(inputs: int, outputs: int) -> Any:
            size = (outputs, inputs)
            return torch.randn(size, dtype=torch.bfloat16, device=device).mul_(inputs**-0.5)

        its, self.shape, self.device = shape, shape, device
        both = (its.heads + 2 * its.kv_heads) * its.head
        self.layers = [
            (
                matrix(its.width, both),
                matrix(its.heads * its.head, its.width),
                matrix(its.width, 2 * its.inner),
                matrix(its.inner, its.width),
            )
            for _ in range(its.layers)
        ]
        self.scores = matrix(its.width, its.vocabulary)

    def decode(self, sequences: int, context_tokens: int) -> Step:
        """Return a step that gives every sequence one token.

        Args:
            sequences: Answers that are generated.
            context_tokens: Tokens of each that it looks back at.

        Raises:
            RuntimeError: It does not fit the memory.
        """
        import torch  # noqa: PLC0415

        its = self.shape
        size = (its.layers, 2, sequences, its.kv_heads, context_tokens, its.head)
        kept = torch.randn(size, dtype=torch.bfloat16, device=self.device)
        tokens = torch.randn((sequences, its.width), dtype=torch.bfloat16, device=self.device)
        per_head = its.heads // its.kv_heads

        def attend(layer: int, both: Any) -> Any:
            queries, keys, values = both.view(sequences, -1, its.head).split(
                [its.heads, its.kv_heads, its.kv_heads], dim=1
            )
            kept[layer, 0, :, :, -1] = keys
            kept[layer, 1, :, :, -1] = values
            # The queries of one group look at the same keys: they are rows of one product.
            grouped = queries.reshape(sequences, its.kv_heads, per_head, its.head)
            seen = torch.nn.functional.scaled_dot_product_attention(
                grouped, kept[layer, 0], kept[layer, 1]
            )
            return seen.reshape(sequences, its.heads * its.head)

        return self._captured(tokens, attend, len(tokens))

    def prefill(self, prompts: int, prompt_tokens: int) -> Step:
        """Return a step that takes in whole prompts.

        Args:
            prompts: Prompts of the step.
            prompt_tokens: Tokens of each.

        Raises:
            RuntimeError: It does not fit the memory.
        """
        import torch  # noqa: PLC0415

        its, rows = self.shape, prompts * prompt_tokens
        tokens = torch.randn((rows, its.width), dtype=torch.bfloat16, device=self.device)

        def attend(_: int, both: Any) -> Any:
            heads = both.view(prompts, prompt_tokens, -1, its.head).transpose(1, 2)
            queries, keys, values = heads.split([its.heads, its.kv_heads, its.kv_heads], dim=1)
            seen = torch.nn.functional.scaled_dot_product_attention(
                queries, keys, values, is_causal=True, enable_gqa=True
            )
            return seen.transpose(1, 2).reshape(rows, its.heads * its.head)

        return self._captured(tokens, attend, prompts)

    def _captured(self, tokens: Any, attend: Callable[[int, Any], Any], scored: int) -> Step:
        """Return all layers over `tokens` as one CUDA graph; the last `scored` rows get scores."""
        import torch  # noqa: PLC0415

        functional, width = torch.nn.functional, (self.shape.width,)

        def run() -> Any:
            rows = tokens
            for index, (both, out, gated, down) in enumerate(self.layers):
                normal = functional.rms_norm(rows, width)
                rows = rows + functional.linear(attend(index, functional.linear(normal, both)), out)
                gate, up = functional.linear(functional.rms_norm(rows, width), gated).chunk(2, -1)
                rows = rows + functional.linear(functional.silu(gate) * up, down)
            last = functional.rms_norm(rows[-scored:], width)
            return functional.linear(last, self.scores).argmax(-1)

        def step() -> None:
            with torch.inference_mode():
                run()

        if self.device == "cpu":
            return step
        beside = torch.cuda.Stream()
        with torch.cuda.stream(beside):
            for _ in range(_SPARE_RUNS):
                step()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.inference_mode():
            run()
        replay: Step = graph.replay
        return replay


LLAMA_8B: Final = Decoder("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256)
QWEN_32B: Final = Decoder("Qwen3-32B", 64, 5120, 64, 8, 128, 25600, 151936)
