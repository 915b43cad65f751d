"""Train the network that is cut in two here, of the demo's family: seconds."""

from pathlib import Path

from services.local.demo.model_family import train

train(Path("out/models"), print, ["conv-384"])
