"""Measurements of a profiler, and the machine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hardware and software that measurements depend on.

    Attributes:
        gpu: GPU type, for example "a100-40gb".
        product_name: The driver's, for example "NVIDIA A100-SXM4-40GB".
        driver, cuda, onnxruntime: Versions; "" where unknown.
        simulated: Nothing was measured on hardware: the figures are a model's.
        measured_on: Date of the first measurement, ISO 8601.
        gpus: GPUs that held the model together.
    """

    gpu: str
    product_name: str
    driver: str = ""
    cuda: str = ""
    onnxruntime: str = ""
    simulated: bool = False
    measured_on: str = ""
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Measurement:
    """One point of a profile: a row of our format, column by column.

    Attributes:
        gpu: GPU type.
        profile: Slice kind, for example "3g.20gb" or "whole".
        batch_size: Items in each batch, >= 1.
        processes: Processes that ran batches at the same time, >= 1.
        clock_mhz: SM clock that was held, MHz; 0: none.
        clock_ratio: SM clock over the GPU's highest, 0 < ratio <= 1.
        latency_s: Mean time of a batch, s. 0: it did not run.
        latency_p50_s, latency_p95_s, latency_std_s: Of the same times, s.
        throughput_rps: Items per second of all processes together.
        energy_j: Mean active energy of a batch, J.
        energy_method: "counter", "integrated" or "model".
        batches: Batches measured.
        reason: Cause of a batch that did not run.
        prompt_tokens: Of a language model: tokens wanted of each prompt; a batch is as many
            requests at once. 0: no language model.
        context_tokens: Mean tokens of prompt and answer in the steps that were measured.
        step_s, step_j: A step that gives each of the batch's answers a token: time, and active
            energy.
        prompt_token_s, prompt_token_j: A token of a prompt: the same.
    """

    gpu: str
    profile: str
    batch_size: int
    processes: int
    clock_mhz: int = 0
    clock_ratio: float = 1.0
    latency_s: float = 0.0
    latency_p50_s: float = 0.0
    latency_p95_s: float = 0.0
    latency_std_s: float = 0.0
    throughput_rps: float = 0.0
    energy_j: float = 0.0
    energy_method: str = ""
    batches: int = 0
    reason: str = ""
    prompt_tokens: int = 0
    context_tokens: float = 0.0
    step_s: float = 0.0
    step_j: float = 0.0
    prompt_token_s: float = 0.0
    prompt_token_j: float = 0.0

    @property
    def ran(self) -> bool:
        """True if it ran."""
        return self.latency_s > 0
