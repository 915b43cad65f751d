"""Durable state of the batch service."""

from services.batch.adapters.store.base import HOLD_S
from services.batch.adapters.store.rows import Piece, Result
from services.batch.adapters.store.store import Store
from services.batch.adapters.store.stored_files import too_many_bytes

__all__ = ["HOLD_S", "Piece", "Result", "Store", "too_many_bytes"]
