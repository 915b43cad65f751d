from services.planner.adapters.store.opening import open_store
from services.planner.adapters.store.store import Store

__all__ = ["Store", "open_store"]
