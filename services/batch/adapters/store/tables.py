"""Tables of the batch service's database, and their version."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

VERSION: Final = 3
"""Of the schema."""

metadata = MetaData()

schema = Table("batch_schema", metadata, Column("version", Integer, primary_key=True))

files = Table(
    "batch_files",
    metadata,
    Column("id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("name", String, nullable=False),
    Column("purpose", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_s", Float, nullable=False),
    Column("expires_s", Float, nullable=False),
    Index("batch_files_of", "owner", "created_s"),
)

batches = Table(
    "batches",
    metadata,
    Column("id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("endpoint", String, nullable=False),
    Column("model", String, nullable=False, default=""),
    Column("input_file_id", String, nullable=False),
    Column("output_file_id", String, nullable=False, default=""),
    Column("error_file_id", String, nullable=False, default=""),
    Column("window_s", Float, nullable=False),
    Column("state", Integer, nullable=False),
    Column("errors", Text, nullable=False, default="[]"),
    Column("lines", BigInteger, nullable=False, default=0),
    Column("tokens", BigInteger, nullable=False, default=0),
    Column("completed", BigInteger, nullable=False, default=0),
    Column("failed", BigInteger, nullable=False, default=0),
    Column("metadata", Text, nullable=False, default="{}"),
    # Whether lines were left when its window ended.
    Column("expired", Boolean, nullable=False, default=False),
    Column("created_s", Float, nullable=False),
    Column("in_progress_s", Float),
    Column("finalizing_s", Float),
    Column("ended_s", Float),
    Column("cancelling_s", Float),
    Column("prompt_tokens", BigInteger, nullable=False, default=0),
    Column("output_tokens", BigInteger, nullable=False, default=0),
    Column("energy_j", Float, nullable=False, default=0.0),
    Column("carbon_gco2e", Float, nullable=False, default=0.0),
    Column("energy_marginal_j", Float, nullable=False, default=0.0),
    Column("carbon_marginal_gco2e", Float, nullable=False, default=0.0),
    # The grid when it began, and a request's energy on a replica of its own; None: not known yet.
    Column("begun_gco2e_per_kwh", Float),
    Column("own_pool_j", Float),
    # The service that reads its input or writes its output, and until when that is believed.
    Column("holder", String, nullable=False, default=""),
    Column("held_until_s", Float, nullable=False, default=0.0),
    Index("batches_of", "owner", "created_s"),
    Index("batches_open", "state"),
)

# Lines that have no result yet, some at a time: a piece of the input file.
pieces = Table(
    "batch_pieces",
    metadata,
    Column("batch_id", String, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("offset_bytes", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("first_line", BigInteger, nullable=False),
    Column("lines", Integer, nullable=False),
    Column("holder", String, nullable=False, default=""),
    Column("held_until_s", Float, nullable=False, default=0.0),
)

# One a line, whatever happens: the key says so. Lines count from 1.
results = Table(
    "batch_results",
    metadata,
    Column("batch_id", String, primary_key=True),
    Column("line", BigInteger, primary_key=True, autoincrement=False),
    Column("failed", Boolean, nullable=False),
    Column("content", LargeBinary, nullable=False),
)
