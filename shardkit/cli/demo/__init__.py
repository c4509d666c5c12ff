"""The demo: a web access log replayed through decorated functions and a structure.

::

    access_log   opens a log and reads it in batches
    counting     counts a batch, and reads the figures of each day
    replay       the loop between the two, with its speed and Ctrl-C
    memory_use   how visitors are distributed over the shards, and what they take there and in SETs
    sample       generates the sample log
    report       the tables and the JSON document
    command      ``shardkit demo``
"""
