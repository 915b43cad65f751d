"""Trains the models of a deployment that are the demo's own."""

from collections.abc import Callable

from services.kit.config import Deployment

MODEL = "digits"


def train_missing(deployment: Deployment, say: Callable[[str], object]) -> None:
    """Train the family where the deployment serves digits and a file of the family is missing.

    Files outside the family, and files that exist, are left alone.
    """
    model = deployment.models.get(MODEL)
    missing = [v.file for v in model.variants.values() if not v.file.exists()] if model else []
    if not missing:
        return
    # scikit-learn takes a second to import: only for those who need it.
    from services.local.demo.model_family import CONVNETS, FAMILY, train  # noqa: PLC0415

    ours = [file for file in missing if file.stem in FAMILY or file.stem in CONVNETS]
    for folder in sorted({file.parent for file in ours}):
        say(f"Training the demo's models into {folder}")
        train(folder, say, [file.stem for file in ours if file.parent == folder])
