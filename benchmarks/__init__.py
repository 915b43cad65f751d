"""Measurements, and the papers' figures again."""

import services as services  # first: it sets what libraries read when they are imported
