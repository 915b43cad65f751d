"""Messages of `cinquefoil.regions.v1` as frozen values; written by `make protos`."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, order=True)
class Wish:
    """Work of one model that a region would send to another.

    Attributes:
        model: The model.
        rate_rps: Of those that cannot wait. Unit: requests per second.
        home_energy_j: Energy of one more request at home. Unit: J.
        home_intensity_gco2e_per_kwh: Carbon intensity at home, with the site's overhead. Unit:
            gCO2e per kWh.
        waiting_rps: Of those that can wait, and would run now. Unit: requests per second.
    """

    model: str = ""
    rate_rps: float = 0.0
    home_energy_j: float = 0.0
    home_intensity_gco2e_per_kwh: float = 0.0
    waiting_rps: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class OfferedHour:
    """Offer to requests that can wait, of one hour to come.

    Attributes:
        intensity_gco2e_per_kwh: Mean carbon intensity by forecast, with the site's overhead. Unit:
            gCO2e per kWh.
        spare_rps: What the region's own requests, those that can wait included, are expected to
            leave. Unit: requests per second.
        energy_j: Marginal energy of a request in that room. Unit: J.
    """

    intensity_gco2e_per_kwh: float = 0.0
    spare_rps: float = 0.0
    energy_j: float = 0.0


@dataclass(frozen=True, slots=True)
class Offer:
    """One more request of a model in a region, and what the caller may send.

    Attributes:
        model: The model.
        energy_j: Energy of one more request in the present plan. Unit: J.
        intensity_gco2e_per_kwh: Carbon intensity, with the site's overhead. Unit: gCO2e per kWh.
        spare_rps: What the plan's segments leave beside the region's own demand and its promises.
            Unit: requests per second.
        granted_rps: What the caller may send, of both kinds together. Unit: requests per second.
        valid: How long the grant is valid, from when it was requested.
        hours: The coming hours of grid time, from when the message is sent, one after another; at
            most 48, and no more than have a forecast. Nothing is reserved by them.
    """

    model: str = ""
    energy_j: float = 0.0
    intensity_gco2e_per_kwh: float = 0.0
    spare_rps: float = 0.0
    granted_rps: float = 0.0
    valid: timedelta = timedelta()
    hours: tuple[OfferedHour, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Flow:
    """One model between this region and another; of this region itself: its own demand.

    Attributes:
        model: The model.
        carbon_gco2e: Carbon of one more request there. Unit: gCO2e.
        granted_rps: What this region may send there; of this region: its capacity. Unit: requests
            per second.
        sent_rps: What this region sends there of requests that cannot wait; of this region: what
            its own clients request. Unit: requests per second.
        received_rps: What comes from there; of this region: from all. Unit: requests per second.
        promised_rps: What this region may have to take from there, by its promises. Unit: requests
            per second.
        waiting_rps: What this region sends there of requests that can wait; of this region: what
            runs here by plan. Unit: requests per second.
    """

    model: str = ""
    carbon_gco2e: float = 0.0
    granted_rps: float = 0.0
    sent_rps: float = 0.0
    received_rps: float = 0.0
    promised_rps: float = 0.0
    waiting_rps: float = 0.0


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
