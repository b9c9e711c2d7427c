"""PySpark over Spark Connect with this package's failover: what `haclient.spark` opens.

A program has a usual PySpark session. Its channel is ours (`channel`): each call goes to the server
in use and, when that fails, to the next, by the failover policy; PySpark's own logic for streams
that break in the middle is left to do what it does. `links` has the connections and notices servers
that froze; `status` and `address` decide what codes and URLs mean.
"""
