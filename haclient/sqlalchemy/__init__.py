"""SQLAlchemy's dialect ``haproc``, over `haclient.connect`; needs the extra ``sqlalchemy``.

    engine = sqlalchemy.create_engine("haproc://:TOKEN@a,b,c:8080/sales")

There are no transactions: each statement is final, and a rollback undoes nothing.
"""

from haclient.sqlalchemy.dialect import HAProcDialect
from haclient.sqlalchemy.types import INTERVAL, MAP, STRUCT, TIMESTAMP_NTZ, TINYINT, VARIANT

__all__ = ["INTERVAL", "MAP", "STRUCT", "TIMESTAMP_NTZ", "TINYINT", "VARIANT", "HAProcDialect"]
