from services.planner.store.opening import open_store
from services.planner.store.store import Store

__all__ = ["Store", "open_store"]
