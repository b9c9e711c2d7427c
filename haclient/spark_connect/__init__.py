"""PySpark over Spark Connect with this package's failover: the session of `haclient.spark`.

A program has a usual PySpark session. Only its channel is ours (`session`): each call goes to the
server in use and, if that fails, to the next, by the failover policy. PySpark itself handles
streams that break in the middle. `links` has the connections and notices frozen servers; `status`
gives the meaning of codes.
"""
