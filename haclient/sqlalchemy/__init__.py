"""SQLAlchemy's dialect ``haproc``, over `haclient.connect`; needs the extra ``sqlalchemy``.

    engine = sqlalchemy.create_engine("haproc://:TOKEN@a,b,c:8080/sales")

Each statement stands by itself: there is no transaction, and a rollback undoes nothing.
"""

from haclient.sqlalchemy.dialect import HAProcDialect
from haclient.sqlalchemy.types import INTERVAL, MAP, STRUCT, TIMESTAMP_NTZ, TINYINT, VARIANT

__all__ = ["INTERVAL", "MAP", "STRUCT", "TIMESTAMP_NTZ", "TINYINT", "VARIANT", "HAProcDialect"]
