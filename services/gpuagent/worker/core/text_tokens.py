"""Tokens of a text that a server of the Open Inference Protocol streams, response by response.

Source: Triton's vLLM backend, "Additional Outputs from vLLM" (`num_input_tokens`: of the prompt;
`num_output_tokens`: generated since the response before).
"""

from services.kit.request_cost import Usage


class TextTokens:
    """Counts the tokens of one answer; times are those of one monotonic clock, s."""

    def __init__(self) -> None:
        self._input = self._output = self._first = 0
        self._first_s = self._last_s = 0.0

    def add(self, output_tokens: int, now_s: float, *, input_tokens: int = 0) -> None:
        """Take a response.

        Args:
            output_tokens: Tokens that it brings, >= 0.
            now_s: When it came.
            input_tokens: Tokens of the prompt; 0: it does not say.
        """
        self._input = input_tokens or self._input
        if not output_tokens:
            return
        if not self._output:
            self._first, self._first_s = output_tokens, now_s
        self._output += output_tokens
        self._last_s = now_s

    def usage(self, came_s: float) -> Usage | None:
        """Return the tokens and their times; None: there was no text.

        Args:
            came_s: When the request came to its router.
        """
        if not self._output:
            return None
        between = self._output - self._first
        token_s = (self._last_s - self._first_s) / between if between else 0.0
        return Usage(self._input, self._output, self._first_s - came_s, token_s)
