from services.kit.database.connection import Rejected
from services.planner.adapters.store.leadership import Deposed
from services.planner.adapters.store.opening import open_store
from services.planner.adapters.store.store import Store

__all__ = ["Deposed", "Rejected", "Store", "open_store"]
