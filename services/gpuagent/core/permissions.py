"""The right to change a node, which the deployment file grants or not."""

from dataclasses import dataclass

from services.kit.errors import PermissionDenied


@dataclass(frozen=True, slots=True)
class Permissions:
    """Whether the agent may change its node, or only reads it.

    Reading is the inventory, energy and metrics. Changing is all that a step does.

    Attributes:
        granted: It may.
        setting: The key that grants it, for the error message.
    """

    granted: bool = True
    setting: str = "nodes.<name>.control"

    def require(self) -> None:
        """Refuse where the right was not given.

        Raises:
            PermissionDenied: It was not.
        """
        if not self.granted:
            raise PermissionDenied(
                f"this agent only reads its node: {self.setting} is off; set it to true to let it "
                "change slices, segments and clocks",
                reason="CONTROL_OFF",
            )


ALL_GRANTED = Permissions()
