"""Small applications with FastAPI, Flask, Django and rq on the servers of one shard map.

Each keeps users' names in a sharded hash, and counts who looks at them. They run on the servers of
``shardkit up configs/local.yaml``, or of the map or config server that ``$SHARDKIT_CONFIG`` names.

``deploy/`` runs the Flask and the FastAPI application and the worker of ``letters.py`` as a team
would: by systemd, in containers, and in Kubernetes, with probes and a restricted environment.
"""

import os

CONFIG = os.environ.get("SHARDKIT_CONFIG", "configs/local.yaml")
USERS = 1_000_000  # how many users are expected, so that parts have a good size from the start
