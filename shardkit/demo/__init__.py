"""The main job: a web access log replayed through decorated functions and a structure.

::

    access_log   opens a log and reads it, batch by batch
    counting     what is done with a batch, and the figures that come of it
    replay       the loop between the two, with its speed and Ctrl-C
    load         how the shards share the visitors
    weighing     what they weigh in parts, and as one SET a day
    sample       the log that is bundled, and how it was made
    report       the tables, the JSON document
    command      ``shardkit demo``
"""
