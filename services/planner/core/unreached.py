"""Segments that agents report as serving, and that no router reaches."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from cinquefoil.gpuagent.v1.records import Segment, SegmentState

_PATIENCE_S: Final = 15.0
"""Time for which no router may have reached a segment; a worker that restarts is back by then."""

_APART_S: Final = 60.0
"""Least time between nodes whose segments are replaced."""

_FIRST_S: Final = 600.0
_MAX_S: Final = 14_400.0


@dataclass(slots=True)
class _Pause:
    until_s: float
    length_s: float
    avoided: bool


@dataclass(slots=True)
class Unreached:
    """Segments to replace, and nodes to avoid: every segment of theirs was unreached.

    Routers may be wrong, or lie: one node at a time, and each at most once in ten minutes, a time
    that doubles up to 4 h.

    Attributes:
        given_up: Segments that are to be replaced.
    """

    given_up: frozenset[str] = frozenset()
    _since_s: dict[str, float] = field(default_factory=dict)
    _pauses: dict[str, _Pause] = field(default_factory=dict)
    _next_s: float = 0.0

    def observe(
        self,
        unreached: Collection[str],
        serving: Mapping[str, Collection[str]],
        replaceable: Collection[str],
        now_s: float,
    ) -> list[str]:
        """Record the segments that no router reaches; return the nodes with ones to replace.

        Args:
            unreached: The segments.
            serving: Segments that agents report as serving, by node.
            replaceable: Nodes whose segments another node could take over.
            now_s: Monotonic time, s.
        """
        self._since_s = {each: self._since_s.get(each, now_s) for each in unreached}
        self.given_up &= self._since_s.keys()
        found = []
        for node, segments in serving.items():
            due = {each for each in segments if self._is_due(each, now_s)}
            pause = self._pauses.get(node)
            held = now_s < self._next_s or (pause is not None and now_s < pause.until_s)
            if due <= self.given_up or held:
                continue
            length_s = _FIRST_S
            if pause is not None and now_s < pause.until_s + _MAX_S:
                length_s = min(2 * pause.length_s, _MAX_S)
            avoided = node in replaceable and due.issuperset(segments)
            self._pauses[node] = _Pause(now_s + length_s, length_s, avoided)
            self._next_s = now_s + _APART_S
            self.given_up |= due
            found.append(node)
        return found

    def avoided(self, now_s: float) -> frozenset[str]:
        """Return the nodes that are not to be planned on for now."""
        pauses = self._pauses.items()
        return frozenset(node for node, each in pauses if each.avoided and now_s < each.until_s)

    def marked(self, running: Iterable[Segment]) -> tuple[Segment, ...]:
        """Return running segments; those to replace drain: a plan does without them."""
        return tuple(
            replace(each, state=SegmentState.DRAINING)
            if each.spec.segment_id in self.given_up
            else each
            for each in running
        )

    def _is_due(self, segment_id: str, now_s: float) -> bool:
        return now_s - self._since_s.get(segment_id, now_s) >= _PATIENCE_S
