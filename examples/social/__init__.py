"""A social network of made-up people, built in bulk, used for some seconds, and reported on.

::

    people     who there is and who follows whom: Zipf, and the same from the same seed
    loading    writing all that in bulk, as it would be if everybody had followed one by one
    acting     posting, following and reading by many at once, with a worker beside them
    measuring  what servers and shards hold and did
    report     the tables, the JSON document
    command    ``python -m examples.social``
"""
