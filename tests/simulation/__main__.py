"""Search for histories that break an invariant; or play one: see `--help`."""

import sys

from tests.simulation import machine

machine.install()

from tests.simulation import cluster, network, path, workers  # noqa: E402 - after the clock was replaced

network.install()
workers.install()
cluster.install()
path.install()

from tests.simulation.search import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
