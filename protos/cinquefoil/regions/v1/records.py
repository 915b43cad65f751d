"""Messages of `cinquefoil.regions.v1` as frozen values; written by `make protos`."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, order=True)
class Wish:
    """Work of one model that a region would send to another.

    Attributes:
        model: The model.
        rate_rps: Requests per second.
        home_energy_j: Energy of one more request at home. Unit: J.
        home_intensity_gco2e_per_kwh: Carbon intensity at home, with the site's overhead. Unit:
            gCO2e per kWh.
    """

    model: str = ""
    rate_rps: float = 0.0
    home_energy_j: float = 0.0
    home_intensity_gco2e_per_kwh: float = 0.0


@dataclass(frozen=True, slots=True)
class Offer:
    """One more request of a model in a region, and what the caller may send.

    Attributes:
        model: The model.
        energy_j: Energy of one more request in the present plan. Unit: J.
        intensity_gco2e_per_kwh: Carbon intensity, with the site's overhead. Unit: gCO2e per kWh.
        spare_rps: What the plan's segments leave beside the region's own demand and its promises.
            Unit: requests per second.
        granted_rps: What the caller may send. Unit: requests per second.
        valid: How long the grant is valid, from when it was requested.
    """

    model: str = ""
    energy_j: float = 0.0
    intensity_gco2e_per_kwh: float = 0.0
    spare_rps: float = 0.0
    granted_rps: float = 0.0
    valid: timedelta = timedelta()


@dataclass(frozen=True, slots=True, order=True)
class Flow:
    """One model between this region and another; of this region itself: its own demand.

    Attributes:
        model: The model.
        carbon_gco2e: Carbon of one more request there. Unit: gCO2e.
        granted_rps: What this region may send there; of this region: its capacity. Unit: requests
            per second.
        sent_rps: What this region sends there; of this region: what its own clients request. Unit:
            requests per second.
        received_rps: What comes from there; of this region: from all. Unit: requests per second.
        promised_rps: What this region may have to take from there, by its promises. Unit: requests
            per second.
    """

    model: str = ""
    carbon_gco2e: float = 0.0
    granted_rps: float = 0.0
    sent_rps: float = 0.0
    received_rps: float = 0.0
    promised_rps: float = 0.0


@dataclass(frozen=True, slots=True)
class Region:
    """One region as this one sees it.

    Attributes:
        name: Its name.
        reachable: Reachable: its planner answers, and a router has measured the network. True of
            this region.
        draining: It grants nothing for now.
        round_trip_s: Network round trip from this region's routers. 0: not measured, or this
            region. Unit: s.
        flows: What goes between, by model.
        reason: Why it is not reachable; empty: it is.
    """

    name: str = ""
    reachable: bool = False
    draining: bool = False
    round_trip_s: float = 0.0
    flows: tuple[Flow, ...] = ()
    reason: str = ""
