"""PySpark's own examples of its Connect client, as tests of the ring.

Each module of ``pyspark.sql.connect`` runs the examples in PySpark's documentation against the
server that SPARK_CONNECT_TESTING_REMOTE names. The same must fail and succeed through the ring as
on Spark itself, but for what `exceptions` lists with its reason. The tests run the modules that
take seconds, through the ring; ``python -m tests.doctests URL URL`` runs all of them both ways.
"""
